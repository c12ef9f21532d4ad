//! Quantization of `f32` rows to seven bits, with a step and a floor per row, and a few outliers stored separately.
//!
//! An encoder's states have a few channels with outliers: 90 in BERT-base, where the largest other value is 2. A step wide
//! enough for them would leave the other values two bits. So values beyond [`OUTLIER_FACTOR`] times the mean magnitude of
//! their row, at most [`MAX_OUTLIERS`] of them, are clamped to the range of the others, and the excess is stored beside the
//! bytes as `f32`. Each outlier costs the product one more multiplication per output.

use std::ops::Range;

use super::STEP;
use crate::Backend;
use crate::aligned::Aligned;
use crate::dispatch::per_backend;
use crate::lanes::{LANES, fold};

/// Largest quantized value: seven bits.
const MAX_BYTE: f32 = 127.0;

/// Values beyond this multiple of their row's mean magnitude are outliers. Among normally distributed values, one in some
/// thousand million is.
const OUTLIER_FACTOR: f32 = 8.0;

/// Largest number of outliers per row. Where more values lie beyond the limit, the limit is raised.
const MAX_OUTLIERS: usize = 8;

/// Rows as bytes, in memory that is reused between batches.
#[derive(Clone, Debug, Default)]
pub struct ByteRows {
    inputs: usize,
    // [rows rounded up to whole tiles, inputs rounded up to whole steps]; the padding is unspecified and has no effect.
    values: Aligned<u8>,
    // [rows]: value of one unit of a byte.
    steps: Vec<f32>,
    // [rows]: value of byte 0.
    floors: Vec<f32>,
    // (input, excess) of the outliers, row by row.
    outliers: Vec<(u32, f32)>,
    // [rows + 1]: where each row's outliers begin.
    outlier_starts: Vec<u32>,
}

/// Rows of an AMX tile. Whole tiles can be read.
const ROWS: usize = 16;

impl ByteRows {
    /// Quantizes `x`, `[rows, inputs]`: outliers aside, a row's smallest value becomes 0 and its largest 127.
    ///
    /// # Panics
    /// When the length is not a multiple of `inputs`, or the CPU lacks the backend.
    pub fn fill(&mut self, backend: Backend, x: &[f32], inputs: usize) {
        assert!(inputs > 0 && x.len().is_multiple_of(inputs), "x is [rows, inputs]");
        let rows = x.len() / inputs;
        let size = rows.next_multiple_of(ROWS) * inputs.next_multiple_of(STEP);
        // The padding stays unspecified: results of padding rows are ignored, and weights of padding inputs are zero.
        self.values.space(size);
        self.inputs = inputs;
        self.steps.resize(rows, 0.0);
        self.floors.resize(rows, 0.0);
        round(backend, x, self);
    }

    pub fn rows(&self) -> usize {
        self.steps.len()
    }

    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Distance from row to row in bytes.
    pub(super) fn stride(&self) -> usize {
        self.inputs.next_multiple_of(STEP)
    }

    /// The bytes of row `i`, padded to whole steps.
    pub(super) fn row(&self, i: usize) -> &[u8] {
        &self.values[i * self.stride()..(i + 1) * self.stride()]
    }

    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(super) fn values(&self) -> &[u8] {
        &self.values
    }

    #[inline(always)]
    pub(super) fn scales(&self, rows: Range<usize>) -> Scales<'_> {
        Scales {
            steps: &self.steps[rows.clone()],
            floors: &self.floors[rows.clone()],
            outlier_starts: &self.outlier_starts[rows.start..rows.end + 1],
            outliers: &self.outliers,
        }
    }
}

/// Steps, floors and outliers of consecutive rows. Looked up once for the rows of a tile.
pub(super) struct Scales<'a> {
    pub steps: &'a [f32],
    pub floors: &'a [f32],
    outlier_starts: &'a [u32],
    outliers: &'a [(u32, f32)],
}

impl<'a> Scales<'a> {
    /// Inputs and excess values of the outliers of row `r`.
    #[inline(always)]
    pub(super) fn outliers(&self, r: usize) -> &'a [(u32, f32)] {
        let (from, to) = (self.outlier_starts[r], self.outlier_starts[r + 1]);
        // Most rows have none, and then nothing else is read.
        if from == to { &[] } else { &self.outliers[from as usize..to as usize] }
    }
}

per_backend! {
    /// Fills rows that `fill` has allocated.
    fn round(x: &[f32], rows: &mut ByteRows) => round_body;
}

#[inline(always)]
fn round_body(x: &[f32], rows: &mut ByteRows) {
    let (inputs, stride) = (rows.inputs, rows.stride());
    rows.outliers.clear();
    rows.outlier_starts.clear();
    rows.outlier_starts.push(0);
    for (i, row) in x.chunks_exact(inputs).enumerate() {
        let mut range = Extent::of::<false>(row, f32::INFINITY);
        let mut limit = OUTLIER_FACTOR * range.magnitude / inputs as f32;
        let has_outliers = range.min < -limit || range.max > limit;
        if has_outliers {
            range = Extent::of::<true>(row, limit);
            let mut beyond = range.beyond;
            if beyond > MAX_OUTLIERS as u32 {
                // Only the count until it fits: one comparison per value, where the extent takes five operations.
                while beyond > MAX_OUTLIERS as u32 {
                    limit *= 1.5;
                    beyond = row.iter().map(|v| u32::from(v.abs() > limit)).sum();
                }
                range = Extent::of::<true>(row, limit);
            }
        }
        let (floor, width) = (range.min, range.max - range.min);
        let inverse = if width > 0.0 { MAX_BYTE / width } else { 0.0 };
        rows.steps[i] = width / MAX_BYTE;
        rows.floors[i] = floor;
        // 2^23: adding it rounds to the nearest integer, which then is in the low bits.
        const ROUND: f32 = 8_388_608.0;
        let to = &mut rows.values[i * stride..i * stride + inputs];
        for (q, v) in to.iter_mut().zip(row) {
            *q = ((v - floor).mul_add(inverse, ROUND).to_bits() & 0x7f) as u8;
        }
        if has_outliers {
            let mut clamp = |input: usize| {
                let v = row[input];
                let (byte, clamped) = if v < floor { (0, floor) } else { (MAX_BYTE as u8, range.max) };
                to[input] = byte;
                rows.outliers.push((input as u32, v - clamped));
            };
            // Sixteen values are tested together: one by one, this took as long as the rest of the function.
            let (chunks, rest) = row.as_chunks::<LANES>();
            for (c, sixteen) in chunks.iter().enumerate() {
                if sixteen.iter().fold(false, |any, v| any | (v.abs() > limit)) {
                    (0..LANES).filter(|l| sixteen[*l].abs() > limit).for_each(|l| clamp(c * LANES + l));
                }
            }
            let from = inputs - rest.len();
            (from..inputs).filter(|input| row[*input].abs() > limit).for_each(clamp);
        }
        rows.outlier_starts.push(rows.outliers.len() as u32);
    }
}

/// Range of the values of a row.
struct Extent {
    min: f32,
    max: f32,
    // Sum of the magnitudes of all values.
    magnitude: f32,
    // Number of values beyond the limit.
    beyond: u32,
}

impl Extent {
    /// Minimum and maximum of the values with a magnitude up to `limit`. Without `LIMITED`, of all values: a minimum is then one
    /// instruction.
    #[inline(always)]
    fn of<const LIMITED: bool>(row: &[f32], limit: f32) -> Self {
        let (mut min, mut max, mut magnitude) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES], [0.0; LANES]);
        let mut beyond = [0u32; LANES];
        let mut take = |l: usize, v: f32| {
            // A comparison and a selection, like the CPU's own minimum: every backend ignores NaN.
            let far = LIMITED & (v.abs() > limit);
            let (low, high) = if far { (f32::INFINITY, f32::NEG_INFINITY) } else { (v, v) };
            min[l] = if low < min[l] { low } else { min[l] };
            max[l] = if high > max[l] { high } else { max[l] };
            magnitude[l] += v.abs();
            beyond[l] += u32::from(far);
        };
        let (chunks, rest) = row.as_chunks::<LANES>();
        for c in chunks {
            for (l, v) in c.iter().enumerate() {
                take(l, *v);
            }
        }
        for (l, v) in rest.iter().enumerate() {
            take(l, *v);
        }
        Extent {
            min: fold(min, |a, b| if b < a { b } else { a }),
            max: fold(max, |a, b| if b > a { b } else { a }),
            magnitude: fold(magnitude, |a, b| a + b),
            beyond: beyond.iter().sum(),
        }
    }
}
