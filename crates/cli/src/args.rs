//! Flags as the user types them. They only convert into the config types of the engine and the trainer, which validate.

use std::path::PathBuf;

use clap::{Args as Flags, Parser, Subcommand};
use engine::Result;
use engine::chunk::ChunkConfig;
use engine::corpus::{CorpusConfig, Extract, Format, OnError};
use engine::encoder::{Device, EmbedderConfig, Pooling, PoolingChoice, Precision, QueryEncoder, pull};
use engine::index::{CopyConfig, RerankVectors, Store};
use engine::language::LanguageChoice;
use engine::model::{CodeShape, Distance};
use engine::query::{Cursor, Group, RecallConfig, Rerank, SearchConfig};
use engine::text::Clean;
use methods::{Input, MethodConfig, MethodHandle, Training};
use train::Preset;
use train::config::TrainConfig;
use train::views::ViewChoice;

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
    /// Measure a model on labelled corpora: P@k, MAP, recall 10@100, beside exact float search
    Eval(Eval),
    /// Encode a corpus as embeddings, or with --model as codes (.npy)
    Encode(Encode),
    /// Train a model on a corpus
    Train(Train),
    /// Run the paper's evaluation from a plan, and write its report
    Paper(Paper),
    /// Create and maintain an index: create, add, delete, info, stats, recall, verify, compact, backup, restore, migrate
    #[command(subcommand)]
    Index(Index),
    /// Show what the documents of an index are about: clusters with names, typical documents and a trend
    Topics(crate::commands::topics::TopicsArgs),
    /// Find duplicates and near-duplicates in an index, and delete or mark them
    Dedup(crate::commands::dedup::Dedup),
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

/// How texts are encoded.
#[derive(Flags, Clone)]
#[command(next_help_heading = "Encoder")]
pub struct EmbeddingArgs {
    /// Encoder: a name of the hub, a directory of Hugging Face, sentence-transformers or model2vec, or the address of a service
    /// with OpenAI's embeddings API. Default: all-MiniLM-L6-v2, or that of the preset
    #[arg(long, value_name = "NAME|DIR|URL")]
    pub encoder: Option<String>,
    /// Model of the service that --encoder is the address of. OPENAI_API_KEY has the key
    #[arg(long, value_name = "NAME")]
    pub encoder_model: Option<String>,
    /// How token states become one vector: auto (as the encoder's directory says, with its dense layers, normalisation and
    /// prompts), or raw states pooled by cls, mean, max, mean_sqrt_len or lasttoken. Default: auto, or that of the
    /// preset
    #[arg(long, value_name = "auto|cls|mean|...")]
    pub pooling: Option<PoolingChoice>,
    /// Maximum number of tokens of a text, with [CLS] and [SEP]. Default: the encoder's own length, or that of the preset
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<usize>,
    /// Cleaning before tokenisation: none, or that of the paper's authors (faithful). Default: none, or that of the preset
    #[arg(long, value_name = "faithful|none")]
    pub clean: Option<Clean>,
    /// Scale vectors to unit length, also where the encoder does not
    #[arg(long)]
    pub unit_length: bool,
    /// Use only the first N values of a vector; for encoders trained for it (Matryoshka)
    #[arg(long, value_name = "N")]
    pub dimensions: Option<usize>,
    /// Text put in front of every query. Default: the encoder's own; "" for none
    #[arg(long, value_name = "TEXT")]
    pub query_prompt: Option<String>,
    /// Text put in front of every document. Default: the encoder's own; "" for none
    #[arg(long, value_name = "TEXT")]
    pub document_prompt: Option<String>,
    #[command(flatten)]
    pub computing: ComputingArgs,
}

/// How the encoder computes.
#[derive(Flags, Clone, Copy, Default)]
#[command(next_help_heading = "Encoder")]
pub struct ComputingArgs {
    /// Number type of the encoder's matrix products. auto is the fastest that measurably loses nothing. Default: the
    /// model's own; auto for a new model, f32 with a preset of the paper
    #[arg(long, value_name = "f32|bf16|int8|auto")]
    pub precision: Option<Precision>,
}

impl EmbeddingArgs {
    /// The engine's options; what is not given is that of the preset, if one is named.
    pub fn config(&self, preset: Option<&str>) -> Result<EmbedderConfig> {
        let defaults = match preset {
            Some(name) => name.parse::<Preset>()?.embedding(),
            None => EmbedderConfig::default(),
        };
        Ok(EmbedderConfig {
            encoder: self.encoder.clone().unwrap_or(defaults.encoder),
            encoder_model: self.encoder_model.clone(),
            pooling: self.pooling.unwrap_or(defaults.pooling),
            max_tokens: self.max_tokens.or(defaults.max_tokens),
            clean: self.clean.unwrap_or(defaults.clean),
            unit_length: self.unit_length,
            dimensions: self.dimensions,
            query_prompt: self.query_prompt.clone(),
            document_prompt: self.document_prompt.clone(),
            precision: self.computing.precision.unwrap_or(defaults.precision),
            device: crate::commands::device(),
        })
    }
}

/// How a model is trained.
#[derive(Flags, Clone)]
#[command(next_help_heading = "Training")]
pub struct TrainingArgs {
    /// Bits of a code: 16, 32, 64 or 128. `train` takes several
    #[arg(long, default_value = "64", value_name = "N[,N...]", value_delimiter = ',')]
    pub bits: Vec<usize>,
    /// Training method. micpq groups documents of the same kind, opq preserves the order of float search; docs/methods.md
    /// lists all
    #[arg(long, default_value = "micpq")]
    pub method: MethodHandle,
    /// Input of the method: embeddings, or terms (tfidf; for vdsh, nash, wish, bmsh, corrsh, ammi)
    #[arg(long, value_name = "encoder|tfidf", default_value = "encoder")]
    pub input: Input,
    /// Random seed. `train` takes several
    #[arg(long, default_value = "0", value_name = "N[,N...]", value_delimiter = ',')]
    pub seed: Vec<u64>,
    /// Views for training: full:R (R encoder passes with dropout per document), lastL:R (dropout only in the last L layers)
    /// or noise[:R] (a model of that noise, fitted on a sample: a sixth of the encoding). Default: full:8, full:16 with CLS
    /// pooling
    #[arg(long, value_name = "full:R|lastL:R|noise[:R]")]
    pub views: Option<String>,
    /// A whole run of the paper, from encoder to training: paper:agnews, paper:dbpedia or paper:nyt as the authors' code runs
    /// it, paper-text:agnews and so on as the paper's text says. Other flags change it
    #[arg(long, value_name = "NAME")]
    pub preset: Option<String>,
    /// Maximum number of epochs. Default: that of the method or preset
    #[arg(long)]
    pub epochs: Option<usize>,
    /// Stop after this many epochs without improvement. Default: that of the method or preset
    #[arg(long)]
    pub patience: Option<usize>,
    /// Documents per training step. Default: that of the method or preset
    #[arg(long)]
    pub batch: Option<usize>,
    /// Learning rate of Adam. Default: that of the method or preset
    #[arg(long)]
    pub learning_rate: Option<f64>,
    /// Weight of the mutual-information term; 0 is the paper's ablation. Default: that of the method or preset
    #[arg(long)]
    pub prob_weight: Option<f64>,
    /// Temperature of the soft code. Default: that of the method or preset
    #[arg(long)]
    pub tau: Option<f64>,
    /// Temperature of the contrastive loss. Default: that of the method or preset
    #[arg(long)]
    pub tau_cl: Option<f64>,
    /// Dropout rate of the views. Default: 0.3
    #[arg(long)]
    pub dropout: Option<f64>,
    /// Train without Gumbel noise (the paper's softmax ablation)
    #[arg(long)]
    pub no_gumbel: bool,
    /// Width of the hidden layer. Default: that of the method or preset
    #[arg(long)]
    pub hidden: Option<usize>,
    /// Any other training option by its name in config.json, such as floor=0, information=posterior,
    /// clean_first_epoch=false, alpha=0.2 or distance=squared. Can be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Maximum number of training documents; the seed samples a larger corpus evenly
    #[arg(long, default_value_t = 200_000, value_name = "N")]
    pub sample: usize,
    /// Directory that caches views and checkpoints between runs. Default: below the user's cache directory
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
}

impl TrainingArgs {
    /// The dropout rate of the paper's authors.
    pub const DROPOUT: f64 = 0.3;

    pub fn dropout(&self) -> f64 {
        self.dropout.unwrap_or(Self::DROPOUT)
    }

    /// The training of exactly one model.
    pub fn training(&self, pooling: Pooling) -> Result<Training> {
        match (&self.bits[..], &self.seed[..]) {
            ([bits], [seed]) => self.one(*bits, *seed, pooling),
            (bits, seeds) => Err(engine::Error::config(format!(
                "--bits and --seed ask for {} models, but an index has one; \"micpq train\" trains several at once",
                bits.len() * seeds.len()
            ))),
        }
    }

    /// One training per seed and code length. The longest code comes first within a seed: it takes longest.
    pub fn trainings(&self, pooling: Pooling) -> Result<Vec<Training>> {
        let mut lengths = self.bits.clone();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        lengths.dedup();
        let mut seeds = self.seed.clone();
        seeds.dedup();
        seeds.iter().flat_map(|s| lengths.iter().map(move |b| (*b, *s))).map(|(b, s)| self.one(b, s, pooling)).collect()
    }

    /// The corpus is sampled with the first seed.
    pub fn sample_seed(&self) -> u64 {
        self.seed.first().copied().unwrap_or(0)
    }

    fn one(&self, bits: usize, seed: u64, pooling: Pooling) -> Result<Training> {
        if self.method.is_micpq() {
            if self.input != Input::Encoder {
                return Err(engine::Error::config(format!(
                    "method {} needs an encoder; leave --input out, or choose a method that takes tfidf",
                    self.method
                )));
            }
            return Ok(Training::Micpq(self.method.clone(), Box::new(self.micpq(bits, seed, pooling)?)));
        }
        let mut config = MethodConfig { seed, ..MethodConfig::new(self.method.clone(), bits).reading(self.input) };
        config.views = self.method.views(pooling);
        let options = [
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
        for (name, value) in options {
            if let Some(value) = value {
                config = config.with(name, value)?;
            }
        }
        for pair in &self.set {
            let (name, value) = option(pair)?;
            config = config.with(name, value)?;
        }
        config.validate()?;
        Ok(Training::Other(Box::new(config)))
    }

    /// Options of MICPQ and its variants.
    fn micpq(&self, bits: usize, seed: u64, pooling: Pooling) -> Result<TrainConfig> {
        CodeShape::micpq(bits)?;
        let mut config = match &self.preset {
            Some(name) => TrainConfig::preset(name, bits)?,
            None => TrainConfig { views: ViewChoice::suited_to(pooling), ..TrainConfig::new(bits) },
        };
        if let Some(variant) = self.method.variant() {
            variant.vary(&mut config);
        }
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
            // The paper's ablation uses softmax(-d / tau): neither the noise nor the floor that belongs to it.
            config.objective.gumbel = false;
            config.objective.floor = 0.0;
        }
        config.seed = seed;
        let config = self.set.iter().try_fold(config, |config, pair| with_option(&config, pair))?;
        config.validate()?;
        Ok(config)
    }
}

/// Splits `NAME=VALUE`. A value that is not JSON is a string.
fn option(pair: &str) -> Result<(&str, serde_json::Value)> {
    let (name, value) =
        pair.split_once('=').ok_or_else(|| engine::Error::config(format!("--set {pair}: write it as NAME=VALUE")))?;
    Ok((name, serde_json::from_str(value).unwrap_or_else(|_| serde_json::Value::String(value.to_owned()))))
}

fn with_option(config: &TrainConfig, pair: &str) -> Result<TrainConfig> {
    let (name, value) = option(pair)?;
    config.with_option(name, value).map_err(|e| engine::Error::config(format!("--set {pair}: {e}")))
}

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
    #[arg(long, default_value = "all")]
    pub store: Store,
    /// How embeddings are stored for re-ranking: int8 (a byte per value), f16 or none
    #[arg(long, value_name = "int8|f16|none", default_value = "int8")]
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
    /// Documents per commit; committed documents survive a crash
    #[arg(long, default_value_t = 20_000, value_name = "N")]
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

#[derive(Flags)]
#[command(after_help = "\
Examples:
  micpq search news.micpq \"oil prices\" -k 5
  micpq search news.micpq \"oil prices\" --filter \"places:japan AND year:[1987 TO 1988]\"
  micpq search news.micpq \"opec quota\" --hybrid 0.3 --snippets     keywords count too, and are marked
  micpq search news.micpq --like 4711 --like 815 --fuse             documents like these two
  micpq search news.micpq --vector queries.npy --json
  micpq search news.micpq \"oil prices\" --after CURSOR             the next page
  micpq search news.micpq --queries questions.txt --json
  micpq search news.micpq                              reads queries from standard input")]
pub struct Search {
    /// Index directory, or a folder of shards
    pub index: PathBuf,
    /// Query texts. Without a query, micpq reads them from standard input, one per line
    pub query: Vec<String>,
    /// Corpus of queries; every hit then has the query's id
    #[arg(long, value_name = "FILE")]
    pub queries: Option<PathBuf>,
    /// Find documents like the one with this id. Repeat it for several queries
    #[arg(long, value_name = "ID")]
    pub like: Vec<String>,
    /// Queries as embeddings, one per row; - is standard input
    #[arg(long, value_name = "FILE.npy")]
    pub vector: Option<PathBuf>,
    /// Combine all texts, ids and vectors into one query: hits are near to all of them
    #[arg(long)]
    pub fuse: bool,
    /// Weights of the combined queries: texts, then ids, then vectors. Default: 1 each
    #[arg(long, value_name = "W,W,...", value_delimiter = ',', requires = "fuse")]
    pub weights: Vec<f32>,
    /// Hits per query, 1 to 10000
    #[arg(short, default_value_t = SearchConfig::default().k)]
    pub k: usize,
    /// Only documents that match this filter, in tantivy's query language: places:japan, year:[1987 TO 1988]
    #[arg(long)]
    pub filter: Option<String>,
    /// Only documents whose code has at most this distance
    #[arg(long, value_name = "DISTANCE")]
    pub radius: Option<f32>,
    /// The page that begins at this cursor of an earlier answer
    #[arg(long, value_name = "CURSOR")]
    pub after: Option<Cursor>,
    /// Weight of the keywords (BM25) against the codes, 0 to 1
    #[arg(long, value_name = "W", default_value_t = SearchConfig::default().hybrid)]
    pub hybrid: f32,
    /// Keywords of hybrid search and snippets. Default: the query texts
    #[arg(long, value_name = "TEXT")]
    pub keywords: Option<String>,
    /// Re-rank the first N candidates by the cosine of their rerank vectors: auto (1000 if the index stores rerank vectors),
    /// off, or N
    #[arg(long, value_name = "N|off", default_value_t = SearchConfig::default().rerank)]
    pub rerank: Rerank,
    /// Re-rank as many candidates as this recall against exact float search needs, 0 to 1. It is measured on documents of the
    /// index before the first query
    #[arg(long, value_name = "SHARE", conflicts_with = "rerank")]
    pub target_recall: Option<f64>,
    /// In an index with chunks, what gives a document its place: its best chunk, or the sum of its best three
    #[arg(long, value_name = "best|sum", default_value_t = SearchConfig::default().group)]
    pub group: Group,
    /// Encoder that reads the query texts: full (that of the documents), or fast (a copy in microseconds that "micpq distill"
    /// or "micpq build --query-encoder fast" made)
    #[arg(long, value_name = "full|fast", default_value_t = QueryEncoder::default())]
    pub query_encoder: QueryEncoder,
    /// Show the part of each text that matches best, with its keywords marked
    #[arg(long)]
    pub snippets: bool,
    /// Explain the answer: segments, stages, and distances codebook by codebook
    #[arg(long)]
    pub explain: bool,
    /// Show only ids and scores
    #[arg(long)]
    pub ids: bool,
    /// Distance of codes. Default: the model's own
    #[arg(long)]
    pub distance: Option<Distance>,
    #[command(flatten)]
    pub source: CorpusArgs,
    #[command(flatten)]
    pub computing: ComputingArgs,
}

impl Search {
    pub fn config(&self) -> SearchConfig {
        SearchConfig {
            k: self.k,
            filter: self.filter.clone(),
            radius: self.radius,
            after: self.after,
            hybrid: self.hybrid,
            rerank: self.rerank,
            group: self.group,
            distance: self.distance,
            documents: !self.ids,
            snippets: self.snippets,
            explain: self.explain,
        }
    }
}

#[derive(Flags)]
#[command(after_help = "\
Examples:
  micpq serve news.micpq
  micpq serve news.micpq notes=/data/notes.micpq --data /data/made --listen 127.0.0.1:8080
  micpq serve --config serve.toml --set queue=256
  micpq serve --new-key read                           prints a key and its lines for the config file

Every option has a name in the config file, MICPQ_SERVE_NAME in the environment, and --set NAME=VALUE here.")]
pub struct Serve {
    /// Index directories, each as PATH (named by its file name) or NAME=PATH
    pub indexes: Vec<String>,
    /// Config file in TOML
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address and port; port 0 chooses a free one. Default: 127.0.0.1:6380
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// Directory of indexes and backups created over HTTP
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Any option of the config file. Can be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Print a new API key and its lines for the config file, then exit
    #[arg(long, value_name = "read|write|admin")]
    pub new_key: Option<serve::config::Role>,
    /// Print the API description (OpenAPI 3.1), then exit
    #[arg(long)]
    pub openapi: bool,
}

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
    #[arg(long, default_value_t = 0)]
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
        #[arg(long, default_value = "all")]
        store: Store,
        /// How embeddings are stored for re-ranking: int8 (a byte per value), f16 or none
        #[arg(long, value_name = "int8|f16|none", default_value = "int8")]
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
    Add {
        /// Index directory
        index: PathBuf,
        /// File or folder; - is standard input
        corpus: PathBuf,
        /// Documents per commit; committed documents survive a crash
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
        /// Index directory
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
    /// Copy the last commit to another directory while readers and a writer continue
    Backup {
        /// Index directory
        index: PathBuf,
        /// Directory to create
        to: PathBuf,
        #[command(flatten)]
        copy: CopyArgs,
    },
    /// Check a backup and create an index from it
    Restore {
        /// Directory of the backup
        backup: PathBuf,
        /// Index directory to create
        index: PathBuf,
        #[command(flatten)]
        copy: CopyArgs,
    },
    /// Encode the texts again with another model, then replace the index in one step
    #[command(after_help = "\
The old index answers searches until the new one replaces it; nobody can write to it meanwhile. If interrupted, the same
command continues where it stopped.")]
    Migrate {
        /// Index directory
        index: PathBuf,
        /// Directory of the new model
        #[arg(long, value_name = "DIR")]
        model: PathBuf,
        /// Documents per commit; an interrupted migration repeats at most this many
        #[arg(long, default_value_t = 20_000, value_name = "N")]
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

#[derive(Subcommand)]
pub enum EncoderCommand {
    /// Download an encoder: the default, a name on the hub, or a local directory
    Pull {
        /// Name or directory
        #[arg(default_value = pull::DEFAULT)]
        name: String,
    },
    /// List the downloaded encoders
    List,
    /// Show the dimensions and checksum of an encoder
    Info {
        /// Name or directory
        #[arg(default_value = pull::DEFAULT)]
        name: String,
    },
}

#[derive(Subcommand)]
pub enum CacheCommand {
    /// List the cache entries and their sizes
    List {
        /// Cache directory. Default: below the user's cache directory
        #[arg(long, value_name = "DIR")]
        cache: Option<PathBuf>,
    },
    /// Remove cache entries; the next run computes what it needs again
    Clear {
        /// Cache directory. Default: below the user's cache directory
        #[arg(long, value_name = "DIR")]
        cache: Option<PathBuf>,
        /// Remove only entries that were not written to for this many days. Default: 0, all entries
        #[arg(long, value_name = "DAYS")]
        older_than: Option<f64>,
    },
}
