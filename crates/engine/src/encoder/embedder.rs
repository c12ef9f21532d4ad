//! From raw text to embeddings, for building, searching and training alike.

use std::path::Path;
use std::sync::Arc;

use super::address::{self, ServiceConfig};
use super::head::Head;
use super::recipe::Recipe;
use super::remote::{EncodingWorkers, Remote};
use super::service::Service;
use super::{
    Convolution, Device, Dropout, EmbeddingConfig, Encoder, Pool, Pooling, PoolingChoice, Precision, Step, Terms, pull,
};
use crate::parallel;
use crate::progress::{NoProgress, Progress};
use crate::text::Clean;
use crate::{Error, Matrix, Result};

/// How texts become embeddings.
#[derive(Clone, Debug)]
pub struct EmbedderConfig {
    /// A registered name, a name on the hub, or a directory of Hugging Face, sentence-transformers or model2vec.
    /// The address of a service with OpenAI's embeddings API is an encoder too.
    pub encoder: String,
    /// The name of the model at a service.
    pub encoder_model: Option<String>,
    pub pooling: PoolingChoice,
    /// Tokens per text at most, with `[CLS]` and `[SEP]`; `None` is the encoder's own length.
    pub max_tokens: Option<usize>,
    pub clean: Clean,
    /// Scale embeddings to unit length, also where the encoder does not.
    pub unit_length: bool,
    /// Use so many values of an embedding only, the first ones; for encoders that were trained for it (Matryoshka).
    pub dimensions: Option<usize>,
    /// Put in front of queries; `None` is the encoder's own prompt, an empty text none.
    pub query_prompt: Option<String>,
    /// Put in front of documents; `None` is the encoder's own prompt, an empty text none.
    pub document_prompt: Option<String>,
    pub precision: Precision,
    pub device: Device,
}

impl Default for EmbedderConfig {
    fn default() -> Self {
        EmbedderConfig {
            encoder: pull::DEFAULT.to_owned(),
            encoder_model: None,
            pooling: PoolingChoice::Auto,
            max_tokens: None,
            clean: Clean::default(),
            unit_length: false,
            dimensions: None,
            query_prompt: None,
            document_prompt: None,
            precision: Precision::AUTO,
            device: Device::Auto,
        }
    }
}

impl EmbedderConfig {
    /// The pooling that is used, without loading the encoder. An encoder that is not on this machine yet is taken to have mean
    /// pooling.
    pub fn pooling(&self) -> Result<Pooling> {
        match self.pooling {
            PoolingChoice::Raw(pooling) => Ok(pooling),
            PoolingChoice::Auto => pull::locate(&self.encoder)
                .map_or(Ok(Pooling::Mean), |dir| Recipe::read(&dir).map(|recipe| recipe.pooling)),
        }
    }

    /// The service that the encoder's name is the address of.
    fn service(&self) -> Result<Option<ServiceConfig>> {
        match (address::is_address(&self.encoder), &self.encoder_model) {
            (false, None) => Ok(None),
            (false, Some(model)) => Err(Error::option(
                "encoder_model",
                format!("{model} is for a service, and encoder {} is not the address of one", self.encoder),
            )),
            (true, None) => {
                Err(Error::option("encoder", format!("{} is a service; name its model by encoder_model", self.encoder)))
            }
            (true, Some(_)) if self.pooling != PoolingChoice::Auto => Err(Error::option(
                "pooling",
                "is of no use with a service, which pools its vectors itself; leave it out",
            )),
            (true, Some(model)) => Ok(Some(ServiceConfig { model: model.clone(), dimensions: self.dimensions })),
        }
    }

    /// The record of it in a model, with `encoder` loaded.
    fn recorded(&self, encoder: &Encoder) -> EmbeddingConfig {
        let given = |prompt: &Option<String>, own: &Option<String>| {
            prompt.clone().or_else(|| own.clone()).filter(|prompt| !prompt.is_empty())
        };
        let recipe = encoder.recipe();
        let max_tokens = self.max_tokens.unwrap_or(encoder.default_length());
        let (name, sha256) = (portable_name(&self.encoder), encoder.sha256().to_owned());
        let mut config = match self.pooling {
            PoolingChoice::Raw(pooling) => EmbeddingConfig {
                document_prompt: given(&self.document_prompt, &None),
                query_prompt: given(&self.query_prompt, &None),
                ..EmbeddingConfig::new(name, sha256, encoder.width(), pooling, max_tokens)
            },
            PoolingChoice::Auto => EmbeddingConfig {
                steps: recipe.steps.clone(),
                document_prompt: given(&self.document_prompt, &recipe.document_prompt),
                query_prompt: given(&self.query_prompt, &recipe.query_prompt),
                exclude_prompt: !recipe.include_prompt,
                lowercase: recipe.lowercase,
                ..EmbeddingConfig::new(name, sha256, encoder.width(), recipe.pooling, max_tokens)
            },
        };
        // The last step is recorded as it was before there were others.
        config.unit_length = config.steps.pop_if(|step| *step == Step::Normalize).is_some() || self.unit_length;
        EmbeddingConfig { clean: self.clean, dimensions: self.dimensions, precision: self.precision, ..config }
    }
}

/// An encoder with the settings that turn a text into an embedding.
///
/// ```
/// use engine::NoProgress;
/// use engine::encoder::{Embedder, EmbedderConfig};
///
/// // A tiny random encoder; a name such as "all-MiniLM-L6-v2" is downloaded once.
/// let config = EmbedderConfig { encoder: "tests/encoders/bert".into(), ..EmbedderConfig::default() };
/// let embedder = Embedder::load(&config, &NoProgress)?;
/// let embeddings = embedder.encode(&["oil prices", "a harvest of wheat"], &NoProgress)?;
/// assert_eq!((embeddings.rows(), embeddings.cols()), (2, embedder.config().width));
/// # Ok::<(), engine::Error>(())
/// ```
pub struct Embedder {
    // None in a model that takes terms or the vectors of a service instead.
    encoder: Option<Encoder>,
    service: Option<Service>,
    // Encodes documents in place of `encoder`, which still tokenises them.
    remote: Option<Remote>,
    head: Head,
    // Tokens of the prompt that are left out of the pooling: of documents, of queries.
    skips: [usize; 2],
    config: EmbeddingConfig,
}

/// The role of a text: prompts differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    #[default]
    Document,
    Query,
}

impl Embedder {
    /// Loads the encoder to the configured device. One that is missing is fetched first.
    pub fn load(config: &EmbedderConfig, progress: &dyn Progress) -> Result<Self> {
        if let Some(service) = config.service()? {
            return Embedder::of_service(config, service, progress);
        }
        pull::locate_or_pull(&config.encoder, progress)?;
        let embedder = Embedder::load_local(config)?;
        if config.pooling == PoolingChoice::Auto {
            let recipe = embedder.loaded().recipe();
            progress.note(&format!("encoder {}: {}", config.encoder, recipe.description()));
            recipe.doubts().iter().for_each(|doubt| progress.warn(&format!("encoder {}: {doubt}", config.encoder)));
        }
        embedder.on(config.device, progress)
    }

    fn of_service(config: &EmbedderConfig, service: ServiceConfig, progress: &dyn Progress) -> Result<Self> {
        let opened = Service::open(&config.encoder, &service, progress)?;
        let given = |prompt: &Option<String>| prompt.clone().filter(|prompt| !prompt.is_empty());
        let sha256 = service.sha256();
        let recorded = EmbeddingConfig {
            clean: config.clean,
            unit_length: config.unit_length,
            query_prompt: given(&config.query_prompt),
            document_prompt: given(&config.document_prompt),
            service: Some(service),
            ..EmbeddingConfig::new(
                config.encoder.clone(),
                sha256,
                opened.width(),
                Pooling::Mean,
                address::MAX_TEXT_BYTES,
            )
        };
        Ok(Embedder { service: Some(opened), ..Embedder::without_encoder(recorded) })
    }

    /// Loads an encoder that is on this machine, to the CPU.
    pub fn load_local(config: &EmbedderConfig) -> Result<Self> {
        let encoder = Encoder::load_in(&pull::locate(&config.encoder)?, config.precision)?;
        let recorded = config.recorded(&encoder);
        Embedder::assemble(encoder, recorded)
    }

    fn assemble(encoder: Encoder, mut config: EmbeddingConfig) -> Result<Self> {
        let limit = encoder.config().max_tokens();
        if !(3..=limit).contains(&config.max_tokens) {
            return Err(Error::option(
                "max_tokens",
                format!(
                    "is {}; encoder {} takes 3 to {limit} tokens with [CLS] and [SEP]",
                    config.max_tokens, config.encoder
                ),
            ));
        }
        let head = Head::load(encoder.dir(), &mut config.steps, encoder.width())?;
        config.width = head.width(encoder.width());
        if let Some(dimensions) = config.dimensions {
            if !(1..=config.width).contains(&dimensions) {
                return Err(Error::option(
                    "dimensions",
                    format!(
                        "is {dimensions}; encoder {} gives vectors of {} values, give 1 to {}",
                        config.encoder, config.width, config.width
                    ),
                ));
            }
            config.width = dimensions;
        }
        let mut skips = [0; 2];
        for (skip, prompt) in skips.iter_mut().zip([&config.document_prompt, &config.query_prompt]) {
            let Some(prompt) = prompt else { continue };
            let tokens = encoder.tokenizer().prompt_tokens(prompt)?;
            if tokens + 1 >= config.max_tokens {
                return Err(Error::config(format!(
                    "the prompt \"{prompt}\" has {tokens} tokens, which leaves no space for a text in {}",
                    config.max_tokens
                )));
            }
            if config.exclude_prompt {
                *skip = tokens;
            }
        }
        Ok(Embedder { encoder: Some(encoder), service: None, remote: None, head, skips, config })
    }

    fn without_encoder(config: EmbeddingConfig) -> Self {
        Embedder { encoder: None, service: None, remote: None, head: Head::default(), skips: [0; 2], config }
    }

    /// Takes terms and their learned layer instead of an encoder.
    pub fn of_terms(terms: Terms, clean: Clean) -> Self {
        let config = EmbeddingConfig::new(super::TERMS.into(), terms.sha256(), terms.width(), Pooling::Mean, 0);
        Embedder::without_encoder(EmbeddingConfig { clean, terms: Some(terms), ..config })
    }

    /// Loads the encoder a model was trained with, and refuses another one under the same name. Its products run in the
    /// precision of the model's own vectors.
    pub fn of_model(config: &EmbeddingConfig) -> Result<Self> {
        Embedder::of_model_in(config, config.precision)
    }

    /// The same in another precision than the model's.
    pub fn of_model_in(config: &EmbeddingConfig, precision: Precision) -> Result<Self> {
        if config.terms.is_some() {
            return Ok(Embedder::without_encoder(config.clone()));
        }
        if let Some(service) = &config.service {
            let opened = Service::open(&config.encoder, service, &NoProgress)?;
            if opened.width() != config.width {
                return Err(Error::config(format!(
                    "encoder {} gives vectors of {} values, the model was trained on {}; it serves another model now, train again",
                    config.encoder,
                    opened.width(),
                    config.width
                )));
            }
            return Ok(Embedder { service: Some(opened), ..Embedder::without_encoder(config.clone()) });
        }
        let encoder = Encoder::load_in(&pull::locate(&config.encoder)?, precision)?;
        if encoder.sha256() != config.encoder_sha256 {
            return Err(Error::format(
                encoder.dir(),
                format!(
                    "weights have SHA-256 {}, the model was trained with {}; pull that version of {} or train again",
                    encoder.sha256(),
                    config.encoder_sha256,
                    config.encoder
                ),
            ));
        }
        let encoder_name = portable_name(&config.encoder);
        let embedder =
            Embedder::assemble(encoder, EmbeddingConfig { encoder: encoder_name, precision, ..config.clone() })?;
        Ok(embedder.with_convolution(config.convolution.clone()))
    }

    /// Pools token states by a learned convolution, where one is given.
    pub fn with_convolution(mut self, convolution: Option<Convolution>) -> Self {
        if let Some(convolution) = &convolution {
            self.config.width = convolution.outputs;
        }
        self.config.convolution = convolution;
        self
    }

    /// Moves the encoder to where `device` says.
    pub fn on(self, device: Device, progress: &dyn Progress) -> Result<Self> {
        let encoder = self.encoder.map(|encoder| encoder.on(device, progress)).transpose()?;
        Ok(Embedder { encoder, ..self })
    }

    /// Leaves the encoding of documents to other processes, which have the same encoder. Queries are still encoded here.
    pub fn by_workers(self, workers: Arc<dyn EncodingWorkers>) -> Self {
        Embedder { remote: Some(Remote(workers)), ..self }
    }

    /// Sequences per call that encode fastest; 0 where it does not matter.
    pub fn sequences_at_once(&self) -> usize {
        let here = || self.encoder.as_ref().map_or(0, Encoder::sequences_at_once);
        self.remote.as_ref().map_or_else(here, Remote::sequences_at_once)
    }

    /// The settings, as a model records them.
    pub fn config(&self) -> &EmbeddingConfig {
        &self.config
    }

    /// The encoder, where there is one.
    pub fn encoder(&self) -> Option<&Encoder> {
        self.encoder.as_ref()
    }

    /// The GPU the encoder computes on, where it does.
    pub fn gpu(&self) -> Option<&cuda::Device> {
        self.encoder.as_ref().and_then(Encoder::gpu)
    }

    pub fn width(&self) -> usize {
        self.config.width
    }

    fn loaded(&self) -> &Encoder {
        self.encoder.as_ref().expect("without terms there is an encoder")
    }

    /// Wakes the threads that will encode a query that is about to come.
    pub fn wake(&self) {
        if let Some(encoder) = &self.encoder {
            encoder.wake();
        }
    }

    /// Token ids of the cleaned texts of documents; term numbers in a model with terms.
    pub fn tokens(&self, texts: &[impl AsRef<str> + Sync]) -> Result<Vec<Vec<u32>>> {
        self.tokens_of(Role::Document, texts)
    }

    /// Token ids of cleaned texts, with the prompt of their role in front.
    pub fn tokens_of(&self, role: Role, texts: &[impl AsRef<str> + Sync]) -> Result<Vec<Vec<u32>>> {
        Ok(self.tokens_and_cut_of(role, texts)?.0)
    }

    /// Token ids of the cleaned texts of documents, and which of them were cut at `max_tokens`. What a service cuts is not
    /// known here.
    pub fn tokens_and_cut(&self, texts: &[impl AsRef<str> + Sync]) -> Result<(Vec<Vec<u32>>, Vec<bool>)> {
        self.tokens_and_cut_of(Role::Document, texts)
    }

    /// The same of texts in either role.
    pub fn tokens_and_cut_of(
        &self,
        role: Role,
        texts: &[impl AsRef<str> + Sync],
    ) -> Result<(Vec<Vec<u32>>, Vec<bool>)> {
        if let Some(terms) = &self.config.terms {
            let vocabulary = terms.vocabulary();
            let of = |text: &str| vocabulary.term_numbers(&self.config.clean.apply(text, None));
            return Ok((parallel::map(texts, |text| of(text.as_ref())), vec![false; texts.len()]));
        }
        // The authors cut to max_length words and to max_length + 1 ids.
        let max_words = self.service.is_none().then(|| self.config.max_tokens - 1);
        let cleaned: Vec<String> = parallel::map(texts, |text| self.prepare(role, text.as_ref(), max_words));
        if let Some(service) = &self.service {
            return Ok((cleaned.iter().map(|text| service.tokens(text)).collect(), vec![false; texts.len()]));
        }
        self.loaded().tokenizer().encode_and_cut(&cleaned, self.config.max_tokens)
    }

    /// Tokens of a document's text of any length, with its prompt and the ends; `None` without an encoder in this process.
    pub fn count_tokens(&self, text: &str) -> Result<Option<usize>> {
        let count = |encoder: &Encoder| encoder.tokenizer().count(&self.prepare(Role::Document, text, None));
        self.encoder.as_ref().map(count).transpose()
    }

    /// The text that the tokenizer gets.
    fn prepare(&self, role: Role, text: &str, max_words: Option<usize>) -> String {
        let prompt = match role {
            Role::Document => &self.config.document_prompt,
            Role::Query => &self.config.query_prompt,
        };
        let mut text = self.config.clean.apply(text, max_words).into_owned();
        if let Some(prompt) = prompt {
            text.insert_str(0, prompt);
        }
        if self.config.lowercase { text.to_lowercase() } else { text }
    }

    /// Embeddings of the tokens of documents, or with `dropout` one view of them.
    pub fn encode_tokens(
        &self,
        tokens: &[impl AsRef<[u32]> + Sync],
        dropout: Option<Dropout>,
        progress: &dyn Progress,
    ) -> Result<Matrix> {
        let views = self.encode_views(tokens, &[dropout], progress)?;
        Ok(views.into_iter().next().expect("one view was requested"))
    }

    /// Embeddings of the tokens that [`Embedder::tokens_of`] gives.
    pub fn encode_tokens_of(
        &self,
        role: Role,
        tokens: &[impl AsRef<[u32]> + Sync],
        progress: &dyn Progress,
    ) -> Result<Matrix> {
        let views = self.encode_views_of(role, tokens, &[None], progress)?;
        Ok(views.into_iter().next().expect("one view was requested"))
    }

    /// Several views of the tokens of documents; `None` is without dropout.
    pub fn encode_views(
        &self,
        tokens: &[impl AsRef<[u32]> + Sync],
        views: &[Option<Dropout>],
        progress: &dyn Progress,
    ) -> Result<Vec<Matrix>> {
        self.encode_views_of(Role::Document, tokens, views, progress)
    }

    fn encode_views_of(
        &self,
        role: Role,
        tokens: &[impl AsRef<[u32]> + Sync],
        views: &[Option<Dropout>],
        progress: &dyn Progress,
    ) -> Result<Vec<Matrix>> {
        if let (Some(remote), Role::Document) = (&self.remote, role) {
            return remote.encode_views(tokens, views, self.config.width, progress);
        }
        let mut out = match (&self.config.terms, &self.config.convolution) {
            (None, None) if self.service.is_some() => {
                self.service.as_ref().expect("just seen").encode_views(role, tokens, views, progress)?
            }
            (None, None) => {
                let pool = Pool { pooling: self.config.pooling, skip: self.skips[role as usize] };
                let pooled = self.loaded().encode_views(tokens, pool, views, progress)?;
                pooled.into_iter().map(|rows| first_columns(self.head.apply(rows), self.config.width)).collect()
            }
            _ if views.iter().any(Option::is_some) => {
                return Err(Error::config(
                    "terms and learned convolutions have no dropout: views need an encoder's own embeddings",
                ));
            }
            (Some(terms), _) => {
                let rows = terms.encode(tokens)?;
                progress.advance((tokens.len() * views.len()) as u64);
                vec![rows; views.len()]
            }
            (None, Some(convolution)) => {
                let pass = |_: &_| self.loaded().convolve(convolution, tokens, progress);
                views.iter().map(pass).collect::<Result<_>>()?
            }
        };
        if self.config.unit_length {
            out.iter_mut().for_each(Matrix::normalize_rows);
        }
        Ok(out)
    }

    /// Embeddings of the texts of documents.
    pub fn encode(&self, texts: &[impl AsRef<str> + Sync], progress: &dyn Progress) -> Result<Matrix> {
        self.encode_as(Role::Document, texts, progress)
    }

    /// Embeddings of texts, as queries or documents.
    pub fn encode_as(&self, role: Role, texts: &[impl AsRef<str> + Sync], progress: &dyn Progress) -> Result<Matrix> {
        self.encode_tokens_of(role, &self.tokens_of(role, texts)?, progress)
    }
}

/// The first `width` values of every row.
fn first_columns(rows: Matrix, width: usize) -> Matrix {
    if rows.cols() == width {
        return rows;
    }
    Matrix::from_vec(width, rows.iter().flat_map(|row| &row[..width]).copied().collect())
}

/// A directory is recorded by its absolute path, so that the model can be used from elsewhere.
fn portable_name(name: &str) -> String {
    let path = Path::new(name);
    if path.is_dir() {
        std::fs::canonicalize(path).map_or_else(|_| name.to_owned(), |p| p.to_string_lossy().into_owned())
    } else {
        name.to_owned()
    }
}
