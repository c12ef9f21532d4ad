//! Feature vectors on disk: the clean one and some with dropout of every document, in half precision.
//!
//! ```text
//! header, 256 bytes: magic, format, passes, width, documents, block, fingerprint, CRC-32 of the header
//! block:  up to 256 documents x (1 + passes) x width values, f16 little-endian; CRC-32 in 8 bytes
//! ```
//! While it is written the file is called `NAME.partial` and grows block by block; a writer that was killed leaves whole
//! blocks, which the next one checks and keeps. Finished, it is synced, renamed and never changed again.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use micpq::mmap::Map;
use micpq::{Error, Matrix, Result, Watch, disk};
use rayon::prelude::*;

use super::Encode;

const MAGIC: &[u8; 8] = b"micpqvws";
/// Version of the file. 1: first release.
const FORMAT: u32 = 1;
const HEADER: usize = 256;
const FINGERPRINT: usize = 160;
/// Documents in a block: what a killed writer loses at most.
const BLOCK: usize = 256;
/// Bytes of a block's checksum; eight keep what follows aligned.
const CHECK: usize = 8;

/// What a file holds, as its header says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheKey {
    /// Passes with dropout for every document, beside the clean one.
    pub passes: u32,
    /// Values in a vector.
    pub width: usize,
    /// Number of documents.
    pub documents: usize,
    /// Corpus, encoder and everything else that decides the values.
    pub fingerprint: String,
}

impl CacheKey {
    fn header(&self) -> Result<[u8; HEADER]> {
        let name = self.fingerprint.as_bytes();
        if name.len() > FINGERPRINT {
            return Err(Error::config(format!("a fingerprint has at most {FINGERPRINT} bytes, not {}", name.len())));
        }
        let mut out = [0; HEADER];
        out[..8].copy_from_slice(MAGIC);
        out[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        out[12..16].copy_from_slice(&self.passes.to_le_bytes());
        out[16..24].copy_from_slice(&(self.width as u64).to_le_bytes());
        out[24..32].copy_from_slice(&(self.documents as u64).to_le_bytes());
        out[32..36].copy_from_slice(&(BLOCK as u32).to_le_bytes());
        out[36..40].copy_from_slice(&(name.len() as u32).to_le_bytes());
        out[40..40 + name.len()].copy_from_slice(name);
        let check = crc32fast::hash(&out[..HEADER - 4]);
        out[HEADER - 4..].copy_from_slice(&check.to_le_bytes());
        Ok(out)
    }

    /// Bytes of the vectors of one document.
    fn document_bytes(&self) -> usize {
        (1 + self.passes as usize) * self.width * 2
    }

    fn blocks(&self) -> usize {
        self.documents.div_ceil(BLOCK)
    }

    /// Documents in block `b`.
    fn block_documents(&self, b: usize) -> std::ops::Range<usize> {
        b * BLOCK..((b + 1) * BLOCK).min(self.documents)
    }

    /// Where block `b` begins.
    fn block_start(&self, b: usize) -> usize {
        HEADER + b * (BLOCK * self.document_bytes() + CHECK)
    }

    /// Bytes of block `b` without its checksum.
    fn block_bytes(&self, b: usize) -> usize {
        self.block_documents(b).len() * self.document_bytes()
    }

    fn file_bytes(&self) -> usize {
        self.block_start(self.blocks().saturating_sub(1)) + self.block_bytes(self.blocks().saturating_sub(1)) + CHECK
    }
}

/// A finished file of views, mapped.
pub struct ViewCache {
    key: CacheKey,
    map: Map,
}

impl ViewCache {
    /// Opens the views of `documents` at `path`, making them first where they are not there or not finished.
    pub fn open_or_fill(
        path: &Path,
        encoder: &dyn Encode,
        documents: &[usize],
        passes: u32,
        watch: &dyn Watch,
    ) -> Result<Self> {
        // The documents are part of what the file is: a sample is not a corpus of the same size.
        let chosen: Vec<u8> = documents.iter().flat_map(|&d| (d as u64).to_le_bytes()).collect();
        let fingerprint = format!("{}/{:08x}", encoder.fingerprint(), crc32fast::hash(&chosen));
        let key = CacheKey { passes, width: encoder.width(), documents: documents.len(), fingerprint };
        if !path.exists() {
            fill(path, &key, encoder, documents, watch)?;
        }
        Self::open(path, &key, watch)
    }

    /// Opens a finished file, which must hold exactly `key`, and checks all of it.
    pub fn open(path: &Path, key: &CacheKey, watch: &dyn Watch) -> Result<Self> {
        let map = Map::open(path)?;
        check_header(path, &map, key)?;
        if map.len() != key.file_bytes() {
            let (expected, found) = (key.file_bytes(), map.len());
            return Err(Error::format(
                path,
                format!("has {found} bytes, expected {expected}; delete it to make it again"),
            ));
        }
        watch.stage("checking kept views", Some(key.documents as u64));
        let bad = (0..key.blocks()).into_par_iter().find_first(|&b| {
            watch.advance(key.block_documents(b).len() as u64);
            let start = key.block_start(b);
            let (data, check) = map[start..start + key.block_bytes(b) + CHECK].split_at(key.block_bytes(b));
            check != checksum(data)
        });
        if let Some(b) = bad {
            let range = key.block_documents(b);
            let problem = format!(
                "documents {} to {} are damaged (checksum); delete it to make it again",
                range.start, range.end
            );
            return Err(Error::format(path, problem));
        }
        Ok(ViewCache { key: key.clone(), map })
    }

    /// Number of documents.
    pub fn documents(&self) -> usize {
        self.key.documents
    }

    /// Values in a vector.
    pub fn width(&self) -> usize {
        self.key.width
    }

    /// Passes with dropout for every document.
    pub fn passes(&self) -> u32 {
        self.key.passes
    }

    /// Corpus, encoder, and what else decides the values.
    pub fn fingerprint(&self) -> String {
        format!("{}+{}", self.key.fingerprint, self.key.passes)
    }

    /// The vector of one view of one document; view 0 is clean.
    ///
    /// # Panics
    /// When there is no such document or view, or `out` has another width.
    pub fn read(&self, document: usize, view: u32, out: &mut [f32]) {
        assert!(document < self.key.documents && view <= self.key.passes && out.len() == self.key.width);
        let block = document / BLOCK;
        let within = (document % BLOCK) * self.key.document_bytes() + view as usize * self.key.width * 2;
        let start = self.key.block_start(block) + within;
        let bits: Vec<u16> = self.map[start..start + self.key.width * 2]
            .as_chunks::<2>()
            .0
            .iter()
            .map(|b| u16::from_le_bytes(*b))
            .collect();
        bits.reinterpret_cast::<f16>().convert_to_f32_slice(out);
    }

    /// The clean vectors of some documents.
    pub fn clean(&self, documents: &[u32], out: &mut [f32]) {
        assert_eq!(out.len(), documents.len() * self.key.width);
        let rows = out.par_chunks_exact_mut(self.key.width).with_min_len(32);
        rows.zip(documents).for_each(|(row, &document)| self.read(document as usize, 0, row));
    }
}

fn checksum(data: &[u8]) -> [u8; CHECK] {
    u64::from(crc32fast::hash(data)).to_le_bytes()
}

fn check_header(path: &Path, bytes: &[u8], key: &CacheKey) -> Result<()> {
    if bytes.len() < HEADER || &bytes[..8] != MAGIC {
        return Err(Error::format(path, "is not a file of views; name another place or delete it"));
    }
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    if number(8) != FORMAT {
        let problem = format!("has format {}, this program reads {FORMAT}; delete it to make it again", number(8));
        return Err(Error::format(path, problem));
    }
    if number(HEADER - 4) != crc32fast::hash(&bytes[..HEADER - 4]) {
        return Err(Error::format(path, "has a damaged header; delete it to make it again"));
    }
    if bytes[..HEADER] != key.header()? {
        let length = (number(36) as usize).min(FINGERPRINT);
        let problem = format!(
            "holds {} passes over {} documents of {} ({} expected over {} of {}): it belongs to another corpus or encoder; \
             name another work directory, or delete it",
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

/// Writes the file, going on where an earlier writer stopped.
fn fill(path: &Path, key: &CacheKey, encoder: &dyn Encode, documents: &[usize], watch: &dyn Watch) -> Result<()> {
    let partial = disk::beside(path, ".partial");
    let fail = || Error::io(&partial);
    let mut file = File::options().read(true).write(true).create(true).truncate(false).open(&partial).map_err(fail())?;
    match file.try_lock() {
        Ok(()) => {}
        Err(std::fs::TryLockError::WouldBlock) => {
            let problem = format!(
                "{}: another run is writing these views; wait for it or use another work directory",
                partial.display()
            );
            return Err(Error::Busy(problem));
        }
        Err(std::fs::TryLockError::Error(e)) => return Err(fail()(e)),
    }
    // Another run may have finished them between the caller's look and the lock.
    if path.exists() {
        return Ok(());
    }
    let done = resume(&mut file, &partial, key)?;
    let stage = if key.passes == 0 { "keeping clean vectors" } else { "encoding views" };
    watch.stage(stage, Some((key.documents as u64) * (1 + u64::from(key.passes))));
    watch.advance(key.block_documents(done.max(1) - 1).end as u64 * (1 + u64::from(key.passes)) * u64::from(done > 0));
    // Several blocks at a time where the encoder is a GPU; a block is still what is written and checked.
    let together = (encoder.documents_at_once() / BLOCK).max(1);
    for first in (done..key.blocks()).step_by(together) {
        let blocks = first..key.blocks().min(first + together);
        let start = key.block_documents(first).start;
        let chosen = &documents[start..key.block_documents(blocks.end - 1).end];
        let views = encode_group(key, encoder, chosen, watch)?;
        for b in blocks {
            let data = block(key, &views, key.block_documents(b).start - start, &documents[key.block_documents(b)])?;
            file.write_all(&data).and_then(|()| file.write_all(&checksum(&data))).map_err(fail())?;
        }
    }
    file.sync_all().map_err(fail())?;
    std::fs::rename(&partial, path).map_err(Error::io(path))?;
    micpq::disk::sync_directory(path.parent().unwrap_or(Path::new(".")))
}

/// Whole blocks an earlier writer left; the file is cut behind them.
fn resume(file: &mut File, partial: &Path, key: &CacheKey) -> Result<usize> {
    let fail = || Error::io(partial);
    let header = key.header()?;
    let mut found = [0; HEADER];
    let length = file.metadata().map_err(fail())?.len() as usize;
    let mut done = 0;
    if length >= HEADER {
        file.read_exact(&mut found).map_err(fail())?;
    }
    if found == header {
        let mut data = Vec::new();
        while done < key.blocks() && key.block_start(done) + key.block_bytes(done) + CHECK <= length {
            data.resize(key.block_bytes(done) + CHECK, 0);
            file.read_exact(&mut data).map_err(fail())?;
            let (values, check) = data.split_at(key.block_bytes(done));
            if check != checksum(values) {
                break;
            }
            done += 1;
        }
    } else {
        // Nothing yet, or unfinished views of another corpus or encoder: nothing anybody can use.
        file.set_len(0).and_then(|()| file.seek(SeekFrom::Start(0))).map_err(fail())?;
        file.write_all(&header).map_err(fail())?;
    }
    let end = key.block_start(done) as u64;
    file.set_len(end).and_then(|()| file.seek(SeekFrom::Start(end))).map_err(fail())?;
    Ok(done)
}

/// All views of some documents, checked to be what was asked for.
fn encode_group(key: &CacheKey, encoder: &dyn Encode, documents: &[usize], watch: &dyn Watch) -> Result<Vec<Matrix>> {
    let mut views = Vec::with_capacity(1 + key.passes as usize);
    // View by view on a CPU, so that the bar moves; all at once where documents are.
    let at_once = if encoder.documents_at_once() > 0 { 1 + key.passes } else { 1 };
    for first in (0..=key.passes).step_by(at_once as usize) {
        if watch.interrupted() {
            return Err(Error::Interrupted);
        }
        views.extend(encoder.encode_views(documents, first..(first + at_once).min(1 + key.passes), watch)?);
        watch.advance(documents.len() as u64 * u64::from(at_once.min(1 + key.passes - first)));
    }
    let wrong = |m: &Matrix| m.rows() != documents.len() || m.cols() != key.width;
    if views.len() != 1 + key.passes as usize || views.iter().any(wrong) {
        let found: Vec<String> = views.iter().map(|m| format!("{} x {}", m.rows(), m.cols())).collect();
        return Err(Error::config(format!(
            "the encoder returned views of {} values, {} of {} x {} were asked for",
            found.join(", "),
            1 + key.passes,
            documents.len(),
            key.width
        )));
    }
    Ok(views)
}

/// One block, `[documents, 1 + passes, width]` in half precision, out of views whose row `first` is its first document.
fn block(key: &CacheKey, views: &[Matrix], first: usize, documents: &[usize]) -> Result<Vec<u8>> {
    let mut data = vec![0u8; documents.len() * key.document_bytes()];
    let spoiled = data.par_chunks_exact_mut(key.document_bytes()).enumerate().find_map_first(|(i, bytes)| {
        let mut row_bits = vec![f16::ZERO; key.width];
        for (view, bytes) in views.iter().zip(bytes.chunks_exact_mut(key.width * 2)) {
            row_bits.convert_from_f32_slice(view.row(first + i));
            if !row_bits.iter().all(|v| v.is_finite()) {
                return Some(documents[i]);
            }
            for (bytes, v) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(&row_bits) {
                *bytes = v.to_le_bytes();
            }
        }
        None
    });
    match spoiled {
        None => Ok(data),
        Some(document) => Err(Error::input(
            format!("document {document}"),
            "its feature vector holds a value that is not a finite number in half precision; look at the document, or \
             use another encoder",
        )),
    }
}
