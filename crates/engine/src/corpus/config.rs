//! Options for reading a corpus.

use std::path::Path;

use serde::Deserialize;
use strum::{Display, EnumString, VariantArray, VariantNames};

use super::extract::Extract;
use crate::{Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Display, EnumString, VariantArray)]
#[strum(serialize_all = "lowercase", parse_err_ty = Error, parse_err_fn = unknown_format)]
pub enum Format {
    /// A JSON object per line.
    Jsonl,
    /// One JSON array of objects.
    Json,
    Csv,
    /// Tab-separated values, unquoted.
    Tsv,
    Parquet,
    /// Arrow's file or stream format (Feather version 2).
    Arrow,
    /// A BEIR folder (`corpus.jsonl` with `_id`, `title`, `text`), or that file.
    Beir,
    /// A document per line.
    Text,
    /// A folder of files, one document per file (per message in a mailbox): text, Markdown, HTML, e-mail, and what
    /// [`CorpusConfig::extract`] turns into text.
    Folder,
}

impl Format {
    /// Every format, in the order shown to users.
    pub const ALL: &[Format] = <Format as VariantArray>::VARIANTS;

    /// The names of all formats, for messages.
    pub(super) fn known() -> String {
        Format::ALL.iter().map(Format::to_string).collect::<Vec<_>>().join(", ")
    }

    /// The format that a file name implies. An ending of a compression (`.gz`) is ignored.
    pub(super) fn of_name(path: &Path) -> Option<Format> {
        let name = path.file_name()?.to_str()?.to_ascii_lowercase();
        let name = [".gz", ".gzip", ".zst", ".zstd"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(&name);
        match name.rsplit_once('.')?.1 {
            "jsonl" | "ndjson" => Some(Format::Jsonl),
            "json" => Some(Format::Json),
            "csv" => Some(Format::Csv),
            "tsv" | "tab" => Some(Format::Tsv),
            "parquet" | "pq" => Some(Format::Parquet),
            "arrow" | "arrows" | "feather" | "ipc" => Some(Format::Arrow),
            "txt" | "text" => Some(Format::Text),
            _ => None,
        }
    }

    /// The format that the first bytes imply. Text may open with a brace or a bracket too, so the next character decides
    /// whether it is JSON.
    pub(super) fn of_content(head: &[u8]) -> Option<Format> {
        if head.starts_with(b"PAR1") {
            return Some(Format::Parquet);
        }
        if head.starts_with(b"ARROW1") {
            return Some(Format::Arrow);
        }
        let mut signs = head.iter().filter(|b| !b.is_ascii_whitespace());
        match (signs.next(), signs.next()) {
            (Some(b'{'), None | Some(b'"' | b'}')) => Some(Format::Jsonl),
            (Some(b'['), None | Some(b'{' | b'"' | b']')) => Some(Format::Json),
            _ => None,
        }
    }
}

fn unknown_format(name: &str) -> Error {
    Error::config(format!("unknown format \"{name}\": it is one of {}", Format::known()))
}

/// How to treat a row that cannot be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Display, EnumString, VariantNames)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", parse_err_ty = Error, parse_err_fn = unknown_treatment)]
pub enum OnError {
    /// Skip the files of a folder, which may hold anything; stop at a row, which should be like the others.
    #[default]
    Auto,
    /// Count the row and continue; see [`super::Corpus::skipped`].
    Skip,
    /// Stop with an error.
    Stop,
}

fn unknown_treatment(name: &str) -> Error {
    Error::config(format!("unknown treatment of bad rows \"{name}\": it is auto, skip or stop"))
}

/// Options for reading a corpus. The default reads every documented layout.
#[derive(Clone, Debug, PartialEq)]
pub struct CorpusConfig {
    /// `None`: detected from the name and the first bytes.
    pub format: Option<Format>,
    /// How to treat a bad row.
    pub on_error: OnError,
    /// The field that holds the id; every row must have it. `None`: `id` or `_id` if the row has one, otherwise the row number,
    /// counted from 0.
    pub id_field: Option<String>,
    /// The fields that make the text, joined with a blank in this order. A row may lack some but not all of them. Empty:
    /// the first of `text`, `body` and `content` that the row has (`title` and `text` in the BEIR layout).
    pub text_fields: Vec<String>,
    /// The field that holds the labels. `None`: `label` or `labels` if the row has one.
    pub label_field: Option<String>,
    /// Separator of several labels in one string.
    pub label_separator: Option<String>,
    /// Fields that are not read. Use it for columns that are neither text nor attribute.
    pub ignore_fields: Vec<String>,
    /// Whether the first row of a CSV or TSV names its columns. `None`: it does if one of its cells is a known name (the
    /// configured fields, otherwise `id`, `_id`, `text`, `body`, `content`, `title`, `label`, `labels`).
    pub header: Option<bool>,
    /// Column names of a CSV or TSV without header. Empty: `label`, `text`, `column3`, `column4`, ...; `text` for a single
    /// column.
    pub columns: Vec<String>,
    /// Separator of cells. `None`: a comma in CSV, a tab in TSV.
    pub delimiter: Option<char>,
    /// Whether cells may be in double quotes. `None`: yes in CSV; in TSV a quote is an ordinary character.
    pub quoting: Option<bool>,
    /// Whether to infer the types of CSV and TSV attributes (`12`, `1.5`, `true`). If not, all of them are text.
    pub infer_types: bool,
    /// Whether the first folder in a text file's relative path is its label.
    pub folder_labels: bool,
    /// Commands that turn files of a folder into text, by their endings.
    pub extract: Vec<Extract>,
    /// A command that takes longer for a file is stopped, and the file is a bad document.
    pub max_extract_seconds: u64,
    /// Whether the documents of a folder have the attributes that [`super::FILE`] and others name, by which a later look
    /// finds what changed.
    pub file_hashes: bool,
    /// A longer row is a bad row and is not held in memory. (Parquet is different: it has pages, not rows.)
    pub max_row_bytes: usize,
    /// Compressed or piped Parquet and Arrow is unpacked into a temporary file of at most this size.
    pub max_unpacked_bytes: u64,
    /// Whether a document may have no text.
    pub allow_empty_text: bool,
    /// Whether a repeated id makes a bad row. Memory: 4 bytes or less per id that is a number below 2^32, 20 to 60 per other
    /// id (183 MB for four million strings).
    pub unique_ids: bool,
}

impl Default for CorpusConfig {
    fn default() -> Self {
        CorpusConfig {
            format: None,
            on_error: OnError::default(),
            id_field: None,
            text_fields: Vec::new(),
            label_field: None,
            label_separator: None,
            ignore_fields: Vec::new(),
            header: None,
            columns: Vec::new(),
            delimiter: None,
            quoting: None,
            infer_types: true,
            folder_labels: false,
            extract: Vec::new(),
            max_extract_seconds: 120,
            file_hashes: false,
            max_row_bytes: 16 << 20,
            max_unpacked_bytes: 16 << 30,
            allow_empty_text: false,
            unique_ids: true,
        }
    }
}

impl CorpusConfig {
    pub fn validate(&self) -> Result<()> {
        let refuse = |option: &str, problem: String| Err(Error::option(option, problem));
        let default = CorpusConfig::default();
        if self.max_row_bytes == 0 {
            let problem = format!("is 0, which no row fits; the default is {}", default.max_row_bytes);
            return refuse("max_row_bytes", problem);
        }
        if self.max_extract_seconds == 0 {
            let problem = format!("is 0, in which no command finishes; the default is {}", default.max_extract_seconds);
            return refuse("max_extract_seconds", problem);
        }
        if let Some(delimiter) = self.delimiter
            && (!delimiter.is_ascii() || matches!(delimiter, '"' | '\n' | '\r'))
        {
            let problem = format!("{delimiter:?}: it is one ASCII character, not a quote or a line break");
            return refuse("delimiter", problem);
        }
        if self.label_separator.as_deref() == Some("") {
            let problem = "is empty: leave it out, or give what stands between two labels".into();
            return refuse("label_separator", problem);
        }
        for (option, names) in
            [("text_fields", &self.text_fields), ("columns", &self.columns), ("ignore_fields", &self.ignore_fields)]
        {
            if let Some((at, name)) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
                return refuse(option, format!("names \"{name}\" twice (the second time in place {})", at + 1));
            }
            if names.iter().any(String::is_empty) {
                return refuse(option, "holds an empty name".into());
            }
        }
        let chosen = self.text_fields.iter().chain(&self.id_field).chain(&self.label_field);
        if let Some(name) = chosen.clone().find(|name| self.ignore_fields.contains(name)) {
            return Err(Error::config(format!("field \"{name}\" is asked for and in ignore_fields")));
        }
        if let Some(name) = self.id_field.iter().chain(&self.label_field).find(|name| self.text_fields.contains(name)) {
            return Err(Error::config(format!("field \"{name}\" cannot be the text and the id or label as well")));
        }
        if self.id_field.is_some() && self.id_field == self.label_field {
            return Err(Error::config("id_field and label_field are the same field"));
        }
        if self.header == Some(true) && !self.columns.is_empty() {
            return refuse("columns", "names the columns of a file without header, but header is true".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_an_unknown_name_lists_the_known_ones() {
        for format in Format::ALL {
            assert_eq!(format.to_string().parse::<Format>().unwrap(), *format);
        }
        let error = "xml".parse::<Format>().unwrap_err().to_string();
        assert!(error.contains("\"xml\"") && error.contains("jsonl, json, csv, tsv, parquet, arrow, beir"), "{error}");
        assert_eq!("skip".parse::<OnError>().unwrap(), OnError::Skip);
        assert!("halt".parse::<OnError>().unwrap_err().to_string().contains("auto, skip or stop"));
    }

    #[test]
    fn formats_are_detected_by_name_and_content() {
        for (name, format) in [
            ("a.jsonl", Some(Format::Jsonl)),
            ("a.NDJSON.gz", Some(Format::Jsonl)),
            ("a.json.zst", Some(Format::Json)),
            ("a.tar.csv", Some(Format::Csv)),
            ("a.tsv", Some(Format::Tsv)),
            ("a.parquet", Some(Format::Parquet)),
            ("a.feather", Some(Format::Arrow)),
            ("a.txt.gz", Some(Format::Text)),
            ("a.gz", None),
            ("a", None),
            ("a.xml", None),
        ] {
            assert_eq!(Format::of_name(Path::new(name)), format, "{name}");
        }
        for (head, format) in [
            (&b"PAR1...."[..], Some(Format::Parquet)),
            (b"ARROW1\0\0", Some(Format::Arrow)),
            (b" \n{ \"id\"", Some(Format::Jsonl)),
            (b"[\n  {", Some(Format::Json)),
            (b"[]", Some(Format::Json)),
            (b"[Reuters] Oil", None),
            (b"{{template}}", None),
            (b"Oil", None),
            (b"", None),
        ] {
            assert_eq!(Format::of_content(head), format, "{}", String::from_utf8_lossy(head));
        }
    }

    #[test]
    fn contradictory_options_are_refused() {
        let names = |names: &[&str]| names.iter().map(|n| n.to_string()).collect::<Vec<_>>();
        let base = CorpusConfig::default;
        base().validate().unwrap();
        for (config, word) in [
            (CorpusConfig { max_row_bytes: 0, ..base() }, "max_row_bytes"),
            (CorpusConfig { delimiter: Some('"'), ..base() }, "delimiter"),
            (CorpusConfig { delimiter: Some('é'), ..base() }, "ASCII"),
            (CorpusConfig { label_separator: Some(String::new()), ..base() }, "label_separator"),
            (CorpusConfig { text_fields: names(&["a", "b", "a"]), ..base() }, "twice"),
            (CorpusConfig { columns: names(&[""]), ..base() }, "empty name"),
            (CorpusConfig { text_fields: names(&["a"]), ignore_fields: names(&["a"]), ..base() }, "ignore_fields"),
            (CorpusConfig { text_fields: names(&["a"]), id_field: Some("a".into()), ..base() }, "as well"),
            (CorpusConfig { label_field: Some("a".into()), id_field: Some("a".into()), ..base() }, "same field"),
            (CorpusConfig { header: Some(true), columns: names(&["a"]), ..base() }, "header is true"),
        ] {
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
