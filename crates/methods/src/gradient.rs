//! Methods learned by gradient descent: one constant in the method's file names everything but its network.

use engine::{Progress, Result};

use crate::config::MethodConfig;
use crate::inputs::{Inputs, Validation};
use crate::learn::{LearnedMethod, Learner};
use crate::method::{Fitted, Input, Method, Prepared, Reads};
use crate::scale::Scale;
use crate::training::Training;

/// A method whose network is trained epoch by epoch.
pub struct GradientMethod {
    pub name: &'static str,
    pub reads: Reads,
    /// Fields of [`MethodConfig`] that count for this method alone.
    pub options: &'static [&'static str],
    pub defaults: fn(MethodConfig) -> MethodConfig,
    /// Defaults on embeddings, where they differ from those on terms.
    pub encoder_defaults: fn(MethodConfig) -> MethodConfig,
    /// Decisions of ours where the literature is silent.
    pub assumptions: &'static str,
    /// Whether a decoder reconstructs the input.
    pub decoder: bool,
    pub revision: u32,
    /// The network for inputs of so many values.
    pub network: fn(&MethodConfig, usize) -> Result<Box<dyn LearnedMethod>>,
}

impl GradientMethod {
    /// A method that reads embeddings.
    pub const fn new(name: &'static str, network: fn(&MethodConfig, usize) -> Result<Box<dyn LearnedMethod>>) -> Self {
        GradientMethod {
            name,
            reads: Reads { terms: false, token_states: false, views: false, validation: true },
            options: &[],
            defaults: |base| base,
            encoder_defaults: |config| config,
            assumptions: "",
            decoder: false,
            revision: 1,
            network,
        }
    }

    /// A generative method, which reads terms or embeddings and reconstructs them.
    pub const fn generative(
        name: &'static str,
        network: fn(&MethodConfig, usize) -> Result<Box<dyn LearnedMethod>>,
    ) -> Self {
        GradientMethod {
            reads: Reads { terms: true, token_states: false, views: false, validation: true },
            assumptions: "options of the re-implementation the published tables come from",
            decoder: true,
            // 2: Adam over all weights of the first layer, AMMI's prior, BMSH's second encoder.
            revision: 2,
            ..GradientMethod::new(name, network)
        }
    }

    fn learn(
        &self,
        config: &MethodConfig,
        documents: &Inputs,
        validation: Option<&Validation>,
        inputs: &Prepared,
        progress: &dyn Progress,
    ) -> Result<Fitted> {
        let network = (self.network)(config, documents.width())?;
        let run =
            Learner::new(network.as_ref(), config, documents, inputs.views, progress).run(validation, progress)?;
        let mut metrics = serde_json::json!({
            "selection": run.selection, "best": run.best, "best_epoch": run.best_epoch,
            "epochs": run.curve.len(), "codewords": run.usage,
            "training_seconds": run.curve.iter().map(|e| e.seconds).sum::<f64>(), "curve": run.curve,
        });
        if let Some(scores) = run.scores {
            metrics["precision"] = serde_json::to_value(scores.precision).expect("plain data has a JSON form");
            metrics["map"] = scores.map.into();
        }
        Ok(Fitted { built: run.built, metrics, interrupted: run.interrupted })
    }
}

impl Method for GradientMethod {
    fn name(&self) -> &str {
        self.name
    }

    fn reads(&self) -> Reads {
        self.reads
    }

    fn options(&self) -> &[&'static str] {
        self.options
    }

    fn revision(&self) -> u32 {
        self.revision
    }

    fn defaults(&self, base: MethodConfig) -> MethodConfig {
        (self.defaults)(base)
    }

    fn encoder_defaults(&self, config: MethodConfig) -> MethodConfig {
        (self.encoder_defaults)(config)
    }

    fn assumptions(&self, input: Input) -> String {
        let of_input = match input {
            Input::Tfidf => "words by presence, the vocabulary of the published tables is unknown",
            Input::Encoder if self.reads.terms && self.decoder => {
                "vectors scaled to unit variance, decoded by a Gaussian of unit variance"
            }
            Input::Encoder => "",
        };
        [self.assumptions, of_input].into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>().join("; ")
    }

    fn fit(&self, training: &Training, inputs: &Prepared, progress: &dyn Progress) -> Result<Fitted> {
        let config = training.config()?;
        let validation = inputs.validation.as_ref();
        let Inputs::Embeddings(embeddings) = inputs.documents else {
            return self.learn(config, inputs.documents, validation, inputs, progress);
        };
        if !self.reads.terms {
            return self.learn(config, inputs.documents, validation, inputs, progress);
        }
        // A decoder of unit variance expects embeddings of unit variance.
        let scale = Scale::of(embeddings);
        let scaled = |inputs: &Inputs| match inputs {
            Inputs::Embeddings(embeddings) => Inputs::Embeddings(scale.apply(embeddings)),
            _ => unreachable!("documents and queries are inputs of one kind"),
        };
        let queries = validation.map(|v| scaled(v.queries));
        let validation = validation.zip(queries.as_ref()).map(|(v, queries)| Validation { queries, ..*v });
        let mut fitted = self.learn(config, &scaled(inputs.documents), validation.as_ref(), inputs, progress)?;
        fitted.built.projection = scale.folded(&fitted.built.projection)?;
        Ok(fitted)
    }
}
