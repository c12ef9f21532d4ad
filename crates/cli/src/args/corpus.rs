//! How a corpus is read.

use clap::Args as Flags;
use engine::corpus::{CorpusConfig, Extract, Format, OnError};

/// How a corpus is read.
#[derive(Flags, Clone)]
#[command(next_help_heading = "Corpus")]
pub struct CorpusArgs {
    /// Format of the corpus. Default: recognised by name and content
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<Format>,
    /// What to do with a row that cannot be used: stop, or skip and count. auto skips the files of a folder
    #[arg(long, value_name = "auto|skip|stop", default_value_t = OnError::default())]
    pub on_error: OnError,
    /// Command that turns files of a folder into text, by their endings; {} is the file. Can be repeated:
    /// --extract 'pdf=pdftotext {} -' --extract 'docx,odt=pandoc -t plain {}'
    #[arg(long, value_name = "ENDINGS=COMMAND")]
    pub extract: Vec<Extract>,
    /// Stop a command of --extract that takes longer for one file, and skip the file. Default: 120
    #[arg(long, value_name = "SECONDS")]
    pub max_extract_seconds: Option<u64>,
    /// Field that holds the id. Default: id or _id
    #[arg(long, value_name = "NAME")]
    pub id_field: Option<String>,
    /// Field that holds the text. Repeat it to join several fields. Default: text
    #[arg(long, value_name = "NAME")]
    pub text_field: Vec<String>,
    /// Field that holds the label or labels. Default: label or labels
    #[arg(long, value_name = "NAME")]
    pub label_field: Option<String>,
    /// Whether a CSV or TSV file begins with a header. Default: recognised by the first row
    #[arg(long, value_name = "true|false")]
    pub header: Option<bool>,
    /// Names for the columns of a table without a header, in order
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub columns: Vec<String>,
    /// Character between the cells of a table. Default: a comma in CSV, a tab in TSV
    #[arg(long, value_name = "CHARACTER")]
    pub delimiter: Option<char>,
    /// Whether cells may be in double quotes. Default: true in CSV, false in TSV
    #[arg(long, value_name = "true|false")]
    pub quoting: Option<bool>,
    /// Text between several labels in one string
    #[arg(long, value_name = "TEXT")]
    pub label_separator: Option<String>,
    /// Fields to ignore
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub ignore_fields: Vec<String>,
    /// Use the folder of a text file as its label
    #[arg(long)]
    pub folder_labels: bool,
    /// Maximum size of a row, in bytes. Default: 16777216 (16 MiB)
    #[arg(long, value_name = "BYTES")]
    pub max_row_bytes: Option<usize>,
    /// Maximum size of a compressed or piped Parquet or Arrow file after decompression, in bytes. Default: 16 GiB
    #[arg(long, value_name = "BYTES")]
    pub max_unpacked_bytes: Option<u64>,
    /// Accept documents without text
    #[arg(long)]
    pub allow_empty_text: bool,
    /// Accept repeated ids; an index stores the last document of an id
    #[arg(long)]
    pub repeated_ids: bool,
}

impl CorpusArgs {
    pub fn config(&self) -> CorpusConfig {
        let defaults = CorpusConfig::default();
        CorpusConfig {
            format: self.format,
            on_error: self.on_error,
            extract: self.extract.clone(),
            max_extract_seconds: self.max_extract_seconds.unwrap_or(defaults.max_extract_seconds),
            id_field: self.id_field.clone(),
            text_fields: self.text_field.clone(),
            label_field: self.label_field.clone(),
            header: self.header,
            columns: self.columns.clone(),
            delimiter: self.delimiter,
            quoting: self.quoting,
            label_separator: self.label_separator.clone(),
            ignore_fields: self.ignore_fields.clone(),
            folder_labels: self.folder_labels,
            allow_empty_text: self.allow_empty_text,
            unique_ids: !self.repeated_ids,
            max_row_bytes: self.max_row_bytes.unwrap_or(defaults.max_row_bytes),
            max_unpacked_bytes: self.max_unpacked_bytes.unwrap_or(defaults.max_unpacked_bytes),
            ..defaults
        }
    }
}
