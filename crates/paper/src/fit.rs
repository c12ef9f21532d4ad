//! One cell: a method trained on prepared inputs and measured.

use engine::{Error, Progress, Result};
use methods::inputs::{Built, Front, Inputs, Validation};
use methods::{Input, Prepared};
use train::vectors::VectorViews;
use train::views::{UserVectorViews, Views};

use crate::cell::Figures;
use crate::plan::Selection;
use crate::prepare::{Ready, float_terms};
use crate::setup::Paper;
use crate::splits::{EncodedSplits, views};
use crate::work::{Train, What, Work};
use crate::{cluster, measure};

impl Paper {
    pub(crate) fn cell(&self, work: &Work, ready: &Ready, progress: &dyn Progress) -> Result<Figures> {
        let plan = &self.plan;
        match &work.what {
            What::Float(row) => {
                let encoded = match row.input {
                    Input::Tfidf => ready.terms(&float_terms()),
                    Input::Encoder => ready.embeddings(&row.source(plan)),
                };
                measure::float(encoded, &ready.splits, progress)
            }
            What::Codes(row, bits) => {
                let folder = row.codes.as_ref().expect("a row of codes names their folder");
                let corpus = &plan.corpus[work.corpus];
                let (built, encoded) = EncodedSplits::codes(&self.data, folder, corpus, *bits, &ready.splits)?;
                // Nothing is known of the vectors behind the codes.
                Ok(Figures { recall: None, ..measure::codes(&built, &encoded, &ready.splits, progress)? })
            }
            What::Train(train) => self.train(train, ready, progress),
            What::Clustering(config) => {
                let clustering = plan.clustering.as_ref().expect("the plan names it");
                let source = plan.source(plan.pooling);
                let views = ready.views(&source, config.views, plan.masks(config.seed));
                cluster::run(clustering, config, views, ready.embeddings(&source), &ready.splits, progress)
            }
        }
    }

    fn train(&self, train: &Train, ready: &Ready, progress: &dyn Progress) -> Result<Figures> {
        let Train { training, source, dropout, selection } = train;
        let embedder = ready.encoder(source);
        let (encoded, splits) = match training.config() {
            Ok(config) if config.input == Input::Tfidf => {
                (ready.terms(&(config.lexicon, config.weighting)), &ready.splits)
            }
            Ok(config) if config.method.reads().token_states => ready.tokens(source, config.sample),
            _ => (ready.embeddings(source), &ready.splits),
        };
        let masks = self.plan.masks(training.seed());
        let own: Option<Box<dyn Views>> = match (training.views(), embedder, &encoded.documents) {
            (Some(choice), Some(embedder), _) if *dropout != self.plan.dropout => {
                Some(views(embedder, splits, choice, (*dropout, masks), &self.cache, progress)?)
            }
            (Some(_), None, Inputs::Embeddings(vectors)) => {
                Some(Box::new(UserVectorViews::noisy(vectors.as_slice(), vectors.cols(), VectorViews::NOISE)?))
            }
            _ => None,
        };
        let shared = || training.views().map(|choice| ready.views(source, choice, masks));
        let validation = Validation {
            queries: &encoded.validation,
            query_labels: &splits.validation.labels,
            document_labels: &splits.documents.labels,
        };
        let checkpoints = self.cache.join("runs");
        let inputs = Prepared {
            documents: &encoded.documents,
            validation: (*selection == Selection::Labels).then_some(validation),
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
                let (embedder, own) = (embedder.expect("it read token states"), ready.embeddings(source));
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
