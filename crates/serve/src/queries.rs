//! The queue before an index's search: whatever waits together goes through the encoder and over the codes together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use micpq::query::{Answer, Embedded, Query, SearchConfig, Searcher};
use micpq::{Error, Silent};
use tokio::sync::oneshot;

use crate::config::ServeConfig;
use crate::metrics::Metrics;
use crate::problem::{self, Code, Problem};

/// Queries of one request, which share their options.
struct Asked {
    queries: Vec<Query>,
    config: SearchConfig,
    reply: oneshot::Sender<micpq::Result<Vec<Answer>>>,
    since: Instant,
}

/// What the callers and the thread know together.
struct Shared {
    index: String,
    metrics: Arc<Metrics>,
    waiting: AtomicUsize,
    /// Requests whose body is still being read: a batch waits a moment for them.
    coming: AtomicUsize,
}

/// The queue of one index.
pub struct QueryQueue {
    sender: Option<SyncSender<Asked>>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// A request that is on its way to the queue, counted until it is dropped.
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
        searcher: impl Fn() -> Arc<Searcher> + Send + 'static,
        config: &ServeConfig,
        metrics: Arc<Metrics>,
    ) -> QueryQueue {
        let (sender, receiver) = sync_channel(config.queue);
        let shared = Arc::new(Shared {
            index: index.to_owned(),
            metrics,
            waiting: AtomicUsize::new(0),
            coming: AtomicUsize::new(0),
        });
        let batch = config.batch;
        let window = Duration::from_secs_f64(config.batch_window_ms / 1e3);
        let known = shared.clone();
        let work = move || {
            while let Some(asked) = take(&receiver, &known, batch, window) {
                // A mistake in one batch must not end the queue; its callers are told that their query was lost.
                let work = std::panic::AssertUnwindSafe(|| answer(&searcher(), asked, &known));
                if std::panic::catch_unwind(work).is_err() {
                    tracing::error!(index = known.index, "a batch of queries ended in a panic");
                }
            }
        };
        let thread = std::thread::Builder::new().name(format!("query {index}")).spawn(work);
        QueryQueue { sender: Some(sender), shared, thread: Some(thread.expect("a thread can be started")) }
    }

    /// Says that a request is on its way.
    pub fn coming(&self) -> Coming {
        self.shared.coming.fetch_add(1, Ordering::Relaxed);
        Coming(self.shared.clone())
    }

    /// Requests waiting.
    pub fn depth(&self) -> usize {
        self.shared.waiting.load(Ordering::Relaxed)
    }

    /// Answers queries in their order; refuses at once when too many wait.
    pub async fn ask(&self, queries: Vec<Query>, config: SearchConfig, coming: Coming) -> problem::Answer<Vec<Answer>> {
        let (reply, answer) = oneshot::channel();
        let asked = Asked { queries, config, reply, since: Instant::now() };
        let sender = self.sender.as_ref().ok_or_else(Problem::stopping)?;
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        let sent = sender.try_send(asked);
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
        match answer.await {
            Ok(answers) => answers.map_err(Problem::of(Code::BadQuery)),
            Err(_) => Err(Problem::internal("the query was lost on its way; the server's log says why")),
        }
    }
}

impl Drop for QueryQueue {
    fn drop(&mut self) {
        // Without senders the thread ends when it has answered what waits.
        self.sender.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The next batch; `None` when nobody can ask any more.
fn take(receiver: &Receiver<Asked>, shared: &Shared, most: usize, window: Duration) -> Option<Vec<Asked>> {
    let first = receiver.recv().ok()?;
    shared.waiting.fetch_sub(1, Ordering::Relaxed);
    let until = Instant::now() + window;
    let mut count = first.queries.len();
    let mut batch = vec![first];
    while count < most {
        let next = match receiver.try_recv() {
            Ok(next) => next,
            // Those still sending their body come in a moment; a query alone does not wait.
            Err(_) if shared.coming.load(Ordering::Relaxed) > 0 => {
                match receiver.recv_timeout(until.saturating_duration_since(Instant::now())) {
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
    // Nobody waits any more for what timed out or hung up.
    batch.retain(|asked| !asked.reply.is_closed());
    Some(batch)
}

/// Answers a batch: one encoder pass, and one scan for each set of equal options.
fn answer(searcher: &Searcher, batch: Vec<Asked>, shared: &Shared) {
    if batch.is_empty() {
        return;
    }
    let now = Instant::now();
    for asked in &batch {
        shared.metrics.stage(&shared.index, "wait", now - asked.since);
    }
    let queries: Vec<Query> = batch.iter().flat_map(|asked| asked.queries.iter().cloned()).collect();
    shared.metrics.batch(queries.len());
    let embedded = match searcher.embed(&queries, &Silent) {
        Ok(embedded) => embedded,
        // One of them cannot be encoded: each gets its own word.
        Err(_) if batch.len() > 1 => return batch.into_iter().for_each(|asked| answer_alone(searcher, asked, shared)),
        Err(error) => return refuse(batch, error),
    };
    let mut embedded = embedded.into_iter();
    // Questions that ask the same way, each with its embedded queries: one scan for all of them.
    type Group = (SearchConfig, Vec<(Asked, Vec<Embedded>)>);
    let mut groups: Vec<Group> = Vec::new();
    for asked in batch {
        let own: Vec<Embedded> = embedded.by_ref().take(asked.queries.len()).collect();
        // A cursor belongs to one query.
        let place = groups.iter().position(|(config, _)| *config == asked.config && config.after.is_none());
        match place {
            Some(place) => groups[place].1.push((asked, own)),
            None => groups.push((asked.config.clone(), vec![(asked, own)])),
        }
    }
    for (config, group) in groups {
        let all: Vec<Embedded> = group.iter().flat_map(|(_, own)| own.iter().cloned()).collect();
        match searcher.search_embedded(&all, &config, &Silent) {
            Ok(answers) => {
                if let Some(first) = answers.first() {
                    for (stage, time) in first.timings.stages() {
                        shared.metrics.stage(&shared.index, stage, time);
                    }
                }
                let mut answers = answers.into_iter();
                for (asked, own) in group {
                    let _ = asked.reply.send(Ok(answers.by_ref().take(own.len()).collect()));
                }
            }
            Err(error) if group.len() == 1 => refuse(group.into_iter().map(|(asked, _)| asked).collect(), error),
            Err(_) => group.into_iter().for_each(|(asked, _)| answer_alone(searcher, asked, shared)),
        }
    }
}

fn answer_alone(searcher: &Searcher, asked: Asked, shared: &Shared) {
    let answers = searcher.search(&asked.queries, &asked.config, &Silent);
    if let Ok(Some(first)) = answers.as_ref().map(|a| a.first()) {
        for (stage, time) in first.timings.stages() {
            shared.metrics.stage(&shared.index, stage, time);
        }
    }
    let _ = asked.reply.send(answers);
}

/// Tells the one caller of a batch of one why there is no answer.
fn refuse(batch: Vec<Asked>, error: Error) {
    let mut batch = batch.into_iter();
    if let Some(asked) = batch.next() {
        let _ = asked.reply.send(Err(error));
    }
}
