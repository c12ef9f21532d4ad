//! The first product of the feed-forward part and its activation in one kernel (`hopper.cu`), for Hopper only.

use cudarc::driver::{result as driver, sys};

use crate::driver::compile::{Kernel, arguments};
use crate::driver::device::{Device, driver_result};
use crate::driver::memory::Stream;
use crate::{Activation, Precision, Result, Shape};

// Equal to the definitions in hopper.cu.
const TILE_ROWS: usize = 128;
const TILE_COLUMNS: usize = 256;
const STEP: usize = 64;
const STAGES: usize = 3;
const PAIR: usize = 2;
const THREADS: u32 = 384;

/// Shared memory per block: stages, a finished tile, the bias, alignment and barriers.
fn shared_bytes(outputs: usize) -> usize {
    STAGES * (TILE_ROWS + TILE_COLUMNS) * STEP * 2 + TILE_ROWS * (TILE_COLUMNS * 2 + 16) + 2 * outputs + 1280
}

/// Whether the kernel supports this encoder on this chip. It has only the erf GELU; cuBLASLt has the other activations.
pub(crate) fn supports(shape: &Shape, capability: (i32, i32)) -> bool {
    capability == (9, 0)
        && shape.activation == Activation::Gelu
        && shape.hidden.is_multiple_of(STEP)
        && shape.intermediate.is_multiple_of(TILE_COLUMNS)
        && shared_bytes(shape.intermediate) <= 227 * 1024
}

/// Description of a matrix of 16-bit values for the copy engine.
#[derive(Clone, Copy)]
pub(crate) struct Map(sys::CUtensorMap);

impl Map {
    fn new(at: u64, rows: usize, inputs: usize, box_rows: usize, precision: Precision) -> Result<Self> {
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        let (sizes, pitch) = ([inputs as u64, rows as u64], [2 * inputs as u64]);
        let (box_sizes, strides) = ([STEP as u32, box_rows as u32], [1u32, 1]);
        let kind = match precision {
            Precision::F16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            Precision::Bf16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        };
        // SAFETY: two dimensions, and arrays of two sizes, one pitch, two box sizes and two strides.
        let result = unsafe {
            sys::cuTensorMapEncodeTiled(
                &raw mut map,
                kind,
                2,
                at as *mut std::ffi::c_void,
                sizes.as_ptr(),
                pitch.as_ptr(),
                box_sizes.as_ptr(),
                strides.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        driver_result("describing a matrix to the GPU", result.result())?;
        Ok(Map(map))
    }

    /// The left operand: `[rows, inputs]`, row-major.
    pub fn operand(at: u64, rows: usize, inputs: usize, precision: Precision) -> Result<Self> {
        Map::new(at, rows, inputs, TILE_ROWS, precision)
    }
}

/// The product of one layer.
pub(crate) struct Product {
    kernel: Kernel,
    weight: Map,
    bias: u64,
    /// Number of blocks that fills the GPU.
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
        driver_result("setting a kernel's shared memory", unsafe {
            driver::function::set_function_attribute(kernel.handle(), which, shared as i32)
        })?;
        let weight = Map::new(weight, shape.intermediate, shape.hidden, TILE_COLUMNS / PAIR, precision)?;
        Ok(Product { kernel, weight, bias, blocks: device.info().processors / PAIR * PAIR, shared })
    }

    /// Queues the product and the activation.
    ///
    /// # Safety
    /// `x` describes at least `rows` rows, and `y` has room for as many rows of the result; both live, with weights and bias,
    /// until the stream has passed this point.
    pub unsafe fn launch(&self, x: &Map, y: u64, rows: usize, stream: &Stream) -> Result<()> {
        if rows == 0 {
            return Ok(());
        }
        let count = rows as i32;
        // SAFETY: the kernel's parameters, in order and type.
        unsafe {
            self.kernel.launch_shared(
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
    fn it_supports_hopper_and_shapes_of_whole_tiles() {
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
        assert!(supports(&base, (9, 0)) && supports(&Shape { hidden: 384, intermediate: 1536, ..base }, (9, 0)));
        assert!(!supports(&base, (8, 0)) && !supports(&base, (10, 0)));
        assert!(!supports(&Shape { activation: Activation::GeluTanh, ..base }, (9, 0)));
        assert!(!supports(&Shape { intermediate: 3000, ..base }, (9, 0)));
        assert!(!supports(&Shape { hidden: 96, ..base }, (9, 0)));
        // The bias must fit beside the stages.
        assert!(!supports(&Shape { intermediate: 1 << 14, ..base }, (9, 0)));
        assert_eq!(shared_bytes(3072), 147_456 + 67_584 + 6_144 + 1_280);
    }
}
