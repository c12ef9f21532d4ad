//! `y = x W^T` with weights packed once, and an epilogue fused into the store.
//!
//! Weights lie in panels of sixteen outputs, `[panel][input][16]`, so that the inner loop reads them in order; rows of
//! `x` are read in place. Six rows by sixteen outputs fill twelve AVX2 registers; AVX-512 takes two panels and twelve
//! rows. An output element is one chain of fused multiply-adds over the inputs from first to last, in every tile: a row's
//! result does not depend on the rows around it, on the threads, or on the backend.

#[cfg(target_arch = "aarch64")]
mod arm;
mod epilogue;
mod reference;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::ops::Range;

pub use epilogue::Epilogue;
pub(crate) use epilogue::{Element, PanelOutput, RowProducts, panel_values};

use crate::Backend;
use crate::aligned::Aligned;

/// Outputs in a panel.
pub const PANEL: usize = 16;

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
    /// When `weight` does not have `outputs * inputs` values.
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

    pub fn inputs(&self) -> usize {
        self.inputs
    }

    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// `y[rows, outputs] = epilogue(x[rows, inputs] W^T)` on the active backend.
    ///
    /// # Panics
    /// When a length is wrong.
    pub fn multiply(&self, x: &[f32], y: &mut [f32], rows: usize, epilogue: Epilogue) {
        self.multiply_on(Backend::active(), x, y, rows, epilogue);
    }

    /// [`Self::multiply`] on the given backend.
    ///
    /// # Panics
    /// When a length is wrong or the CPU lacks the backend.
    pub fn multiply_on(&self, backend: Backend, x: &[f32], y: &mut [f32], rows: usize, epilogue: Epilogue) {
        self.multiply_panels_on(backend, 0..self.panels(), x, y, rows, epilogue);
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
    pub fn multiply_panels(&self, panels: Range<usize>, x: &[f32], y: &mut [f32], rows: usize, epilogue: Epilogue) {
        self.multiply_panels_on(Backend::active(), panels, x, y, rows, epilogue);
    }

    /// [`Self::multiply_panels`] on the given backend.
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
        let range = PanelRange {
            weight: self,
            first: panels.start,
            panels: &self.panels[panels.start * PANEL * self.inputs..panels.end * PANEL * self.inputs],
            outputs,
            epilogue,
        };
        match backend {
            Backend::Reference => reference::reference(&range, x, y, rows),
            // SAFETY: the lengths were checked above, `panels` is whole panels by construction, and `check` has seen
            // that the CPU has the instructions.
            #[cfg(target_arch = "x86_64")]
            Backend::Avx2 => unsafe { x86::avx2(&range, x, y, rows) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Backend::Avx512 => unsafe { x86::avx512(&range, x, y, rows) },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            Backend::Neon => unsafe { arm::neon(&range, x, y, rows) },
            #[allow(unreachable_patterns)]
            _ => unreachable!("`check` accepts only a backend of this CPU"),
        }
    }
}

/// Neighbouring panels of a weight, and the epilogue of their product.
struct PanelRange<'a> {
    weight: &'a PackedWeight,
    // Number of the first panel.
    first: usize,
    panels: &'a [f32],
    // Values in a row of the result.
    outputs: usize,
    epilogue: Epilogue<'a>,
}

impl PanelRange<'_> {
    /// Destination of the rows of panel `panel`, counted within the range.
    fn output(&self, panel: usize) -> PanelOutput<'_> {
        PanelOutput {
            epilogue: self.epilogue,
            bias: panel_values(self.epilogue.bias(), self.first + panel),
            outputs: self.outputs,
            column: panel * PANEL,
        }
    }
}
