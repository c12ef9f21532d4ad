//! Finds the vendor's three libraries, and returns an error where one is missing.
//!
//! The bindings load a library by its bare name at the first call into it and panic where that fails. So every library is
//! searched for before the first call: where the system's loader searches, then where toolkits and Python wheels install
//! them. After a library was opened from such a folder, its bare name finds it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use cudarc::{cublaslt, driver, nvrtc};

use crate::{Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    Driver,
    Compiler,
    Products,
}

impl Library {
    fn present(self) -> bool {
        // SAFETY: opening these libraries runs the vendor's initialisers, as any program linked to them does.
        unsafe {
            match self {
                Library::Driver => driver::sys::is_culib_present(),
                Library::Compiler => nvrtc::sys::is_culib_present(),
                Library::Products => cublaslt::sys::is_culib_present(),
            }
        }
    }

    fn name(self) -> &'static str {
        match self {
            Library::Driver => "libcuda.so.1",
            Library::Compiler => "libnvrtc.so.13",
            Library::Products => "libcublasLt.so.13",
        }
    }

    fn missing(self, folders: &[PathBuf]) -> Error {
        let listed: Vec<String> = folders.iter().map(|f| f.display().to_string()).collect();
        let (library, advice) = match self {
            Library::Driver => ("the NVIDIA driver", "install it (nvidia-smi must work), or use the CPU"),
            Library::Compiler => (
                "NVRTC, CUDA's run-time compiler",
                "install it (pip install nvidia-cuda-nvrtc, or the CUDA toolkit) and add its folder to LD_LIBRARY_PATH, or use the CPU",
            ),
            Library::Products => (
                "cuBLASLt, CUDA's matrix products",
                "install it (pip install nvidia-cublas, or the CUDA toolkit) and add its folder to LD_LIBRARY_PATH, or use the CPU",
            ),
        };
        let places = if listed.is_empty() { String::new() } else { format!(", and in {}", listed.join(", ")) };
        Error::Missing { library, name: self.name(), places, advice }
    }
}

/// Loads a library if it is not loaded.
pub(crate) fn require(library: Library) -> Result<()> {
    if library.present() {
        return Ok(());
    }
    let folders = library_folders();
    for folder in &folders {
        if open_in(folder, library) && library.present() {
            return Ok(());
        }
    }
    Err(library.missing(&folders))
}

/// Runs a call into the bindings. They panic at a symbol that an old library lacks; this returns an error.
pub(crate) fn guarded<T>(doing: &str, call: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let said = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_string()))
            .unwrap_or_else(|| "the bindings panicked without a message".into());
        Err(Error::Failed {
            doing: doing.into(),
            said,
            advice: "update the NVIDIA driver and CUDA libraries, or use the CPU",
        })
    })
}

/// Existing folders outside of the loader's search path that may have the libraries.
fn library_folders() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut add = |dir: PathBuf| {
        if dir.is_dir() && !found.contains(&dir) {
            found.push(dir);
        }
    };
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        if let Some(root) = std::env::var_os(variable) {
            add(Path::new(&root).join("lib64"));
            add(Path::new(&root).join("lib"));
        }
    }
    for variable in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        let Some(root) = std::env::var_os(variable) else { continue };
        let lib = Path::new(&root).join("lib");
        for python in entries(&lib, |name| name.starts_with("python3")) {
            for package in entries(&python.join("site-packages/nvidia"), |_| true) {
                add(package.join("lib"));
            }
        }
        if variable == "CONDA_PREFIX" {
            add(lib);
        }
    }
    for fixed in ["/usr/local/cuda/lib64", "/opt/cuda/lib64", "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib"] {
        add(fixed.into());
    }
    found
}

/// Entries of a folder whose name is `wanted`, sorted; none without the folder.
fn entries(dir: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let listed = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> =
        listed.filter(|e| wanted(&e.file_name().to_string_lossy())).map(|e| e.path()).collect();
    found.sort();
    found
}

/// Opens the library for the rest of the process, together with its builtins.
#[cfg(unix)]
fn open_in(folder: &Path, library: Library) -> bool {
    use libloading::os::unix::{Library as Handle, RTLD_GLOBAL, RTLD_NOW};

    let stem = library.name().split(".so").next().unwrap_or_default();
    // NVRTC opens its builtins by bare name, which finds them here only when they are open already.
    let builtins = format!("{stem}-builtins.so.");
    let main = format!("{stem}.so.");
    let newest_last = |prefix: &str| entries(folder, |name| name.starts_with(prefix) && !name.contains(".alt."));
    let mut opened = false;
    for file in newest_last(&builtins).into_iter().rev().take(1).chain(newest_last(&main).into_iter().rev().take(1)) {
        // SAFETY: a library of the vendor, opened as the bindings would open it.
        if let Ok(handle) = unsafe { Handle::open(Some(&file), RTLD_NOW | RTLD_GLOBAL) } {
            std::mem::forget(handle);
            opened = true;
        }
    }
    opened
}

#[cfg(not(unix))]
fn open_in(_: &Path, _: Library) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_the_missing_library_and_a_remedy() {
        for library in [Library::Driver, Library::Compiler, Library::Products] {
            let message = library.missing(&["/opt/cuda/lib64".into()]).to_string();
            assert!(message.contains(library.name()) && message.contains("/opt/cuda/lib64"), "{message}");
            assert!(message.contains("install") && message.contains("CPU"), "{message}");
        }
    }

    #[test]
    fn guarded_turns_a_panic_of_the_bindings_into_an_error() {
        let message =
            guarded::<()>("asking for a symbol", || panic!("Missing symbol {}", "cuNew")).unwrap_err().to_string();
        assert!(message.contains("asking for a symbol: Missing symbol cuNew; update"), "{message}");
    }
}
