//! `y = x W^T` with weights packed once, and what follows fused into the store.
//!
//! Weights lie in panels of sixteen outputs, `[panel][input][16]`, so that the inner loop reads them in order; rows of
//! `x` are read in place. Six rows by sixteen outputs fill twelve AVX2 registers; AVX-512 takes two panels and twelve
//! rows. An output element is one chain of fused multiply-adds over the inputs from first to last, whatever the tile it
//! fell into: a row's result does not depend on the rows around it, on the threads, or on the backend.

use std::ops::Range;

use crate::Backend;
use crate::aligned::Aligned;
use crate::bf16;
use crate::lanes;

/// Outputs in a panel.
pub const PANEL: usize = 16;

/// What happens to a product on its way to memory.
#[derive(Clone, Copy)]
pub enum Epilogue<'a> {
    /// Adds a bias of one value an output.
    Bias(&'a [f32]),
    /// Bias, then ReLU.
    BiasRelu(&'a [f32]),
    /// Bias, then the exact GELU, `x Phi(x)`.
    BiasGelu(&'a [f32]),
    /// Bias, then the tanh form of GELU (`gelu_new`).
    BiasGeluTanh(&'a [f32]),
}

impl<'a> Epilogue<'a> {
    pub(crate) fn bias(&self) -> &'a [f32] {
        match *self {
            Epilogue::Bias(b) | Epilogue::BiasRelu(b) | Epilogue::BiasGelu(b) | Epilogue::BiasGeluTanh(b) => b,
        }
    }
}

/// What follows a bias. Types and not closures, for the reason [`Products`] gives.
trait Activation {
    fn of(v: f32) -> f32;
}

struct Same;
struct Relu;
struct Gelu;
struct GeluTanh;

impl Activation for Same {
    #[inline(always)]
    fn of(v: f32) -> f32 {
        v
    }
}

impl Activation for Relu {
    #[inline(always)]
    fn of(v: f32) -> f32 {
        v.max(0.0)
    }
}

impl Activation for Gelu {
    #[inline(always)]
    fn of(v: f32) -> f32 {
        0.5 * v * (1.0 + lanes::erf(v * std::f32::consts::FRAC_1_SQRT_2))
    }
}

impl Activation for GeluTanh {
    #[inline(always)]
    fn of(v: f32) -> f32 {
        let inner = 0.797_884_6 * (0.044_715 * v * v).mul_add(v, v);
        0.5 * v * (1.0 + lanes::tanh(inner))
    }
}

/// What the values of a result are kept as: themselves, or the bits of the nearest `bf16`.
pub(crate) trait Stored: Copy {
    fn of(v: f32) -> Self;
}

impl Stored for f32 {
    #[inline(always)]
    fn of(v: f32) -> f32 {
        v
    }
}

impl Stored for u16 {
    #[inline(always)]
    fn of(v: f32) -> u16 {
        bf16::round(v)
    }
}

/// Where the rows of one panel go.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub epilogue: Epilogue<'a>,
    pub bias: [f32; PANEL],
    /// Values from one row of the result to the next, and of them the first that is the panel's.
    pub outputs: usize,
    pub column: usize,
}

/// What gives the products of a row. A trait and not a closure where it takes many instructions: a closure called from four
/// places was left a function of its own, compiled without the backend's instructions (a multiply-add was then a call, and
/// half of the time of an encoder in bytes).
pub(crate) trait Products {
    fn row(&self, r: usize) -> [f32; PANEL];
}

impl<F: Fn(usize) -> [f32; PANEL]> Products for F {
    #[inline(always)]
    fn row(&self, r: usize) -> [f32; PANEL] {
        self(r)
    }
}

impl Place<'_> {
    /// Puts `n` rows of the result from row `first` on in their place; `value` gives a row's products.
    ///
    /// What follows the product is looked at once for all rows, and `y` is no field of anything: otherwise the compiler
    /// takes every store for a change of what it has in registers. Written otherwise, sixteen values cost about 40 ns on a
    /// Xeon (reckoned from the speeds of products of 384 and 3,072 inputs), with AMX more than the products themselves.
    #[inline(always)]
    pub(crate) fn put<T: Stored>(&self, y: &mut [T], first: usize, n: usize, value: impl Products) {
        match self.epilogue {
            Epilogue::Bias(_) => self.put_as::<T, Same>(y, first, n, value),
            Epilogue::BiasRelu(_) => self.put_as::<T, Relu>(y, first, n, value),
            Epilogue::BiasGelu(_) => self.put_as::<T, Gelu>(y, first, n, value),
            Epilogue::BiasGeluTanh(_) => self.put_as::<T, GeluTanh>(y, first, n, value),
        }
    }

    /// Puts sums of a part of the inputs where the result will be.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn keep(&self, y: &mut [f32], first: usize, tile: &[[f32; PANEL]]) {
        let width = PANEL.min(self.outputs - self.column);
        for (r, sums) in tile.iter().enumerate() {
            store_part(sums, &mut y[(first + r) * self.outputs + self.column..][..width]);
        }
    }

    /// Takes them up again.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn take(&self, y: &[f32], first: usize, tile: &mut [[f32; PANEL]]) {
        let width = PANEL.min(self.outputs - self.column);
        for (r, sums) in tile.iter_mut().enumerate() {
            let at = (first + r) * self.outputs + self.column;
            sums[..width].copy_from_slice(&y[at..at + width]);
        }
    }

    // Whole rows of a panel apart from narrower ones: where one loop served both, the tile lay in memory for the sake of the
    // narrow store, and every row went there and back twice.
    #[inline(always)]
    fn put_as<T: Stored, A: Activation>(&self, y: &mut [T], first: usize, n: usize, value: impl Products) {
        let (bias, outputs, column) = (self.bias, self.outputs, self.column);
        if outputs - column >= PANEL {
            for r in 0..n {
                let at = (first + r) * outputs + column;
                y[at..at + PANEL].copy_from_slice(&finished::<T, A>(value.row(r), &bias));
            }
        } else {
            for r in 0..n {
                let at = (first + r) * outputs + column;
                store_part(&finished::<T, A>(value.row(r), &bias), &mut y[at..at + outputs - column]);
            }
        }
    }
}

#[inline(always)]
fn finished<T: Stored, A: Activation>(mut tile: [f32; PANEL], bias: &[f32; PANEL]) -> [T; PANEL] {
    for (v, b) in tile.iter_mut().zip(bias) {
        *v = A::of(*v + b);
    }
    let mut values = [T::of(0.0); PANEL];
    for (to, v) in values.iter_mut().zip(tile) {
        *to = T::of(v);
    }
    values
}

/// Weights `[outputs, inputs]`, packed once for many products.
#[derive(Clone, Debug)]
pub struct PackedWeight {
    outputs: usize,
    inputs: usize,
    // [panels][inputs][PANEL], zeros beyond the last output.
    panels: Aligned<f32>,
}

impl PackedWeight {
    /// Packs row-major `[outputs, inputs]`.
    ///
    /// # Panics
    /// When the length is another.
    pub fn new(weight: &[f32], outputs: usize, inputs: usize) -> Self {
        assert_eq!(weight.len(), outputs * inputs);
        let mut panels = Aligned::new(outputs.div_ceil(PANEL) * PANEL * inputs);
        for (p, panel) in panels.chunks_exact_mut(PANEL * inputs).enumerate() {
            for (j, row) in weight.chunks_exact(inputs).skip(p * PANEL).take(PANEL).enumerate() {
                for (k, &w) in row.iter().enumerate() {
                    panel[k * PANEL + j] = w;
                }
            }
        }
        PackedWeight { outputs, inputs, panels }
    }

    /// Values in.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Values out.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// `y[rows, outputs] = epilogue(x[rows, inputs] W^T)` on the active backend.
    pub fn multiply(&self, x: &[f32], y: &mut [f32], rows: usize, epilogue: Epilogue) {
        self.multiply_on(Backend::active(), x, y, rows, epilogue);
    }

    /// The same on a backend of choice.
    ///
    /// # Panics
    /// When a length is wrong or the CPU lacks the backend.
    pub fn multiply_on(&self, backend: Backend, x: &[f32], y: &mut [f32], rows: usize, epilogue: Epilogue) {
        self.multiply_panels_on(backend, 0..self.panels(), x, y, rows, epilogue);
    }

    /// Panels of sixteen outputs; the last may be narrower.
    pub fn panels(&self) -> usize {
        self.outputs.div_ceil(PANEL)
    }

    /// Outputs of some panels alone, so that a product of few rows can be shared out: `y` is `[rows, outputs of those]`.
    pub fn multiply_panels(&self, panels: Range<usize>, x: &[f32], y: &mut [f32], rows: usize, epilogue: Epilogue) {
        self.multiply_panels_on(Backend::active(), panels, x, y, rows, epilogue);
    }

    /// The same on a backend of choice.
    ///
    /// # Panics
    /// When a length is wrong or the CPU lacks the backend.
    pub fn multiply_panels_on(
        &self,
        backend: Backend,
        panels: Range<usize>,
        x: &[f32],
        y: &mut [f32],
        rows: usize,
        epilogue: Epilogue,
    ) {
        assert_eq!(x.len(), rows * self.inputs, "x is [rows, inputs]");
        assert!(panels.start <= panels.end && panels.end <= self.panels(), "panels of this weight");
        let outputs = (panels.end * PANEL).min(self.outputs) - (panels.start * PANEL).min(self.outputs);
        assert_eq!(y.len(), rows * outputs, "y is [rows, outputs]");
        assert_eq!(epilogue.bias().len(), self.outputs, "a bias for every output");
        backend.check();
        let part = Part {
            weight: self,
            first: panels.start,
            panels: &self.panels[panels.start * PANEL * self.inputs..panels.end * PANEL * self.inputs],
            outputs,
            epilogue,
        };
        match backend {
            Backend::Reference => reference(&part, x, y, rows),
            // SAFETY: the lengths were checked above, `panels` is whole panels by construction, and `check` has seen
            // that the CPU has the instructions.
            #[cfg(target_arch = "x86_64")]
            Backend::Avx2 => unsafe { x86::avx2(&part, x, y, rows) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Backend::Avx512 => unsafe { x86::avx512(&part, x, y, rows) },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            Backend::Neon => unsafe { arm::neon(&part, x, y, rows) },
            #[allow(unreachable_patterns)]
            _ => unreachable!("`check` lets pass what this CPU has"),
        }
    }
}

/// Some neighbouring panels of a weight, and what follows their product.
struct Part<'a> {
    weight: &'a PackedWeight,
    // Number of the first panel.
    first: usize,
    panels: &'a [f32],
    // Values in a row of the result.
    outputs: usize,
    epilogue: Epilogue<'a>,
}

impl Part<'_> {
    /// Where the rows of its panel `panel` go.
    fn place(&self, panel: usize) -> Place<'_> {
        Place {
            epilogue: self.epilogue,
            bias: panel_part(self.epilogue.bias(), self.first + panel),
            outputs: self.outputs,
            column: panel * PANEL,
        }
    }
}

/// The values of one panel out of one an output, zeros beyond the last.
#[inline(always)]
pub(crate) fn panel_part(values: &[f32], panel: usize) -> [f32; PANEL] {
    let from = &values[panel * PANEL..];
    // Apart, or a whole panel too is copied by a call: with AMX one for every tile.
    if let Some(whole) = from.first_chunk::<PANEL>() {
        return *whole;
    }
    let mut part = [0.0; PANEL];
    part[..from.len()].copy_from_slice(from);
    part
}

/// Apart, or the compiler makes both cases one copy of unknown length, which is a call: 4 % of the encoder's time in bytes.
#[cold]
#[inline(never)]
fn store_part<T: Copy>(tile: &[T; PANEL], y: &mut [T]) {
    y.copy_from_slice(&tile[..y.len()]);
}

fn reference(part: &Part, x: &[f32], y: &mut [f32], rows: usize) {
    let inputs = part.weight.inputs;
    for (p, panel) in part.panels.chunks_exact(PANEL * inputs).enumerate() {
        part.place(p).put(y, 0, rows, |i: usize| {
            let mut tile = [0.0f32; PANEL];
            for (&a, weights) in x[i * inputs..(i + 1) * inputs].iter().zip(panel.as_chunks::<PANEL>().0) {
                for (t, &b) in tile.iter_mut().zip(weights) {
                    *t = a.mul_add(b, *t);
                }
            }
            tile
        });
    }
}

#[cfg(target_arch = "aarch64")]
mod arm;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{PANEL, Part};
    use crate::ahead::Ahead;

    /// Rows whose inputs together stay in the second-level cache while all panels pass over them.
    fn row_chunk(inputs: usize, tile: usize) -> usize {
        const BYTES: usize = 256 << 10;
        (BYTES / (4 * inputs)).max(tile) / tile * tile
    }

    /// Rows of weights from one look ahead to the next.
    const LOOK: usize = 32;

    /// Inputs taken at a time: 48 rows of them stay in a second-level cache of half a megabyte beside a panel and the result.
    const DEPTH: usize = 1536;

    /// # Safety
    /// AVX2 and FMA; the lengths `multiply_on` checks.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn avx2(part: &Part, x: &[f32], y: &mut [f32], rows: usize) {
        const TILE: usize = 6;
        /// What the inputs of a chunk of rows may take of the cache: weights are read once for every chunk, so few rows
        /// make the product wait for memory (with 18 rows at a time bert-base ran at two thirds of its speed).
        const BYTES: usize = 320 << 10;
        let k = part.weight.inputs;
        let chunk = (BYTES / (4 * k.clamp(1, DEPTH))).max(TILE) / TILE * TILE;
        for start in (0..rows).step_by(chunk) {
            let end = rows.min(start + chunk);
            let mut from = 0;
            loop {
                let to = k.min(from + DEPTH);
                for (p, panel) in part.panels.chunks_exact((PANEL * k).max(1)).enumerate() {
                    let place = part.place(p);
                    let weights = &panel[from * PANEL..to * PANEL];
                    let next = (p + 1) * PANEL * k;
                    let next = part.panels.get(next + from * PANEL..next + to * PANEL).unwrap_or_default();
                    let ahead = Ahead::new(next, (end - start).div_ceil(TILE), (to - from).div_ceil(LOOK));
                    let mut i = start;
                    while i < end {
                        let n = (end - i).min(TILE);
                        let mut tile = [[0.0f32; PANEL]; TILE];
                        if from > 0 {
                            place.take(y, i, &mut tile[..n]);
                        }
                        let ahead = ahead.part((i - start) / TILE);
                        // SAFETY: rows i..i+n exist in x, and the panel holds `to - from` rows of sixteen weights.
                        unsafe {
                            let x = x.as_ptr().add(i * k + from);
                            match n {
                                6 => avx2_tile::<6>(x, k, weights, ahead, &mut tile),
                                5 => avx2_tile::<5>(x, k, weights, ahead, &mut tile),
                                4 => avx2_tile::<4>(x, k, weights, ahead, &mut tile),
                                3 => avx2_tile::<3>(x, k, weights, ahead, &mut tile),
                                2 => avx2_tile::<2>(x, k, weights, ahead, &mut tile),
                                _ => avx2_tile::<1>(x, k, weights, ahead, &mut tile),
                            }
                        }
                        if to == k {
                            place.put(y, i, n, |r: usize| tile[r]);
                        } else {
                            place.keep(y, i, &tile[..n]);
                        }
                        i += n;
                    }
                }
                if to == k {
                    break;
                }
                from = to;
            }
        }
    }

    /// Adds the products of R rows and some inputs to what `tile` holds.
    ///
    /// # Safety
    /// `x` points at R rows, `stride` apart, of as many values as `weights` has rows of sixteen.
    #[target_feature(enable = "avx2,fma")]
    #[inline]
    unsafe fn avx2_tile<const R: usize>(
        x: *const f32,
        stride: usize,
        weights: &[f32],
        ahead: Ahead<f32>,
        tile: &mut [[f32; PANEL]; 6],
    ) {
        let mut low = [_mm256_setzero_ps(); R];
        let mut high = [_mm256_setzero_ps(); R];
        for r in 0..R {
            // SAFETY: a tile row holds sixteen values.
            unsafe {
                low[r] = _mm256_loadu_ps(tile[r].as_ptr());
                high[r] = _mm256_loadu_ps(tile[r].as_ptr().add(8));
            }
        }
        let mut t = 0;
        for (number, part) in weights.chunks(LOOK * PANEL).enumerate() {
            ahead.look(number);
            for b in part.as_chunks::<PANEL>().0 {
                // SAFETY: t stays below the number of rows of weights, and the caller's promise.
                unsafe {
                    let b0 = _mm256_loadu_ps(b.as_ptr());
                    let b1 = _mm256_loadu_ps(b.as_ptr().add(8));
                    for r in 0..R {
                        let a = _mm256_broadcast_ss(&*x.add(r * stride + t));
                        low[r] = _mm256_fmadd_ps(a, b0, low[r]);
                        high[r] = _mm256_fmadd_ps(a, b1, high[r]);
                    }
                }
                t += 1;
            }
        }
        for r in 0..R {
            // SAFETY: as above.
            unsafe {
                _mm256_storeu_ps(tile[r].as_mut_ptr(), low[r]);
                _mm256_storeu_ps(tile[r].as_mut_ptr().add(8), high[r]);
            }
        }
    }

    /// # Safety
    /// AVX-512 F; the lengths `multiply_on` checks.
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl")]
    pub(super) unsafe fn avx512(part: &Part, x: &[f32], y: &mut [f32], rows: usize) {
        const TILE: usize = 12;
        let k = part.weight.inputs;
        let chunk = row_chunk(k, TILE);
        for start in (0..rows).step_by(chunk) {
            let end = rows.min(start + chunk);
            for (pair, panels) in part.panels.chunks(2 * PANEL * k).enumerate() {
                let both = panels.len() == 2 * PANEL * k;
                let next = &part.panels[((pair + 1) * 2 * PANEL * k).min(part.panels.len())..];
                let next = &next[..next.len().min(2 * PANEL * k)];
                let ahead = Ahead::new(next, (end - start).div_ceil(TILE), k.div_ceil(LOOK));
                let places = [part.place(2 * pair), part.place(2 * pair + usize::from(both))];
                let mut i = start;
                while i < end {
                    let mut tile = [[[0.0f32; PANEL]; 2]; TILE];
                    let n = if end - i >= TILE { TILE } else { (end - i).min(4) };
                    // SAFETY: rows i..i+n exist in x; each panel holds k rows of sixteen weights; a lone last panel is
                    // read twice and its second result thrown away.
                    unsafe {
                        let x = x.as_ptr().add(i * k);
                        let ahead = ahead.part((i - start) / TILE);
                        let first = panels.as_ptr();
                        let second = if both { first.add(PANEL * k) } else { first };
                        match n {
                            12 => avx512_tile::<12>(x, first, second, k, ahead, &mut tile),
                            4 => avx512_tile::<4>(x, first, second, k, ahead, &mut tile),
                            3 => avx512_tile::<3>(x, first, second, k, ahead, &mut tile),
                            2 => avx512_tile::<2>(x, first, second, k, ahead, &mut tile),
                            _ => avx512_tile::<1>(x, first, second, k, ahead, &mut tile),
                        }
                    }
                    for (half, place) in places.iter().take(1 + usize::from(both)).enumerate() {
                        place.put(y, i, n, |r: usize| tile[r][half]);
                    }
                    i += n;
                }
            }
        }
    }

    /// # Safety
    /// `x` points at R rows of `k` values, both panels at `k` rows of sixteen.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn avx512_tile<const R: usize>(
        x: *const f32,
        first: *const f32,
        second: *const f32,
        k: usize,
        ahead: Ahead<f32>,
        tile: &mut [[[f32; PANEL]; 2]; 12],
    ) {
        let mut low = [_mm512_setzero_ps(); R];
        let mut high = [_mm512_setzero_ps(); R];
        for t in 0..k {
            if t % LOOK == 0 {
                ahead.look(t / LOOK);
            }
            // SAFETY: t < k, and the caller's promise.
            unsafe {
                let b0 = _mm512_loadu_ps(first.add(t * PANEL));
                let b1 = _mm512_loadu_ps(second.add(t * PANEL));
                for r in 0..R {
                    let a = _mm512_set1_ps(*x.add(r * k + t));
                    low[r] = _mm512_fmadd_ps(a, b0, low[r]);
                    high[r] = _mm512_fmadd_ps(a, b1, high[r]);
                }
            }
        }
        for r in 0..R {
            // SAFETY: each half of a tile row holds sixteen values.
            unsafe {
                _mm512_storeu_ps(tile[r][0].as_mut_ptr(), low[r]);
                _mm512_storeu_ps(tile[r][1].as_mut_ptr(), high[r]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(n: usize, seed: u32) -> Vec<f32> {
        (0..n as u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) ^ seed.wrapping_mul(40_503)) as f32 / 2f32.powi(31) - 1.0)
            .collect()
    }

    #[test]
    fn every_backend_gives_the_references_bits() {
        for (rows, outputs, inputs) in
            [(0, 5, 3), (1, 1, 1), (1, 384, 384), (5, 17, 33), (13, 48, 40), (29, 100, 7), (200, 40, 96)]
        {
            let (x, w, bias) = (noise(rows * inputs, 1), noise(outputs * inputs, 2), noise(outputs, 3));
            let packed = PackedWeight::new(&w, outputs, inputs);
            for epilogue in [
                Epilogue::Bias(&bias),
                Epilogue::BiasRelu(&bias),
                Epilogue::BiasGelu(&bias),
                Epilogue::BiasGeluTanh(&bias),
            ] {
                let mut expected = vec![f32::NAN; rows * outputs];
                packed.multiply_on(Backend::Reference, &x, &mut expected, rows, epilogue);
                assert!(expected.iter().all(|v| v.is_finite()));
                for backend in Backend::available() {
                    let mut y = vec![f32::NAN; rows * outputs];
                    packed.multiply_on(backend, &x, &mut y, rows, epilogue);
                    assert_eq!(y, expected, "{} {rows}x{outputs}x{inputs}", backend.name());
                    // From the second panel on: the same values, closer together.
                    let split = PANEL.min(outputs);
                    let (first, width) = (outputs.div_ceil(PANEL).min(1), outputs - split);
                    let mut rest = vec![f32::NAN; rows * width];
                    packed.multiply_panels_on(backend, first..packed.panels(), &x, &mut rest, rows, epilogue);
                    for i in 0..rows {
                        assert_eq!(rest[i * width..(i + 1) * width], expected[i * outputs + split..(i + 1) * outputs]);
                    }
                }
            }
        }
    }

    #[test]
    fn the_product_is_the_product() {
        let (rows, outputs, inputs) = (7, 19, 65);
        let (x, w, bias) = (noise(rows * inputs, 5), noise(outputs * inputs, 6), noise(outputs, 7));
        let mut y = vec![0.0; rows * outputs];
        PackedWeight::new(&w, outputs, inputs).multiply(&x, &mut y, rows, Epilogue::Bias(&bias));
        for i in 0..rows {
            for j in 0..outputs {
                let exact =
                    (0..inputs).map(|t| f64::from(x[i * inputs + t]) * f64::from(w[j * inputs + t])).sum::<f64>()
                        + f64::from(bias[j]);
                // 65 rounded operations on sums below 30: half an ulp of 32 each.
                assert!((f64::from(y[i * outputs + j]) - exact).abs() < 65.0 * 2e-6);
            }
        }
    }

    #[test]
    fn both_gelus_are_their_formulas() {
        let x: Vec<f32> = (-8000..8000).map(|i| i as f32 / 1000.0).collect();
        let one = PackedWeight::new(&[1.0], 1, 1);
        let mut y = vec![0.0; x.len()];
        let tanh = |v: f64| 0.5 * v * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (v + 0.044715 * v.powi(3))).tanh());
        one.multiply(&x, &mut y, x.len(), Epilogue::BiasGeluTanh(&[0.0]));
        for (x, y) in x.iter().zip(&y) {
            let exact = tanh(f64::from(*x));
            assert!((f64::from(*y) - exact).abs() <= 1e-6 * (1.0 + exact.abs()), "gelu_new({x}) = {y}, not {exact}");
        }
        // Phi by summing its density, to 1e-9: an independent way to the exact form.
        one.multiply(&x, &mut y, x.len(), Epilogue::BiasGelu(&[0.0]));
        let density = |t: f64| (-t * t / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let (mut phi, h) = (0.0, 1e-3);
        for (x, y) in x.iter().zip(&y) {
            let v = f64::from(*x);
            assert!((f64::from(*y) - v * phi).abs() <= 5e-7 * (1.0 + v.abs()), "gelu({x}) = {y}, not {}", v * phi);
            // Simpson's rule from this point to the next.
            phi += h / 6.0 * (density(v) + 4.0 * density(v + h / 2.0) + density(v + h));
        }
    }

    #[test]
    #[should_panic(expected = "x is [rows, inputs]")]
    fn a_short_input_is_refused() {
        let packed = PackedWeight::new(&[1.0, 2.0], 1, 2);
        packed.multiply(&[1.0], &mut [0.0], 1, Epilogue::Bias(&[0.0]));
    }
}
