//! The first layer, with gradients by hand: it reads the vocabulary or the embeddings and is nearly all of a method's work.
//!
//! A batch of terms touches a few rows of the weight, and only these are read and differentiated. Adam updates all of them: a row
//! without a gradient still moves by its moments, as in the re-implementation the published tables come from. Over token states,
//! where the encoder has a GPU, `infomax.rs` runs the layer there.

use std::ops::Range;

use engine::Matrix;
use engine::encoder::{Convolution, WINDOW};
use rayon::prelude::*;
use train::product::{View, multiply};

use crate::graph::{Init, Weight};
use crate::yardstick::Row;

/// The inputs of one batch.
pub enum Rows<'a> {
    /// `[n, inputs]`.
    Dense(Matrix),
    /// Windows of neighbouring tokens.
    Windows(Windows),
    Terms(Vec<&'a Row>),
}

impl Rows<'_> {
    pub fn len(&self) -> usize {
        match self {
            Rows::Dense(rows) => rows.rows(),
            Rows::Windows(windows) => windows.texts.iter().map(Range::len).sum(),
            Rows::Terms(rows) => rows.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The window of every token of some texts: its own state with two before and two behind.
///
/// All states lie in one array with two empty ones before and behind every text, so that a window is a slice and no state is copied
/// five times. Windows that begin in the last two states of a text belong to no token.
pub struct Windows {
    // [states, width]
    states: Vec<f32>,
    width: usize,
    // The windows of each text's tokens.
    texts: Vec<Range<usize>>,
}

impl Windows {
    /// `texts`: states of each, `[tokens, width]`. `none`: the state beyond the ends of a text.
    pub fn new(texts: &[Vec<f32>], none: &[f32]) -> Self {
        const PADDING: usize = WINDOW / 2;
        let width = none.len();
        let tokens: usize = texts.iter().map(|states| states.len() / width + PADDING).sum();
        // At least one window, even without a token.
        let mut all = Vec::with_capacity((tokens + WINDOW) * width);
        let empty = none.repeat(PADDING);
        let mut ranges = Vec::with_capacity(texts.len());
        all.extend_from_slice(&empty);
        for states in texts {
            let start = all.len() / width - PADDING;
            ranges.push(start..start + states.len() / width);
            all.extend_from_slice(states);
            all.extend_from_slice(&empty);
        }
        while all.len() < WINDOW * width {
            all.extend_from_slice(none);
        }
        Windows { states: all, width, texts: ranges }
    }

    /// For a GPU.
    pub fn texts(&self) -> cuda::Texts<'_> {
        cuda::Texts { states: &self.states, width: self.width, windows: &self.texts }
    }

    /// From a row of `cols` values per window, the rows of tokens.
    fn of_tokens(&self, rows: &[f32], cols: usize) -> Vec<f32> {
        let mut out = Vec::with_capacity(rows.len());
        self.texts.iter().for_each(|text| out.extend_from_slice(&rows[text.start * cols..text.end * cols]));
        out
    }

    /// The inverse, with zeros for windows that belong to no token.
    fn of_all(&self, rows: &[f32], cols: usize) -> Vec<f32> {
        let mut out = vec![0.0; (self.states.len() / self.width + 1 - WINDOW) * cols];
        let mut rest = rows;
        for text in &self.texts {
            let (own, after) = rest.split_at(text.len() * cols);
            out[text.start * cols..text.end * cols].copy_from_slice(own);
            rest = after;
        }
        out
    }
}

/// `a = x W + b`, `W [inputs, outputs]`.
#[derive(Clone)]
pub struct Entry {
    /// A row for every input.
    pub weight: Weight,
    /// `[1, outputs]`.
    pub bias: Weight,
    // The parts of the weight that are not zero by construction.
    spans: Vec<Span>,
    // The gradient by the weight of a batch of terms: all zero between two updates.
    scratch: Vec<f32>,
}

/// A part of the weight: `outputs` read `inputs`.
#[derive(Clone, Debug)]
pub struct Span {
    /// Rows of the weight.
    pub inputs: Range<usize>,
    /// Columns of the weight.
    pub outputs: Range<usize>,
    /// Factor of the initial values.
    pub scale: f32,
}

/// Rows of a product per task. Fixed, so that results do not depend on the number of threads.
const PIECE: usize = 256;

/// `a [rows, k] b [k, cols]`, row-major.
fn product(a: View<f32>, b: View<f32>, rows: usize, cols: usize) -> Vec<f32> {
    let mut out = vec![0.0; rows * cols];
    out.par_chunks_mut((PIECE * cols).max(1)).enumerate().for_each(|(i, out)| {
        let part = a.transposed().columns(i * PIECE, out.len() / cols).transposed();
        multiply(out, part, b, 1.0);
    });
    out
}

impl Entry {
    pub fn new(inputs: usize, outputs: usize, init: Init, seed: u64) -> Self {
        Entry::numbered(inputs, outputs, init, seed, 900)
    }

    /// `number` distinguishes the first layers of a network.
    pub fn numbered(inputs: usize, outputs: usize, init: Init, seed: u64, number: u64) -> Self {
        let [weight, bias] = Weight::layer(inputs, outputs, init, seed, number);
        Entry::of(weight, bias)
    }

    /// The layer on a GPU.
    pub fn on(&self, device: &cuda::Device) -> cuda::Result<cuda::Layer> {
        let part = |span: &Span| cuda::LayerPart { inputs: span.inputs.clone(), outputs: span.outputs.clone() };
        cuda::Layer::new(device, self.spans.iter().map(part).collect(), &self.weight.values, &self.bias.values)
    }

    /// The filters of a convolution, each with only the tokens it reads.
    pub fn of_convolution(filters: &Convolution) -> Self {
        let [inputs, outputs] = [WINDOW * filters.inputs, filters.outputs];
        let weight = Weight::new([inputs, outputs], filters.weight().to_vec());
        let seen = |o: usize| {
            let sees = |token: &usize| {
                let rows = weight.values[token * filters.inputs * outputs..].chunks_exact(outputs).take(filters.inputs);
                rows.map(|row| row[o]).any(|w| w != 0.0)
            };
            let first = (0..WINDOW).find(sees).unwrap_or(0);
            let last = (first..WINDOW).rfind(sees).unwrap_or(first);
            first * filters.inputs..(last + 1) * filters.inputs
        };
        let mut spans: Vec<Span> = Vec::new();
        for o in 0..outputs {
            let inputs = seen(o);
            match spans.last_mut() {
                Some(span) if span.inputs == inputs => span.outputs.end = o + 1,
                _ => spans.push(Span { inputs, outputs: o..o + 1, scale: 1.0 }),
            }
        }
        Entry { weight, bias: Weight::new([1, outputs], filters.bias().to_vec()), spans, scratch: Vec::new() }
    }

    fn of(weight: Weight, bias: Weight) -> Self {
        let [inputs, outputs] = weight.shape;
        let spans = vec![Span { inputs: 0..inputs, outputs: 0..outputs, scale: 1.0 }];
        Entry { weight, bias, spans, scratch: Vec::new() }
    }

    /// Keeps the weight within `spans`, which do not overlap, and sets the rest to zero for good.
    pub fn of_spans(mut self, spans: Vec<Span>) -> Self {
        let outputs = self.weight.shape[1];
        let mut values = vec![0.0; self.weight.values.len()];
        for span in &spans {
            for at in span.inputs.clone().flat_map(|i| span.outputs.clone().map(move |o| i * outputs + o)) {
                values[at] = self.weight.values[at] * span.scale;
            }
        }
        self.weight.values = values;
        self.spans = spans;
        self
    }

    /// The output, `[n, outputs]`.
    pub fn forward(&self, rows: &Rows) -> Vec<f32> {
        let outputs = self.weight.shape[1];
        let mut out = match rows {
            Rows::Dense(x) => self.products(View::new(x.as_slice(), x.rows(), x.cols())),
            Rows::Windows(windows) => windows.of_tokens(&self.products(self.sliding(windows)), outputs),
            Rows::Terms(rows) => {
                let mut out = vec![0.0; rows.len() * outputs];
                for (out, row) in out.chunks_exact_mut(outputs).zip(rows) {
                    for &(term, weight) in *row {
                        let from = &self.weight.values[term as usize * outputs..][..outputs];
                        out.iter_mut().zip(from).for_each(|(o, w)| *o += weight * w);
                    }
                }
                out
            }
        };
        for row in out.chunks_exact_mut(outputs) {
            row.iter_mut().zip(&self.bias.values).for_each(|(o, b)| *o += b);
        }
        out
    }

    /// The windows as rows of a matrix.
    fn sliding<'w>(&self, windows: &'w Windows) -> View<'w, f32> {
        View::sliding(&windows.states, self.weight.shape[0], windows.width)
    }

    /// `x W`.
    fn products(&self, x: View<f32>) -> Vec<f32> {
        let [inputs, outputs] = self.weight.shape;
        let mut out = vec![0.0; x.rows() * outputs];
        let w = View::new(&self.weight.values, inputs, outputs);
        for Span { inputs, outputs: to, .. } in &self.spans {
            let w = w.transposed().columns(inputs.start, inputs.len()).transposed().columns(to.start, to.len());
            let part = product(x.columns(inputs.start, inputs.len()), w, x.rows(), to.len());
            put(&part, &mut out, to, outputs);
        }
        out
    }

    /// One Adam update; `slope [n, outputs]` is the gradient at the output.
    pub fn update(&mut self, rows: &Rows, slope: &[f32], rate: f64, number: u64) {
        let outputs = self.weight.shape[1];
        let mut of_bias = vec![0.0; outputs];
        for row in slope.chunks_exact(outputs) {
            of_bias.iter_mut().zip(row).for_each(|(b, s)| *b += s);
        }
        self.bias.update(&of_bias, rate, number);
        match rows {
            Rows::Dense(x) => self.update_all(View::new(x.as_slice(), x.rows(), x.cols()), slope, rate, number),
            Rows::Windows(windows) => {
                let slope = windows.of_all(slope, outputs);
                self.update_all(self.sliding(windows), &slope, rate, number);
            }
            Rows::Terms(rows) => {
                self.scratch.resize(self.weight.values.len(), 0.0);
                for (row, slope) in rows.iter().zip(slope.chunks_exact(outputs)) {
                    for &(term, weight) in *row {
                        let to = &mut self.scratch[term as usize * outputs..][..outputs];
                        to.iter_mut().zip(slope).for_each(|(g, s)| *g += weight * s);
                    }
                }
                self.weight.update(&self.scratch, rate, number);
                for &(term, _) in rows.iter().copied().flatten() {
                    self.scratch[term as usize * outputs..][..outputs].fill(0.0);
                }
            }
        }
    }

    /// Updates all of the weight; `slope` has a row for every row of `x`.
    fn update_all(&mut self, x: View<f32>, slope: &[f32], rate: f64, number: u64) {
        let [inputs, outputs] = self.weight.shape;
        let mut gradient = vec![0.0; inputs * outputs];
        let slope = View::new(slope, x.rows(), outputs);
        for Span { inputs, outputs: to, .. } in &self.spans {
            let x = x.columns(inputs.start, inputs.len()).transposed();
            let part = product(x, slope.columns(to.start, to.len()), inputs.len(), to.len());
            put(&part, &mut gradient[inputs.start * outputs..], to, outputs);
        }
        self.weight.update(&gradient, rate, number);
    }
}

/// Copies rows into the columns `to` of rows of `width`.
fn put(part: &[f32], out: &mut [f32], to: &Range<usize>, width: usize) {
    for (row, out) in part.chunks_exact(to.len().max(1)).zip(out.chunks_exact_mut(width)) {
        out[to.clone()].copy_from_slice(row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparse_rows_equal_dense_rows_with_zeros() {
        let sparse = [vec![(0, 0.5), (3, 2.0)], vec![(1, -1.0)], vec![]];
        let mut dense = Matrix::zeros(3, 4);
        for (i, row) in sparse.iter().enumerate() {
            row.iter().for_each(|&(t, w)| dense.row_mut(i)[t as usize] = w);
        }
        let entry = Entry::new(4, 5, Init::Linear, 3);
        let (terms, vectors) = (Rows::Terms(sparse.iter().collect()), Rows::Dense(dense));
        let (a, b) = (entry.forward(&terms), entry.forward(&vectors));
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-6));
        assert_eq!(a[10..], entry.bias.values[..]);
        let slope: Vec<f32> = (0..15).map(|i| (i as f32).sin()).collect();
        let (mut one, mut other) = (entry.clone(), entry.clone());
        one.update(&terms, &slope, 0.01, 1);
        other.update(&vectors, &slope, 0.01, 1);
        assert!(one.weight.values.iter().zip(&other.weight.values).all(|(a, b)| (a - b).abs() < 1e-5));
        // No text has term 2.
        assert_eq!(one.weight.values[10..15], entry.weight.values[10..15]);
        // Batches that miss terms: the terms of earlier batches go on moving, as a dense Adam moves them.
        let before = one.weight.values.clone();
        for number in 2..6 {
            let row = vec![(1, 1.0)];
            let mut dense = Matrix::zeros(1, 4);
            dense.row_mut(0)[1] = 1.0;
            one.update(&Rows::Terms(vec![&row]), &slope[..5], 0.01, number);
            other.update(&Rows::Dense(dense), &slope[..5], 0.01, number);
        }
        assert!(one.weight.values.iter().zip(&other.weight.values).all(|(a, b)| (a - b).abs() < 1e-5));
        let moved = |term: usize| (0..5).any(|o| (one.weight.values[term * 5 + o] - before[term * 5 + o]).abs() > 1e-3);
        assert!(moved(0) && moved(3) && !moved(2));
    }

    #[test]
    fn sliding_windows_equal_copied_windows() {
        // Texts of four tokens, one, none and seven, three values per state; then no token at all.
        for lengths in [&[4, 1, 0, 7][..], &[0]] {
            let mut at = 0.0f32;
            let mut state = || {
                at += 1.0;
                (at * 0.7).sin()
            };
            let texts: Vec<Vec<f32>> = lengths.iter().map(|n| (0..n * 3).map(|_| state()).collect()).collect();
            let copied: Vec<f32> = texts.iter().flat_map(|text| engine::encoder::windows(text, 3)).collect();
            let tokens = lengths.iter().sum::<usize>();
            let copied = Rows::Dense(Matrix::from_vec(WINDOW * 3, copied));
            let sliding = Rows::Windows(Windows::new(&texts, &[0.0; 3]));
            assert_eq!((sliding.len(), copied.len()), (tokens, tokens));
            let entry = Entry::new(WINDOW * 3, 4, Init::Linear, 3).of_spans(vec![
                Span { inputs: 6..9, outputs: 0..1, scale: 1.0 },
                Span { inputs: 0..15, outputs: 1..4, scale: 1.0 },
            ]);
            let near = |a: &[f32], b: &[f32]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
            assert!(near(&entry.forward(&copied), &entry.forward(&sliding)));
            let slope: Vec<f32> = (0..tokens * 4).map(|i| (i as f32 * 0.3).cos()).collect();
            let (mut one, mut other) = (entry.clone(), entry.clone());
            one.update(&copied, &slope, 0.01, 1);
            other.update(&sliding, &slope, 0.01, 1);
            assert!(near(&one.weight.values, &other.weight.values) && near(&one.bias.values, &other.bias.values));
        }
    }

    #[test]
    fn spans_of_a_convolution_cover_the_tokens_its_filters_read() {
        // Seven filters, two values per state: two read one token, two read three, two read five, one reads none.
        let seen = |o: usize, i: usize| [2..3, 2..3, 1..4, 1..4, 0..5, 0..5, 0..0][o].contains(&(i / 2));
        let weight: Vec<f32> =
            (0..70).map(|at| if seen(at % 7, at / 7) { (at as f32 * 0.9).sin() + 2.0 } else { 0.0 }).collect();
        let filters = Convolution::new(2, weight, vec![0.5; 7]).unwrap();
        let entry = Entry::of_convolution(&filters);
        let spans: Vec<_> = entry.spans.iter().map(|s| (s.inputs.clone(), s.outputs.clone())).collect();
        assert_eq!(spans, [(4..6, 0..2), (2..8, 2..4), (0..10, 4..6), (0..2, 6..7)]);
        let text: Vec<f32> = (0..12).map(|i| (i as f32 * 0.4).cos()).collect();
        let local = entry.forward(&Rows::Windows(Windows::new(std::slice::from_ref(&text), &[0.0; 2])));
        let mut pooled = [0.0; 7];
        filters.pool(&text, &mut pooled);
        for (o, pooled) in pooled.iter().enumerate() {
            let mean = local.iter().skip(o).step_by(7).map(|v| v.max(0.0)).sum::<f32>() / 6.0;
            assert!((mean - pooled).abs() < 1e-5, "{o}: {mean}, {pooled}");
        }
    }

    #[test]
    fn spans_equal_the_whole_weight_with_zeros() {
        let spans =
            vec![Span { inputs: 3..5, outputs: 0..4, scale: 2.0 }, Span { inputs: 0..9, outputs: 4..7, scale: 1.0 }];
        let whole = Entry::new(9, 8, Init::Linear, 3);
        let parts = whole.clone().of_spans(spans);
        // More rows than one task has.
        let n = 2 * PIECE + 3;
        let x: Vec<f32> = (0..n * 9).map(|i| (i as f32 * 0.37).sin()).collect();
        let slope: Vec<f32> = (0..n * 8).map(|i| (i as f32 * 0.11).cos() / n as f32).collect();
        let rows = Rows::Dense(Matrix::from_vec(9, x.clone()));
        let used = |i: usize, o: usize| if o < 4 { (3..5).contains(&i) } else { o < 7 };
        let a = parts.forward(&rows);
        for (r, row) in a.chunks_exact(8).enumerate() {
            for (o, v) in row.iter().enumerate() {
                let scale = if o < 4 { 2.0 } else { 1.0 };
                let sum: f32 =
                    (0..9).filter(|i| used(*i, o)).map(|i| x[r * 9 + i] * whole.weight.values[i * 8 + o] * scale).sum();
                assert!((v - sum - whole.bias.values[o]).abs() < 1e-5, "{r}, {o}");
            }
        }
        // The first update of Adam is the rate against the sign of the gradient.
        let mut moved = parts.clone();
        moved.update(&rows, &slope, 0.01, 1);
        for i in 0..9 {
            for o in 0..8 {
                let gradient: f32 = (0..n).map(|r| x[r * 9 + i] * slope[r * 8 + o]).sum();
                let step = moved.weight.values[i * 8 + o] - parts.weight.values[i * 8 + o];
                let expected = if used(i, o) { -0.01 * gradient.signum() } else { 0.0 };
                assert!((step - expected).abs() < 1e-4 || gradient.abs() < 1e-4, "{i}, {o}: {step}, {expected}");
            }
        }
    }
}
