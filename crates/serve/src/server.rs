//! State that all requests share.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use engine::error::Remedy;
use engine::index::{Index, IndexConfig};
use engine::internal::clear_folders;
use engine::model::Encoders;
use engine::model::Model;
use engine::{Error, Result};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Semaphore;

use crate::bounds::{Budget, Turns};
use crate::config::{ServeConfig, check_name};
use crate::hosted::Hosted;
use crate::jobs::Jobs;
use crate::keys::Access;
use crate::metrics::Metrics;
use crate::problem::{Answer, Code, Problem};
use crate::settings::Settings;

pub struct Server {
    /// The options of the start. Those that may change meanwhile are in `settings`.
    pub config: ServeConfig,
    pub settings: Settings,
    pub metrics: Arc<Metrics>,
    pub encoders: Encoders,
    pub jobs: Jobs,
    /// Limits concurrent streams.
    pub streams: Arc<Semaphore>,
    /// Limits the bytes of all bodies in memory.
    pub bodies: Budget,
    /// Limits the bytes of all unsent answers.
    pub answers: Budget,
    /// Limits concurrent embedding requests.
    pub embeddings: Turns,
    /// Limits concurrent requests that read much of an index.
    pub reads: Turns,
    indexes: RwLock<BTreeMap<String, Slot>>,
    // Locked while an index is created or dropped, so that two requests for one name do not collide.
    create_or_drop: Mutex<()>,
    phase: AtomicU8,
}

/// What a server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// It opens its indexes. Health is answered, other requests are refused.
    Opening,
    Serving,
    Stopping,
}

/// The entry of an index name.
enum Slot {
    Open(Arc<Hosted>),
    Unavailable(Unavailable),
}

/// An index that cannot be opened. The server retries it.
#[derive(Clone)]
pub struct Unavailable {
    pub name: String,
    /// Error message without paths of the server.
    pub reason: String,
    /// Created over HTTP, so that HTTP may drop it.
    pub ours: bool,
    dir: PathBuf,
    tried: Instant,
}

/// An error message for callers. Paths are only for the log.
fn reason(error: &Error) -> String {
    match error {
        Error::Format { problem, .. } => problem.clone(),
        Error::Io { source, .. } => source.to_string(),
        other => other.to_string(),
    }
}

pub fn unknown_index(name: &str) -> Problem {
    let shown: String = name.chars().take(80).collect();
    Problem::not_found(Code::UnknownIndex, format!("there is no index \"{shown}\"; GET /v1/indexes lists all indexes"))
}

/// Time between two attempts to open an unavailable index.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Suffix of a directory that is being removed. Its name begins with a dot, which no index name does.
const DROPPED_SUFFIX: &str = ".dropped";

/// Folder of backups in the data directory.
pub const BACKUPS: &str = "backups";

impl Server {
    /// A server without indexes; [`Server::open`] opens them.
    pub fn new(config: ServeConfig) -> Server {
        // More would not be faster: they share the cores.
        let reads = 2 * std::thread::available_parallelism().map_or(1, usize::from);
        Server {
            settings: Settings::new(&config),
            metrics: Arc::new(Metrics::new()),
            encoders: Encoders::default(),
            jobs: Jobs::default(),
            streams: Arc::new(Semaphore::new(config.max_streams)),
            bodies: Budget::new(config.max_bodies_bytes),
            answers: Budget::new(config.max_answers_bytes),
            embeddings: Turns::new("embedding requests", config.max_embeddings, config.queue),
            reads: Turns::new("requests that read much of an index", reads, config.queue),
            indexes: RwLock::default(),
            create_or_drop: Mutex::default(),
            phase: AtomicU8::new(Phase::Opening as u8),
            config,
        }
    }

    /// Opens the indexes of the configuration and of the data directory. An index that fails to open is unavailable. This
    /// fails only if nothing is left to serve.
    pub fn open(&self) -> Result<()> {
        let mut failed = None;
        for (name, dir) in &self.config.indexes {
            failed = self.try_host(name, dir, false).err().or(failed);
        }
        if let Some(data) = &self.config.data {
            std::fs::create_dir_all(data).map_err(Error::io(data))?;
            clear_leftovers(data);
            clear_leftovers(&data.join(BACKUPS));
            for dir in entries(data)? {
                let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
                if dir.join("index.json").is_file()
                    && check_name(&name).is_ok()
                    && !self.config.indexes.contains_key(&name)
                {
                    let _ = self.try_host(&name, &dir, true);
                }
            }
        }
        match failed {
            Some(error) if self.indexes().is_empty() && self.config.data.is_none() => Err(error),
            _ => Ok(()),
        }
    }

    /// The number of indexes that [`Server::open`] will open at most.
    pub fn expected_indexes(&self) -> usize {
        let data = self.config.data.as_ref().and_then(|data| std::fs::read_dir(data).ok());
        self.config.indexes.len() + data.map_or(0, Iterator::count)
    }

    fn host(&self, name: &str, dir: &Path, ours: bool) -> Result<Arc<Hosted>> {
        let hosted = Arc::new(Hosted::open(name, dir, ours, &self.encoders, &self.config, self.metrics.clone())?);
        tracing::info!(index = name, documents = hosted.index().len(), dir = %dir.display(), "index open");
        self.put(name, Slot::Open(hosted.clone()));
        Ok(hosted)
    }

    fn try_host(&self, name: &str, dir: &Path, ours: bool) -> Result<Arc<Hosted>> {
        // Reading a damaged file may panic. The other indexes must still be served.
        let opened = catch_unwind(AssertUnwindSafe(|| self.host(name, dir, ours)));
        let opened = opened.unwrap_or_else(|_| {
            Err(Error::format(dir, "cannot be read; verify it, which finds the damage").remedied(Remedy::VerifyIndex))
        });
        opened.inspect_err(|error| {
            let reason = reason(error);
            // Logged once per reason.
            if !self.unavailable().iter().any(|known| known.name == name && known.reason == reason) {
                tracing::error!(index = name, %error, "the index is unavailable; the other indexes are served");
            }
            let broken =
                Unavailable { name: name.to_owned(), reason, ours, dir: dir.to_owned(), tried: Instant::now() };
            self.put(name, Slot::Unavailable(broken));
        })
    }

    fn put(&self, name: &str, slot: Slot) {
        self.indexes.write().insert(name.to_owned(), slot);
    }

    /// Retries unavailable indexes: somebody may have repaired them.
    pub fn retry_unavailable(&self) {
        for broken in self.unavailable().into_iter().filter(|broken| broken.tried.elapsed() > RETRY_INTERVAL) {
            let _exclusive = self.create_or_drop.lock();
            // It may have been dropped in the meantime.
            if self.unavailable().iter().any(|still| still.name == broken.name) {
                let _ = self.try_host(&broken.name, &broken.dir, broken.ours);
            }
        }
    }

    pub fn index(&self, name: &str) -> Answer<Arc<Hosted>> {
        let indexes = self.indexes.read();
        match indexes.get(name) {
            Some(Slot::Open(hosted)) => Ok(hosted.clone()),
            Some(Slot::Unavailable(broken)) => Err(Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                Code::IndexUnavailable,
                format!("cannot open index \"{name}\": {}; the server's log says more", broken.reason),
            )),
            None => Err(unknown_index(name)),
        }
    }

    /// The open index of this name, where the caller reaches it. An index that he does not reach does not exist for him.
    pub fn index_for(&self, access: &Access, name: &str) -> Answer<Arc<Hosted>> {
        if access.reaches(name) { self.index(name) } else { Err(unknown_index(name)) }
    }

    /// The open indexes, ordered by name.
    pub fn indexes(&self) -> Vec<Arc<Hosted>> {
        let indexes = self.indexes.read();
        let open = indexes.values().filter_map(|slot| if let Slot::Open(hosted) = slot { Some(hosted) } else { None });
        open.cloned().collect()
    }

    pub fn unavailable(&self) -> Vec<Unavailable> {
        let indexes = self.indexes.read();
        let broken =
            indexes.values().filter_map(|slot| if let Slot::Unavailable(broken) = slot { Some(broken) } else { None });
        broken.cloned().collect()
    }

    /// The data directory, for what is created over HTTP.
    pub fn data(&self) -> Answer<&PathBuf> {
        self.config.data.as_ref().ok_or_else(|| {
            Problem::conflict(Code::Unsupported, "this server has no data directory; start it with the option data")
        })
    }

    /// Creates an empty index in the data directory and serves it.
    pub fn create(&self, name: &str, model: &Model, config: IndexConfig) -> Answer<Arc<Hosted>> {
        check_name(name).map_err(|e| Problem::bad_request(e.to_string()))?;
        let _exclusive = self.create_or_drop.lock();
        let dir = self.data()?.join(name);
        // The folder of backups uses this name.
        let taken = self.indexes.read().contains_key(name);
        let exists = || {
            let text = format!("index \"{name}\" exists; add to it, drop it first, or choose another name");
            Problem::conflict(Code::IndexExists, text)
        };
        if taken || dir.exists() || name == BACKUPS {
            return Err(exists());
        }
        Index::create_unopened(&dir, model, config).map_err(|error| {
            // Another program may have been faster. What it made stays.
            if dir.exists() { exists() } else { Problem::of(Code::BadRequest)(error) }
        })?;
        self.host(name, &dir, true).map_err(|error| {
            // It was made just now, by this request: without it, a retry finds the name free.
            let renamed = dropped_name(&dir, name);
            if std::fs::rename(&dir, &renamed).is_ok() {
                remove_dropped(&renamed);
            }
            Problem::of(Code::BadRequest)(error)
        })
    }

    /// Drops an index that was created over HTTP, with all its documents.
    pub fn drop_index(&self, name: &str) -> Answer<()> {
        let _exclusive = self.create_or_drop.lock();
        let (hosted, dir, ours) = match self.indexes.read().get(name) {
            Some(Slot::Open(hosted)) => (Some(hosted.clone()), hosted.dir().to_path_buf(), hosted.ours),
            Some(Slot::Unavailable(broken)) => (None, broken.dir.clone(), broken.ours),
            None => (None, PathBuf::new(), false),
        };
        if dir.as_os_str().is_empty() {
            return self.index(name).map(drop);
        }
        if !ours {
            return Err(Problem::conflict(
                Code::Unsupported,
                "this index was not created over HTTP and cannot be dropped over HTTP; remove its directory",
            ));
        }
        if self.jobs.running(name) {
            return Err(Problem::conflict(Code::IndexBusy, "a job is using this index; cancel it first"));
        }
        // The order matters. First no new caller finds the index, then its writer stops, then the directory goes. So no old
        // write can reach a new index of the same name.
        self.indexes.write().remove(name);
        self.metrics.forget(name);
        if let Some(hosted) = &hosted {
            hosted.writes.close();
        }
        // Renames before it removes: a crash in between leaves no partial index under the name.
        let renamed = dropped_name(&dir, name);
        if renamed.exists() {
            remove_dropped(&renamed);
        }
        if let Err(error) = std::fs::rename(&dir, &renamed) {
            let _ = self.try_host(name, &dir, true);
            return Err(Problem::of(Code::Storage)(Error::io(&dir)(error)));
        }
        drop(hosted);
        if let Err(error) = engine::internal::sync_directory(engine::internal::parent(&dir)) {
            // Nothing of it is removed while a power cut may bring the name back.
            if std::fs::rename(&renamed, &dir).is_ok() {
                let _ = self.try_host(name, &dir, true);
            }
            return Err(Problem::of(Code::Storage)(error));
        }
        remove_dropped(&renamed);
        Ok(())
    }

    pub fn phase(&self) -> Phase {
        [Phase::Opening, Phase::Serving, Phase::Stopping][usize::from(self.phase.load(Ordering::SeqCst))]
    }

    pub fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::SeqCst);
    }
}

/// The entries of a directory, ordered by name.
fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(dir).map_err(Error::io(dir))?;
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<std::io::Result<_>>().map_err(Error::io(dir))?;
    paths.sort();
    Ok(paths)
}

/// Removes what a stopped server left of indexes that it dropped, created, retrained or backed up. A failure is logged: the next
/// start tries again.
fn clear_leftovers(dir: &Path) {
    let found = match entries(dir) {
        Ok(found) => found,
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => return,
        Err(error) => return tracing::warn!(%error, "cannot look for leftovers"),
    };
    for path in found {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') && name.ends_with(DROPPED_SUFFIX) {
            remove_dropped(&path);
        } else if let Some((index, _)) = name.strip_prefix('.').and_then(|rest| rest.split_once(".micpq-"))
            && let Err(error) = clear_folders(&dir.join(index), None)
        {
            tracing::warn!(%error, path = %path.display(), "cannot remove what a stopped server left");
        }
    }
}

/// Where the directory of an index is until it is removed.
fn dropped_name(dir: &Path, name: &str) -> PathBuf {
    engine::internal::beside(&dir.with_file_name(format!(".{name}")), DROPPED_SUFFIX)
}

/// Removes the directory of a dropped index. If this fails, the next start removes it.
fn remove_dropped(dir: &Path) {
    match std::fs::remove_dir_all(dir) {
        Ok(()) => tracing::info!(dir = %dir.display(), "removed a dropped index"),
        Err(error) => {
            tracing::warn!(%error, dir = %dir.display(), "cannot remove a dropped index");
        }
    }
}
