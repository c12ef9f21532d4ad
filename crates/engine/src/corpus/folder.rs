//! Folders: files of documents, one document per file, or files of rows, read one after the other.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use serde_json::{Map, Value as Json};

use super::changes::{FILE, FILE_HASH, FOLDER, content_hash, folder_hash};
use super::config::{CorpusConfig, Format};
use super::extract::{Kind, foreign, heading};
use super::fields::{Row, utf8};
use super::html::{self, Page};
use super::lines::too_long;
use super::mail;
use super::source::Source;
use super::{Fault, Rows};
use crate::{Error, Result};

/// The files below a folder in the order of their names, folder by folder. Hidden files are left out. Links to folders are
/// left out too, because they may lead in circles; links to files are followed.
pub(super) struct Walk {
    /// The remaining entries of each folder on the current path, in reverse order.
    levels: Vec<Vec<PathBuf>>,
}

impl Walk {
    pub(super) fn new(root: &Path) -> Result<Walk> {
        let top = Walk::list(root).map_err(Error::io(root))?;
        Ok(Walk { levels: vec![top] })
    }

    fn list(folder: &Path) -> io::Result<Vec<PathBuf>> {
        let mut entries = vec![];
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if !entry.file_name().as_encoded_bytes().starts_with(b".") {
                entries.push(entry.path());
            }
        }
        entries.sort_unstable_by(|a, b| b.cmp(a));
        Ok(entries)
    }
}

impl Iterator for Walk {
    type Item = (PathBuf, io::Result<fs::Metadata>);

    /// The next file, or the path that could not be read.
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Some(path) = self.levels.last_mut()?.pop() else {
                self.levels.pop();
                continue;
            };
            match fs::symlink_metadata(&path) {
                Ok(entry) if entry.is_dir() => match Walk::list(&path) {
                    Ok(entries) => self.levels.push(entries),
                    Err(error) => return Some((path, Err(error))),
                },
                Ok(_) => match fs::metadata(&path) {
                    Ok(target) if target.is_file() => return Some((path, Ok(target))),
                    Ok(_) => {}
                    Err(error) => return Some((path, Err(error))),
                },
                Err(error) => return Some((path, Err(error))),
            }
        }
    }
}

/// The result of looking through a folder.
pub(super) struct Contents {
    pub(super) format: Format,
    /// Files of rows in their order. Empty for text files, which are found during reading.
    pub(super) files: Vec<PathBuf>,
    /// Bytes of all files to read.
    pub(super) bytes: u64,
}

/// Looks through a folder for files to read. `format` is the requested format.
pub(super) fn look(root: &Path, config: &CorpusConfig) -> Result<Contents> {
    let format = config.format;
    if matches!(format, None | Some(Format::Beir)) {
        for name in ["corpus.jsonl", "corpus.jsonl.gz", "corpus.jsonl.zst"] {
            let path = root.join(name);
            if let Ok(metadata) = fs::metadata(&path) {
                return Ok(Contents { format: Format::Beir, files: vec![path], bytes: metadata.len() });
            }
        }
        if format.is_some() {
            return Err(Error::format(root, "a BEIR folder holds corpus.jsonl or corpus.jsonl.gz, this one does not"));
        }
    }
    sort(root, Walk::new(root)?, config)
}

/// Decides how to read some files together.
pub(super) fn sort(
    root: &Path,
    paths: impl Iterator<Item = (PathBuf, io::Result<fs::Metadata>)>,
    config: &CorpusConfig,
) -> Result<Contents> {
    let format = config.format;
    // A command decides over the name: rows in a .json file may be one document to it.
    let is_extracted = |path: &Path| matches!(Kind::of(path, &config.extract), Kind::Command(_));
    let rows_of = |path: &Path| Format::of_name(path).filter(|format| *format != Format::Text && !is_extracted(path));
    let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
    let (mut files, mut bytes, mut found) = (vec![], 0, None);
    for (path, metadata) in paths {
        let kind = rows_of(&path);
        let size = metadata.map_or(0, |m| m.len());
        match format {
            Some(Format::Folder) => bytes += size,
            Some(asked) if Format::of_name(&path) == Some(asked) => {
                files.push(path);
                bytes += size;
            }
            Some(_) => {}
            None => {
                *kinds.entry(kind.map_or("text".into(), |kind| kind.to_string())).or_default() += 1;
                found = kind;
                files.extend(kind.map(|_| path));
                bytes += size;
            }
        }
    }
    if kinds.len() > 1 {
        let kinds: Vec<String> = kinds.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        return Err(Error::format(
            root,
            format!(
                "the folder holds files of different kinds ({}); say which format to read (folder: every file is a text)",
                kinds.join(", ")
            ),
        ));
    }
    match (format, found) {
        (Some(Format::Folder), _) | (None, None) => Ok(Contents { format: Format::Folder, files: vec![], bytes }),
        (Some(asked), _) if files.is_empty() => {
            Err(Error::format(root, format!("the folder holds no {asked} file (told by their endings)")))
        }
        (Some(format), _) | (None, Some(format)) => Ok(Contents { format, files, bytes }),
    }
}

/// The files of a folder, or some that were named.
enum Files {
    Below(Walk),
    Named(std::vec::IntoIter<PathBuf>),
}

impl Iterator for Files {
    type Item = (PathBuf, io::Result<fs::Metadata>);

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Files::Below(walk) => walk.next(),
            Files::Named(paths) => paths.next().map(|path| {
                let metadata = fs::metadata(&path);
                (path, metadata)
            }),
        }
    }
}

/// Every file is a document, and every message of a mailbox. The path below the root is the id.
pub(super) struct Documents {
    root: PathBuf,
    files: Files,
    present: PathBuf,
    mailbox: Option<Mailbox>,
    config: CorpusConfig,
    read: Arc<AtomicU64>,
}

/// A mailbox that is being read.
struct Mailbox {
    messages: Box<dyn Iterator<Item = io::Result<Vec<u8>>> + Send>,
    number: usize,
    /// How often a name was used, by its hash: a message can be there twice.
    names: HashMap<u64, u32>,
    /// Attributes of each message, by which a later look knows the file.
    about: Map<String, Json>,
}

impl Mailbox {
    /// The name of a message, with a number from the second message of that name on.
    fn unused(&mut self, name: String) -> String {
        let mut hash = DefaultHasher::new();
        name.hash(&mut hash);
        let count = self.names.entry(hash.finish()).or_default();
        *count += 1;
        if *count == 1 { name } else { format!("{name}#{count}") }
    }
}

type Outcome<T> = std::result::Result<T, Fault>;

impl Documents {
    pub(super) fn below(root: &Path, config: &CorpusConfig, read: Arc<AtomicU64>) -> Result<Documents> {
        Ok(Documents::new(root, Files::Below(Walk::new(root)?), config, read))
    }

    /// Some files. Ids are their paths below `root`, or whole paths elsewhere.
    pub(super) fn named(root: &Path, paths: Vec<PathBuf>, config: &CorpusConfig, read: Arc<AtomicU64>) -> Documents {
        Documents::new(root, Files::Named(paths.into_iter()), config, read)
    }

    fn new(root: &Path, files: Files, config: &CorpusConfig, read: Arc<AtomicU64>) -> Documents {
        let (root, present) = (root.to_path_buf(), root.to_path_buf());
        Documents { root, files, present, mailbox: None, config: config.clone(), read }
    }

    /// The path below the root as parts of an id.
    fn parts(&self) -> Outcome<Vec<String>> {
        let below = self.present.strip_prefix(&self.root).unwrap_or(&self.present);
        let parts: Option<Vec<String>> = below.iter().map(|part| part.to_str().map(str::to_owned)).collect();
        parts.ok_or_else(|| Fault::Row("the name is not UTF-8, and names are ids here; rename the file".into()))
    }

    fn label(&self, parts: &[String]) -> Option<String> {
        parts.first().cloned().filter(|_| self.config.folder_labels && parts.len() > 1)
    }

    /// The document of the present file; `None` if it is a mailbox, which is open then.
    fn open(&mut self) -> Outcome<Option<Row>> {
        let (parts, path) = (self.parts()?, self.present.clone());
        let about = self.about(&parts)?;
        let mut fields = match Kind::of(&path, &self.config.extract) {
            Kind::Mailbox => {
                let file = Source::open(&path, self.read.clone()).map_err(one)?;
                let messages = Box::new(mail::messages(file.into_reader()));
                self.mailbox = Some(Mailbox { messages, number: 0, names: HashMap::new(), about });
                return Ok(None);
            }
            Kind::Foreign => return Err(Fault::Row(foreign(&path))),
            Kind::Command(command) => plain(utf8(&command.run(&path, &self.config).map_err(Fault::Row)?)?),
            Kind::Mail => mail::fields(&self.bytes()?).map_err(Fault::Row)?,
            Kind::Html => html_fields(utf8(&self.bytes()?)?),
            Kind::Markdown => {
                let bytes = self.bytes()?;
                let text = utf8(&bytes)?;
                let mut fields = plain(text);
                fields.extend(heading(text).map(|title| ("title".into(), Json::String(title))));
                fields
            }
            Kind::Text => plain(utf8(&self.bytes()?)?),
        };
        fields.extend(about);
        let label = self.label(&parts);
        Ok(Some(Row::file(parts.join("/"), fields, label.as_deref())))
    }

    /// The next message of the open mailbox.
    fn message(&mut self) -> Option<Outcome<Row>> {
        let mailbox = self.mailbox.as_mut()?;
        let Some(message) = mailbox.messages.next() else {
            let empty = mailbox.number == 0;
            self.mailbox = None;
            return empty
                .then(|| Err(Fault::Row("is no mailbox: no line begins with \"From \"; check the file".into())));
        };
        mailbox.number += 1;
        Some(self.message_row(message))
    }

    fn message_row(&mut self, message: io::Result<Vec<u8>>) -> Outcome<Row> {
        let bytes = message.map_err(|error| Fault::Row(format!("cannot be read: {error}")))?;
        if bytes.len() > self.config.max_row_bytes {
            return Err(too_long(bytes.len(), self.config.max_row_bytes));
        }
        let parts = self.parts()?;
        let mailbox = self.mailbox.as_mut().expect("its message is being read");
        let number = mailbox.number;
        let mut fields = mail::fields(&bytes).map_err(|problem| Fault::Row(format!("message {number} {problem}")))?;
        let name = fields.get("message_id").and_then(Json::as_str).map_or_else(|| number.to_string(), str::to_owned);
        let name = mailbox.unused(name);
        fields.extend(mailbox.about.clone());
        Ok(Row::file(format!("{}#{name}", parts.join("/")), fields, self.label(&parts).as_deref()))
    }

    /// A file that cannot be read is one bad document here. It does not end the corpus.
    fn bytes(&self) -> Outcome<Vec<u8>> {
        let mut source = Source::open(&self.present, self.read.clone()).map_err(one)?;
        let limit = self.config.max_row_bytes;
        let bytes = source.read_up_to(limit.saturating_add(1)).map_err(one)?;
        if bytes.len() > limit { Err(too_long(bytes.len(), limit)) } else { Ok(bytes) }
    }

    /// The attributes by which a later look knows the file.
    fn about(&self, parts: &[String]) -> Outcome<Map<String, Json>> {
        let mut about = Map::new();
        if self.config.file_hashes {
            let hash = content_hash(&self.present, &self.config.extract).map_err(one)?;
            about.insert(FOLDER.into(), Json::String(folder_hash(&self.root).map_err(one)?));
            about.insert(FILE.into(), Json::String(parts.join("/")));
            about.insert(FILE_HASH.into(), Json::String(hash));
        }
        Ok(about)
    }
}

/// The problem of one file.
fn one(error: Error) -> Fault {
    Fault::Row(match error {
        Error::Io { source, .. } => format!("cannot be read: {source}"),
        Error::Format { problem, .. } => problem,
        other => other.to_string(),
    })
}

fn plain(text: &str) -> Map<String, Json> {
    Map::from_iter([("text".to_owned(), Json::String(text.to_owned()))])
}

fn html_fields(html: &str) -> Map<String, Json> {
    let Page { title, text } = html::read(html);
    // The title is the best line of a page, and often is not on it.
    let text = match &title {
        Some(title) if !text.starts_with(&format!("# {title}")) => format!("# {title}\n\n{text}"),
        _ => text,
    };
    let mut fields = plain(&text);
    fields.extend(title.map(|title| ("title".to_owned(), Json::String(title))));
    fields
}

impl Rows for Documents {
    fn next_row(&mut self) -> Option<Outcome<Row>> {
        loop {
            if let Some(row) = self.message() {
                return Some(row);
            }
            let (path, metadata) = self.files.next()?;
            self.present = path;
            let row = match metadata {
                Ok(_) => self.open(),
                Err(error) => Err(Fault::Row(format!("cannot be read: {error}"))),
            };
            match row {
                Ok(None) => {}
                Ok(Some(row)) => return Some(Ok(row)),
                Err(fault) => return Some(Err(fault)),
            }
        }
    }

    fn place(&self) -> String {
        self.present.display().to_string()
    }
}
