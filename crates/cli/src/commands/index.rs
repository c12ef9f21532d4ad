//! `micpq index create|add|delete|info|verify|compact`.

use std::collections::HashMap;

use anyhow::Result;
use micpq::corpus::{Corpus, DocId, Document};
use micpq::encoder::Features;
use micpq::index::{Index, IndexConfig};
use micpq::model::Model;
use micpq::{Error, Matrix, Watch};

use super::{chunks, features_of};
use crate::args;
use crate::output;
use crate::progress::Progress;

pub fn run(command: args::Index, json: bool, progress: &Progress) -> Result<()> {
    match command {
        args::Index::Create { index, corpus, model, store, force, source } => {
            let model = Model::load(&model)?;
            if force && index.join("index.json").exists() {
                std::fs::remove_dir_all(&index).map_err(Error::io(&index))?;
            }
            let made = Index::create(&index, &model, &serde_json::Value::Null, IndexConfig { store })?;
            if let Some(corpus) = corpus {
                add(&made, &corpus, &source, 20_000, progress)?;
            }
            told(&Index::open(&index)?, json)
        }
        args::Index::Add { index, corpus, commit_every, source } => {
            let opened = Index::open(&index)?;
            let added = add(&opened, &corpus, &source, commit_every, progress)?;
            if json {
                return output::json(&serde_json::json!({ "added": added, "documents": Index::open(&index)?.len()? }));
            }
            output::line(format!("{added} documents added; {} in the index", Index::open(&index)?.len()?))
        }
        args::Index::Delete { index, ids, filter } => {
            if ids.is_empty() && filter.is_none() {
                return Err(Error::config("name ids or a --filter of what to delete").into());
            }
            let opened = Index::open(&index)?;
            let before = opened.len()?;
            let mut writer = opened.writer()?;
            for id in &ids {
                writer.delete(&id.parse::<DocId>()?)?;
            }
            if let Some(filter) = &filter {
                writer.delete_matching(filter)?;
            }
            writer.commit()?;
            let left = Index::open(&index)?.len()?;
            if json {
                return output::json(&serde_json::json!({ "deleted": before - left, "documents": left }));
            }
            output::line(format!("{} documents deleted; {left} left", before - left))
        }
        args::Index::Info { index } => told(&Index::open(&index)?, json),
        args::Index::Verify { index } => {
            let problems = Index::verify(&index, progress)?;
            progress.finish();
            if json {
                output::json(&serde_json::json!({ "sound": problems.is_empty(), "problems": problems }))?;
            }
            if problems.is_empty() {
                return if json { Ok(()) } else { output::line(format!("{}: sound", index.display())) };
            }
            Err(Error::format(&index, problems.join("\n")).into())
        }
        args::Index::Compact { index } => {
            let opened = Index::open(&index)?;
            opened.writer()?.compact(progress)?;
            told(&Index::open(&index)?, json)
        }
    }
}

fn told(index: &Index, json: bool) -> Result<()> {
    let info = index.info()?;
    if json { output::json(&info) } else { output::line(info.to_string().trim_end()) }
}

fn add(
    index: &Index,
    corpus: &std::path::Path,
    source: &args::CorpusArgs,
    commit_every: usize,
    progress: &Progress,
) -> Result<u64> {
    let model = index.model();
    let features = features_of(model, progress)?;
    let mut corpus = Corpus::open(corpus, &source.config())?;
    progress.stage("indexing", None);
    let added = add_all(index, model, &features, &mut corpus, &Known::default(), commit_every, progress)?;
    super::tell_skipped(&corpus, progress);
    progress.finish();
    Ok(added)
}

/// Clean vectors that are known already, by the token sequence they belong to.
#[derive(Default)]
pub struct Known {
    rows: HashMap<Vec<u32>, usize>,
    vectors: Matrix,
}

impl Known {
    /// The vectors a training run has left.
    pub fn new(tokens: &[Vec<u32>], vectors: Matrix) -> Self {
        Known { rows: tokens.iter().cloned().zip(0..).collect(), vectors }
    }

    /// Vectors of some texts, encoding only those that are new.
    fn encode(&self, features: &Features, texts: &[&str], watch: &dyn Watch) -> Result<Matrix> {
        let tokens = features.tokens(texts)?;
        let new: Vec<&Vec<u32>> = tokens.iter().filter(|t| !self.rows.contains_key(*t)).collect();
        let encoded = features.encode_tokens(&new, None, watch)?;
        let mut fresh = encoded.iter();
        let mut out = Matrix::zeros(tokens.len(), features.width());
        let mut reused = 0;
        for (i, sequence) in tokens.iter().enumerate() {
            let row = match self.rows.get(sequence) {
                Some(&row) => {
                    reused += 1;
                    self.vectors.row(row)
                }
                None => fresh.next().expect("a vector for every new sequence"),
            };
            out.row_mut(i).copy_from_slice(row);
        }
        watch.advance(reused);
        Ok(out)
    }
}

/// Encodes and adds a corpus, committing every so many documents and at the end. Interrupted, it commits what it has.
pub fn add_all(
    index: &Index,
    model: &Model,
    features: &Features,
    corpus: &mut Corpus,
    known: &Known,
    commit_every: usize,
    watch: &dyn Watch,
) -> Result<u64> {
    let mut writer = index.writer()?;
    let (mut added, mut pending) = (0u64, 0usize);
    for chunk in chunks(corpus) {
        let documents: Vec<Document> = chunk?;
        let texts: Vec<&str> = documents.iter().map(|d| d.text.as_str()).collect();
        let vectors = match known.encode(features, &texts, watch) {
            Err(error) if matches!(error.downcast_ref(), Some(Error::Interrupted)) => {
                writer.commit()?;
                return Err(error.context(format!("{added} documents are committed; run it again to add the rest")));
            }
            other => other?,
        };
        let codes = model.encode(&vectors)?;
        for (document, code) in documents.iter().zip(codes.chunks_exact(model.shape().code_bytes())) {
            writer.add(document, code)?;
        }
        added += documents.len() as u64;
        pending += documents.len();
        if pending >= commit_every {
            writer.commit()?;
            pending = 0;
        }
    }
    writer.commit()?;
    Ok(added)
}
