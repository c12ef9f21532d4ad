//! Encoders, and the places that micpq writes to.

use std::path::{Path, PathBuf};

use engine::encoder::pull;

use super::Finding;
use crate::output::bytes;

/// Space below which a build or a download is likely to fail.
const LITTLE_DISK: u64 = 2_000_000_000;
/// Space below which nothing can be written.
const NO_DISK: u64 = 50_000_000;

pub fn findings() -> Vec<Finding> {
    let temporary = place("temporary", &std::env::temp_dir());
    let models = match pull::models_dir() {
        Ok(models) => models,
        Err(error) => return vec![Finding::failure("encoders", error.to_string(), "set MICPQ_MODELS"), temporary],
    };
    let cache = models.parent().map_or_else(|| models.clone(), PathBuf::from);
    vec![encoders(&models), place("cache", &cache), temporary]
}

fn encoders(models: &Path) -> Finding {
    let listed = match pull::list() {
        Ok(listed) => listed,
        Err(error) => {
            return Finding::failure("encoders", error.to_string(), "set MICPQ_MODELS to a readable directory");
        }
    };
    if let Some(broken) = listed.iter().find(|encoder| encoder.bytes == 0) {
        return Finding::warning(
            "encoders",
            format!("{} has no weights (model.safetensors)", broken.path.display()),
            format!("remove the directory, then run \"micpq encoder pull {}\"", broken.name),
        );
    }
    let names: Vec<&str> = listed.iter().map(|encoder| encoder.name.as_str()).collect();
    if !names.contains(&pull::DEFAULT) {
        return Finding::warning(
            "encoders",
            format!("{} has {}", models.display(), if names.is_empty() { "none".into() } else { names.join(", ") }),
            format!("the first build downloads the default one; \"micpq encoder pull {}\" does it now", pull::DEFAULT),
        );
    }
    Finding::good("encoders", format!("{} in {}", names.join(", "), models.display()))
}

/// Whether a directory, or the one it would be created in, can be written to and has space.
pub fn place(check: &str, dir: &Path) -> Finding {
    let existing = dir.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
    if let Err(problem) = writable(existing) {
        let found = format!("{} cannot be written to: {problem}", existing.display());
        return Finding::failure(check, found, "change its permissions or owner, or choose another place");
    }
    space(check, dir, existing)
}

fn space(check: &str, dir: &Path, existing: &Path) -> Finding {
    let Some(free) = free_space(existing) else {
        return Finding::good(check, format!("{}, free space not known", dir.display()));
    };
    let found = format!("{}, {} free", dir.display(), bytes(free));
    match free {
        ..NO_DISK => Finding::failure(check, found, "make space: nothing can be written"),
        NO_DISK..LITTLE_DISK => Finding::warning(check, found, "make space: a build keeps embeddings and views here"),
        _ => Finding::good(check, found),
    }
}

#[cfg(unix)]
pub fn writable(dir: &Path) -> Result<(), String> {
    use rustix::fs::{Access, access};
    access(dir, Access::WRITE_OK | Access::EXEC_OK).map_err(|error| error.to_string())
}

#[cfg(not(unix))]
pub fn writable(dir: &Path) -> Result<(), String> {
    match std::fs::metadata(dir) {
        Ok(metadata) if metadata.permissions().readonly() => Err("it is read-only".into()),
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

/// Bytes that this user may still write.
#[cfg(unix)]
pub fn free_space(dir: &Path) -> Option<u64> {
    let system = rustix::fs::statvfs(dir).ok()?;
    Some(system.f_bavail.saturating_mul(system.f_frsize))
}

#[cfg(not(unix))]
pub fn free_space(_: &Path) -> Option<u64> {
    None
}
