//! A table of token vectors and dense layers, fitted to vectors of texts.
//!
//! A text is the mean of its tokens' rows; each layer maps the first values of the mean to vectors of its own. All are learned by
//! Adam on the squared error. Then the table is rounded to bytes and the layers are fitted again, in closed form, to what is left
//! of it.

use engine::{Error, Progress, Result};
use kernels::pieces;
use rayon::prelude::*;

use crate::cholesky::Cholesky;
use crate::product::{View, multiply, multiply_add};
use crate::random::{Purpose, Stream};
use crate::real::{Adam, Real};

/// Texts per step.
const BATCH: usize = 256;
/// Rows of a product that one task computes. Fixed, so that the number of threads changes no bit.
const ROWS: usize = 32;
/// Outputs whose weights one task updates, and rows of the table.
const PART: usize = 64;
/// Weight of the ridge, as a share of the mean of the diagonal.
const RIDGE: f64 = 1e-4;

/// Texts as tokens, and for every layer the vector of each text, `[texts, outputs]`, of about unit variance in all.
pub struct Examples {
    pub tokens: Vec<Vec<u32>>,
    pub targets: Vec<Vec<f32>>,
}

/// A layer on the first `inputs` values of a mean.
#[derive(Clone)]
pub struct Layer {
    pub inputs: usize,
    /// `[outputs, inputs]`.
    pub weight: Vec<f32>,
    /// `[outputs]`.
    pub bias: Vec<f32>,
}

/// A table `[tokens, width]` and layers on its means.
#[derive(Clone)]
pub struct Student {
    pub width: usize,
    pub table: Vec<f32>,
    pub layers: Vec<Layer>,
}

/// How a student learns.
#[derive(Clone, Copy)]
pub struct Schedule {
    pub epochs: usize,
    /// Falls to nothing.
    pub rate: f64,
    pub seed: u64,
}

/// First and second moments of Adam.
struct Moments(Vec<f32>, Vec<f32>);

impl Moments {
    fn zeros(n: usize) -> Self {
        Moments(vec![0.0; n], vec![0.0; n])
    }

    fn update(&mut self, values: &mut [f32], gradient: &[f32], adam: &Adam) {
        f32::adam_all(values, gradient, &mut self.0, &mut self.1, adam);
    }

    /// Updates the rows that the batch has: the others wait, moments and all. Most tokens are in few batches, and a step on the whole
    /// table takes ten times as long.
    fn update_rows(&mut self, table: &mut [f32], width: usize, gradient: &RowGradients, adam: &Adam) {
        let moments = self.0.par_chunks_mut(PART * width).zip(self.1.par_chunks_mut(PART * width));
        table.par_chunks_mut(PART * width).zip(moments).enumerate().for_each(|(part, (table, (first, second)))| {
            let from = gradient.ids.partition_point(|id| (*id as usize) < part * PART);
            let own = gradient.ids[from..].iter().take_while(|id| (**id as usize) < (part + 1) * PART);
            for (i, id) in own.enumerate() {
                let at = (*id as usize - part * PART) * width..(*id as usize - part * PART + 1) * width;
                let row = &gradient.rows[(from + i) * width..(from + i + 1) * width];
                f32::adam_all(&mut table[at.clone()], row, &mut first[at.clone()], &mut second[at], adam);
            }
        });
    }
}

/// Gradient of the rows of a table that a batch has.
struct RowGradients {
    /// Rising.
    ids: Vec<u32>,
    /// `[ids, width]`.
    rows: Vec<f32>,
}

struct Gradient {
    table: RowGradients,
    layers: Vec<Layer>,
}

/// A text of a batch: its number, and its tokens.
type Text<'a> = (usize, &'a [u32]);

/// What a student starts from.
pub struct Start<'a> {
    /// Rows of the tokens, `[tokens, width]`.
    pub table: Vec<f32>,
    pub width: usize,
    /// How many values of a mean each layer takes, and how many it gives.
    pub layers: &'a [(usize, usize)],
}

impl Student {
    /// Learns from `examples`.
    pub fn fit(start: Start, examples: &Examples, schedule: Schedule, progress: &dyn Progress) -> Result<Student> {
        let Start { table, width, layers } = start;
        let layer = |&(inputs, outputs): &(usize, usize)| Layer {
            inputs,
            weight: vec![0.0; outputs * inputs],
            bias: vec![0.0; outputs],
        };
        let mut student = Student { width, table, layers: layers.iter().map(layer).collect() };
        let means = means(examples, width, |ids, mean| float_mean(&student.table, ids, mean));
        student.fit_layers(examples, &means);
        let mut table = Moments::zeros(student.table.len());
        let mut moments: Vec<[Moments; 2]> =
            student.layers.iter().map(|layer| [layer.weight.len(), layer.bias.len()].map(Moments::zeros)).collect();
        let steps = schedule.epochs * examples.tokens.len().div_ceil(BATCH);
        progress.stage("distilling", Some(steps as u64));
        let mut number = 0u32;
        for epoch in 0..schedule.epochs {
            let order =
                Stream::new(schedule.seed, Purpose::Shuffle, &[epoch as u64]).permutation(examples.tokens.len());
            for batch in order.chunks(BATCH) {
                if progress.interrupted() {
                    return Err(Error::Interrupted);
                }
                let batch: Vec<Text> =
                    batch.iter().map(|&i| (i as usize, examples.tokens[i as usize].as_slice())).collect();
                let gradient = student.gradient(&batch, examples);
                let left = 1.0 - f64::from(number) / steps as f64;
                number += 1;
                let adam = Adam { rate: schedule.rate * left, number: u64::from(number) };
                table.update_rows(&mut student.table, width, &gradient.table, &adam);
                for ((layer, own), moments) in student.layers.iter_mut().zip(&gradient.layers).zip(&mut moments) {
                    moments[0].update(&mut layer.weight, &own.weight, &adam);
                    moments[1].update(&mut layer.bias, &own.bias, &adam);
                }
                progress.advance(1);
            }
        }
        Ok(student)
    }

    /// Gradient of half the squared error, the mean over the batch.
    fn gradient(&self, batch: &[Text], examples: &Examples) -> Gradient {
        let (n, width) = (batch.len(), self.width);
        let mut means = vec![0.0; n * width];
        means.par_chunks_mut(width).zip(batch).for_each(|(mean, (_, ids))| float_mean(&self.table, ids, mean));
        let mut back = vec![0.0; n * width];
        let layers = self.layers.iter().zip(&examples.targets);
        let layers = layers.map(|(layer, targets)| layer.gradient(batch, targets, &means, &mut back, width)).collect();
        Gradient { table: self.scatter(batch, &back), layers }
    }

    /// Gradient of the table: every token's share of the gradients of its texts' means, in the order of the batch.
    fn scatter(&self, batch: &[Text], back: &[f32]) -> RowGradients {
        let mut uses: Vec<(u32, u32)> =
            batch.iter().enumerate().flat_map(|(row, (_, ids))| ids.iter().map(move |&id| (id, row as u32))).collect();
        uses.sort_unstable();
        let mut gradient = RowGradients { ids: Vec::new(), rows: Vec::new() };
        for (id, row) in uses {
            if gradient.ids.last() != Some(&id) {
                gradient.ids.push(id);
                gradient.rows.resize(gradient.ids.len() * self.width, 0.0);
            }
            let row = row as usize;
            let share = 1.0 / batch[row].1.len() as f32;
            let from = &back[row * self.width..(row + 1) * self.width];
            let start = gradient.rows.len() - self.width;
            gradient.rows[start..].iter_mut().zip(from).for_each(|(to, from)| *to += share * from);
        }
        gradient
    }

    /// Rounds the table to bytes and fits the layers to it again.
    pub fn quantize(&mut self, examples: &Examples) -> (Vec<i8>, Vec<f32>) {
        let (table, scales) = pieces::quantize(&self.table, self.width);
        let means = means(examples, self.width, |ids, mean| pieces::mean(&table, &scales, ids, mean));
        self.fit_layers(examples, &means);
        (table, scales)
    }

    fn fit_layers(&mut self, examples: &Examples, means: &[f32]) {
        for (layer, targets) in self.layers.iter_mut().zip(&examples.targets) {
            layer.regress(means, self.width, targets);
        }
    }
}

/// The means of all texts, `[texts, width]`.
fn means(examples: &Examples, width: usize, mean: impl Fn(&[u32], &mut [f32]) + Sync) -> Vec<f32> {
    let mut means = vec![0.0; examples.tokens.len() * width];
    means.par_chunks_mut(width).zip(&examples.tokens).for_each(|(row, ids)| mean(ids, row));
    means
}

impl Layer {
    /// Gradient of the layer. Adds the gradient of the means to `back`.
    fn gradient(&self, batch: &[Text], targets: &[f32], means: &[f32], back: &mut [f32], width: usize) -> Layer {
        let (n, inputs, outputs) = (batch.len(), self.inputs, self.bias.len());
        let mut errors = vec![0.0; n * outputs];
        let weight = View::new(&self.weight, outputs, inputs);
        let rows = means.par_chunks(ROWS * width).zip(back.par_chunks_mut(ROWS * width));
        rows.zip(errors.par_chunks_mut(ROWS * outputs)).zip(batch.par_chunks(ROWS)).for_each(
            |(((means, back), errors), batch)| {
                let means = View::new(means, batch.len(), width).columns(0, inputs);
                multiply(errors, means, weight.transposed(), 1.0);
                for ((text, _), error) in batch.iter().zip(errors.chunks_exact_mut(outputs)) {
                    let target = &targets[text * outputs..(text + 1) * outputs];
                    for ((e, t), b) in error.iter_mut().zip(target).zip(&self.bias) {
                        *e = (*e + b - t) / n as f32;
                    }
                }
                let mut own = vec![0.0; batch.len() * inputs];
                multiply(&mut own, View::new(errors, batch.len(), outputs), weight, 1.0);
                for (back, own) in back.chunks_exact_mut(width).zip(own.chunks_exact(inputs)) {
                    back.iter_mut().zip(own).for_each(|(to, from)| *to += from);
                }
            },
        );
        let mut gradient = Layer { inputs, weight: vec![0.0; outputs * inputs], bias: vec![0.0; outputs] };
        let (errors, means) = (View::new(&errors, n, outputs), View::new(means, n, width).columns(0, inputs));
        gradient.weight.par_chunks_mut(PART * inputs).enumerate().for_each(|(part, gradient)| {
            let columns = errors.columns(part * PART, gradient.len() / inputs);
            multiply(gradient, columns.transposed(), means, 1.0);
        });
        multiply(&mut gradient.bias, View::new(&vec![1.0; n], 1, n), errors, 1.0);
        gradient
    }

    /// Ridge regression of the targets on the means of the texts, with a bias.
    fn regress(&mut self, means: &[f32], width: usize, targets: &[f32]) {
        let (inputs, outputs) = (self.inputs, self.bias.len());
        // Means with a constant behind them, for the bias.
        let n = inputs + 1;
        let (mut square, mut right) = (vec![0.0f64; n * n], vec![0.0f64; n * outputs]);
        for (means, targets) in means.chunks(BATCH * width).zip(targets.chunks(BATCH * outputs)) {
            let texts = means.len() / width;
            let row = |mean: &[f32]| mean[..inputs].iter().map(|value| f64::from(*value)).chain([1.0]).collect();
            let rows: Vec<f64> = means.chunks_exact(width).flat_map::<Vec<f64>, _>(row).collect();
            let targets: Vec<f64> = targets.iter().map(|value| f64::from(*value)).collect();
            let (rows, targets) = (View::new(&rows, texts, n), View::new(&targets, texts, outputs));
            let parts = square.par_chunks_mut(ROWS * n).zip(right.par_chunks_mut(ROWS * outputs)).enumerate();
            parts.for_each(|(part, (square, right))| {
                let columns = rows.columns(part * ROWS, square.len() / n).transposed();
                multiply_add(square, columns, rows, 1.0);
                multiply_add(right, columns, targets, 1.0);
            });
        }
        let ridge = RIDGE * (0..inputs).map(|i| square[i * n + i]).sum::<f64>() / inputs as f64;
        (0..inputs).for_each(|i| square[i * n + i] += ridge);
        // A table without any variance has no layer: the bias alone is left.
        let Some(factor) = Cholesky::new(square, n) else { return };
        factor.solve(&mut right, outputs);
        for (i, values) in right.chunks_exact(outputs).enumerate() {
            for (j, value) in values.iter().enumerate() {
                match i < inputs {
                    true => self.weight[j * inputs + i] = *value as f32,
                    false => self.bias[j] = *value as f32,
                }
            }
        }
    }
}

/// The mean of the tokens' rows of a table in floats.
fn float_mean(table: &[f32], ids: &[u32], out: &mut [f32]) {
    out.fill(0.0);
    for &id in ids {
        let row = &table[id as usize * out.len()..][..out.len()];
        out.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
    }
    let share = 1.0 / ids.len().max(1) as f32;
    out.iter_mut().for_each(|sum| *sum *= share);
}

#[cfg(test)]
mod tests {
    use engine::NoProgress;

    use super::*;

    const TOKENS: usize = 40;

    fn value(i: usize) -> f32 {
        (kernels::dropout::mix(9, i as u64) >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// Texts whose vectors are the means of hidden rows: five values for one layer, the first two for another.
    fn examples(n: usize) -> Examples {
        let mut examples = Examples { tokens: Vec::new(), targets: vec![Vec::new(), Vec::new()] };
        for i in 0..n {
            let length = 1 + kernels::dropout::mix(1, i as u64) as usize % 6;
            let ids: Vec<u32> =
                (0..length).map(|j| (kernels::dropout::mix(2, (i * 8 + j) as u64) % TOKENS as u64) as u32).collect();
            for j in 0..5 {
                let sum: f32 = ids.iter().map(|id| value(*id as usize * 16 + j)).sum();
                examples.targets[0].push(sum / length as f32 + 0.5);
                if j < 2 {
                    examples.targets[1].push(sum / length as f32 - 0.5);
                }
            }
            examples.tokens.push(ids);
        }
        examples
    }

    fn start(width: usize) -> Vec<f32> {
        (0..TOKENS * width).map(|i| 0.1 * value(i + 5000)).collect()
    }

    /// Mean over the texts of the squared errors of both layers.
    fn error(student: &Student, examples: &Examples) -> f64 {
        let mut mean = vec![0.0; student.width];
        let mut sum = 0.0;
        for (i, ids) in examples.tokens.iter().enumerate() {
            float_mean(&student.table, ids, &mut mean);
            for (layer, targets) in student.layers.iter().zip(&examples.targets) {
                for (j, bias) in layer.bias.iter().enumerate() {
                    let row = &layer.weight[j * layer.inputs..(j + 1) * layer.inputs];
                    let y: f32 = row.iter().zip(&mean).map(|(w, m)| w * m).sum::<f32>() + bias;
                    sum += f64::from(y - targets[i * layer.bias.len() + j]).powi(2);
                }
            }
        }
        sum / examples.tokens.len() as f64
    }

    #[test]
    fn gradient_equals_differences_of_the_loss() {
        let examples = examples(7);
        let layer = |inputs: usize, outputs: usize, from: usize| Layer {
            inputs,
            weight: (0..inputs * outputs).map(|i| value(i + from)).collect(),
            bias: vec![0.1; outputs],
        };
        let student = Student { width: 3, table: start(3), layers: vec![layer(3, 5, 900), layer(2, 2, 950)] };
        let batch: Vec<Text> = examples.tokens.iter().map(Vec::as_slice).enumerate().collect();
        let gradient = student.gradient(&batch, &examples);
        let step = 1e-2f32;
        let check = |part: &dyn Fn(&mut Student) -> &mut f32, found: f32| {
            let moved = |by: f32| {
                let mut other = student.clone();
                *part(&mut other) += by;
                0.5 * error(&other, &examples)
            };
            let expected = (moved(step) - moved(-step)) / f64::from(2.0 * step);
            assert!((expected - f64::from(found)).abs() < 1e-3, "{expected} {found}");
        };
        for (i, id) in gradient.table.ids.iter().enumerate() {
            for j in 0..3 {
                check(&|s| &mut s.table[*id as usize * 3 + j], gradient.table.rows[i * 3 + j]);
            }
        }
        for (l, own) in gradient.layers.iter().enumerate() {
            own.weight.iter().enumerate().for_each(|(i, g)| check(&|s| &mut s.layers[l].weight[i], *g));
            own.bias.iter().enumerate().for_each(|(i, g)| check(&|s| &mut s.layers[l].bias[i], *g));
        }
    }

    #[test]
    fn a_table_that_explains_the_vectors_is_found_again_and_survives_rounding() {
        let examples = examples(2000);
        let fit = |epochs| {
            let schedule = Schedule { epochs, rate: 0.02, seed: 3 };
            Student::fit(
                Start { table: start(8), width: 8, layers: &[(8, 5), (4, 2)] },
                &examples,
                schedule,
                &NoProgress,
            )
            .unwrap()
        };
        // Of seven values with a variance of about 0.15 each.
        let enough = 0.02f64;
        let before = error(&fit(1), &examples);
        let mut student = fit(40);
        assert!(error(&student, &examples) < enough.min(before / 2.0), "{} {before}", error(&student, &examples));
        let (table, scales) = student.quantize(&examples);
        let rows = table.chunks_exact(8).zip(&scales);
        student.table = rows.flat_map(|(row, scale)| row.iter().map(move |value| scale * f32::from(*value))).collect();
        assert!(error(&student, &examples) < enough, "{}", error(&student, &examples));
        assert_eq!(fit(2).table, fit(2).table);
    }
}
