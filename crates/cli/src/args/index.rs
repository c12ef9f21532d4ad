use std::path::PathBuf;

use clap::{Args as Flags, Subcommand};
use engine::index::{CopyConfig, MigrateConfig, RerankVectors, Store};
use engine::query::RecallConfig;
use micpq::BuildConfig;
use micpq::pipeline::FillConfig;

use super::{ComputingArgs, CorpusArgs, DuplicateArgs, TextArgs};

#[derive(Subcommand)]
pub enum Index {
    /// Create an index for a model, empty or from a corpus
    Create {
        /// Index directory
        index: PathBuf,
        /// Corpus to add
        corpus: Option<PathBuf>,
        /// Model directory
        #[arg(long, value_name = "DIR")]
        model: PathBuf,
        /// What the index stores: all (ids, codes, texts, labels, attributes) or codes (only ids and codes)
        #[arg(long, default_value_t = Store::default())]
        store: Store,
        /// How embeddings are stored for re-ranking: int8 (a byte per value), f16 or none
        #[arg(long, value_name = "int8|f16|none", default_value_t = BuildConfig::RERANK_VECTORS)]
        rerank_vectors: RerankVectors,
        #[command(flatten)]
        texts: TextArgs,
        /// Replace an existing index
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        source: CorpusArgs,
        #[command(flatten)]
        computing: ComputingArgs,
    },
    /// Add documents; a document with a known id replaces the old one
    #[command(after_help = "\
Examples:
  micpq index add news.micpq today.jsonl
  micpq index add news.micpq today.jsonl --on-duplicate skip
  micpq index add news.micpq today.jsonl --on-duplicate mark      # then: search --filter \"NOT duplicate_of:*\"")]
    Add {
        /// Index directory
        index: PathBuf,
        /// File or folder; - is standard input
        corpus: PathBuf,
        /// Documents per commit; committed documents survive a crash
        #[arg(long, default_value_t = FillConfig::UPDATES, value_name = "N")]
        commit_every: usize,
        #[command(flatten)]
        duplicates: DuplicateArgs,
        #[command(flatten)]
        source: CorpusArgs,
        #[command(flatten)]
        computing: ComputingArgs,
    },
    /// Delete documents by id or by filter
    Delete {
        /// Index directory
        index: PathBuf,
        /// Ids of the documents
        ids: Vec<String>,
        /// Delete every document that matches this filter
        #[arg(long)]
        filter: Option<String>,
    },
    /// Show what an index contains
    Info {
        /// Index directory
        index: PathBuf,
    },
    /// Check all checksums, and the packed codes against their columns
    Verify {
        /// Index directory, or a folder of shards
        index: PathBuf,
    },
    /// Merge segments and remove deleted documents
    Compact {
        /// Index directory
        index: PathBuf,
    },
    /// Read every document and show how codes are distributed, which attributes there are, and sizes
    Stats {
        /// Index directory
        index: PathBuf,
    },
    /// Measure how much of exact float search the index finds, on a sample of its documents
    #[command(after_help = "\
Sampled documents are queries by their stored rerank vectors; exact search over all stored vectors gives their true
neighbours. Windows follow the order of insertion: when the last one falls behind, the documents have drifted away from the
model.

Examples:
  micpq index recall news.micpq
  micpq index recall news.micpq --queries 2000 --windows 10 --json")]
    Recall {
        /// Index directory
        index: PathBuf,
        /// Documents that are queries, over all windows together
        #[arg(long, default_value_t = RecallConfig::default().queries, value_name = "N")]
        queries: usize,
        /// Neighbours that should be found
        #[arg(short, default_value_t = RecallConfig::default().k, value_name = "N")]
        k: usize,
        /// Parts of the index, in the order of insertion, that are measured apart
        #[arg(long, default_value_t = RecallConfig::default().windows, value_name = "N")]
        windows: usize,
        /// Candidates that a search re-ranks
        #[arg(long, default_value_t = RecallConfig::default().rerank, value_name = "N")]
        rerank: usize,
    },
    /// Copy the last commit to another directory or an object store while readers and a writer continue
    #[command(after_help = "\
An object store holds many backups of an index, and a file that several of them have once: only what is new is uploaded. S3 takes
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION and AWS_ENDPOINT_URL from the environment; AWS_ALLOW_HTTP=true
allows an address without TLS.

Examples:
  micpq index backup news.micpq backups/monday
  micpq index backup news.micpq s3://bucket/news --keep 7
  micpq index backups s3://bucket/news
  micpq index restore s3://bucket/news restored.micpq")]
    Backup {
        /// Index directory
        index: PathBuf,
        /// Directory to create, s3://BUCKET/PREFIX or file:///FOLDER
        to: PathBuf,
        /// In an object store, leave so many backups of the index and remove older ones. Default: all stay
        #[arg(long, value_name = "N")]
        keep: Option<usize>,
        #[command(flatten)]
        copy: CopyArgs,
    },
    /// List the backups in an object store
    Backups {
        /// s3://BUCKET/PREFIX or file:///FOLDER
        from: String,
    },
    /// Check a backup and create an index from it
    Restore {
        /// Directory of the backup, s3://BUCKET/PREFIX or file:///FOLDER
        backup: PathBuf,
        /// Index directory to create
        index: PathBuf,
        /// In an object store, the backup that "micpq index backups" lists by this name. Default: the newest
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        #[command(flatten)]
        copy: CopyArgs,
    },
    /// Encode the texts again with another model, or bring an index of an earlier format up to date, in one step
    #[command(after_help = "\
With --model every text is encoded again. Without it an index of an earlier format gets today's, with its codes and vectors.
The old index answers searches until the new one replaces it; nobody can write to it meanwhile. If interrupted, the same
command continues where it stopped.")]
    Migrate {
        /// Index directory
        index: PathBuf,
        /// Directory of the new model. Without it, the index keeps its model and codes, and gets today's format
        #[arg(long, value_name = "DIR")]
        model: Option<PathBuf>,
        /// Documents per commit; an interrupted migration repeats at most this many
        #[arg(long, default_value_t = MigrateConfig::default().commit_every, value_name = "N")]
        commit_every: usize,
    },
}

/// How an index is copied.
#[derive(Flags, Clone)]
pub struct CopyArgs {
    /// Replace an existing index
    #[arg(long)]
    pub replace: bool,
    /// Copy every file. Default: hard links where the file system allows them
    #[arg(long)]
    pub copy: bool,
}

impl CopyArgs {
    pub fn config(&self) -> CopyConfig {
        CopyConfig { replace: self.replace, own_files: self.copy }
    }
}
