//! The first product of the feed-forward part with its activation in one kernel (`feed.cu`), on the chip it is written for.

use cudarc::driver::{result as driver, sys};

use crate::compile::{Kernel, arguments};
use crate::device::{Device, said};
use crate::gemm::Linear;
use crate::memory::Stream;
use crate::{Activation, Precision, Result, Shape};

// As in feed.cu.
const TILE_ROWS: usize = 128;
const TILE_COLUMNS: usize = 256;
const STEP: usize = 64;
const STAGES: usize = 3;
const PAIR: usize = 2;
const THREADS: u32 = 512;

/// Shared memory of a block: stages, a finished tile, the bias, alignment and barriers.
fn shared_bytes(inner: usize) -> usize {
    STAGES * (TILE_ROWS + TILE_COLUMNS) * STEP * 2 + TILE_ROWS * (TILE_COLUMNS * 2 + 16) + 2 * inner + 1280
}

/// Whether the kernel is for this encoder on this chip. Other activations than erf's are cuBLASLt's own.
pub(crate) fn fits(shape: &Shape, capability: (i32, i32)) -> bool {
    capability == (9, 0)
        && shape.activation == Activation::Gelu
        && shape.hidden.is_multiple_of(STEP)
        && shape.intermediate.is_multiple_of(TILE_COLUMNS)
        && shared_bytes(shape.intermediate) <= 227 * 1024
}

/// The kernel, ready to run.
pub(crate) struct Feed {
    kernel: Kernel,
    /// Blocks that fill the GPU.
    blocks: usize,
    bytes: u32,
}

/// How the copy engine finds boxes of a matrix `[rows, inputs]` of 16-bit values.
#[derive(Clone, Copy)]
pub(crate) struct Map(sys::CUtensorMap);

impl Map {
    fn new(at: u64, rows: usize, inputs: usize, box_rows: usize, precision: Precision) -> Result<Self> {
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        let (sizes, pitch) = ([inputs as u64, rows as u64], [2 * inputs as u64]);
        let (boxes, every) = ([STEP as u32, box_rows as u32], [1u32, 1]);
        let kind = match precision {
            Precision::F16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            Precision::Bf16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        };
        // SAFETY: two dimensions, and arrays of two sizes, one pitch, two box sizes and two strides.
        let answer = unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                kind,
                2,
                at as *mut std::ffi::c_void,
                sizes.as_ptr(),
                pitch.as_ptr(),
                boxes.as_ptr(),
                every.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        said("describing a matrix to the GPU", answer.result())?;
        Ok(Map(map))
    }

    /// States that go in: `[rows, hidden]`.
    pub fn states(at: u64, rows: usize, shape: &Shape, precision: Precision) -> Result<Self> {
        Map::new(at, rows, shape.hidden, TILE_ROWS, precision)
    }

    /// The product's weights: `[intermediate, hidden]`.
    pub fn weights(linear: &Linear, shape: &Shape, precision: Precision) -> Result<Self> {
        Map::new(linear.weight(), shape.intermediate, shape.hidden, TILE_COLUMNS / PAIR, precision)
    }
}

impl Feed {
    pub fn new(device: &Device, kernel: Kernel, shape: &Shape) -> Result<Self> {
        let bytes = shared_bytes(shape.intermediate) as u32;
        let which = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: a live function of this device.
        said("giving a kernel its shared memory", unsafe {
            driver::function::set_function_attribute(kernel.handle(), which, bytes as i32)
        })?;
        Ok(Feed { kernel, blocks: device.info().processors / PAIR * PAIR, bytes })
    }

    /// Queues `y[rows, intermediate] = activation(x W^T + bias)`.
    ///
    /// # Safety
    /// `x` describes at least `rows` rows, `weight` the weights of `linear`, and `y` has room for the result; all live until
    /// the stream has passed this point.
    pub unsafe fn launch(
        &self,
        x: &Map,
        weight: &Map,
        linear: &Linear,
        y: u64,
        rows: usize,
        stream: &Stream,
    ) -> Result<()> {
        if rows == 0 {
            return Ok(());
        }
        let count = rows as i32;
        // SAFETY: the kernel's parameters, in order and type.
        unsafe {
            self.kernel.launch_wide(
                stream,
                self.blocks,
                THREADS,
                self.bytes,
                arguments![x.0, weight.0, linear.bias(), y, count],
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_for_hopper_and_shapes_of_whole_tiles() {
        let base = Shape {
            hidden: 768,
            heads: 12,
            layers: 12,
            intermediate: 3072,
            vocab: 30522,
            positions: 512,
            epsilon: 1e-12,
            activation: Activation::Gelu,
        };
        assert!(fits(&base, (9, 0)) && fits(&Shape { hidden: 384, intermediate: 1536, ..base }, (9, 0)));
        assert!(!fits(&base, (8, 0)) && !fits(&base, (10, 0)));
        assert!(!fits(&Shape { activation: Activation::GeluTanh, ..base }, (9, 0)));
        assert!(!fits(&Shape { intermediate: 3000, ..base }, (9, 0)));
        assert!(!fits(&Shape { hidden: 96, ..base }, (9, 0)));
        assert!(!fits(&Shape { intermediate: 1 << 14, ..base }, (9, 0)), "the bias does not fit beside the stages");
        assert_eq!(shared_bytes(3072), 147_456 + 67_584 + 6_144 + 1_280);
    }
}
