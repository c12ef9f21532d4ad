//! Compiles the kernels for one encoder on one GPU, and launches them.

use std::ffi::{CString, c_void};

use cudarc::driver::{result as driver, sys};
use cudarc::nvrtc::{result as nvrtc, sys as nvrtc_sys};

use crate::driver::device::{Device, driver_result};
use crate::driver::hopper::supports;
use crate::driver::memory::Stream;
use crate::{Activation, Error, Precision, Result, Shape};

const SOURCE: &str = include_str!("kernels.cu");
const HOPPER: &str = include_str!("hopper.cu");

/// Machine code, or assembly (PTX) that the driver compiles.
pub(crate) struct Image {
    bytes: Vec<u8>,
    /// Whether the image has the kernel `feed_in`.
    fused: bool,
}

/// Compiler options that specialise the source for one encoder.
fn options(shape: &Shape, precision: Precision) -> Vec<String> {
    let activation = match shape.activation {
        Activation::Gelu => 0,
        Activation::GeluTanh => 1,
        Activation::Relu => 2,
    };
    vec![
        "--std=c++17".into(),
        format!("-DHIDDEN={}", shape.hidden),
        format!("-DHEADS={}", shape.heads),
        format!("-DWIDTH={}", shape.width()),
        format!("-DINNER={}", shape.intermediate),
        format!("-DBF16={}", u8::from(precision == Precision::Bf16)),
        format!("-DACTIVATION={activation}"),
        // 17 significant digits give back the same f32.
        format!("-DEPSILON={:.17e}f", shape.epsilon),
    ]
}

/// Compiles an encoder's kernels for a compute capability.
pub(crate) fn compile(shape: &Shape, precision: Precision, capability: (i32, i32)) -> Result<Image> {
    let fused = supports(shape, capability) && supported_chips()?.contains(&(capability.0 * 10 + capability.1));
    let source = if fused { format!("{SOURCE}{HOPPER}") } else { SOURCE.into() };
    // The suffix `a` enables the instructions of this chip only.
    let bytes = assemble(&source, options(shape, precision), capability, if fused { "a" } else { "" })?;
    Ok(Image { bytes, fused })
}

/// Compiles for a compute capability: to machine code where the compiler knows the chip, else to assembly for the newest
/// older chip, which the driver compiles.
pub(crate) fn assemble(
    source: &str,
    mut options: Vec<String>,
    capability: (i32, i32),
    variant: &str,
) -> Result<Vec<u8>> {
    let chip = capability.0 * 10 + capability.1;
    let known = supported_chips()?;
    let exact = known.contains(&chip);
    if exact {
        options.push(format!("--gpu-architecture=sm_{chip}{variant}"));
    } else {
        let below = known.iter().copied().filter(|&c| c < chip).max().ok_or_else(|| {
            Error::Unsupported(format!(
                "NVRTC does not support this GPU's compute capability {}.{}; update the CUDA libraries, or use the CPU",
                capability.0, capability.1
            ))
        })?;
        options.push(format!("--gpu-architecture=compute_{below}"));
    }
    let source = CString::new(source).map_err(|_| Error::Unsupported("the kernel source has a zero byte".into()))?;
    let program = nvrtc_result("creating a program", nvrtc::create_program(&source, Some(c"kernels.cu")))?;
    // SAFETY: `program` is live until the end of this block and `source` outlives it; the buffers have the requested sizes.
    unsafe {
        let image = (|| {
            if nvrtc::compile_program(program, &options).is_err() {
                let log = nvrtc::get_program_log(program).unwrap_or_default();
                let log: String = log.iter().take_while(|c| **c != 0).map(|c| *c as u8 as char).collect();
                return Err(Error::Failed {
                    doing: format!("compiling the GPU kernels with {}", options.join(" ")),
                    said: log.lines().take(12).collect::<Vec<_>>().join("\n"),
                    advice: "update the CUDA libraries, or use the CPU",
                });
            }
            if !exact {
                let text = nvrtc_result("reading the compiled kernels", nvrtc::get_ptx(program))?;
                return Ok(text.iter().map(|c| *c as u8).collect());
            }
            let mut size = 0;
            nvrtc_result("sizing the compiled kernels", nvrtc_sys::nvrtcGetCUBINSize(program, &raw mut size).result())?;
            let mut bytes = vec![0u8; size];
            let to = bytes.as_mut_ptr().cast();
            nvrtc_result("reading the compiled kernels", nvrtc_sys::nvrtcGetCUBIN(program, to).result())?;
            Ok(bytes)
        })();
        let _ = nvrtc::destroy_program(program);
        image
    }
}

/// Chips that the compiler supports: 90 is compute capability 9.0.
fn supported_chips() -> Result<Vec<i32>> {
    // SAFETY: the second call fills as many integers as the first one counts.
    unsafe {
        let mut count = 0;
        nvrtc_result("listing supported chips", nvrtc_sys::nvrtcGetNumSupportedArchs(&raw mut count).result())?;
        let mut chips = vec![0; count.max(0) as usize];
        nvrtc_result("listing supported chips", nvrtc_sys::nvrtcGetSupportedArchs(chips.as_mut_ptr()).result())?;
        Ok(chips)
    }
}

fn nvrtc_result<T>(doing: &str, answer: std::result::Result<T, nvrtc::NvrtcError>) -> Result<T> {
    answer.map_err(|nvrtc::NvrtcError(code)| Error::Failed {
        doing: doing.into(),
        said: format!("{code:?}"),
        advice: "update the CUDA libraries, or use the CPU",
    })
}

/// Loaded kernels of an encoder.
pub(crate) struct Kernels {
    _module: Module,
    pub keys: Kernel,
    pub embed: Pair,
    pub attend: Pair,
    pub attend_short: Pair,
    pub attend_first: Pair,
    pub add_norm: Pair,
    pub activation: Kernel,
    pub pool: Kernel,
    /// The first product of the feed-forward part with its activation, where the chip supports it.
    pub feed_in: Option<Kernel>,
}

#[derive(Clone, Copy)]
pub(crate) struct Kernel(sys::CUfunction);

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// A kernel without and with dropout.
#[derive(Clone, Copy)]
pub(crate) struct Pair {
    clean: Kernel,
    drop: Kernel,
}

impl Pair {
    pub fn pick(self, drop: bool) -> Kernel {
        if drop { self.drop } else { self.clean }
    }
}

impl Kernels {
    pub fn load(device: &Device, image: &Image) -> Result<Self> {
        let module = Module::load(device, &image.bytes)?;
        let find = |name: &str| module.find(name);
        let pair = |name: &str| Ok::<_, Error>(Pair { clean: find(name)?, drop: find(&format!("{name}_drop"))? });
        Ok(Kernels {
            keys: find("keys")?,
            embed: pair("embed")?,
            attend: pair("attend")?,
            attend_short: pair("attend_short")?,
            attend_first: pair("attend_first")?,
            add_norm: pair("add_norm")?,
            activation: find("activation")?,
            pool: find("pool")?,
            feed_in: image.fused.then(|| find("feed_in")).transpose()?,
            _module: module,
        })
    }
}

/// A loaded image. Its kernels are valid as long as it lives.
pub(crate) struct Module {
    device: Device,
    handle: sys::CUmodule,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// `image` is a result of [`assemble`].
    pub fn load(device: &Device, image: &[u8]) -> Result<Self> {
        device.bind()?;
        // SAFETY: the image is a whole result of the compiler; assembly ends with the zero that the compiler writes.
        let handle =
            driver_result("loading the GPU kernels", unsafe { driver::module::load_data(image.as_ptr().cast()) })?;
        Ok(Module { device: device.clone(), handle })
    }

    pub fn find(&self, name: &str) -> Result<Kernel> {
        let name = CString::new(name).expect("kernel names have no zero byte");
        // SAFETY: the module is live.
        driver_result("finding a GPU kernel", unsafe { driver::module::get_function(self.handle, name) }).map(Kernel)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: loaded by `load`, unloaded once; streams that used it were waited for when they were dropped.
            let _ = unsafe { driver::module::unload(self.handle) };
        }
    }
}

impl Kernel {
    pub fn handle(self) -> sys::CUfunction {
        self.0
    }

    /// Queues `blocks` blocks of `threads` threads.
    ///
    /// # Safety
    /// `arguments` point to values of the kernel's parameter types, in order, and the addresses among them are of
    /// buffers of this device that are large enough and live until the stream has passed this point.
    pub unsafe fn launch(
        self,
        stream: &Stream,
        blocks: usize,
        threads: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.launch_shared(stream, blocks, threads, 0, arguments) }
    }

    /// [`Self::launch`] with `shared` bytes of shared memory per block.
    ///
    /// # Safety
    /// As for `launch`.
    pub unsafe fn launch_shared(
        self,
        stream: &Stream,
        blocks: usize,
        threads: u32,
        shared: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        let blocks = u32::try_from(blocks)
            .map_err(|_| Error::Input(format!("{blocks} blocks are too many for one launch; use smaller batches")))?;
        if blocks == 0 {
            return Ok(());
        }
        // SAFETY: as the caller promises.
        let answer = unsafe {
            driver::launch_kernel(self.0, (blocks, 1, 1), (threads, 1, 1), shared, stream.handle(), arguments)
        };
        driver_result("starting a GPU kernel", answer)
    }
}

/// Pointers to a kernel's arguments.
macro_rules! arguments {
    ($($value:expr),* $(,)?) => {
        &mut [$(std::ptr::from_ref(&$value).cast_mut().cast::<std::ffi::c_void>()),*]
    };
}
pub(crate) use arguments;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::library::{Library, guarded, require};

    /// Needs NVRTC, not a GPU: the source must compile for every head width, precision, activation and chip.
    #[test]
    fn the_kernels_compile_for_every_encoder() {
        if require(Library::Compiler).is_err() {
            println!("skipped: NVRTC is not on this machine");
            return;
        }
        let base = Shape {
            hidden: 384,
            heads: 12,
            layers: 6,
            intermediate: 1536,
            vocab: 30522,
            positions: 512,
            epsilon: 1e-12,
            activation: Activation::Gelu,
        };
        let cases = [
            (base, Precision::F16, (9, 0)),
            (Shape { hidden: 768, intermediate: 3072, ..base }, Precision::Bf16, (9, 0)),
            (Shape { hidden: 1024, heads: 16, activation: Activation::GeluTanh, ..base }, Precision::F16, (8, 0)),
            (Shape { hidden: 96, heads: 1, activation: Activation::Relu, ..base }, Precision::Bf16, (8, 6)),
            (Shape { hidden: 256, heads: 2, ..base }, Precision::F16, (8, 9)),
            // A chip that no compiler supports: assembly for the newest older one.
            (base, Precision::F16, (99, 9)),
        ];
        for (shape, precision, capability) in cases {
            let image = guarded("compiling", || compile(&shape, precision, capability)).unwrap();
            assert!(image.bytes.len() > 1000);
            assert_eq!(image.fused, capability == (9, 0));
            assert_eq!(image.bytes.starts_with(b"\x7fELF"), capability.0 != 99);
        }
    }
}
