//! Documents and their embeddings into an index, commit by commit.

use std::ops::Range;

use engine::chunk::Chunker;
use engine::corpus::Document;
use engine::duplicates::{Arrivals, DuplicatePolicy, Repeats};
use engine::encoder::Embedder;
use engine::index::{Index, IndexWriter};
use engine::{Error, Matrix, Progress, Result};
use train::job::Vectors;

/// How documents are added.
#[derive(Clone, Copy, Debug)]
pub struct FillConfig {
    pub commit_every: usize,
    /// Documents or chunks embedded and added at a time. The default keeps every core busy and is small beside any memory; a
    /// server takes fewer, so that queries in between do not wait long.
    pub at_once: usize,
    /// What becomes of a document that repeats another. Unless all are kept, a commit has at most [`FillConfig::UPDATES`]
    /// documents: those since the last one are compared in memory.
    pub duplicates: DuplicatePolicy,
}

impl Default for FillConfig {
    fn default() -> Self {
        FillConfig { commit_every: 200_000, at_once: 4096, duplicates: DuplicatePolicy::default() }
    }
}

impl FillConfig {
    /// Documents per commit where a running index is updated: a crash loses less.
    pub const UPDATES: usize = 20_000;

    pub fn validate(&self) -> Result<()> {
        if self.commit_every == 0 {
            return Err(Error::option("commit_every", "is 0; take at least one document per commit"));
        }
        if self.at_once == 0 {
            return Err(Error::option("at_once", "is 0; add at least one document at a time"));
        }
        self.duplicates.validate()
    }
}

/// Documents split at a time.
const SPLIT: usize = 64;

/// Where the embeddings of documents come from.
pub enum Embeddings<'a> {
    /// The encoder gives them.
    Encode(&'a Embedder),
    /// The encoder gives those of documents that training did not see.
    Trained(Sampled<'a>),
    /// The user gives one per document, in order.
    Given(&'a Matrix),
}

/// The sample that a model was trained on, and the encoder of everything else.
pub struct Sampled<'a> {
    pub embedder: &'a Embedder,
    /// Positions of the sample among all documents, ascending. In an index with chunks, a position is that of a chunk.
    pub positions: &'a [usize],
    /// The sample as training read it, in the order of `positions`.
    pub vectors: &'a Vectors,
    /// The stored vector of the document at a position, for documents without text. `None`: every text is encoded.
    pub stored: Option<&'a dyn Fn(usize) -> Result<Vec<f32>>>,
}

impl Embeddings<'_> {
    pub(super) fn embedder(&self) -> Option<&Embedder> {
        match self {
            Embeddings::Encode(embedder) | Embeddings::Trained(Sampled { embedder, .. }) => Some(embedder),
            Embeddings::Given(_) => None,
        }
    }

    /// Embeddings of the texts at `start` and after, and how many of them the encoder cut.
    fn of(&self, start: usize, texts: &[&str], progress: &dyn Progress) -> Result<(Matrix, usize)> {
        match self {
            Embeddings::Encode(embedder) => {
                let (tokens, cut) = embedder.tokens_and_cut(texts)?;
                Ok((embedder.encode_tokens(&tokens, None, progress)?, count(&cut)))
            }
            Embeddings::Given(rows) => {
                if start + texts.len() > rows.rows() {
                    return Err(Error::input(
                        "vectors",
                        format!("there are {} rows for more documents; give one for each", rows.rows()),
                    ));
                }
                Ok((rows.select(&(start..start + texts.len()).collect::<Vec<_>>()), 0))
            }
            Embeddings::Trained(sampled) => sampled.of(start, texts, progress),
        }
    }
}

impl Sampled<'_> {
    fn of(&self, start: usize, texts: &[&str], progress: &dyn Progress) -> Result<(Matrix, usize)> {
        let known = |i: usize| self.positions.binary_search(&(start + i)).ok();
        let is_stored = |i: usize| self.stored.is_some() && texts[i].trim().is_empty();
        let new: Vec<&str> =
            (0..texts.len()).filter(|&i| known(i).is_none() && !is_stored(i)).map(|i| texts[i]).collect();
        let (encoded, mut cut) = match new.is_empty() {
            true => (Matrix::default(), 0),
            false => Embeddings::Encode(self.embedder).of(start, &new, progress)?,
        };
        progress.advance((texts.len() - new.len()) as u64);
        let (mut encoded, vectors) = (encoded.iter(), self.vectors);
        let mut all = Matrix::zeros(texts.len(), vectors.rows.cols());
        for i in 0..texts.len() {
            match (known(i), self.stored.filter(|_| is_stored(i))) {
                (Some(row), _) => {
                    cut += usize::from(vectors.cut[row]);
                    all.row_mut(i).copy_from_slice(vectors.rows.row(row));
                }
                (None, Some(stored)) => all.row_mut(i).copy_from_slice(&stored(start + i)?),
                (None, None) => {
                    let row = encoded.next().expect("an embedding for every new document");
                    all.row_mut(i).copy_from_slice(row);
                }
            }
        }
        Ok((all, cut))
    }
}

fn count(cut: &[bool]) -> usize {
    cut.iter().filter(|cut| **cut).count()
}

/// The result of [`fill`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filled {
    /// Documents added and committed; those that were skipped as duplicates are not among them.
    pub documents: usize,
    /// Texts that were encoded: documents, or their chunks.
    pub texts: usize,
    /// Texts of which the encoder took only the beginning.
    pub cut: usize,
    /// What became of documents that repeat another.
    pub repeats: Repeats,
    pub interrupted: bool,
}

impl Filled {
    /// Says how many texts were cut, and what to do about it; nothing where none was.
    pub fn report_cut(&self, index: &Index, progress: &dyn Progress) {
        if let Some(note) = cut_note(index, self.cut, self.texts) {
            progress.warn(&note);
        }
    }

    /// Says what became of documents that repeat another; nothing where there were none.
    pub fn report_repeats(&self, progress: &dyn Progress) {
        if let Some(note) = repeats_note(&self.repeats) {
            progress.note(&note);
        }
    }
}

fn repeats_note(repeats: &Repeats) -> Option<String> {
    let counts = [
        (repeats.skipped, "documents repeat another and were skipped"),
        (repeats.marked, "documents repeat another and have its id as duplicate_of"),
        (repeats.replaced, "documents were replaced by new ones that repeat them"),
    ];
    let said: Vec<String> = counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
    let first = repeats.documents.first()?;
    Some(format!(
        "{}; the first is {}, like {} with {:.3}",
        said.join(", "),
        first.id,
        first.duplicate_of,
        first.similarity
    ))
}

/// How many texts were cut, and what to do about it.
pub fn cut_note(index: &Index, cut: usize, texts: usize) -> Option<String> {
    let limit = index.model().config.embedding.as_ref().filter(|_| cut > 0)?.max_tokens;
    Some(match index.chunk() {
        None => format!(
            "{cut} of {texts} texts are longer than the {limit} tokens that the encoder takes: only their beginnings are \
             searched. Build the index with chunk to search all of each"
        ),
        Some(chunk) => format!(
            "{cut} of {texts} chunks are longer than the {limit} tokens that the encoder takes, and were cut there; build \
             the index with smaller chunks than {chunk}"
        ),
    })
}

/// A document and the byte ranges of its chunks.
pub(super) type Split = (Document, Vec<Range<usize>>);

/// Documents in groups that are embedded together, each with its chunks.
struct Groups<'a, I> {
    documents: I,
    at_once: usize,
    chunker: Option<Chunker<'a>>,
}

impl<I: Iterator<Item = Result<Document>>> Groups<'_, I> {
    /// At most `most` documents, and about `at_once` chunks. Empty at the end.
    fn next(&mut self, most: usize) -> Result<Vec<Split>> {
        let (mut group, mut chunks) = (Vec::new(), 0);
        while chunks < self.at_once && group.len() < most {
            let some = self.documents.by_ref().take(SPLIT.min(most - group.len()).min(self.at_once - chunks));
            let some: Vec<Document> = some.collect::<Result<_>>()?;
            if some.is_empty() {
                break;
            }
            let split = split(self.chunker.as_ref(), some);
            chunks += split.iter().map(|(_, ranges)| ranges.len()).sum::<usize>();
            group.extend(split);
        }
        Ok(group)
    }
}

/// Embeds and adds documents with their chunks.
pub(super) fn add(
    writer: &mut IndexWriter,
    group: &[Split],
    embeddings: &Embeddings,
    arrivals: Option<&mut Arrivals>,
    filled: &mut Filled,
    progress: &dyn Progress,
) -> Result<()> {
    // User vectors pass no encoder, which would check.
    if progress.interrupted() {
        return Err(Error::Interrupted);
    }
    let texts = group.iter().flat_map(|(document, chunks)| chunks.iter().map(|range| &document.text[range.clone()]));
    let texts: Vec<&str> = texts.collect();
    let (rows, cut) = embeddings.of(filled.texts, &texts, progress)?;
    let split: Vec<(&Document, Vec<Range<usize>>)> =
        group.iter().map(|(document, chunks)| (document, chunks.clone())).collect();
    let repeats = match arrivals {
        None => writer.add_chunks(&split, &rows).map(|()| Repeats::default())?,
        Some(arrivals) => arrivals.add(writer, &split, &rows, progress)?,
    };
    filled.texts += texts.len();
    filled.cut += cut;
    filled.documents += group.len() - repeats.skipped;
    filled.repeats.extend(repeats);
    Ok(())
}

/// The chunker of an index for an encoder; `None` if it splits no texts.
pub(super) fn chunker<'a>(index: &Index, embedder: Option<&'a Embedder>) -> Result<Option<Chunker<'a>>> {
    match (index.chunk(), embedder) {
        (Some(sizes), Some(embedder)) => Chunker::new(sizes, embedder).map(Some),
        _ => Ok(None),
    }
}

/// Splits documents; each is one chunk without a chunker.
pub(super) fn split(chunker: Option<&Chunker>, documents: Vec<Document>) -> Vec<Split> {
    let ranges = match chunker {
        Some(chunker) => chunker.split_all(&documents),
        None => documents.iter().map(|document| std::iter::once(0..document.text.len()).collect()).collect(),
    };
    documents.into_iter().zip(ranges).collect()
}

/// Adds documents, and commits now and then and at the end. Interrupted, it commits what it has.
pub fn fill(
    index: &Index,
    documents: impl Iterator<Item = Result<Document>>,
    embeddings: &Embeddings,
    config: FillConfig,
    progress: &dyn Progress,
) -> Result<Filled> {
    config.validate()?;
    let FillConfig { mut commit_every, at_once, duplicates } = config;
    let mut arrivals = Arrivals::new(index, &duplicates)?;
    if arrivals.is_some() {
        commit_every = commit_every.min(FillConfig::UPDATES);
    }
    let mut groups = Groups { documents, at_once, chunker: chunker(index, embeddings.embedder())? };
    let mut writer = index.writer()?;
    let (mut filled, mut pending) = (Filled::default(), 0);
    loop {
        // A group never exceeds what belongs to one commit.
        let group = groups.next(commit_every - pending)?;
        if group.is_empty() {
            break;
        }
        let documents = group.len();
        match add(&mut writer, &group, embeddings, arrivals.as_mut(), &mut filled, progress) {
            Err(Error::Interrupted) => {
                writer.commit(progress)?;
                return Ok(Filled { interrupted: true, ..filled });
            }
            other => other?,
        }
        pending += documents;
        if pending >= commit_every {
            writer.commit(progress)?;
            if let Some(arrivals) = &mut arrivals {
                arrivals.committed();
            }
            pending = 0;
        }
    }
    if let Embeddings::Given(rows) = embeddings
        && rows.rows() != filled.texts
    {
        return Err(Error::input(
            "vectors",
            format!("there are {} rows for {} documents; give one for each", rows.rows(), filled.texts),
        ));
    }
    writer.commit(progress)?;
    // Merges under way are waited for, so that the first search finds their codes packed.
    writer.close(progress)?;
    Ok(filled)
}
