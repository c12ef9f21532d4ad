//! Files to text: Markdown, HTML, e-mail, and anything that a command of the user's turns into text.

use std::fmt;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::str::FromStr;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::CorpusConfig;
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
    pub(super) fn run(&self, path: &Path, config: &CorpusConfig) -> std::result::Result<Vec<u8>, String> {
        let program = &self.command[0];
        let max_bytes = config.max_row_bytes;
        let deadline = Instant::now() + Duration::from_secs(config.max_extract_seconds);
        let mut running = Running::start(self.arguments(path)).map_err(|e| {
            format!("cannot be extracted: \"{program}\" does not start ({e}); install it, or change the command")
        })?;
        let too_late = || {
            let seconds = config.max_extract_seconds;
            format!(
                "\"{program}\" still ran after {seconds} s and was stopped; raise max_extract_seconds if it needs longer"
            )
        };
        let text = running.output(max_bytes, deadline).ok_or_else(too_late)?;
        if text.len() > max_bytes {
            return Err(format!("\"{program}\" gives more than {max_bytes} bytes; raise max_row_bytes if it is meant"));
        }
        let status = running.wait(deadline).map_err(|e| format!("cannot be extracted: {e}"))?.ok_or_else(too_late)?;
        if !status.success() {
            let said = running.said();
            return Err(format!("\"{program}\" cannot read it ({status}): {said}"));
        }
        Ok(text)
    }

    fn arguments(&self, path: &Path) -> Command {
        // A path that begins with a dash would be taken for an option.
        let path = if path.is_absolute() { path.to_path_buf() } else { Path::new(".").join(path) };
        let argument = |part: &String| match part.as_str() {
            "{}" => path.clone().into_os_string(),
            part => part.replace("{}", &path.to_string_lossy()).into(),
        };
        let mut command = Command::new(&self.command[0]);
        command.args(self.command[1..].iter().map(argument));
        command
    }
}

/// Bytes of a command's error output that are told.
const MAX_SAID_BYTES: u64 = 400;
/// How often the end of a command is looked for.
const LOOK: Duration = Duration::from_millis(5);

/// A command at work. It is stopped when this is dropped, with the programs that it started.
struct Running {
    child: Child,
    errors: Receiver<String>,
}

impl Running {
    fn start(mut command: Command) -> io::Result<Running> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A group of its own, so that the programs it starts can be stopped with it.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn()?;
        let (sender, errors) = channel();
        let mut from = child.stderr.take().expect("it is piped");
        // Read beside the output: a full pipe would stop the command.
        std::thread::spawn(move || {
            let mut said = Vec::new();
            let _ = from.by_ref().take(MAX_SAID_BYTES).read_to_end(&mut said);
            let _ = sender.send(String::from_utf8_lossy(&said).trim().replace('\n', "; "));
            let _ = io::copy(&mut from, &mut io::sink());
        });
        Ok(Running { child, errors })
    }

    /// What it prints, at most one byte more than `max_bytes`; `None` if it goes on after `deadline`.
    fn output(&mut self, max_bytes: usize, deadline: Instant) -> Option<Vec<u8>> {
        let from = self.child.stdout.take().expect("it is piped, and read once");
        let (sender, text) = channel();
        // Read by a thread, because a read has no time limit.
        std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = from.take(max_bytes as u64 + 1).read_to_end(&mut text);
            let _ = sender.send(text);
        });
        text.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()
    }

    /// Its status; `None` if it goes on after `deadline`.
    fn wait(&mut self, deadline: Instant) -> io::Result<Option<ExitStatus>> {
        loop {
            match self.child.try_wait()? {
                None if Instant::now() < deadline => std::thread::sleep(LOOK),
                found => return Ok(found),
            }
        }
    }

    /// Its error output, once it has ended.
    fn said(&self) -> String {
        // A program that it left behind may keep the pipe open.
        let said = self.errors.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
        if said.is_empty() { "it says nothing".to_owned() } else { said }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            #[cfg(unix)]
            if let Some(group) = rustix::process::Pid::from_raw(self.child.id() as i32) {
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

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

/// The first heading of a Markdown text: one to six hashes and a blank, or a line that is underlined. Code, and the fields
/// that some programs put in front of a text between lines of dashes, have none.
pub(super) fn heading(text: &str) -> Option<String> {
    let (mut fence, mut before) = (None, "");
    let closes = |c: char| matches!(c, '`' | '~' | ' ' | '\t');
    let mut lines = text.lines().peekable();
    if lines.peek().is_some_and(|line| line.trim_end() == "---") && lines.clone().skip(1).any(is_rule) {
        lines.next();
        lines.by_ref().find(|line| is_rule(line));
    }
    for line in lines {
        let content = line.trim_start_matches(' ');
        let indent = line.len() - content.len();
        let mark = ["```", "~~~"].into_iter().find(|mark| content.starts_with(mark));
        match (fence, mark) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(open), Some(mark)) if open == mark && content.trim_start_matches(mark).chars().all(closes) => {
                fence = None;
            }
            // Four blanks make code too.
            (None, None) if indent < 4 => {
                let title = hashed(content).or_else(|| underlined(before, content));
                if title.is_some() {
                    return title;
                }
            }
            _ => {}
        }
        before = if fence.is_none() && indent < 4 { content.trim() } else { "" };
    }
    None
}

fn is_rule(line: &str) -> bool {
    matches!(line.trim_end(), "---" | "...")
}

/// `## A title ##`. A word like `#tag` is none.
fn hashed(line: &str) -> Option<String> {
    let rest = line.trim_start_matches('#');
    let is_heading = (1..=6).contains(&(line.len() - rest.len())) && rest.starts_with([' ', '\t']);
    let rest = rest.trim();
    // Hashes at the end belong to the mark after a blank.
    let closed = rest.trim_end_matches('#');
    let title = if closed.is_empty() || closed.ends_with([' ', '\t']) { closed.trim_end() } else { rest };
    (is_heading && !title.is_empty()).then(|| title.to_owned())
}

/// A line of text above a line of equals signs or dashes.
fn underlined(before: &str, line: &str) -> Option<String> {
    let mark = line.trim_end();
    let is_line = mark.len() > 1 && (mark.chars().all(|c| c == '=') || mark.chars().all(|c| c == '-'));
    let is_text = before.starts_with(char::is_alphanumeric);
    (is_line && is_text && !before.contains('|')).then(|| before.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_is_the_first_heading_and_neither_a_tag_nor_code() {
        for (text, title) in [
            ("# Oil\n", Some("Oil")),
            ("intro\n\n  ### Oil prices ###\n", Some("Oil prices")),
            ("#tag #other\n\n# Oil\n", Some("Oil")),
            ("```sh\n# a comment\n```\n\n## Oil\n", Some("Oil")),
            ("~~~\n```\n# a comment\n~~~\n# Oil\n", Some("Oil")),
            ("    # indented code\n# Oil\n", Some("Oil")),
            ("---\ntitle: x\n# a comment\n---\n# Oil\n", Some("Oil")),
            ("---\n# Oil\n", Some("Oil")),
            ("# C#\n", Some("C#")),
            ("Oil prices\n==========\n", Some("Oil prices")),
            ("a | b\n--- | ---\n", None),
            ("####### seven\n#\n#tag\n", None),
            ("```\n# never closed\n", None),
        ] {
            assert_eq!(heading(text).as_deref(), title, "{text:?}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_command_that_hangs_is_stopped_with_what_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.pdf");
        std::fs::write(&file, "x").unwrap();
        let script = |name: &str, text: &str| {
            use std::os::unix::fs::PermissionsExt;
            let path = dir.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            format!("pdf={} {{}}", path.display()).parse::<Extract>().unwrap()
        };
        let config = CorpusConfig { max_extract_seconds: 1, ..CorpusConfig::default() };
        // It waits for a program that holds the pipe, or closes the pipe and goes on.
        for before in ["", "exec >&-; "] {
            let text = format!("{before}sh -c 'sleep 2; touch \"$0.late\"' \"$1\"; exit 0");
            let message = script("hang", &text).run(&file, &config).unwrap_err();
            assert!(message.contains("still ran after 1 s") && message.contains("max_extract_seconds"), "{message}");
            std::thread::sleep(Duration::from_millis(1500));
            assert!(!dir.path().join("a.pdf.late").exists(), "the program it started goes on");
        }
        assert_eq!(script("ok", "cat \"$1\"").run(&file, &config).unwrap(), b"x");
        let message = script("bad", "echo no >&2; exit 3").run(&file, &config).unwrap_err();
        assert!(message.contains("exit status: 3") && message.ends_with(": no"), "{message}");
    }
}
