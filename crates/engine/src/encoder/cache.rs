//! The cache that all programs of a user share for files of the hub, and the settings of huggingface_hub.

use std::path::{Path, PathBuf};

use crate::{Error, Result};

pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn home() -> Result<PathBuf> {
    if let Some(home) = variable("HF_HOME") {
        return Ok(PathBuf::from(home));
    }
    let cache = variable("XDG_CACHE_HOME").map(PathBuf::from);
    let own =
        || Some(PathBuf::from(std::env::var_os("HOME").or_else(|| std::env::var_os("USERPROFILE"))?).join(".cache"));
    let cache = cache.or_else(own).ok_or_else(|| {
        Error::config("neither HF_HOME nor HOME is set; set HF_HOME to the directory for files of the hub")
    })?;
    Ok(cache.join("huggingface"))
}

/// The cache of the hub that all programs of this user share.
pub(super) fn cache_dir() -> Result<PathBuf> {
    let named = variable("HF_HUB_CACHE").or_else(|| variable("HUGGINGFACE_HUB_CACHE"));
    named.map_or_else(|| Ok(home()?.join("hub")), |dir| Ok(PathBuf::from(dir)))
}

/// The token of `HF_TOKEN` or of the token file.
pub(super) fn token() -> Option<String> {
    let given = variable("HF_TOKEN").or_else(|| variable("HUGGING_FACE_HUB_TOKEN"));
    let file = || variable("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| Some(home().ok()?.join("token")));
    let token = given.or_else(|| std::fs::read_to_string(file()?).ok())?;
    Some(token.trim().to_owned()).filter(|token| !token.is_empty())
}

pub(super) fn make_parent(path: &Path) -> Result<()> {
    let parent = path.parent().expect("it is below the cache");
    std::fs::create_dir_all(parent).map_err(Error::io(parent))
}

/// Whether only the cache may be used.
pub(super) fn is_offline() -> bool {
    let is_set = |value: String| matches!(&*value.to_ascii_lowercase(), "1" | "true" | "yes" | "on");
    ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"].iter().any(|name| variable(name).is_some_and(is_set))
}

/// Makes `place` a link to `file`, with the text `to`; a second name or a copy where there are no links.
pub fn link(file: &Path, to: &Path, place: &Path) -> Result<()> {
    make_parent(place)?;
    if place.exists() {
        return Ok(());
    }
    // A link whose file is gone.
    let _ = std::fs::remove_file(place);
    #[cfg(unix)]
    let linked = std::os::unix::fs::symlink(to, place);
    #[cfg(not(unix))]
    let linked = std::io::Result::Err(std::io::ErrorKind::Unsupported.into());
    linked
        .or_else(|_: std::io::Error| std::fs::hard_link(file, place))
        .or_else(|_| std::fs::copy(file, place).map(drop))
        .map_err(Error::io(place))
}
