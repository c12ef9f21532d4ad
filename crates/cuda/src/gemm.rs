//! Matrix products by cuBLASLt: 16-bit operands, f32 sums, the bias and where exact the activation in the epilogue.

use std::ffi::c_void;

use cudarc::cublaslt::result::{self as lt, CublasError};
use cudarc::cublaslt::sys::{self, cublasLtEpilogue_t as Epilogue};

use crate::device::Device;
use crate::memory::{Buffer, Stream};
use crate::{Error, Precision, Result};

/// What cuBLASLt may use beside the operands; the vendor's advice for Hopper.
pub(crate) const WORKSPACE: usize = 32 << 20;

/// Rows for which a product's algorithm is chosen. One algorithm serves every batch, so that a row's sum is taken in
/// the same order whatever else is in its batch.
const TYPICAL_ROWS: u64 = 16 * 1024;

/// The library's handle.
pub(crate) struct Products {
    device: Device,
    handle: sys::cublasLtHandle_t,
}

// SAFETY: a cuBLASLt handle may be used from any thread.
unsafe impl Send for Products {}
// SAFETY: as above; cuBLASLt allows concurrent calls on one handle.
unsafe impl Sync for Products {}

impl Products {
    pub fn new(device: &Device) -> Result<Self> {
        device.bind()?;
        Ok(Products { device: device.clone(), handle: refused("starting cuBLASLt", lt::create_handle())? })
    }
}

impl Drop for Products {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: created by `new`, destroyed once.
            let _ = unsafe { lt::destroy_handle(self.handle) };
        }
    }
}

/// `y[rows, outputs] = epilogue(x[rows, inputs] W^T + bias)`, with `W` as `[outputs, inputs]`.
pub(crate) struct Linear {
    weight: Buffer,
    _bias: Buffer,
    plan: Plan,
    // The same product with another epilogue, where there is one.
    other: Option<Plan>,
    inputs: usize,
    outputs: usize,
}

/// cuBLASLt's descriptions. It counts by columns: W is `[inputs, outputs]` there, turned; x and y are
/// `[inputs, rows]` and `[outputs, rows]`.
struct Plan {
    description: sys::cublasLtMatmulDesc_t,
    weight: sys::cublasLtMatrixLayout_t,
    x: sys::cublasLtMatrixLayout_t,
    y: sys::cublasLtMatrixLayout_t,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

// SAFETY: plain descriptions on the heap, used under the encoder's lock.
unsafe impl Send for Linear {}
// SAFETY: as above: the lock is held by whoever multiplies.
unsafe impl Sync for Linear {}

impl Linear {
    /// `weight` and `bias` are bits of the precision.
    pub fn new(
        device: &Device,
        products: &Products,
        precision: Precision,
        weight: &[u16],
        bias: &[u16],
        epilogue: Epilogue,
        other: Option<Epilogue>,
    ) -> Result<Self> {
        let (outputs, inputs) = (bias.len(), weight.len() / bias.len());
        let weight = Buffer::filled(device, weight, "the encoder's weights")?;
        let bias = Buffer::filled(device, bias, "the encoder's weights")?;
        let plan = |epilogue| Plan::new(products, precision, inputs, outputs, epilogue, bias.at());
        let (plan, other) = (plan(epilogue)?, other.map(plan).transpose()?);
        Ok(Linear { weight, _bias: bias, plan, other, inputs, outputs })
    }

    /// Whether it can be asked for its other epilogue.
    pub fn has_other(&self) -> bool {
        self.other.is_some()
    }

    /// Queues the product, with `other` by its other epilogue if it has one.
    ///
    /// # Safety
    /// `x` and `y` are addresses on this device of `rows * inputs` and `rows * outputs` 16-bit values that live, with
    /// `workspace`, until the stream has passed this point.
    #[allow(clippy::too_many_arguments)]
    pub unsafe fn multiply(
        &self,
        products: &Products,
        x: u64,
        y: u64,
        rows: usize,
        other: bool,
        workspace: &Buffer,
        stream: &Stream,
    ) -> Result<()> {
        if rows == 0 {
            return Ok(());
        }
        let (one, zero) = (1.0f32, 0.0f32);
        let plan = self.other.as_ref().filter(|_| other).unwrap_or(&self.plan);
        // SAFETY: the descriptions are live and agree with the operands, as the caller promises for theirs.
        let answer = unsafe {
            for layout in [plan.x, plan.y] {
                let columns = rows as u64;
                let which = sys::cublasLtMatrixLayoutAttribute_t::CUBLASLT_MATRIX_LAYOUT_COLS;
                refused("sizing a product", lt::set_matrix_layout_attribute(layout, which, at(&columns), 8))?;
            }
            lt::matmul(
                products.handle,
                plan.description,
                at(&one),
                at(&zero),
                self.weight.at() as *const c_void,
                plan.weight,
                x as *const c_void,
                plan.x,
                y as *const c_void,
                plan.y,
                y as *mut c_void,
                plan.y,
                &plan.algorithm,
                workspace.at() as *mut c_void,
                workspace.bytes(),
                stream.handle().cast(),
            )
        };
        refused("multiplying", answer).map_err(|e| match e {
            Error::Failed { said, advice, .. } => Error::Failed {
                doing: format!("multiplying {rows} x {} by {}", self.inputs, self.outputs),
                said,
                advice,
            },
            other => other,
        })
    }
}

impl Plan {
    fn new(
        products: &Products,
        precision: Precision,
        inputs: usize,
        outputs: usize,
        epilogue: Epilogue,
        bias: u64,
    ) -> Result<Self> {
        use sys::cublasLtMatmulDescAttributes_t as Field;
        let kind = match precision {
            Precision::F16 => sys::cudaDataType::CUDA_R_16F,
            Precision::Bf16 => sys::cudaDataType::CUDA_R_16BF,
        };
        let layout = |rows: usize, columns: u64| lt::create_matrix_layout(kind, rows as u64, columns, rows as i64);
        let make = || -> std::result::Result<Plan, CublasError> {
            let mut plan = Plan {
                description: lt::create_matmul_desc(
                    sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                    sys::cudaDataType::CUDA_R_32F,
                )?,
                weight: std::ptr::null_mut(),
                x: std::ptr::null_mut(),
                y: std::ptr::null_mut(),
                algorithm: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
            };
            plan.weight = layout(inputs, outputs as u64)?;
            plan.x = layout(inputs, TYPICAL_ROWS)?;
            plan.y = layout(outputs, TYPICAL_ROWS)?;
            // CUBLAS_OP_T, which the bindings leave to cuBLAS proper.
            let turned = 1i32;
            // SAFETY: each value has the type and size its field is documented with.
            unsafe {
                lt::set_matmul_desc_attribute(plan.description, Field::CUBLASLT_MATMUL_DESC_TRANSA, at(&turned), 4)?;
                lt::set_matmul_desc_attribute(
                    plan.description,
                    Field::CUBLASLT_MATMUL_DESC_EPILOGUE,
                    at(&epilogue),
                    4,
                )?;
                lt::set_matmul_desc_attribute(
                    plan.description,
                    Field::CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                    at(&bias),
                    8,
                )?;
            }
            plan.algorithm = plan.choose(products)?;
            Ok(plan)
        };
        refused(&format!("planning a product of {inputs} by {outputs}"), make())
    }

    fn choose(&self, products: &Products) -> std::result::Result<sys::cublasLtMatmulAlgo_t, CublasError> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Field;
        let preference = lt::create_matmul_pref()?;
        // No algorithm that splits a sum over blocks: those add in an order that depends on the number of rows.
        let (workspace, no_split) = (WORKSPACE as u64, 0u32);
        // SAFETY: live descriptions; the values have the sizes documented for their fields.
        unsafe {
            let found = (|| {
                let (room, split) = (
                    Field::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                    Field::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                );
                lt::set_matmul_pref_attribute(preference, room, at(&workspace), 8)?;
                lt::set_matmul_pref_attribute(preference, split, at(&no_split), 4)?;
                lt::get_matmul_algo_heuristic(
                    products.handle,
                    self.description,
                    self.weight,
                    self.x,
                    self.y,
                    self.y,
                    preference,
                )
            })();
            let _ = lt::destroy_matmul_pref(preference);
            found.map(|f| f.algo)
        }
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: each was created by `new` where it is not null, and is destroyed once.
        unsafe {
            for layout in [self.weight, self.x, self.y] {
                if !layout.is_null() {
                    let _ = lt::destroy_matrix_layout(layout);
                }
            }
            let _ = lt::destroy_matmul_desc(self.description);
        }
    }
}

fn at<T>(value: &T) -> *const c_void {
    (&raw const *value).cast()
}

fn refused<T>(doing: &str, answer: std::result::Result<T, CublasError>) -> Result<T> {
    answer.map_err(|CublasError(code)| Error::Failed {
        doing: doing.into(),
        said: format!("{code:?}"),
        advice: "start the program again; if it stays, update the CUDA libraries, or use the CPU",
    })
}
