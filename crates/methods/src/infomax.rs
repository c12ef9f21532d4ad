//! DHIM's training on a GPU: `dhim.rs` has the equations, `cuda::InfoMax` their gradients by hand.
//!
//! On the CPU a batch of 32 texts takes 100 ms of a core, nine tenths of it in the filters. With the filters alone on a GPU the
//! rest still takes 30 ms. Ten epochs of 50,000 texts are 16,000 such batches.

use cuda::{InfoMax, InfoMaxHead, InfoMaxStep};
use engine::{Error, Result};
use train::real::Adam;

use crate::config::MethodConfig;
use crate::entry::{Entry, Windows};
use crate::graph::{Draws, Weight};

/// DHIM in training on a GPU.
pub struct Gpu {
    training: InfoMax,
    name: String,
}

impl Gpu {
    /// Copies the initial values of the filters and of `W`, `b`, `V_local`, `d_local`, `V_global`, `d_global` to the GPU. An error says
    /// why this GPU cannot train it.
    pub fn new(device: &cuda::Device, config: &MethodConfig, entry: &Entry, weights: &[Weight]) -> cuda::Result<Self> {
        let value = |i: usize| &weights[i].values[..];
        let head =
            InfoMaxHead { map: value(0), bias: value(1), parts: [value(2), value(3)], whole: [value(4), value(5)] };
        let (sharpness, weight) = (config.sharpness as f32, config.regulariser_weight as f32);
        let training = InfoMax::new(entry.on(device)?, head, sharpness, weight)?;
        Ok(Gpu { training, name: device.info().name.clone() })
    }

    fn named<T>(&self, answer: cuda::Result<T>) -> Result<T> {
        answer.map_err(|problem| Error::device(format!("{}: {problem}", self.name)))
    }

    /// The loss of texts by their token states; `firsts [texts, width]` are those of `[CLS]`.
    pub fn loss(&mut self, windows: &Windows, firsts: &[f32], draws: &Draws) -> Result<f64> {
        // `dhim.rs` draws in this order.
        let keys = [draws.key(), draws.key(), draws.key()];
        let answer = self.training.step(&InfoMaxStep { texts: windows.texts(), firsts, keys });
        self.named(answer)
    }

    /// One Adam update by the gradient of the last loss.
    pub fn update(&mut self, rate: f64, number: u64) -> Result<()> {
        let answer = self.training.update(Adam { rate, number }.on_gpu());
        self.named(answer)
    }

    /// Copies the present values back.
    pub fn save(&self, entry: &mut Entry, weights: &mut [Weight]) -> Result<()> {
        self.named(self.training.layer().read(&mut entry.weight.values, &mut entry.bias.values))?;
        let head = self.named(self.training.head())?;
        weights.iter_mut().zip(head).for_each(|(weight, values)| weight.values = values);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use engine::encoder::WINDOW;

    use super::*;
    use crate::dhim::Dhim;
    use crate::entry::Rows;
    use crate::graph::{number, tensor, values};
    use crate::learn::{Batch, LearnedMethod};

    /// Largest difference as a share of the largest value.
    fn apart(found: &[f32], expected: &[f32]) -> f32 {
        assert_eq!(found.len(), expected.len());
        let top = expected.iter().fold(1e-20f32, |top, v| top.max(v.abs()));
        found.iter().zip(expected).fold(0.0f32, |worst, (a, b)| worst.max((a - b).abs())) / top
    }

    #[test]
    fn gpu_steps_equal_those_of_the_graph() {
        let device = match cuda::Device::open(0) {
            Ok(device) => device,
            Err(problem) => {
                println!("skipped: {problem}");
                return;
            }
        };
        let width = 48;
        for (bits, n) in [(16, 9), (128, 70)] {
            let config = MethodConfig { regulariser_weight: 0.7, ..MethodConfig::named("dhim", bits).unwrap() };
            let network = Dhim::new(&config, width);
            let mut entry = Entry::new(WINDOW * width, width, network.init(), 3).of_spans(network.spans().unwrap());
            let mut weights = network.weights();
            let state = |text: usize, i: usize| ((i * 7 + text * 131) as f32 * 0.37).sin() * 1.5;
            let texts: Vec<Vec<f32>> =
                (0..n).map(|text| (0..(1 + text % 11) * width).map(|i| state(text, i)).collect()).collect();
            let lengths: Vec<usize> = texts.iter().map(|text| text.len() / width).collect();
            let firsts: Vec<f32> = (0..n * width).map(|i| state(1000, i)).collect();
            let rows = Rows::Windows(Windows::new(&texts, &vec![0.1; width]));
            let Rows::Windows(windows) = &rows else { unreachable!("built above") };
            let mut gpu = Gpu::new(&device, &config, &entry, &weights).unwrap();
            let rate = 1e-3;
            for update in 1..4 {
                let batch = Batch::of_tokens(&rows, lengths.clone(), firsts.clone(), update);
                let a = tensor(entry.forward(&rows), rows.len(), width).require_grad();
                let leaves: Vec<_> = weights.iter().map(Weight::leaf).collect();
                let loss = network.loss(a.clone(), &leaves, &batch);
                let gradients = loss.backward();
                let found = gpu.loss(windows, &firsts, &Draws::new(0, update)).unwrap();
                let expected = number(&loss);
                assert!((found - expected).abs() < 1e-4 * expected.abs(), "{bits} bits: {found}, {expected}");
                let gradient = gpu.training.head_gradient().unwrap();
                for (i, ((leaf, weight), gradient)) in leaves.iter().zip(&mut weights).zip(&gradient).enumerate() {
                    let expected = values(leaf.grad(&gradients).unwrap());
                    let worst = apart(gradient, &expected);
                    assert!(worst < 1e-3, "{bits} bits, update {update}, weight {i}: {worst:e}");
                    // Adam follows the sign even of a tiny gradient, so both sides update by the GPU's gradient.
                    weight.update(gradient, rate, update);
                }
                entry.update(&rows, &values(a.grad(&gradients).unwrap()), rate, update);
                gpu.update(rate, update).unwrap();
                let (mut filters, mut head) = (entry.clone(), weights.clone());
                gpu.save(&mut filters, &mut head).unwrap();
                for (i, (found, expected)) in head.iter().zip(&weights).enumerate() {
                    let worst = apart(&found.values, &expected.values);
                    assert!(worst < 1e-3, "{bits} bits, update {update}, weight {i} after it: {worst:e}");
                }
                let values = filters.weight.values.iter().zip(&entry.weight.values);
                let astray = values.filter(|(a, b)| (*a - *b).abs() > 1e-4).count();
                assert!(astray * 200 < entry.weight.values.len(), "{astray} filter weights differ");
                entry = filters;
            }
        }
    }
}
