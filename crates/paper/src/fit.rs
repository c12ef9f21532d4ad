//! One cell: a method trained on prepared inputs and measured.

use engine::encoder::Pooling;
use engine::{Error, Progress, Result};
use methods::inputs::{Built, Front};
use methods::learn::Validation;
use methods::{Input, Prepared, Training};

use crate::cell::Figures;
use crate::prepare::{Ready, float_terms, name};
use crate::run::Paper;
use crate::splits::{EncodedSplits, views};
use crate::work::{What, Work};
use crate::{cluster, measure};

impl Paper {
    pub(crate) fn cell(&self, work: &Work, ready: &Ready, progress: &dyn Progress) -> Result<Figures> {
        let plan = &self.plan;
        match &work.what {
            What::Float(row) => {
                let encoded = match row.input {
                    Input::Tfidf => ready.terms(&float_terms()),
                    Input::Encoder => &ready.embeddings[name(row.pooling(plan))],
                };
                measure::float(encoded, &ready.splits, progress)
            }
            What::Train { training, pooling, dropout } => self.train(training, *pooling, *dropout, ready, progress),
            What::Clustering(config) => {
                let clustering = plan.clustering.as_ref().expect("the plan names it");
                let views = ready.views(plan.pooling, config.views);
                let encoded = &ready.embeddings[name(plan.pooling)];
                cluster::run(clustering, config, views, encoded, &ready.splits, progress)
            }
        }
    }

    fn train(
        &self,
        training: &Training,
        pooling: Pooling,
        dropout: f64,
        ready: &Ready,
        progress: &dyn Progress,
    ) -> Result<Figures> {
        let embedder = ready.encoders.get(name(pooling));
        let (encoded, splits) = match training {
            Training::Other(config) if config.input == Input::Tfidf => {
                (ready.terms(&(config.lexicon, config.weighting)), &ready.splits)
            }
            Training::Other(config) if config.method.reads().token_states => ready.tokens(pooling, config.sample),
            _ => (&ready.embeddings[name(pooling)], &ready.splits),
        };
        let own = match training.views().zip(embedder) {
            Some((choice, embedder)) if dropout != self.plan.dropout => {
                Some(views(embedder, splits, choice, dropout, &self.cache, progress)?)
            }
            _ => None,
        };
        let shared = || training.views().map(|choice| ready.views(pooling, choice));
        let validation = Validation {
            queries: &encoded.validation,
            query_labels: &splits.validation.labels,
            document_labels: &splits.documents.labels,
        };
        let checkpoints = self.cache.join("runs");
        let inputs = Prepared {
            documents: &encoded.documents,
            validation: Some(validation),
            views: own.as_deref().or_else(shared),
            gpu: embedder.and_then(|e| e.gpu()),
            checkpoints: Some(&checkpoints),
        };
        let fitted = training.fit(&inputs, progress)?;
        if fitted.interrupted {
            return Err(Error::Interrupted);
        }
        let figures = match &fitted.built.front {
            // Trained on a sample of the documents, measured on all of them.
            Front::Convolution(convolution) if encoded.documents.len() < ready.splits.documents.texts.len() => {
                let (embedder, own) = (&ready.encoders[name(pooling)], &ready.embeddings[name(pooling)]);
                let encoded = EncodedSplits::convolved(embedder, convolution, &ready.splits, own, progress)?;
                let filter_bytes = 4 * (convolution.weight().len() + convolution.bias().len());
                let built = Built { front: Front::Embeddings, ..fitted.built.clone() };
                let mut figures = measure::codes(&built, &encoded, &ready.splits, progress)?;
                figures.bytes.1 += filter_bytes;
                figures
            }
            _ => measure::codes(&fitted.built, encoded, splits, progress)?,
        };
        let count = |name: &str| fitted.metrics[name].as_u64().unwrap_or(0) as usize;
        let training_seconds = fitted.metrics["training_seconds"].as_f64().unwrap_or(0.0);
        Ok(Figures { training_seconds, epochs: (count("epochs"), count("best_epoch")), ..figures })
    }
}
