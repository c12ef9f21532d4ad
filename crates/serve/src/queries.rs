//! The query queue of an index. Queries that wait together share an encoder pass and a scan.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use engine::encoder::QueryEncoder;
use engine::query::{Answer, Embedded, Like, Query, Rerank, SearchConfig, Searcher};
use engine::{Error, Progress};
use tokio::sync::oneshot;

use crate::config::ServeConfig;
use crate::metrics::Metrics;
use crate::problem::{self, Code, Problem};
use crate::telemetry;

/// The queries of one request. They share their options.
struct Pending {
    queries: Vec<Query>,
    config: SearchConfig,
    reply: oneshot::Sender<engine::Result<Vec<Answer>>>,
    since: Instant,
    /// The span of the request, for log and traces.
    span: tracing::Span,
}

/// State that the callers and the thread share.
struct Shared {
    index: String,
    metrics: Arc<Metrics>,
    waiting: AtomicUsize,
    /// Number of requests whose body is still being read. A batch waits a moment for them.
    coming: AtomicUsize,
    /// Batches that are being answered.
    answering: AtomicUsize,
    /// Whether the last query was a text that the full encoder reads.
    reads_texts: AtomicBool,
}

/// Counts a batch while it is answered, also when that panics.
struct Answering<'a>(&'a AtomicUsize);

impl<'a> Answering<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Answering(count)
    }
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Maximum number of hits, and of bytes of the text, of a query that its own task answers.
const MAX_DIRECT_HITS: usize = 100;
const MAX_DIRECT_TEXT_BYTES: usize = 1024;

/// The query queue of an index.
pub struct QueryQueue {
    sender: Option<SyncSender<Pending>>,
    shared: Arc<Shared>,
    searcher: Box<dyn Fn() -> Arc<Searcher> + Send + Sync>,
    thread: Option<JoinHandle<()>>,
}

/// Counts a request whose body is still being read.
pub struct Coming(Arc<Shared>);

impl Drop for Coming {
    fn drop(&mut self) {
        self.0.coming.fetch_sub(1, Ordering::Relaxed);
    }
}

impl QueryQueue {
    /// Starts the thread that answers.
    pub fn start(
        index: &str,
        searcher: impl Fn() -> Arc<Searcher> + Clone + Send + Sync + 'static,
        config: &ServeConfig,
        metrics: Arc<Metrics>,
    ) -> engine::Result<QueryQueue> {
        let (sender, receiver) = sync_channel(config.queue);
        let shared = Arc::new(Shared {
            index: index.to_owned(),
            metrics,
            waiting: AtomicUsize::new(0),
            coming: AtomicUsize::new(0),
            answering: AtomicUsize::new(0),
            reads_texts: AtomicBool::new(false),
        });
        let batch = config.batch;
        let window = Duration::from_secs_f64(config.batch_window_ms / 1e3);
        let (state, current) = (shared.clone(), searcher.clone());
        let work = move || {
            while let Some(pending) = take(&receiver, &state, batch, window) {
                // A panic in one batch must not end the queue. The callers of the batch get an error.
                let work = std::panic::AssertUnwindSafe(|| {
                    let _counted = Answering::begin(&state.answering);
                    answer(&current(), pending, &state);
                });
                if std::panic::catch_unwind(work).is_err() {
                    tracing::error!(index = state.index, "a batch of queries ended in a panic");
                }
            }
        };
        let thread = std::thread::Builder::new().name(format!("query {index}")).spawn(work);
        let thread = thread.map_err(|e| Error::Busy(format!("cannot start a search thread for index {index}: {e}")))?;
        Ok(QueryQueue { sender: Some(sender), shared, searcher: Box::new(searcher), thread: Some(thread) })
    }

    /// Announces a request before its body is read. Where it is the only one and the one before it was a text, the threads that
    /// encode wake while its body is read.
    pub fn coming(&self) -> Coming {
        self.shared.coming.fetch_add(1, Ordering::Relaxed);
        if self.shared.reads_texts.load(Ordering::Relaxed) && self.is_idle() {
            (self.searcher)().wake();
        }
        Coming(self.shared.clone())
    }

    /// Number of waiting requests.
    pub fn depth(&self) -> usize {
        self.shared.waiting.load(Ordering::Relaxed)
    }

    /// Answers queries in their order. Refuses immediately if the queue is full.
    pub async fn ask(&self, queries: Vec<Query>, config: SearchConfig, coming: Coming) -> problem::Answer<Vec<Answer>> {
        let (reply, answered) = oneshot::channel();
        self.shared.reads_texts.store(queries.iter().any(reads_text), Ordering::Relaxed);
        let pending = Pending { queries, config, reply, since: Instant::now(), span: tracing::Span::current() };
        if self.sender.is_some() && self.is_idle() && is_short(&pending) {
            // No other query could share its batch, and to wake the thread and be woken by it would take longer than the scan.
            let _counted = Answering::begin(&self.shared.answering);
            drop(coming);
            answer(&(self.searcher)(), vec![pending], &self.shared);
            return received(answered.await);
        }
        let sender = self.sender.as_ref().ok_or_else(Problem::stopping)?;
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        let sent = sender.try_send(pending);
        drop(coming);
        if let Err(error) = sent {
            self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(match error {
                TrySendError::Full(_) => {
                    self.shared.metrics.rejected("query");
                    Problem::overloaded("too many queries are waiting for this index")
                }
                TrySendError::Disconnected(_) => Problem::stopping(),
            });
        }
        received(answered.await)
    }

    /// Whether this request is the only one: none waits, none is being answered, and no other body is being read.
    fn is_idle(&self) -> bool {
        let Shared { waiting, coming, answering, .. } = &*self.shared;
        let count = |of: &AtomicUsize| of.load(Ordering::Relaxed);
        count(waiting) == 0 && count(answering) == 0 && count(coming) <= 1
    }
}

/// Whether a request takes a few milliseconds at most, for which it may hold a thread that also serves connections.
fn is_short(pending: &Pending) -> bool {
    let SearchConfig { k, filter, hybrid, snippets, rerank, .. } = &pending.config;
    let short = |like: &Like| if let Like::Text(text) = like { text.len() <= MAX_DIRECT_TEXT_BYTES } else { true };
    *k <= MAX_DIRECT_HITS
        && filter.is_none()
        && *hybrid == 0.0
        && !snippets
        && !matches!(rerank, Rerank::First(_))
        && matches!(&pending.queries[..], [query] if matches!(&query.like[..], [(like, _)] if short(like)))
}

/// Whether the full encoder reads a text of the query.
fn reads_text(query: &Query) -> bool {
    query.encoder == QueryEncoder::Full && query.like.iter().any(|(like, _)| matches!(like, Like::Text(_)))
}

fn received(answered: Result<engine::Result<Vec<Answer>>, oneshot::error::RecvError>) -> problem::Answer<Vec<Answer>> {
    match answered {
        Ok(answers) => answers.map_err(Problem::of(Code::BadQuery)),
        Err(_) => Err(Problem::internal("the query was lost; the server's log says why")),
    }
}

impl Drop for QueryQueue {
    fn drop(&mut self) {
        // Without senders the thread answers the waiting requests and ends.
        self.sender.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The next batch; `None` if the queue is closed.
fn take(receiver: &Receiver<Pending>, shared: &Shared, max_queries: usize, window: Duration) -> Option<Vec<Pending>> {
    let first = receiver.recv().ok()?;
    shared.waiting.fetch_sub(1, Ordering::Relaxed);
    let deadline = Instant::now() + window;
    let mut count = first.queries.len();
    let mut batch = vec![first];
    while count < max_queries {
        let next = match receiver.try_recv() {
            Ok(next) => next,
            // Requests whose body is being read arrive soon. Without them a query does not wait.
            Err(_) if shared.coming.load(Ordering::Relaxed) > 0 => {
                match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                    Ok(next) => next,
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
                }
            }
            Err(_) => break,
        };
        shared.waiting.fetch_sub(1, Ordering::Relaxed);
        count += next.queries.len();
        batch.push(next);
    }
    // Drops requests whose caller timed out or disconnected.
    batch.retain(|pending| !pending.reply.is_closed());
    Some(batch)
}

/// Answers a batch with one encoder pass, and one scan per group of equal options.
fn answer(searcher: &Searcher, batch: Vec<Pending>, shared: &Shared) {
    if batch.is_empty() {
        return;
    }
    let now = Instant::now();
    for pending in &batch {
        shared.metrics.stage(&shared.index, "wait", now - pending.since);
    }
    let queries: Vec<Query> = batch.iter().flat_map(|pending| pending.queries.iter().cloned()).collect();
    shared.metrics.batch(queries.len());
    let embedded = match searcher.embed(&queries, &Callers(&batch)) {
        Ok(embedded) => embedded,
        Err(Error::Interrupted) => return,
        // One request cannot be encoded. Each is answered alone, so that only that one fails.
        Err(_) if batch.len() > 1 => {
            return batch.into_iter().for_each(|pending| answer_alone(searcher, pending, shared));
        }
        Err(error) => return refuse(batch, error),
    };
    let mut embedded = embedded.into_iter();
    // Requests with equal options, each with its embedded queries. A group shares one scan.
    type Group = (SearchConfig, Vec<(Pending, Vec<Embedded>)>);
    let mut groups: Vec<Group> = Vec::new();
    for pending in batch {
        let own: Vec<Embedded> = embedded.by_ref().take(pending.queries.len()).collect();
        // A cursor belongs to one query.
        let group = groups.iter().position(|(config, _)| *config == pending.config && config.after.is_none());
        match group {
            Some(group) => groups[group].1.push((pending, own)),
            None => groups.push((pending.config.clone(), vec![(pending, own)])),
        }
    }
    for (config, group) in groups {
        let all: Vec<Embedded> = group.iter().flat_map(|(_, own)| own.iter().cloned()).collect();
        if group.iter().all(|(pending, _)| pending.reply.is_closed()) {
            continue;
        }
        let found = searcher.search_embedded(&all, &config, &GroupCallers(&group));
        match found {
            Ok(answers) => {
                if let Some(first) = answers.first() {
                    let stages = first.timings.stages();
                    for (stage, time) in stages {
                        shared.metrics.stage(&shared.index, stage, time);
                    }
                    for (pending, _) in &group {
                        telemetry::stages(&pending.span, pending.since, now - pending.since, &stages);
                    }
                }
                let mut answers = answers.into_iter();
                for (pending, own) in group {
                    let _ = pending.reply.send(Ok(answers.by_ref().take(own.len()).collect()));
                }
            }
            Err(Error::Interrupted) => {}
            Err(error) if group.len() == 1 => refuse(group.into_iter().map(|(pending, _)| pending).collect(), error),
            Err(_) => group.into_iter().for_each(|(pending, _)| answer_alone(searcher, pending, shared)),
        }
    }
}

/// The callers of a batch. Encoding stops when all of them have disconnected.
struct Callers<'a>(&'a [Pending]);

impl Progress for Callers<'_> {
    fn interrupted(&self) -> bool {
        self.0.iter().all(|pending| pending.reply.is_closed())
    }
}

/// The callers of a group of a batch. Its search stops when all of them have disconnected.
struct GroupCallers<'a>(&'a [(Pending, Vec<Embedded>)]);

impl Progress for GroupCallers<'_> {
    fn interrupted(&self) -> bool {
        self.0.iter().all(|(pending, _)| pending.reply.is_closed())
    }
}

fn answer_alone(searcher: &Searcher, pending: Pending, shared: &Shared) {
    if pending.reply.is_closed() {
        return;
    }
    let wait = pending.since.elapsed();
    let answers = searcher.search(&pending.queries, &pending.config, &Callers(std::slice::from_ref(&pending)));
    if let Ok(Some(first)) = answers.as_ref().map(|a| a.first()) {
        let stages = first.timings.stages();
        for (stage, time) in stages {
            shared.metrics.stage(&shared.index, stage, time);
        }
        telemetry::stages(&pending.span, pending.since, wait, &stages);
    }
    let _ = pending.reply.send(answers);
}

/// Sends an error to the only caller of a batch.
fn refuse(batch: Vec<Pending>, error: Error) {
    let mut batch = batch.into_iter();
    if let Some(pending) = batch.next() {
        let _ = pending.reply.send(Err(error));
    }
}
