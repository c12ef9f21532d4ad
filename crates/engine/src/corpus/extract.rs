//! Files to text: Markdown, HTML, e-mail, and anything that a command of the user's turns into text.

use std::fmt;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::str::FromStr;

use crate::{Error, Result};

/// A command that turns files of some endings into text: `pdf=pdftotext {} -`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extract {
    endings: Vec<String>,
    /// Program and arguments. `{}` is the file. No shell is between.
    command: Vec<String>,
}

impl FromStr for Extract {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse = |problem: &str| {
            Error::config(format!(
                "extract '{text}': {problem}; write it like pdf=pdftotext {{}} - or docx,odt=pandoc -t plain {{}}"
            ))
        };
        let (endings, command) = text.split_once('=').ok_or_else(|| refuse("there is no '='"))?;
        let ending = |ending: &str| ending.trim().trim_start_matches('.').to_ascii_lowercase();
        let endings: Vec<String> = endings.split(',').map(ending).collect();
        let command: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
        if endings.iter().any(String::is_empty) {
            return Err(refuse("an ending is empty"));
        }
        if command.len() < 2 || !command[1..].iter().any(|part| part.contains("{}")) {
            return Err(refuse("the command does not say where the file goes ({})"));
        }
        Ok(Extract { endings, command })
    }
}

impl fmt::Display for Extract {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.endings.join(","), self.command.join(" "))
    }
}

impl Extract {
    pub(super) fn takes(&self, ending: &str) -> bool {
        self.endings.iter().any(|own| own == ending)
    }

    /// The output of the command for a file. The error is a message.
    pub(super) fn run(&self, path: &Path, max_bytes: usize) -> std::result::Result<Vec<u8>, String> {
        let program = &self.command[0];
        // A path that begins with a dash would be taken for an option.
        let path = if path.is_absolute() { path.to_path_buf() } else { Path::new(".").join(path) };
        let argument = |part: &String| match part.as_str() {
            "{}" => path.clone().into_os_string(),
            part => part.replace("{}", &path.to_string_lossy()).into(),
        };
        let mut command = Command::new(program);
        command.args(self.command[1..].iter().map(argument)).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(|e| {
            format!("cannot be extracted: \"{program}\" does not start ({e}); install it, or change the command")
        })?;
        let mut errors = child.stderr.take();
        // Read beside the output: a full pipe would stop the command.
        let errors = std::thread::spawn(move || {
            let mut said = Vec::new();
            if let Some(errors) = &mut errors {
                let _ = errors.by_ref().take(MAX_SAID_BYTES).read_to_end(&mut said);
                let _ = std::io::copy(errors, &mut std::io::sink());
            }
            String::from_utf8_lossy(&said).trim().replace('\n', "; ")
        });
        let mut text = Vec::new();
        let output = child.stdout.take().expect("it is piped");
        let read = output.take(max_bytes as u64 + 1).read_to_end(&mut text);
        if read.is_err() || text.len() > max_bytes {
            let _ = child.kill();
        }
        let status = child.wait().map_err(|e| format!("cannot be extracted: {e}"))?;
        let said = errors.join().unwrap_or_default();
        if text.len() > max_bytes {
            return Err(format!("\"{program}\" gives more than {max_bytes} bytes; raise max_row_bytes if it is meant"));
        }
        if !status.success() {
            let said = if said.is_empty() { "it says nothing".to_owned() } else { said };
            return Err(format!("\"{program}\" cannot read it ({status}): {said}"));
        }
        Ok(text)
    }
}

/// Bytes of a command's error output that are told.
const MAX_SAID_BYTES: u64 = 400;

/// How a file becomes text.
pub(super) enum Kind<'a> {
    Command(&'a Extract),
    Markdown,
    Html,
    /// One message per file.
    Mail,
    /// Many messages per file.
    Mailbox,
    /// A format that needs a command.
    Foreign,
    Text,
}

impl<'a> Kind<'a> {
    /// By the file's ending. A command comes first, so that it can replace what is built in.
    pub(super) fn of(path: &Path, commands: &'a [Extract]) -> Kind<'a> {
        let ending = ending(path);
        if let Some(command) = commands.iter().find(|command| command.takes(&ending)) {
            return Kind::Command(command);
        }
        match ending.as_str() {
            "md" | "markdown" | "mdown" => Kind::Markdown,
            "html" | "htm" | "xhtml" => Kind::Html,
            "eml" => Kind::Mail,
            "mbox" | "mbx" => Kind::Mailbox,
            "pdf" | "doc" | "docx" | "odt" | "rtf" | "ppt" | "pptx" | "odp" | "xls" | "xlsx" | "ods" | "epub" => {
                Kind::Foreign
            }
            _ => Kind::Text,
        }
    }

    /// Whether a single file of this kind is a corpus of documents, and not of rows.
    pub(super) fn is_document(&self) -> bool {
        !matches!(self, Kind::Text)
    }
}

pub(super) fn ending(path: &Path) -> String {
    path.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_ascii_lowercase()
}

/// How a file that needs a command is treated.
pub(super) fn foreign(path: &Path) -> String {
    let ending = ending(path);
    let command =
        if ending == "pdf" { "pdf=pdftotext {} -".to_owned() } else { format!("{ending}=pandoc -t plain {{}}") };
    format!("is no text; give a command that extracts it, for instance extract \"{command}\"")
}

/// The first heading of a Markdown text.
pub(super) fn heading(text: &str) -> Option<String> {
    let line = text.lines().find_map(|line| line.strip_prefix('#'))?;
    let title = line.trim_start_matches('#').trim().trim_end_matches('#').trim();
    (!title.is_empty()).then(|| title.to_owned())
}
