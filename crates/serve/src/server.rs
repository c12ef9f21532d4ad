//! What all requests share.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use micpq::index::{Index, IndexConfig};
use micpq::model::Model;
use micpq::{Error, Result};
use tokio::sync::Semaphore;

use crate::config::{ServeConfig, check_name};
use crate::hosted::{Encoders, Hosted};
use crate::jobs::Jobs;
use crate::keys::Keys;
use crate::metrics::Metrics;
use crate::problem::{Answer, Code, Problem};

/// The server.
pub struct Server {
    /// How it runs.
    pub config: ServeConfig,
    /// Who may do what.
    pub keys: Keys,
    /// What it counts.
    pub metrics: Arc<Metrics>,
    /// Its encoders.
    pub encoders: Encoders,
    /// Work in the background.
    pub jobs: Jobs,
    /// Room for streams of documents.
    pub streams: Arc<Semaphore>,
    indexes: RwLock<BTreeMap<String, Arc<Hosted>>>,
    // Held while an index is made or dropped, so that two of one name do not meet.
    making: Mutex<()>,
    ready: AtomicBool,
}

/// Where snapshots lie in the data directory.
pub const SNAPSHOTS: &str = "snapshots";

impl Server {
    /// A server without indexes; [`Server::open`] brings them.
    pub fn new(config: ServeConfig) -> Server {
        Server {
            keys: Keys::new(&config.keys),
            metrics: Arc::new(Metrics::new()),
            encoders: Encoders::default(),
            jobs: Jobs::default(),
            streams: Arc::new(Semaphore::new(config.max_streams)),
            indexes: RwLock::default(),
            making: Mutex::default(),
            ready: AtomicBool::new(false),
            config,
        }
    }

    /// Opens the indexes of the configuration and of the data directory.
    pub fn open(&self) -> Result<()> {
        for (name, dir) in &self.config.indexes {
            self.host(name, dir, false)?;
        }
        if let Some(data) = &self.config.data {
            std::fs::create_dir_all(data).map_err(Error::io(data))?;
            let mut found: Vec<PathBuf> = Vec::new();
            for entry in std::fs::read_dir(data).map_err(Error::io(data))? {
                found.push(entry.map_err(Error::io(data))?.path());
            }
            found.sort();
            for dir in found {
                let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
                if dir.join("index.json").is_file()
                    && check_name(&name).is_ok()
                    && !self.config.indexes.contains_key(&name)
                {
                    self.host(&name, &dir, true)?;
                }
            }
        }
        Ok(())
    }

    fn host(&self, name: &str, dir: &std::path::Path, ours: bool) -> Result<Arc<Hosted>> {
        let hosted = Arc::new(Hosted::open(name, dir, ours, &self.encoders, &self.config, self.metrics.clone())?);
        tracing::info!(index = name, documents = hosted.index().len(), dir = %dir.display(), "index open");
        self.indexes.write().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), hosted.clone());
        Ok(hosted)
    }

    /// An index by its name.
    pub fn index(&self, name: &str) -> Answer<Arc<Hosted>> {
        let indexes = self.indexes.read().unwrap_or_else(PoisonError::into_inner);
        indexes.get(name).cloned().ok_or_else(|| {
            let shown: String = name.chars().take(80).collect();
            Problem::not_found(
                Code::UnknownIndex,
                format!("there is no index \"{shown}\"; GET /v1/indexes lists those there are"),
            )
        })
    }

    /// All indexes in the order of their names.
    pub fn indexes(&self) -> Vec<Arc<Hosted>> {
        self.indexes.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Where what is made over HTTP goes.
    pub fn data(&self) -> Answer<&PathBuf> {
        self.config.data.as_ref().ok_or_else(|| {
            Problem::conflict(
                Code::Unsupported,
                "this server has no data directory to put it in; start it with --data DIR",
            )
        })
    }

    /// Makes an empty index in the data directory and serves it.
    pub fn create(&self, name: &str, model: &Model, config: IndexConfig) -> Answer<Arc<Hosted>> {
        check_name(name).map_err(|e| Problem::bad_request(e.to_string()))?;
        let _alone = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = self.data()?.join(name);
        // The name of the folder of snapshots is taken.
        if self.index(name).is_ok() || dir.exists() || name == SNAPSHOTS {
            return Err(Problem::conflict(
                Code::IndexExists,
                format!("there is an index \"{name}\" already; add to it, drop it first, or take another name"),
            ));
        }
        Index::create(&dir, model, config).map_err(Problem::of(Code::BadRequest))?;
        self.host(name, &dir, true).map_err(Problem::of(Code::BadRequest))
    }

    /// Drops an index that was made over HTTP, with everything in it.
    pub fn drop_index(&self, name: &str) -> Answer<()> {
        let _alone = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let hosted = self.index(name)?;
        if !hosted.ours {
            return Err(Problem::conflict(
                Code::Unsupported,
                "this index was given to the server by its path and is not dropped over HTTP; remove its directory",
            ));
        }
        if self.jobs.running(name) {
            return Err(Problem::conflict(Code::IndexBusy, "a job works on this index; cancel it first"));
        }
        self.indexes.write().unwrap_or_else(PoisonError::into_inner).remove(name);
        self.metrics.forget(name);
        let dir = hosted.dir().to_path_buf();
        // Out of sight at once, then away: a crash in between leaves no half an index under its name.
        let away = micpq::disk::beside(&dir.with_file_name(format!(".{name}")), ".dropped");
        std::fs::rename(&dir, &away).map_err(Error::io(&dir)).map_err(Problem::of(Code::Storage))?;
        drop(hosted);
        if let Err(error) = std::fs::remove_dir_all(&away) {
            tracing::warn!(%error, dir = %away.display(), "what is left of a dropped index could not be removed");
        }
        Ok(())
    }

    /// Whether requests can be answered.
    pub fn ready(&self) -> bool {
        self.ready.load(Ordering::SeqCst)
    }

    /// Says so, or that no more should come.
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::SeqCst);
    }
}
