//! Folders: text files, one document per file, or files of rows, read one after the other.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::config::{CorpusConfig, Format};
use super::fields::{Row, utf8};
use super::lines::too_long;
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
pub(super) fn look(root: &Path, format: Option<Format>) -> Result<Contents> {
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
    let rows_of = |path: &Path| Format::of_name(path).filter(|format| *format != Format::Text);
    let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
    let (mut files, mut bytes, mut found) = (vec![], 0, None);
    for (path, metadata) in Walk::new(root)? {
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

/// Every file below a folder is a document. Its relative path is its id.
pub(super) struct TextFiles {
    root: PathBuf,
    walk: Walk,
    present: PathBuf,
    limit: usize,
    labels: bool,
    read: Arc<AtomicU64>,
}

impl TextFiles {
    pub(super) fn new(root: &Path, config: &CorpusConfig, read: Arc<AtomicU64>) -> Result<TextFiles> {
        Ok(TextFiles {
            root: root.to_path_buf(),
            walk: Walk::new(root)?,
            present: root.to_path_buf(),
            limit: config.max_row_bytes,
            labels: config.folder_labels,
            read,
        })
    }

    fn row(&self) -> std::result::Result<Row, Fault> {
        let below = self.present.strip_prefix(&self.root).unwrap_or(&self.present);
        let parts: Option<Vec<&str>> = below.iter().map(|part| part.to_str()).collect();
        let Some(parts) = parts else {
            return Err(Fault::Row("the name is not UTF-8, and names are ids here; rename the file".into()));
        };
        // A file that cannot be read is one bad document here. It does not end the corpus.
        let one = |error: Error| {
            Fault::Row(match error {
                Error::Io { source, .. } => format!("cannot be read: {source}"),
                Error::Format { problem, .. } => problem,
                other => other.to_string(),
            })
        };
        let mut source = Source::open(&self.present, self.read.clone()).map_err(one)?;
        let bytes = source.read_up_to(self.limit.saturating_add(1)).map_err(one)?;
        if bytes.len() > self.limit {
            return Err(too_long(bytes.len(), self.limit));
        }
        let label = parts.first().copied().filter(|_| self.labels && parts.len() > 1);
        Ok(Row::file(parts.join("/"), utf8(&bytes)?.to_owned(), label))
    }
}

impl Rows for TextFiles {
    fn next_row(&mut self) -> Option<std::result::Result<Row, Fault>> {
        let (path, metadata) = self.walk.next()?;
        self.present = path;
        Some(match metadata {
            Ok(_) => self.row(),
            Err(error) => Err(Fault::Row(format!("cannot be read: {error}"))),
        })
    }

    fn place(&self) -> String {
        self.present.display().to_string()
    }
}
