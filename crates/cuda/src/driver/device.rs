//! The GPUs of this machine, and an opened GPU.

use std::ffi::CStr;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUdevice_attribute};
use cudarc::driver::{CudaContext, DriverError, result};

use crate::driver::library::{Library, guarded, require};
use crate::{DeviceInfo, Error, Result};

/// Oldest supported driver: CUDA 12.0.
const MIN_DRIVER: i32 = 12_000;
/// Oldest compute capability with bf16 tensor cores and the 16 x 8 x 16 product.
const MIN_CAPABILITY: (i32, i32) = (8, 0);

/// An opened GPU.
#[derive(Clone)]
pub struct Device {
    context: Arc<CudaContext>,
    info: Arc<DeviceInfo>,
}

/// The GPUs of this machine; empty where the driver lists none.
///
/// # Errors
/// Where there is no driver, or it is too old.
pub fn devices() -> Result<Vec<DeviceInfo>> {
    require(Library::Driver)?;
    guarded("listing GPUs", || {
        let driver = driver_version()?;
        match result::init() {
            Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => return Ok(Vec::new()),
            other => driver_result("starting the driver", other)?,
        }
        let count = driver_result("counting GPUs", result::device::get_count())?;
        (0..count).map(|i| describe(i, driver)).collect()
    })
}

impl Device {
    /// Opens a GPU and checks that the libraries and instructions for an encoder exist.
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
        if info.capability < MIN_CAPABILITY {
            return Err(Error::Unsupported(format!(
                "{} has compute capability {}.{}, but at least {}.{} is needed (Ampere or newer); use the CPU",
                info.name, info.capability.0, info.capability.1, MIN_CAPABILITY.0, MIN_CAPABILITY.1
            )));
        }
        require(Library::Compiler)?;
        require(Library::Products)?;
        guarded("opening the GPU", || {
            let context = driver_result("opening the GPU", CudaContext::new(ordinal))?;
            // Waiting threads sleep: otherwise sixteen models in training at once would keep sixteen cores busy.
            driver_result("opening the GPU", context.set_blocking_synchronize())?;
            Ok(Device { context, info: Arc::new(info) })
        })
    }

    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Free and total memory in bytes.
    pub fn memory(&self) -> Result<(usize, usize)> {
        self.bind()?;
        driver_result("reading the free memory", result::mem_get_info())
    }

    /// Makes this GPU current for the thread, which every call into the driver requires.
    pub(crate) fn bind(&self) -> Result<()> {
        driver_result("choosing the GPU", self.context.bind_to_thread())
    }
}

fn driver_version() -> Result<i32> {
    let mut version = 0;
    // SAFETY: writes one integer.
    driver_result("reading the driver's version", unsafe { sys::cuDriverGetVersion(&raw mut version) }.result())?;
    if version < MIN_DRIVER {
        return Err(Error::Unsupported(format!(
            "the NVIDIA driver is for CUDA {}.{}, but at least {}.{} is needed; update the driver, or use the CPU",
            version / 1000,
            version % 1000 / 10,
            MIN_DRIVER / 1000,
            MIN_DRIVER % 1000 / 10
        )));
    }
    Ok(version)
}

fn describe(ordinal: i32, driver: i32) -> Result<DeviceInfo> {
    let device = driver_result("reading a GPU's attributes", result::device::get(ordinal))?;
    // SAFETY: `device` is a handle that the driver has just returned.
    let attribute =
        |which| driver_result("reading a GPU's attributes", unsafe { result::device::get_attribute(device, which) });
    Ok(DeviceInfo {
        ordinal: ordinal as usize,
        name: driver_result("reading a GPU's name", result::device::get_name(device))?,
        // SAFETY: as above.
        memory: driver_result("reading a GPU's memory", unsafe { result::device::total_mem(device) })?,
        capability: (
            attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        processors: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize,
        driver,
    })
}

/// Turns the driver's result into a result of this crate.
pub(crate) fn driver_result<T>(doing: &str, answer: std::result::Result<T, DriverError>) -> Result<T> {
    answer.map_err(|DriverError(code)| {
        use sys::CUresult::*;
        if code == CUDA_ERROR_OUT_OF_MEMORY {
            return Error::out_of_memory(doing);
        }
        let advice = match code {
            CUDA_ERROR_NO_BINARY_FOR_GPU
            | CUDA_ERROR_INVALID_IMAGE
            | CUDA_ERROR_UNSUPPORTED_PTX_VERSION
            | CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
            | CUDA_ERROR_INVALID_PTX => "the CUDA libraries are newer than the driver: update the driver",
            CUDA_ERROR_DEVICE_UNAVAILABLE => "another program uses the GPU exclusively: end it, or use the CPU",
            CUDA_ERROR_NOT_INITIALIZED | CUDA_ERROR_UNKNOWN => {
                "the driver does not work: check that nvidia-smi does, or use the CPU"
            }
            _ => "this program cannot use the GPU any more: restart it, or use the CPU",
        };
        Error::Failed { doing: doing.into(), said: describe_error(code), advice }
    })
}

/// The driver's name and description of an error code.
fn describe_error(code: sys::CUresult) -> String {
    let text = |function: unsafe fn(sys::CUresult, *mut *const std::ffi::c_char) -> sys::CUresult| {
        let mut at = std::ptr::null();
        // SAFETY: the driver stores a pointer to a static text of its own, or leaves it null.
        unsafe {
            function(code, &raw mut at);
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
    fn out_of_memory_is_a_memory_error_in_every_operation() {
        let code = sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        let error = driver_result::<()>("opening the GPU", Err(DriverError(code))).unwrap_err();
        assert!(error.is_memory());
        let message = error.to_string();
        assert!(
            message.starts_with("the GPU has too little memory for opening the GPU; end other programs"),
            "{message}"
        );
    }

    /// Without a driver both calls return the same error; with one, the list is the driver's.
    #[test]
    fn listing_gives_the_gpus_or_names_what_is_missing() {
        match devices() {
            Ok(found) => {
                for (i, info) in found.iter().enumerate() {
                    assert_eq!(info.ordinal, i);
                    assert!(info.memory > 0 && info.processors > 0 && info.driver >= MIN_DRIVER, "{info:?}");
                }
                let message = Device::open(found.len()).err().expect("one past the last").to_string();
                assert!(message.contains("does not exist"), "{message}");
            }
            Err(error) => {
                let message = error.to_string();
                assert!(message.contains("driver") && message.contains("use the CPU"), "{message}");
                let opened = Device::open(0).err().expect("no driver").to_string();
                assert_eq!(opened, message);
            }
        }
    }
}
