//! `y = x W^T` in bytes: weights of eight bits with a scale an output, rows of seven bits with a step and a floor a row.
//!
//! A weight is `scale[output] * w`, `w` in [-127, 127]; a value of a row is `floor + step * q`, `q` in [0, 127]. So
//!
//! ```text
//! y[i, j] = step[i] scale[j] sum_k(q[i, k] w[j, k]) + floor[i] scale[j] sum_k(w[j, k])
//! ```
//!
//! and a few terms more for values kept apart (`rows.rs`). The first sum is one of whole numbers: exact in any order, so
//! every unit gives the same bits.
//!
//! It must not saturate. AVX2's `vpmaddubsw` puts two products into sixteen bits, at most 2 x 127 x 127, and we add two of
//! its results before they are widened (`vpmaddwd`), which halves the widening. So of the four weights that meet there
//! ([`QUADS`]) those of one sign are held to a sum of 258: 127 x 258 = 32,766. Few are above: a scale is set by the largest
//! weight of a row, and four that are near it seldom meet. Holding all weights to seven bits instead made twice the error.
//!
//! Weights lie in panels of sixteen outputs, `[panel][input / 4][16][4]`: two registers of AVX2, one of AVX-512, one row of
//! an AMX tile.

#[cfg(target_arch = "aarch64")]
mod arm;
mod rows;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::OnceLock;

pub use rows::ByteRows;
use rows::Scales;

use crate::Backend;
use crate::aligned::Aligned;
use crate::bf16::HalfRows;
use crate::dispatch::per_backend;
use crate::gemm::{Epilogue, PANEL, Place, Products, Stored, panel_part};
use crate::lanes::{LANES, fold};

/// Inputs are filled up to whole multiples of this with zeros: a row of an AMX tile.
const STEP: usize = 64;

/// Largest magnitude of a weight.
const MOST: f32 = 127.0;

/// Of eight neighbouring inputs, the four whose products AVX2 adds in sixteen bits, and the other four.
const QUADS: [[usize; 4]; 2] = [[0, 1, 4, 5], [2, 3, 6, 7]];

/// Largest sum of the weights of one sign in a quad; see the head of this file.
const QUAD_MOST: i32 = 258;

/// The instructions a product of bytes runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unit {
    /// Plain Rust.
    Reference,
    /// Arm's `sdot`.
    Dot,
    /// `vpmaddubsw` and `vpmaddwd`.
    Avx2,
    /// `vpdpbusd` on 512 bits.
    Vnni,
    /// AMX tiles.
    Amx,
}

impl Unit {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Reference => "reference",
            Unit::Dot => "dot",
            Unit::Avx2 => "avx2",
            Unit::Vnni => "vnni",
            Unit::Amx => "amx",
        }
    }

    /// The units this CPU has, slowest first.
    pub fn available() -> Vec<Unit> {
        #[allow(unused_mut)]
        let mut all = vec![Unit::Reference];
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            if Backend::available().contains(&Backend::Avx2) {
                all.push(Unit::Avx2);
            }
            if Backend::available().contains(&Backend::Avx512) && has!("avx512vnni") {
                all.push(Unit::Vnni);
                if crate::amx::tiles().int8 {
                    all.push(Unit::Amx);
                }
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("dotprod") {
            all.push(Unit::Dot);
        }
        all
    }

    /// The fastest unit a backend may use on this CPU.
    pub fn of(backend: Backend) -> Unit {
        let most = match backend {
            Backend::Reference => Unit::Reference,
            Backend::Neon => Unit::Dot,
            Backend::Avx2 => Unit::Avx2,
            Backend::Avx512 => Unit::Amx,
        };
        *Unit::known().iter().rev().find(|u| **u <= most).expect("the reference is always there")
    }

    fn known() -> &'static [Unit] {
        static UNITS: OnceLock<Vec<Unit>> = OnceLock::new();
        UNITS.get_or_init(Unit::available)
    }
}

/// Weights `[outputs, inputs]` as bytes, packed once for many products.
#[derive(Clone, Debug)]
pub struct ByteWeight {
    outputs: usize,
    inputs: usize,
    // [panels][padded inputs / 4][PANEL][4], zeros beyond the last output and the last input.
    panels: Aligned<i8>,
    // [panels * PANEL]: what a unit of a weight is worth.
    scale: Vec<f32>,
    // [panels * PANEL]: scale times the sum of the weights, which the row's floor is multiplied by.
    sums: Vec<f32>,
}

impl ByteWeight {
    /// Rounds and packs row-major `[outputs, inputs]`.
    ///
    /// # Panics
    /// When the length is another.
    pub fn new(weight: &[f32], outputs: usize, inputs: usize) -> Self {
        assert_eq!(weight.len(), outputs * inputs);
        let (padded, panels) = (inputs.next_multiple_of(STEP), outputs.div_ceil(PANEL));
        let mut packed = ByteWeight {
            outputs,
            inputs,
            panels: Aligned::new(panels * PANEL * padded),
            scale: vec![0.0; panels * PANEL],
            sums: vec![0.0; panels * PANEL],
        };
        pack(Backend::active(), weight, &mut packed);
        packed
    }

    /// Values in.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Values out.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// `y[rows, outputs] = epilogue(x W^T)` on the fastest unit of the active backend.
    pub fn multiply(&self, x: &ByteRows, y: &mut [f32], epilogue: Epilogue) {
        self.multiply_on(Unit::of(Backend::active()), x, y, epilogue);
    }

    /// The same on a unit of choice.
    ///
    /// # Panics
    /// When a length is wrong or the CPU lacks the unit.
    pub fn multiply_on(&self, unit: Unit, x: &ByteRows, y: &mut [f32], epilogue: Epilogue) {
        self.multiply_panels_on(unit, 0..self.panels(), x, y, epilogue);
    }

    /// Panels of sixteen outputs; the last may be narrower.
    pub fn panels(&self) -> usize {
        self.outputs.div_ceil(PANEL)
    }

    /// Outputs of some panels alone, so that a product of few rows can be shared out: `y` is `[rows, outputs of those]`.
    pub fn multiply_panels(&self, panels: Range<usize>, x: &ByteRows, y: &mut [f32], epilogue: Epilogue) {
        self.multiply_panels_on(Unit::of(Backend::active()), panels, x, y, epilogue);
    }

    /// The same on a unit of choice.
    ///
    /// # Panics
    /// When a length is wrong or the CPU lacks the unit.
    pub fn multiply_panels_on(
        &self,
        unit: Unit,
        panels: Range<usize>,
        x: &ByteRows,
        y: &mut [f32],
        epilogue: Epilogue,
    ) {
        assert!(panels.start <= panels.end && panels.end <= self.panels(), "panels of this weight");
        let outputs = (panels.end * PANEL).min(self.outputs) - (panels.start * PANEL).min(self.outputs);
        self.product(unit, panels, x, y, outputs, epilogue);
    }

    /// `y = epilogue(x W^T)` rounded to `bf16`, on a unit of choice.
    ///
    /// # Panics
    /// When a length is wrong or the CPU lacks the unit.
    pub fn multiply_into(&self, unit: Unit, x: &ByteRows, y: &mut HalfRows, epilogue: Epilogue) {
        y.take(x.rows(), self.outputs, |y, stride| self.product(unit, 0..self.panels(), x, y, stride, epilogue));
    }

    /// Rows of the result lie `outputs` values from each other.
    fn product<T: Stored>(
        &self,
        unit: Unit,
        panels: Range<usize>,
        x: &ByteRows,
        y: &mut [T],
        outputs: usize,
        epilogue: Epilogue,
    ) {
        assert_eq!(x.inputs(), self.inputs, "x is [rows, inputs]");
        assert_eq!(y.len(), x.rows() * outputs, "y is [rows, outputs]");
        assert_eq!(epilogue.bias().len(), self.outputs, "a bias for every output");
        assert!(Unit::known().contains(&unit), "this CPU has no {}", unit.name());
        let tiles = Tiles { weight: self, x, outputs, first: panels.start, epilogue };
        match unit {
            Unit::Reference => panels.for_each(|panel| reference(&tiles, y, panel)),
            // SAFETY: the lengths were checked above, panels and rows are whole by construction, and the CPU was seen to
            // have the unit.
            #[cfg(target_arch = "x86_64")]
            Unit::Avx2 => panels.for_each(|panel| unsafe { x86::avx2(&tiles, y, panel) }),
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Unit::Vnni => panels.for_each(|panel| unsafe { x86::vnni(&tiles, y, panel) }),
            // SAFETY: as above; space for whole tiles of rows is there by construction.
            #[cfg(target_arch = "x86_64")]
            Unit::Amx => unsafe { x86::amx(&tiles, y, panels) },
            // SAFETY: as for AVX2.
            #[cfg(target_arch = "aarch64")]
            Unit::Dot => panels.for_each(|panel| unsafe { arm::dot(&tiles, y, panel) }),
            #[allow(unreachable_patterns)]
            _ => unreachable!("only what this CPU has passes"),
        }
    }

    fn panel(&self, p: usize) -> &[i8] {
        let size = PANEL * self.inputs.next_multiple_of(STEP);
        &self.panels[p * size..(p + 1) * size]
    }
}

per_backend! {
    /// Rounds weights into panels whose space is there.
    fn pack(weight: &[f32], packed: &mut ByteWeight) => pack_body;
}

#[inline(always)]
fn pack_body(weight: &[f32], packed: &mut ByteWeight) {
    let inputs = packed.inputs;
    let size = PANEL * inputs.next_multiple_of(STEP);
    let mut bytes = vec![0i8; inputs.next_multiple_of(8)];
    for (j, row) in weight.chunks_exact(inputs.max(1)).enumerate() {
        let mut most = [0.0f32; LANES];
        let (chunks, rest) = row.as_chunks::<LANES>();
        for c in chunks {
            for l in 0..LANES {
                most[l] = if c[l].abs() > most[l] { c[l].abs() } else { most[l] };
            }
        }
        for (m, w) in most.iter_mut().zip(rest) {
            *m = m.max(w.abs());
        }
        let most = fold(most, f32::max);
        let (scale, inverse) = if most > 0.0 { (most / MOST, MOST / most) } else { (0.0, 0.0) };
        // 1.5 * 2^23: adding it rounds to the nearest whole number, which then stands in the low bits.
        const ROUND: f32 = 12_582_912.0;
        for (q, w) in bytes.iter_mut().zip(row) {
            *q = w.mul_add(inverse, ROUND).to_bits() as i8;
        }
        for eight in bytes.as_chunks_mut::<8>().0 {
            // Four below 64 cannot exceed it; 64 and more have this bit.
            if eight.iter().fold(0, |all, q| all | q.unsigned_abs()) & 64 != 0 {
                hold(eight);
            }
        }
        let sum: i32 = bytes.iter().map(|q| i32::from(*q)).sum();
        let panel = &mut packed.panels[j / PANEL * size..][..size];
        for (group, four) in panel.chunks_exact_mut(4 * PANEL).zip(bytes.as_chunks::<4>().0) {
            group[j % PANEL * 4..][..4].copy_from_slice(four);
        }
        packed.scale[j] = scale;
        packed.sums[j] = scale * sum as f32;
    }
}

/// Holds the quads of eight weights to their largest sums: the largest gives way.
#[inline(never)]
fn hold(eight: &mut [i8; 8]) {
    for quad in QUADS {
        for sign in [1, -1] {
            let part = |q: i8| (sign * i32::from(q)).max(0);
            while quad.iter().map(|&k| part(eight[k])).sum::<i32>() > QUAD_MOST {
                let largest = quad.into_iter().max_by_key(|&k| part(eight[k])).expect("four");
                eight[largest] -= sign as i8;
            }
        }
    }
}

/// One product under way.
struct Tiles<'a> {
    weight: &'a ByteWeight,
    x: &'a ByteRows,
    // Values from one row of the result to the next, and the panel the first of a row belongs to.
    outputs: usize,
    first: usize,
    epilogue: Epilogue<'a>,
}

/// What turns the sums of one panel into values, and where these go.
struct Edge<'a> {
    weights: &'a [i8],
    scale: [f32; PANEL],
    sums: [f32; PANEL],
    place: Place<'a>,
}

impl Tiles<'_> {
    // Into its caller, which has the unit's instructions: without, sixteen values are copied by fours, and who reads them as one
    // register waits for all of these.
    #[inline(always)]
    fn edge(&self, panel: usize) -> Edge<'_> {
        let bias = panel_part(self.epilogue.bias(), panel);
        let column = (panel - self.first) * PANEL;
        Edge {
            weights: self.weight.panel(panel),
            scale: panel_part(&self.weight.scale, panel),
            sums: panel_part(&self.weight.sums, panel),
            place: Place { epilogue: self.epilogue, bias, outputs: self.outputs, column },
        }
    }

    /// Sums of the rows from `first` on and one panel to values in their place.
    #[inline(always)]
    fn finish<T: Stored>(&self, y: &mut [T], edge: &Edge, first: usize, sums: &[[i32; PANEL]]) {
        let rows = self.x.scales(first..first + sums.len());
        let finished = Finished { rows, weights: edge.weights, scale: edge.scale, floors: edge.sums, sums };
        edge.place.put(y, first, sums.len(), finished);
    }
}

/// Sums of some rows and one panel, to be made values.
struct Finished<'a> {
    rows: Scales<'a>,
    weights: &'a [i8],
    scale: [f32; PANEL],
    floors: [f32; PANEL],
    sums: &'a [[i32; PANEL]],
}

impl Products for Finished<'_> {
    #[inline(always)]
    fn row(&self, r: usize) -> [f32; PANEL] {
        let Finished { rows, weights, scale, floors, sums } = self;
        let (step, floor) = (rows.steps[r], rows.floors[r]);
        let mut tile = [0.0f32; PANEL];
        for j in 0..PANEL {
            tile[j] = (sums[r][j] as f32).mul_add(step * scale[j], floor * floors[j]);
        }
        for &(input, value) in rows.apart(r) {
            let (group, place) = (input as usize / 4, input % 4);
            let weights = weights[group * 4 * PANEL..][..4 * PANEL].as_chunks::<4>().0;
            for j in 0..PANEL {
                // The byte at its place, with its sign.
                let w = (i32::from_le_bytes(weights[j].map(|b| b as u8)) << (24 - 8 * place)) >> 24;
                tile[j] = (value * scale[j]).mul_add(w as f32, tile[j]);
            }
        }
        tile
    }
}

fn reference<T: Stored>(tiles: &Tiles, y: &mut [T], panel: usize) {
    let edge = tiles.edge(panel);
    for i in 0..tiles.x.rows() {
        let mut sums = [0i32; PANEL];
        for (q, group) in
            tiles.x.row(i).as_chunks::<4>().0.iter().zip(tiles.weight.panel(panel).chunks_exact(4 * PANEL))
        {
            for (sum, w) in sums.iter_mut().zip(group.as_chunks::<4>().0) {
                *sum += (0..4).map(|t| i32::from(q[t]) * i32::from(w[t])).sum::<i32>();
            }
        }
        tiles.finish(y, &edge, i, &[sums]);
    }
}
