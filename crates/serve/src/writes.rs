//! The queue before an index's writer: what waits together is committed together, and told so after it is on disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use micpq::corpus::{DocId, Document};
use micpq::index::{Index, IndexWriter};
use micpq::query::Searcher;
use micpq::{Error, Matrix, Result, Silent};
use tokio::sync::oneshot;

use crate::config::ServeConfig;
use crate::metrics::Metrics;
use crate::problem::{self, Code, Problem};

/// A document to be kept, with its feature where the caller brought one.
pub type New = (Document, Option<Vec<f32>>);

/// What a request wants changed. It happens whole or not at all.
pub enum Change {
    /// Adds documents, or puts them in the place of those with the same ids.
    Upsert(Vec<New>),
    /// Deletes documents by id.
    Delete(Vec<DocId>),
    /// Deletes what matches a filter.
    DeleteWhere(String),
}

impl Change {
    fn len(&self) -> usize {
        match self {
            Change::Upsert(documents) => documents.len(),
            Change::Delete(ids) => ids.len(),
            Change::DeleteWhere(_) => 1,
        }
    }
}

/// What a change did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Documents added or replaced, or deleted.
    pub changed: usize,
    /// Documents in the index after the commit.
    pub documents: usize,
}

/// Work that needs the writer's thread to itself.
pub type Alone = Box<dyn FnOnce(&mut Hand) + Send>;

enum Message {
    Write { change: Change, reply: oneshot::Sender<Result<Done>> },
    Alone(Alone),
}

/// The writer's thread and what it holds.
pub struct Hand {
    searcher: Box<dyn Fn() -> Arc<Searcher> + Send>,
    writer: Option<IndexWriter>,
    /// Ids changed since a job asked to remember them.
    changed: Option<Vec<Changed>>,
}

/// Something changed while a job read the index.
pub enum Changed {
    /// These ids.
    Ids(Vec<DocId>),
    /// Whatever matches.
    Where(String),
}

impl Hand {
    /// The index written to.
    pub fn index(&self) -> Index {
        self.searcher().index().clone()
    }

    /// What it is searched with.
    pub fn searcher(&self) -> Arc<Searcher> {
        (self.searcher)()
    }

    /// Remembers changes from now on.
    pub fn remember(&mut self) {
        self.changed = Some(Vec::new());
    }

    /// The changes since, which are then forgotten.
    pub fn recall(&mut self) -> Vec<Changed> {
        self.changed.take().unwrap_or_default()
    }

    /// The writer, opened where it is not.
    pub fn writer(&mut self) -> Result<&mut IndexWriter> {
        if self.writer.is_none() {
            self.writer = Some(self.index().writer()?);
        }
        Ok(self.writer.as_mut().expect("set above"))
    }

    /// Gives the writer's lock back, waiting for merges under way.
    pub fn release(&mut self) {
        if let Some(writer) = self.writer.take()
            && let Err(error) = writer.close(&Silent)
        {
            tracing::warn!(%error, "the writer was not closed well; what was committed stays");
        }
    }

    /// Applies changes and commits them all at once.
    fn commit(&mut self, changes: &[&Change]) -> Result<Vec<Done>> {
        let searcher = self.searcher();
        let texts: Vec<&str> = upserts(changes).filter(|(_, v)| v.is_none()).map(|(d, _)| d.text.as_str()).collect();
        let encoded =
            if texts.is_empty() { Matrix::default() } else { searcher.features(&Silent)?.encode(&texts, &Silent)? };
        let mut encoded = encoded.iter();
        let inputs = searcher.index().model().inputs();
        let mut done = Vec::with_capacity(changes.len());
        let writer = self.writer()?;
        for change in changes {
            let changed = match change {
                Change::Upsert(new) => {
                    let mut rows = Vec::with_capacity(new.len() * inputs);
                    for (_, vector) in new {
                        let row = vector.as_deref().or_else(|| encoded.next()).expect("a vector for every text");
                        rows.extend_from_slice(row);
                    }
                    let documents: Vec<Document> = new.iter().map(|(document, _)| document.clone()).collect();
                    writer.add_features(&documents, &Matrix::from_vec(inputs, rows))?;
                    new.len()
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
            done.push(Done { changed, documents: 0 });
        }
        let documents = writer.commit(&Silent)?;
        done.iter_mut().for_each(|d| d.documents = documents);
        if let Some(memory) = &mut self.changed {
            memory.extend(changes.iter().map(|change| match change {
                Change::Upsert(new) => Changed::Ids(new.iter().map(|(d, _)| d.id.clone()).collect()),
                Change::Delete(ids) => Changed::Ids(ids.clone()),
                Change::DeleteWhere(filter) => Changed::Where(filter.clone()),
            }));
        }
        Ok(done)
    }

    /// Back to the last commit after a failure; a writer that cannot go back is given up.
    fn rollback(&mut self) {
        if let Some(writer) = &mut self.writer
            && let Err(error) = writer.rollback()
        {
            tracing::warn!(%error, "the writer is opened anew");
            self.writer = None;
        }
    }
}

fn upserts<'a>(changes: &'a [&'a Change]) -> impl Iterator<Item = &'a New> {
    changes.iter().flat_map(|change| if let Change::Upsert(new) = change { new.as_slice() } else { &[] })
}

/// The queue of one index.
pub struct WriteQueue {
    sender: Option<SyncSender<Message>>,
    index: String,
    metrics: Arc<Metrics>,
    waiting: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl WriteQueue {
    /// Starts the thread that writes.
    pub fn start(
        index: &str,
        searcher: impl Fn() -> Arc<Searcher> + Send + 'static,
        config: &ServeConfig,
        metrics: Arc<Metrics>,
    ) -> WriteQueue {
        let (sender, receiver) = sync_channel(config.queue);
        let waiting = Arc::new(AtomicUsize::new(0));
        let hand = Hand { searcher: Box::new(searcher), writer: None, changed: None };
        let mut thread = Thread {
            receiver,
            hand,
            waiting: waiting.clone(),
            most: config.commit_documents,
            idle: Duration::from_secs_f64(config.writer_idle_seconds),
            index: index.to_owned(),
            metrics: metrics.clone(),
        };
        let work = move || thread.run();
        let thread = std::thread::Builder::new().name(format!("write {index}")).spawn(work);
        let thread = Some(thread.expect("a thread can be started"));
        WriteQueue { sender: Some(sender), index: index.to_owned(), metrics, waiting, thread }
    }

    /// Requests waiting.
    pub fn depth(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Makes a change and returns when it is on disk; refuses at once when too many wait.
    pub async fn change(&self, change: Change) -> problem::Answer<Done> {
        let (reply, done) = oneshot::channel();
        self.try_send(Message::Write { change, reply })?;
        match done.await {
            Ok(done) => done.map_err(Problem::of(Code::BadDocument)),
            Err(_) => Err(Problem::internal("the write was lost on its way; the server's log says why")),
        }
    }

    /// As [`WriteQueue::change`] for a thread that may wait: a full queue holds it back. The result comes later.
    pub fn push(&self, change: Change) -> problem::Answer<oneshot::Receiver<Result<Done>>> {
        let (reply, done) = oneshot::channel();
        let sender = self.sender.as_ref().ok_or_else(Problem::stopping)?;
        self.waiting.fetch_add(1, Ordering::Relaxed);
        sender.send(Message::Write { change, reply }).map_err(|_| Problem::stopping())?;
        Ok(done)
    }

    /// As [`WriteQueue::wait_alone`] without blocking the thread.
    #[cfg(test)]
    pub async fn alone<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Hand) -> T + Send + 'static,
    ) -> problem::Answer<T> {
        let (reply, done) = oneshot::channel();
        let work: Alone = Box::new(move |hand: &mut Hand| drop(reply.send(work(hand))));
        self.try_send(Message::Alone(work))?;
        done.await.map_err(|_| Problem::internal("the work was lost on its way; the server's log says why"))
    }

    /// Runs work on the writer's thread, between commits, and waits for it: not for a thread that serves requests.
    pub fn wait_alone<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Hand) -> T + Send + 'static,
    ) -> problem::Answer<T> {
        let (reply, done) = oneshot::channel();
        let work: Alone = Box::new(move |hand: &mut Hand| drop(reply.send(work(hand))));
        let sender = self.sender.as_ref().ok_or_else(Problem::stopping)?;
        self.waiting.fetch_add(1, Ordering::Relaxed);
        sender.send(Message::Alone(work)).map_err(|_| Problem::stopping())?;
        done.blocking_recv().map_err(|_| Problem::internal("the work was lost on its way; the server's log says why"))
    }

    fn try_send(&self, message: Message) -> problem::Answer<()> {
        let sender = self.sender.as_ref().ok_or_else(Problem::stopping)?;
        self.waiting.fetch_add(1, Ordering::Relaxed);
        sender.try_send(message).map_err(|error| {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            match error {
                TrySendError::Full(_) => {
                    self.metrics.rejected("write");
                    Problem::overloaded(&format!("too many writes are waiting for index {}", self.index))
                }
                TrySendError::Disconnected(_) => Problem::stopping(),
            }
        })
    }
}

impl Drop for WriteQueue {
    fn drop(&mut self) {
        // Without senders the thread ends when everything accepted is on disk.
        self.sender.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Thread {
    receiver: Receiver<Message>,
    hand: Hand,
    waiting: Arc<AtomicUsize>,
    most: usize,
    idle: Duration,
    index: String,
    metrics: Arc<Metrics>,
}

type Request = (Change, oneshot::Sender<Result<Done>>);

impl Thread {
    fn run(&mut self) {
        loop {
            let first = match self.receiver.recv_timeout(self.idle) {
                Ok(first) => first,
                Err(RecvTimeoutError::Timeout) => {
                    self.hand.release();
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
                match message {
                    Message::Write { change, reply } => {
                        // A filter is counted against what is committed, so it goes behind a commit of its own.
                        let filter = matches!(change, Change::DeleteWhere(_));
                        if filter {
                            self.commit(std::mem::take(&mut group));
                        }
                        count += change.len();
                        group.push((change, reply));
                        if filter || count >= self.most {
                            break;
                        }
                    }
                    Message::Alone(work) => {
                        self.commit(std::mem::take(&mut group));
                        work(&mut self.hand);
                        break;
                    }
                }
                next = self.receiver.try_recv().ok();
            }
            self.commit(group);
        }
        self.hand.release();
    }

    /// One commit for all, or, where one of them cannot be made, one for each of the others.
    fn commit(&mut self, group: Vec<Request>) {
        if group.is_empty() {
            return;
        }
        let begun = Instant::now();
        let changes: Vec<&Change> = group.iter().map(|(change, _)| change).collect();
        let count = changes.iter().map(|change| change.len()).sum();
        // A mistake in one commit must not end the queue: nothing of it is kept, and its callers are told.
        let work = std::panic::AssertUnwindSafe(|| self.hand.commit(&changes));
        let committed = std::panic::catch_unwind(work).unwrap_or_else(|_| {
            self.hand.writer = None;
            Err(Error::Busy("the writer failed and is opened anew; send the write again".into()))
        });
        match committed {
            Ok(done) => {
                self.metrics.commit(&self.index, count, begun.elapsed());
                for ((_, reply), done) in group.into_iter().zip(done) {
                    let _ = reply.send(Ok(done));
                }
            }
            Err(error) => {
                self.hand.rollback();
                let whole = matches!(error, Error::Busy(_) | Error::Interrupted);
                if group.len() == 1 || whole {
                    let text = error.to_string();
                    let mut error = Some(error);
                    for (_, reply) in group {
                        let _ = reply.send(Err(error.take().unwrap_or_else(|| Error::Busy(text.clone()))));
                    }
                } else {
                    group.into_iter().for_each(|request| self.commit(vec![request]));
                }
            }
        }
    }
}
