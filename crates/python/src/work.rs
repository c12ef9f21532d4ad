//! Runs long work without the interpreter's lock, handles Ctrl-C and reports progress.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use engine::{Progress, Result};
use parking_lot::Mutex;
use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::errors::{exception, raise};

/// Time between two checks for Ctrl-C and deliveries of progress.
const TICK: Duration = Duration::from_millis(50);

/// The threads of a process.
#[derive(Clone)]
enum Threads {
    /// rayon's global pool. Short work stays on the calling thread, which hands over only what is parallel.
    Global,
    /// A pool of our own.
    Own(Arc<ThreadPool>),
}

impl Threads {
    /// Starts threads of its own for this process; 0 is one per core.
    fn own(threads: usize) -> PyResult<Threads> {
        let built = builder(threads).build();
        built
            .map(|pool| Threads::Own(Arc::new(pool)))
            .map_err(|e| exception("StorageError", format!("cannot start threads: {e}")))
    }

    /// The global pool, where nothing has started it in this process or in the one it was forked from.
    fn first(threads: usize) -> PyResult<Threads> {
        if builder(threads).build_global().is_ok() { Ok(Threads::Global) } else { Threads::own(threads) }
    }

    fn install<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match self {
            Threads::Global => work(),
            Threads::Own(pool) => pool.install(work),
        }
    }
}

fn builder(threads: usize) -> ThreadPoolBuilder {
    ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("micpq-{i}"))
}

/// The threads of this process, by process id. Threads do not survive a fork, so a forked child would wait forever for those of
/// its parent, rayon's global pool among them: it finds the parent's id here and starts a pool of its own.
static THREADS: Mutex<Option<(u32, Threads)>> = Mutex::new(None);

fn threads_of_process() -> PyResult<Threads> {
    let mut known = THREADS.lock();
    let process = std::process::id();
    if let Some((owner, threads)) = &*known
        && *owner == process
    {
        return Ok(threads.clone());
    }
    let fresh = if known.is_none() { Threads::first(0)? } else { Threads::own(0)? };
    // Not dropped: the parent's threads do not exist in this process, so joining them would hang.
    std::mem::forget(known.replace((process, fresh.clone())));
    Ok(fresh)
}

/// Sets the number of threads; 0 is one per core. Results do not depend on it.
#[pyfunction]
pub fn set_threads(threads: usize) -> PyResult<()> {
    let mut known = THREADS.lock();
    let process = std::process::id();
    let fresh = if known.is_none() { Threads::first(threads)? } else { Threads::own(threads)? };
    let before = known.replace((process, fresh));
    if before.as_ref().is_some_and(|(owner, _)| *owner != process) {
        std::mem::forget(before);
    }
    Ok(())
}

/// The number of threads.
#[pyfunction]
pub fn threads() -> PyResult<usize> {
    Ok(threads_of_process()?.install(rayon::current_num_threads))
}

/// A request to stop, set by another thread.
#[pyclass(frozen, module = "micpq._micpq")]
#[derive(Default)]
pub struct Stop {
    flag: Arc<AtomicBool>,
}

#[pymethods]
impl Stop {
    #[new]
    fn new() -> Self {
        Stop::default()
    }

    /// Asks the work to stop at its next safe point.
    fn set(&self) {
        self.flag.store(true, Ordering::SeqCst);
    }
}

enum Event {
    Stage(String, Option<u64>),
    Detail(String),
    Note(String),
    Warning(String),
}

/// Progress of the work, stored until the calling thread delivers it to Python.
#[derive(Default)]
struct Events {
    stop: Arc<AtomicBool>,
    reported: bool,
    waiting: Mutex<Vec<Event>>,
    done: AtomicU64,
}

impl Events {
    fn push(&self, event: Event) {
        if self.reported {
            self.waiting.lock().push(event);
        }
    }

    /// Calls `report(kind, text, number)` for every stored event.
    fn deliver(&self, py: Python<'_>, report: Option<&Py<PyAny>>) -> PyResult<()> {
        let Some(report) = report else { return Ok(()) };
        let waiting = std::mem::take(&mut *self.waiting.lock());
        for event in waiting {
            match event {
                Event::Stage(name, total) => report.call1(py, ("stage", name, total))?,
                Event::Detail(text) => report.call1(py, ("detail", text, None::<u64>))?,
                Event::Note(text) => report.call1(py, ("note", text, None::<u64>))?,
                Event::Warning(text) => report.call1(py, ("warning", text, None::<u64>))?,
            };
        }
        match self.done.swap(0, Ordering::Relaxed) {
            0 => Ok(()),
            done => report.call1(py, ("advance", "", done)).map(drop),
        }
    }
}

impl Progress for Events {
    fn stage(&self, name: &str, total: Option<u64>) {
        self.push(Event::Stage(name.to_owned(), total));
    }

    fn advance(&self, n: u64) {
        self.done.fetch_add(n, Ordering::Relaxed);
    }

    fn detail(&self, text: &str) {
        self.push(Event::Detail(text.to_owned()));
    }

    fn note(&self, text: &str) {
        self.push(Event::Note(text.to_owned()));
    }

    fn warn(&self, text: &str) {
        self.push(Event::Warning(text.to_owned()));
    }

    fn interrupted(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Runs work on its own thread. The calling thread waits without the interpreter's lock, and takes it every [`TICK`] to check
/// for Ctrl-C and to call `report`. An exception there stops the work and is raised when the work has ended.
pub fn run<T: Send>(
    py: Python<'_>,
    report: Option<Py<PyAny>>,
    stop: Option<&Stop>,
    work: impl FnOnce(&dyn Progress) -> Result<T> + Send,
) -> PyResult<T> {
    let threads = threads_of_process()?;
    let stop = stop.map(|s| s.flag.clone()).unwrap_or_default();
    let events = Events { stop: stop.clone(), reported: report.is_some(), ..Events::default() };
    let (outcome, raised) = py.detach(|| {
        std::thread::scope(|scope| {
            let (sender, finished) = mpsc::channel::<()>();
            let (events, threads) = (&events, &threads);
            let worker = scope.spawn(move || {
                // Dropped when the work ends, also by a panic.
                let _sender = sender;
                threads.install(|| work(events))
            });
            let mut raised: Option<PyErr> = None;
            while let Err(mpsc::RecvTimeoutError::Timeout) = finished.recv_timeout(TICK) {
                if raised.is_none() {
                    let delivered =
                        Python::attach(|py| py.check_signals().and_then(|()| events.deliver(py, report.as_ref())));
                    if let Err(problem) = delivered {
                        stop.store(true, Ordering::SeqCst);
                        raised = Some(problem);
                    }
                }
            }
            (worker.join(), raised)
        })
    });
    if let Some(problem) = raised {
        return Err(problem);
    }
    events.deliver(py, report.as_ref())?;
    into_python(outcome)
}

/// Runs work of milliseconds without the interpreter's lock: on the calling thread, or in a forked process, and after
/// [`set_threads`] of one that had threads, on a thread of its pool. To wake one and be woken by it takes longer than a small scan.
pub fn quick<T: Send>(
    py: Python<'_>,
    stop: Option<&Stop>,
    work: impl FnOnce(&dyn Progress) -> Result<T> + Send,
) -> PyResult<T> {
    let threads = threads_of_process()?;
    let events = Events { stop: stop.map(|s| s.flag.clone()).unwrap_or_default(), ..Events::default() };
    let guarded = || std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| threads.install(|| work(&events))));
    into_python(py.detach(guarded))
}

/// Runs work that may wait for bytes of a pipe, without the interpreter's lock and outside the pool: there it would keep a thread
/// from others.
pub fn waiting<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    into_python(py.detach(|| std::panic::catch_unwind(std::panic::AssertUnwindSafe(work))))
}

fn into_python<T>(outcome: std::result::Result<Result<T>, Box<dyn Any + Send>>) -> PyResult<T> {
    match outcome {
        Ok(result) => result.map_err(raise),
        Err(panic) => {
            let reason = panic.downcast_ref::<String>().map(String::as_str);
            let reason = reason.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
            Err(exception("Error", format!("this is a defect of micpq, please report it: {reason}")))
        }
    }
}
