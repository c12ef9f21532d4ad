//! Keyword arguments, as JSON, into the engine's config types.

use std::path::PathBuf;

use micpq::corpus::CorpusConfig;
use micpq::encoder::{Device, Features, Pooling, Precision, pull};
use micpq::index::{Keep, Store};
use micpq::model::CodeShape;
use micpq::query::SearchConfig;
use micpq::text::Clean;
use micpq::{Error, Result, Watch};
use serde_json::{Map, Value};
use systems::{Input, Method, SystemConfig};
use train::config::TrainConfig;
use train::views::ViewChoice;

/// Keyword arguments that are taken out one by one; what is left was not known.
pub struct Options {
    given: Map<String, Value>,
}

impl Options {
    /// Of a JSON object.
    pub fn parse(text: &str) -> Result<Options> {
        match serde_json::from_str(text) {
            Ok(Value::Object(given)) => Ok(Options { given }),
            _ => Err(Error::config("options are keyword arguments with plain values")),
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

    /// One of a type that is written as a word.
    pub fn word<T: std::str::FromStr<Err = Error>>(&mut self, name: &str) -> Result<Option<T>> {
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

    /// Refuses what was not taken.
    pub fn end(self, known: &str) -> Result<()> {
        match self.given.keys().next() {
            None => Ok(()),
            Some(name) => Err(Error::config(format!("unknown option '{name}'; known: {known}"))),
        }
    }
}

/// How a corpus is read.
pub fn corpus(text: &str) -> Result<CorpusConfig> {
    let mut o = Options::parse(text)?;
    let defaults = CorpusConfig::default();
    let delimiter = o.take("delimiter", "one character", |v| {
        let mut all = v.as_str()?.chars();
        all.next().filter(|_| all.next().is_none())
    })?;
    let config = CorpusConfig {
        format: o.word("format")?,
        on_error: o.word("on_error")?.unwrap_or_default(),
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
        max_row_bytes: o.count("max_row_bytes")?.unwrap_or(defaults.max_row_bytes),
        allow_empty_text: o.flag("allow_empty_text")?.unwrap_or(defaults.allow_empty_text),
        unique_ids: o.flag("unique_ids")?.unwrap_or(defaults.unique_ids),
    };
    o.end(
        "format, on_error, id_field, text_field, label_field, label_separator, ignore_fields, header, columns, delimiter, \
         quoting, infer_types, folder_labels, max_row_bytes, allow_empty_text, unique_ids",
    )?;
    config.validate()?;
    Ok(config)
}

/// Everything `build` and `train` can be told.
pub struct Training {
    /// The method and its options.
    pub training: systems::Training,
    pub encoder: String,
    pub pooling: Pooling,
    pub max_tokens: Option<usize>,
    pub clean: Clean,
    pub unit_length: bool,
    /// Numbers of the encoder's matrix products.
    pub precision: Precision,
    /// Where the encoder runs.
    pub device: Device,
    pub dropout: f64,
    pub noise: f64,
    pub sample: usize,
    pub cache: Option<PathBuf>,
    pub store: Store,
    pub keep: Keep,
    pub replace: bool,
}

impl Training {
    /// Names that are not the trainer's go out first; every other must be one of its options.
    pub fn parse(text: &str) -> Result<Training> {
        let mut o = Options::parse(text)?;
        let bits = o.count("bits")?.unwrap_or(64);
        let pooling = o.word("pooling")?.unwrap_or(Pooling::Mean);
        let method = o.word("method")?.unwrap_or(Method::Micpq);
        let input = o.word("input")?.unwrap_or(Input::Encoder);
        let preset = o.text("preset")?;
        Ok(Training {
            encoder: o.text("encoder")?.unwrap_or_else(|| pull::DEFAULT.to_owned()),
            pooling,
            max_tokens: o.count("max_tokens")?,
            clean: o.word("clean")?.unwrap_or_default(),
            unit_length: o.flag("unit_length")?.unwrap_or(false),
            precision: o.word("precision")?.unwrap_or_default(),
            device: o.word("device")?.unwrap_or_default(),
            dropout: o.number("dropout")?.unwrap_or(0.3),
            noise: o.number("noise")?.unwrap_or(train::vectors::VectorViews::NOISE),
            sample: o.count("sample")?.unwrap_or(200_000),
            cache: o.text("cache")?.map(PathBuf::from),
            store: o.word("store")?.unwrap_or_default(),
            keep: o.word("keep")?.unwrap_or(Keep::Int8),
            replace: o.flag("replace")?.unwrap_or(false),
            // What is left is the method's.
            training: trainer(o.given, method, input, bits, preset, pooling)?,
        })
    }

    /// Loads the encoder, fetching a registered one that is not here yet.
    pub fn features(&self, watch: &dyn Watch) -> Result<Features> {
        pull::locate_or_pull(&self.encoder, watch)?;
        Features::new(&self.encoder, self.pooling, self.max_tokens, self.clean, self.unit_length, self.precision)?
            .on(self.device, watch)
    }

    /// Where vectors, views and checkpoints are kept between runs.
    pub fn cache(&self) -> Result<PathBuf> {
        let dir = match &self.cache {
            Some(dir) => dir.clone(),
            None => {
                let models = pull::models_dir()?;
                models.parent().map_or_else(|| PathBuf::from("cache"), PathBuf::from).join("train")
            }
        };
        std::fs::create_dir_all(&dir).map_err(Error::io(&dir))?;
        Ok(dir)
    }
}

/// The method with its options by name.
fn trainer(
    given: Map<String, Value>,
    method: Method,
    input: Input,
    bits: usize,
    preset: Option<String>,
    pooling: Pooling,
) -> Result<systems::Training> {
    let views = ViewChoice::suited_to(pooling);
    if !method.is_micpq() {
        let mut config = SystemConfig { views, ..SystemConfig::new(method, bits).reading(input) };
        for (name, value) in given.into_iter().chain(preset.map(|name| ("preset".to_owned(), name.into()))) {
            config = config.with(&name, value)?;
        }
        config.validate()?;
        return Ok(systems::Training::System(Box::new(config)));
    }
    if input != Input::Encoder {
        return Err(Error::config(format!("{method} needs an encoder; input=\"tfidf\" is for others")));
    }
    let mut config = match &preset {
        Some(name) => TrainConfig::preset(name, bits)?,
        None => TrainConfig { views, ..TrainConfig::new(bits) },
    };
    method.vary(&mut config);
    for (name, value) in given {
        config = config.with_option(&name, value)?;
    }
    if config.words == 16 {
        CodeShape::micpq(config.bits)?;
    }
    config.validate()?;
    Ok(systems::Training::Micpq(method, Box::new(config)))
}

/// How a search is done.
pub fn search(text: &str) -> Result<SearchConfig> {
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
        within: o.number("within")?.map(|v| v as f32),
        after: o.word("after")?,
        hybrid: o.number("hybrid")?.map_or(defaults.hybrid, |v| v as f32),
        rerank: rerank.map_or(Ok(defaults.rerank), |text| text.parse())?,
        distance: o.word("distance")?,
        documents: o.flag("documents")?.unwrap_or(defaults.documents),
        snippets: o.flag("snippets")?.unwrap_or(defaults.snippets),
        explain: o.flag("explain")?.unwrap_or(defaults.explain),
    };
    o.end("k, filter, within, after, hybrid, rerank, distance, documents, snippets, explain")?;
    config.validate()?;
    Ok(config)
}
