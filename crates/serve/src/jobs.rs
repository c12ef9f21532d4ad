//! Background jobs, with progress and cancellation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use engine::{Error, Progress};
use parking_lot::Mutex;
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
            view.notes.push(text.to_owned());
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
}

/// Jobs stored; older ones are forgotten.
const MAX_JOBS: usize = 1000;

impl Jobs {
    /// Starts work on its own thread. One job runs at a time: training uses every core.
    pub fn start(
        &self,
        kind: &str,
        index: &str,
        work: impl FnOnce(&Job) -> engine::Result<serde_json::Value> + Send + 'static,
    ) -> Answer<JobView> {
        let mut jobs = self.jobs.lock();
        if let Some((id, _)) = jobs.iter().find(|(_, job)| job.with(|view| view.status == Status::Running)) {
            return Err(Problem::conflict(
                Code::IndexBusy,
                format!("job {id} is running; wait for it, or cancel it with DELETE /v1/jobs/{id}"),
            ));
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let view = JobView {
            id,
            kind: kind.to_owned(),
            index: index.to_owned(),
            status: Status::Running,
            stage: String::new(),
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
        let own = job.clone();
        let thread = std::thread::Builder::new().name(format!("job {id}")).spawn(move || {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&own)));
            let seconds = own.started_at.elapsed().as_secs_f64();
            own.with(|view| {
                view.seconds = seconds;
                match result {
                    Ok(Ok(value)) => (view.status, view.result) = (Status::Succeeded, Some(value)),
                    Ok(Err(Error::Interrupted)) => view.status = Status::Cancelled,
                    Ok(Err(error)) => (view.status, view.error) = (Status::Failed, Some(error.to_string())),
                    Err(_) => {
                        let text = "the server failed on this job; its log says why";
                        (view.status, view.error) = (Status::Failed, Some(text.into()));
                    }
                }
                tracing::info!(job = view.id, index = view.index, status = ?view.status, seconds, error = view.error, "job ended");
            });
        });
        let thread = thread.map_err(|e| Problem::internal(format!("cannot start a thread: {e}")))?;
        self.threads.lock().push(thread);
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
