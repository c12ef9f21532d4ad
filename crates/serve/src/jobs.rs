//! Long work in the background, with progress that can be looked at and a way to stop it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use micpq::{Error, Watch};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::problem::{Answer, Code, Problem};

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// At work.
    Running,
    /// Done.
    Succeeded,
    /// Ended by a failure, which `error` tells.
    Failed,
    /// Stopped by a caller or with the server.
    Cancelled,
}

/// A job as callers see it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct JobView {
    /// Its number.
    pub id: u64,
    /// What it does: `train`.
    #[schema(example = "train")]
    pub kind: String,
    /// The index it works on.
    pub index: String,
    /// Where it stands.
    pub status: Status,
    /// What it does at present.
    pub stage: String,
    /// Units of the stage that are done.
    pub done: u64,
    /// Units of the stage, where the number is known.
    pub total: Option<u64>,
    /// A figure of the moment, such as a loss.
    pub detail: String,
    /// The last lines worth keeping.
    pub notes: Vec<String>,
    /// Why it failed.
    pub error: Option<String>,
    /// What it gave: for training the model's fingerprint and its best score.
    #[schema(value_type = Option<Object>)]
    pub result: Option<serde_json::Value>,
    /// When it began, in seconds since 1970.
    pub started: u64,
    /// How long it ran or runs.
    pub seconds: f64,
}

/// A job: it is the [`Watch`] its work reports to.
pub struct Job {
    stop: AtomicBool,
    begun: Instant,
    view: Mutex<JobView>,
}

/// Lines kept of a job's notes.
const NOTES: usize = 50;

impl Job {
    /// As it stands now.
    pub fn view(&self) -> JobView {
        let mut view = self.with(|view| view.clone());
        if view.status == Status::Running {
            view.seconds = self.begun.elapsed().as_secs_f64();
        }
        view
    }

    /// Asks it to stop at the next safe place.
    pub fn cancel(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    fn with<T>(&self, look: impl FnOnce(&mut JobView) -> T) -> T {
        look(&mut self.view.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Watch for Job {
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
            if view.notes.len() == NOTES {
                view.notes.remove(0);
            }
            view.notes.push(text.to_owned());
        });
    }

    fn interrupted(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }
}

/// All jobs since the server began.
#[derive(Default)]
pub struct Jobs {
    next: AtomicU64,
    jobs: Mutex<BTreeMap<u64, Arc<Job>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Jobs remembered.
const KEPT: usize = 1000;

impl Jobs {
    /// Starts work on a thread of its own. One job runs at a time: training takes every core.
    pub fn start(
        &self,
        kind: &str,
        index: &str,
        work: impl FnOnce(&Job) -> micpq::Result<serde_json::Value> + Send + 'static,
    ) -> Answer<JobView> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
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
        let job = Arc::new(Job { stop: AtomicBool::new(false), begun: Instant::now(), view: Mutex::new(view) });
        let own = job.clone();
        let thread = std::thread::Builder::new().name(format!("job {id}")).spawn(move || {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&own)));
            let seconds = own.begun.elapsed().as_secs_f64();
            own.with(|view| {
                view.seconds = seconds;
                match result {
                    Ok(Ok(value)) => (view.status, view.result) = (Status::Succeeded, Some(value)),
                    Ok(Err(Error::Interrupted)) => view.status = Status::Cancelled,
                    Ok(Err(error)) => (view.status, view.error) = (Status::Failed, Some(error.to_string())),
                    Err(_) => {
                        let text = "it ended by a mistake of the server; its log says more";
                        (view.status, view.error) = (Status::Failed, Some(text.into()));
                    }
                }
                tracing::info!(job = view.id, index = view.index, status = ?view.status, seconds, error = view.error, "job ended");
            });
        });
        let thread = thread.map_err(|e| Problem::internal(format!("a thread cannot be started: {e}")))?;
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        let view = job.view();
        jobs.insert(id, job);
        while jobs.len() > KEPT {
            jobs.pop_first();
        }
        Ok(view)
    }

    /// All of them, the newest first.
    pub fn list(&self) -> Vec<JobView> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.values().rev().map(|job| job.view()).collect()
    }

    /// One by its number.
    pub fn get(&self, id: u64) -> Answer<Arc<Job>> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.get(&id).cloned().ok_or_else(|| {
            Problem::not_found(Code::UnknownJob, format!("there is no job {id}; GET /v1/jobs lists those there are"))
        })
    }

    /// Whether a job of this index runs.
    pub fn running(&self, index: &str) -> bool {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.values().any(|job| job.with(|view| view.status == Status::Running && view.index == index))
    }

    /// Stops what runs and waits for it.
    pub fn stop(&self) {
        for job in self.jobs.lock().unwrap_or_else(PoisonError::into_inner).values() {
            job.cancel();
        }
        for thread in self.threads.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = thread.join();
        }
    }
}
