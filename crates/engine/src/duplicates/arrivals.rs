//! New documents, compared with those of the index before they are added.
//!
//! The measure is that of [`super::find`], and so are the candidates: the nearest documents by code, those of the same code,
//! and those that share a drawn pair of words. A committed document comes from the last commit, a later one from memory.

use std::collections::{BTreeSet, HashMap, HashSet};

use rayon::prelude::*;
use tantivy::DocAddress;

use super::Measure;
use super::lately::Lately;
use super::likeness::Likeness;
use super::pairs::{LOOKED_UP, MAX_EQUAL, MAX_SHARED};
use super::policy::{DUPLICATE_OF, DuplicatePolicy, OnDuplicate, Repeat, Repeats};
use super::shingles::Shingles;
use crate::corpus::{DocId, Document, Value};
use crate::index::{Index, IndexWriter, Reader, RerankVectors, SplitDocument, Store};
use crate::model::DistanceTable;
use crate::search::TopKRequest;
use crate::{Error, Matrix, Progress, Result};

/// New documents compared at a time. Their candidates are in memory together.
const PART: usize = 256;

/// Adds documents to an index, and finds those that repeat another first. It belongs to one writer, and holds what is compared
/// of the documents since its last commit. After an error it must not be used again.
pub struct Arrivals {
    action: OnDuplicate,
    measure: Measure,
    threshold: f32,
    neighbours: usize,
    rerank_vectors: RerankVectors,
    texts: bool,
    /// The last commit, read at the first change after it.
    reader: Option<Reader>,
    lately: Lately,
}

/// A document that a new one repeats.
struct Alike {
    similarity: f32,
    place: Place,
    id: DocId,
}

/// Where a document is. The order is that of insertion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Committed(u64),
    Late(u32),
}

/// What becomes of a batch of new documents.
struct Verdict {
    /// Whether each is stored at the end of the batch.
    stored: Vec<bool>,
    /// Those that are stored with another attribute than they came with.
    changed: HashMap<usize, Document>,
    deleted: Vec<DocId>,
    repeats: Repeats,
}

impl Arrivals {
    /// `None` if every document is kept, so that nothing needs to be compared.
    pub fn new(index: &Index, policy: &DuplicatePolicy) -> Result<Option<Arrivals>> {
        policy.validate()?;
        if policy.on_duplicate == OnDuplicate::Keep {
            return Ok(None);
        }
        let measure = Measure::of(index, &policy.like)?;
        let texts = index.store() == Store::All;
        if policy.on_duplicate == OnDuplicate::Mark && !texts {
            return Err(Error::config(
                "on_duplicate mark writes an attribute, and the index stores none; build it with store all, or skip duplicates",
            ));
        }
        Ok(Some(Arrivals {
            action: policy.on_duplicate,
            measure,
            threshold: measure.threshold_or(policy.like.threshold),
            neighbours: policy.like.neighbours,
            rerank_vectors: index.rerank_vectors(),
            texts,
            reader: None,
            lately: Lately::default(),
        }))
    }

    /// Forgets the documents since the last commit. Call it after each commit of the writer.
    pub fn committed(&mut self) {
        self.reader = None;
        self.lately = Lately::default();
    }

    /// Adds documents with the byte ranges of their chunks and embeddings `[chunks of all documents, inputs]`. Each is compared
    /// with the documents of the index and with those before it. Nothing is written if it is interrupted.
    pub fn add(
        &mut self,
        writer: &mut IndexWriter,
        documents: &[SplitDocument],
        embeddings: &Matrix,
        progress: &dyn Progress,
    ) -> Result<Repeats> {
        let chunks: usize = documents.iter().map(|(_, chunks)| chunks.len()).sum();
        if chunks != embeddings.rows() || documents.iter().any(|(_, chunks)| chunks.is_empty()) {
            // The writer says what is wrong.
            writer.add_chunks(documents, embeddings)?;
            return Ok(Repeats::default());
        }
        let reader = match self.reader.take() {
            Some(reader) => reader,
            None => writer.reader()?,
        };
        let mut verdict = Verdict {
            stored: Vec::with_capacity(documents.len()),
            changed: HashMap::new(),
            deleted: Vec::new(),
            repeats: Repeats::default(),
        };
        // The first row of every document among the embeddings, and the end.
        let mut rows = vec![0];
        rows.extend(documents.iter().scan(0, |end, (_, chunks)| {
            *end += chunks.len();
            Some(*end)
        }));
        let begin = self.lately.rows.len() as u32;
        for (part, first) in documents.chunks(PART).zip((0..).step_by(PART)) {
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
            let part: Vec<&Document> = part.iter().map(|(document, _)| *document).collect();
            let alike = self.compare(&reader, &part, &embeddings.select(&rows[first..first + part.len()]))?;
            for (document, alike) in part.iter().zip(alike) {
                self.decide(&reader, document, alike, begin, &mut verdict)?;
            }
        }
        self.write(writer, documents, embeddings, &rows, begin, &mut verdict)?;
        self.reader = Some(reader);
        Ok(verdict.repeats)
    }

    /// The documents that each of some new ones is like, and its place among those since the last commit.
    fn compare(&mut self, reader: &Reader, part: &[&Document], embeddings: &Matrix) -> Result<Vec<(u32, Vec<Alike>)>> {
        let mut vectors = self.rounded(part, embeddings)?;
        let model = reader.model();
        let codes = model.encode(embeddings)?;
        let tables = model.tables(&vectors, model.config.distance)?;
        vectors.normalize_rows();
        let decide_vectors = self.measure == Measure::Vectors;
        let vector = |i: usize| if decide_vectors { vectors.row(i).to_vec() } else { Vec::new() };
        let own: Vec<Likeness> =
            (0..part.len()).into_par_iter().map(|i| Likeness::new(self.measure, &part[i].text, vector(i))).collect();
        let undecided = self.lately.rows.len() as u32;
        let width = model.shape().code_bytes();
        for ((document, likeness), code) in part.iter().zip(&own).zip(codes.chunks_exact(width)) {
            self.lately.push(&document.id, likeness.clone(), code);
        }
        let committed = self.committed_candidates(reader, part, &tables)?;
        let known = self.read(reader, &committed)?;
        let (measure, threshold, neighbours) = (self.measure, self.threshold, self.neighbours);
        let (lately, is_like) = (&self.lately, |similarity: &f32| *similarity >= threshold);
        let of = |i: usize| -> Result<(u32, Vec<Alike>)> {
            let (row, mut alike) = (undecided + i as u32, Vec::new());
            for address in &committed[i] {
                let similarity = Some(own[i].similarity(&known[address], measure)).filter(is_like);
                let Some(similarity) = similarity else { continue };
                let (id, place) = (reader.id(*address)?, Place::Committed(reader.sequence(*address)));
                alike.push(Alike { similarity, place, id });
            }
            for other in lately.candidates(row, &tables[i], neighbours, undecided) {
                let late = &lately.rows[other as usize];
                if let Some(similarity) = Some(own[i].similarity(&late.likeness, measure)).filter(is_like) {
                    alike.push(Alike { similarity, place: Place::Late(other), id: late.id.clone() });
                }
            }
            alike.sort_by(|a, b| b.similarity.total_cmp(&a.similarity).then(a.place.cmp(&b.place)));
            Ok((row, alike))
        };
        (0..part.len()).into_par_iter().map(of).collect()
    }

    /// Embeddings as they come back from storage, so that a commit between two documents changes nothing.
    fn rounded(&self, part: &[&Document], embeddings: &Matrix) -> Result<Matrix> {
        let mut rounded = Vec::with_capacity(embeddings.as_slice().len());
        for (document, embedding) in part.iter().zip(embeddings.iter()) {
            let refuse = |problem: String| Error::input(document.id.to_string(), problem);
            rounded.extend(self.rerank_vectors.rounded(embedding).map_err(refuse)?);
        }
        Ok(Matrix::from_vec(embeddings.cols(), rounded))
    }

    /// Committed documents that may be like each new one, as their first rows.
    fn committed_candidates(
        &self,
        reader: &Reader,
        part: &[&Document],
        tables: &[DistanceTable],
    ) -> Result<Vec<BTreeSet<DocAddress>>> {
        let nearest = |tables: &[DistanceTable], k: usize| -> Result<Vec<Vec<DocAddress>>> {
            let found = reader.nearest(tables, &TopKRequest::from(k), None)?;
            Ok(found.into_iter().map(|(hits, _)| hits.iter().map(|hit| hit.address).collect()).collect())
        };
        let mut by_code = nearest(tables, self.neighbours)?;
        // Where all of them have one code, there may be more of it.
        for (hits, table) in by_code.iter_mut().zip(tables).filter(|(hits, _)| hits.len() == self.neighbours) {
            if reader.code(hits[0])? == reader.code(hits[hits.len() - 1])? {
                *hits = nearest(std::slice::from_ref(table), self.neighbours + MAX_EQUAL)?.remove(0);
            }
        }
        let of = |(document, hits): (&&Document, Vec<DocAddress>)| -> Result<BTreeSet<DocAddress>> {
            let mut found: BTreeSet<DocAddress> = hits.into_iter().map(|address| reader.first(address)).collect();
            if self.measure != Measure::Vectors {
                for words in Shingles::drawn(&document.text, LOOKED_UP) {
                    let having = reader.having_words(&words, MAX_SHARED)?;
                    found.extend(having.into_iter().map(|address| reader.first(address)));
                }
            }
            Ok(found)
        };
        part.par_iter().zip(by_code).map(of).collect()
    }

    /// What is compared of committed documents, each read once, in the order in which they are stored.
    fn read(&self, reader: &Reader, candidates: &[BTreeSet<DocAddress>]) -> Result<HashMap<DocAddress, Likeness>> {
        let distinct: BTreeSet<DocAddress> = candidates.iter().flatten().copied().collect();
        let distinct: Vec<DocAddress> = distinct.into_iter().collect();
        let read = |addresses: &[DocAddress]| -> Result<Vec<(DocAddress, Likeness)>> {
            let mut vectors = Matrix::default();
            if self.measure == Measure::Vectors {
                let mut rows = Vec::new();
                reader.read_rerank_vectors(addresses.iter().copied(), |vector| rows.extend_from_slice(vector))?;
                vectors = Matrix::from_vec(reader.model().inputs(), rows);
                vectors.normalize_rows();
            }
            let likeness = |(i, &address): (usize, &DocAddress)| {
                let text = if self.texts { reader.text(address)?.unwrap_or_default() } else { String::new() };
                let vector = if vectors.rows() > 0 { vectors.row(i).to_vec() } else { Vec::new() };
                Ok((address, Likeness::new(self.measure, &text, vector)))
            };
            addresses.iter().enumerate().map(likeness).collect()
        };
        let read: Vec<_> = distinct.par_chunks(PART).map(read).collect::<Result<_>>()?;
        Ok(read.into_iter().flatten().collect())
    }

    /// Decides about one document. `begin` is the first row of this batch.
    fn decide(
        &mut self,
        reader: &Reader,
        document: &Document,
        (row, mut alike): (u32, Vec<Alike>),
        begin: u32,
        verdict: &mut Verdict,
    ) -> Result<()> {
        let own = document.id.to_string();
        alike.retain(|other| match other.place {
            _ if other.id.to_string() == own => false,
            Place::Committed(_) => !self.lately.is_gone(&other.id),
            Place::Late(row) => self.lately.rows[row as usize].alive,
        });
        let repeat = |other: &Alike| Repeat {
            id: document.id.clone(),
            duplicate_of: other.id.clone(),
            similarity: other.similarity,
        };
        debug_assert_eq!(verdict.stored.len() as u32, row - begin);
        verdict.stored.push(true);
        match (self.action, alike.first()) {
            (OnDuplicate::Skip, Some(first)) if !self.is_known(reader, &document.id)? => {
                verdict.stored[(row - begin) as usize] = false;
                verdict.repeats.skipped += 1;
                verdict.repeats.documents.push(repeat(first));
                return Ok(());
            }
            (OnDuplicate::Mark, first) => {
                if let Some(first) = first {
                    verdict.repeats.marked += 1;
                    verdict.repeats.documents.push(repeat(first));
                }
                let mark = first.map(|first| Value::Text(first.id.to_string()));
                if let Some(changed) = marked(document, mark) {
                    verdict.changed.insert((row - begin) as usize, changed);
                }
            }
            (OnDuplicate::Replace, Some(_)) => {
                for other in &alike {
                    self.lately.delete(&other.id);
                    verdict.deleted.push(other.id.clone());
                    verdict.repeats.replaced += 1;
                    verdict.repeats.documents.push(repeat(other));
                }
            }
            _ => {}
        }
        self.lately.accept(row);
        Ok(())
    }

    fn is_known(&self, reader: &Reader, id: &DocId) -> Result<bool> {
        Ok(self.lately.has(id) || !self.lately.is_gone(id) && reader.find(id)?.is_some())
    }

    /// Deletes what is replaced, then adds the documents of the batch that are left of it.
    fn write(
        &self,
        writer: &mut IndexWriter,
        documents: &[SplitDocument],
        embeddings: &Matrix,
        rows: &[usize],
        begin: u32,
        verdict: &mut Verdict,
    ) -> Result<()> {
        // A later document of the batch may have replaced one, or have its id.
        for (stored, late) in verdict.stored.iter_mut().zip(&self.lately.rows[begin as usize..]) {
            *stored &= late.alive;
        }
        let mut seen = HashSet::new();
        for id in verdict.deleted.iter().filter(|id| seen.insert(id.to_string())) {
            writer.delete(id)?;
        }
        if verdict.stored.iter().all(|stored| *stored) && verdict.changed.is_empty() {
            return writer.add_chunks(documents, embeddings);
        }
        let kept: Vec<usize> = (0..documents.len()).filter(|&i| verdict.stored[i]).collect();
        let document = |i: usize| {
            let (document, chunks) = &documents[i];
            (verdict.changed.get(&i).unwrap_or(document), chunks.clone())
        };
        let split: Vec<SplitDocument> = kept.iter().map(|&i| document(i)).collect();
        let kept: Vec<usize> = kept.iter().flat_map(|&i| rows[i]..rows[i + 1]).collect();
        writer.add_chunks(&split, &embeddings.select(&kept))
    }
}

/// The document with the mark, or without the one it came with; `None` if it stays as it is.
fn marked(document: &Document, mark: Option<Value>) -> Option<Document> {
    let had = document.attributes.iter().any(|(name, _)| name == DUPLICATE_OF);
    if mark.is_none() && !had {
        return None;
    }
    let mut document = document.clone();
    document.attributes.retain(|(name, _)| name != DUPLICATE_OF);
    document.attributes.extend(mark.map(|mark| (DUPLICATE_OF.to_owned(), mark)));
    Some(document)
}
