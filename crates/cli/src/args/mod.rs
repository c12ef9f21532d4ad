//! Flags as the user types them. They only convert into the config types of the engine and the trainer, which validate.

mod build;
mod corpus;
mod duplicates;
mod embedding;
mod index;
mod machine;
mod models;
mod search;
mod training;

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use engine::encoder::Device;

pub use build::{Build, Sync, TextArgs};
pub use corpus::CorpusArgs;
pub use duplicates::DuplicateArgs;
pub use embedding::{ComputingArgs, EmbeddingArgs};
pub use index::{CopyArgs, Index};
pub use machine::{CacheCommand, EncoderCommand, Serve};
pub use models::{Encode, Eval, Paper, Train};
pub use search::Search;
pub use training::TrainingArgs;

/// Document search in 16 to 128 bits per document.
#[derive(Parser)]
#[command(name = "micpq", version, propagate_version = true, after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
    /// Print JSON for programs instead of text for people
    #[arg(long, global = true)]
    pub json: bool,
    /// Show no progress on standard error
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// Number of threads. Results do not depend on it. Default: all cores
    #[arg(long, global = true, value_name = "N")]
    pub threads: Option<usize>,
    /// Device to encode on. auto uses a GPU if one works and there is more than a query to encode
    #[arg(long, global = true, value_name = "auto|cpu|cuda[:N]", default_value = "auto")]
    pub device: Device,
}

const EXAMPLES: &str = "\
Examples:
  micpq build news.jsonl -o news.micpq
  micpq search news.micpq \"oil prices and the economy\" -k 10
  micpq search news.micpq \"tea\" --filter \"places:japan\" --json
  micpq eval --model news.micpq/model --database train.csv --queries test.csv

Exit codes: 0 done, 1 failed, 2 wrong usage.";

#[derive(Subcommand)]
pub enum Command {
    /// Train on a corpus without labels, then index it: one command from raw text to search
    Build(Build),
    /// Search an index
    Search(Search),
    /// Keep an index like a folder: add, replace and delete what changed
    Sync(Sync),
    /// Serve indexes over HTTP, with a page to search them
    Serve(Serve),
    /// Give an assistant indexes to search, over the Model Context Protocol
    Mcp(crate::commands::mcp::Mcp),
    /// Measure a model on labelled corpora: P@k, MAP, recall 10@100, beside exact float search
    Eval(Eval),
    /// Encode a corpus as embeddings, or with --model as codes (.npy)
    Encode(Encode),
    /// Train a model on a corpus
    Train(Train),
    /// Run the paper's evaluation from a plan, and write its report
    Paper(Paper),
    /// Create and maintain an index: create, add, delete, info, stats, recall, verify, compact, backup, backups, restore, migrate
    #[command(subcommand)]
    Index(Index),
    /// Show what the documents of an index are about: clusters with names, typical documents and a trend
    Topics(crate::commands::topics::TopicsArgs),
    /// Find duplicates and near-duplicates in an index, and delete or mark them
    Dedup(crate::commands::dedup::Dedup),
    /// Save queries with an index, and tell which new documents match them
    #[command(subcommand, name = "watch")]
    SavedQueries(crate::commands::watch::SavedQueries),
    /// Make a query encoder that takes microseconds, for an index or a model
    Distill(crate::commands::distill::Distill),
    /// Write an index as FAISS, Parquet, Arrow, JSONL, a BEIR folder, a TREC run or plain codes
    Export(crate::commands::export::Export),
    /// Create an index from a FAISS product quantizer, or from vectors of any encoder
    Import(crate::commands::import::Import),
    /// Judge an index by a BEIR folder: codes, re-ranked, hybrid, BM25 and exact float side by side
    Judge(crate::commands::judge::Judge),
    /// Score a TREC run: nDCG@10, Recall@100, MAP
    Score(crate::commands::score::Score),
    /// Download and show encoders
    #[command(subcommand)]
    Encoder(EncoderCommand),
    /// Show and clear the cache of vectors, views and checkpoints
    #[command(subcommand)]
    Cache(CacheCommand),
    /// Say what would not work on this machine or with an index, and what to do about it
    Doctor(crate::commands::doctor::Doctor),
    /// Print the completion script of a shell
    Completions {
        /// bash, zsh, fish, elvish or powershell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages of all commands into a folder
    Man {
        /// Folder, such as /usr/local/share/man/man1
        folder: PathBuf,
    },
}
