//! Clean embeddings on disk, found by the tokens they belong to.
//!
//! A corpus, its sample, its index and its evaluation share them. Each file of embeddings, `NAME.rows.npy`, has a file of
//! keys, `NAME.keys.npy`. The keys are written last: embeddings without keys do not count.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use engine::encoder::Embedder;
use engine::formats::npy::{self, NpyWriter};
use engine::{Error, Matrix, Progress, Result};
use sha2::{Digest, Sha256};

/// Documents per file: an interrupted run loses at most these.
const FILE_DOCUMENTS: usize = 2048;

/// Identifies a token sequence.
pub(crate) type Key = [u8; 16];

pub(crate) fn key(sequence: &[u32]) -> Key {
    let bytes: Vec<u8> = sequence.iter().flat_map(|id| id.to_le_bytes()).collect();
    Sha256::digest(&bytes)[..16].try_into().expect("sixteen bytes")
}

/// Clean embeddings of one encoder.
pub(crate) struct VectorCache {
    dir: PathBuf,
    width: usize,
    // File number and row of each cached embedding.
    rows: HashMap<Key, (usize, usize)>,
    files: Vec<PathBuf>,
}

impl VectorCache {
    pub fn open(dir: PathBuf, width: usize) -> Result<Self> {
        std::fs::create_dir_all(&dir).map_err(Error::io(&dir))?;
        let mut cache = VectorCache { dir, width, rows: HashMap::new(), files: Vec::new() };
        let mut paths: Vec<PathBuf> = std::fs::read_dir(&cache.dir)
            .map_err(Error::io(&cache.dir))?
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.to_string_lossy().ends_with(".keys.npy"))
            .collect();
        paths.sort();
        for path in paths {
            // A damaged file is skipped: its documents are encoded again.
            if let Ok((16, bytes)) = npy::read_u8(&path) {
                let file = cache.files.len();
                cache.rows.extend(bytes.as_chunks::<16>().0.iter().enumerate().map(|(row, key)| (*key, (file, row))));
                cache.files.push(PathBuf::from(path.to_string_lossy().replace(".keys.npy", ".rows.npy")));
            }
        }
        Ok(cache)
    }

    /// Writes a new file. Its name is unique to this process: others may write to the same directory.
    fn write(&self, number: usize, keys: &[Key], vectors: &Matrix) -> Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos());
        let name = format!("{now:024x}-{:x}-{number}", std::process::id());
        let mut rows = NpyWriter::f32(&self.dir.join(format!("{name}.rows.npy")), self.width)?;
        rows.rows_f32(vectors)?;
        rows.finish()?;
        let mut key_file = NpyWriter::u8(&self.dir.join(format!("{name}.keys.npy")), 16)?;
        key_file.rows_u8(keys.as_flattened())?;
        key_file.finish()?;
        Ok(())
    }
}

/// Clean embeddings of token sequences, `[tokens.len(), width]`: those in the cache are read, the others are encoded and
/// written to it. Equal sequences are encoded once.
pub(crate) fn clean_vectors(
    embedder: &Embedder,
    tokens: &[Vec<u32>],
    keys: &[Key],
    cache: Option<VectorCache>,
    progress: &dyn Progress,
) -> Result<Matrix> {
    let mut out = Matrix::zeros(tokens.len(), embedder.width());
    progress.stage("encoding", Some(tokens.len() as u64));
    // (document, row) pairs by file.
    let mut cached: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
    let mut missing = Missing::default();
    for (document, key) in keys.iter().enumerate() {
        match cache.as_ref().and_then(|c| c.rows.get(key)) {
            Some(&(file, row)) => cached.entry(file).or_default().push((document, row)),
            None => missing.add(document, *key),
        }
    }
    for (file, documents) in cached {
        let path = &cache.as_ref().expect("only a cache has files").files[file];
        let vectors = npy::read_f32(path)
            .ok()
            .filter(|m| m.cols() == embedder.width() && documents.iter().all(|&(_, row)| row < m.rows()));
        match vectors {
            Some(vectors) => {
                documents.iter().for_each(|&(d, row)| out.row_mut(d).copy_from_slice(vectors.row(row)));
                progress.advance(documents.len() as u64);
            }
            None => documents.iter().for_each(|&(document, _)| missing.add(document, keys[document])),
        }
    }
    let per_call = FILE_DOCUMENTS.max(embedder.sequences_at_once());
    for (number, chunk) in missing.first.chunks(per_call).enumerate() {
        let sequences: Vec<&[u32]> = chunk.iter().map(|&d| tokens[d].as_slice()).collect();
        let vectors = embedder.encode_tokens(&sequences, None, progress)?;
        let chunk_keys: Vec<Key> = chunk.iter().map(|&d| keys[d]).collect();
        if let Some(cache) = &cache {
            cache.write(number, &chunk_keys, &vectors)?;
        }
        for (row, key) in chunk_keys.iter().enumerate() {
            let documents = &missing.documents[key];
            for &document in documents {
                out.row_mut(document).copy_from_slice(vectors.row(row));
            }
            // The encoder counts each sequence once.
            progress.advance(documents.len() as u64 - 1);
        }
    }
    Ok(out)
}

/// Documents without a cached embedding.
#[derive(Default)]
struct Missing {
    // The first document of each sequence.
    first: Vec<usize>,
    documents: HashMap<Key, Vec<usize>>,
}

impl Missing {
    fn add(&mut self, document: usize, key: Key) {
        let same = self.documents.entry(key).or_default();
        if same.is_empty() {
            self.first.push(document);
        }
        same.push(document);
    }
}
