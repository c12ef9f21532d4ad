//! Sources of an index: documents are read once, and stored where they are needed twice.

use std::path::Path;
use std::sync::LazyLock;

use engine::corpus::{Corpus, CorpusConfig, Document};
use engine::index::Walk;
use engine::{Error, Progress, Result};

use super::spool::Spool;

/// The documents of an index that is built.
pub enum Source<'a> {
    /// A file or folder; `-` is standard input.
    Corpus(&'a Path, &'a CorpusConfig),
    Documents(Box<dyn Iterator<Item = Result<Document>> + 'a>),
    /// One commit of an index. A document without text came as a vector: its stored rerank vector is taken.
    Index(&'a Walk),
}

static DEFAULT_READING: LazyLock<CorpusConfig> = LazyLock::new(CorpusConfig::default);

impl<'a> From<&'a Path> for Source<'a> {
    /// A file or folder, read with the default options.
    fn from(path: &'a Path) -> Self {
        Source::Corpus(path, &DEFAULT_READING)
    }
}

impl<'a> From<&'a str> for Source<'a> {
    fn from(path: &'a str) -> Self {
        Path::new(path).into()
    }
}

impl<'a> From<&'a [Document]> for Source<'a> {
    fn from(documents: &'a [Document]) -> Self {
        Source::Documents(Box::new(documents.iter().cloned().map(Ok)))
    }
}

/// The documents of a source, read once.
pub(super) enum Reader<'a> {
    Corpus(Box<Corpus>),
    Documents(Box<dyn Iterator<Item = Result<Document>> + 'a>),
    Index(&'a Walk, usize),
}

impl<'a> Reader<'a> {
    pub fn open(source: Source<'a>) -> Result<Reader<'a>> {
        Ok(match source {
            Source::Corpus(path, config) => Reader::Corpus(Box::new(Corpus::open(path, config)?)),
            Source::Documents(documents) => Reader::Documents(documents),
            Source::Index(walk) => {
                // The new index has checksums of its own, which would hide damage.
                walk.check_files()?;
                Reader::Index(walk, 0)
            }
        })
    }

    /// The documents, to be read several times. `folder` takes those that exceed memory.
    pub fn again(&mut self, folder: &Path, progress: &dyn Progress) -> Result<Documents<'a>> {
        match self {
            Reader::Index(walk, _) => Ok(Documents::Index(walk)),
            once => Spool::read(once.by_ref(), folder, progress).map(Documents::Spooled),
        }
    }

    /// Reports rows that were skipped, and gives the first reasons.
    pub fn skipped(&self, progress: &dyn Progress) -> Vec<String> {
        let Reader::Corpus(corpus) = self else { return Vec::new() };
        report_skipped(corpus, progress);
        corpus.skipped().reasons().to_vec()
    }
}

impl Iterator for Reader<'_> {
    type Item = Result<Document>;

    fn next(&mut self) -> Option<Result<Document>> {
        match self {
            Reader::Corpus(corpus) => corpus.next(),
            Reader::Documents(documents) => documents.next(),
            Reader::Index(walk, next) => {
                let position = (*next < walk.len()).then_some(*next)?;
                *next += 1;
                Some(walk.get(position).map(Document::from))
            }
        }
    }
}

/// Documents that can be read several times: to train on and to index.
pub(super) enum Documents<'a> {
    Spooled(Spool),
    Index(&'a Walk),
}

impl Documents<'_> {
    pub fn iter(&self) -> Result<Box<dyn Iterator<Item = Result<Document>> + '_>> {
        match self {
            Documents::Spooled(spool) => spool.iter(),
            Documents::Index(walk) => Ok(Box::new(Reader::Index(walk, 0))),
        }
    }

    /// How many there are, where that is known.
    pub fn total(&self) -> Option<u64> {
        match self {
            Documents::Spooled(_) => None,
            Documents::Index(walk) => Some(walk.len() as u64),
        }
    }

    /// Whether documents without text have stored vectors.
    pub fn has_vectors(&self) -> bool {
        matches!(self, Documents::Index(_))
    }

    /// The stored vector of a document without text.
    pub fn stored(&self, position: usize) -> Result<Vec<f32>> {
        let Documents::Index(walk) = self else { unreachable!("asked of an index alone") };
        walk.vector(position)?.ok_or_else(|| match walk.get(position) {
            Ok(record) => Error::input(&record.id, "has no text and no stored vector; add it again with its text"),
            Err(error) => error,
        })
    }
}

/// Notes rows of a corpus that were skipped, with the first reasons.
pub fn report_skipped(corpus: &Corpus, progress: &dyn Progress) {
    let skipped = corpus.skipped();
    if skipped.count() > 0 {
        for reason in skipped.reasons() {
            progress.note(&format!("skipped: {reason}"));
        }
        progress.note(&format!("{} rows skipped in all", skipped.count()));
    }
}
