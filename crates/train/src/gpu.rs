//! The steps of a run on a GPU: the same draws and formulas as [`crate::step`], in f32 and in another order of summation.
//!
//! One step of five products of 64 documents is some 4 to 10 ms of a core and a seventh of a millisecond of a GPU, so where
//! the encoder has a GPU the training takes place there too. A run begun on one does not go on on the other: the bits differ.

use cuda::{Trainer, TrainingAdam, TrainingObjective, TrainingShape};
use micpq::model::CodeShape;
use micpq::{Error, Matrix, Result};

use crate::config::TrainConfig;
use crate::parameters::{Moments, Parameters, Sizes};
use crate::random::{Purpose, Stream};
use crate::real::Adam;
use crate::step::{Information, Losses, Objective};

/// A model in training on a GPU.
pub(crate) struct Gpu {
    trainer: Trainer,
    shape: CodeShape,
    name: String,
    keys: Vec<u64>,
}

impl Gpu {
    /// Room for a model; an error says why this GPU does not do.
    pub fn new(device: &cuda::Device, config: &TrainConfig, sizes: Sizes) -> cuda::Result<Self> {
        let shape = TrainingShape {
            inputs: sizes.inputs,
            hidden: sizes.hidden,
            books: sizes.code.books(),
            words: sizes.code.words(),
            dim: sizes.code.dim(),
            batch: config.batch,
        };
        let trainer = Trainer::new(device, shape, objective(&config.objective))?;
        Ok(Gpu { trainer, shape: sizes.code, name: device.info().name.clone(), keys: Vec::new() })
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn said<T>(&self, answer: cuda::Result<T>) -> Result<T> {
        answer.map_err(|problem| {
            Error::device(format!(
                "{}: {problem}. Finished epochs are kept: the same command goes on from there",
                self.name
            ))
        })
    }

    /// Takes up the state of a run.
    pub fn load(&mut self, parameters: &Parameters<f32>, moments: &Moments<f32>) -> Result<()> {
        let answer = self.trainer.set_state(&parameters.values, &moments.first, &moments.second);
        self.said(answer)
    }

    /// Writes the state after all steps so far.
    pub fn save(&self, parameters: &mut Parameters<f32>, moments: &mut Moments<f32>) -> Result<()> {
        self.said(self.trainer.state(&mut parameters.values, &mut moments.first, &mut moments.second))
    }

    /// Queues the gradient of a batch, with the Gumbel noise of this seed and `update`.
    pub fn step(&mut self, features: &[f32], seed: u64, update: u64, share: f64, number: u64) -> Result<()> {
        self.keys.clear();
        let books = 0..self.shape.books() as u64;
        self.keys.extend(books.map(|m| Stream::new(seed, Purpose::Gumbel, &[update, m]).key()));
        let answer = self.trainer.step(features, &self.keys, share, number);
        self.said(answer)
    }

    /// Scales the last step's gradient down to length `most` where it is longer.
    pub fn clip(&mut self, sizes: Sizes, most: f64) -> Result<()> {
        let mut gradient = self.gradient(sizes)?;
        gradient.clip(most);
        let answer = self.trainer.set_gradient(&gradient.values);
        self.said(answer)
    }

    /// The gradient of the last step.
    pub fn gradient(&self, sizes: Sizes) -> Result<Parameters<f32>> {
        let mut gradient = Parameters::zeros(sizes);
        self.said(self.trainer.gradient(&mut gradient.values))?;
        Ok(gradient)
    }

    /// Queues Adam's update of this number, counted from 1.
    pub fn update(&mut self, rate: f64, number: u64) -> Result<()> {
        let answer = self.trainer.update(Adam { rate, number }.on_gpu());
        self.said(answer)
    }

    /// Losses of the steps so far, and the number of the first whose loss is not a finite number; with `clear` the next
    /// ones begin at 0.
    pub fn losses(&mut self, clear: bool) -> Result<(Losses, Option<u64>)> {
        let answer = self.trainer.losses(clear);
        let sum = self.said(answer)?;
        let losses = Losses { loss: sum.loss, contrastive: sum.contrastive, information: sum.information };
        Ok((losses, sum.failed))
    }

    /// Packed codes of feature vectors by the model as it is now.
    pub fn codes(&mut self, features: &Matrix) -> Result<Vec<u8>> {
        let answer = self.trainer.codes(features.as_slice());
        let words = self.said(answer)?;
        let (books, bytes) = (self.shape.books(), self.shape.code_bytes());
        let mut codes = vec![0; features.rows() * bytes];
        for (code, words) in codes.chunks_exact_mut(bytes).zip(words.chunks_exact(books)) {
            for (m, &word) in words.iter().enumerate() {
                self.shape.set_word(code, m, usize::from(word));
            }
        }
        Ok(codes)
    }
}

impl Adam {
    /// The update's numbers as a GPU takes them.
    pub fn on_gpu(&self) -> TrainingAdam {
        let by = self.numbers();
        TrainingAdam {
            keep_first: by.keep_first,
            keep_second: by.keep_second,
            rate: by.rate,
            scale: by.scale,
            epsilon: by.epsilon,
        }
    }
}

fn objective(o: &Objective) -> TrainingObjective {
    TrainingObjective {
        tau: o.tau as f32,
        floor: o.floor as f32,
        prob_weight: o.prob_weight as f32,
        code_weight: o.code_weight as f32,
        alpha: o.alpha as f32,
        contrast_temperature: o.contrast_temperature as f32,
        gumbel: u32::from(o.gumbel),
        posterior: u32::from(o.information == Information::Posterior),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::{Noise, Workspace};

    type Change = fn(&mut Objective);

    /// A GPU, or a line that says why the test did not run.
    fn gpu() -> Option<cuda::Device> {
        match cuda::Device::open(0) {
            Ok(device) => Some(device),
            Err(problem) => {
                println!("skipped: {problem}");
                None
            }
        }
    }

    fn vectors(rows: usize, width: usize, seed: u64) -> Vec<f32> {
        let mut values = vec![0.0; rows * width];
        Stream::new(seed, Purpose::Views, &[]).normal(&mut values);
        values
    }

    /// Largest difference as a share of the largest value.
    fn apart(found: &[f32], expected: &[f32]) -> f32 {
        let top = expected.iter().fold(1e-20f32, |top, v| top.max(v.abs()));
        found.iter().zip(expected).fold(0.0f32, |worst, (a, b)| worst.max((a - b).abs())) / top
    }

    #[test]
    fn steps_agree_with_the_cpu_and_repeat_their_bits() {
        let Some(device) = gpu() else { return };
        let objectives: [(&str, Change); 4] = [
            ("the authors'", |_| {}),
            ("no noise, no floor", |o| (o.gumbel, o.floor) = (false, 0.0)),
            ("the paper's information", |o| o.information = Information::Posterior),
            ("contrast alone", |o| o.prob_weight = 0.0),
        ];
        for (bits, words, width, batch) in [(16, 16, 384, 64), (128, 16, 768, 64), (32, 2, 100, 21), (32, 256, 64, 40)]
        {
            for (name, change) in objectives {
                let mut config = TrainConfig { words, hidden: 96, batch, ..TrainConfig::new(bits) };
                change(&mut config.objective);
                let sizes = config.sizes(width).unwrap();
                let (mut parameters, mut moments) = (Parameters::init(sizes, 3), Moments::zeros(sizes.len()));
                let run = |count: u64| {
                    let mut gpu = Gpu::new(&device, &config, sizes).unwrap();
                    gpu.load(&Parameters::init(sizes, 3), &Moments::zeros(sizes.len())).unwrap();
                    for update in 0..count {
                        let features = vectors(2 * batch, width, update);
                        gpu.step(&features, 5, update, 1.0, update + 1).unwrap();
                        if update + 1 < count {
                            gpu.update(1e-3, update + 1).unwrap();
                        }
                    }
                    let (losses, failed) = gpu.losses(true).unwrap();
                    assert_eq!(failed, None);
                    (losses, gpu.gradient(sizes).unwrap(), gpu)
                };
                let (mut workspace, mut gradient) = (Workspace::default(), Parameters::zeros(sizes));
                let mut total = Losses::default();
                for update in 0..3 {
                    let features = vectors(2 * batch, width, update);
                    let noise = Noise::Drawn { seed: 5, step: update };
                    let own = workspace.step(&parameters, &config.objective, &features, noise, &mut gradient);
                    total.loss += own.loss;
                    total.contrastive += own.contrastive;
                    total.information += own.information;
                    if update < 2 {
                        moments.update(&mut parameters, &gradient, 1e-3);
                    }
                    if update == 0 {
                        let (_, found, _) = run(1);
                        let worst = apart(&found.values, &gradient.values);
                        assert!(worst < 1e-4, "{bits} bits of {words}, {name}: first gradient {worst:e}");
                    }
                }
                let (losses, found, mut kept) = run(3);
                let close = |a: f64, b: f64| (a - b).abs() < 1e-3 * (1.0 + b.abs());
                assert!(
                    close(losses.loss, total.loss) && close(losses.information, total.information),
                    "{bits} bits of {words}, {name}: {losses:?}, {total:?}"
                );
                assert_eq!(found, run(3).1, "the same bits again");
                // Codes of the model as it is, against the CPU's of the same parameters.
                kept.save(&mut parameters, &mut moments).unwrap();
                let some = Matrix::from_vec(width, vectors(5000, width, 9));
                let (refine, codebooks) = parameters.model_parts().unwrap();
                let (codes, expected) = (kept.codes(&some).unwrap(), codebooks.assign(&refine.apply(&some).unwrap()));
                let other = codes.iter().zip(&expected).filter(|(a, b)| a != b).count();
                assert!(other * 1000 < codes.len(), "{other} of {} bytes of codes differ", codes.len());
            }
        }
    }

    #[test]
    fn a_loss_that_is_no_number_names_its_step() {
        let Some(device) = gpu() else { return };
        let config = TrainConfig { hidden: 32, batch: 8, ..TrainConfig::new(16) };
        let sizes = config.sizes(20).unwrap();
        let mut gpu = Gpu::new(&device, &config, sizes).unwrap();
        gpu.load(&Parameters::init(sizes, 0), &Moments::zeros(sizes.len())).unwrap();
        for number in 1..=3 {
            let mut features = vectors(16, 20, number);
            features[33] = if number > 1 { f32::NAN } else { 0.0 };
            gpu.step(&features, 0, number, 1.0, number).unwrap();
        }
        assert_eq!(gpu.losses(true).unwrap().1, Some(2));
        assert_eq!(gpu.losses(false).unwrap(), (Losses::default(), None));
    }
}
