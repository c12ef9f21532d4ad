//! Reads documents one after the other, from files of many formats.
//!
//! | format | is | rows |
//! |---|---|---|
//! | `jsonl` | a JSON object per line | lines |
//! | `json` | one JSON array of objects | elements |
//! | `csv`, `tsv` | a table, with a header, or without one as `label,text,...` | records |
//! | `parquet`, `arrow` | a table of typed columns | rows |
//! | `beir` | a folder with `corpus.jsonl` (`_id`, `title`, `text`, `metadata`) | lines |
//! | `text` | a document per line | lines that are not blank |
//! | `folder` | a folder of text, Markdown, HTML and e-mail files, read with its sub-folders in the order of their names | files, or messages |
//!
//! Each may be compressed with gzip (one member or many) or zstd. The first bytes decide, not the name. A folder of files of
//! one tabular format is read as one corpus, file after file; so are the files that a pattern (`data/*.parquet`) matches. `-`
//! is standard input. Other files of a folder become text by a command ([`CorpusConfig::extract`]).
//!
//! **Fields.** `id` or `_id` is the id, otherwise the row number, counted from 0. `text` is the text, else `body`, else
//! `content`; several can be joined with [`CorpusConfig::text_fields`]. `label` or `labels` holds the labels: a string, a
//! whole number or a list. Every other field becomes an attribute with its type. Members of an object become attributes with
//! dotted names, which the configuration can use. Null is the same as absent. A list of strings, whole numbers or booleans
//! becomes a list of strings. Other lists are refused, and the message names `ignore_fields`.
//!
//! **Bad rows** (not UTF-8, not JSON, too long, without text, of a wrong type, with a repeated id) stop the reading or are
//! counted and skipped, as [`OnError`] says. Damage of the whole file, such as an archive or an array cut short or a missing
//! column, is always an error: half a corpus must not pass for a corpus.
//!
//! Only the current row and the ids, in a compact form, are in memory. So a corpus may be larger than memory.
//!
//! ```
//! use engine::corpus::{Corpus, CorpusConfig, OnError};
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("news.csv");
//! std::fs::write(&path, "label,text,year\n1,Oil rises,2004\n2,\n1,Oil falls,2005\n")?;
//!
//! let config = CorpusConfig { on_error: OnError::Skip, ..CorpusConfig::default() };
//! let mut corpus = Corpus::open(&path, &config)?;
//! let texts: Vec<String> = corpus.by_ref().map(|document| document.map(|d| d.text)).collect::<Result<_, _>>()?;
//! assert_eq!(texts, ["Oil rises", "Oil falls"]);
//! assert_eq!(corpus.skipped().count(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod array;
#[cfg(feature = "parquet")]
mod batches;
mod changes;
mod config;
mod document;
mod extract;
mod fields;
mod folder;
mod html;
mod lines;
mod mail;
#[cfg(feature = "parquet")]
mod parquet;
mod source;
mod table;
mod unique;
pub(crate) mod wire;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use changes::{FILE, FILE_HASH, FOLDER, FileHashes, FolderFile, files_below, folder_hash};
pub use config::{CorpusConfig, Format, OnError};
pub use document::{DocId, Document, Value};
pub use extract::Extract;

#[cfg(feature = "parquet")]
use arrow_array::RecordBatchReader;

use crate::{Error, Result};
use fields::{Fields, Row};
use source::Source;
use unique::Seen;

/// Rows of one file or folder.
trait Rows: Send {
    /// The next row; `None` at the end.
    fn next_row(&mut self) -> Option<std::result::Result<Row, Fault>>;

    /// Position of the last row, for a message.
    fn place(&self) -> String;
}

/// Why there is no row.
enum Fault {
    /// This row is bad, the next may be good. The message says what was expected, what was found and what to do.
    Row(String),
    /// Nothing more can be read.
    Fatal(Error),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault::Fatal(error)
    }
}

/// Bad rows that were skipped.
#[derive(Clone, Debug)]
pub struct Skipped {
    count: u64,
    reasons: Vec<String>,
    most_reasons: usize,
}

impl Default for Skipped {
    fn default() -> Self {
        Skipped { count: 0, reasons: Vec::new(), most_reasons: Skipped::KEPT }
    }
}

impl Skipped {
    /// Number of stored reasons: enough to see the cause, and bounded for any number of bad rows.
    const KEPT: usize = 10;

    /// Number of skipped rows.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Place and problem of the first ten, or of all after [`Corpus::keep_all_reasons`].
    pub fn reasons(&self) -> &[String] {
        &self.reasons
    }

    fn add(&mut self, reason: Error) {
        self.count += 1;
        if self.reasons.len() < self.most_reasons {
            self.reasons.push(reason.to_string());
        }
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} skipped", self.count, if self.count == 1 { "row" } else { "rows" })?;
        for reason in &self.reasons {
            write!(f, "\n  {reason}")?;
        }
        match self.count - self.reasons.len() as u64 {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

/// An open corpus: an iterator over its documents, which ends after the first error it returns.
pub struct Corpus {
    config: CorpusConfig,
    format: Format,
    fields: Fields,
    rows: Option<Box<dyn Rows>>,
    /// Files of a folder that are not read yet.
    files: VecDeque<PathBuf>,
    /// Rows seen, good and bad. It is the id of the next row if that has none.
    row: u64,
    seen: Option<Seen>,
    skipped: Skipped,
    read: Arc<AtomicU64>,
    total: Option<u64>,
}

impl fmt::Debug for Corpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Corpus").field("format", &self.format).field("row", &self.row).finish_non_exhaustive()
    }
}

impl Corpus {
    /// Opens a file, a folder, or standard input (`-`), and detects its format.
    pub fn open(path: &Path, config: &CorpusConfig) -> Result<Corpus> {
        if path == Path::new("-") {
            return Corpus::from_reader("standard input", io::stdin(), config);
        }
        config.validate()?;
        refuse_address(path)?;
        let read = Arc::new(AtomicU64::new(0));
        if let Some(paths) = matching_paths(path)? {
            return Corpus::of_paths(path, paths, config, read);
        }
        let metadata = fs::metadata(path).map_err(Error::io(path))?;
        if metadata.is_dir() {
            let contents = folder::look(path, config)?;
            let mut corpus = Corpus::new(config, contents.format, read.clone(), Some(contents.bytes));
            corpus.files = contents.files.into();
            match contents.format {
                Format::Folder => corpus.rows = Some(Box::new(folder::Documents::below(path, config, read)?)),
                _ => corpus.next_file()?,
            }
            return Ok(corpus);
        }
        let is_document = extract::Kind::of(path, &config.extract).is_document();
        if is_document && matches!(config.format, None | Some(Format::Folder)) {
            return Corpus::of_paths(path, vec![path.to_path_buf()], config, read);
        }
        let source = Source::open(path, read.clone())?;
        let format = match config.format {
            Some(format) => format,
            None => match (Format::of_name(path), source.format()) {
                // A .json file that begins with a brace holds one object per line.
                (Some(Format::Json), Some(shown)) => shown,
                (Some(named), _) => named,
                (None, Some(shown)) => shown,
                (None, None) => {
                    let known = Format::known();
                    return Err(Error::format(
                        path,
                        format!("neither name nor content shows a known format; say which it is: {known}"),
                    ));
                }
            },
        };
        let mut corpus = Corpus::new(config, format, read, metadata.is_file().then_some(metadata.len()));
        corpus.rows = Some(corpus.rows_of(source, path.is_file())?);
        Ok(corpus)
    }

    /// Reads files of a folder as documents; ids are paths below `root`.
    pub fn open_documents(root: &Path, paths: Vec<PathBuf>, config: &CorpusConfig) -> Result<Corpus> {
        config.validate()?;
        let read = Arc::new(AtomicU64::new(0));
        let mut corpus = Corpus::new(config, Format::Folder, read.clone(), None);
        corpus.rows = Some(Box::new(folder::Documents::named(root, paths, config, read)));
        Ok(corpus)
    }

    /// Reads some files as one corpus: documents, or rows of one format.
    fn of_paths(name: &Path, paths: Vec<PathBuf>, config: &CorpusConfig, read: Arc<AtomicU64>) -> Result<Corpus> {
        let with_metadata = |path: &PathBuf| (path.clone(), fs::metadata(path));
        let contents = folder::sort(name, paths.iter().map(with_metadata), config)?;
        let mut corpus = Corpus::new(config, contents.format, read.clone(), Some(contents.bytes));
        corpus.files = contents.files.into();
        match contents.format {
            Format::Folder => {
                // Ids begin where the names begin to differ.
                let root = match paths.as_slice() {
                    [one] => one.parent().unwrap_or(Path::new("")).to_path_buf(),
                    _ => fixed_part(name),
                };
                corpus.rows = Some(Box::new(folder::Documents::named(&root, paths, config, read)));
            }
            _ => corpus.next_file()?,
        }
        Ok(corpus)
    }

    /// Reads from any reader. `name` is its name in messages. Without a configured format, the first bytes decide: JSON,
    /// Parquet, or else text with a document per line.
    pub fn from_reader(name: &str, reader: impl Read + Send + 'static, config: &CorpusConfig) -> Result<Corpus> {
        config.validate()?;
        let read = Arc::new(AtomicU64::new(0));
        let source = Source::new(Path::new(name), reader, read.clone())?;
        let format = config.format.or(source.format()).unwrap_or(Format::Text);
        let mut corpus = Corpus::new(config, format, read, None);
        corpus.rows = Some(corpus.rows_of(source, false)?);
        Ok(corpus)
    }

    #[cfg(feature = "parquet")]
    /// Reads record batches. `name` is their name in messages. Columns are read as those of a Parquet file.
    pub fn from_batches(
        name: &str,
        reader: Box<dyn RecordBatchReader + Send>,
        config: &CorpusConfig,
    ) -> Result<Corpus> {
        config.validate()?;
        let mut corpus = Corpus::new(config, Format::Arrow, Arc::default(), None);
        let (path, schema) = (PathBuf::from(name), reader.schema());
        let kept = batches::kept(&path, &schema, &corpus.fields)?;
        let names = kept.iter().map(|at| schema.field(*at).name().clone()).collect();
        let batches = parquet::projected(Box::new(reader), kept);
        let rows = batches::BatchRows::new(path, batches, names, config.max_row_bytes, None);
        corpus.rows = Some(Box::new(rows));
        Ok(corpus)
    }

    /// Takes parsed rows: objects with fields, or strings, which become texts. `name` is their name in messages.
    pub fn from_rows(
        name: &str,
        rows: impl Iterator<Item = serde_json::Value> + Send + 'static,
        config: &CorpusConfig,
    ) -> Result<Corpus> {
        config.validate()?;
        let mut corpus = Corpus::new(config, Format::Jsonl, Arc::default(), None);
        corpus.rows = Some(Box::new(lines::Values::new(name, rows)));
        Ok(corpus)
    }

    fn new(config: &CorpusConfig, format: Format, read: Arc<AtomicU64>, total: Option<u64>) -> Corpus {
        Corpus {
            config: config.clone(),
            format,
            fields: Fields::new(config, format),
            rows: None,
            files: VecDeque::new(),
            row: 0,
            seen: config.unique_ids.then(Seen::default),
            skipped: Skipped::default(),
            read,
            total,
        }
    }

    /// Rows of one stream of bytes.
    fn rows_of(&self, source: Source, seekable: bool) -> Result<Box<dyn Rows>> {
        let limit = self.config.max_row_bytes;
        Ok(match self.format {
            Format::Jsonl | Format::Beir => Box::new(lines::JsonLines::new(source, limit)),
            // In a folder of .json files, each may hold an array or lines.
            Format::Json if self.config.format.is_none() && source.format() == Some(Format::Jsonl) => {
                Box::new(lines::JsonLines::new(source, limit))
            }
            Format::Json => Box::new(array::JsonArray::new(source, limit)),
            Format::Csv | Format::Tsv => Box::new(table::Table::open(source, self.format, &self.config, &self.fields)?),
            Format::Text => Box::new(lines::TextLines::new(source, limit, self.config.allow_empty_text)),
            #[cfg(feature = "parquet")]
            Format::Parquet => {
                Box::new(parquet::open_parquet(source, seekable, &self.fields, &self.config, self.read.clone())?)
            }
            #[cfg(feature = "parquet")]
            Format::Arrow => {
                Box::new(parquet::open_arrow(source, seekable, &self.fields, &self.config, self.read.clone())?)
            }
            #[cfg(not(feature = "parquet"))]
            Format::Parquet | Format::Arrow => {
                return Err(Error::format(
                    source.path(),
                    "is a table of columns, and this program was built without the feature \"parquet\"; build with it, or write JSON lines",
                ));
            }
            Format::Folder => {
                return Err(Error::format(source.path(), "format folder is asked for, but this is no folder"));
            }
        })
    }

    fn next_file(&mut self) -> Result<()> {
        if let Some(path) = self.files.pop_front() {
            let source = Source::open(&path, self.read.clone())?;
            self.rows = Some(self.rows_of(source, path.is_file())?);
        }
        Ok(())
    }

    /// The configured or detected format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Bad rows skipped so far.
    pub fn skipped(&self) -> &Skipped {
        &self.skipped
    }

    /// Stores the reason of every bad row. The caller takes them with [`Corpus::take_reasons`], so that they do not pile up.
    pub fn keep_all_reasons(&mut self) {
        self.skipped.most_reasons = usize::MAX;
    }

    /// Place and problem of the bad rows skipped since the last call.
    pub fn take_reasons(&mut self) -> Vec<String> {
        std::mem::take(&mut self.skipped.reasons)
    }

    /// Rows seen, good and bad. It is the id of the next row if that has none.
    pub fn rows(&self) -> u64 {
        self.row
    }

    /// Numbers the rows from here on, for one of several files of a corpus.
    pub fn number_rows_from(&mut self, row: u64) {
        self.row = row;
    }

    /// Bytes read so far, before decompression.
    pub fn bytes_read(&self) -> u64 {
        let read = self.read.load(Ordering::Relaxed);
        self.total.map_or(read, |total| read.min(total))
    }

    /// Bytes of the whole corpus, before decompression; unknown for a pipe.
    pub fn bytes_total(&self) -> Option<u64> {
        self.total
    }

    /// Stops the reading with an error.
    fn fail(&mut self, error: Error) -> Option<Result<Document>> {
        self.rows = None;
        self.files.clear();
        Some(Err(error))
    }
}

/// Refuses an address, with the way to get at what is there.
fn refuse_address(path: &Path) -> Result<()> {
    let text = path.to_string_lossy();
    let Some((scheme, rest)) = text.split_once("://").filter(|_| !path.exists()) else { return Ok(()) };
    let way = match scheme {
        "hf" => {
            format!("download it first: {}, then name its files, for instance 'data/**/*.parquet'", hub_download(rest))
        }
        "s3" | "gs" | "az" => {
            "copy it first with the client of that store, or mount it, then name the files".to_owned()
        }
        _ => "download it first, for instance with curl -O, then name the file".to_owned(),
    };
    Err(Error::input(&text, format!("is an address, and micpq reads files; {way}")))
}

/// The command that downloads what an address of the Hugging Face hub names.
fn hub_download(address: &str) -> String {
    let (kind, rest) = match address.split_once('/') {
        Some(("datasets", rest)) => (" --repo-type dataset", rest),
        Some(("spaces", rest)) => (" --repo-type space", rest),
        Some(("models", rest)) => ("", rest),
        _ => ("", address),
    };
    let mut parts = rest.trim_end_matches('/').splitn(3, '/');
    let name: Vec<&str> = parts.by_ref().take(2).collect();
    let (name, revision) = match name.join("/").split_once('@') {
        Some((name, revision)) => (name.to_owned(), format!(" --revision {revision}")),
        None => (name.join("/"), String::new()),
    };
    let file = parts.next().map_or_else(String::new, |file| format!(" '{file}'"));
    format!("hf download {name}{file}{kind}{revision} --local-dir data")
}

/// The files that a pattern like `data/**/*.parquet` matches, in the order of their names; `None` if it is no pattern.
fn matching_paths(path: &Path) -> Result<Option<Vec<PathBuf>>> {
    let Some(text) = path.to_str().filter(|text| text.contains(['*', '?', '['])) else { return Ok(None) };
    // A name may hold these characters.
    if path.exists() {
        return Ok(None);
    }
    let refuse = |problem: String| Error::input(text, problem);
    let found = glob::glob(text).map_err(|e| refuse(format!("is no pattern: {e}; write one like data/*.jsonl")))?;
    let mut paths = Vec::new();
    for path in found {
        let path = path.map_err(|e| refuse(format!("cannot be searched: {e}")))?;
        if path.is_file() {
            paths.push(path);
        }
    }
    if paths.is_empty() {
        return Err(refuse(
            "matches no file; check the pattern, and quote it so that the shell leaves it alone".into(),
        ));
    }
    paths.sort();
    Ok(Some(paths))
}

/// The folders of a pattern before its first wildcard.
fn fixed_part(pattern: &Path) -> PathBuf {
    let is_fixed = |part: &std::path::Component| !part.as_os_str().to_string_lossy().contains(['*', '?', '[']);
    pattern.components().take_while(is_fixed).collect()
}

impl Iterator for Corpus {
    type Item = Result<Document>;

    fn next(&mut self) -> Option<Result<Document>> {
        loop {
            let Some(rows) = &mut self.rows else {
                if self.files.is_empty() {
                    return None;
                }
                match self.next_file() {
                    Ok(()) => continue,
                    Err(error) => return self.fail(error),
                }
            };
            let outcome = match rows.next_row() {
                None => {
                    self.rows = None;
                    continue;
                }
                Some(Err(Fault::Fatal(error))) => return self.fail(error),
                Some(Err(Fault::Row(problem))) => Err(problem),
                Some(Ok(row)) => self.fields.document(row, self.row),
            };
            self.row += 1;
            let problem = match outcome {
                Err(problem) => problem,
                Ok(document) => {
                    if self.seen.as_mut().is_none_or(|seen| seen.insert(&document.id)) {
                        return Some(Ok(document));
                    }
                    format!(
                        "id \"{}\" of row {} was used by an earlier row; ids must differ, or leave them out to have rows \
                         numbered",
                        document.id, self.row
                    )
                }
            };
            let error = Error::input(rows.place(), problem);
            match (self.config.on_error, self.format) {
                (OnError::Skip, _) | (OnError::Auto, Format::Folder) => self.skipped.add(error),
                (OnError::Stop | OnError::Auto, _) => return self.fail(error),
            }
        }
    }
}
