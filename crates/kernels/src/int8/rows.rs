//! Rows of `f32` to rows of seven bits, each with its own step and floor.

use super::STEP;
use crate::Backend;
use crate::dispatch::per_backend;
use crate::lanes::{LANES, fold};

/// Largest value of a byte; see the head of the module.
const MOST: f32 = 127.0;

/// Rows as bytes, and the space for them, kept between batches.
#[derive(Clone, Debug, Default)]
pub struct ByteRows {
    inputs: usize,
    // [rows, inputs to whole steps]; what lies beyond the inputs weighs nothing.
    values: Vec<u8>,
    // [rows]: what a unit is worth, and what zero stands for.
    steps: Vec<f32>,
    floors: Vec<f32>,
}

impl ByteRows {
    /// Takes `x` as `[rows, inputs]`: each row's least value becomes 0, its largest 127.
    ///
    /// # Panics
    /// When the length is not a multiple of `inputs`, or the CPU lacks the backend.
    pub fn fill(&mut self, backend: Backend, x: &[f32], inputs: usize) {
        assert!(inputs > 0 && x.len().is_multiple_of(inputs), "x is [rows, inputs]");
        let rows = x.len() / inputs;
        let size = rows * inputs.next_multiple_of(STEP);
        if self.values.len() < size || self.inputs != inputs {
            self.values.clear();
            self.values.resize(size, 0);
        }
        self.inputs = inputs;
        self.steps.resize(rows, 0.0);
        self.floors.resize(rows, 0.0);
        round(backend, x, self);
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.steps.len()
    }

    /// Values in a row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Bytes from one row to the next.
    pub(super) fn stride(&self) -> usize {
        self.inputs.next_multiple_of(STEP)
    }

    /// The bytes of row `i`, filled up to a whole number of steps.
    pub(super) fn row(&self, i: usize) -> &[u8] {
        &self.values[i * self.stride()..(i + 1) * self.stride()]
    }

    /// The bytes of all rows.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn values(&self) -> &[u8] {
        &self.values
    }

    #[inline(always)]
    pub(super) fn step(&self, i: usize) -> f32 {
        self.steps[i]
    }

    #[inline(always)]
    pub(super) fn floor(&self, i: usize) -> f32 {
        self.floors[i]
    }
}

per_backend! {
    /// Fills rows whose lengths `fill` has made.
    fn round(x: &[f32], rows: &mut ByteRows) => round_body;
}

#[inline(always)]
fn round_body(x: &[f32], rows: &mut ByteRows) {
    let (inputs, stride) = (rows.inputs, rows.stride());
    for (i, row) in x.chunks_exact(inputs).enumerate() {
        let (mut least, mut most) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
        let (chunks, rest) = row.as_chunks::<LANES>();
        for c in chunks {
            for l in 0..LANES {
                // A comparison and a choice, as the CPU's own minimum: not-a-numbers are passed over in every backend.
                least[l] = if c[l] < least[l] { c[l] } else { least[l] };
                most[l] = if c[l] > most[l] { c[l] } else { most[l] };
            }
        }
        for (l, v) in rest.iter().enumerate() {
            least[l] = if *v < least[l] { *v } else { least[l] };
            most[l] = if *v > most[l] { *v } else { most[l] };
        }
        let floor = fold(least, |a, b| if b < a { b } else { a });
        let width = fold(most, |a, b| if b > a { b } else { a }) - floor;
        let inverse = if width > 0.0 { MOST / width } else { 0.0 };
        rows.steps[i] = width / MOST;
        rows.floors[i] = floor;
        // 2^23: adding it rounds to the nearest whole number, which then stands in the low bits.
        const ROUND: f32 = 8_388_608.0;
        let to = &mut rows.values[i * stride..i * stride + inputs];
        for (q, v) in to.iter_mut().zip(row) {
            *q = ((v - floor).mul_add(inverse, ROUND).to_bits() & 0x7f) as u8;
        }
    }
}
