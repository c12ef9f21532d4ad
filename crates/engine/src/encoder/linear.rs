//! One dense layer of the encoder in any precision.

use std::ops::Range;
use std::sync::Arc;

use kernels::Backend;
use kernels::aligned::Aligned;
use kernels::bf16::{self, HalfRows, HalfWeight};
use kernels::gemm::{Epilogue, PackedWeight};
use kernels::int8::{self, ByteRows, ByteWeight};

use super::Precision;
use super::team::Team;
use super::transformer::Activation;

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

/// A product's input, rounded to the precision of the weights. Empty for `f32` weights.
#[derive(Default)]
pub struct Rounded {
    halves: HalfRows,
    bytes: ByteRows,
}

/// Buffers of products, reused between batches.
#[derive(Default)]
pub struct Rows {
    rounded: Rounded,
    // Results of the first of two products, [rows, outputs of the first], in one of the two buffers.
    wide: Aligned<f32>,
    wide_halves: HalfRows,
    gates: Aligned<f32>,
}

impl Linear {
    /// Packs a row-major weight `[bias.len(), inputs]`.
    pub fn new(weight: &[f32], bias: Vec<f32>, inputs: usize, precision: Precision) -> Self {
        let weight = match precision {
            Precision::F32 => Weight::Float(PackedWeight::new(weight, bias.len(), inputs)),
            Precision::Bf16 => Weight::Halves(HalfWeight::new(weight, bias.len(), inputs)),
            Precision::Int8 => Weight::Bytes(ByteWeight::new(weight, bias.len(), inputs)),
        };
        Linear { weight, bias }
    }

    pub fn inputs(&self) -> usize {
        match &self.weight {
            Weight::Float(w) => w.inputs(),
            Weight::Halves(w) => w.inputs(),
            Weight::Bytes(w) => w.inputs(),
        }
    }

    pub fn outputs(&self) -> usize {
        self.bias.len()
    }

    /// Whether the weights are `f32`, so that [`Linear::multiply`] reads rows as they are.
    pub fn is_float(&self) -> bool {
        matches!(self.weight, Weight::Float(_))
    }

    /// Panels of the outputs.
    pub fn panels(&self) -> usize {
        match &self.weight {
            Weight::Float(w) => w.panels(),
            Weight::Halves(w) => w.panels(),
            Weight::Bytes(w) => w.panels(),
        }
    }

    /// Rounds `x[rows, inputs]` for [`Linear::multiply`].
    pub fn round(&self, x: &[f32], rounded: &mut Rounded) {
        match &self.weight {
            Weight::Float(_) => {}
            Weight::Halves(w) => rounded.halves.fill(Backend::active(), x, w.inputs()),
            Weight::Bytes(w) => rounded.bytes.fill(Backend::active(), x, w.inputs()),
        }
    }

    /// `y[rows, outputs of the panels] = activation(x W^T + bias)` of rounded rows.
    pub fn multiply(
        &self,
        panels: Range<usize>,
        x: &[f32],
        rounded: &Rounded,
        y: &mut [f32],
        activation: Option<Activation>,
    ) {
        let epilogue = self.epilogue(activation);
        match &self.weight {
            Weight::Float(w) => w.multiply_panels(panels, x, y, x.len() / w.inputs(), epilogue),
            Weight::Halves(w) => w.multiply_panels(panels, &rounded.halves, y, epilogue),
            Weight::Bytes(w) => w.multiply_panels(panels, &rounded.bytes, y, epilogue),
        }
    }

    fn epilogue(&self, activation: Option<Activation>) -> Epilogue<'_> {
        activation.map_or(Epilogue::Bias(&self.bias), |activation| activation.epilogue(&self.bias))
    }

    /// `y = activation(x W^T + bias)` rounded to `bf16`, on one thread.
    ///
    /// # Panics
    /// If the weights are `f32`: their results are not rounded.
    pub fn apply_into(&self, x: &[f32], y: &mut HalfRows, rows: &mut Rows, activation: Option<Activation>) {
        let (backend, epilogue) = (Backend::active(), self.epilogue(activation));
        self.round(x, &mut rows.rounded);
        match &self.weight {
            Weight::Float(_) => panic!("results of f32 are not rounded"),
            Weight::Halves(w) => w.multiply_into(bf16::Unit::of(backend), &rows.rounded.halves, y, epilogue),
            Weight::Bytes(w) => w.multiply_into(int8::Unit::of(backend), &rows.rounded.bytes, y, epilogue),
        }
    }

    /// `y = x W^T + bias` of rows that are already `bf16`, for `bf16` weights.
    ///
    /// # Panics
    /// If the weights are not `bf16`.
    pub fn apply_halves(&self, x: &HalfRows, y: &mut [f32]) {
        let Weight::Halves(w) = &self.weight else { panic!("rows are bf16, weights are not") };
        w.multiply_panels(0..w.panels(), x, y, Epilogue::Bias(&self.bias));
    }

    /// `y = next(activation(x W^T + bias))`. The intermediate values are rounded at once if `next` would round them.
    pub fn apply_then(
        self: &Arc<Self>,
        next: &Arc<Linear>,
        x: &[f32],
        y: &mut [f32],
        rows: &mut Rows,
        team: &Team,
        activation: Activation,
    ) {
        if team.is_alone() && matches!(next.weight, Weight::Halves(_)) {
            let mut between = std::mem::take(&mut rows.wide_halves);
            self.apply_into(x, &mut between, rows, Some(activation));
            next.apply_halves(&between, y);
            rows.wide_halves = between;
        } else {
            let mut between = std::mem::take(&mut rows.wide);
            let wide = between.space(y.len() / next.outputs() * self.outputs());
            self.apply(x, wide, rows, team, Some(activation));
            next.apply(wide, y, rows, team, None);
            rows.wide = between;
        }
    }

    /// `y = next(activation(x W^T) * (x G^T))`: a feed-forward block with a gate.
    #[allow(clippy::too_many_arguments)]
    pub fn apply_gated(
        self: &Arc<Self>,
        gate: &Arc<Linear>,
        next: &Arc<Linear>,
        x: &[f32],
        y: &mut [f32],
        rows: &mut Rows,
        team: &Team,
        activation: Activation,
    ) {
        let (mut between, mut gates) = (std::mem::take(&mut rows.wide), std::mem::take(&mut rows.gates));
        let size = y.len() / next.outputs() * self.outputs();
        let (wide, open) = (between.space(size), gates.space(size));
        self.apply(x, wide, rows, team, Some(activation));
        gate.apply(x, open, rows, team, None);
        wide.iter_mut().zip(&*open).for_each(|(w, g)| *w *= g);
        next.apply(wide, y, rows, team, None);
        (rows.wide, rows.gates) = (between, gates);
    }

    /// `y[rows, outputs] = activation(x[rows, inputs] W^T + bias)`.
    pub fn apply(
        self: &Arc<Self>,
        x: &[f32],
        y: &mut [f32],
        rows: &mut Rows,
        team: &Team,
        activation: Option<Activation>,
    ) {
        if !team.is_alone() {
            return team.multiply(self, x, y, activation);
        }
        self.round(x, &mut rows.rounded);
        self.multiply(0..self.panels(), x, &rows.rounded, y, activation);
    }
}
