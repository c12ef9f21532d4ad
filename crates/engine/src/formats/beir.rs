//! BEIR folders: `corpus.jsonl`, `queries.jsonl` and judgements under `qrels/`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, json};

use super::trec::Qrels;
use crate::corpus::{Corpus, CorpusConfig, Document, Format};
use crate::index::Record;
use crate::{Error, Result, disk};

/// An open BEIR folder. [`Corpus::open`] reads its documents.
pub struct Beir {
    dir: PathBuf,
}

impl Beir {
    /// Whether a path is a BEIR folder: it has a corpus and queries.
    pub fn is(dir: &Path) -> bool {
        let has = |name: &str| ["", ".gz", ".zst"].iter().any(|end| dir.join(format!("{name}{end}")).is_file());
        has("corpus.jsonl") && has("queries.jsonl")
    }

    pub fn open(dir: &Path) -> Result<Beir> {
        if !dir.is_dir() {
            return Err(Error::format(
                dir,
                "is not a folder; BEIR keeps corpus.jsonl, queries.jsonl and qrels/ in one",
            ));
        }
        Ok(Beir { dir: dir.to_path_buf() })
    }

    /// The queries, with their ids.
    pub fn queries(&self) -> Result<Vec<Document>> {
        let path = ["", ".gz", ".zst"]
            .iter()
            .map(|end| self.dir.join(format!("queries.jsonl{end}")))
            .find(|path| path.is_file())
            .ok_or_else(|| Error::format(&self.dir, "has no queries.jsonl"))?;
        let config = CorpusConfig { format: Some(Format::Jsonl), ..CorpusConfig::default() };
        Corpus::open(&path, &config)?.collect()
    }

    /// The names of the judgement files: `test`, `dev`, ...
    pub fn splits(&self) -> Result<Vec<String>> {
        let dir = self.dir.join("qrels");
        let entries = std::fs::read_dir(&dir).map_err(Error::io(&dir))?;
        let names =
            entries.flatten().filter_map(|e| e.file_name().into_string().ok()?.strip_suffix(".tsv").map(str::to_owned));
        let mut names: Vec<String> = names.collect();
        names.sort();
        Ok(names)
    }

    /// Judgements of one split.
    pub fn qrels(&self, split: &str) -> Result<Qrels> {
        let path = self.dir.join("qrels").join(format!("{split}.tsv"));
        if !path.is_file() {
            let known = self.splits().unwrap_or_default().join(", ");
            return Err(Error::format(&self.dir, format!("has no qrels/{split}.tsv; there are: {known}")));
        }
        Qrels::read(&path)
    }
}

/// Writes a BEIR folder. The folder appears only when it is complete.
pub struct BeirWriter {
    staged: disk::StagedDirectory,
    corpus: BufWriter<File>,
}

impl BeirWriter {
    /// Begins a folder. A path that holds anything is refused.
    pub fn create(dir: &Path) -> Result<BeirWriter> {
        let staged = disk::StagedDirectory::begin(dir, disk::Replaces::Nothing)?;
        std::fs::create_dir(staged.path()).map_err(Error::io(dir))?;
        let path = staged.path().join("corpus.jsonl");
        let corpus = BufWriter::with_capacity(1 << 20, File::create(&path).map_err(Error::io(&path))?);
        Ok(BeirWriter { staged, corpus })
    }

    /// Adds a document. Labels and attributes go into `metadata`. The title stays empty, because readers join it to the text.
    pub fn document(&mut self, record: &Record) -> Result<()> {
        let mut metadata = Map::new();
        if !record.labels.is_empty() {
            metadata.insert("labels".into(), json!(record.labels));
        }
        metadata.extend(record.attributes.iter().map(|(name, value)| (name.clone(), json!(value))));
        let row = json!({
            "_id": record.id.to_string(), "title": "", "text": record.text.as_deref().unwrap_or(""), "metadata": metadata,
        });
        writeln!(self.corpus, "{row}").map_err(Error::io(self.staged.folder()))
    }

    /// Writes the queries and their judgements under `split`, and renames the folder to its final path.
    pub fn finish(mut self, queries: &[Document], qrels: &Qrels, split: &str) -> Result<()> {
        let place = &self.staged.path();
        let fail = || Error::io(place);
        self.corpus.flush().map_err(fail())?;
        let text: String = queries
            .iter()
            .map(|q| format!("{}\n", json!({ "_id": q.id.to_string(), "text": q.text, "metadata": {} })))
            .collect();
        disk::write_synced(&place.join("queries.jsonl"), text.as_bytes())?;
        std::fs::create_dir(place.join("qrels")).map_err(fail())?;
        qrels.write_beir(&place.join("qrels").join(format!("{split}.tsv")))?;
        self.staged.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::corpus::{DocId, Value};

    #[test]
    fn a_written_folder_round_trips() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("beir");
        let mut writer = BeirWriter::create(&dir).unwrap();
        for i in 0..3u64 {
            let record = Record {
                id: DocId::Int(i),
                code: vec![],
                sequence: i,
                text: Some(format!("text {i}")),
                labels: vec!["a".into()],
                attributes: vec![("year".into(), Value::Int(1987))],
            };
            writer.document(&record).unwrap();
        }
        assert!(!dir.exists());
        let query = Document { id: DocId::Str("q1".into()), text: "which".into(), labels: vec![], attributes: vec![] };
        let qrels = Qrels(BTreeMap::from([("q1".into(), BTreeMap::from([("2".into(), 1)]))]));
        writer.finish(&[query], &qrels, "test").unwrap();
        assert!(Beir::is(&dir));
        let beir = Beir::open(&dir).unwrap();
        assert_eq!(beir.queries().unwrap()[0].id, DocId::Str("q1".into()));
        assert_eq!(beir.qrels("test").unwrap(), qrels);
        assert!(beir.qrels("dev").unwrap_err().to_string().contains("test"));
        let documents: Vec<Document> =
            Corpus::open(&dir, &CorpusConfig::default()).unwrap().collect::<Result<_>>().unwrap();
        assert_eq!(documents.len(), 3);
        assert_eq!(documents[2].text.trim(), "text 2");
        assert!(BeirWriter::create(&dir).is_err());
    }
}
