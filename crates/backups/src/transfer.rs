//! Files to the store and back.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use engine::{Error, Progress, Result};
use object_store::{ObjectStoreExt, WriteMultipart};
use sha2::{Digest, Sha256};

use crate::manifest::{BackupFile, Manifest};
use crate::place::{Place, failed};

/// Bytes of a request. S3 takes at most 10,000 parts of a file, so the largest file has 312 GiB.
const PART: u64 = 32 << 20;

/// Parts of a file under way at the same time.
const PARTS: usize = 3;

/// Uploads the files that the store has not, and returns how many those were, and their bytes.
pub async fn upload(place: &Place, copy: &Path, manifest: &Manifest, progress: &dyn Progress) -> Result<(usize, u64)> {
    let known = sizes(place).await?;
    let mut seen = HashSet::new();
    let mut new: Vec<&BackupFile> = Vec::new();
    for file in &manifest.files {
        if known.get(&file.sha256) != Some(&file.bytes) && seen.insert(&file.sha256) {
            new.push(file);
        }
    }
    let bytes = new.iter().map(|file| file.bytes).sum();
    progress.stage("uploading", Some(bytes));
    for file in &new {
        send(place, &copy.join(&file.path), file, progress).await?;
    }
    Ok((new.len(), bytes))
}

/// The sizes of the files that the store has.
async fn sizes(place: &Place) -> Result<HashMap<String, u64>> {
    let objects = place.objects(&place.files()).await?.into_iter();
    Ok(objects.map(|object| (object.location.filename().unwrap_or_default().to_owned(), object.size)).collect())
}

async fn send(place: &Place, path: &Path, file: &BackupFile, progress: &dyn Progress) -> Result<()> {
    let key = place.file(&file.sha256);
    let name = place.name_of(&key);
    let from = File::open(path).map_err(Error::io(path))?;
    if file.bytes <= PART {
        let mut bytes = Vec::with_capacity(file.bytes as usize);
        (&from).read_to_end(&mut bytes).map_err(Error::io(path))?;
        check_interrupted(progress)?;
        place.put(&key, bytes).await?;
        progress.advance(file.bytes);
        return Ok(());
    }
    let upload = place.store.put_multipart(&key).await.map_err(|e| failed(&name, e))?;
    let mut parts = WriteMultipart::new_with_chunk_size(upload, PART as usize);
    match send_parts(&mut parts, &from, path, &name, progress).await {
        Ok(()) => parts.finish().await.map(drop).map_err(|e| failed(&name, e)),
        Err(error) => {
            // Otherwise the store keeps the parts, and their owner pays for them.
            let _ = parts.abort().await;
            Err(error)
        }
    }
}

async fn send_parts(
    parts: &mut WriteMultipart,
    from: &File,
    path: &Path,
    name: &str,
    progress: &dyn Progress,
) -> Result<()> {
    loop {
        check_interrupted(progress)?;
        parts.wait_for_capacity(PARTS).await.map_err(|e| failed(name, e))?;
        let mut part = Vec::new();
        let read = from.take(PART).read_to_end(&mut part).map_err(Error::io(path))?;
        if read == 0 {
            return Ok(());
        }
        parts.put(part.into());
        progress.advance(read as u64);
    }
}

/// Downloads the files of a backup into a directory that does not exist yet.
pub async fn download(place: &Place, manifest: &Manifest, to: &Path, progress: &dyn Progress) -> Result<()> {
    let known = sizes(place).await?;
    for file in &manifest.files {
        let problem = match known.get(&file.sha256) {
            Some(bytes) if *bytes == file.bytes => continue,
            Some(bytes) => format!("has {bytes} bytes, expected {}", file.bytes),
            None => "is missing".to_owned(),
        };
        let name = place.name_of(&place.file(&file.sha256));
        return Err(Error::format(name, format!("{problem}; the backup is damaged, restore another one")));
    }
    progress.stage("downloading", Some(manifest.bytes()));
    for file in &manifest.files {
        let path = to.join(&file.path);
        engine::internal::create_directories(engine::internal::parent(&path))?;
        receive(place, file, &path, progress).await?;
    }
    Ok(())
}

async fn receive(place: &Place, file: &BackupFile, path: &Path, progress: &dyn Progress) -> Result<()> {
    let key = place.file(&file.sha256);
    let name = place.name_of(&key);
    let mut into = File::create(path).map_err(Error::io(path))?;
    let (mut hash, mut at) = (Sha256::new(), 0);
    // A request for no bytes is refused by S3.
    while at < file.bytes {
        check_interrupted(progress)?;
        let end = file.bytes.min(at + PART);
        let part = place.store.get_range(&key, at..end).await.map_err(|e| failed(&name, e))?;
        if part.is_empty() {
            break;
        }
        hash.update(&part);
        into.write_all(&part).map_err(Error::io(path))?;
        at += part.len() as u64;
        progress.advance(part.len() as u64);
    }
    let found = hex::encode(hash.finalize());
    if (at, &found) != (file.bytes, &file.sha256) {
        return Err(Error::format(
            &name,
            format!(
                "has {at} bytes with SHA-256 {found}, expected {} bytes; the backup is damaged, restore another one",
                file.bytes
            ),
        ));
    }
    Ok(())
}

fn check_interrupted(progress: &dyn Progress) -> Result<()> {
    if progress.interrupted() { Err(Error::Interrupted) } else { Ok(()) }
}
