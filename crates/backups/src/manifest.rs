//! What a backup consists of.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Component, Path};

use chrono::{DateTime, SecondsFormat, Utc};
use engine::{Error, Progress, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::place::Place;

/// Format version of a manifest.
pub const FORMAT: u32 = 1;

/// The list of files of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub format: u32,
    /// Name of the backup.
    pub name: String,
    /// Name of the index directory, without `.micpq`.
    pub index: String,
    /// When it was made, in RFC 3339.
    pub time: String,
    pub documents: u64,
    pub files: Vec<BackupFile>,
}

/// A file of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackupFile {
    /// Below the index directory, with `/`.
    pub path: String,
    pub bytes: u64,
    pub sha256: String,
}

impl Manifest {
    /// Describes the copy of an index. Reads every byte.
    pub fn of(index: &Path, copy: &Path, documents: u64, progress: &dyn Progress) -> Result<Manifest> {
        let now = Utc::now();
        let name = index_name(index)?;
        let paths = files_below(copy)?;
        progress.stage("reading files", Some(paths.len() as u64));
        let mut files = Vec::with_capacity(paths.len());
        for path in paths {
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
            let (bytes, sha256) = digest(&copy.join(&path))?;
            files.push(BackupFile { path, bytes, sha256 });
            progress.advance(1);
        }
        Ok(Manifest {
            format: FORMAT,
            name: format!("{name}-{}", now.format("%Y%m%dT%H%M%S%3fZ")),
            index: name,
            time: now.to_rfc3339_opts(SecondsFormat::Millis, true),
            documents,
            files,
        })
    }

    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data has a JSON form") + "\n"
    }

    fn parse(place: &str, bytes: &[u8]) -> Result<Manifest> {
        let wrong = |problem: String| {
            Error::format(
                place,
                format!("is not the manifest of a backup: {problem}; remove this object, or restore it"),
            )
        };
        let value: serde_json::Value = serde_json::from_slice(bytes).map_err(|e| wrong(e.to_string()))?;
        match value.get("format").and_then(serde_json::Value::as_u64) {
            Some(format) if format == u64::from(FORMAT) => {}
            Some(format) => {
                let text = format!("has format {format}, this program reads {FORMAT}; use the program that wrote it");
                return Err(Error::format(place, text));
            }
            None => return Err(wrong("it has no format".into())),
        }
        let manifest: Manifest = serde_json::from_value(value).map_err(|e| wrong(e.to_string()))?;
        for file in &manifest.files {
            // Paths are of another machine: none may lead out of the directory that is restored.
            let plain = |part: Component| matches!(part, Component::Normal(_));
            if file.path.is_empty() || file.path.contains('\\') || !Path::new(&file.path).components().all(plain) {
                return Err(wrong(format!("it has a file \"{}\", which is not below an index", file.path)));
            }
            if file.sha256.len() != 64 || !file.sha256.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(wrong(format!("\"{}\" is not a SHA-256", file.sha256)));
            }
        }
        if DateTime::parse_from_rfc3339(&manifest.time).is_err() {
            return Err(wrong(format!("\"{}\" is not a time", manifest.time)));
        }
        Ok(manifest)
    }
}

/// The manifests of a place, oldest first.
pub async fn all(place: &Place) -> Result<Vec<Manifest>> {
    let mut manifests = Vec::new();
    for object in place.objects(&place.manifests()).await? {
        let bytes = place.get(&object.location, object.size).await?;
        manifests.push(Manifest::parse(&place.name_of(&object.location), &bytes)?);
    }
    // All times have one form, so text sorts by time.
    manifests.sort_by(|a, b| (&a.time, &a.name).cmp(&(&b.time, &b.name)));
    Ok(manifests)
}

/// The manifest of a name, or the newest.
pub async fn find(place: &Place, name: Option<&str>) -> Result<Manifest> {
    let mut manifests = all(place).await?;
    if manifests.is_empty() {
        return Err(Error::input(place.url(), "holds no backup; make one first"));
    }
    match name {
        Some(name) => match manifests.iter().position(|manifest| manifest.name == name) {
            Some(found) => Ok(manifests.swap_remove(found)),
            None => {
                let newest = &manifests.last().expect("not empty").name;
                let problem = format!("holds no backup \"{name}\"; the newest of {} is \"{newest}\"", manifests.len());
                Err(Error::input(place.url(), problem))
            }
        },
        None => {
            let indexes: BTreeSet<&str> = manifests.iter().map(|manifest| manifest.index.as_str()).collect();
            if indexes.len() > 1 {
                let indexes: Vec<&str> = indexes.into_iter().collect();
                return Err(Error::config(format!(
                    "{} holds backups of several indexes ({}); name one of the backups, such as {}",
                    place.url(),
                    indexes.join(", "),
                    manifests.last().expect("not empty").name
                )));
            }
            Ok(manifests.pop().expect("not empty"))
        }
    }
}

/// The name of an index directory: `news` for `/data/news.micpq`.
fn index_name(index: &Path) -> Result<String> {
    let whole = std::fs::canonicalize(index).map_err(Error::io(index))?;
    let name = whole.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = name.ok_or_else(|| Error::config(format!("{} has no name; name a directory", index.display())))?;
    Ok(name.strip_suffix(".micpq").unwrap_or(&name).to_owned())
}

/// All files below a directory, with `/`, sorted.
fn files_below(dir: &Path) -> Result<Vec<String>> {
    let (mut found, mut left) = (Vec::new(), vec![String::new()]);
    while let Some(folder) = left.pop() {
        let path = dir.join(&folder);
        for entry in std::fs::read_dir(&path).map_err(Error::io(&path))? {
            let entry = entry.map_err(Error::io(&path))?;
            let name = entry.file_name().into_string().map_err(|name| {
                Error::format(&path, format!("has a file {name:?}, whose name is not text; it is not of micpq"))
            })?;
            let name = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            let kind = entry.file_type().map_err(Error::io(&path))?;
            if kind.is_dir() { left.push(name) } else { found.push(name) }
        }
    }
    found.sort();
    Ok(found)
}

/// The size of a file and its SHA-256.
pub fn digest(path: &Path) -> Result<(u64, String)> {
    let mut file = File::open(path).map_err(Error::io(path))?;
    let (mut hash, mut bytes) = (Sha256::new(), 0);
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut buffer).map_err(Error::io(path))?;
        if read == 0 {
            return Ok((bytes, hex::encode(hash.finalize())));
        }
        hash.update(&buffer[..read]);
        bytes += read as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(path: &str, sha256: &str) -> Manifest {
        let file = BackupFile { path: path.into(), bytes: 1, sha256: sha256.into() };
        Manifest {
            format: FORMAT,
            name: "news-1".into(),
            index: "news".into(),
            time: "2026-01-02T03:04:05.678Z".into(),
            documents: 1,
            files: vec![file],
        }
    }

    #[test]
    fn manifests_that_lead_elsewhere_or_are_of_another_kind_are_refused() {
        let sha256 = "a".repeat(64);
        let good = manifest("store/meta.json", &sha256);
        assert_eq!(Manifest::parse("here", good.to_json().as_bytes()).unwrap(), good);
        for (json, word) in [
            (manifest("../secret", &sha256).to_json(), "not below an index"),
            (manifest("/etc/passwd", &sha256).to_json(), "not below an index"),
            (manifest("store\\meta.json", &sha256).to_json(), "not below an index"),
            (manifest("store/meta.json", "../../x").to_json(), "not a SHA-256"),
            (good.to_json().replace("2026-01-02T", "noon "), "not a time"),
            (good.to_json().replace("\"format\": 1", "\"format\": 2"), "format 2, this program reads 1"),
            ("{}".into(), "no format"),
            ("not json".into(), "is not the manifest"),
        ] {
            let error = Manifest::parse("here", json.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(word) && error.starts_with("here: "), "{error}");
        }
    }
}
