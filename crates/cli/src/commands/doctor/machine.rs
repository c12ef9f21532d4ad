//! CPU, memory, GPU and limits of the process.

use engine::encoder::Device;
use kernels::{Backend, bf16, int8};

use super::Finding;
use crate::output::bytes;

/// Memory that a build with the default encoder should find: its weights, a chunk of texts, and what training keeps.
const LITTLE_MEMORY: u64 = 1 << 30;
/// Open files that a server with several indexes and clients needs.
const FEW_FILES: u64 = 1024;

pub fn findings(device: Device) -> Vec<Finding> {
    vec![cpu(), memory(), gpu(device), files()]
}

fn cpu() -> Finding {
    let backend = Backend::active();
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let found = format!(
        "{} threads; {} for f32, {} for bytes, {} for bf16",
        threads,
        backend.name(),
        int8::Unit::of(backend).name(),
        bf16::Unit::of(backend).name()
    );
    if backend == Backend::Reference {
        let why = match std::env::var("MICPQ_SIMD") {
            Ok(name) => format!("MICPQ_SIMD is {name}; unset it for the instructions of this CPU"),
            Err(_) => "the CPU has no AVX2, so encoding is many times slower; the answers are the same".into(),
        };
        return Finding::warning("cpu", found, why);
    }
    Finding::good("cpu", found)
}

fn memory() -> Finding {
    match engine::memory::available() {
        None => Finding::good("memory", "not known on this system"),
        Some(free) if free < LITTLE_MEMORY => Finding::warning(
            "memory",
            format!("{} available", bytes(free)),
            "a build may be ended by the system; a search needs 2 to 16 bytes per document and the encoder",
        ),
        Some(free) => Finding::good("memory", format!("{} available", bytes(free))),
    }
}

/// No GPU is no failure, unless `--device` names one.
fn gpu(device: Device) -> Finding {
    let number = match device {
        Device::Cpu => return Finding::good("gpu", "not used (--device cpu)"),
        Device::Auto => 0,
        Device::Cuda(number) => number,
    };
    match (cuda::Device::open(number), device) {
        (Ok(gpu), _) => {
            let memory = gpu.memory().map_or_else(
                |error| error.to_string(),
                |(free, total)| format!("{} of {} free", bytes(free as u64), bytes(total as u64)),
            );
            Finding::good("gpu", format!("{}; {memory}", gpu.info().name))
        }
        (Err(error), Device::Cuda(_)) => {
            Finding::failure("gpu", error.to_string(), "leave --device out to compute on the CPU")
        }
        (Err(error), _) => Finding::good("gpu", format!("none, the CPU computes ({error})")),
    }
}

#[cfg(unix)]
fn files() -> Finding {
    use rustix::process::{Resource, getrlimit};
    let limit = getrlimit(Resource::Nofile);
    let found = |n: u64| format!("{n} open files at most");
    match limit.current {
        Some(n) if n < FEW_FILES => {
            Finding::warning("files", found(n), "raise the limit (ulimit -n) before serving many clients or segments")
        }
        Some(n) => Finding::good("files", found(n)),
        None => Finding::good("files", "no limit of open files"),
    }
}

#[cfg(not(unix))]
fn files() -> Finding {
    Finding::good("files", "not known on this system")
}
