//! Products of our own (`hopper.cu`) for the chip they are written for, beside those of cuBLASLt.

use cudarc::driver::{result as driver, sys};

use crate::compile::{Kernel, Kernels, arguments};
use crate::device::said;
use crate::memory::Stream;
use crate::{Activation, Precision, Result, Shape};

// As in hopper.cu.
const TILE_ROWS: usize = 128;
const TILE_COLUMNS: usize = 256;
const STEP: usize = 64;
const STAGES: usize = 3;
const PAIR: usize = 2;
const THREADS: u32 = 384;

/// The products of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Site {
    AttentionIn,
    AttentionOut,
    FeedIn,
    FeedOut,
}

impl Site {
    pub const ALL: [Site; 4] = [Site::AttentionIn, Site::AttentionOut, Site::FeedIn, Site::FeedOut];

    /// Its kernel.
    pub fn name(self) -> &'static str {
        match self {
            Site::AttentionIn => "attention_in",
            Site::AttentionOut => "attention_out",
            Site::FeedIn => "feed_in",
            Site::FeedOut => "feed_out",
        }
    }

    /// Inputs and outputs.
    pub fn size(self, shape: &Shape) -> (usize, usize) {
        let (hidden, inner) = (shape.hidden, shape.intermediate);
        match self {
            Site::AttentionIn => (hidden, 3 * hidden),
            Site::AttentionOut => (hidden, hidden),
            Site::FeedIn => (hidden, inner),
            Site::FeedOut => (inner, hidden),
        }
    }
}

/// Shared memory of a block: stages, a finished tile, the bias, alignment and barriers.
fn shared_bytes(outputs: usize) -> usize {
    STAGES * (TILE_ROWS + TILE_COLUMNS) * STEP * 2 + TILE_ROWS * (TILE_COLUMNS * 2 + 16) + 2 * outputs + 1280
}

/// Whether there is a kernel for a product of this encoder on this chip. Of activations it knows erf's alone; the others
/// are cuBLASLt's own.
pub(crate) fn fits(site: Site, shape: &Shape, capability: (i32, i32)) -> bool {
    let (inputs, outputs) = site.size(shape);
    capability == (9, 0)
        && (site != Site::FeedIn || shape.activation == Activation::Gelu)
        && inputs.is_multiple_of(STEP)
        && outputs.is_multiple_of(TILE_COLUMNS)
        && shared_bytes(outputs) <= 227 * 1024
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

/// A product with its weights.
pub(crate) struct Product {
    kernel: Kernel,
    weight: Map,
    bias: u64,
    shared: u32,
    /// Whether it also applies the activation.
    pub activates: bool,
}

impl Product {
    /// The product of a site where there is a kernel for it. `weight` is the address of `[outputs, inputs]`.
    pub fn new(
        kernels: &Kernels,
        site: Site,
        shape: &Shape,
        precision: Precision,
        weight: u64,
        bias: u64,
    ) -> Result<Option<Self>> {
        let Some(kernel) = kernels.product(site) else { return Ok(None) };
        let (inputs, outputs) = site.size(shape);
        let shared = shared_bytes(outputs) as u32;
        let which = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: a live function of this device.
        said("giving a kernel its shared memory", unsafe {
            driver::function::set_function_attribute(kernel.handle(), which, shared as i32)
        })?;
        let weight = Map::new(weight, outputs, inputs, TILE_COLUMNS / PAIR, precision)?;
        Ok(Some(Product { kernel, weight, bias, shared, activates: site == Site::FeedIn }))
    }

    /// Queues the product on so many multiprocessors.
    ///
    /// # Safety
    /// `x` describes at least `rows` rows of the product's inputs, and `y` has room for as many of its outputs; both live,
    /// with weights and bias, until the stream has passed this point.
    pub unsafe fn launch(&self, x: &Map, y: u64, rows: usize, processors: usize, stream: &Stream) -> Result<()> {
        if rows == 0 {
            return Ok(());
        }
        let count = rows as i32;
        // SAFETY: the kernel's parameters, in order and type.
        unsafe {
            self.kernel.launch_wide(
                stream,
                (processors / PAIR).max(1) * PAIR,
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
        let mini = Shape { hidden: 384, intermediate: 1536, ..base };
        let sites = |shape: &Shape, chip| Site::ALL.map(|site| fits(site, shape, chip));
        assert_eq!(sites(&base, (9, 0)), [true; 4]);
        assert_eq!(sites(&mini, (9, 0)), [false, false, true, false]);
        assert_eq!((sites(&base, (8, 0)), sites(&base, (10, 0))), ([false; 4], [false; 4]));
        let tanh = Shape { activation: Activation::GeluTanh, ..base };
        assert_eq!(sites(&tanh, (9, 0)), [true, true, false, true]);
        assert_eq!(sites(&Shape { intermediate: 3000, ..base }, (9, 0)), [true, true, false, false]);
        // The bias must fit beside the stages.
        assert!(!fits(Site::FeedIn, &Shape { intermediate: 1 << 14, ..base }, (9, 0)));
        assert_eq!(shared_bytes(3072), 147_456 + 67_584 + 6_144 + 1_280);
    }
}
