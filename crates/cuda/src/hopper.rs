//! The feed-forward part's first product with its activation in one kernel (`hopper.cu`), on the chip it is written for.

use cudarc::driver::{result as driver, sys};

use crate::compile::{Kernel, arguments};
use crate::device::{Device, said};
use crate::memory::Stream;
use crate::{Activation, Precision, Result, Shape};

// As in hopper.cu.
const TILE_ROWS: usize = 128;
const TILE_COLUMNS: usize = 256;
const STEP: usize = 64;
const STAGES: usize = 3;
const PAIR: usize = 2;
const THREADS: u32 = 384;

/// Shared memory of a block: stages, a finished tile, the bias, alignment and barriers.
fn shared_bytes(outputs: usize) -> usize {
    STAGES * (TILE_ROWS + TILE_COLUMNS) * STEP * 2 + TILE_ROWS * (TILE_COLUMNS * 2 + 16) + 2 * outputs + 1280
}

/// Whether the kernel is for this encoder on this chip. Of activations it knows erf's alone; the others are cuBLASLt's own.
pub(crate) fn fits(shape: &Shape, capability: (i32, i32)) -> bool {
    capability == (9, 0)
        && shape.activation == Activation::Gelu
        && shape.hidden.is_multiple_of(STEP)
        && shape.intermediate.is_multiple_of(TILE_COLUMNS)
        && shared_bytes(shape.intermediate) <= 227 * 1024
}

/// How the copy engine finds boxes of a matrix of 16-bit values.
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

    /// What is multiplied: `[rows, inputs]`, row-major.
    pub fn operand(at: u64, rows: usize, inputs: usize, precision: Precision) -> Result<Self> {
        Map::new(at, rows, inputs, TILE_ROWS, precision)
    }
}

/// The product of one layer.
pub(crate) struct Product {
    kernel: Kernel,
    weight: Map,
    bias: u64,
    /// Blocks that fill the GPU.
    blocks: usize,
    shared: u32,
}

impl Product {
    /// `weight` is the address of `[intermediate, hidden]`, `bias` of `[intermediate]`.
    pub fn new(
        device: &Device,
        kernel: Kernel,
        shape: &Shape,
        precision: Precision,
        weight: u64,
        bias: u64,
    ) -> Result<Self> {
        let shared = shared_bytes(shape.intermediate) as u32;
        let which = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: a live function of this device.
        said("giving a kernel its shared memory", unsafe {
            driver::function::set_function_attribute(kernel.handle(), which, shared as i32)
        })?;
        let weight = Map::new(weight, shape.intermediate, shape.hidden, TILE_COLUMNS / PAIR, precision)?;
        Ok(Product { kernel, weight, bias, blocks: device.info().processors / PAIR * PAIR, shared })
    }

    /// Queues the product and the activation.
    ///
    /// # Safety
    /// `x` describes at least `rows` rows, and `y` has room for as many of the result; both live, with weights and bias,
    /// until the stream has passed this point.
    pub unsafe fn launch(&self, x: &Map, y: u64, rows: usize, stream: &Stream) -> Result<()> {
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
                self.shared,
                arguments![x.0, self.weight.0, self.bias, y, count],
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
        // The bias must fit beside the stages.
        assert!(!fits(&Shape { intermediate: 1 << 14, ..base }, (9, 0)));
        assert_eq!(shared_bytes(3072), 147_456 + 67_584 + 6_144 + 1_280);
    }
}
