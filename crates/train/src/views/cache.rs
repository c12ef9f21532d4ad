//! Embeddings on disk: for every document the clean one and its passes with dropout, in half precision.
//!
//! ```text
//! header, 256 bytes: magic, format, passes, width, documents, block, fingerprint, CRC-32 of the header
//! block:  up to 256 documents x (1 + passes) x width values, f16 little-endian; CRC-32 in 8 bytes
//! ```
//! A file being written is called `NAME.partial` and grows block by block. A killed writer leaves whole blocks; the next
//! writer checks and reuses them. A finished file is synced and renamed, and never changes again.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use engine::{Error, Matrix, Progress, Result, internal};
use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use rayon::prelude::*;

use super::Encode;

const MAGIC: &[u8; 8] = b"micpqvws";
/// Version of the file format. 1: first release.
const FORMAT: u32 = 1;
const HEADER_BYTES: usize = 256;
const MAX_FINGERPRINT_BYTES: usize = 160;
/// A killed writer loses at most one block.
const BLOCK_DOCUMENTS: usize = 256;
/// The checksum has 4 bytes; 8 keep the next block aligned.
const CHECKSUM_BYTES: usize = 8;

/// Content of a file, as written in its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheKey {
    /// Passes with dropout per document, beside the clean one.
    pub passes: u32,
    /// Values in an embedding.
    pub width: usize,
    pub documents: usize,
    /// Identifies corpus, encoder and everything else that decides the values.
    pub fingerprint: String,
}

impl CacheKey {
    fn header(&self) -> Result<[u8; HEADER_BYTES]> {
        let name = self.fingerprint.as_bytes();
        if name.len() > MAX_FINGERPRINT_BYTES {
            return Err(Error::config(format!(
                "the fingerprint of the views has {} bytes; it may have at most {MAX_FINGERPRINT_BYTES}",
                name.len()
            )));
        }
        let mut out = [0; HEADER_BYTES];
        out[..8].copy_from_slice(MAGIC);
        out[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        out[12..16].copy_from_slice(&self.passes.to_le_bytes());
        out[16..24].copy_from_slice(&(self.width as u64).to_le_bytes());
        out[24..32].copy_from_slice(&(self.documents as u64).to_le_bytes());
        out[32..36].copy_from_slice(&(BLOCK_DOCUMENTS as u32).to_le_bytes());
        out[36..40].copy_from_slice(&(name.len() as u32).to_le_bytes());
        out[40..40 + name.len()].copy_from_slice(name);
        let check = crc32fast::hash(&out[..HEADER_BYTES - 4]);
        out[HEADER_BYTES - 4..].copy_from_slice(&check.to_le_bytes());
        Ok(out)
    }

    /// Bytes of all embeddings of one document.
    fn document_bytes(&self) -> usize {
        (1 + self.passes as usize) * self.width * 2
    }

    fn blocks(&self) -> usize {
        self.documents.div_ceil(BLOCK_DOCUMENTS)
    }

    /// Documents of block `b`.
    fn block_documents(&self, b: usize) -> std::ops::Range<usize> {
        b * BLOCK_DOCUMENTS..((b + 1) * BLOCK_DOCUMENTS).min(self.documents)
    }

    /// Offset of block `b` in the file.
    fn block_start(&self, b: usize) -> usize {
        HEADER_BYTES + b * (BLOCK_DOCUMENTS * self.document_bytes() + CHECKSUM_BYTES)
    }

    /// Bytes of block `b` without its checksum.
    fn block_bytes(&self, b: usize) -> usize {
        self.block_documents(b).len() * self.document_bytes()
    }

    fn file_bytes(&self) -> usize {
        self.block_start(self.blocks().saturating_sub(1))
            + self.block_bytes(self.blocks().saturating_sub(1))
            + CHECKSUM_BYTES
    }
}

/// A finished file of views, memory-mapped.
pub struct ViewCache {
    key: CacheKey,
    map: internal::Map,
}

impl ViewCache {
    /// Opens the views of `documents` at `path`. Computes them first when the file does not exist or is not finished.
    pub fn open_or_fill(
        path: &Path,
        encoder: &dyn Encode,
        documents: &[usize],
        passes: u32,
        progress: &dyn Progress,
    ) -> Result<Self> {
        // A sample must not be taken for a corpus of the same size, so the document numbers are part of the fingerprint.
        let numbers: Vec<u8> = documents.iter().flat_map(|&d| (d as u64).to_le_bytes()).collect();
        let fingerprint = format!("{}/{:08x}", encoder.fingerprint(), crc32fast::hash(&numbers));
        let key = CacheKey { passes, width: encoder.width(), documents: documents.len(), fingerprint };
        if !path.exists() {
            fill(path, &key, encoder, documents, progress)?;
        }
        Self::open(path, &key, progress)
    }

    /// Opens a finished file and verifies every checksum. Its header must equal `key`.
    pub fn open(path: &Path, key: &CacheKey, progress: &dyn Progress) -> Result<Self> {
        let map = internal::Map::open(path)?;
        check_header(path, &map, key)?;
        if map.len() != key.file_bytes() {
            let (expected, found) = (key.file_bytes(), map.len());
            return Err(Error::format(
                path,
                format!("has {found} bytes, expected {expected}; delete it to compute it again"),
            ));
        }
        progress.stage("checking cached views", Some(key.documents as u64));
        let damaged = (0..key.blocks()).into_par_iter().find_first(|&b| {
            progress.advance(key.block_documents(b).len() as u64);
            let start = key.block_start(b);
            let (data, check) = map[start..start + key.block_bytes(b) + CHECKSUM_BYTES].split_at(key.block_bytes(b));
            check != checksum(data)
        });
        if let Some(b) = damaged {
            let range = key.block_documents(b);
            let problem = format!(
                "documents {} to {} are damaged (checksum); delete it to compute it again",
                range.start, range.end
            );
            return Err(Error::format(path, problem));
        }
        Ok(ViewCache { key: key.clone(), map })
    }

    pub fn documents(&self) -> usize {
        self.key.documents
    }

    /// Values in an embedding.
    pub fn width(&self) -> usize {
        self.key.width
    }

    /// Passes with dropout per document.
    pub fn passes(&self) -> u32 {
        self.key.passes
    }

    /// Identifies corpus, encoder and everything else that decides the values.
    pub fn fingerprint(&self) -> String {
        format!("{}+{}", self.key.fingerprint, self.key.passes)
    }

    /// Writes one view of one document to `out`; view 0 is clean.
    ///
    /// # Panics
    /// When there is no such document or view, or `out` has the wrong width.
    pub fn read(&self, document: usize, view: u32, out: &mut [f32]) {
        assert!(document < self.key.documents && view <= self.key.passes && out.len() == self.key.width);
        let block = document / BLOCK_DOCUMENTS;
        let offset = (document % BLOCK_DOCUMENTS) * self.key.document_bytes() + view as usize * self.key.width * 2;
        let start = self.key.block_start(block) + offset;
        let bits: Vec<u16> = self.map[start..start + self.key.width * 2]
            .as_chunks::<2>()
            .0
            .iter()
            .map(|b| u16::from_le_bytes(*b))
            .collect();
        bits.reinterpret_cast::<f16>().convert_to_f32_slice(out);
    }

    /// Writes the clean embeddings of `documents` to `out`.
    pub fn clean(&self, documents: &[u32], out: &mut [f32]) {
        assert_eq!(out.len(), documents.len() * self.key.width);
        let rows = out.par_chunks_exact_mut(self.key.width).with_min_len(32);
        rows.zip(documents).for_each(|(row, &document)| self.read(document as usize, 0, row));
    }
}

fn checksum(data: &[u8]) -> [u8; CHECKSUM_BYTES] {
    u64::from(crc32fast::hash(data)).to_le_bytes()
}

fn check_header(path: &Path, bytes: &[u8], key: &CacheKey) -> Result<()> {
    if bytes.len() < HEADER_BYTES || &bytes[..8] != MAGIC {
        return Err(Error::format(path, "is not a file of views; use another work directory, or delete it"));
    }
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    if number(8) != FORMAT {
        let problem = format!("has format {}, expected {FORMAT}; delete it to compute it again", number(8));
        return Err(Error::format(path, problem));
    }
    if number(HEADER_BYTES - 4) != crc32fast::hash(&bytes[..HEADER_BYTES - 4]) {
        return Err(Error::format(path, "has a damaged header; delete it to compute it again"));
    }
    if bytes[..HEADER_BYTES] != key.header()? {
        let length = (number(36) as usize).min(MAX_FINGERPRINT_BYTES);
        let problem = format!(
            "holds {} passes over {} documents of {} ({} expected over {} of {}): it belongs to another corpus or encoder; \
             use another work directory, or delete it",
            number(12),
            u64::from_le_bytes(bytes[24..32].try_into().expect("eight bytes")),
            String::from_utf8_lossy(&bytes[40..40 + length]),
            key.passes,
            key.documents,
            key.fingerprint
        );
        return Err(Error::format(path, problem));
    }
    Ok(())
}

/// Writes the file, resuming after the whole blocks of an earlier writer.
fn fill(path: &Path, key: &CacheKey, encoder: &dyn Encode, documents: &[usize], progress: &dyn Progress) -> Result<()> {
    let partial = internal::beside(path, ".partial");
    let io_error = || Error::io(&partial);
    let mut file =
        File::options().read(true).write(true).create(true).truncate(false).open(&partial).map_err(io_error())?;
    match file.try_lock() {
        Ok(()) => {}
        Err(std::fs::TryLockError::WouldBlock) => {
            let problem = format!(
                "{}: another run is writing these views; wait for it or use another work directory",
                partial.display()
            );
            return Err(Error::Busy(problem));
        }
        Err(std::fs::TryLockError::Error(e)) => return Err(io_error()(e)),
    }
    // Another run may have finished the file between the caller's check and the lock.
    if path.exists() {
        return Ok(());
    }
    let done = resume(&mut file, &partial, key)?;
    let stage = if key.passes == 0 { "caching clean embeddings" } else { "encoding views" };
    progress.stage(stage, Some((key.documents as u64) * (1 + u64::from(key.passes))));
    progress
        .advance(key.block_documents(done.max(1) - 1).end as u64 * (1 + u64::from(key.passes)) * u64::from(done > 0));
    // A GPU encodes several blocks per call; each block is still written and checked on its own.
    let blocks_per_call = (encoder.documents_at_once() / BLOCK_DOCUMENTS).max(1);
    for first in (done..key.blocks()).step_by(blocks_per_call) {
        let blocks = first..key.blocks().min(first + blocks_per_call);
        let start = key.block_documents(first).start;
        let selected = &documents[start..key.block_documents(blocks.end - 1).end];
        let views = encode_group(key, encoder, selected, progress)?;
        for b in blocks {
            let data =
                pack_block(key, &views, key.block_documents(b).start - start, &documents[key.block_documents(b)])?;
            file.write_all(&data).and_then(|()| file.write_all(&checksum(&data))).map_err(io_error())?;
        }
    }
    file.sync_all().map_err(io_error())?;
    std::fs::rename(&partial, path).map_err(Error::io(path))?;
    internal::sync_directory(path.parent().unwrap_or(Path::new(".")))
}

/// Counts the whole blocks of an earlier writer and truncates the file after them.
fn resume(file: &mut File, partial: &Path, key: &CacheKey) -> Result<usize> {
    let io_error = || Error::io(partial);
    let header = key.header()?;
    let mut found = [0; HEADER_BYTES];
    let length = file.metadata().map_err(io_error())?.len() as usize;
    let mut done = 0;
    if length >= HEADER_BYTES {
        file.read_exact(&mut found).map_err(io_error())?;
    }
    if found == header {
        let mut data = Vec::new();
        while done < key.blocks() && key.block_start(done) + key.block_bytes(done) + CHECKSUM_BYTES <= length {
            data.resize(key.block_bytes(done) + CHECKSUM_BYTES, 0);
            file.read_exact(&mut data).map_err(io_error())?;
            let (values, check) = data.split_at(key.block_bytes(done));
            if check != checksum(values) {
                break;
            }
            done += 1;
        }
    } else {
        // The file is new, or holds unfinished views of another corpus or encoder, which no run can use.
        file.set_len(0).and_then(|()| file.seek(SeekFrom::Start(0))).map_err(io_error())?;
        file.write_all(&header).map_err(io_error())?;
    }
    let end = key.block_start(done) as u64;
    file.set_len(end).and_then(|()| file.seek(SeekFrom::Start(end))).map_err(io_error())?;
    Ok(done)
}

/// All views of `documents`. Checks the shapes that the encoder returns.
fn encode_group(
    key: &CacheKey,
    encoder: &dyn Encode,
    documents: &[usize],
    progress: &dyn Progress,
) -> Result<Vec<Matrix>> {
    let mut views = Vec::with_capacity(1 + key.passes as usize);
    // One view per call on a CPU, so that the progress moves; all views in one call where the encoder wants many documents.
    let views_per_call = if encoder.documents_at_once() > 0 { 1 + key.passes } else { 1 };
    for first in (0..=key.passes).step_by(views_per_call as usize) {
        if progress.interrupted() {
            return Err(Error::Interrupted);
        }
        views.extend(encoder.encode_views(documents, first..(first + views_per_call).min(1 + key.passes), progress)?);
        progress.advance(documents.len() as u64 * u64::from(views_per_call.min(1 + key.passes - first)));
    }
    let wrong = |m: &Matrix| m.rows() != documents.len() || m.cols() != key.width;
    if views.len() != 1 + key.passes as usize || views.iter().any(wrong) {
        let found: Vec<String> = views.iter().map(|m| format!("{} x {}", m.rows(), m.cols())).collect();
        return Err(Error::config(format!(
            "the encoder returned views of {} values, expected {} views of {} x {}",
            found.join(", "),
            1 + key.passes,
            documents.len(),
            key.width
        )));
    }
    Ok(views)
}

/// One block, `[documents, 1 + passes, width]` in half precision. Row `first` of each view is its first document.
fn pack_block(key: &CacheKey, views: &[Matrix], first: usize, documents: &[usize]) -> Result<Vec<u8>> {
    let mut data = vec![0u8; documents.len() * key.document_bytes()];
    let not_finite = data.par_chunks_exact_mut(key.document_bytes()).enumerate().find_map_first(|(i, bytes)| {
        let mut row = vec![f16::ZERO; key.width];
        for (view, bytes) in views.iter().zip(bytes.chunks_exact_mut(key.width * 2)) {
            row.convert_from_f32_slice(view.row(first + i));
            if !row.iter().all(|v| v.is_finite()) {
                return Some(documents[i]);
            }
            for (bytes, v) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(&row) {
                *bytes = v.to_le_bytes();
            }
        }
        None
    });
    match not_finite {
        None => Ok(data),
        Some(document) => Err(Error::input(
            format!("document {document}"),
            "its embedding holds a value that is not a finite number in half precision; check the document, or use another \
             encoder",
        )),
    }
}
