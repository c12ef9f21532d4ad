//! Flags of `build` and `sync`.

use std::path::PathBuf;

use clap::Args as Flags;
use engine::chunk::ChunkConfig;
use engine::encoder::QueryEncoder;
use engine::index::{RerankVectors, Store};
use engine::language::LanguageChoice;
use micpq::BuildConfig;
use micpq::pipeline::FillConfig;

use super::{ComputingArgs, CorpusArgs, DuplicateArgs, EmbeddingArgs, TrainingArgs};

#[derive(Flags)]
#[command(after_help = "\
Examples:
  micpq build news.jsonl -o news.micpq
  micpq build docs/ --bits 128 -o docs.micpq           a folder of text, Markdown, HTML and e-mail files
  micpq build books.jsonl --chunk -o books.micpq       long texts: every part of them is searched
  cat news.jsonl | micpq build - --format jsonl -o news.micpq")]
pub struct Build {
    /// File or folder; - is standard input
    pub corpus: PathBuf,
    /// Index directory to create
    #[arg(long, short)]
    pub output: PathBuf,
    /// Use this model instead of training one
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// What the index stores: all (ids, codes, texts, labels, attributes) or codes (only ids and codes)
    #[arg(long, default_value_t = Store::default())]
    pub store: Store,
    /// How embeddings are stored for re-ranking: int8 (a byte per value), f16 or none
    #[arg(long, value_name = "int8|f16|none", default_value_t = BuildConfig::RERANK_VECTORS)]
    pub rerank_vectors: RerankVectors,
    #[command(flatten)]
    pub texts: TextArgs,
    /// Recall@10 against exact float search that searches should have, 0 to 1. Chooses --bits on a sample and says how many
    /// candidates a search must re-rank
    #[arg(long, value_name = "SHARE", conflicts_with_all = ["model", "bits"])]
    pub target_recall: Option<f64>,
    /// fast: also distil the encoder into one that reads a query in microseconds, for search --query-encoder fast
    #[arg(long, value_name = "full|fast", default_value_t = QueryEncoder::default())]
    pub query_encoder: QueryEncoder,
    /// Replace an existing index
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub duplicates: DuplicateArgs,
    #[command(flatten)]
    pub source: CorpusArgs,
    #[command(flatten)]
    pub embedding: EmbeddingArgs,
    #[command(flatten)]
    pub training: TrainingArgs,
}

#[derive(Flags)]
#[command(after_help = "\
Examples:
  micpq build notes/ --chunk -o notes.micpq            once
  micpq sync notes/ notes.micpq                        after changes
  micpq sync notes/ notes.micpq --watch                until Ctrl-C")]
pub struct Sync {
    /// Folder of documents
    pub folder: PathBuf,
    /// Index directory
    pub index: PathBuf,
    /// Look again every SECONDS, until Ctrl-C
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "5")]
    pub watch: Option<f64>,
    /// Delete the documents of all files if the folder has none. Without it such a folder is refused, because its disk may not be
    /// mounted
    #[arg(long)]
    pub allow_empty: bool,
    /// Change nothing if more than N files are gone. Default: no limit
    #[arg(long, value_name = "N")]
    pub max_delete: Option<usize>,
    /// Documents per commit; committed documents survive a crash
    #[arg(long, default_value_t = FillConfig::UPDATES, value_name = "N")]
    pub commit_every: usize,
    #[command(flatten)]
    pub source: CorpusArgs,
    #[command(flatten)]
    pub computing: ComputingArgs,
}

/// How an index treats long texts and languages.
#[derive(Flags, Clone, Copy)]
pub struct TextArgs {
    /// Split texts that are longer than the encoder takes into chunks, and search all of them; hits are documents. TOKENS is
    /// the size of a chunk, OVERLAP what it repeats of the one before. Default: the encoder's length, and an eighth of it
    #[arg(long, value_name = "TOKENS[:OVERLAP]", num_args = 0..=1, default_missing_value = "auto")]
    pub chunk: Option<ChunkConfig>,
    /// Language of keyword search: auto (that of most texts), any, or a code such as de, fr, ja, zh
    #[arg(long, value_name = "auto|CODE", default_value_t = LanguageChoice::default())]
    pub language: LanguageChoice,
}
