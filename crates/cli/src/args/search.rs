use std::path::PathBuf;

use clap::Args as Flags;
use engine::encoder::QueryEncoder;
use engine::model::Distance;
use engine::query::{Cursor, Group, Rerank, SearchConfig};

use super::{ComputingArgs, CorpusArgs};

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
    /// From the particular document, 0, to everything of its kind, 1: for an index whose model knows kinds (method distilled).
    /// Above 0 nothing is re-ranked unless --rerank says so
    #[arg(long, value_name = "W", default_value_t = SearchConfig::default().kind)]
    pub kind: f32,
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
            within: None,
            radius: self.radius,
            after: self.after,
            hybrid: self.hybrid,
            kind: self.kind,
            rerank: self.rerank,
            group: self.group,
            distance: self.distance,
            documents: !self.ids,
            snippets: self.snippets,
            explain: self.explain,
            ..SearchConfig::default()
        }
    }
}
