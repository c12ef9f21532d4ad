//! The clustering cell: MICPQ with as many codewords as there are classes, its codebooks against K-means on the same slices.

use engine::model::CodeShape;
use engine::{Error, Progress, Result};
use train::TrainConfig;
use train::parameters::{Moments, Parameters, Sizes};
use train::random::{Purpose, Stream};
use train::step::{Noise, Workspace};
use train::views::{Draw, Views};

use crate::cell::Figures;
use crate::plan::Clustering;
use crate::splits::{EncodedSplits, Splits};
use methods::clustering::{by_codebook, by_kmeans};
use methods::inputs::{Front, Inputs, projected};

/// Trains, then clusters documents and queries.
pub fn run(
    plan: &Clustering,
    config: &TrainConfig,
    views: &dyn Views,
    encoded: &EncodedSplits,
    splits: &Splits,
    progress: &dyn Progress,
) -> Result<Figures> {
    let begun = std::time::Instant::now();
    let code = CodeShape::unpacked(plan.codebooks, splits.classes, config.dim)?;
    let sizes = Sizes { inputs: views.width(), hidden: config.hidden, code };
    let mut objective = config.objective.clone();
    objective.tau = plan.tau;
    let mut parameters = Parameters::init(sizes, config.seed);
    let (mut gradient, mut moments) = (Parameters::zeros(sizes), Moments::zeros(sizes.len()));
    let mut workspace = Workspace::default();
    let (mut lowest, mut best, mut epochs) = (f64::INFINITY, 0, 0);
    for epoch in 1..=plan.epochs as u64 {
        epochs = epoch as usize;
        let (mut total, mut steps) = (0.0, 0usize);
        let order = Stream::new(config.seed, Purpose::Shuffle, &[epoch]).permutation(views.documents());
        for batch in order.chunks(config.batch).filter(|b| b.len() > 1) {
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
            let half = batch.len() * views.width();
            let mut rows = vec![0.0; 2 * half];
            if epoch == 1 && config.clean_first_epoch {
                let (first, second) = rows.split_at_mut(half);
                views.clean(batch, first);
                second.copy_from_slice(first);
            } else {
                views.pair(batch, Draw { seed: config.seed, epoch }, &mut rows);
            }
            let noise = Noise::Drawn { seed: config.seed, step: moments.updates };
            let losses = workspace.step(&parameters, &objective, &rows, noise, &mut gradient);
            if !losses.loss.is_finite() {
                return Err(Error::input("clustering", "the loss is not a finite number: the run has diverged"));
            }
            moments.update(&mut parameters, &gradient, config.learning_rate);
            (total, steps) = (total + losses.loss, steps + 1);
        }
        let loss = total / steps.max(1) as f64;
        progress.note(&format!("clustering, epoch {epoch}: loss {loss:.4}"));
        if loss < lowest {
            (lowest, best) = (loss, epochs);
        }
        if plan.patience.is_some_and(|patience| epochs - best > patience) {
            break;
        }
    }
    let (projection, codebooks) = parameters.model_parts()?;
    let mut clustering = Vec::new();
    for (inputs, labels) in [(&encoded.documents, &splits.documents.labels), (&encoded.queries, &splits.queries.labels)]
    {
        let Inputs::Embeddings(_) = inputs else { continue };
        let vectors = projected(&Front::Embeddings, &projection, inputs)?;
        clustering.push((
            by_codebook(&codebooks.nearest(&vectors), plan.codebooks, labels)?,
            by_kmeans(&vectors, plan.codebooks, splits.classes, config.seed, labels)?,
        ));
    }
    Ok(Figures {
        clustering,
        training_seconds: begun.elapsed().as_secs_f64(),
        epochs: (epochs, best),
        sizes: (encoded.documents.len(), encoded.queries.len()),
        ..Figures::default()
    })
}
