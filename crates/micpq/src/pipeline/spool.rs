//! Documents that were read once and are needed twice: to train on and to index.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};

use engine::corpus::Document;
use engine::{Error, Progress, Result};

/// Bytes of text held in memory. What exceeds it goes to a file.
const MAX_MEMORY_BYTES: usize = 256 << 20;

/// Documents in memory, the rest in a file.
pub struct Spool {
    memory: Vec<Document>,
    file: Option<(PathBuf, File)>,
}

impl Spool {
    /// Reads every document. `folder` takes the file, if one is needed.
    pub fn read(
        documents: impl Iterator<Item = Result<Document>>,
        folder: &Path,
        progress: &dyn Progress,
    ) -> Result<Spool> {
        Spool::read_within(documents, folder, MAX_MEMORY_BYTES, progress)
    }

    fn read_within(
        documents: impl Iterator<Item = Result<Document>>,
        folder: &Path,
        max_bytes: usize,
        progress: &dyn Progress,
    ) -> Result<Spool> {
        progress.stage("reading", None);
        let path = folder.join("documents.jsonl");
        let (mut memory, mut bytes) = (Vec::new(), 0);
        let mut writer: Option<BufWriter<File>> = None;
        for document in documents {
            let document = document?;
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
            progress.advance(1);
            if bytes < max_bytes {
                bytes += size(&document);
                memory.push(document);
                continue;
            }
            let file = match &mut writer {
                Some(file) => file,
                None => {
                    let created = File::options().read(true).write(true).create(true).truncate(true).open(&path);
                    writer.insert(BufWriter::new(created.map_err(Error::io(&path))?))
                }
            };
            serde_json::to_writer(&mut *file, &document)
                .map_err(std::io::Error::from)
                .and_then(|()| file.write_all(b"\n"))
                .map_err(Error::io(&path))?;
        }
        let file = match writer {
            None => None,
            Some(file) => {
                let file = file.into_inner().map_err(|e| Error::io(&path)(e.into_error()))?;
                Some((path, file))
            }
        };
        Ok(Spool { memory, file })
    }

    /// The documents in the order they were read.
    pub fn iter(&self) -> Result<Box<dyn Iterator<Item = Result<Document>> + '_>> {
        let memory = self.memory.iter().cloned().map(Ok);
        let Some((path, file)) = &self.file else { return Ok(Box::new(memory)) };
        let mut file = file.try_clone().map_err(Error::io(path))?;
        file.rewind().map_err(Error::io(path))?;
        let parse = move |line: std::io::Result<String>| {
            let line = line.map_err(Error::io(path))?;
            serde_json::from_str(&line)
                .map_err(|e| Error::format(path, format!("a spooled document cannot be read: {e}")))
        };
        Ok(Box::new(memory.chain(BufReader::new(file).lines().map(parse))))
    }
}

fn size(document: &Document) -> usize {
    let attributes: usize = document.attributes.iter().map(|(name, _)| name.len() + 64).sum();
    document.text.len() + attributes + 128
}

#[cfg(test)]
mod tests {
    use engine::NoProgress;
    use engine::corpus::{DocId, Value};

    use super::*;

    #[test]
    fn documents_come_back_as_they_were_from_memory_and_file() {
        let folder = tempfile::tempdir().unwrap();
        let document = |i: u64| Document {
            id: if i.is_multiple_of(2) { DocId::Int(i) } else { DocId::Str(format!("name {i}")) },
            text: format!("line one\nline two of {i} \u{1F980}"),
            labels: vec![format!("label {}", i % 3)],
            attributes: vec![
                ("year".into(), Value::Int(1987 + i as i64)),
                ("share".into(), Value::Float(0.1 + i as f64)),
                ("whole".into(), Value::Float(3.0)),
                ("flag".into(), Value::Bool(true)),
                ("places".into(), Value::Texts(vec!["japan".into(), "usa".into()])),
            ],
        };
        let all: Vec<Document> = (0..200).map(document).collect();
        for max_bytes in [0, 5_000, usize::MAX] {
            let given = all.iter().cloned().map(Ok);
            let spool = Spool::read_within(given, folder.path(), max_bytes, &NoProgress).unwrap();
            assert_eq!(spool.file.is_some(), max_bytes < usize::MAX);
            for _ in 0..2 {
                let back: Vec<Document> = spool.iter().unwrap().collect::<Result<_>>().unwrap();
                assert_eq!(back, all, "{max_bytes} bytes in memory");
            }
        }
    }
}
