//! Matrix products by cuBLASLt: 16-bit operands, f32 sums, bias and (where cuBLASLt has the exact form) activation in the
//! epilogue.

use std::collections::HashMap;
use std::ffi::c_void;
use std::time::{Duration, Instant};

use cudarc::cublaslt::result::{self as lt, CublasError};
use cudarc::cublaslt::sys::{self, cublasLtEpilogue_t as Epilogue};
use parking_lot::Mutex;

use crate::driver::compile::{Kernels, arguments};
use crate::driver::device::Device;
use crate::driver::hopper::{Map, Product};
use crate::driver::memory::{Buffer, Stream};
use crate::driver::weights::bits;
use crate::{Error, Precision, Result, Shape};

/// cuBLASLt's workspace; the vendor's recommendation for Hopper.
pub(crate) const WORKSPACE_BYTES: usize = 32 << 20;

/// Rows for which a product's algorithm is chosen. Every batch uses the same algorithm, so that the order of a row's sums does
/// not depend on the rest of its batch.
const TYPICAL_ROWS: usize = 16 * 1024;

/// Largest number of cuBLASLt's algorithms to time per product.
const MAX_ALGORITHMS: usize = 24;
/// Rows in which an algorithm must give the bits of the first one.
const COMPARED_ROWS: usize = 300;

/// A product of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Site {
    AttentionIn,
    AttentionOut,
    FeedIn,
    FeedOut,
}

impl Site {
    const ALL: [Site; 4] = [Site::AttentionIn, Site::AttentionOut, Site::FeedIn, Site::FeedOut];

    /// (inputs, outputs).
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

/// cuBLASLt's handle, and the chosen algorithm per site.
pub(crate) struct Products {
    device: Device,
    handle: sys::cublasLtHandle_t,
    precision: Precision,
    choices: Mutex<HashMap<Site, Choice>>,
    trial: Option<Trial>,
}

/// The implementation chosen for the products of a site.
#[derive(Clone, Copy)]
struct Choice {
    algorithm: sys::cublasLtMatmulAlgo_t,
    /// Whether our own kernel is faster.
    use_own: bool,
    /// Times of cuBLASLt's first algorithm, of its fastest, and of our own kernel; with the activation where our kernel applies
    /// it.
    times: (Duration, Duration, Option<Duration>),
}

/// Operands for timing algorithms.
struct Trial {
    x: Buffer,
    y: Buffer,
    workspace: Buffer,
    stream: Stream,
    /// Width of the widest operand.
    width: usize,
}

// SAFETY: a cuBLASLt handle may be used from any thread.
unsafe impl Send for Products {}
// SAFETY: as above; cuBLASLt allows concurrent calls on one handle.
unsafe impl Sync for Products {}

impl Products {
    /// With `trial_width`, the width of the widest operand, algorithms are timed; without it, the library's first one is used.
    pub fn new(device: &Device, precision: Precision, trial_width: Option<usize>) -> Result<Self> {
        device.bind()?;
        let handle = cublas_result("starting cuBLASLt", lt::create_handle())?;
        let mut products =
            Products { device: device.clone(), handle, precision, choices: Mutex::default(), trial: None };
        products.trial = trial_width.map(|width| Trial::new(device, precision, width)).transpose()?;
        Ok(products)
    }

    /// One line per timed site.
    pub fn choices(&self) -> Vec<String> {
        let choices = self.choices.lock();
        let line = |site: &Site| {
            let Choice { use_own, times: (first, best, own), .. } = choices.get(site)?;
            Some(format!("{site:?}: cuBLASLt {first:.1?}, best {best:.1?}, own {own:.1?}, own is used: {use_own}"))
        };
        Site::ALL.iter().filter_map(line).collect()
    }

    /// Frees the operands of the trial.
    pub fn end_trial(&mut self) {
        self.trial = None;
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

impl Trial {
    fn new(device: &Device, precision: Precision, width: usize) -> Result<Self> {
        let (what, bytes) = ("timing products", 2 * TYPICAL_ROWS * width);
        let trial = Trial {
            x: Buffer::new(device, bytes, what)?,
            y: Buffer::new(device, bytes, what)?,
            workspace: Buffer::new(device, WORKSPACE_BYTES, what)?,
            stream: Stream::new(device)?,
            width,
        };
        // Values of both signs in (-2, 2), like states: zeros would take less power and run faster.
        let mut seed = 1u64;
        let mut value = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 40) as f32 / (1 << 22) as f32 - 2.0
        };
        let rows: Vec<f32> = (0..64 * width).map(|_| value()).collect();
        let rows = bits(&rows, precision);
        for part in 0..TYPICAL_ROWS / 64 {
            trial.stream.upload(trial.x.at() + (2 * part * rows.len()) as u64, &rows)?;
        }
        trial.stream.wait()?;
        Ok(trial)
    }

    /// Runs `product` from `x` to `y`. Returns the first rows of `y` and the time of one run.
    fn run(&self, outputs: usize, product: &dyn Fn() -> Result<()>) -> Result<(Vec<u16>, Duration)> {
        debug_assert!(outputs <= self.width);
        let mut rows = vec![0u16; COMPARED_ROWS * outputs];
        product()?;
        self.stream.wait()?;
        self.stream.download(&mut rows, self.y.at())?;
        self.stream.wait()?;
        let mut fastest = Duration::MAX;
        for _ in 0..3 {
            let start = Instant::now();
            for _ in 0..3 {
                product()?;
            }
            self.stream.wait()?;
            fastest = fastest.min(start.elapsed() / 3);
        }
        Ok((rows, fastest))
    }
}

/// `y[rows, outputs] = epilogue(x[rows, inputs] W^T + bias)`, with `W` as `[outputs, inputs]`.
pub(crate) struct Linear {
    weight: Buffer,
    _bias: Buffer,
    plan: Plan,
    own_product: Option<Product>,
    inputs: usize,
    outputs: usize,
}

/// cuBLASLt's descriptions. It is column-major: W is `[inputs, outputs]` there and transposed; x and y are `[inputs, rows]`
/// and `[outputs, rows]`.
struct Plan {
    description: sys::cublasLtMatmulDesc_t,
    weight: sys::cublasLtMatrixLayout_t,
    x: sys::cublasLtMatrixLayout_t,
    y: sys::cublasLtMatrixLayout_t,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

// SAFETY: plain descriptions on the heap, used under the encoder's lock.
unsafe impl Send for Linear {}
// SAFETY: as above: every multiplication holds the lock.
unsafe impl Sync for Linear {}

impl Linear {
    /// `weight` `[outputs, inputs]` and `bias` `[outputs]` are bits of the precision.
    pub fn new(
        products: &Products,
        kernels: &Kernels,
        shape: &Shape,
        site: Site,
        weight: &[u16],
        bias: &[u16],
        epilogue: Epilogue,
    ) -> Result<Self> {
        let Products { device, precision, .. } = products;
        let (inputs, outputs) = site.size(shape);
        debug_assert_eq!((bias.len(), weight.len()), (outputs, outputs * inputs));
        let weight = Buffer::filled(device, weight, "the encoder's weights")?;
        let bias = Buffer::filled(device, bias, "the encoder's weights")?;
        let plan = Plan::new(products, *precision, inputs, outputs, epilogue, bias.at())?;
        let own_product = match (site, kernels.feed_in) {
            (Site::FeedIn, Some(kernel)) => {
                Some(Product::new(device, kernel, shape, *precision, weight.at(), bias.at())?)
            }
            _ => None,
        };
        let mut linear = Linear { weight, _bias: bias, plan, own_product, inputs, outputs };
        let known = products.choices.lock().get(&site).copied();
        let choice = match (known, &products.trial) {
            (Some(choice), _) => Some(choice),
            (None, Some(trial)) => Some(linear.choose(products, kernels, trial)?),
            (None, None) => None,
        };
        if let Some(choice) = choice {
            linear.plan.algorithm = choice.algorithm;
            linear.own_product = linear.own_product.filter(|_| choice.use_own);
            products.choices.lock().insert(site, choice);
        } else {
            linear.own_product = None;
        }
        Ok(linear)
    }

    /// Our own kernel, which also applies the activation, where it is faster.
    pub fn own_product(&self) -> Option<&Product> {
        self.own_product.as_ref()
    }

    /// Finds the fastest implementation that gives the bits of the library's first algorithm. The search decides only the
    /// speed, so every run gives the same vectors.
    fn choose(&mut self, products: &Products, kernels: &Kernels, trial: &Trial) -> Result<Choice> {
        let mut best: Option<(Vec<u16>, Duration, Choice)> = None;
        for algorithm in cublas_result("listing algorithms", self.plan.candidates(products, MAX_ALGORITHMS))? {
            self.plan.algorithm = algorithm;
            let product = || {
                let (x, y, Trial { workspace, stream, .. }) = (trial.x.at(), trial.y.at(), trial);
                let vectors = (TYPICAL_ROWS * self.outputs / 8) as u64;
                // SAFETY: the trial's operands are as wide as the widest product and `TYPICAL_ROWS` long.
                unsafe {
                    self.multiply(products, x, y, TYPICAL_ROWS, workspace, stream)?;
                    // Our own kernel applies the activation too.
                    if self.own_product.is_some() {
                        let blocks = vectors.div_ceil(256) as usize;
                        kernels.activation.launch(stream, blocks, 256, arguments![y, vectors])?;
                    }
                }
                Ok(())
            };
            let (rows, time) = match (trial.run(self.outputs, &product), &best) {
                (Ok(result), _) => result,
                // The library may list algorithms that it refuses to run. They are skipped, as long as the first one ran.
                (Err(error), None) => return Err(error),
                (Err(_), Some(_)) => continue,
            };
            match &mut best {
                None => best = Some((rows, time, Choice { algorithm, use_own: false, times: (time, time, None) })),
                Some((first, _, choice)) if *first == rows && time < choice.times.1 => {
                    (choice.algorithm, choice.times.1) = (algorithm, time);
                }
                Some(_) => {}
            }
        }
        let Some((rows, _, mut choice)) = best else {
            return Err(Error::Unsupported(format!(
                "cuBLASLt has no product of {} by {}; update the CUDA libraries, or use the CPU",
                self.inputs, self.outputs
            )));
        };
        if let Some(own) = &self.own_product {
            let x = Map::operand(trial.x.at(), TYPICAL_ROWS, self.inputs, products.precision)?;
            // SAFETY: as above.
            let product = || unsafe { own.launch(&x, trial.y.at(), TYPICAL_ROWS, &trial.stream) };
            let (own_rows, time) = trial.run(self.outputs, &product)?;
            choice.times.2 = Some(time);
            choice.use_own = own_rows == rows && time < choice.times.1;
        }
        Ok(choice)
    }

    /// Queues the product.
    ///
    /// # Safety
    /// `x` and `y` are addresses on this device of `rows * inputs` and `rows * outputs` 16-bit values that live, with
    /// `workspace`, until the stream has passed this point.
    pub unsafe fn multiply(
        &self,
        products: &Products,
        x: u64,
        y: u64,
        rows: usize,
        workspace: &Buffer,
        stream: &Stream,
    ) -> Result<()> {
        if rows == 0 {
            return Ok(());
        }
        let (one, zero) = (1.0f32, 0.0f32);
        let plan = &self.plan;
        // SAFETY: the descriptions are live and agree with the operands, as the caller promises for theirs.
        let result = unsafe {
            for layout in [plan.x, plan.y] {
                let columns = rows as u64;
                let which = sys::cublasLtMatrixLayoutAttribute_t::CUBLASLT_MATRIX_LAYOUT_COLS;
                cublas_result("sizing a product", lt::set_matrix_layout_attribute(layout, which, at(&columns), 8))?;
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
                &raw const plan.algorithm,
                workspace.at() as *mut c_void,
                workspace.bytes(),
                stream.handle().cast(),
            )
        };
        cublas_result("multiplying", result).map_err(|e| match e {
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
            plan.x = layout(inputs, TYPICAL_ROWS as u64)?;
            plan.y = layout(outputs, TYPICAL_ROWS as u64)?;
            // CUBLAS_OP_T, which only the bindings of cuBLAS itself define.
            let transposed = 1i32;
            // SAFETY: each value has the type and size its field is documented with.
            unsafe {
                lt::set_matmul_desc_attribute(
                    plan.description,
                    Field::CUBLASLT_MATMUL_DESC_TRANSA,
                    at(&transposed),
                    4,
                )?;
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
            plan.algorithm = plan.candidates(products, 1)?[0];
            Ok(plan)
        };
        cublas_result(&format!("planning a product of {inputs} by {outputs}"), make())
    }

    /// Up to `max_count` algorithms in the library's order, at least one.
    fn candidates(
        &self,
        products: &Products,
        max_count: usize,
    ) -> std::result::Result<Vec<sys::cublasLtMatmulAlgo_t>, CublasError> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Field;
        let preference = lt::create_matmul_pref()?;
        // No algorithm that splits a sum over blocks: those add in an order that depends on the number of rows.
        let (workspace, no_split) = (WORKSPACE_BYTES as u64, 0u32);
        let none = sys::cublasLtMatmulHeuristicResult_t {
            algo: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
            workspaceSize: 0,
            state: sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED,
            wavesCount: 0.0,
            reserved: [0; 4],
        };
        let (mut candidates, mut count) = (vec![none; max_count], 0i32);
        // SAFETY: live descriptions; the values have the sizes documented for their fields; `candidates` has room for
        // `max_count` results.
        unsafe {
            let result = (|| {
                let (workspace_field, split_field) = (
                    Field::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                    Field::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                );
                lt::set_matmul_pref_attribute(preference, workspace_field, at(&workspace), 8)?;
                lt::set_matmul_pref_attribute(preference, split_field, at(&no_split), 4)?;
                sys::cublasLtMatmulAlgoGetHeuristic(
                    products.handle,
                    self.description,
                    self.weight,
                    self.x,
                    self.y,
                    self.y,
                    preference,
                    max_count as i32,
                    candidates.as_mut_ptr(),
                    &raw mut count,
                )
                .result()
            })();
            let _ = lt::destroy_matmul_pref(preference);
            result?;
        }
        candidates.truncate(count.max(0) as usize);
        candidates.retain(|a| a.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
        if candidates.is_empty() {
            return Err(CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED));
        }
        Ok(candidates.into_iter().map(|a| a.algo).collect())
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

fn cublas_result<T>(doing: &str, answer: std::result::Result<T, CublasError>) -> Result<T> {
    answer.map_err(|CublasError(code)| match code {
        sys::cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED => Error::out_of_memory(doing),
        code => Error::Failed {
            doing: doing.into(),
            said: format!("{code:?}"),
            advice: "restart the program; if the error remains, update the CUDA libraries, or use the CPU",
        },
    })
}
