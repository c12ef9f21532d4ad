//! Flags as the user types them. They only convert into the engine's and the trainer's own config types, which check.

use std::path::PathBuf;

use clap::{Args as Group, Parser, Subcommand};
use micpq::corpus::{CorpusConfig, Format, OnError};
use micpq::encoder::{Device, Features, Pooling, Precision, pull};
use micpq::index::{CopyConfig, Keep, Store};
use micpq::model::{CodeShape, Distance};
use micpq::query::{Cursor, Rerank, SearchConfig};
use micpq::text::Clean;
use micpq::{Result, Watch};
use systems::{Input, Method, SystemConfig, Training};
use train::config::TrainConfig;
use train::views::ViewChoice;

/// Document search in 16 to 128 bits a document.
#[derive(Parser)]
#[command(name = "micpq", version, propagate_version = true, after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
    /// Print JSON for programs instead of text for people
    #[arg(long, global = true)]
    pub json: bool,
    /// No progress on standard error
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// Threads; all cores unless said. Results do not depend on it
    #[arg(long, global = true, value_name = "N")]
    pub threads: Option<usize>,
    /// Where to encode: auto takes a GPU where one works and there is more than a query to encode
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
    /// Serve indexes over HTTP, with a page to search them
    Serve(Serve),
    /// Measure a model on labelled corpora: P@k, MAP, fidelity, beside exact float search
    Eval(Eval),
    /// Turn a corpus into feature vectors, or with --model into codes (.npy)
    Encode(Encode),
    /// Train a model on a corpus
    Train(Train),
    /// Run the paper's evaluation from a plan, and write its report
    Paper(Paper),
    /// Make and keep an index: create, add, delete, info, stats, verify, compact, snapshot, restore, migrate
    #[command(subcommand)]
    Index(Index),
    /// Write an index as FAISS, Parquet, Arrow, JSONL, a BEIR folder, a TREC run or plain codes
    Export(crate::commands::export::Export),
    /// Make an index of a FAISS product quantizer, or of vectors of any encoder
    Import(crate::commands::import::Import),
    /// Score a TREC run: nDCG@10, Recall@100, MAP
    Score(crate::commands::score::Score),
    /// Fetch and show encoders
    #[command(subcommand)]
    Encoder(EncoderCommand),
    /// Show and clear what is kept between runs: vectors, views, checkpoints
    #[command(subcommand)]
    Cache(CacheCommand),
    /// Print the completion script of a shell
    Completions {
        /// bash, zsh, fish, elvish or powershell
        shell: clap_complete::Shell,
    },
}

/// How a corpus is read.
#[derive(Group, Clone)]
#[command(next_help_heading = "Corpus")]
pub struct CorpusArgs {
    /// Format of the corpus; otherwise told by name and content
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<Format>,
    /// What to do with a row that cannot be used: stop, or skip and count
    #[arg(long, value_name = "skip|stop", default_value = "stop")]
    pub on_error: OnError,
    /// Field that holds the id (id, _id)
    #[arg(long, value_name = "NAME")]
    pub id_field: Option<String>,
    /// Field that holds the text (text); given several times, the fields are joined
    #[arg(long, value_name = "NAME")]
    pub text_field: Vec<String>,
    /// Field that holds the label or labels (label, labels)
    #[arg(long, value_name = "NAME")]
    pub label_field: Option<String>,
    /// Whether a CSV or TSV file begins with a header; otherwise told by its first row
    #[arg(long, value_name = "true|false")]
    pub header: Option<bool>,
    /// Names for the columns of a table without a header, in order
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub columns: Vec<String>,
    /// What separates the cells of a table; a comma in CSV and a tab in TSV unless said
    #[arg(long, value_name = "CHARACTER")]
    pub delimiter: Option<char>,
    /// Whether cells may stand in double quotes; in CSV they may, in TSV not, unless said
    #[arg(long, value_name = "true|false")]
    pub quoting: Option<bool>,
    /// What separates several labels in one string
    #[arg(long, value_name = "TEXT")]
    pub label_separator: Option<String>,
    /// Fields to leave out
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub ignore_fields: Vec<String>,
    /// Take the folder a text file lies in as its label
    #[arg(long)]
    pub folder_labels: bool,
    /// Longest row accepted, in bytes
    #[arg(long, value_name = "BYTES")]
    pub max_row_bytes: Option<usize>,
    /// Take documents without text
    #[arg(long)]
    pub allow_empty_text: bool,
    /// Take ids that repeat; in an index the last document of an id stays
    #[arg(long)]
    pub repeated_ids: bool,
}

impl CorpusArgs {
    pub fn config(&self) -> CorpusConfig {
        let defaults = CorpusConfig::default();
        CorpusConfig {
            format: self.format,
            on_error: self.on_error,
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
            ..defaults
        }
    }
}

/// How text becomes vectors.
#[derive(Group, Clone)]
#[command(next_help_heading = "Features")]
pub struct FeatureArgs {
    /// Encoder: a pulled name or a Hugging Face directory
    #[arg(long, value_name = "NAME|DIR", default_value = pull::DEFAULT)]
    pub encoder: String,
    /// How token states become one vector
    #[arg(long, value_name = "cls|mean", default_value = "mean")]
    pub pooling: Pooling,
    /// Most tokens of a text with [CLS] and [SEP]; the encoder's own length unless said
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<usize>,
    /// Cleaning before tokenisation: none, or the authors' (faithful)
    #[arg(long, value_name = "faithful|none", default_value = "none")]
    pub clean: Clean,
    /// Scale vectors to unit length
    #[arg(long)]
    pub unit_length: bool,
    #[command(flatten)]
    pub computing: ComputingArgs,
}

/// How the encoder computes.
#[derive(Group, Clone, Copy, Default)]
#[command(next_help_heading = "Features")]
pub struct ComputingArgs {
    /// Numbers of the encoder's matrix products: f32, bf16, int8, or auto (the fastest shown to lose nothing);
    /// unless said, a model's own, and f32 where there is none yet
    #[arg(long, value_name = "f32|bf16|int8|auto")]
    pub precision: Option<Precision>,
}

impl FeatureArgs {
    /// Loads the encoder to where `--device` says, fetching a registered one that is not here yet.
    pub fn load(&self, watch: &dyn Watch) -> Result<Features> {
        pull::locate_or_pull(&self.encoder, watch)?;
        Features::new(
            &self.encoder,
            self.pooling,
            self.max_tokens,
            self.clean,
            self.unit_length,
            self.computing.precision.unwrap_or_default(),
        )?
        .on(crate::commands::device(), watch)
    }
}

/// How a model is trained.
#[derive(Group, Clone)]
#[command(next_help_heading = "Training")]
pub struct TrainingArgs {
    /// Length of a code: 16, 32, 64 or 128; `train` takes several
    #[arg(long, default_value = "64", value_name = "N[,N...]", value_delimiter = ',')]
    pub bits: Vec<usize>,
    /// System to train: micpq gathers documents of a kind, opq keeps the order of float search; docs/systems.md has all
    #[arg(long, default_value = "micpq")]
    pub method: Method,
    /// What the system is given: vectors of the encoder, or words (tfidf; vdsh, nash, wish, bmsh, corrsh, ammi)
    #[arg(long, value_name = "encoder|tfidf", default_value = "encoder")]
    pub input: Input,
    /// Seed of everything random; `train` takes several
    #[arg(long, default_value = "0", value_name = "N[,N...]", value_delimiter = ',')]
    pub seed: Vec<u64>,
    /// Views: full:R (R encoder passes with dropout a document; 8 unless said, 16 with CLS), lastL:R (dropout in the last L
    /// layers alone) or noise[:R] (a model of that noise, fitted on a sample: a sixth of the encoding)
    #[arg(long, value_name = "full:R|lastL:R|noise[:R]")]
    pub views: Option<String>,
    /// Settings of the paper for a corpus: paper:agnews, paper:dbpedia, paper:nyt
    #[arg(long, value_name = "NAME")]
    pub preset: Option<String>,
    /// Most epochs
    #[arg(long)]
    pub epochs: Option<usize>,
    /// Epochs without improvement after which training stops
    #[arg(long)]
    pub patience: Option<usize>,
    /// Documents a step
    #[arg(long)]
    pub batch: Option<usize>,
    /// Step size of Adam
    #[arg(long)]
    pub learning_rate: Option<f64>,
    /// Weight of the mutual-information term (0: the paper's ablation without it)
    #[arg(long)]
    pub prob_weight: Option<f64>,
    /// Temperature of the soft code
    #[arg(long)]
    pub tau: Option<f64>,
    /// Temperature of the contrastive loss
    #[arg(long)]
    pub tau_cl: Option<f64>,
    /// Rate of dropout in the encoder's views
    #[arg(long)]
    pub dropout: Option<f64>,
    /// No Gumbel noise (the paper's softmax ablation)
    #[arg(long)]
    pub no_gumbel: bool,
    /// Width of the hidden layer
    #[arg(long)]
    pub hidden: Option<usize>,
    /// Any other option of training by its name in config.json, such as floor=0, information=posterior,
    /// clean_first_epoch=false, alpha=0.2 or distance=squared; given several times
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Most documents to train on; a larger corpus is sampled evenly by the seed
    #[arg(long, default_value_t = 200_000, value_name = "N")]
    pub sample: usize,
    /// Where views and checkpoints are kept between runs (under the user's cache unless said)
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
}

impl TrainingArgs {
    /// Rate of dropout where none is given: the authors'.
    pub const DROPOUT: f64 = 0.3;

    /// Rate of dropout in views.
    pub fn dropout(&self) -> f64 {
        self.dropout.unwrap_or(Self::DROPOUT)
    }

    /// What is to be trained, of one model.
    pub fn training(&self, pooling: Pooling) -> Result<Training> {
        match (&self.bits[..], &self.seed[..]) {
            ([bits], [seed]) => self.one(*bits, *seed, pooling),
            (bits, seeds) => Err(micpq::Error::config(format!(
                "{} models are asked for by --bits and --seed, an index has one; \"micpq train\" makes several at once",
                bits.len() * seeds.len()
            ))),
        }
    }

    /// The same for MICPQ and its variants only, where a caller knows no other.
    pub fn config(&self, pooling: Pooling) -> Result<TrainConfig> {
        match self.training(pooling)? {
            Training::Micpq(_, config) => Ok(*config),
            Training::System(config) => Err(micpq::Error::config(format!(
                "{} is not trained here; known: micpq and its variants",
                config.method
            ))),
        }
    }

    /// What is to be trained, of every length and seed: seed by seed and the longest code first, which takes longest.
    pub fn trainings(&self, pooling: Pooling) -> Result<Vec<Training>> {
        let mut lengths = self.bits.clone();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        lengths.dedup();
        let mut seeds = self.seed.clone();
        seeds.dedup();
        seeds.iter().flat_map(|s| lengths.iter().map(move |b| (*b, *s))).map(|(b, s)| self.one(b, s, pooling)).collect()
    }

    /// The seed a sample of the corpus is drawn by: the first.
    pub fn sample_seed(&self) -> u64 {
        self.seed.first().copied().unwrap_or(0)
    }

    fn one(&self, bits: usize, seed: u64, pooling: Pooling) -> Result<Training> {
        if self.method.is_micpq() {
            if self.input != Input::Encoder {
                return Err(micpq::Error::config(format!(
                    "{} needs an encoder; --input tfidf is for others",
                    self.method
                )));
            }
            return Ok(Training::Micpq(self.method, Box::new(self.model(bits, seed, pooling)?)));
        }
        let mut config = SystemConfig { seed, ..SystemConfig::new(self.method, bits).reading(self.input) };
        config.views = ViewChoice::suited_to(pooling);
        let named = [
            ("views", self.views.clone().map(Into::into)),
            ("epochs", self.epochs.map(Into::into)),
            ("patience", self.patience.map(Into::into)),
            ("batch", self.batch.map(Into::into)),
            ("learning_rate", self.learning_rate.map(Into::into)),
            ("prob_weight", self.prob_weight.map(Into::into)),
            ("tau", self.tau.map(Into::into)),
            ("contrast_temperature", self.tau_cl.map(Into::into)),
            ("preset", self.preset.clone().map(Into::into)),
            ("gumbel", self.no_gumbel.then(|| false.into())),
            ("hidden", self.hidden.map(Into::into)),
        ];
        for (name, value) in named {
            if let Some(value) = value {
                config = config.with(name, value)?;
            }
        }
        for pair in &self.set {
            let (name, value) = option(pair)?;
            config = config.with(name, value)?;
        }
        config.validate()?;
        Ok(Training::System(Box::new(config)))
    }

    /// The options of MICPQ and its variants.
    fn model(&self, bits: usize, seed: u64, pooling: Pooling) -> Result<TrainConfig> {
        CodeShape::micpq(bits)?;
        let mut config = match &self.preset {
            Some(name) => TrainConfig::preset(name, bits)?,
            None => TrainConfig { views: ViewChoice::suited_to(pooling), ..TrainConfig::new(bits) },
        };
        self.method.vary(&mut config);
        if let Some(views) = &self.views {
            config.views = views.parse()?;
        }
        fn set<T: Copy>(field: &mut T, value: Option<T>) {
            if let Some(value) = value {
                *field = value;
            }
        }
        set(&mut config.epochs, self.epochs);
        set(&mut config.patience, self.patience);
        set(&mut config.batch, self.batch);
        set(&mut config.learning_rate, self.learning_rate);
        set(&mut config.hidden, self.hidden);
        set(&mut config.objective.prob_weight, self.prob_weight);
        set(&mut config.objective.tau, self.tau);
        set(&mut config.objective.contrast_temperature, self.tau_cl);
        if self.no_gumbel {
            // The paper's ablation takes softmax(-d / tau): neither noise nor the floor that came with it.
            config.objective.gumbel = false;
            config.objective.floor = 0.0;
        }
        config.seed = seed;
        let config = self.set.iter().try_fold(config, |config, pair| with_option(&config, pair))?;
        config.validate()?;
        Ok(config)
    }
}

/// `NAME=VALUE` taken apart; what is not JSON is text.
fn option(pair: &str) -> Result<(&str, serde_json::Value)> {
    let (name, value) =
        pair.split_once('=').ok_or_else(|| micpq::Error::config(format!("--set {pair}: write it as NAME=VALUE")))?;
    Ok((name, serde_json::from_str(value).unwrap_or_else(|_| serde_json::Value::String(value.to_owned()))))
}

/// The options with one of them changed.
fn with_option(config: &TrainConfig, pair: &str) -> Result<TrainConfig> {
    let bad = |problem: String| micpq::Error::config(format!("--set {pair}: {problem}"));
    let (name, value) = option(pair)?;
    config.with_option(name, value).map_err(|e| bad(e.to_string()))
}

#[derive(Group)]
#[command(after_help = "\
Examples:
  micpq build news.jsonl -o news.micpq
  micpq build docs/ --bits 128 -o docs.micpq           a folder of text files
  cat news.jsonl | micpq build - --format jsonl -o news.micpq")]
pub struct Build {
    /// File or folder; - is standard input
    pub corpus: PathBuf,
    /// Directory of the index to make
    #[arg(long, short)]
    pub output: PathBuf,
    /// Use this model instead of training one
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// What the index keeps: all (ids, codes, texts, attributes) or codes (ids and codes alone)
    #[arg(long, default_value = "all")]
    pub store: Store,
    /// How features are kept on disk for the second stage of a search: int8 (a byte a value), f16, or none
    #[arg(long, value_name = "int8|f16|none", default_value = "int8")]
    pub keep: Keep,
    /// Replace an index that is already there
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub source: CorpusArgs,
    #[command(flatten)]
    pub features: FeatureArgs,
    #[command(flatten)]
    pub training: TrainingArgs,
}

#[derive(Group)]
#[command(after_help = "\
Examples:
  micpq search news.micpq \"oil prices\" -k 5
  micpq search news.micpq \"oil prices\" --filter \"places:japan AND year:[1987 TO 1988]\"
  micpq search news.micpq \"opec quota\" --hybrid 0.3 --snippets     the words count too, and are marked
  micpq search news.micpq --like 4711 --like 815 --fuse             documents like these two
  micpq search news.micpq --vector queries.npy --json
  micpq search news.micpq \"oil prices\" --after CURSOR             the next page
  micpq search news.micpq --queries questions.txt --json
  micpq search news.micpq                              asks for queries until end of input")]
pub struct Search {
    /// Index directory
    pub index: PathBuf,
    /// What to look for; without any query, they are read from standard input
    pub query: Vec<String>,
    /// A corpus of queries; every hit then carries the query's id
    #[arg(long, value_name = "FILE")]
    pub queries: Option<PathBuf>,
    /// Documents like the one with this id; given several times, several queries
    #[arg(long, value_name = "ID")]
    pub like: Vec<String>,
    /// Queries as feature vectors, a row each; - is standard input
    #[arg(long, value_name = "FILE.npy")]
    pub vector: Option<PathBuf>,
    /// Make one query of all the texts, ids and vectors given: hits are near to all of them
    #[arg(long)]
    pub fuse: bool,
    /// Weights of the fused queries: texts, then ids, then vectors
    #[arg(long, value_name = "W,W,...", value_delimiter = ',', requires = "fuse")]
    pub weights: Vec<f32>,
    /// Hits a query, 1 to 10000
    #[arg(short, default_value_t = SearchConfig::default().k)]
    pub k: usize,
    /// Only documents that match this filter, in the query language of tantivy: places:japan, year:[1987 TO 1988]
    #[arg(long)]
    pub filter: Option<String>,
    /// Only documents whose code is no farther than this
    #[arg(long, value_name = "DISTANCE")]
    pub within: Option<f32>,
    /// The page after the one this cursor came with
    #[arg(long, value_name = "CURSOR")]
    pub after: Option<Cursor>,
    /// Weight of the words (BM25) beside the codes, 0 to 1
    #[arg(long, value_name = "W", default_value_t = SearchConfig::default().hybrid)]
    pub hybrid: f32,
    /// Words of the hybrid search and of snippets; the query's own unless said
    #[arg(long, value_name = "TEXT")]
    pub words: Option<String>,
    /// Rank the first N candidates again by kept features: auto (200 where the index keeps them), off, or N
    #[arg(long, value_name = "N|off", default_value_t = SearchConfig::default().rerank)]
    pub rerank: Rerank,
    /// Show the part of each text that matches, its words marked
    #[arg(long)]
    pub snippets: bool,
    /// Say how the answer came about: segments, stages, each book's share of a distance
    #[arg(long)]
    pub explain: bool,
    /// Only ids and distances
    #[arg(long)]
    pub ids: bool,
    /// Distance; the model's own unless said
    #[arg(long)]
    pub distance: Option<Distance>,
    #[command(flatten)]
    pub source: CorpusArgs,
    #[command(flatten)]
    pub computing: ComputingArgs,
}

impl Search {
    /// The engine's own options.
    pub fn config(&self) -> SearchConfig {
        SearchConfig {
            k: self.k,
            filter: self.filter.clone(),
            within: self.within,
            after: self.after,
            hybrid: self.hybrid,
            rerank: self.rerank,
            distance: self.distance,
            documents: !self.ids,
            snippets: self.snippets,
            explain: self.explain,
        }
    }
}

#[derive(Group)]
#[command(after_help = "\
Examples:
  micpq serve news.micpq
  micpq serve news.micpq notes=/data/notes.micpq --data /data/made --listen 127.0.0.1:8080
  micpq serve --config serve.toml --set queue=256
  micpq serve --new-key read                           prints a key, and the lines that let it in

Every option has a name in the config file, MICPQ_SERVE_NAME in the environment, and --set NAME=VALUE here.")]
pub struct Serve {
    /// Index directories, each as PATH (named by its file name) or NAME=PATH
    pub indexes: Vec<String>,
    /// Options in TOML
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address and port; port 0 takes a free one. 127.0.0.1:6380 unless said
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// Where indexes and snapshots made over HTTP lie
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Any option of the config file
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Print a new API key and the lines of the config file that let it in, then end
    #[arg(long, value_name = "read|write|admin")]
    pub new_key: Option<serve::config::Role>,
    /// Print the description of the interface (OpenAPI 3.1), then end
    #[arg(long)]
    pub openapi: bool,
}

#[derive(Group)]
#[command(after_help = "\
Example:
  micpq eval --model model --database train.csv.gz --queries test.csv.gz --json")]
pub struct Eval {
    /// Model directory
    #[arg(long)]
    pub model: PathBuf,
    /// Corpus to search in
    #[arg(long, value_name = "FILE")]
    pub database: PathBuf,
    /// Corpus of queries
    #[arg(long, value_name = "FILE")]
    pub queries: PathBuf,
    /// Distance; the model's own unless said
    #[arg(long)]
    pub distance: Option<Distance>,
    /// Seed of the shuffle by which ties are broken
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Leave out exact float search
    #[arg(long)]
    pub no_float: bool,
    /// Where vectors are kept between runs (under the user's cache unless said)
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    #[command(flatten)]
    pub source: CorpusArgs,
    #[command(flatten)]
    pub computing: ComputingArgs,
}

#[derive(Group)]
#[command(after_help = "\
Examples:
  micpq encode news.jsonl --pooling mean -o features.npy
  micpq encode news.jsonl --model model -o codes.npy")]
pub struct Encode {
    /// File or folder; - is standard input
    pub corpus: PathBuf,
    /// File to write
    #[arg(long, short)]
    pub output: PathBuf,
    /// Write codes of this model (u8, low nibble = even book) instead of features (f32)
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    #[command(flatten)]
    pub source: CorpusArgs,
    #[command(flatten)]
    pub features: FeatureArgs,
}

#[derive(Group)]
#[command(after_help = "\
Examples:
  micpq train news.jsonl --bits 64 -o model
  micpq train news.jsonl --bits 16,32,64,128 --seed 0,1 -o models     eight models from one copy of the views
  micpq train train.csv.gz --validation val.csv.gz --preset paper:agnews --bits 32 --max-tokens 51 -o model")]
pub struct Train {
    /// File or folder; - is standard input
    pub corpus: PathBuf,
    /// Model directory to write; with several lengths or seeds a directory of them, BITS-SEED each
    #[arg(long, short)]
    pub output: PathBuf,
    /// Labelled corpus by whose P@100 the best epoch is chosen; without it the choice needs no labels
    #[arg(long, value_name = "FILE")]
    pub validation: Option<PathBuf>,
    /// Labelled corpus the finished model is measured by
    #[arg(long, value_name = "FILE")]
    pub test: Option<PathBuf>,
    /// Models trained at a time, each with its share of the threads; all of them unless said
    #[arg(long, value_name = "N")]
    pub jobs: Option<usize>,
    #[command(flatten)]
    pub source: CorpusArgs,
    #[command(flatten)]
    pub features: FeatureArgs,
    #[command(flatten)]
    pub training: TrainingArgs,
}

#[derive(Group)]
#[command(after_help = "\
Examples:
  micpq paper --plan quick --data corpora -o paper
  micpq paper --plan full --data corpora -o paper --jobs 2      goes on where it was stopped")]
pub struct Paper {
    /// quick, full, further (corpora beyond the paper's), or a TOML file
    #[arg(long, default_value = "quick", value_name = "quick|full|further|FILE")]
    pub plan: String,
    /// Folder of the corpora the plan names ($MICPQ_SHARED/data unless said)
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Folder of finished cells and of the report
    #[arg(long, short, default_value = "paper", value_name = "DIR")]
    pub output: PathBuf,
    /// Cells at a time
    #[arg(long, value_name = "N")]
    pub jobs: Option<usize>,
    /// Run only cells whose name holds this text, such as AGNews, "32 bits" or tfidf; given several times. The report
    /// shows every cell that is done
    #[arg(long, value_name = "TEXT")]
    pub only: Vec<String>,
    /// Leave out cells whose name holds this text; given several times
    #[arg(long, value_name = "TEXT")]
    pub skip: Vec<String>,
    /// Where vectors, views and checkpoints are kept between runs (under the user's cache unless said)
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
}

#[derive(Subcommand)]
pub enum Index {
    /// Make an index for a model, from a corpus or empty
    Create {
        /// Index directory
        index: PathBuf,
        /// Corpus to add at once
        corpus: Option<PathBuf>,
        /// Model directory
        #[arg(long, value_name = "DIR")]
        model: PathBuf,
        /// What the index keeps: all or codes
        #[arg(long, default_value = "all")]
        store: Store,
        /// How features are kept on disk for the second stage of a search: int8, f16 or none
        #[arg(long, value_name = "int8|f16|none", default_value = "int8")]
        keep: Keep,
        /// Replace an index that is already there
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        source: CorpusArgs,
        #[command(flatten)]
        computing: ComputingArgs,
    },
    /// Add documents; one with a known id replaces the old one
    Add {
        /// Index directory
        index: PathBuf,
        /// File or folder; - is standard input
        corpus: PathBuf,
        /// Documents a commit: what is committed survives a crash
        #[arg(long, default_value_t = 20_000, value_name = "N")]
        commit_every: usize,
        #[command(flatten)]
        source: CorpusArgs,
        #[command(flatten)]
        computing: ComputingArgs,
    },
    /// Delete documents by id or by filter
    Delete {
        /// Index directory
        index: PathBuf,
        /// Ids
        ids: Vec<String>,
        /// Everything that matches this filter
        #[arg(long)]
        filter: Option<String>,
    },
    /// What an index holds
    Info {
        /// Index directory
        index: PathBuf,
    },
    /// Check every byte that has a checksum, and codes against their columns
    Verify {
        /// Index directory
        index: PathBuf,
    },
    /// Merge segments and drop deleted documents
    Compact {
        /// Index directory
        index: PathBuf,
    },
    /// Look at every document: how codes are spread, what attributes there are, what everything weighs
    Stats {
        /// Index directory
        index: PathBuf,
    },
    /// Copy the last commit to another directory while readers and a writer go on
    Snapshot {
        /// Index directory
        index: PathBuf,
        /// Directory to make
        to: PathBuf,
        #[command(flatten)]
        copy: CopyArgs,
    },
    /// Check a snapshot and make an index of it
    Restore {
        /// Directory of the snapshot
        snapshot: PathBuf,
        /// Index directory to make
        index: PathBuf,
        #[command(flatten)]
        copy: CopyArgs,
    },
    /// Encode the texts again with another model and swap the new index in when it is whole
    #[command(after_help = "\
The old index is searched until the new one takes its place; it is not written to meanwhile. Interrupted, the same
command goes on where it was.")]
    Migrate {
        /// Index directory
        index: PathBuf,
        /// Directory of the new model
        #[arg(long, value_name = "DIR")]
        model: PathBuf,
        /// Documents a commit: so much an interrupted migration does again
        #[arg(long, default_value_t = 20_000, value_name = "N")]
        commit_every: usize,
    },
}

/// How an index is copied.
#[derive(Group, Clone)]
pub struct CopyArgs {
    /// Replace an index that is already there
    #[arg(long)]
    pub replace: bool,
    /// Copy every file; otherwise files are shared by hard links where the file system allows it
    #[arg(long)]
    pub copy: bool,
}

impl CopyArgs {
    pub fn config(&self) -> CopyConfig {
        CopyConfig { replace: self.replace, own_files: self.copy }
    }
}

#[derive(Subcommand)]
pub enum EncoderCommand {
    /// Fetch an encoder: the default, a name on the hub, or a local directory
    Pull {
        /// Name or directory
        #[arg(default_value = pull::DEFAULT)]
        name: String,
    },
    /// Encoders that are here
    List,
    /// One encoder's numbers and checksum
    Info {
        /// Name or directory
        #[arg(default_value = pull::DEFAULT)]
        name: String,
    },
}

#[derive(Subcommand)]
pub enum CacheCommand {
    /// What is kept, and how large it is
    List {
        /// The cache, where it is not the user's own
        #[arg(long, value_name = "DIR")]
        cache: Option<PathBuf>,
    },
    /// Remove it; the next run computes again what it needs
    Clear {
        /// The cache, where it is not the user's own
        #[arg(long, value_name = "DIR")]
        cache: Option<PathBuf>,
        /// Only what nothing was written to for so many days
        #[arg(long, value_name = "DAYS")]
        older_than: Option<f64>,
    },
}
