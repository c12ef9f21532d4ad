//! The write queue of an index. Writes that wait together share a commit, and are answered when it is on disk.

pub mod scope;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use engine::chunk::Chunker;
use engine::corpus::{DocId, Document, Value};
use engine::duplicates::{Arrivals, DuplicatePolicy, OnDuplicate, Repeat, Repeats};
use engine::encoder::Embedder;
use engine::index::{Index, IndexWriter, RerankVectors};
use engine::query::Searcher;
use engine::{Error, Matrix, NoProgress, Result};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use utoipa::ToSchema;

use scope::Scope;

use crate::bounds::slices;
use crate::config::ServeConfig;
use crate::id::Id;
use crate::metrics::Metrics;
use crate::problem::{self, Code, Problem};

/// A document to store, with its embedding if the caller computed it.
pub type DocumentWithVector = (Document, Option<Vec<f32>>);

/// The change of one request. It is executed completely or not at all.
pub enum Change {
    /// Adds documents. They replace documents with the same ids. The policy says what becomes of duplicates.
    Upsert(Vec<DocumentWithVector>, DuplicatePolicy),
    Delete(Vec<DocId>),
    /// Deletes the documents that match a filter.
    DeleteWhere(String),
}

impl Change {
    fn len(&self) -> usize {
        match self {
            Change::Upsert(documents, _) => documents.len(),
            Change::Delete(ids) => ids.len(),
            Change::DeleteWhere(_) => 1,
        }
    }

    /// Whether it is a commit of its own: a filter counts committed documents, and duplicates are looked for among them.
    fn is_alone(&self) -> bool {
        match self {
            Change::Upsert(_, policy) => policy.on_duplicate != OnDuplicate::Keep,
            Change::Delete(_) => false,
            Change::DeleteWhere(_) => true,
        }
    }

    /// Approximate size in memory.
    pub fn bytes(&self) -> usize {
        let attribute = |(name, value): &(String, Value)| name.len() + value_bytes(value);
        match self {
            Change::Upsert(new, _) => new
                .iter()
                .map(|(document, vector)| {
                    size_of::<DocumentWithVector>()
                        + document.text.len()
                        + vector.as_ref().map_or(0, |vector| 4 * vector.len())
                        + document.labels.iter().map(String::len).sum::<usize>()
                        + document.attributes.iter().map(attribute).sum::<usize>()
                })
                .sum(),
            Change::Delete(ids) => ids.len() * size_of::<DocId>(),
            Change::DeleteWhere(filter) => filter.len(),
        }
    }
}

fn value_bytes(value: &Value) -> usize {
    size_of::<Value>()
        + match value {
            Value::Text(text) => text.len(),
            Value::Texts(texts) => texts.iter().map(String::len).sum(),
            _ => 0,
        }
}

/// The result of a change. It is on disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
#[schema(as = Changed)]
pub struct Done {
    /// Number of documents added, replaced or deleted. Skipped duplicates do not count.
    pub changed: usize,
    /// Number of documents in the index after the commit.
    pub documents: usize,
    /// Number of texts of this change that are longer than the encoder takes: only their beginnings are searched. An index
    /// created with `chunk` searches all of each.
    pub cut: usize,
    /// What became of duplicates, if `on_duplicate` was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duplicates: Option<Duplicated>,
}

/// What became of new documents that repeat another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Duplicated {
    /// Number of new documents that were left out.
    pub skipped: usize,
    /// Number of new documents that were added with the attribute `duplicate_of`.
    pub marked: usize,
    /// Number of documents that new ones replaced.
    pub replaced: usize,
    /// The first 1,000 of them.
    pub documents: Vec<DuplicateOf>,
}

/// A new document that repeats another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DuplicateOf {
    pub id: Id,
    /// The most similar document. A document that replaces several has an entry for each.
    pub duplicate_of: Id,
    pub similarity: f32,
}

impl From<Repeats> for Duplicated {
    fn from(repeats: Repeats) -> Duplicated {
        let Repeats { skipped, marked, replaced, documents } = repeats;
        let one = |Repeat { id, duplicate_of, similarity }: Repeat| DuplicateOf {
            id: Id(id),
            duplicate_of: Id(duplicate_of),
            similarity,
        };
        Duplicated { skipped, marked, replaced, documents: documents.into_iter().map(one).collect() }
    }
}

impl Duplicated {
    /// Adds those of a later write.
    pub fn extend(&mut self, later: Duplicated) {
        self.skipped += later.skipped;
        self.marked += later.marked;
        self.replaced += later.replaced;
        self.documents.extend(later.documents);
        self.shorten();
    }

    fn shorten(&mut self) {
        self.documents.truncate(Repeats::MAX_TOLD);
    }
}

/// Work that runs on the writer thread between two commits.
type Exclusive = Box<dyn FnOnce(&mut WriterThread) + Send>;

enum Message {
    Write(Request),
    Exclusive(Exclusive),
}

/// Counts the bytes of a write until it is committed. Its caller may disconnect earlier, but its memory stays in use.
struct QueuedBytes(Arc<AtomicUsize>, usize);

impl Drop for QueuedBytes {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::SeqCst);
    }
}

/// The state of the writer thread.
pub struct WriterThread {
    searcher: Box<dyn Fn() -> Arc<Searcher> + Send>,
    writer: Option<IndexWriter>,
    /// Changes since a job asked to record them.
    changed: Option<Vec<Changed>>,
}

pub enum Changed {
    Ids(Vec<DocId>),
    /// Documents that match this filter.
    Where(String),
}

impl WriterThread {
    pub fn index(&self) -> Index {
        self.searcher().index().clone()
    }

    pub fn searcher(&self) -> Arc<Searcher> {
        (self.searcher)()
    }

    /// Records changes from now on. Until [`WriterThread::take_changes`] the writer lock is held, so that no other program
    /// makes changes that are not recorded.
    pub fn record_changes(&mut self) -> Result<()> {
        self.writer()?;
        self.changed = Some(Vec::new());
        Ok(())
    }

    /// Stops recording and returns the changes.
    pub fn take_changes(&mut self) -> Vec<Changed> {
        self.changed.take().unwrap_or_default()
    }

    /// The writer of the current index, opened on first use.
    pub fn writer(&mut self) -> Result<&mut IndexWriter> {
        let index = self.index();
        // Another index may have taken the place of the one that the writer belongs to.
        if self.writer.as_ref().is_some_and(|writer| !writer.index().is_same(&index)) {
            self.discard_writer();
        }
        if self.writer.is_none() {
            self.writer = Some(index.writer()?);
        }
        Ok(self.writer.as_mut().expect("set above"))
    }

    /// Releases the writer lock. Waits for running merges.
    pub fn release(&mut self) {
        let Some(writer) = self.writer.take() else { return };
        if let Some(Err(error)) = catch_panic(|| writer.close(&NoProgress)) {
            tracing::warn!(%error, "cannot close the writer; committed documents are safe");
        }
    }

    /// Discards a writer after a failure. The next write opens another.
    fn discard_writer(&mut self) {
        let writer = self.writer.take();
        catch_panic(|| drop(writer));
    }

    /// Narrows a change to its scope, by the last commit.
    fn apply(&mut self, scope: &Scope, change: &mut Change) -> problem::Answer<()> {
        let failed = Problem::of(Code::BadDocument);
        // Another program may have committed before the writer was opened.
        self.writer().and_then(|writer| writer.next_sequence()).map_err(failed)?;
        scope.apply(&self.index(), change)
    }

    /// Applies changes in one commit.
    fn commit(&mut self, changes: &[&Change]) -> Result<Vec<Done>> {
        let searcher = self.searcher();
        if self.changed.is_some() && searcher.index().rerank_vectors() == RerankVectors::None {
            // The job could not encode it with the new model.
            if let Some((document, _)) = upserts(changes).find(|(d, _)| d.text.trim().is_empty()) {
                return Err(Error::input(
                    &document.id,
                    "has no text, and this index stores no vectors, so that the running training would lose it; \
                     send it with its text, or after the job",
                ));
            }
        }
        let split = split(&searcher, changes)?;
        let texts: Vec<&str> = upserts(changes).zip(&split).flat_map(|(new, chunks)| texts_of(new, chunks)).collect();
        let (encoded, cut) = match texts.is_empty() {
            true => (Matrix::default(), Vec::new()),
            false => encode(searcher.embedder(&NoProgress)?, &texts)?,
        };
        let (mut encoded, mut cut, mut split) = (encoded.iter(), cut.into_iter(), split.into_iter());
        let index = searcher.index();
        let inputs = index.model().inputs();
        let mut done = Vec::with_capacity(changes.len());
        let writer = self.writer()?;
        for change in changes {
            let (mut cut_here, mut duplicates) = (0, None);
            let changed = match change {
                Change::Upsert(new, policy) => {
                    let mut rows = Vec::with_capacity(new.len() * inputs);
                    let mut documents = Vec::with_capacity(new.len());
                    for (document, vector) in new {
                        let chunks = split.next().expect("the chunks of every document");
                        match vector {
                            Some(vector) => rows.extend_from_slice(vector),
                            None => {
                                encoded.by_ref().take(chunks.len()).for_each(|row| rows.extend_from_slice(row));
                                cut_here += cut.by_ref().take(chunks.len()).filter(|cut| *cut).count();
                            }
                        }
                        documents.push((document, chunks));
                    }
                    let rows = Matrix::from_vec(inputs, rows);
                    match Arrivals::new(index, policy)? {
                        None => writer.add_chunks(&documents, &rows)?,
                        Some(mut arrivals) => {
                            duplicates = Some(arrivals.add(writer, &documents, &rows, &NoProgress)?);
                        }
                    }
                    new.len() - duplicates.as_ref().map_or(0, |repeats| repeats.skipped)
                }
                Change::Delete(ids) => {
                    let mut deleted = 0;
                    for id in ids {
                        deleted += usize::from(writer.delete(id)?);
                    }
                    deleted
                }
                Change::DeleteWhere(filter) => writer.delete_where(filter)?,
            };
            done.push(Done { changed, documents: 0, cut: cut_here, duplicates: duplicates.map(Duplicated::from) });
        }
        let documents = writer.commit(&NoProgress)?;
        done.iter_mut().for_each(|d| d.documents = documents);
        if let Some(changed) = &mut self.changed {
            // Those that new documents replaced, too.
            let repeats = done.iter().flat_map(|done| &done.duplicates).flat_map(|d| &d.documents);
            let replaced: Vec<DocId> = repeats.map(|repeat| repeat.duplicate_of.0.clone()).collect();
            if !replaced.is_empty() {
                changed.push(Changed::Ids(replaced));
            }
            changed.extend(changes.iter().map(|change| match change {
                Change::Upsert(new, _) => Changed::Ids(new.iter().map(|(d, _)| d.id.clone()).collect()),
                Change::Delete(ids) => Changed::Ids(ids.clone()),
                Change::DeleteWhere(filter) => Changed::Where(filter.clone()),
            }));
        }
        done.iter_mut().flat_map(|done| &mut done.duplicates).for_each(Duplicated::shorten);
        Ok(done)
    }

    /// Returns to the last commit after a failure. Discards a writer that cannot.
    fn rollback(&mut self) {
        let Some(writer) = &mut self.writer else { return };
        match catch_panic(|| writer.rollback()) {
            Some(Ok(())) => return,
            Some(Err(error)) => tracing::warn!(%error, "cannot roll back; the next write opens another writer"),
            None => {}
        }
        self.discard_writer();
    }
}

/// The result of the work, or `None` if it panics. Libraries may panic if the disk is full or descriptors run out.
fn catch_panic<T>(work: impl FnOnce() -> T) -> Option<T> {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    if result.is_err() {
        tracing::error!("a panic on the writer thread; it continues");
    }
    result.ok()
}

/// Encodes texts in slices, so that queries get the cores in between. Says which texts were cut.
fn encode(embedder: &Embedder, texts: &[&str]) -> Result<(Matrix, Vec<bool>)> {
    let mut rows = Vec::with_capacity(texts.len() * embedder.width());
    let mut all_cut = Vec::with_capacity(texts.len());
    for slice in slices(texts) {
        let (tokens, cut) = embedder.tokens_and_cut(slice)?;
        rows.extend_from_slice(embedder.encode_tokens(&tokens, None, &NoProgress)?.as_slice());
        all_cut.extend(cut);
    }
    Ok((Matrix::from_vec(embedder.width(), rows), all_cut))
}

/// The chunks of every document to add. A document with a vector is one chunk.
fn split(searcher: &Searcher, changes: &[&Change]) -> Result<Vec<Vec<Range<usize>>>> {
    let whole = |document: &Document| std::iter::once(0..document.text.len()).collect();
    let Some(sizes) = searcher.index().chunk() else {
        return Ok(upserts(changes).map(|(document, _)| whole(document)).collect());
    };
    let mut chunker = None;
    let of = |(document, vector): &DocumentWithVector| match vector {
        Some(_) => Ok(whole(document)),
        None => {
            if chunker.is_none() {
                chunker = Some(Chunker::new(sizes, searcher.embedder(&NoProgress)?)?);
            }
            Ok(chunker.as_ref().expect("just made").split(&document.text))
        }
    };
    upserts(changes).map(of).collect()
}

/// The texts of a document to encode; none if it has a vector.
fn texts_of<'a>(
    (document, vector): &'a DocumentWithVector,
    chunks: &'a [Range<usize>],
) -> impl Iterator<Item = &'a str> {
    let chunks = if vector.is_some() { &[] } else { chunks };
    chunks.iter().map(|range| &document.text[range.clone()])
}

fn upserts<'a>(changes: &'a [&'a Change]) -> impl Iterator<Item = &'a DocumentWithVector> {
    changes.iter().flat_map(|change| if let Change::Upsert(new, _) = change { new.as_slice() } else { &[] })
}

/// The write queue of an index.
pub struct WriteQueue {
    // `None` after the queue is closed. Without senders the thread ends.
    sender: RwLock<Option<SyncSender<Message>>>,
    index: String,
    metrics: Arc<Metrics>,
    waiting: Arc<AtomicUsize>,
    bytes: Arc<AtomicUsize>,
    max_bytes: usize,
    dropped: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl WriteQueue {
    /// Starts the thread that writes.
    pub fn start(
        index: &str,
        searcher: impl Fn() -> Arc<Searcher> + Send + 'static,
        config: &ServeConfig,
        metrics: Arc<Metrics>,
    ) -> Result<WriteQueue> {
        let (sender, receiver) = sync_channel(config.queue);
        let waiting = Arc::new(AtomicUsize::new(0));
        let dropped = Arc::new(AtomicBool::new(false));
        let writer = WriterThread { searcher: Box::new(searcher), writer: None, changed: None };
        let mut thread = Thread {
            receiver,
            writer,
            waiting: waiting.clone(),
            dropped: dropped.clone(),
            max_documents: config.commit_documents,
            idle: Duration::from_secs_f64(config.writer_idle_seconds),
            index: index.to_owned(),
            metrics: metrics.clone(),
        };
        // A panic must not end the queue: the thread discards the writer and continues with the next request.
        let work = move || {
            while catch_panic(|| thread.run()).is_none() {
                thread.writer.discard_writer();
            }
        };
        let thread = std::thread::Builder::new().name(format!("write {index}")).spawn(work);
        let thread = thread.map_err(|e| Error::Busy(format!("cannot start a writer thread for index {index}: {e}")))?;
        Ok(WriteQueue {
            sender: RwLock::new(Some(sender)),
            index: index.to_owned(),
            metrics,
            waiting,
            bytes: Arc::default(),
            max_bytes: config.max_bodies_bytes,
            dropped,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Number of waiting requests.
    pub fn depth(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Executes a change and returns when it is on disk. Refuses immediately if the queue is full.
    pub async fn change(&self, change: Change, scope: Option<Scope>) -> problem::Answer<Done> {
        let (reply, done) = oneshot::channel();
        let bytes = self.count(&change);
        // A single write always fits: the limit of a body bounds its size.
        if bytes.0.load(Ordering::SeqCst) > self.max_bytes.max(bytes.1) {
            self.metrics.rejected("write");
            return Err(Problem::overloaded(&format!(
                "too many bytes are waiting to be written to index {}",
                self.index
            )));
        }
        self.try_send(Message::Write(Request { change, scope, reply, _bytes: bytes }))?;
        self.result(done.await)
    }

    /// Like [`WriteQueue::change`], for a thread that may block: a full queue blocks it. The result comes later;
    /// [`WriteQueue::result`] converts it.
    pub fn push(&self, change: Change, scope: Option<Scope>) -> problem::Answer<Pending> {
        let (reply, done) = oneshot::channel();
        let bytes = self.count(&change);
        self.send(Message::Write(Request { change, scope, reply, _bytes: bytes }))?;
        Ok(done)
    }

    fn count(&self, change: &Change) -> QueuedBytes {
        let bytes = change.bytes();
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
        QueuedBytes(self.bytes.clone(), bytes)
    }

    /// Converts the result of a write for its caller.
    pub fn result(
        &self,
        done: std::result::Result<problem::Answer<Done>, oneshot::error::RecvError>,
    ) -> problem::Answer<Done> {
        match done {
            Ok(Ok(done)) => Ok(done),
            _ if self.dropped.load(Ordering::SeqCst) => Err(self.closed()),
            Ok(Err(problem)) => Err(problem),
            Err(_) => Err(Problem::internal("the write was lost; the server's log says why")),
        }
    }

    /// Like [`WriteQueue::run_exclusive_blocking`], without blocking the thread.
    #[cfg(test)]
    pub async fn run_exclusive<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut WriterThread) -> T + Send + 'static,
    ) -> problem::Answer<T> {
        let (reply, done) = oneshot::channel();
        let work: Exclusive = Box::new(move |writer: &mut WriterThread| drop(reply.send(work(writer))));
        self.try_send(Message::Exclusive(work))?;
        done.await.map_err(|_| Problem::internal("the work was lost; the server's log says why"))
    }

    /// Runs work on the writer thread between two commits and waits for it. Blocks: not for threads that serve requests.
    pub fn run_exclusive_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut WriterThread) -> T + Send + 'static,
    ) -> problem::Answer<T> {
        let (reply, done) = oneshot::channel();
        let work: Exclusive = Box::new(move |writer: &mut WriterThread| drop(reply.send(work(writer))));
        self.send(Message::Exclusive(work))?;
        done.blocking_recv().map_err(|_| Problem::internal("the work was lost; the server's log says why"))
    }

    /// Closes the queue of a dropped index: waiting and later writes are refused. After this returns, nothing writes to the
    /// index directory, even if somebody still has the queue.
    pub fn close(&self) {
        self.dropped.store(true, Ordering::SeqCst);
        self.end();
    }

    fn end(&self) {
        // Without senders the thread executes the accepted requests and ends.
        self.sender.write().take();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }

    fn sender(&self) -> problem::Answer<SyncSender<Message>> {
        let sender = self.sender.read();
        sender.as_ref().cloned().ok_or_else(|| self.closed())
    }

    fn closed(&self) -> Problem {
        if self.dropped.load(Ordering::SeqCst) {
            return Problem::not_found(
                Code::UnknownIndex,
                format!("index \"{}\" was dropped; the write was not executed", self.index),
            );
        }
        Problem::stopping()
    }

    fn send(&self, message: Message) -> problem::Answer<()> {
        let sender = self.sender()?;
        self.waiting.fetch_add(1, Ordering::Relaxed);
        sender.send(message).map_err(|_| {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.closed()
        })
    }

    fn try_send(&self, message: Message) -> problem::Answer<()> {
        let sender = self.sender()?;
        self.waiting.fetch_add(1, Ordering::Relaxed);
        sender.try_send(message).map_err(|error| {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            match error {
                TrySendError::Full(_) => {
                    self.metrics.rejected("write");
                    Problem::overloaded(&format!("too many writes are waiting for index {}", self.index))
                }
                TrySendError::Disconnected(_) => self.closed(),
            }
        })
    }
}

impl Drop for WriteQueue {
    fn drop(&mut self) {
        self.end();
    }
}

struct Thread {
    receiver: Receiver<Message>,
    writer: WriterThread,
    waiting: Arc<AtomicUsize>,
    dropped: Arc<AtomicBool>,
    max_documents: usize,
    idle: Duration,
    index: String,
    metrics: Arc<Metrics>,
}

/// The result of an accepted write, when it comes.
pub type Pending = oneshot::Receiver<problem::Answer<Done>>;

struct Request {
    change: Change,
    /// What its caller may write; `None` for everything.
    scope: Option<Scope>,
    reply: oneshot::Sender<problem::Answer<Done>>,
    _bytes: QueuedBytes,
}

impl Request {
    /// Whether it is a commit of its own: a scope is compared with committed documents.
    fn is_alone(&self) -> bool {
        self.scope.is_some() || self.change.is_alone()
    }
}

impl Thread {
    fn run(&mut self) {
        loop {
            let first = match self.receiver.recv_timeout(self.idle) {
                Ok(first) => first,
                Err(RecvTimeoutError::Timeout) => {
                    if self.writer.changed.is_none() {
                        self.writer.release();
                    }
                    match self.receiver.recv() {
                        Ok(first) => first,
                        Err(_) => break,
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let mut group: Vec<Request> = Vec::new();
            let (mut next, mut count) = (Some(first), 0);
            while let Some(message) = next.take() {
                self.waiting.fetch_sub(1, Ordering::Relaxed);
                if self.dropped.load(Ordering::SeqCst) {
                    // The queue tells its caller that the index is dropped.
                    drop(message);
                    break;
                }
                match message {
                    Message::Write(request) => {
                        let alone = request.is_alone();
                        if alone {
                            self.commit(std::mem::take(&mut group));
                        }
                        count += request.change.len();
                        group.push(request);
                        if alone || count >= self.max_documents {
                            break;
                        }
                    }
                    Message::Exclusive(work) => {
                        self.commit(std::mem::take(&mut group));
                        work(&mut self.writer);
                        break;
                    }
                }
                next = self.receiver.try_recv().ok();
            }
            self.commit(group);
        }
        self.writer.release();
    }

    /// Commits a group together. If one write fails, commits each write alone.
    fn commit(&mut self, mut group: Vec<Request>) {
        if group.is_empty() || self.dropped.load(Ordering::SeqCst) {
            return;
        }
        let started = Instant::now();
        if let [Request { change, scope: Some(scope), .. }] = &mut group[..]
            && let Err(problem) = self.writer.apply(scope, change)
        {
            return group.into_iter().for_each(|request| drop(request.reply.send(Err(problem.clone()))));
        }
        let changes: Vec<&Change> = group.iter().map(|request| &request.change).collect();
        let count = changes.iter().map(|change| change.len()).sum();
        // A panic in a commit must not end the queue: nothing of it is stored, and its callers get an error.
        let committed = catch_panic(|| self.writer.commit(&changes)).unwrap_or_else(|| {
            self.writer.discard_writer();
            Err(Error::Busy("the writer failed; send the write again".into()))
        });
        match committed {
            Ok(done) => {
                self.metrics.commit(&self.index, count, started.elapsed());
                for (Request { scope, reply, .. }, done) in group.into_iter().zip(done) {
                    let told = match scope {
                        Some(scope) => scope.tell(&self.writer.index(), done),
                        None => Ok(done),
                    };
                    let _ = reply.send(told);
                }
            }
            Err(error) => {
                self.writer.rollback();
                let concerns_all = matches!(error, Error::Busy(_) | Error::Interrupted);
                if group.len() == 1 || concerns_all {
                    let problem = Problem::of(Code::BadDocument)(error);
                    for Request { reply, .. } in group {
                        let _ = reply.send(Err(problem.clone()));
                    }
                } else {
                    group.into_iter().for_each(|request| self.commit(vec![request]));
                }
            }
        }
    }
}
