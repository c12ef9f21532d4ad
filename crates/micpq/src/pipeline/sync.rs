//! Keeps an index like a folder: adds, replaces and deletes what changed.
//!
//! Every document of a folder has its file and a hash of the file's content as attributes. They are committed with it, so the
//! index itself knows what it has: there is no other state that a crash could leave behind. The documents of a file are
//! always part of one commit.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use engine::corpus::{Corpus, CorpusConfig, DocId, Document, FILE, FILE_HASH, FolderFile, OnError, files_below};
use engine::duplicates::OnDuplicate;
use engine::encoder::Embedder;
use engine::index::{Index, IndexWriter};
use engine::{Error, Progress, Result};

use super::fill::{self, Embeddings, FillConfig, Filled};

/// How [`sync`] reads and adds files. Hashes, skipping and ids are its own affair.
#[derive(Clone, Debug)]
pub struct SyncConfig {
    pub corpus: CorpusConfig,
    pub fill: FillConfig,
}

impl Default for SyncConfig {
    fn default() -> Self {
        let fill = FillConfig { commit_every: FillConfig::UPDATES, ..FillConfig::default() };
        SyncConfig { corpus: CorpusConfig::default(), fill }
    }
}

/// The result of [`sync`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Synced {
    /// Files that were not in the index.
    pub added: usize,
    /// Files that had changed.
    pub replaced: usize,
    /// Files that are gone.
    pub deleted: usize,
    /// Files that are as they were.
    pub unchanged: usize,
    /// Files and messages that could not be read, with the reason. What the index had of them stays.
    pub skipped: Vec<String>,
    pub filled: Filled,
}

impl Synced {
    /// Whether the index was changed.
    pub fn is_changed(&self) -> bool {
        self.added + self.replaced + self.deleted > 0
    }
}

/// A file as the index has it.
#[derive(Default)]
struct Known {
    hash: Option<String>,
    ids: BTreeSet<DocId>,
}

/// Makes the index hold the documents of the files below `folder` as they are now. Documents that came from elsewhere stay.
/// Interrupted or killed, it keeps what it has committed, and the next call does the rest.
pub fn sync(
    index: &Index,
    embedder: &Embedder,
    folder: &Path,
    config: &SyncConfig,
    progress: &dyn Progress,
) -> Result<Synced> {
    config.fill.validate()?;
    if config.fill.duplicates.on_duplicate != OnDuplicate::Keep {
        return Err(Error::config(
            "sync keeps an index like a folder, so it adds every file; leave on_duplicate out, or run dedup after it",
        ));
    }
    let fill = config.fill;
    let config =
        CorpusConfig { file_hashes: true, on_error: OnError::Skip, unique_ids: false, ..config.corpus.clone() };
    progress.stage("looking at files", None);
    let (files, skipped) = files_below(folder, &config)?;
    // The writer follows the last commit, which nobody else changes from here on.
    let writer = index.writer()?;
    let mut known = known(index)?;
    let mut work = Work {
        writer,
        chunker: fill::chunker(index, Some(embedder))?,
        embeddings: Embeddings::Encode(embedder),
        folder,
        config,
        synced: Synced { skipped, ..Synced::default() },
        waiting: Vec::new(),
        pending: 0,
        fill,
        progress,
    };
    progress.stage("indexing", None);
    // A file that could not be read is not gone.
    let unreadable = !work.synced.skipped.is_empty();
    for file in files {
        match known.remove(&file.name) {
            Some(had) if had.hash.as_deref() == Some(&file.hash) => work.synced.unchanged += 1,
            had => match work.file(&file, had) {
                Err(Error::Interrupted) => return work.interrupted(),
                other => other?,
            },
        }
    }
    for (name, had) in known {
        if !unreadable || !folder.join(&name).exists() {
            work.delete(&had)?;
        }
    }
    work.finish()
}

/// The files that the index has documents of.
fn known(index: &Index) -> Result<BTreeMap<String, Known>> {
    let mut known: BTreeMap<String, Known> = BTreeMap::new();
    for (id, mut values) in index.text_attributes(&[FILE, FILE_HASH])? {
        let hash = values.pop().flatten();
        let Some(file) = values.pop().flatten() else { continue };
        let entry = known.entry(file).or_default();
        entry.hash = hash;
        entry.ids.insert(id);
    }
    Ok(known)
}

struct Work<'a> {
    writer: IndexWriter,
    chunker: Option<engine::chunk::Chunker<'a>>,
    embeddings: Embeddings<'a>,
    folder: &'a Path,
    config: CorpusConfig,
    synced: Synced,
    /// Documents of whole files that are not embedded yet, and the ids that go with them.
    waiting: Vec<Document>,
    /// Documents since the last commit.
    pending: usize,
    fill: FillConfig,
    progress: &'a dyn Progress,
}

impl Work<'_> {
    /// Reads a file that is new or changed.
    fn file(&mut self, file: &FolderFile, had: Option<Known>) -> Result<()> {
        let mut corpus = Corpus::open_documents(self.folder, vec![file.path.clone()], &self.config)?;
        let documents: Vec<Document> = corpus.by_ref().collect::<Result<_>>()?;
        self.synced.skipped.extend(corpus.skipped().reasons().iter().cloned());
        let whole = corpus.skipped().count() == 0 || !documents.is_empty();
        // What cannot be read replaces nothing.
        if !whole {
            return Ok(());
        }
        match &had {
            None => self.synced.added += 1,
            Some(_) => self.synced.replaced += 1,
        }
        let new: BTreeSet<&DocId> = documents.iter().map(|document| &document.id).collect();
        let gone: Vec<DocId> =
            had.map_or_else(BTreeSet::new, |had| had.ids).into_iter().filter(|id| !new.contains(id)).collect();
        self.waiting.extend(documents);
        if self.waiting.len() >= self.fill.at_once.min(self.fill.commit_every) || !gone.is_empty() {
            self.flush()?;
        }
        for id in gone {
            self.writer.delete(&id)?;
        }
        self.commit_if_due()
    }

    fn delete(&mut self, had: &Known) -> Result<()> {
        self.synced.deleted += 1;
        for id in &had.ids {
            self.writer.delete(id)?;
        }
        self.pending += had.ids.len();
        Ok(())
    }

    /// Embeds and adds the documents that wait.
    fn flush(&mut self) -> Result<()> {
        let waiting = std::mem::take(&mut self.waiting);
        let count = waiting.len();
        let group = fill::split(self.chunker.as_ref(), waiting);
        for some in group.chunks(self.fill.at_once) {
            fill::add(&mut self.writer, some, &self.embeddings, None, &mut self.synced.filled, self.progress)?;
        }
        self.pending += count;
        Ok(())
    }

    /// Never between two documents of a file.
    fn commit_if_due(&mut self) -> Result<()> {
        if self.pending >= self.fill.commit_every {
            self.writer.commit(self.progress)?;
            self.pending = 0;
        }
        Ok(())
    }

    /// Keeps what is committed.
    fn interrupted(mut self) -> Result<Synced> {
        self.writer.rollback()?;
        self.synced.filled.interrupted = true;
        Ok(self.synced)
    }

    fn finish(mut self) -> Result<Synced> {
        match self.flush() {
            Err(Error::Interrupted) => return self.interrupted(),
            other => other?,
        }
        self.writer.commit(self.progress)?;
        self.writer.close(self.progress)?;
        Ok(self.synced)
    }
}
