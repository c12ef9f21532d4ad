//! Background jobs, with progress and cancellation.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use engine::{Error, Progress};
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::keys::Access;
use crate::problem::{Answer, Code, Problem};

/// Status of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Running,
    Succeeded,
    /// Ended by an error; see `error`.
    Failed,
    /// Stopped by a caller or with the server.
    Cancelled,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct JobView {
    /// Number of the job.
    pub id: u64,
    /// Kind of work: `train`, `dedup`, `topics`, `map` or `recall`.
    #[schema(example = "train")]
    pub kind: String,
    /// Name of the index.
    pub index: String,
    /// Status of the job.
    pub status: Status,
    /// What it does now; `waiting for other jobs` before its turn.
    pub stage: String,
    /// Finished units of the stage.
    pub done: u64,
    /// All units of the stage, if known.
    pub total: Option<u64>,
    /// A current measurement, such as a loss.
    pub detail: String,
    /// The last notes of the job.
    pub notes: Vec<String>,
    /// Error message of a failed job.
    pub error: Option<String>,
    /// Result of the job: for training the model's fingerprint and best score, otherwise what was found.
    #[schema(value_type = Option<Object>)]
    pub result: Option<serde_json::Value>,
    /// Start time, in seconds since 1970.
    pub started: u64,
    /// Duration so far, in seconds.
    pub seconds: f64,
}

/// A job. Its work reports to it as [`Progress`].
pub struct Job {
    stop: AtomicBool,
    started_at: Instant,
    view: Mutex<JobView>,
}

/// Stage of a job before its turn.
const WAITING: &str = "waiting for other jobs";

/// Notes stored per job.
const MAX_NOTES: usize = 50;

impl Job {
    pub fn view(&self) -> JobView {
        let mut view = self.with(|view| view.clone());
        if view.status == Status::Running {
            view.seconds = self.started_at.elapsed().as_secs_f64();
        }
        view
    }

    /// Asks the work to stop at the next safe point.
    pub fn cancel(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    fn with<T>(&self, access: impl FnOnce(&mut JobView) -> T) -> T {
        access(&mut self.view.lock())
    }
}

/// The text with the names of files instead of their paths, which are only for the log of the server.
fn without_folders(text: &str) -> String {
    let name = |word: &str| match word.strip_prefix('/') {
        Some(path) => path.rsplit('/').next().unwrap_or_default().to_owned(),
        None => word.to_owned(),
    };
    text.split(' ').map(name).collect::<Vec<_>>().join(" ")
}

impl Progress for Job {
    fn stage(&self, name: &str, total: Option<u64>) {
        self.with(|view| (view.stage, view.done, view.total) = (name.to_owned(), 0, total));
    }

    fn advance(&self, n: u64) {
        self.with(|view| view.done += n);
    }

    fn detail(&self, text: &str) {
        self.with(|view| view.detail = text.to_owned());
    }

    fn note(&self, text: &str) {
        self.with(|view| {
            if view.notes.len() == MAX_NOTES {
                view.notes.remove(0);
            }
            view.notes.push(without_folders(text));
        });
    }

    fn interrupted(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }
}

/// The jobs since the server started.
#[derive(Default)]
pub struct Jobs {
    next: AtomicU64,
    jobs: Mutex<BTreeMap<u64, Arc<Job>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    line: Arc<Line>,
}

/// The jobs in the order of their requests. The first one works.
#[derive(Default)]
struct Line {
    jobs: Mutex<VecDeque<u64>>,
    moved: Condvar,
}

/// Time between two looks of a waiting job at whether it is cancelled.
const LOOK: Duration = Duration::from_millis(100);

impl Line {
    /// Waits until the job is the first. The job leaves the line when the result is dropped.
    fn wait(&self, id: u64, job: &Job) -> engine::Result<Turn<'_>> {
        let turn = Turn { line: self, id };
        let mut jobs = self.jobs.lock();
        while jobs.front() != Some(&id) {
            if job.interrupted() {
                drop(jobs);
                return Err(Error::Interrupted);
            }
            self.moved.wait_for(&mut jobs, LOOK);
        }
        Ok(turn)
    }
}

/// A place in the line.
struct Turn<'a> {
    line: &'a Line,
    id: u64,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.line.jobs.lock().retain(|id| *id != self.id);
        self.line.moved.notify_all();
    }
}

/// Jobs stored; older ones are forgotten.
const MAX_JOBS: usize = 1000;

impl Jobs {
    /// Starts work on its own thread. One job works at a time, because training uses every core; the others wait in the order
    /// of their requests. An index has one job at a time.
    pub fn start(
        &self,
        kind: &str,
        index: &str,
        work: impl FnOnce(&Job) -> engine::Result<serde_json::Value> + Send + 'static,
    ) -> Answer<JobView> {
        let mut jobs = self.jobs.lock();
        let busy = |job: &Job| job.with(|view| view.status == Status::Running && view.index == index);
        if let Some((id, _)) = jobs.iter().find(|(_, job)| busy(job)) {
            return Err(Problem::conflict(
                Code::IndexBusy,
                format!("job {id} is running on this index; wait for it, or cancel it with DELETE /v1/jobs/{id}"),
            ));
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let view = JobView {
            id,
            kind: kind.to_owned(),
            index: index.to_owned(),
            status: Status::Running,
            stage: if self.line.jobs.lock().is_empty() { String::new() } else { WAITING.into() },
            done: 0,
            total: None,
            detail: String::new(),
            notes: Vec::new(),
            error: None,
            result: None,
            started: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            seconds: 0.0,
        };
        let job = Arc::new(Job { stop: AtomicBool::new(false), started_at: Instant::now(), view: Mutex::new(view) });
        let (own, line) = (job.clone(), self.line.clone());
        line.jobs.lock().push_back(id);
        let queued = self.line.clone();
        let thread = std::thread::Builder::new().name(format!("job {id}")).spawn(move || {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let _turn = line.wait(id, &own)?;
                own.stage("", None);
                work(&own)
            }));
            let seconds = own.started_at.elapsed().as_secs_f64();
            own.with(|view| {
                view.seconds = seconds;
                match result {
                    Ok(Ok(value)) => (view.status, view.result) = (Status::Succeeded, Some(value)),
                    Ok(Err(Error::Interrupted)) => view.status = Status::Cancelled,
                    Ok(Err(error)) => {
                        tracing::warn!(job = view.id, index = view.index, %error, "a job failed");
                        // Without paths of the server.
                        let told = Problem::of(Code::BadQuery)(error).details.message;
                        (view.status, view.error) = (Status::Failed, Some(told));
                    }
                    Err(_) => {
                        let text = "the server failed on this job; its log says why";
                        (view.status, view.error) = (Status::Failed, Some(text.into()));
                    }
                }
                tracing::info!(job = view.id, index = view.index, status = ?view.status, seconds, error = view.error, "job ended");
            });
        });
        let thread = thread.map_err(|e| {
            queued.jobs.lock().retain(|other| *other != id);
            Problem::internal(format!("cannot start a thread: {e}"))
        })?;
        let mut threads = self.threads.lock();
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        drop(threads);
        let view = job.view();
        jobs.insert(id, job);
        while jobs.len() > MAX_JOBS {
            jobs.pop_first();
        }
        Ok(view)
    }

    /// All jobs, newest first.
    pub fn list(&self) -> Vec<JobView> {
        let jobs = self.jobs.lock();
        jobs.values().rev().map(|job| job.view()).collect()
    }

    /// A job of an index that the caller reaches.
    pub fn get_for(&self, access: &Access, id: u64) -> Answer<Arc<Job>> {
        access.expect_whole()?;
        let jobs = self.jobs.lock();
        jobs.get(&id).filter(|job| access.reaches(&job.view().index)).cloned().ok_or_else(|| {
            Problem::not_found(Code::UnknownJob, format!("there is no job {id}; GET /v1/jobs lists all jobs"))
        })
    }

    pub fn running(&self, index: &str) -> bool {
        let jobs = self.jobs.lock();
        jobs.values().any(|job| job.with(|view| view.status == Status::Running && view.index == index))
    }

    /// Cancels all jobs and waits for their threads.
    pub fn stop(&self) {
        for job in self.jobs.lock().values() {
            job.cancel();
        }
        for thread in self.threads.lock().drain(..) {
            let _ = thread.join();
        }
    }
}
