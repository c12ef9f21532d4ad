//! `y = x W^T` in bytes: weights of eight bits with a scale per output, rows of seven bits with a step and a floor per row.
//!
//! A weight is `scale[output] * w`, `w` in [-127, 127]; a value of a row is `floor + step * q`, `q` in [0, 127]. So
//!
//! ```text
//! y[i, j] = step[i] scale[j] sum_k(q[i, k] w[j, k]) + floor[i] scale[j] sum_k(w[j, k])
//! ```
//!
//! plus a few terms for the outliers of a row (`rows.rs`). The first sum is a sum of integers: exact in any order, so every
//! unit gives the same bits.
//!
//! It must not saturate. AVX2's `vpmaddubsw` puts two products into sixteen bits, at most 2 x 127 x 127, and two of its
//! results are added before they are widened (`vpmaddwd`), which halves the widening. So among the four weights whose products
//! are added there ([`QUADS`]), the weights of one sign are clamped to a sum of 258: 127 x 258 = 32,766. Few sums are larger:
//! the largest weight of a row sets the scale, and four weights near it are seldom in one quad. Seven bits for all weights
//! doubled the error.
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
use crate::gemm::{Element, Epilogue, PANEL, PanelOutput, RowProducts, panel_values};
use crate::lanes::{LANES, fold};

/// Inputs are padded with zeros to a multiple of this, the row of an AMX tile.
const STEP: usize = 64;

/// Largest magnitude of a quantized weight.
const MAX_WEIGHT: f32 = 127.0;

/// The two groups of four, among eight neighbouring inputs, whose products AVX2 adds in sixteen bits.
const QUADS: [[usize; 4]; 2] = [[0, 1, 4, 5], [2, 3, 6, 7]];

/// Largest sum of the weights of one sign in a quad; the module documentation gives the reason.
const MAX_QUAD_SUM: i32 = 258;

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
    Amx,
}

impl Unit {
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
                if crate::amx::tile_support().int8 {
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
        let fastest = match backend {
            Backend::Reference => Unit::Reference,
            Backend::Neon => Unit::Dot,
            Backend::Avx2 => Unit::Avx2,
            Backend::Avx512 => Unit::Amx,
        };
        *Unit::detected().iter().rev().find(|u| **u <= fastest).expect("the reference is always there")
    }

    fn detected() -> &'static [Unit] {
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
    // [panels * PANEL]: value of one unit of a weight.
    scale: Vec<f32>,
    // [panels * PANEL]: scale times the sum of the weights, the factor of a row's floor.
    sums: Vec<f32>,
}

impl ByteWeight {
    /// Rounds and packs row-major `[outputs, inputs]`.
    ///
    /// # Panics
    /// When `weight` does not have `outputs * inputs` values.
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

    pub fn inputs(&self) -> usize {
        self.inputs
    }

    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// `y[rows, outputs] = epilogue(x W^T)` on the fastest unit of the active backend.
    ///
    /// # Panics
    /// When a length is wrong.
    pub fn multiply(&self, x: &ByteRows, y: &mut [f32], epilogue: Epilogue) {
        self.multiply_on(Unit::of(Backend::active()), x, y, epilogue);
    }

    /// [`Self::multiply`] on the given unit.
    ///
    /// # Panics
    /// When a length is wrong or the CPU lacks the unit.
    pub fn multiply_on(&self, unit: Unit, x: &ByteRows, y: &mut [f32], epilogue: Epilogue) {
        self.multiply_panels_on(unit, 0..self.panels(), x, y, epilogue);
    }

    /// Number of panels of sixteen outputs; the last may be narrower.
    pub fn panels(&self) -> usize {
        self.outputs.div_ceil(PANEL)
    }

    /// The outputs of the given panels, so that threads can share a product of few rows: `y` is
    /// `[rows, outputs of these panels]`.
    ///
    /// # Panics
    /// When a length is wrong.
    pub fn multiply_panels(&self, panels: Range<usize>, x: &ByteRows, y: &mut [f32], epilogue: Epilogue) {
        self.multiply_panels_on(Unit::of(Backend::active()), panels, x, y, epilogue);
    }

    /// [`Self::multiply_panels`] on the given unit.
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

    /// `y = epilogue(x W^T)` rounded to `bf16`, on the given unit.
    ///
    /// # Panics
    /// When a length is wrong or the CPU lacks the unit.
    pub fn multiply_into(&self, unit: Unit, x: &ByteRows, y: &mut HalfRows, epilogue: Epilogue) {
        y.fill_by(x.rows(), self.outputs, |y, stride| self.product(unit, 0..self.panels(), x, y, stride, epilogue));
    }

    /// `outputs` is the distance between rows of the result in values.
    fn product<T: Element>(
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
        assert!(Unit::detected().contains(&unit), "this CPU has no {}", unit.name());
        let args = ProductArgs { weight: self, x, outputs, first: panels.start, epilogue };
        match unit {
            Unit::Reference => panels.for_each(|panel| reference(&args, y, panel)),
            // SAFETY: the lengths were checked above, panels and rows are whole by construction, and the CPU was seen to
            // have the unit.
            #[cfg(target_arch = "x86_64")]
            Unit::Avx2 => panels.for_each(|panel| unsafe { x86::avx2(&args, y, panel) }),
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Unit::Vnni => panels.for_each(|panel| unsafe { x86::vnni(&args, y, panel) }),
            // SAFETY: as above; space for whole tiles of rows is there by construction.
            #[cfg(target_arch = "x86_64")]
            Unit::Amx => unsafe { x86::amx(&args, y, panels) },
            // SAFETY: as for AVX2.
            #[cfg(target_arch = "aarch64")]
            Unit::Dot => panels.for_each(|panel| unsafe { arm::dot(&args, y, panel) }),
            #[allow(unreachable_patterns)]
            _ => unreachable!("only units of this CPU pass the check above"),
        }
    }

    fn panel(&self, p: usize) -> &[i8] {
        let size = PANEL * self.inputs.next_multiple_of(STEP);
        &self.panels[p * size..(p + 1) * size]
    }
}

per_backend! {
    /// Rounds weights into panels that are allocated.
    fn pack(weight: &[f32], packed: &mut ByteWeight) => pack_body;
}

#[inline(always)]
fn pack_body(weight: &[f32], packed: &mut ByteWeight) {
    let inputs = packed.inputs;
    let size = PANEL * inputs.next_multiple_of(STEP);
    let mut bytes = vec![0i8; inputs.next_multiple_of(8)];
    for (j, row) in weight.chunks_exact(inputs.max(1)).enumerate() {
        let mut max = [0.0f32; LANES];
        let (chunks, rest) = row.as_chunks::<LANES>();
        for c in chunks {
            for l in 0..LANES {
                max[l] = if c[l].abs() > max[l] { c[l].abs() } else { max[l] };
            }
        }
        for (m, w) in max.iter_mut().zip(rest) {
            *m = m.max(w.abs());
        }
        let max = fold(max, f32::max);
        let (scale, inverse) = if max > 0.0 { (max / MAX_WEIGHT, MAX_WEIGHT / max) } else { (0.0, 0.0) };
        // 1.5 * 2^23: adding it rounds to the nearest integer, which then is in the low bits.
        const ROUND: f32 = 12_582_912.0;
        for (q, w) in bytes.iter_mut().zip(row) {
            *q = w.mul_add(inverse, ROUND).to_bits() as i8;
        }
        for eight in bytes.as_chunks_mut::<8>().0 {
            // Four weights below 64 cannot exceed the sum; magnitudes from 64 on have this bit.
            if eight.iter().fold(0, |all, q| all | q.unsigned_abs()) & 64 != 0 {
                clamp_quads(eight);
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

/// Clamps the quads of eight weights to [`MAX_QUAD_SUM`] by lowering the largest weight step by step.
#[inline(never)]
fn clamp_quads(eight: &mut [i8; 8]) {
    for quad in QUADS {
        for sign in [1, -1] {
            let magnitude = |q: i8| (sign * i32::from(q)).max(0);
            while quad.iter().map(|&k| magnitude(eight[k])).sum::<i32>() > MAX_QUAD_SUM {
                let largest = quad.into_iter().max_by_key(|&k| magnitude(eight[k])).expect("four");
                eight[largest] -= sign as i8;
            }
        }
    }
}

/// Arguments of a product.
struct ProductArgs<'a> {
    weight: &'a ByteWeight,
    x: &'a ByteRows,
    // Distance between rows of the result in values.
    outputs: usize,
    // First panel of the result.
    first: usize,
    epilogue: Epilogue<'a>,
}

/// Scales that turn the integer sums of one panel into values, and the destination of the values.
struct PanelScales<'a> {
    weights: &'a [i8],
    scale: [f32; PANEL],
    sums: [f32; PANEL],
    output: PanelOutput<'a>,
}

impl ProductArgs<'_> {
    // Inlined into its caller, which has the unit's instructions. Otherwise sixteen values are copied in fours, and a load of them
    // as one register waits for all four stores.
    #[inline(always)]
    fn panel_scales(&self, panel: usize) -> PanelScales<'_> {
        let bias = panel_values(self.epilogue.bias(), panel);
        let column = (panel - self.first) * PANEL;
        PanelScales {
            weights: self.weight.panel(panel),
            scale: panel_values(&self.weight.scale, panel),
            sums: panel_values(&self.weight.sums, panel),
            output: PanelOutput { epilogue: self.epilogue, bias, outputs: self.outputs, column },
        }
    }

    /// Turns the integer sums of one panel, for the rows from `first` on, into values and stores them.
    #[inline(always)]
    fn finish<T: Element>(&self, y: &mut [T], panel: &PanelScales, first: usize, sums: &[[i32; PANEL]]) {
        let rows = self.x.scales(first..first + sums.len());
        let dequantized = Dequantized { rows, weights: panel.weights, scale: panel.scale, floors: panel.sums, sums };
        panel.output.store(y, first, sums.len(), dequantized);
    }
}

/// Integer sums of rows and one panel, turned into values on demand.
struct Dequantized<'a> {
    rows: Scales<'a>,
    weights: &'a [i8],
    scale: [f32; PANEL],
    floors: [f32; PANEL],
    sums: &'a [[i32; PANEL]],
}

impl RowProducts for Dequantized<'_> {
    #[inline(always)]
    fn row(&self, r: usize) -> [f32; PANEL] {
        let Dequantized { rows, weights, scale, floors, sums } = self;
        let (step, floor) = (rows.steps[r], rows.floors[r]);
        let mut tile = [0.0f32; PANEL];
        for j in 0..PANEL {
            tile[j] = (sums[r][j] as f32).mul_add(step * scale[j], floor * floors[j]);
        }
        for &(input, value) in rows.outliers(r) {
            let (group, byte) = (input as usize / 4, input % 4);
            let weights = weights[group * 4 * PANEL..][..4 * PANEL].as_chunks::<4>().0;
            for j in 0..PANEL {
                // Weight number `byte` of the four, sign-extended.
                let w = (i32::from_le_bytes(weights[j].map(|b| b as u8)) << (24 - 8 * byte)) >> 24;
                tile[j] = (value * scale[j]).mul_add(w as f32, tile[j]);
            }
        }
        tile
    }
}

fn reference<T: Element>(args: &ProductArgs, y: &mut [T], panel: usize) {
    let scales = args.panel_scales(panel);
    for i in 0..args.x.rows() {
        let mut sums = [0i32; PANEL];
        for (q, group) in args.x.row(i).as_chunks::<4>().0.iter().zip(args.weight.panel(panel).chunks_exact(4 * PANEL))
        {
            for (sum, w) in sums.iter_mut().zip(group.as_chunks::<4>().0) {
                *sum += (0..4).map(|t| i32::from(q[t]) * i32::from(w[t])).sum::<i32>();
            }
        }
        args.finish(y, &scales, i, &[sums]);
    }
}
