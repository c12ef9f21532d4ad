//! The inputs of a corpus, prepared once and shared by its cells.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use engine::encoder::{Embedder, Pooling, Weighting};
use engine::{Progress, Result};
use methods::tfidf::LexiconConfig;
use methods::{Input, Training};
use train::views::{ViewChoice, Views};

use crate::plan::Plan;
use crate::run::Paper;
use crate::splits::{EncodedSplits, Splits, encoder, views};
use crate::work::{What, Work};

/// A vocabulary and the weights of its terms.
pub type TermConfig = (LexiconConfig, Weighting);

/// Everything the cells of one corpus share.
pub struct Ready {
    pub splits: Splits,
    /// By the name of the pooling, as `embeddings`.
    pub encoders: BTreeMap<&'static str, Embedder>,
    pub embeddings: BTreeMap<&'static str, EncodedSplits>,
    views: BTreeMap<String, Box<dyn Views>>,
    terms: Vec<(TermConfig, EncodedSplits)>,
    // Token states of a sample of the documents, by pooling and its largest size.
    tokens: Vec<((Pooling, usize), (EncodedSplits, Splits))>,
}

impl Ready {
    pub fn views(&self, pooling: Pooling, choice: ViewChoice) -> &dyn Views {
        self.views[&view_key(pooling, choice)].as_ref()
    }

    pub fn terms(&self, config: &TermConfig) -> &EncodedSplits {
        find(&self.terms, config)
    }

    pub fn tokens(&self, pooling: Pooling, sample: usize) -> (&EncodedSplits, &Splits) {
        let (encoded, splits) = find(&self.tokens, &(pooling, sample));
        (encoded, splits)
    }
}

fn find<'r, K: PartialEq, V>(prepared: &'r [(K, V)], key: &K) -> &'r V {
    prepared.iter().find(|(own, _)| own == key).map(|(_, value)| value).expect("it was prepared")
}

fn view_key(pooling: Pooling, choice: ViewChoice) -> String {
    format!("{} {choice}", name(pooling))
}

/// What exact search over terms reads.
pub fn float_terms() -> TermConfig {
    (LexiconConfig::default(), Weighting::Tfidf)
}

pub fn name(pooling: Pooling) -> &'static str {
    pooling.into()
}

/// What the open cells of a corpus need.
#[derive(Default)]
struct Needs {
    poolings: Vec<Pooling>,
    views: Vec<(Pooling, ViewChoice)>,
    terms: Vec<TermConfig>,
    /// Pooling and largest sample, with the number of passes under dropout.
    tokens: Vec<((Pooling, usize), usize)>,
}

impl Needs {
    fn of<'w>(plan: &Plan, open: impl Iterator<Item = &'w Work<'w>>) -> Self {
        let mut needs = Needs::default();
        for work in open {
            let (pooling, views) = match &work.what {
                What::Float(row) => {
                    needs.terms.extend((row.input == Input::Tfidf).then(float_terms));
                    ((row.input == Input::Encoder).then(|| row.pooling(plan)), None)
                }
                What::Train { training: Training::Other(config), .. } if config.input == Input::Tfidf => {
                    needs.terms.push((config.lexicon, config.weighting));
                    (None, None)
                }
                What::Train { training, pooling, dropout } => {
                    if let Training::Other(config) = training
                        && config.method.reads().token_states
                    {
                        needs.tokens.push(((*pooling, config.sample), config.passes));
                    }
                    // A cell of another rate of dropout makes views of its own.
                    (Some(*pooling), training.views().filter(|_| *dropout == plan.dropout))
                }
                What::Clustering(config) => (Some(plan.pooling), Some(config.views)),
            };
            needs.poolings.extend(pooling);
            needs.views.extend(pooling.zip(views));
        }
        // The first passes of many are the passes of few.
        needs.tokens.sort_by_key(|(_, passes)| std::cmp::Reverse(*passes));
        needs
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
            encoders: BTreeMap::new(),
            embeddings: BTreeMap::new(),
            views: BTreeMap::new(),
            terms: Vec::new(),
            tokens: Vec::new(),
        };
        for pooling in needs.poolings {
            if !ready.embeddings.contains_key(name(pooling)) {
                let embedder = encoder(plan, corpus, pooling, self.device, progress)?;
                ready
                    .embeddings
                    .insert(name(pooling), EncodedSplits::embeddings(&embedder, &ready.splits, &self.cache, progress)?);
                ready.encoders.insert(name(pooling), embedder);
            }
        }
        for (pooling, choice) in needs.views {
            if let Entry::Vacant(vacant) = ready.views.entry(view_key(pooling, choice)) {
                let embedder = &ready.encoders[name(pooling)];
                vacant.insert(views(embedder, &ready.splits, choice, plan.dropout, &self.cache, progress)?);
            }
        }
        for encoded in ready.embeddings.values() {
            // Once and with all threads, instead of in every cell at the same time.
            encoded.nearest(progress)?;
        }
        for (key, passes) in needs.tokens {
            if ready.tokens.iter().all(|(own, _)| *own != key) {
                let splits = ready.splits.sampled(key.1);
                let (embedder, own) = (&ready.encoders[name(key.0)], &ready.embeddings[name(key.0)]);
                let encoded = EncodedSplits::token_states(embedder, &splits, own, passes, progress)?;
                ready.tokens.push((key, (encoded, splits)));
            }
        }
        for config in needs.terms {
            if ready.terms.iter().all(|(own, _)| *own != config) {
                let encoded = EncodedSplits::terms(plan, &ready.splits, config.0, config.1)?;
                ready.terms.push((config, encoded));
            }
        }
        Ok(Some(ready))
    }
}
