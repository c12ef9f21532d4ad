//! Flags of `eval`, `encode`, `train` and `paper`.

use std::path::PathBuf;

use clap::Args as Flags;
use engine::model::Distance;
use train::EvaluateConfig;

use super::{ComputingArgs, CorpusArgs, EmbeddingArgs, TrainingArgs};

#[derive(Flags)]
#[command(after_help = "\
Example:
  micpq eval --model model --database train.csv.gz --queries test.csv.gz --json")]
pub struct Eval {
    /// Model directory
    #[arg(long)]
    pub model: PathBuf,
    /// Corpus that is searched
    #[arg(long, value_name = "FILE")]
    pub database: PathBuf,
    /// Corpus of queries
    #[arg(long, value_name = "FILE")]
    pub queries: PathBuf,
    /// Distance of codes. Default: the model's own
    #[arg(long)]
    pub distance: Option<Distance>,
    /// Seed of the shuffle that breaks ties
    #[arg(long, default_value_t = EvaluateConfig::default().seed)]
    pub seed: u64,
    /// Skip exact float search
    #[arg(long)]
    pub no_float: bool,
    /// Directory that caches vectors between runs. Default: below the user's cache directory
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    #[command(flatten)]
    pub source: CorpusArgs,
    #[command(flatten)]
    pub computing: ComputingArgs,
}

#[derive(Flags)]
#[command(after_help = "\
Examples:
  micpq encode news.jsonl -o embeddings.npy
  micpq encode news.jsonl --model model -o codes.npy")]
pub struct Encode {
    /// File or folder; - is standard input
    pub corpus: PathBuf,
    /// File to write
    #[arg(long, short)]
    pub output: PathBuf,
    /// Write codes of this model (u8, low nibble = even codebook) instead of embeddings (f32)
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// The texts are queries: they get the prompt of queries, where the encoder has one
    #[arg(long)]
    pub queries: bool,
    #[command(flatten)]
    pub source: CorpusArgs,
    #[command(flatten)]
    pub embedding: EmbeddingArgs,
}

#[derive(Flags)]
#[command(after_help = "\
Examples:
  micpq train news.jsonl --bits 64 -o model
  micpq train news.jsonl --bits 16,32,64,128 --seed 0,1 -o models     eight models from one copy of the views
  micpq train train.csv.gz --validation val.csv.gz --preset paper:agnews --bits 32 -o model")]
pub struct Train {
    /// File or folder; - is standard input
    pub corpus: PathBuf,
    /// Model directory to write. With several code lengths or seeds: a directory of models named BITS-SEED
    #[arg(long, short)]
    pub output: PathBuf,
    /// Labelled corpus whose P@100 selects the best epoch. Default: selection without labels
    #[arg(long, value_name = "FILE")]
    pub validation: Option<PathBuf>,
    /// Labelled corpus to measure the trained model on
    #[arg(long, value_name = "FILE")]
    pub test: Option<PathBuf>,
    /// Models trained at the same time; they share the threads. Default: all models
    #[arg(long, value_name = "N")]
    pub jobs: Option<usize>,
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
  micpq paper --plan quick --data corpora -o paper
  micpq paper --plan full --data corpora -o paper --jobs 2      continues where it stopped")]
pub struct Paper {
    /// quick, full, further (corpora beyond the paper's), or a TOML file
    #[arg(long, default_value = "quick", value_name = "quick|full|further|FILE")]
    pub plan: String,
    /// Folder of the plan's corpora. Default: $MICPQ_SHARED/data
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Folder for finished cells and the report
    #[arg(long, short, default_value = "paper", value_name = "DIR")]
    pub output: PathBuf,
    /// Cells run at the same time. Default: one per thread, at most 4
    #[arg(long, value_name = "N")]
    pub jobs: Option<usize>,
    /// Run only cells whose name contains this text, such as AGNews, "32 bits" or tfidf. Can be repeated. The report shows
    /// every finished cell
    #[arg(long, value_name = "TEXT")]
    pub only: Vec<String>,
    /// Skip cells whose name contains this text. Can be repeated
    #[arg(long, value_name = "TEXT")]
    pub skip: Vec<String>,
    /// Run nothing: write the report of the finished cells
    #[arg(long)]
    pub report: bool,
    /// Directory that caches vectors, views and checkpoints between runs. Default: below the user's cache directory
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
}
