//! Keeps an index like a folder: adds, replaces and deletes what changed.
//!
//! Every document of a folder has its file and a hash of the file's content as attributes. They are committed with it, so the
//! index itself knows what it has: there is no other state that a crash could leave behind. The documents of a file are
//! always part of one commit. An index is kept like one folder; another one is refused, because its files would replace those
//! of the first.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::path::Path;

use engine::corpus::{
    Corpus, CorpusConfig, DocId, Document, FILE, FILE_HASH, FOLDER, FileHashes, FolderFile, OnError, files_below,
    folder_hash,
};
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
    /// Whether a folder without files empties the index. A disk that is not mounted looks like one.
    pub allow_empty: bool,
    /// Maximum number of files that may be gone since the last sync; `None` is no limit.
    pub max_delete: Option<usize>,
}

impl Default for SyncConfig {
    fn default() -> Self {
        let fill = FillConfig { commit_every: FillConfig::UPDATES, ..FillConfig::default() };
        SyncConfig { corpus: CorpusConfig::default(), fill, allow_empty: false, max_delete: None }
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
    /// Several if a later version of the file could be read in part only.
    hashes: BTreeSet<Option<String>>,
    folder: Option<String>,
    ids: BTreeSet<DocId>,
}

impl Known {
    fn is(&self, hash: &str) -> bool {
        self.hashes.iter().all(|own| own.as_deref() == Some(hash))
    }
}

/// What one look at a folder knows from those before: it spares the reading of files that are as they were.
#[derive(Clone, Debug, Default)]
pub struct Looks {
    hashes: FileHashes,
    /// Files that could not be read whole, with the hash of their content and the reasons.
    failed: BTreeMap<String, (String, Vec<String>)>,
}

/// Makes the index hold the documents of the files below `folder` as they are now. Documents that came from elsewhere stay.
/// Interrupted or killed, it keeps what it has committed, and the next call does the rest. Nothing changes if more files are gone
/// than `config` allows.
pub fn sync(
    index: &Index,
    embedder: &Embedder,
    folder: &Path,
    config: &SyncConfig,
    progress: &dyn Progress,
) -> Result<Synced> {
    sync_again(index, embedder, folder, config, &mut Looks::default(), progress)
}

/// [`sync`] for a folder that is looked at again and again.
pub fn sync_again(
    index: &Index,
    embedder: &Embedder,
    folder: &Path,
    config: &SyncConfig,
    looks: &mut Looks,
    progress: &dyn Progress,
) -> Result<Synced> {
    let synced = look(index, embedder, folder, config, looks, progress);
    // What was not committed is not done.
    if synced.as_ref().map_or(true, |synced| synced.filled.interrupted) {
        looks.failed.clear();
    }
    synced
}

fn look(
    index: &Index,
    embedder: &Embedder,
    folder: &Path,
    config: &SyncConfig,
    looks: &mut Looks,
    progress: &dyn Progress,
) -> Result<Synced> {
    config.fill.validate()?;
    if config.fill.duplicates.on_duplicate != OnDuplicate::Keep {
        return Err(Error::config(
            "sync keeps an index like a folder, so it adds every file; leave on_duplicate out, or run dedup after it",
        ));
    }
    let SyncConfig { fill, allow_empty, max_delete, .. } = *config;
    let config =
        CorpusConfig { file_hashes: true, on_error: OnError::Skip, unique_ids: false, ..config.corpus.clone() };
    progress.stage("looking at files", None);
    let (files, skipped) = files_below(folder, &config, &mut looks.hashes)?;
    // The writer follows the last commit, which nobody else changes from here on.
    let writer = index.writer()?;
    let known = known(index)?;
    check_folder(&known, folder, &files)?;
    let count = known.len();
    let here: HashSet<&str> = files.iter().map(|file| &*file.name).collect();
    // A file that could not be read is not gone.
    let is_missing = |name: &str| !here.contains(name) && (skipped.is_empty() || is_gone(&folder.join(name)));
    let (gone, mut known): (BTreeMap<_, _>, BTreeMap<_, _>) = known.into_iter().partition(|(name, _)| is_missing(name));
    check_gone(gone.len(), count, folder, files.is_empty() && !allow_empty, max_delete)?;
    let mut work = Work {
        writer,
        chunker: fill::chunker(index, Some(embedder))?,
        embeddings: Embeddings::Encode(embedder),
        folder,
        config,
        synced: Synced { skipped, ..Synced::default() },
        looks,
        waiting: Vec::new(),
        pending: 0,
        fill,
        progress,
    };
    progress.stage("indexing", None);
    for file in files {
        match known.remove(&file.name) {
            Some(had) if had.is(&file.hash) => work.synced.unchanged += 1,
            had => match work.file(&file, had) {
                Err(Error::Interrupted) => return work.interrupted(),
                other => other?,
            },
        }
    }
    for had in gone.values() {
        work.delete(had)?;
    }
    work.finish()
}

/// Whether there is no such file. A folder that cannot be read, or a disk that fails, is no proof of it.
fn is_gone(path: &Path) -> bool {
    matches!(std::fs::metadata(path), Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory))
}

/// Refuses to delete the documents of more files than is allowed: of `gone` of the `known` files.
fn check_gone(gone: usize, known: usize, folder: &Path, empty: bool, max_delete: Option<usize>) -> Result<()> {
    if gone > 0 && empty {
        return Err(Error::input(
            folder.display(),
            format!(
                "has no files: 0 of the {known} that the index has are here, and the documents of {gone} would be deleted. Nothing was \
                 changed. If its disk is not mounted, mount it; if the files were removed on purpose, set allow_empty"
            ),
        ));
    }
    match max_delete {
        Some(most) if gone > most => Err(Error::input(
            folder.display(),
            format!(
                "lost {gone} of the {known} files that the index has, and max_delete is {most}. Nothing was changed. If they were \
                 removed on purpose, set max_delete to {gone} or more"
            ),
        )),
        _ => Ok(()),
    }
}

/// Refuses a folder that the index is not of: at least half of the files that the index has are from this folder, or are here
/// under the same name with the same content, as they are if the folder was moved.
fn check_folder(known: &BTreeMap<String, Known>, folder: &Path, files: &[FolderFile]) -> Result<()> {
    let here: BTreeMap<&str, &str> = files.iter().map(|file| (&*file.name, &*file.hash)).collect();
    let name = folder_hash(folder)?;
    let is_own = |(file, had): (&String, &Known)| {
        let same = here.get(&**file).is_some_and(|hash| had.is(hash));
        same || had.folder.as_ref().is_none_or(|folder| *folder == name)
    };
    let own = known.iter().filter(|entry| is_own(*entry)).count();
    if 2 * own >= known.len() {
        return Ok(());
    }
    Err(Error::config(format!(
        "the index is kept like another folder than {}: it has {} files, of which {own} are here. Name that folder, or build an \
         index of this one",
        folder.display(),
        known.len()
    )))
}

/// The files that the index has documents of.
fn known(index: &Index) -> Result<BTreeMap<String, Known>> {
    let mut known: BTreeMap<String, Known> = BTreeMap::new();
    for (id, values) in index.text_attributes(&[FILE, FILE_HASH, FOLDER])? {
        let [file, hash, folder] = <[_; 3]>::try_from(values).expect("a value per name");
        let Some(file) = file else { continue };
        let entry = known.entry(file).or_default();
        entry.hashes.insert(hash);
        entry.folder = folder;
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
    looks: &'a mut Looks,
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
        // It is as it was when it could not be read.
        if let Some((_, reasons)) = self.looks.failed.get(&file.name).filter(|(hash, _)| *hash == file.hash) {
            self.synced.skipped.extend(reasons.iter().cloned());
            return Ok(());
        }
        let mut corpus = Corpus::open_documents(self.folder, vec![file.path.clone()], &self.config)?;
        corpus.keep_all_reasons();
        let documents: Vec<Document> = corpus.by_ref().collect::<Result<_>>()?;
        let reasons = corpus.take_reasons();
        self.looks.failed.remove(&file.name);
        let whole = reasons.is_empty();
        if !whole {
            self.looks.failed.insert(file.name.clone(), (file.hash.clone(), reasons.clone()));
            self.synced.skipped.extend(reasons);
        }
        // What cannot be read replaces nothing.
        if !whole && documents.is_empty() {
            return Ok(());
        }
        match &had {
            None => self.synced.added += 1,
            Some(_) => self.synced.replaced += 1,
        }
        let new: BTreeSet<&DocId> = documents.iter().map(|document| &document.id).collect();
        // A message that cannot be read any more is not gone, and may be any of them.
        let had = had.filter(|_| whole).map_or_else(BTreeSet::new, |had| had.ids);
        let gone: Vec<DocId> = had.into_iter().filter(|id| !new.contains(id)).collect();
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
