//! Training steps on a GPU: the draws and formulas of [`crate::step`], in f32 and with another order of summation.
//!
//! One step of five products on 64 documents takes 4 to 10 ms on a CPU core and a seventh of a millisecond on a GPU. So when
//! the encoder has a GPU, training runs there too. A run does not move between CPU and GPU: the bits differ.

use cuda::{Trainer, TrainingAdam, TrainingObjective, TrainingShape};
use engine::model::CodeShape;
use engine::{Error, Matrix, Result};

use crate::config::TrainConfig;
use crate::objective::{Information, Objective};
use crate::parameters::{Moments, Parameters, Sizes};
use crate::random::{Purpose, Stream};
use crate::real::Adam;
use crate::step::Losses;

/// A model in training on a GPU.
pub(crate) struct Gpu {
    trainer: Trainer,
    shape: CodeShape,
    name: String,
    keys: Vec<u64>,
}

impl Gpu {
    /// Allocates a model on the GPU; the error says why this GPU cannot hold it.
    pub fn new(device: &cuda::Device, config: &TrainConfig, sizes: Sizes) -> cuda::Result<Self> {
        let shape = TrainingShape {
            inputs: sizes.inputs,
            hidden: sizes.hidden,
            num_codebooks: sizes.code.num_codebooks(),
            codebook_size: sizes.code.codebook_size(),
            dim: sizes.code.dim(),
            batch: config.batch,
        };
        let trainer = Trainer::new(device, shape, objective(&config.objective))?;
        Ok(Gpu { trainer, shape: sizes.code, name: device.info().name.clone(), keys: Vec::new() })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    fn device_error<T>(&self, result: cuda::Result<T>) -> Result<T> {
        result.map_err(|problem| {
            Error::device(format!(
                "{}: {problem}. Finished epochs are saved; run the same command again to resume after them",
                self.name
            ))
        })
    }

    /// Copies the state of a run to the GPU.
    pub fn load(&mut self, parameters: &Parameters<f32>, moments: &Moments<f32>) -> Result<()> {
        let result = self.trainer.set_state(&parameters.values, &moments.first, &moments.second);
        self.device_error(result)
    }

    /// Copies the state after all steps so far from the GPU.
    pub fn save(&self, parameters: &mut Parameters<f32>, moments: &mut Moments<f32>) -> Result<()> {
        self.device_error(self.trainer.state(&mut parameters.values, &mut moments.first, &mut moments.second))
    }

    /// Queues the gradient of a batch, with the Gumbel noise of `seed` and `update`. `share` weights the losses of the batch in
    /// their sum over the epoch; `number` is the step's number in the epoch.
    pub fn step(&mut self, embeddings: &[f32], seed: u64, update: u64, share: f64, number: u64) -> Result<()> {
        self.keys.clear();
        let codebooks = 0..self.shape.num_codebooks() as u64;
        self.keys.extend(codebooks.map(|m| Stream::new(seed, Purpose::Gumbel, &[update, m]).key()));
        let result = self.trainer.step(embeddings, &self.keys, share, number);
        self.device_error(result)
    }

    /// Scales the gradient of the last step down to norm `max_norm` when its norm is larger.
    pub fn clip(&mut self, sizes: Sizes, max_norm: f64) -> Result<()> {
        let mut gradient = self.gradient(sizes)?;
        gradient.clip(max_norm);
        let result = self.trainer.set_gradient(&gradient.values);
        self.device_error(result)
    }

    pub fn gradient(&self, sizes: Sizes) -> Result<Parameters<f32>> {
        let mut gradient = Parameters::zeros(sizes);
        self.device_error(self.trainer.gradient(&mut gradient.values))?;
        Ok(gradient)
    }

    /// Queues the update of this number, counted from 1.
    pub fn update(&mut self, rate: f64, number: u64) -> Result<()> {
        let result = self.trainer.update(Adam { rate, number }.on_gpu());
        self.device_error(result)
    }

    /// Sum of the losses so far, and the number of the first step whose loss is not finite. `clear` sets the sum to 0.
    pub fn losses(&mut self, clear: bool) -> Result<(Losses, Option<u64>)> {
        let result = self.trainer.losses(clear);
        let sum = self.device_error(result)?;
        let losses = Losses { loss: sum.loss, contrastive: sum.contrastive, information: sum.information };
        Ok((losses, sum.failed))
    }

    /// Packed codes of embeddings by the current model.
    pub fn codes(&mut self, embeddings: &Matrix) -> Result<Vec<u8>> {
        let result = self.trainer.codes(embeddings.as_slice());
        let codewords = self.device_error(result)?;
        let (codebooks, bytes) = (self.shape.num_codebooks(), self.shape.code_bytes());
        let mut codes = vec![0; embeddings.rows() * bytes];
        for (code, codewords) in codes.chunks_exact_mut(bytes).zip(codewords.chunks_exact(codebooks)) {
            for (m, &codeword) in codewords.iter().enumerate() {
                self.shape.set_codeword(code, m, usize::from(codeword));
            }
        }
        Ok(codes)
    }
}

impl Adam {
    /// The coefficients of the update for a GPU.
    pub fn on_gpu(&self) -> TrainingAdam {
        let adam = self.numbers();
        TrainingAdam {
            keep_first: adam.keep_first,
            keep_second: adam.keep_second,
            rate: adam.rate,
            scale: adam.scale,
            epsilon: adam.epsilon,
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

    /// Prints why the test is skipped when there is no GPU.
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

    /// Largest difference, relative to the largest expected value.
    fn relative_difference(found: &[f32], expected: &[f32]) -> f32 {
        let scale = expected.iter().fold(1e-20f32, |scale, v| scale.max(v.abs()));
        found.iter().zip(expected).fold(0.0f32, |worst, (a, b)| worst.max((a - b).abs())) / scale
    }

    #[test]
    fn gpu_steps_agree_with_the_cpu_and_repeat_bit_for_bit() {
        let Some(device) = gpu() else { return };
        let objectives: [(&str, Change); 4] = [
            ("the authors'", |_| {}),
            ("no noise, no floor", |o| (o.gumbel, o.floor) = (false, 0.0)),
            ("the paper's information", |o| o.information = Information::Posterior),
            ("contrastive loss only", |o| o.prob_weight = 0.0),
        ];
        for (bits, codebook_size, width, batch) in
            [(16, 16, 384, 64), (128, 16, 768, 64), (32, 2, 100, 21), (32, 256, 64, 40)]
        {
            for (name, change) in objectives {
                let mut config = TrainConfig { codebook_size, hidden: 96, batch, ..TrainConfig::new(bits) };
                change(&mut config.objective);
                let sizes = config.sizes(width).unwrap();
                let (mut parameters, mut moments) = (Parameters::init(sizes, 3), Moments::zeros(sizes.len()));
                let run = |count: u64| {
                    let mut gpu = Gpu::new(&device, &config, sizes).unwrap();
                    gpu.load(&Parameters::init(sizes, 3), &Moments::zeros(sizes.len())).unwrap();
                    for update in 0..count {
                        let embeddings = vectors(2 * batch, width, update);
                        gpu.step(&embeddings, 5, update, 1.0, update + 1).unwrap();
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
                    let embeddings = vectors(2 * batch, width, update);
                    let noise = Noise::Drawn { seed: 5, step: update };
                    let losses = workspace.step(&parameters, &config.objective, &embeddings, noise, &mut gradient);
                    total.loss += losses.loss;
                    total.contrastive += losses.contrastive;
                    total.information += losses.information;
                    if update < 2 {
                        moments.update(&mut parameters, &gradient, 1e-3);
                    }
                    if update == 0 {
                        let (_, found, _) = run(1);
                        let worst = relative_difference(&found.values, &gradient.values);
                        assert!(
                            worst < 1e-4,
                            "{bits} bits, {codebook_size} codewords, {name}: first gradient {worst:e}"
                        );
                    }
                }
                let (losses, found, mut trained) = run(3);
                let close = |a: f64, b: f64| (a - b).abs() < 1e-3 * (1.0 + b.abs());
                assert!(
                    close(losses.loss, total.loss) && close(losses.information, total.information),
                    "{bits} bits, {codebook_size} codewords, {name}: {losses:?}, {total:?}"
                );
                assert_eq!(found, run(3).1, "a second run gives the same bits");
                // Codes of the GPU against those of the CPU with the same parameters.
                trained.save(&mut parameters, &mut moments).unwrap();
                let some = Matrix::from_vec(width, vectors(5000, width, 9));
                let (projection, codebooks) = parameters.model_parts().unwrap();
                let (codes, expected) =
                    (trained.codes(&some).unwrap(), codebooks.assign(&projection.apply(&some).unwrap()));
                let other = codes.iter().zip(&expected).filter(|(a, b)| a != b).count();
                assert!(other * 1000 < codes.len(), "{other} of {} bytes of codes differ", codes.len());
            }
        }
    }

    #[test]
    fn losses_name_the_first_step_that_is_not_finite() {
        let Some(device) = gpu() else { return };
        let config = TrainConfig { hidden: 32, batch: 8, ..TrainConfig::new(16) };
        let sizes = config.sizes(20).unwrap();
        let mut gpu = Gpu::new(&device, &config, sizes).unwrap();
        gpu.load(&Parameters::init(sizes, 0), &Moments::zeros(sizes.len())).unwrap();
        for number in 1..=3 {
            let mut embeddings = vectors(16, 20, number);
            embeddings[33] = if number > 1 { f32::NAN } else { 0.0 };
            gpu.step(&embeddings, 0, number, 1.0, number).unwrap();
        }
        assert_eq!(gpu.losses(true).unwrap().1, Some(2));
        assert_eq!(gpu.losses(false).unwrap(), (Losses::default(), None));
    }
}
