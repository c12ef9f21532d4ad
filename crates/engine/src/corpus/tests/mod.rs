//! Tests of whole corpora.

mod faults;
mod formats;
mod real;
#[cfg(feature = "parquet")]
mod tabular;

use std::fs;
use std::io::{Cursor, Write};
use std::path::PathBuf;

use super::*;

/// A temporary folder with files.
struct Scene {
    folder: tempfile::TempDir,
}

impl Scene {
    fn new() -> Scene {
        Scene { folder: tempfile::tempdir().unwrap() }
    }

    fn root(&self) -> &Path {
        self.folder.path()
    }

    fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| name.to_string()).collect()
}

fn skipping() -> CorpusConfig {
    CorpusConfig { on_error: OnError::Skip, ..CorpusConfig::default() }
}

fn format(format: Format) -> CorpusConfig {
    CorpusConfig { format: Some(format), ..CorpusConfig::default() }
}

/// All documents of bytes in memory, and the skipped rows.
fn read(bytes: impl AsRef<[u8]>, config: &CorpusConfig) -> Result<(Vec<Document>, Skipped)> {
    let bytes = Cursor::new(bytes.as_ref().to_vec());
    drain(Corpus::from_reader("memory", bytes, config)?)
}

fn drain(mut corpus: Corpus) -> Result<(Vec<Document>, Skipped)> {
    let documents = corpus.by_ref().collect::<Result<Vec<_>>>()?;
    Ok((documents, corpus.skipped().clone()))
}

fn texts(documents: &[Document]) -> Vec<&str> {
    documents.iter().map(|document| document.text.as_str()).collect()
}

fn ids(documents: &[Document]) -> Vec<String> {
    documents.iter().map(|document| document.id.to_string()).collect()
}
