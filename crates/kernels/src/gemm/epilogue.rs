//! The store of a product: bias, activation and rounding are applied while the sums are in registers.

use super::PANEL;
use crate::lanes;

/// Operation applied to a product before it is stored. The bias has one value per output.
#[derive(Clone, Copy)]
pub enum Epilogue<'a> {
    Bias(&'a [f32]),
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

/// Activation after the bias. A type instead of a closure, for the reason [`RowProducts`] gives.
trait Activation {
    fn apply(v: f32) -> f32;
}

struct Identity;
struct Relu;
struct Gelu;
struct GeluTanh;

impl Activation for Identity {
    #[inline(always)]
    fn apply(v: f32) -> f32 {
        v
    }
}

impl Activation for Relu {
    #[inline(always)]
    fn apply(v: f32) -> f32 {
        v.max(0.0)
    }
}

impl Activation for Gelu {
    #[inline(always)]
    fn apply(v: f32) -> f32 {
        0.5 * v * (1.0 + lanes::erf(v * std::f32::consts::FRAC_1_SQRT_2))
    }
}

impl Activation for GeluTanh {
    #[inline(always)]
    fn apply(v: f32) -> f32 {
        let inner = 0.797_884_6 * (0.044_715 * v * v).mul_add(v, v);
        0.5 * v * (1.0 + lanes::tanh(inner))
    }
}

/// Element type of a result: `f32`, or `u16` for the bits of the nearest `bf16`.
pub(crate) trait Element: Copy {
    fn from_f32(v: f32) -> Self;
}

impl Element for f32 {
    #[inline(always)]
    fn from_f32(v: f32) -> f32 {
        v
    }
}

impl Element for u16 {
    #[inline(always)]
    fn from_f32(v: f32) -> u16 {
        lanes::bf16_round(v)
    }
}

/// Destination of one panel's rows in the result.
#[derive(Clone, Copy)]
pub(crate) struct PanelOutput<'a> {
    pub epilogue: Epilogue<'a>,
    pub bias: [f32; PANEL],
    /// Values from one row of the result to the next.
    pub outputs: usize,
    /// First column of the panel in a row of the result.
    pub column: usize,
}

/// Source of a row's products. Implementors with many instructions are types instead of closures: the compiler left a closure
/// with four call sites as a function of its own, without the backend's instructions. A multiply-add was then a call, and
/// these calls took half of the time of an int8 encoder.
pub(crate) trait RowProducts {
    fn row(&self, r: usize) -> [f32; PANEL];
}

impl<F: Fn(usize) -> [f32; PANEL]> RowProducts for F {
    #[inline(always)]
    fn row(&self, r: usize) -> [f32; PANEL] {
        self(r)
    }
}

impl PanelOutput<'_> {
    /// Stores `n` rows of the result from row `first` on; `products` gives the products of row `first + r` for `r`.
    ///
    /// The epilogue is matched once for all rows, and `y` is a parameter instead of a field. Otherwise the compiler assumes
    /// that every store may change the values in its registers. The other form cost about 40 ns per sixteen values on a
    /// Xeon (estimated from the speeds of products of 384 and 3,072 inputs), with AMX more than the products themselves.
    #[inline(always)]
    pub(crate) fn store<T: Element>(&self, y: &mut [T], first: usize, n: usize, products: impl RowProducts) {
        match self.epilogue {
            Epilogue::Bias(_) => self.store_as::<T, Identity>(y, first, n, products),
            Epilogue::BiasRelu(_) => self.store_as::<T, Relu>(y, first, n, products),
            Epilogue::BiasGelu(_) => self.store_as::<T, Gelu>(y, first, n, products),
            Epilogue::BiasGeluTanh(_) => self.store_as::<T, GeluTanh>(y, first, n, products),
        }
    }

    /// Stores partial sums, over the first of the inputs, in the memory of the result.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn store_partial(&self, y: &mut [f32], first: usize, tile: &[[f32; PANEL]]) {
        let width = PANEL.min(self.outputs - self.column);
        for (r, sums) in tile.iter().enumerate() {
            store_narrow(sums, &mut y[(first + r) * self.outputs + self.column..][..width]);
        }
    }

    /// Loads the partial sums that [`Self::store_partial`] stored.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn load_partial(&self, y: &[f32], first: usize, tile: &mut [[f32; PANEL]]) {
        let width = PANEL.min(self.outputs - self.column);
        for (r, sums) in tile.iter_mut().enumerate() {
            let at = (first + r) * self.outputs + self.column;
            sums[..width].copy_from_slice(&y[at..at + width]);
        }
    }

    // Whole panels and narrower ones have separate loops. With one loop for both, the narrow store forced the tile into
    // memory, and every row went there and back twice.
    #[inline(always)]
    fn store_as<T: Element, A: Activation>(&self, y: &mut [T], first: usize, n: usize, products: impl RowProducts) {
        let (bias, outputs, column) = (self.bias, self.outputs, self.column);
        if outputs - column >= PANEL {
            for r in 0..n {
                let at = (first + r) * outputs + column;
                y[at..at + PANEL].copy_from_slice(&finish_row::<T, A>(products.row(r), &bias));
            }
        } else {
            for r in 0..n {
                let at = (first + r) * outputs + column;
                store_narrow(&finish_row::<T, A>(products.row(r), &bias), &mut y[at..at + outputs - column]);
            }
        }
    }
}

#[inline(always)]
fn finish_row<T: Element, A: Activation>(mut tile: [f32; PANEL], bias: &[f32; PANEL]) -> [T; PANEL] {
    for (v, b) in tile.iter_mut().zip(bias) {
        *v = A::apply(*v + b);
    }
    let mut values = [T::from_f32(0.0); PANEL];
    for (to, v) in values.iter_mut().zip(tile) {
        *to = T::from_f32(v);
    }
    values
}

/// The sixteen values of one panel out of one value per output; zeros beyond the last output.
#[inline(always)]
pub(crate) fn panel_values(values: &[f32], panel: usize) -> [f32; PANEL] {
    let from = &values[panel * PANEL..];
    // A separate case: otherwise whole panels are copied by a call too, with AMX one call per tile.
    if let Some(whole) = from.first_chunk::<PANEL>() {
        return *whole;
    }
    let mut narrow = [0.0; PANEL];
    narrow[..from.len()].copy_from_slice(from);
    narrow
}

/// A separate function: otherwise the compiler merges both cases of `store_as` into one copy of unknown length, which is a
/// call and took 4 % of an int8 encoder's time.
#[cold]
#[inline(never)]
fn store_narrow<T: Copy>(tile: &[T; PANEL], y: &mut [T]) {
    y.copy_from_slice(&tile[..y.len()]);
}
