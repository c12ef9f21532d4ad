//! One dense layer of the encoder in any precision.

use kernels::Backend;
use kernels::aligned::Aligned;
use kernels::bf16::{self, HalfRows, HalfWeight};
use kernels::gemm::{Epilogue, PANEL, PackedWeight};
use kernels::int8::{self, ByteRows, ByteWeight};
use rayon::prelude::*;

use super::Precision;

/// Weights and bias, packed for the kernels.
pub struct Linear {
    weight: Weight,
    bias: Vec<f32>,
}

enum Weight {
    Float(PackedWeight),
    Halves(HalfWeight),
    Bytes(ByteWeight),
}

/// What a product needs besides its input, kept between batches.
#[derive(Default)]
pub struct Rows {
    halves: HalfRows,
    bytes: ByteRows,
    // What lies between two products: [rows, outputs of the first], in one of both.
    wide: Aligned<f32>,
    wide_halves: HalfRows,
    // Threads that share one product, and a part of its result each.
    share: usize,
    parts: Vec<Vec<f32>>,
}

impl Rows {
    /// Shares the next products among so many threads.
    pub fn share(&mut self, threads: usize) {
        self.share = threads;
        self.parts.resize(threads, Vec::new());
    }

    /// Whether one thread computes them.
    pub fn alone(&self) -> bool {
        self.share <= 1
    }
}

impl Linear {
    /// Packs row-major `[bias.len(), inputs]`.
    pub fn new(weight: &[f32], bias: Vec<f32>, inputs: usize, precision: Precision) -> Self {
        let weight = match precision {
            Precision::F32 => Weight::Float(PackedWeight::new(weight, bias.len(), inputs)),
            Precision::Bf16 => Weight::Halves(HalfWeight::new(weight, bias.len(), inputs)),
            Precision::Int8 => Weight::Bytes(ByteWeight::new(weight, bias.len(), inputs)),
        };
        Linear { weight, bias }
    }

    /// Values out.
    pub fn outputs(&self) -> usize {
        self.bias.len()
    }

    /// `y = epilogue(x W^T)` rounded to `bf16`, by one thread.
    ///
    /// # Panics
    /// When the weights are `f32`, whose results nobody rounds.
    pub fn apply_into<'a>(
        &'a self,
        x: &[f32],
        y: &mut HalfRows,
        rows: &mut Rows,
        epilogue: impl Fn(&'a [f32]) -> Epilogue<'a>,
    ) {
        let (backend, epilogue) = (Backend::active(), epilogue(&self.bias));
        match &self.weight {
            Weight::Float(_) => panic!("results of f32 are not rounded"),
            Weight::Halves(w) => {
                rows.halves.fill(backend, x, w.inputs());
                w.multiply_into(bf16::Unit::of(backend), &rows.halves, y, epilogue);
            }
            Weight::Bytes(w) => {
                rows.bytes.fill(backend, x, w.inputs());
                w.multiply_into(int8::Unit::of(backend), &rows.bytes, y, epilogue);
            }
        }
    }

    /// `y = x W^T + bias` of rows that are `bf16` already, where the weights are too.
    ///
    /// # Panics
    /// When the weights are not.
    pub fn apply_halves(&self, x: &HalfRows, y: &mut [f32]) {
        let Weight::Halves(w) = &self.weight else { panic!("rows are bf16, weights are not") };
        w.multiply_panels(0..w.panels(), x, y, Epilogue::Bias(&self.bias));
    }

    /// `y = next(epilogue(x W^T))`: what lies between is rounded at once where `next` would do so.
    pub fn apply_then<'a>(
        &'a self,
        next: &'a Linear,
        x: &[f32],
        y: &mut [f32],
        rows: &mut Rows,
        epilogue: impl Fn(&'a [f32]) -> Epilogue<'a>,
    ) {
        if rows.alone() && matches!(next.weight, Weight::Halves(_)) {
            let mut between = std::mem::take(&mut rows.wide_halves);
            self.apply_into(x, &mut between, rows, epilogue);
            next.apply_halves(&between, y);
            rows.wide_halves = between;
        } else {
            let mut between = std::mem::take(&mut rows.wide);
            let wide = between.space(y.len() / next.outputs() * self.outputs());
            self.apply(x, wide, rows, epilogue);
            next.apply(wide, y, rows, Epilogue::Bias);
            rows.wide = between;
        }
    }

    /// `y[rows, outputs] = epilogue(x[rows, inputs] W^T)`.
    pub fn apply<'a>(
        &'a self,
        x: &[f32],
        y: &mut [f32],
        rows: &mut Rows,
        epilogue: impl Fn(&'a [f32]) -> Epilogue<'a>,
    ) {
        let epilogue = epilogue(&self.bias);
        let Rows { halves, bytes, share, parts, .. } = rows;
        let (panels, inputs) = match &self.weight {
            Weight::Float(w) => (w.panels(), w.inputs()),
            Weight::Halves(w) => {
                halves.fill(Backend::active(), x, w.inputs());
                (w.panels(), w.inputs())
            }
            Weight::Bytes(w) => {
                bytes.fill(Backend::active(), x, w.inputs());
                (w.panels(), w.inputs())
            }
        };
        let rows = x.len() / inputs;
        let part = |range: std::ops::Range<usize>, y: &mut [f32]| match &self.weight {
            Weight::Float(w) => w.multiply_panels(range, x, y, rows, epilogue),
            Weight::Halves(w) => w.multiply_panels(range, halves, y, epilogue),
            Weight::Bytes(w) => w.multiply_panels(range, bytes, y, epilogue),
        };
        if *share <= 1 {
            return part(0..panels, y);
        }
        // Every thread takes as many neighbouring panels, into a space of its own: rows of y interleave.
        let outputs = self.outputs();
        let each = panels.div_ceil(*share);
        let span = |i: usize| (i * each * PANEL).min(outputs)..((i + 1) * each * PANEL).min(outputs);
        parts.par_iter_mut().enumerate().for_each(|(i, space)| {
            space.resize(rows * span(i).len(), 0.0);
            part((i * each).min(panels)..((i + 1) * each).min(panels), space);
        });
        for (i, space) in parts.iter().enumerate() {
            let span = span(i);
            if !span.is_empty() {
                for (to, from) in y.chunks_exact_mut(outputs).zip(space.chunks_exact(span.len())) {
                    to[span.clone()].copy_from_slice(from);
                }
            }
        }
    }
}
