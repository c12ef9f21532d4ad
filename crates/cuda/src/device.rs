//! GPUs of this machine, and an opened one.

use std::ffi::CStr;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUdevice_attribute};
use cudarc::driver::{CudaContext, DriverError, result};

use crate::library::{Library, guarded, require};
use crate::{Error, Result};

/// The oldest driver whose functions are called: CUDA 12.0.
const OLDEST_DRIVER: i32 = 12_000;
/// The oldest compute capability with bf16 tensor cores and the 16 x 8 x 16 product.
const OLDEST_CHIP: (i32, i32) = (8, 0);

/// What there is to know about a GPU before opening it.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Its number.
    pub ordinal: usize,
    /// The vendor's name.
    pub name: String,
    /// Memory in bytes.
    pub memory: usize,
    /// Compute capability.
    pub capability: (i32, i32),
    /// Multiprocessors.
    pub processors: usize,
    /// CUDA version of the driver: 13000 is 13.0.
    pub driver: i32,
}

/// An opened GPU.
#[derive(Clone)]
pub struct Device {
    context: Arc<CudaContext>,
    info: Arc<DeviceInfo>,
}

/// The GPUs of this machine; empty where the driver shows none.
///
/// # Errors
/// Where there is no driver, or one too old to be called.
pub fn devices() -> Result<Vec<DeviceInfo>> {
    require(Library::Driver)?;
    guarded("listing GPUs", || {
        let driver = driver_version()?;
        match result::init() {
            Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => return Ok(Vec::new()),
            other => said("starting the driver", other)?,
        }
        let count = said("counting GPUs", result::device::get_count())?;
        (0..count).map(|i| describe(i, driver)).collect()
    })
}

impl Device {
    /// Opens a GPU and checks that everything an encoder needs is there.
    pub fn open(ordinal: usize) -> Result<Self> {
        let all = devices()?;
        let count = all.len();
        let Some(info) = all.into_iter().nth(ordinal) else {
            let hidden = match std::env::var("CUDA_VISIBLE_DEVICES") {
                Ok(list) => format!(" (CUDA_VISIBLE_DEVICES is '{list}')"),
                Err(_) => String::new(),
            };
            return Err(Error::NoDevice { ordinal, count, hidden });
        };
        if info.capability < OLDEST_CHIP {
            return Err(Error::Unsupported(format!(
                "{} has compute capability {}.{}, at least {}.{} is needed (Ampere or newer); use the CPU",
                info.name, info.capability.0, info.capability.1, OLDEST_CHIP.0, OLDEST_CHIP.1
            )));
        }
        require(Library::Compiler)?;
        require(Library::Products)?;
        guarded("opening the GPU", || {
            let context = said("opening the GPU", CudaContext::new(ordinal))?;
            // A thread that waits sleeps: sixteen models in training at once would else keep sixteen cores busy waiting.
            said("opening the GPU", context.set_blocking_synchronize())?;
            Ok(Device { context, info: Arc::new(info) })
        })
    }

    /// What it is.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Bytes free and in all.
    pub fn memory(&self) -> Result<(usize, usize)> {
        self.bind()?;
        said("asking for free memory", result::mem_get_info())
    }

    /// Makes it the current GPU of this thread, which every call into the driver needs.
    pub(crate) fn bind(&self) -> Result<()> {
        said("choosing the GPU", self.context.bind_to_thread())
    }
}

fn driver_version() -> Result<i32> {
    let mut version = 0;
    // SAFETY: writes one integer.
    said("asking for the driver's version", unsafe { sys::cuDriverGetVersion(&mut version) }.result())?;
    if version < OLDEST_DRIVER {
        return Err(Error::Unsupported(format!(
            "the NVIDIA driver is for CUDA {}.{}, at least {}.{} is needed; update the driver, or use the CPU",
            version / 1000,
            version % 1000 / 10,
            OLDEST_DRIVER / 1000,
            OLDEST_DRIVER % 1000 / 10
        )));
    }
    Ok(version)
}

fn describe(ordinal: i32, driver: i32) -> Result<DeviceInfo> {
    let device = said("looking at a GPU", result::device::get(ordinal))?;
    // SAFETY: `device` is a handle that the driver has just given.
    let attribute = |which| said("looking at a GPU", unsafe { result::device::get_attribute(device, which) });
    Ok(DeviceInfo {
        ordinal: ordinal as usize,
        name: said("asking for a GPU's name", result::device::get_name(device))?,
        // SAFETY: as above.
        memory: said("asking for a GPU's memory", unsafe { result::device::total_mem(device) })?,
        capability: (
            attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        processors: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize,
        driver,
    })
}

/// The driver's answer as a result of this crate.
pub(crate) fn said<T>(doing: &str, answer: std::result::Result<T, DriverError>) -> Result<T> {
    answer.map_err(|DriverError(code)| {
        use sys::CUresult::*;
        if code == CUDA_ERROR_OUT_OF_MEMORY {
            return Error::short(doing);
        }
        let advice = match code {
            CUDA_ERROR_NO_BINARY_FOR_GPU
            | CUDA_ERROR_INVALID_IMAGE
            | CUDA_ERROR_UNSUPPORTED_PTX_VERSION
            | CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
            | CUDA_ERROR_INVALID_PTX => "the CUDA libraries are newer than the driver: update the driver",
            CUDA_ERROR_DEVICE_UNAVAILABLE => "another program holds the GPU for itself: end it, or use the CPU",
            CUDA_ERROR_NOT_INITIALIZED | CUDA_ERROR_UNKNOWN => {
                "the driver does not work: see whether nvidia-smi does, or use the CPU"
            }
            _ => "the GPU cannot be used further by this program: start it again, or use the CPU",
        };
        Error::Failed { doing: doing.into(), said: words(code), advice }
    })
}

/// The driver's name and description of a code.
fn words(code: sys::CUresult) -> String {
    let text = |ask: unsafe fn(sys::CUresult, *mut *const std::ffi::c_char) -> sys::CUresult| {
        let mut at = std::ptr::null();
        // SAFETY: the driver stores a pointer to a text of its own that is never freed, or leaves it null.
        unsafe {
            ask(code, &mut at);
            (!at.is_null()).then(|| CStr::from_ptr(at).to_string_lossy().into_owned())
        }
    };
    match (text(sys::cuGetErrorName), text(sys::cuGetErrorString)) {
        (Some(name), Some(about)) => format!("{name} ({about})"),
        _ => format!("CUDA error {}", code as u32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_without_memory_is_short_of_memory_whatever_it_was_doing() {
        let code = sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        let error = said::<()>("opening the GPU", Err(DriverError(code))).unwrap_err();
        assert!(error.is_memory());
        let said = error.to_string();
        assert!(said.starts_with("the GPU has too little memory for opening the GPU; end other programs"), "{said}");
    }

    /// On a machine without a driver this is the whole way; on one with it, the list is what the driver says.
    #[test]
    fn listing_never_panics_and_says_what_is_missing() {
        match devices() {
            Ok(found) => {
                for (i, info) in found.iter().enumerate() {
                    assert_eq!(info.ordinal, i);
                    assert!(info.memory > 0 && info.processors > 0 && info.driver >= OLDEST_DRIVER, "{info:?}");
                }
                let said = Device::open(found.len()).err().expect("one past the last").to_string();
                assert!(said.contains("does not exist"), "{said}");
            }
            Err(error) => {
                let said = error.to_string();
                assert!(said.contains("driver") && said.contains("use the CPU"), "{said}");
                let opened = Device::open(0).err().expect("no driver").to_string();
                assert_eq!(opened, said);
            }
        }
    }
}
