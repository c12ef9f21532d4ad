//! Matrix products of a step, in f32 and with sums in a fixed order.

use super::Trainer;
use crate::driver::compile::arguments;
use crate::{Result, TrainingShape};

/// A matrix on the GPU with strides: element (i, j) lies at `i * row + j * column`.
#[derive(Clone, Copy)]
pub(crate) struct View {
    pub at: u64,
    pub row: u32,
    pub column: u32,
}

impl View {
    /// Row-major, with a row stride of `columns`.
    pub fn rows(at: u64, columns: usize) -> Self {
        View { at, row: columns as u32, column: 1 }
    }

    pub fn transposed(self) -> Self {
        View { row: self.column, column: self.row, ..self }
    }
}

/// Operations on the values of a product: a bias per row, a ReLU, and zeros where `mask` is not positive. Null addresses mean
/// none.
#[derive(Clone, Copy, Default)]
pub(super) struct Epilogue {
    pub bias: u64,
    pub mask: u64,
    pub relu: bool,
}

impl Trainer {
    /// Queues `u = ReLU(W1 x + b1)` and `z = W2 u + b2` of `n` vectors.
    pub(super) fn project(&self, n: usize) -> Result<()> {
        let TrainingShape { inputs, hidden, .. } = self.shape;
        let [w1, b1, w2, b2, ..] = self.shape.offsets().map(|p| self.learned.values.at() + 4 * p as u64);
        let x = View::rows(self.embeddings.at(), inputs).transposed();
        let first = Epilogue { bias: b1, relu: true, ..Epilogue::default() };
        self.product(self.hidden.at(), View::rows(w1, inputs), x, [hidden, n, inputs], 1.0, first)?;
        let (u, second) = (View::rows(self.hidden.at(), n), Epilogue { bias: b2, ..Epilogue::default() });
        self.product(self.projected.at(), View::rows(w2, hidden), u, [self.shape.width(), n, hidden], 1.0, second)
    }

    /// Queues `c = epilogue(scale a b)` of `size` `[rows, columns, depth]`.
    pub(super) fn product(
        &self,
        c: u64,
        a: View,
        b: View,
        size: [usize; 3],
        scale: f32,
        epilogue: Epilogue,
    ) -> Result<()> {
        let [rows, columns, depth] = size.map(|n| n as u32);
        let blocks = size[0].div_ceil(32) * size[1].div_ceil(32);
        // SAFETY: callers pass views of buffers that hold matrices of these sizes; a null address means none.
        unsafe {
            self.kernels.product.launch(
                &self.stream,
                blocks,
                256,
                arguments![
                    c,
                    a.at,
                    b.at,
                    rows,
                    columns,
                    depth,
                    a.row,
                    a.column,
                    b.row,
                    b.column,
                    scale,
                    epilogue.bias,
                    epilogue.mask,
                    u32::from(epilogue.relu)
                ],
            )
        }
    }

    pub(super) fn sums(&self, rows: u64, to: u64, count: usize, n: usize) -> Result<()> {
        let (count32, n32) = (count as u32, n as u32);
        // SAFETY: callers pass `[count, n]` and room for `count` sums.
        unsafe {
            self.kernels.row_sums.launch(&self.stream, count.div_ceil(64), 64, arguments![rows, to, count32, n32])
        }
    }
}
