//! Rows of `f32` to rows of seven bits, each with its own step and floor, and a few values of it apart.
//!
//! An encoder's states hold a few channels far above the rest: in BERT-base 90 where the others' largest is 2. A step wide
//! enough for them would leave the rest two bits. So what lies beyond [`FAR`] times the mean magnitude of its row, at most
//! [`APART`] values, is held to the range of the rest, and what is cut off is kept beside the bytes as `f32`. Each costs the
//! product one more multiplication an output.

use std::ops::Range;

use super::STEP;
use crate::Backend;
use crate::aligned::Aligned;
use crate::dispatch::per_backend;
use crate::lanes::{LANES, fold};

/// Largest value of a byte; see the head of the module.
const MOST: f32 = 127.0;

/// Times the mean magnitude of a row: what lies beyond is kept apart. Of normally distributed values one in some
/// thousand million does.
const FAR: f32 = 8.0;

/// Most values of a row that are kept apart; where more lie beyond, the limit is moved out.
const APART: usize = 8;

/// Rows as bytes, and the space for them, kept between batches.
#[derive(Clone, Debug, Default)]
pub struct ByteRows {
    inputs: usize,
    // [rows to whole tiles, inputs to whole steps]; what lies beyond rows and inputs weighs nothing.
    values: Aligned<u8>,
    // [rows]: what a unit is worth, and what zero stands for.
    steps: Vec<f32>,
    floors: Vec<f32>,
    // What was cut off, (input, value), row by row; [rows + 1]: where the rows begin.
    apart: Vec<(u32, f32)>,
    begins: Vec<u32>,
}

/// Rows of an AMX tile: as many can be read from any whole multiple of it.
const ROWS: usize = 16;

impl ByteRows {
    /// Takes `x` as `[rows, inputs]`: of each row's values but those kept apart, the least becomes 0, the largest 127.
    ///
    /// # Panics
    /// When the length is not a multiple of `inputs`, or the CPU lacks the backend.
    pub fn fill(&mut self, backend: Backend, x: &[f32], inputs: usize) {
        assert!(inputs > 0 && x.len().is_multiple_of(inputs), "x is [rows, inputs]");
        let rows = x.len() / inputs;
        let size = rows.next_multiple_of(ROWS) * inputs.next_multiple_of(STEP);
        // What lies beyond rows and inputs is not said: the former is thrown away, the latter meets weights of zero.
        self.values.space(size);
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
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(super) fn values(&self) -> &[u8] {
        &self.values
    }

    /// What the bytes of some rows are worth.
    #[inline(always)]
    pub(super) fn scales(&self, rows: Range<usize>) -> Scales<'_> {
        Scales {
            steps: &self.steps[rows.clone()],
            floors: &self.floors[rows.clone()],
            begins: &self.begins[rows.start..rows.end + 1],
            apart: &self.apart,
        }
    }
}

/// What the bytes of some rows are worth, and what they do not hold. Looked up once for the rows of a tile.
pub(super) struct Scales<'a> {
    pub steps: &'a [f32],
    pub floors: &'a [f32],
    begins: &'a [u32],
    apart: &'a [(u32, f32)],
}

impl<'a> Scales<'a> {
    /// Inputs and values of row `r` that its bytes do not hold.
    #[inline(always)]
    pub(super) fn apart(&self, r: usize) -> &'a [(u32, f32)] {
        let (from, to) = (self.begins[r], self.begins[r + 1]);
        // Mostly there are none, and then nothing else is looked at.
        if from == to { &[] } else { &self.apart[from as usize..to as usize] }
    }
}

per_backend! {
    /// Fills rows whose lengths `fill` has made.
    fn round(x: &[f32], rows: &mut ByteRows) => round_body;
}

#[inline(always)]
fn round_body(x: &[f32], rows: &mut ByteRows) {
    let (inputs, stride) = (rows.inputs, rows.stride());
    rows.apart.clear();
    rows.begins.clear();
    rows.begins.push(0);
    for (i, row) in x.chunks_exact(inputs).enumerate() {
        let mut range = Extent::of::<false>(row, f32::INFINITY);
        let mut limit = FAR * range.magnitude / inputs as f32;
        let far = range.least < -limit || range.most > limit;
        if far {
            range = Extent::of::<true>(row, limit);
            let mut beyond = range.beyond;
            if beyond > APART as u32 {
                // Counted alone until it fits: a comparison a value, where the extent takes five steps.
                while beyond > APART as u32 {
                    limit *= 1.5;
                    beyond = row.iter().map(|v| u32::from(v.abs() > limit)).sum();
                }
                range = Extent::of::<true>(row, limit);
            }
        }
        let (floor, width) = (range.least, range.most - range.least);
        let inverse = if width > 0.0 { MOST / width } else { 0.0 };
        rows.steps[i] = width / MOST;
        rows.floors[i] = floor;
        // 2^23: adding it rounds to the nearest whole number, which then stands in the low bits.
        const ROUND: f32 = 8_388_608.0;
        let to = &mut rows.values[i * stride..i * stride + inputs];
        for (q, v) in to.iter_mut().zip(row) {
            *q = ((v - floor).mul_add(inverse, ROUND).to_bits() & 0x7f) as u8;
        }
        if far {
            let mut keep = |place: usize| {
                let v = row[place];
                let (byte, held) = if v < floor { (0, floor) } else { (MOST as u8, range.most) };
                to[place] = byte;
                rows.apart.push((place as u32, v - held));
            };
            // Sixteen are looked at together: one by one, this took as long as all the rest.
            let (chunks, rest) = row.as_chunks::<LANES>();
            for (c, sixteen) in chunks.iter().enumerate() {
                if sixteen.iter().fold(false, |any, v| any | (v.abs() > limit)) {
                    (0..LANES).filter(|l| sixteen[*l].abs() > limit).for_each(|l| keep(c * LANES + l));
                }
            }
            let from = inputs - rest.len();
            (from..inputs).filter(|place| row[*place].abs() > limit).for_each(keep);
        }
        rows.begins.push(rows.apart.len() as u32);
    }
}

/// Where the values of a row lie.
struct Extent {
    least: f32,
    most: f32,
    // Sum of the values without their signs, and how many lie beyond the limit.
    magnitude: f32,
    beyond: u32,
}

impl Extent {
    /// Of the values no farther from zero than `limit`, or of all: then a minimum is one instruction.
    #[inline(always)]
    fn of<const LIMITED: bool>(row: &[f32], limit: f32) -> Self {
        let (mut least, mut most, mut magnitude) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES], [0.0; LANES]);
        let mut beyond = [0u32; LANES];
        let mut take = |l: usize, v: f32| {
            // A comparison and a choice, as the CPU's own minimum: not-a-numbers are passed over in every backend.
            let far = LIMITED & (v.abs() > limit);
            let (low, high) = if far { (f32::INFINITY, f32::NEG_INFINITY) } else { (v, v) };
            least[l] = if low < least[l] { low } else { least[l] };
            most[l] = if high > most[l] { high } else { most[l] };
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
            least: fold(least, |a, b| if b < a { b } else { a }),
            most: fold(most, |a, b| if b > a { b } else { a }),
            magnitude: fold(magnitude, |a, b| a + b),
            beyond: beyond.iter().sum(),
        }
    }
}
