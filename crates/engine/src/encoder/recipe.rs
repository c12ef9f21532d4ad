//! The description of embeddings in a sentence-transformers directory, read whole: `modules.json`, pooling, dense layers,
//! normalisation, maximum length and prompts. What is not understood is refused by name.

use std::path::{Path, PathBuf};

use serde_json::Value;
use strum::VariantNames;

use super::head::{Activation, Step};
use super::pooling::Pooling;
use crate::{Error, Result};

/// Architectures that older programs named `sentence_bert_config.json` after.
pub(super) const LENGTH_FILES: [&str; 5] = ["bert", "roberta", "distilbert", "camembert", "xlm-roberta"];

/// From token states to embeddings, as the makers of an encoder meant it.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// The folder of the network: weights, `config.json` and tokenizer.
    pub network: PathBuf,
    pub kind: Kind,
    pub pooling: Pooling,
    /// Whether the tokens of a prompt are pooled too.
    pub include_prompt: bool,
    /// After pooling.
    pub steps: Vec<Step>,
    /// Tokens per text at most, from `sentence_bert_config.json` or `tokenizer_config.json`.
    pub max_tokens: Option<usize>,
    /// Whether texts are converted to lower case before the tokenizer.
    pub lowercase: bool,
    /// Whether unknown tokens are left out, as model2vec does.
    pub drop_unknown: bool,
    /// Put in front of queries.
    pub query_prompt: Option<String>,
    /// Put in front of documents.
    pub document_prompt: Option<String>,
    /// Whether its makers say how its vectors are made: it has a `modules.json`, or is one of model2vec.
    pub is_described: bool,
    /// Whether its makers compare vectors by their dot product, although they have different lengths.
    pub is_for_dot_product: bool,
}

/// The first module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Layers of attention, described by `config.json`.
    Transformer,
    /// A table of token vectors. A text is their mean.
    Static,
}

impl Recipe {
    /// Reads the directory of an encoder. One without `modules.json` is a plain transformer with mean pooling, as
    /// sentence-transformers takes it too.
    pub fn read(dir: &Path) -> Result<Self> {
        let mut recipe = Recipe {
            network: dir.to_path_buf(),
            kind: Kind::Transformer,
            pooling: Pooling::Mean,
            include_prompt: true,
            steps: Vec::new(),
            max_tokens: None,
            lowercase: false,
            drop_unknown: false,
            query_prompt: None,
            document_prompt: None,
            is_described: false,
            is_for_dot_product: false,
        };
        if let Some(modules) = json(&dir.join("modules.json"))? {
            recipe.modules(dir, &modules)?;
            recipe.is_described = true;
        }
        recipe.check_network()?;
        recipe.lengths()?;
        // Newer files have no model_type, but say whether vectors are normalised.
        let model2vec = |config: &Value| {
            config["model_type"] == "model2vec" || recipe.kind == Kind::Static && config["normalize"].is_boolean()
        };
        if let Some(config) = json(&dir.join("config.json"))?.filter(model2vec) {
            recipe.model2vec(&config);
        }
        let file = dir.join("config_sentence_transformers.json");
        let config = json(&file)?.unwrap_or_default();
        recipe.comparison(&file, &config)?;
        recipe.prompts(dir, &file, &config)?;
        Ok(recipe)
    }

    /// The folders of the modules of a directory, without its root.
    pub(super) fn folders(dir: &Path) -> Result<Vec<String>> {
        let modules = json(&dir.join("modules.json"))?.unwrap_or_default();
        let paths = modules.as_array().into_iter().flatten().filter_map(|module| module["path"].as_str());
        let below = |path: &&str| !matches!(*path, "" | ".") && !path.contains("..") && !path.starts_with('/');
        Ok(paths.filter(below).map(str::to_owned).collect())
    }

    /// One line for a person.
    pub fn description(&self) -> String {
        let mut text = format!("{} of token states", self.pooling);
        for step in &self.steps {
            match step {
                Step::Dense { outputs, .. } => text += &format!(", dense layer to {outputs} values"),
                Step::Normalize => text += ", unit length",
            }
        }
        if let Some(max_tokens) = self.max_tokens {
            text += &format!(", {max_tokens} tokens at most");
        }
        for (name, prompt) in [("queries", &self.query_prompt), ("documents", &self.document_prompt)] {
            if let Some(prompt) = prompt {
                text += &format!("; {name} begin with \"{prompt}\"");
            }
        }
        text
    }

    /// What a person should check before relying on this encoder.
    pub fn doubts(&self) -> Vec<&'static str> {
        let mut doubts = Vec::new();
        if !self.is_described {
            doubts.push(
                "has no modules.json, which says how its vectors are made: the mean of token states is taken. If its model card \
                 asks for another pooling or for prompts, set pooling, query_prompt and document_prompt",
            );
        }
        if self.is_for_dot_product {
            doubts
                .push("was made for dot products: here the directions of its vectors are compared, not their lengths");
        }
        doubts
    }

    /// A directory of model2vec, with or without `modules.json`. Its makers leave unknown tokens out, cut texts at 512 tokens, and
    /// normalise as its `config.json` says.
    fn model2vec(&mut self, config: &Value) {
        self.kind = Kind::Static;
        self.is_described = true;
        self.drop_unknown = true;
        let max_tokens = config["max_length"].as_u64().map_or(512, |length| length as usize);
        self.max_tokens = Some(max_tokens).filter(|_| config.get("max_length") != Some(&Value::Null));
        self.steps = if config["normalize"] == true { vec![Step::Normalize] } else { Vec::new() };
    }

    fn modules(&mut self, dir: &Path, modules: &Value) -> Result<()> {
        let file = dir.join("modules.json");
        let bad = |problem: String| Error::format(&file, problem);
        let list = modules.as_array().ok_or_else(|| bad("is not a list of modules; fetch the encoder again".into()))?;
        let mut pooled = false;
        for (i, module) in list.iter().enumerate() {
            let text = |key: &str| module[key].as_str().unwrap_or_default();
            // model2vec writes "." for the directory itself.
            let (kind, path) = (text("type"), Some(text("path")).filter(|path| *path != ".").unwrap_or_default());
            if path.contains("..") || Path::new(path).is_absolute() {
                return Err(bad(format!("module {i} is at \"{path}\", outside of the directory")));
            }
            let place = if path.is_empty() { dir.to_path_buf() } else { dir.join(path) };
            // Their packages moved between versions: `sentence_transformers.models.Pooling`,
            // `sentence_transformers.sentence_transformer.modules.pooling.Pooling`.
            let name = kind.strip_prefix("sentence_transformers.").and_then(|rest| rest.rsplit('.').next());
            match (i, name) {
                (0, Some("Transformer")) => self.network = place,
                (0, Some("StaticEmbedding")) => {
                    (self.network, self.kind, pooled) = (place, Kind::Static, true);
                }
                (1.., Some("Pooling")) if !pooled => {
                    pooled = true;
                    (self.pooling, self.include_prompt) = pooling(&place)?;
                }
                (1.., Some("Dense")) if pooled => self.steps.push(dense(dir, path)?),
                (1.., Some("Normalize")) if pooled => {
                    check_names(&place)?;
                    self.steps.push(Step::Normalize);
                }
                // Does nothing outside of training.
                (1.., Some("Dropout")) => {}
                (_, Some("Transformer" | "StaticEmbedding" | "Pooling" | "Dense" | "Normalize")) => {
                    return Err(bad(format!(
                        "module {i} is {kind}, which is not read at this place; expected Transformer and Pooling, or \
                         StaticEmbedding, then Dense and Normalize. Use an encoder of that form"
                    )));
                }
                _ => {
                    return Err(bad(format!(
                        "module {i} is {kind}, which is not read; known: Transformer, StaticEmbedding, Pooling, Dense, \
                         Normalize, Dropout. Use an encoder made of these, or compute the vectors elsewhere"
                    )));
                }
            }
        }
        if !pooled {
            return Err(bad("has no Pooling module; use an encoder that has one, or name a pooling".into()));
        }
        Ok(())
    }

    /// Refuses a network that is more than the encoder of its kind: a head of its own, or code of its own.
    fn check_network(&self) -> Result<()> {
        let file = self.network.join("config.json");
        let Some(config) = json(&file)? else { return Ok(()) };
        if let Some(code) = config["auto_map"]["AutoModel"].as_str() {
            return Err(Error::format(
                &file,
                format!(
                    "auto_map says that the encoder needs code of its own ({code}), which is not run; use an encoder without, or \
                     vectors that another program computed"
                ),
            ));
        }
        // The modules say what is taken from the network, whatever head it once had.
        if self.is_described || self.kind == Kind::Static {
            return Ok(());
        }
        let classes = config["architectures"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let is_known = |class: &&str| NETWORKS.iter().any(|end| class.ends_with(end));
        let Some(class) = classes.into_iter().find(|class| !is_known(class)) else { return Ok(()) };
        let kind = if class.ends_with("ForSequenceClassification") {
            "a cross-encoder or classifier, which scores texts and has no vectors"
        } else {
            "a network whose vectors are not known here"
        };
        Err(Error::format(
            &file,
            format!(
                "architectures is {class}: {kind}. Use an encoder of texts, or add a modules.json that says how its vectors are made"
            ),
        ))
    }

    /// How its makers compare vectors, and of which kind it is.
    fn comparison(&mut self, file: &Path, config: &Value) -> Result<()> {
        let bad = |problem: String| Error::format(file, problem);
        if let Some(kind) = config["model_type"].as_str().filter(|kind| *kind != "SentenceTransformer") {
            return Err(bad(format!(
                "model_type is {kind}, expected SentenceTransformer; use an encoder that gives one vector per text"
            )));
        }
        let is_unit = self.steps.last() == Some(&Step::Normalize);
        match &config["similarity_fn_name"] {
            Value::Null => {}
            Value::String(name) if name == "cosine" => {}
            Value::String(name) if name == "dot" => self.is_for_dot_product = !is_unit,
            // Of vectors of unit length it gives the order of their cosines.
            Value::String(name) if name == "euclidean" && is_unit => {}
            other => {
                return Err(bad(format!(
                    "similarity_fn_name is {other}, which is not read; known: cosine, dot. Use an encoder that compares by one of them"
                )));
            }
        }
        Ok(())
    }

    /// Maximum length and case of `sentence_bert_config.json`, which older programs named after the architecture.
    fn lengths(&mut self) -> Result<()> {
        let mut found = None;
        for name in LENGTH_FILES {
            found = json(&self.network.join(format!("sentence_{name}_config.json")))?;
            if found.is_some() {
                break;
            }
        }
        let found = found.unwrap_or_default();
        self.lowercase = found["do_lower_case"] == true;
        self.max_tokens = match found["max_seq_length"].as_u64() {
            Some(length) => Some(length as usize),
            // Written as 1e30 where there is no limit.
            None => json(&self.network.join("tokenizer_config.json"))?
                .and_then(|config| config["model_max_length"].as_u64())
                .and_then(|length| usize::try_from(length).ok()),
        };
        Ok(())
    }

    /// The names are those that `encode_query` and `encode_document` of sentence-transformers look for.
    fn prompts(&mut self, dir: &Path, file: &Path, config: &Value) -> Result<()> {
        const QUERY: &str = "query";
        const DOCUMENT: [&str; 3] = ["document", "passage", "corpus"];
        let prompt = |name: &str| -> Result<Option<String>> {
            match &config["prompts"][name] {
                Value::Null => Ok(None),
                Value::String(text) => Ok(Some(text.clone())),
                other => Err(Error::format(file, format!("prompt \"{name}\" is {other}, expected a text"))),
            }
        };
        // Of a name, an empty text counts as none: newer versions write empty prompts for "query" and "document".
        let first = |names: &[&str]| -> Result<Option<String>> {
            for name in names {
                if let Some(text) = prompt(name)?.filter(|text| !text.is_empty()) {
                    return Ok(Some(text));
                }
            }
            Ok(None)
        };
        self.query_prompt = first(&[QUERY])?;
        self.document_prompt = first(&DOCUMENT)?;
        // A default prompt is for texts of either kind, unless it is the prompt of one of them.
        if let Some(name) =
            config["default_prompt_name"].as_str().filter(|name| *name != QUERY && !DOCUMENT.contains(name))
        {
            let default = prompt(name)?.ok_or_else(|| {
                Error::format(file, format!("default_prompt_name is \"{name}\", which is not among its prompts"))
            })?;
            let default = Some(default).filter(|text| !text.is_empty());
            self.query_prompt = self.query_prompt.take().or_else(|| default.clone());
            self.document_prompt = self.document_prompt.take().or(default);
        }
        let is_empty = |prompt: &Value| prompt.as_str().is_some_and(str::is_empty);
        let none = config["prompts"].as_object().is_none_or(|prompts| prompts.values().all(is_empty));
        if none && self.is_e5(dir)? {
            (self.query_prompt, self.document_prompt) = (Some("query: ".into()), Some("passage: ".into()));
        }
        Ok(())
    }

    /// The E5 encoders need "query: " and "passage: " in front of every text, which only their model cards say
    /// (<https://huggingface.co/intfloat/e5-base-v2>). They are known by their names: of the directory, of one above it, as the
    /// hub's cache has it (`models--org--name/snapshots/COMMIT`), or in `config.json`, for a directory that was renamed.
    fn is_e5(&self, dir: &Path) -> Result<bool> {
        let whole = std::fs::canonicalize(dir).unwrap_or_else(|_| dir.to_path_buf());
        let cached = |path: &Path| {
            let names = path.iter().filter_map(|part| part.to_str());
            names.filter(|name| name.starts_with("models--")).any(is_e5_name)
        };
        let own = |path: &Path| path.file_name().and_then(|name| name.to_str()).is_some_and(is_e5_name);
        if [dir, whole.as_path()].into_iter().any(|path| own(path) || cached(path)) {
            return Ok(true);
        }
        let config = json(&self.network.join("config.json"))?.unwrap_or_default();
        Ok(config["_name_or_path"].as_str().is_some_and(is_e5_name))
    }
}

/// Ends of the classes of networks that are read. A head for masked tokens is left aside.
const NETWORKS: [&str; 3] = ["Model", "ForMaskedLM", "ForPreTraining"];

/// Whether a folder, or a name of the hub, is that of an E5 encoder.
fn is_e5_name(name: &str) -> bool {
    let name = name.rsplit(['/', '\\']).next().unwrap_or(name);
    let name = name.rsplit("--").next().unwrap_or(name);
    let name = name.split('@').next().unwrap_or(name);
    let name = name.strip_prefix("multilingual-").unwrap_or(name);
    ["e5-small", "e5-base", "e5-large"]
        .iter()
        .any(|known| name.strip_prefix(known).is_some_and(|rest| matches!(rest, "" | "-v2" | "-unsupervised")))
}

/// A JSON file; `None` if there is none. A file that is not JSON is refused.
fn json(path: &Path) -> Result<Option<Value>> {
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|e| Error::format(path, format!("is not valid JSON: {e}; fetch the encoder again"))),
        Err(e) if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(Error::io(path)(e)),
    }
}

fn required(path: &Path) -> Result<Value> {
    json(path)?.ok_or_else(|| Error::format(path, "is missing, and modules.json names it; fetch the encoder again"))
}

/// The pooling of a module, and whether prompts are pooled.
fn pooling(dir: &Path) -> Result<(Pooling, bool)> {
    let file = dir.join("config.json");
    let config = required(&file)?;
    let modes: Vec<String> = match &config["pooling_mode"] {
        Value::String(mode) => vec![mode.clone()],
        Value::Array(modes) => modes.iter().map(|mode| mode.as_str().unwrap_or_default().to_owned()).collect(),
        // One truth value per mode, until version 5.
        _ => {
            let flags = config.as_object().into_iter().flatten();
            let set = flags.filter(|(_, value)| **value == Value::Bool(true));
            set.filter_map(|(key, _)| key.strip_prefix("pooling_mode_").map(str::to_owned)).collect()
        }
    };
    let pooling = match modes.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["cls" | "cls_token"] => Pooling::Cls,
        // sentence-transformers takes the mean where no mode is set.
        ["mean" | "mean_tokens"] | [] => Pooling::Mean,
        ["max" | "max_tokens"] => Pooling::Max,
        ["mean_sqrt_len_tokens"] => Pooling::MeanSqrtLen,
        ["lasttoken"] => Pooling::LastToken,
        _ => {
            let known = Pooling::VARIANTS.join(", ");
            return Err(Error::format(
                &file,
                format!(
                    "its pooling is {}, which is not read; known: one of {known}. Name one of them to pool in that way",
                    modes.join(" with ")
                ),
            ));
        }
    };
    Ok((pooling, config["include_prompt"] != false))
}

/// Refuses a module that does not work on the embedding of a text.
fn check_names(dir: &Path) -> Result<()> {
    let file = dir.join("config.json");
    let config = json(&file)?.unwrap_or_default();
    for name in ["module_input_name", "module_output_name"] {
        if let Some(other) = config[name].as_str().filter(|name| *name != "sentence_embedding") {
            let problem =
                format!("{name} is {other}, expected sentence_embedding: modules that work on tokens are not read");
            return Err(Error::format(&file, problem));
        }
    }
    Ok(())
}

fn dense(dir: &Path, path: &str) -> Result<Step> {
    let file = dir.join(path).join("config.json");
    let config = required(&file)?;
    let bad = |problem: String| Error::format(&file, problem);
    check_names(&dir.join(path))?;
    if config["use_residual"] == true {
        return Err(bad("use_residual is true: dense layers with a residual are not read".into()));
    }
    let size = |name: &str| {
        let size = config[name].as_u64().filter(|n| (1..=1 << 20).contains(n));
        size.map(|n| n as usize).ok_or_else(|| bad(format!("{name} is {}, expected a size", config[name])))
    };
    let name = config["activation_function"].as_str().unwrap_or("torch.nn.modules.activation.Tanh");
    let activation = Activation::named(name).ok_or_else(|| {
        bad(format!("activation_function is {name}, which is not read; known: {}", Activation::KNOWN.join(", ")))
    })?;
    Ok(Step::Dense {
        path: path.to_owned(),
        inputs: size("in_features")?,
        outputs: size("out_features")?,
        activation,
        bias: config["bias"] != false,
        sha256: String::new(),
    })
}
