//! Keyword arguments as JSON, converted into the engine's config types.

use std::path::PathBuf;

use engine::chunk::ChunkConfig;
use engine::corpus::CorpusConfig;
use engine::duplicates::{DuplicatePolicy, DuplicatesConfig};
use engine::encoder::{Embedder, EmbedderConfig, Pooling, QueryEncoder};
use engine::index::{IndexConfig, RerankVectors, Store};
use engine::language::LanguageChoice;
use engine::query::SearchConfig;
use engine::saved::{MatchRequest, SavedQuery, Start, Threshold};
use engine::topics::TopicsConfig;
use engine::{Error, Progress, Result};
use methods::{Input, MethodHandle};
use micpq::pipeline::{BuildConfig, FillConfig, cache_dir};
use serde_json::{Map, Value};
use train::query_encoder::DistillConfig;

/// Keyword arguments. Each is taken out by name; any that is left is unknown.
pub struct Options {
    given: Map<String, Value>,
}

impl Options {
    pub fn parse(text: &str) -> Result<Options> {
        match serde_json::from_str(text) {
            Ok(Value::Object(given)) => Ok(Options { given }),
            _ => Err(Error::config("options are not a JSON object of plain values")),
        }
    }

    fn take<T>(&mut self, name: &str, what: &str, read: impl FnOnce(&Value) -> Option<T>) -> Result<Option<T>> {
        match self.given.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match read(&value) {
                Some(value) => Ok(Some(value)),
                None => Err(Error::config(format!("{name} is {value}; it must be {what}"))),
            },
        }
    }

    pub fn text(&mut self, name: &str) -> Result<Option<String>> {
        self.take(name, "a string", |v| v.as_str().map(str::to_owned))
    }

    pub fn flag(&mut self, name: &str) -> Result<Option<bool>> {
        self.take(name, "True or False", Value::as_bool)
    }

    pub fn count(&mut self, name: &str) -> Result<Option<usize>> {
        self.take(name, "a whole number, 0 or more", |v| v.as_u64().and_then(|n| usize::try_from(n).ok()))
    }

    pub fn number(&mut self, name: &str) -> Result<Option<f64>> {
        self.take(name, "a number", Value::as_f64)
    }

    /// A value of a type that parses from a string.
    pub fn parsed<T: std::str::FromStr<Err = Error>>(&mut self, name: &str) -> Result<Option<T>> {
        self.text(name)?.map(|text| text.parse()).transpose()
    }

    /// A string, or a list of strings.
    pub fn texts(&mut self, name: &str) -> Result<Vec<String>> {
        let read = |v: &Value| match v {
            Value::String(one) => Some(vec![one.clone()]),
            Value::Array(all) => all.iter().map(|v| v.as_str().map(str::to_owned)).collect(),
            _ => None,
        };
        Ok(self.take(name, "a string or a list of strings", read)?.unwrap_or_default())
    }

    /// Refuses options that were not taken.
    pub fn end(self, known: &str) -> Result<()> {
        match self.given.keys().next() {
            None => Ok(()),
            Some(name) => Err(Error::config(format!("unknown option '{name}'; known: {known}"))),
        }
    }
}

/// The options of reading a corpus.
pub fn corpus(text: &str) -> Result<CorpusConfig> {
    let mut o = Options::parse(text)?;
    let defaults = CorpusConfig::default();
    let delimiter = o.take("delimiter", "one character", |v| {
        let mut all = v.as_str()?.chars();
        all.next().filter(|_| all.next().is_none())
    })?;
    let config = CorpusConfig {
        format: o.parsed("format")?,
        on_error: o.parsed("on_error")?.unwrap_or_default(),
        id_field: o.text("id_field")?,
        text_fields: o.texts("text_field")?,
        label_field: o.text("label_field")?,
        label_separator: o.text("label_separator")?,
        ignore_fields: o.texts("ignore_fields")?,
        header: o.flag("header")?,
        columns: o.texts("columns")?,
        delimiter,
        quoting: o.flag("quoting")?,
        infer_types: o.flag("infer_types")?.unwrap_or(defaults.infer_types),
        folder_labels: o.flag("folder_labels")?.unwrap_or(defaults.folder_labels),
        extract: o.texts("extract")?.iter().map(|text| text.parse()).collect::<Result<_>>()?,
        max_extract_seconds: o.count("max_extract_seconds")?.map_or(defaults.max_extract_seconds, |v| v as u64),
        file_hashes: defaults.file_hashes,
        max_row_bytes: o.count("max_row_bytes")?.unwrap_or(defaults.max_row_bytes),
        max_unpacked_bytes: o.count("max_unpacked_bytes")?.map_or(defaults.max_unpacked_bytes, |v| v as u64),
        allow_empty_text: o.flag("allow_empty_text")?.unwrap_or(defaults.allow_empty_text),
        unique_ids: o.flag("unique_ids")?.unwrap_or(defaults.unique_ids),
    };
    o.end(
        "format, on_error, id_field, text_field, label_field, label_separator, ignore_fields, header, columns, delimiter, \
         quoting, infer_types, folder_labels, extract, max_extract_seconds, max_row_bytes, max_unpacked_bytes, \
         allow_empty_text, unique_ids",
    )?;
    config.validate()?;
    Ok(config)
}

/// The options of `build` and `train`.
pub struct Training {
    pub training: methods::Training,
    pub embedding: EmbedderConfig,
    pub dropout: f64,
    pub noise: f64,
    pub sample: usize,
    pub cache: Option<PathBuf>,
    pub store: Store,
    pub rerank_vectors: RerankVectors,
    pub language: LanguageChoice,
    pub chunk: Option<ChunkConfig>,
    pub replace: bool,
    pub target_recall: Option<f64>,
    pub query_encoder: QueryEncoder,
    pub duplicates: DuplicatePolicy,
}

impl Training {
    /// Takes the options that no method has; the method refuses any other that it does not know.
    pub fn parse(text: &str) -> Result<Training> {
        let mut o = Options::parse(text)?;
        let bits = o.count("bits")?.unwrap_or(BuildConfig::BITS);
        let input = o.parsed("input")?.unwrap_or(Input::Encoder);
        let preset = o.text("preset")?;
        let method = BuildConfig::method(o.parsed("method")?, preset.is_some())?;
        let defaults = match &preset {
            Some(name) => name.parse::<train::Preset>()?.embedding(),
            None => EmbedderConfig::default(),
        };
        let embedding = EmbedderConfig {
            encoder: o.text("encoder")?.unwrap_or(defaults.encoder),
            encoder_model: o.text("encoder_model")?,
            pooling: o.parsed("pooling")?.unwrap_or(defaults.pooling),
            max_tokens: o.count("max_tokens")?.or(defaults.max_tokens),
            clean: o.parsed("clean")?.unwrap_or(defaults.clean),
            unit_length: o.flag("unit_length")?.unwrap_or(defaults.unit_length),
            dimensions: o.count("dimensions")?,
            query_prompt: o.text("query_prompt")?,
            document_prompt: o.text("document_prompt")?,
            precision: o.parsed("precision")?.unwrap_or(defaults.precision),
            device: o.parsed("device")?.unwrap_or(defaults.device),
        };
        let pooling = embedding.pooling()?;
        Ok(Training {
            embedding,
            dropout: o.number("dropout")?.unwrap_or(BuildConfig::DROPOUT),
            noise: o.number("noise")?.unwrap_or(train::vectors::VectorViews::NOISE),
            sample: o.count("sample")?.unwrap_or(BuildConfig::SAMPLE),
            cache: o.text("cache")?.map(PathBuf::from),
            store: o.parsed("store")?.unwrap_or_default(),
            rerank_vectors: o.parsed("rerank_vectors")?.unwrap_or(BuildConfig::RERANK_VECTORS),
            language: o.parsed("language")?.unwrap_or_default(),
            chunk: chunk(&mut o)?,
            replace: o.flag("replace")?.unwrap_or(false),
            target_recall: o.number("target_recall")?,
            query_encoder: o.parsed("query_encoder")?.unwrap_or_default(),
            duplicates: duplicate_policy(&mut o)?,
            // The rest are options of the method.
            training: trainer(o.given, method, input, bits, preset, pooling)?,
        })
    }

    /// Loads the encoder. A registered encoder that is missing is fetched first.
    pub fn embedder(&self, progress: &dyn Progress) -> Result<Embedder> {
        Embedder::load(&self.embedding, progress)
    }

    pub fn build(self) -> BuildConfig {
        BuildConfig {
            embedding: self.embedding,
            dropout: self.dropout,
            sample: self.sample,
            cache: self.cache,
            index: IndexConfig {
                store: self.store,
                rerank_vectors: self.rerank_vectors,
                replace: self.replace,
                ..IndexConfig::default()
            },
            language: self.language,
            chunk: self.chunk,
            target_recall: self.target_recall,
            query_encoder: self.query_encoder,
            fill: FillConfig { duplicates: self.duplicates, ..FillConfig::default() },
            ..BuildConfig::new(self.training)
        }
    }

    /// The directory where embeddings, views and checkpoints stay between runs.
    pub fn cache(&self) -> Result<PathBuf> {
        cache_dir(self.cache.as_deref())
    }
}

/// `True`, a number of tokens, or "TOKENS:OVERLAP".
fn chunk(o: &mut Options) -> Result<Option<ChunkConfig>> {
    let text = o.take("chunk", "True, a number of tokens, or a string like \"256:32\"", |v| match v {
        Value::Bool(true) => Some(Some("auto".to_owned())),
        Value::Bool(false) => Some(None),
        Value::Number(n) => Some(Some(n.to_string())),
        Value::String(s) => Some(Some(s.clone())),
        _ => None,
    })?;
    text.flatten().map(|text| text.parse()).transpose()
}

/// The method, with its options by name.
fn trainer(
    given: Map<String, Value>,
    method: MethodHandle,
    input: Input,
    bits: usize,
    preset: Option<String>,
    pooling: Pooling,
) -> Result<methods::Training> {
    let training = methods::Training::new(method, bits).reading(input)?;
    let training = match preset {
        Some(name) => training.with_option("preset", name.into())?,
        None => training.suited_to(pooling)?,
    };
    let training =
        given.into_iter().try_fold(training, |training, (name, value)| training.with_option(&name, value))?;
    training.validate()?;
    Ok(training)
}

/// What becomes of new documents that repeat another.
fn duplicate_policy(o: &mut Options) -> Result<DuplicatePolicy> {
    let like = DuplicatesConfig {
        by: o.parsed("duplicate_by")?,
        threshold: o.number("duplicate_threshold")?.map(|v| v as f32),
        ..DuplicatesConfig::default()
    };
    let policy = DuplicatePolicy { on_duplicate: o.parsed("on_duplicate")?.unwrap_or_default(), like };
    policy.validate()?;
    Ok(policy)
}

/// The options of adding documents.
pub fn adding(text: &str) -> Result<FillConfig> {
    let mut o = Options::parse(text)?;
    let duplicates = duplicate_policy(&mut o)?;
    o.end("on_duplicate, duplicate_by, duplicate_threshold")?;
    Ok(FillConfig { duplicates, ..FillConfig::default() })
}

/// The options of finding duplicates.
pub struct Dedup {
    pub config: DuplicatesConfig,
    pub delete: bool,
    pub mark: Option<String>,
}

impl Dedup {
    pub fn parse(text: &str) -> Result<Dedup> {
        let mut o = Options::parse(text)?;
        let defaults = DuplicatesConfig::default();
        let config = DuplicatesConfig {
            by: o.parsed("by")?,
            threshold: o.number("threshold")?.map(|v| v as f32),
            neighbours: o.count("neighbours")?.unwrap_or(defaults.neighbours),
        };
        let (delete, mark) = (o.flag("delete")?.unwrap_or(false), o.text("mark")?);
        o.end("by, threshold, neighbours, delete, mark")?;
        config.validate()?;
        if delete && mark.is_some() {
            return Err(Error::config("give either delete or mark: a deleted document cannot be marked"));
        }
        Ok(Dedup { config, delete, mark })
    }
}

/// The options of finding topics, and the attribute to write them to.
pub fn topics(text: &str) -> Result<(TopicsConfig, Option<String>, bool)> {
    let mut o = Options::parse(text)?;
    let defaults = TopicsConfig::default();
    let config = TopicsConfig {
        topics: o.count("topics")?,
        seed: o.count("seed")?.map_or(defaults.seed, |v| v as u64),
        terms: o.count("terms")?.unwrap_or(defaults.terms),
        typical: o.count("typical")?.unwrap_or(defaults.typical),
        over: o.text("over")?,
    };
    let mark = o.text("mark")?;
    let follow = o.flag("follow")?.unwrap_or(false);
    o.end("topics, seed, terms, typical, over, mark, follow")?;
    config.validate()?;
    if follow && mark.is_none() {
        return Err(Error::config("follow needs an attribute; give mark"));
    }
    Ok((config, mark, follow))
}

/// A query to save.
pub fn saved_query(name: String, text: &str, vector: Option<Vec<f32>>) -> Result<SavedQuery> {
    let mut o = Options::parse(text)?;
    let single = |value: f64| value as f32;
    let threshold = Threshold::of(o.number("cosine")?.map(single), o.number("distance")?.map(single))?;
    let query = SavedQuery { name, text: o.text("text")?, filter: o.text("filter")?, threshold, vector, since: 0 };
    o.end("text, filter, cosine, distance")?;
    query.validate()?;
    Ok(query)
}

/// Which matches of saved queries to find.
pub fn matches(text: &str) -> Result<MatchRequest> {
    let mut o = Options::parse(text)?;
    let start = match (o.parsed("after")?, o.flag("all")?.unwrap_or(false)) {
        (Some(_), true) => return Err(Error::config("give either after or all")),
        (Some(place), false) => Start::After(place),
        (None, true) => Start::All,
        (None, false) => Start::Saved,
    };
    let limit = o.count("limit")?.unwrap_or(MatchRequest::default().limit);
    let request = MatchRequest { start, limit, name: o.text("name")?, ..MatchRequest::default() };
    o.end("after, all, limit, name")?;
    Ok(request)
}

/// The options of distilling a query encoder.
pub fn distill(text: &str) -> Result<DistillConfig> {
    let mut o = Options::parse(text)?;
    let defaults = DistillConfig::default();
    let config = DistillConfig {
        documents: o.count("documents")?.unwrap_or(defaults.documents),
        width: o.count("width")?.unwrap_or(defaults.width),
        code_width: o.count("code_width")?.unwrap_or(defaults.code_width),
        epochs: o.count("epochs")?.unwrap_or(defaults.epochs),
        learning_rate: o.number("learning_rate")?.unwrap_or(defaults.learning_rate),
        seed: o.count("seed")?.map_or(defaults.seed, |v| v as u64),
    };
    o.end("documents, width, code_width, epochs, learning_rate, seed")?;
    config.validate()?;
    Ok(config)
}

/// The options of a search, and which encoder reads the texts of its queries.
pub fn search(text: &str) -> Result<(SearchConfig, QueryEncoder)> {
    let mut o = Options::parse(text)?;
    let defaults = SearchConfig::default();
    let rerank = o.take("rerank", "a number of candidates, \"auto\" or False", |v| match v {
        Value::Bool(false) => Some("off".to_owned()),
        Value::Bool(true) => Some("auto".to_owned()),
        Value::Number(n) => Some(n.to_string()),
        Value::String(s) => Some(s.clone()),
        _ => None,
    })?;
    let config = SearchConfig {
        k: o.count("k")?.unwrap_or(defaults.k),
        filter: o.text("filter")?,
        within: None,
        radius: o.number("radius")?.map(|v| v as f32),
        after: o.parsed("after")?,
        hybrid: o.number("hybrid")?.map_or(defaults.hybrid, |v| v as f32),
        kind: o.number("kind")?.map_or(defaults.kind, |v| v as f32),
        rerank: rerank.map_or(Ok(defaults.rerank), |text| text.parse())?,
        group: o.parsed("group")?.unwrap_or(defaults.group),
        distance: o.parsed("distance")?,
        documents: o.flag("documents")?.unwrap_or(defaults.documents),
        snippets: o.flag("snippets")?.unwrap_or(defaults.snippets),
        explain: o.flag("explain")?.unwrap_or(defaults.explain),
        ..defaults
    };
    let encoder = o.parsed("query_encoder")?.unwrap_or_default();
    o.end(
        "k, filter, radius, after, hybrid, kind, rerank, group, query_encoder, distance, documents, snippets, explain",
    )?;
    config.validate()?;
    Ok((config, encoder))
}
