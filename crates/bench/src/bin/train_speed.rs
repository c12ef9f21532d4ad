//! Times training on random vectors of AGNews' size: `cargo run --release -p micpq-bench --bin train_speed`.
//!
//! Prints milliseconds per step for several shapes, then seconds per part of one epoch with noise views and labelled
//! validation at 32 bits.

use std::time::Instant;

use engine::{Matrix, NoProgress};
use train::config::TrainConfig;
use train::parameters::{Moments, Parameters};
use train::random::{Purpose, Stream};
use train::step::{Noise, Workspace};
use train::views::{Draw, NoiseModel, NoiseViews, Views};
use train::{Labels, TrainRun, Validation};

fn normal(rows: usize, cols: usize, number: u64) -> Matrix {
    let mut out = Matrix::zeros(rows, cols);
    Stream::new(0, Purpose::Init, &[number]).normal(out.as_mut_slice());
    out
}

fn step(bits: usize, batch: usize, inputs: usize) {
    let config = TrainConfig::new(bits);
    let sizes = config.sizes(inputs).expect("a valid shape");
    let mut parameters = Parameters::init(sizes, 0);
    let (mut moments, mut gradient) = (Moments::zeros(sizes.len()), Parameters::zeros(sizes));
    let mut workspace = Workspace::default();
    let embeddings = normal(2 * batch, inputs, 1);
    let (mut steps, mut updates) = (Vec::new(), Vec::new());
    for number in 0..60 {
        let start = Instant::now();
        let noise = Noise::Drawn { seed: 0, step: number };
        workspace.step(&parameters, &config.objective, embeddings.as_slice(), noise, &mut gradient);
        steps.push(start.elapsed().as_secs_f64());
        let start = Instant::now();
        moments.update(&mut parameters, &gradient, config.learning_rate);
        updates.push(start.elapsed().as_secs_f64());
    }
    // On a shared machine the minimum is the time of the step itself, and the median is the time a user waits.
    let both = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        (1e3 * times[0], 1e3 * times[times.len() / 2])
    };
    let ((step, step_median), (update, update_median)) = (both(&mut steps), both(&mut updates));
    println!(
        "{bits:>4} bits, batch {batch:>3}, {inputs} inputs: step {step:.2} ms (median {step_median:.2}), \
         update {update:.2} ms (median {update_median:.2})"
    );
}

fn main() {
    println!("{} threads", rayon::current_num_threads());
    for (bits, batch, inputs) in
        [(16, 64, 384), (32, 64, 384), (64, 64, 384), (128, 64, 384), (16, 64, 768), (32, 64, 768), (32, 128, 768)]
    {
        step(bits, batch, inputs);
    }
    if std::env::args().any(|a| a == "--steps") {
        return;
    }
    let (documents, inputs) = (57_706, 384);
    let clean = normal(documents, inputs, 2);
    let passes: Vec<Matrix> = (0..4)
        .map(|r| {
            let mut out = normal(2000, inputs, 10 + r);
            out.as_mut_slice().iter_mut().zip(clean.as_slice()).for_each(|(e, x)| *e = x + 0.3 * *e);
            out
        })
        .collect();
    let sample = clean.select(&(0..2000).collect::<Vec<_>>());
    let start = Instant::now();
    let model = NoiseModel::fit(&sample, &passes).expect("random vectors have a covariance");
    println!("noise model of {inputs} values: {:.2} s", start.elapsed().as_secs_f64());
    let views = NoiseViews::new(clean, model).expect("widths agree");
    let batch: Vec<u32> = (0..64).collect();
    let mut out = vec![0.0; 2 * 64 * inputs];
    let start = Instant::now();
    (0..100).for_each(|epoch| views.pair(&batch, Draw { seed: 0, epoch }, &mut out));
    println!("two views of a batch of 64: {:.2} ms", 1e3 * start.elapsed().as_secs_f64() / 100.0);
    let queries = normal(6380, inputs, 3);
    let labels = |n: usize| Labels::single((0..n as u32).map(|i| i % 4).collect());
    let (query_labels, document_labels) = (labels(queries.rows()), labels(documents));
    let validation =
        Validation::Labelled { queries: &queries, query_labels: &query_labels, document_labels: &document_labels };
    let config = TrainConfig { epochs: 2, clean_first_epoch: false, ..TrainConfig::new(32) };
    let outcome = TrainRun::new(&config, &views).validation(validation).train(&NoProgress).expect("a run");
    let seconds = outcome.metrics.seconds;
    println!(
        "an epoch of {documents}: training {:.2} s, validation {:.2} s",
        seconds.training / 2.0,
        seconds.validation / 2.0
    );
}
