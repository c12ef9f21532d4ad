//! Files that users bring: corpora, vectors, FAISS indexes, and packed codes.

use std::path::PathBuf;

use engine::corpus::{Corpus, CorpusConfig, Format, OnError};
use engine::formats::faiss::ProductIndex;
use engine::formats::vectors::VectorFile;
use engine::internal::Map;
use engine::model::CodeShape;
use engine::search::CodeBlocks;

/// A file with these bytes, in memory where there is such a place.
struct Written {
    path: PathBuf,
    _folder: tempfile::TempDir,
}

fn written(name: &str, bytes: &[u8]) -> Written {
    let memory = std::path::Path::new("/dev/shm");
    let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    Written { path, _folder: folder }
}

/// The first byte chooses the format; above the formats the bytes decide.
pub fn corpus(input: &[u8]) {
    let Some((first, rest)) = input.split_first() else { return };
    let format = Format::ALL.get(usize::from(*first)).copied().filter(|format| *format != Format::Folder);
    let config = CorpusConfig {
        format,
        on_error: OnError::Skip,
        max_row_bytes: 1 << 20,
        max_unpacked_bytes: 16 << 20,
        ..CorpusConfig::default()
    };
    if let Ok(corpus) = Corpus::from_reader("input", std::io::Cursor::new(rest.to_vec()), &config) {
        // An archive of 64 KiB can hold very many rows.
        for row in corpus.take(20_000) {
            if row.is_err() {
                break;
            }
        }
    }
}

pub fn npy(input: &[u8]) {
    let file = written("input.npy", input);
    let _ = engine::formats::npy::read_vectors(&file.path);
    let _ = engine::formats::npy::read_u8(&file.path);
    let _ = engine::formats::npy::read_f32(&file.path);
}

/// The first byte chooses the ending.
pub fn vectors(input: &[u8]) {
    const NAMES: [(&str, Option<&str>); 8] = [
        ("i.hdf5", None),
        ("i.npy", None),
        ("i.fbin", None),
        ("i.u8bin", None),
        ("i.i8bin", None),
        ("i.fvecs", None),
        ("i.bvecs", None),
        ("i.h5", Some("test")),
    ];
    let Some((first, rest)) = input.split_first() else { return };
    let (name, dataset) = NAMES[usize::from(*first) % NAMES.len()];
    let file = written(name, rest);
    if let Ok(vectors) = VectorFile::open(&file.path, dataset) {
        let _ = vectors.read(0..vectors.rows().min(1000));
    }
}

pub fn faiss(input: &[u8]) {
    let file = written("input.faiss", input);
    if let Ok(index) = ProductIndex::read(&file.path) {
        let _ = index.model("input.faiss");
        (0..index.len().min(100)).for_each(|i| drop(index.id(i)));
    }
}

/// The first byte chooses the code. The checksum is made right, so that what is behind it is reached.
pub fn blocks(input: &[u8]) {
    let Some((first, rest)) = input.split_first() else { return };
    let shape = CodeShape::micpq([16, 32, 64, 128][usize::from(*first) % 4]).unwrap();
    let mut bytes = rest.to_vec();
    if bytes.len() > 64 {
        let sum = crc32fast::hash(&bytes[16..]);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    }
    let file = written("input.codes", &bytes);
    let Ok(map) = Map::open(&file.path) else { return };
    let Ok(blocks) = CodeBlocks::from_map(shape, [0; 16], map) else { return };
    if blocks.check().is_ok() {
        assert!(blocks.iter().count() == blocks.len());
        (0..blocks.len() as u32).for_each(|rank| _ = blocks.number(rank));
    }
}
