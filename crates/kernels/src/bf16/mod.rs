//! `y = x W^T` of values rounded to `bf16`, summed in `f32` in one of two stated orders.
//!
//! [`Order::Tiles`] is the order of AMX tiles, and the default. Inputs go in steps of 32. In a step one chain of fused
//! multiply-adds from zero takes the even inputs and another the odd inputs; their sum is added to the running sum.
//! [`Order::Pairs`] is the order of `vdpbf16ps`, for CPUs that have it and no tiles: one chain over all inputs, in each pair
//! the odd input first. A product of two `bf16` is exact in `f32`, so each link of a chain rounds once, on any CPU. (Both
//! instructions treat subnormal numbers as zero; none occur among states and weights of an encoder.)
//!
//! Weights lie in panels of sixteen outputs, `[panel][input / 2][16][2]`: a row of a tile is one pair of inputs.

#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::OnceLock;

use crate::Backend;
use crate::aligned::Aligned;
use crate::dispatch::per_backend;
use crate::gemm::{Element, Epilogue, PANEL, PanelOutput, panel_values};
use crate::lanes::{bf16_round as round, bf16_widen as widen};

/// Inputs of a step. Rows and panels are padded with zeros to whole steps.
pub(crate) const STEP: usize = 32;

/// Rows of an AMX tile. Memory is allocated for whole tiles.
const ROWS: usize = 16;

/// The instructions a product runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unit {
    /// Plain Rust.
    Reference,
    /// `f32` instructions on widened values: the speed of `f32`, and the bits of AMX.
    Avx2,
    /// `vdpbf16ps` on 512 bits.
    Pairs,
    Amx,
}

/// The order of a sum, which decides the last bits of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The order of AMX tiles.
    Tiles,
    /// The order of `vdpbf16ps`.
    Pairs,
}

impl Unit {
    pub fn name(self) -> &'static str {
        match self {
            Unit::Reference => "reference",
            Unit::Avx2 => "avx2",
            Unit::Pairs => "avx512bf16",
            Unit::Amx => "amx",
        }
    }

    pub fn order(self) -> Order {
        if self == Unit::Pairs { Order::Pairs } else { Order::Tiles }
    }

    /// The units this CPU has, slowest first.
    pub fn available() -> Vec<Unit> {
        #[allow(unused_mut)]
        let mut all = vec![Unit::Reference];
        #[cfg(target_arch = "x86_64")]
        {
            if Backend::available().contains(&Backend::Avx2) {
                all.push(Unit::Avx2);
            }
            if Backend::available().contains(&Backend::Avx512) {
                if std::arch::is_x86_feature_detected!("avx512bf16") {
                    all.push(Unit::Pairs);
                }
                if crate::amx::tile_support().bf16 {
                    all.push(Unit::Amx);
                }
            }
        }
        all
    }

    /// The fastest unit a backend may use on this CPU.
    pub fn of(backend: Backend) -> Unit {
        let fastest = match backend {
            Backend::Reference | Backend::Neon => Unit::Reference,
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

/// Rows rounded to `bf16`, in memory that is reused between batches.
#[derive(Clone, Debug, Default)]
pub struct HalfRows {
    rows: usize,
    inputs: usize,
    // [rows rounded up to whole tiles plus one tile, inputs rounded up to whole steps]
    values: Aligned<u16>,
}

impl HalfRows {
    /// Rounds `x`, `[rows, inputs]`.
    ///
    /// # Panics
    /// When the length is not a multiple of `inputs`, or the CPU lacks the backend.
    pub fn fill(&mut self, backend: Backend, x: &[f32], inputs: usize) {
        assert!(inputs > 0 && x.len().is_multiple_of(inputs), "x is [rows, inputs]");
        self.reshape(x.len() / inputs, inputs);
        round_rows(backend, x, self);
    }

    /// Sets the shape; the values are unspecified.
    pub(crate) fn reshape(&mut self, rows: usize, inputs: usize) {
        (self.rows, self.inputs) = (rows, inputs);
        // A tile can be read from any row on, and two tiles from the start of any tile on.
        self.values.space((rows + ROWS).next_multiple_of(ROWS) * inputs.next_multiple_of(STEP));
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Fills `[rows, outputs]` by `multiply`, which gets whole panels of every row and the distance from row to row.
    pub(crate) fn fill_by(&mut self, rows: usize, outputs: usize, multiply: impl FnOnce(&mut [u16], usize)) {
        self.reshape(rows, outputs);
        let stride = self.stride();
        // Panels fill multiples of 16 values; a step has 32.
        let whole = outputs.next_multiple_of(PANEL);
        if whole < stride {
            self.values.chunks_exact_mut(stride).for_each(|row| row[whole..].fill(0));
        }
        multiply(&mut self.values[..rows * stride], stride);
    }

    /// `[rows plus padding, stride]`.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(crate) fn values(&self) -> &[u16] {
        &self.values
    }

    pub(crate) fn values_mut(&mut self) -> &mut [u16] {
        &mut self.values
    }

    /// Distance from row to row in values.
    pub(crate) fn stride(&self) -> usize {
        self.inputs.next_multiple_of(STEP)
    }
}

per_backend! {
    /// Fills rows that `fill` has allocated.
    fn round_rows(x: &[f32], rows: &mut HalfRows) => round_rows_body;
}

#[inline(always)]
fn round_rows_body(x: &[f32], rows: &mut HalfRows) {
    let (inputs, stride) = (rows.inputs, rows.stride());
    for (to, from) in rows.values.chunks_exact_mut(stride).zip(x.chunks_exact(inputs)) {
        for (q, v) in to.iter_mut().zip(from) {
            *q = round(*v);
        }
        // Weights beyond the last input are zero, but NaN times zero would be NaN.
        to[inputs..].fill(0);
    }
}

/// Weights `[outputs, inputs]` rounded to `bf16`, packed once for many products.
#[derive(Clone, Debug)]
pub struct HalfWeight {
    outputs: usize,
    inputs: usize,
    // [panels][inputs rounded up to whole steps / 2][PANEL][2]
    panels: Aligned<u16>,
}

impl HalfWeight {
    /// Rounds and packs row-major `[outputs, inputs]`.
    ///
    /// # Panics
    /// When `weight` does not have `outputs * inputs` values.
    pub fn new(weight: &[f32], outputs: usize, inputs: usize) -> Self {
        assert_eq!(weight.len(), outputs * inputs);
        let padded = inputs.next_multiple_of(STEP);
        let mut panels = Aligned::new(outputs.div_ceil(PANEL) * PANEL * padded);
        for (j, row) in weight.chunks_exact(inputs).enumerate() {
            let panel = &mut panels[j / PANEL * PANEL * padded..][..PANEL * padded];
            for (k, w) in row.iter().enumerate() {
                panel[(k / 2 * PANEL + j % PANEL) * 2 + k % 2] = round(*w);
            }
        }
        HalfWeight { outputs, inputs, panels }
    }

    pub fn inputs(&self) -> usize {
        self.inputs
    }

    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Number of panels of sixteen outputs; the last may be narrower.
    pub fn panels(&self) -> usize {
        self.outputs.div_ceil(PANEL)
    }

    /// `y[rows, outputs of these panels] = epilogue(x W^T)` on the fastest unit of the active backend.
    ///
    /// # Panics
    /// When a length is wrong.
    pub fn multiply_panels(&self, panels: Range<usize>, x: &HalfRows, y: &mut [f32], epilogue: Epilogue) {
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
        x: &HalfRows,
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
    pub fn multiply_into(&self, unit: Unit, x: &HalfRows, y: &mut HalfRows, epilogue: Epilogue) {
        y.fill_by(x.rows, self.outputs, |y, stride| self.product(unit, 0..self.panels(), x, y, stride, epilogue));
    }

    /// `outputs` is the distance between rows of the result in values.
    fn product<T: Element>(
        &self,
        unit: Unit,
        panels: Range<usize>,
        x: &HalfRows,
        y: &mut [T],
        outputs: usize,
        epilogue: Epilogue,
    ) {
        assert_eq!(x.inputs, self.inputs, "x is [rows, inputs]");
        assert_eq!(y.len(), x.rows * outputs, "y is [rows, outputs]");
        assert_eq!(epilogue.bias().len(), self.outputs, "a bias for every output");
        assert!(Unit::detected().contains(&unit), "this CPU has no {}", unit.name());
        let args = ProductArgs { weight: self, x, outputs, first: panels.start, epilogue };
        match unit {
            Unit::Reference => panels.for_each(|panel| reference(&args, y, panel, Order::Tiles)),
            // SAFETY: the lengths were checked above, panels and rows are whole by construction, and the CPU was seen to
            // have the unit.
            #[cfg(target_arch = "x86_64")]
            Unit::Avx2 => panels.for_each(|panel| unsafe { x86::avx2(&args, y, panel) }),
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Unit::Pairs => unsafe { x86::pairs(&args, y, panels) },
            // SAFETY: as above; space for whole tiles of rows is there by construction.
            #[cfg(target_arch = "x86_64")]
            Unit::Amx => unsafe { x86::amx(&args, y, panels) },
            #[cfg(not(target_arch = "x86_64"))]
            _ => unreachable!("only the reference is available here"),
        }
    }

    fn panel(&self, p: usize) -> &[u16] {
        let size = PANEL * self.inputs.next_multiple_of(STEP);
        &self.panels[p * size..(p + 1) * size]
    }

    /// Up to `count` panels from `first` on.
    #[cfg(target_arch = "x86_64")]
    fn panels_from(&self, first: usize, count: usize) -> &[u16] {
        let [from, to] = [first, first + count].map(|p| p.min(self.panels()));
        let size = PANEL * self.inputs.next_multiple_of(STEP);
        &self.panels[from * size..to * size]
    }
}

/// Arguments of a product.
struct ProductArgs<'a> {
    weight: &'a HalfWeight,
    x: &'a HalfRows,
    // Distance between rows of the result in values.
    outputs: usize,
    // First panel of the result.
    first: usize,
    epilogue: Epilogue<'a>,
}

impl ProductArgs<'_> {
    fn output(&self, panel: usize) -> PanelOutput<'_> {
        let bias = panel_values(self.epilogue.bias(), panel);
        PanelOutput { epilogue: self.epilogue, bias, outputs: self.outputs, column: (panel - self.first) * PANEL }
    }
}

fn reference<T: Element>(args: &ProductArgs, y: &mut [T], panel: usize, order: Order) {
    let stride = args.x.stride();
    args.output(panel).store(y, 0, args.x.rows, |i: usize| {
        let row = &args.x.values[i * stride..(i + 1) * stride];
        let mut sums = [0.0f32; PANEL];
        let steps = row.chunks_exact(STEP).zip(args.weight.panel(panel).chunks_exact(STEP * PANEL));
        for (values, weights) in steps {
            for (j, sum) in sums.iter_mut().enumerate() {
                let (mut even, mut odd) = (0.0f32, 0.0f32);
                for (t, pair) in values.as_chunks::<2>().0.iter().enumerate() {
                    let w = &weights[(t * PANEL + j) * 2..][..2];
                    match order {
                        Order::Tiles => {
                            even = widen(pair[0]).mul_add(widen(w[0]), even);
                            odd = widen(pair[1]).mul_add(widen(w[1]), odd);
                        }
                        Order::Pairs => {
                            *sum = widen(pair[1]).mul_add(widen(w[1]), *sum);
                            *sum = widen(pair[0]).mul_add(widen(w[0]), *sum);
                        }
                    }
                }
                *sum += even + odd;
            }
        }
        sums
    });
}
