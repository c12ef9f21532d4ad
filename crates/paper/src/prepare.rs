//! The inputs of a corpus, prepared once and shared by its cells.

use engine::encoder::{Embedder, Weighting};
use engine::{Progress, Result};
use methods::Input;
use methods::tfidf::LexiconConfig;
use train::views::{ViewChoice, Views};

use crate::plan::{Plan, Source};
use crate::setup::Paper;
use crate::splits::{EncodedSplits, Splits, encoder, views};
use crate::work::{Train, What, Work};

/// A vocabulary and the weights of its terms.
pub type TermConfig = (LexiconConfig, Weighting);

/// Which views: of what, how made, and the seed of their masks.
type ViewKey = (Source, ViewChoice, u64);

/// Everything the cells of one corpus share.
pub struct Ready {
    pub splits: Splits,
    // Sources that are vectors have no encoder.
    encoders: Vec<(Source, Embedder)>,
    embeddings: Vec<(Source, EncodedSplits)>,
    views: Vec<(ViewKey, Box<dyn Views>)>,
    terms: Vec<(TermConfig, EncodedSplits)>,
    // Token states of a sample of the documents, by its largest size.
    tokens: Vec<((Source, usize), (EncodedSplits, Splits))>,
}

impl Ready {
    pub fn encoder(&self, source: &Source) -> Option<&Embedder> {
        self.encoders.iter().find(|(own, _)| own == source).map(|(_, embedder)| embedder)
    }

    pub fn embeddings(&self, source: &Source) -> &EncodedSplits {
        find(&self.embeddings, source)
    }

    pub fn views(&self, source: &Source, choice: ViewChoice, masks: u64) -> &dyn Views {
        find(&self.views, &(source.clone(), choice, masks)).as_ref()
    }

    pub fn terms(&self, config: &TermConfig) -> &EncodedSplits {
        find(&self.terms, config)
    }

    pub fn tokens(&self, source: &Source, sample: usize) -> (&EncodedSplits, &Splits) {
        let (encoded, splits) = find(&self.tokens, &(source.clone(), sample));
        (encoded, splits)
    }
}

fn find<'r, K: PartialEq, V>(prepared: &'r [(K, V)], key: &K) -> &'r V {
    prepared.iter().find(|(own, _)| own == key).map(|(_, value)| value).expect("it was prepared")
}

/// The inputs of exact search over terms.
pub fn float_terms() -> TermConfig {
    (LexiconConfig::default(), Weighting::Tfidf)
}

/// The needs of the open cells of a corpus; each thing once.
#[derive(Default)]
struct Needs {
    sources: Vec<Source>,
    views: Vec<ViewKey>,
    terms: Vec<TermConfig>,
    /// Source and largest sample, with the number of passes under dropout.
    tokens: Vec<((Source, usize), usize)>,
}

fn add<T: PartialEq>(list: &mut Vec<T>, one: T) {
    if !list.contains(&one) {
        list.push(one);
    }
}

impl Needs {
    fn of<'w>(plan: &Plan, open: impl Iterator<Item = &'w Work<'w>>) -> Self {
        let mut needs = Needs::default();
        for work in open {
            match &work.what {
                What::Float(row) if row.input == Input::Tfidf => add(&mut needs.terms, float_terms()),
                What::Float(row) => add(&mut needs.sources, row.source(plan)),
                What::Codes(..) => {}
                What::Clustering(config) => {
                    let source = plan.source(plan.pooling);
                    add(&mut needs.views, (source.clone(), config.views, plan.masks(config.seed)));
                    add(&mut needs.sources, source);
                }
                What::Train(train) => needs.train(plan, train),
            }
        }
        // The first passes of many are the passes of few.
        needs.tokens.sort_by_key(|(_, passes)| std::cmp::Reverse(*passes));
        needs
    }

    fn train(&mut self, plan: &Plan, train: &Train) {
        if let Ok(config) = train.training.config() {
            if config.input == Input::Tfidf {
                add(&mut self.terms, (config.lexicon, config.weighting));
                return;
            }
            if config.method.reads().token_states {
                add(&mut self.tokens, ((train.source.clone(), config.sample), config.passes));
            }
        }
        add(&mut self.sources, train.source.clone());
        // A cell of another rate of dropout makes views of its own; so does one on vectors, which have no dropout.
        let shared = train.dropout == plan.dropout && train.source.vectors.is_none();
        if let Some(choice) = train.training.views().filter(|_| shared) {
            add(&mut self.views, (train.source.clone(), choice, plan.masks(train.training.seed())));
        }
    }
}

impl Paper {
    /// Reads a corpus and encodes it as its open cells need; `None` where its files are missing.
    pub(crate) fn prepare<'w>(
        &self,
        number: usize,
        open: impl Iterator<Item = &'w Work<'w>>,
        progress: &dyn Progress,
    ) -> Result<Option<Ready>> {
        let (plan, corpus) = (&self.plan, &self.plan.corpus[number]);
        let Some(splits) = Splits::read(plan, corpus, &self.data, progress)? else { return Ok(None) };
        let needs = Needs::of(plan, open);
        let mut ready = Ready {
            splits,
            encoders: Vec::new(),
            embeddings: Vec::new(),
            views: Vec::new(),
            terms: Vec::new(),
            tokens: Vec::new(),
        };
        for source in needs.sources {
            let encoded = match &source.vectors {
                Some(folder) => EncodedSplits::vectors(&self.data, folder, corpus, &ready.splits)?,
                None => {
                    let embedder = encoder(plan, corpus, &source, self.device, progress)?;
                    let encoded = EncodedSplits::embeddings(&embedder, &ready.splits, &self.cache, progress)?;
                    ready.encoders.push((source.clone(), embedder));
                    encoded
                }
            };
            // Once and with all threads, instead of in every cell at the same time.
            encoded.nearest(progress)?;
            ready.embeddings.push((source, encoded));
        }
        for key in needs.views {
            let embedder = ready.encoder(&key.0).expect("its source was prepared");
            let made = views(embedder, &ready.splits, key.1, (plan.dropout, key.2), &self.cache, progress)?;
            ready.views.push((key, made));
        }
        for (key, passes) in needs.tokens {
            if ready.tokens.iter().all(|(own, _)| *own != key) {
                let splits = ready.splits.sampled(key.1);
                let embedder = ready.encoder(&key.0).expect("its source was prepared");
                let own = ready.embeddings(&key.0);
                let encoded = EncodedSplits::token_states(embedder, &splits, own, passes, progress)?;
                ready.tokens.push((key, (encoded, splits)));
            }
        }
        for config in needs.terms {
            let encoded = EncodedSplits::terms(plan, &ready.splits, config.0, config.1)?;
            ready.terms.push((config, encoded));
        }
        Ok(Some(ready))
    }
}
