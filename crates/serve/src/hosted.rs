//! An index being served: what it is searched with, and the two queues before it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;

use micpq::encoder::Features;
use micpq::index::Index;
use micpq::model::Model;
use micpq::query::Searcher;
use micpq::{Error, Result, Silent, Watch};

use crate::config::ServeConfig;
use crate::insight::Map;
use crate::metrics::Metrics;
use crate::queries::QueryQueue;
use crate::writes::WriteQueue;

/// Encoders in use: indexes whose models were trained with the same one share it.
#[derive(Default)]
pub struct Encoders {
    loaded: Mutex<Vec<Arc<Features>>>,
}

impl Encoders {
    /// The encoder of a model, loaded where it is not yet. `None` for a model of vectors the user brings.
    pub fn of(&self, model: &Model, watch: &dyn Watch) -> Result<Option<Arc<Features>>> {
        let Some(config) = &model.config.features else { return Ok(None) };
        // Held while it is loaded, so that two indexes load it once.
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(features) = loaded.iter().find(|features| features.config() == config) {
            return Ok(Some(features.clone()));
        }
        let features = Arc::new(Features::for_model(model, None, watch)?);
        loaded.push(features.clone());
        Ok(Some(features))
    }
}

/// An index by its name.
pub struct Hosted {
    name: String,
    dir: PathBuf,
    searcher: Arc<RwLock<Arc<Searcher>>>,
    /// Made over HTTP: it may be dropped over HTTP.
    pub ours: bool,
    /// The writer's commit that the last look found.
    seen: Mutex<Option<SystemTime>>,
    /// A map of the documents, of the commit it was made from.
    pub map: Mutex<Option<(u64, Arc<Map>)>>,
    /// Queries.
    pub queries: QueryQueue,
    /// Writes.
    pub writes: WriteQueue,
}

impl Hosted {
    /// Opens an index and starts its threads.
    pub fn open(
        name: &str,
        dir: &Path,
        ours: bool,
        encoders: &Encoders,
        config: &ServeConfig,
        metrics: Arc<Metrics>,
    ) -> Result<Hosted> {
        let searcher = Arc::new(RwLock::new(Arc::new(open(dir, encoders)?)));
        let current = || {
            let searcher = searcher.clone();
            move || searcher.read().unwrap_or_else(PoisonError::into_inner).clone()
        };
        let queries = QueryQueue::start(name, current(), config, metrics.clone());
        let writes = WriteQueue::start(name, current(), config, metrics);
        let hosted = Hosted {
            name: name.to_owned(),
            dir: dir.to_path_buf(),
            ours,
            seen: Mutex::new(None),
            map: Mutex::new(None),
            queries,
            writes,
            searcher,
        };
        *hosted.seen.lock().unwrap_or_else(PoisonError::into_inner) = hosted.commit_time();
        Ok(hosted)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it lies.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What it is searched with now.
    pub fn searcher(&self) -> Arc<Searcher> {
        self.searcher.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The index.
    pub fn index(&self) -> Index {
        self.searcher().index().clone()
    }

    /// Opens the directory anew, after another index was put in its place.
    pub fn reopen(&self, encoders: &Encoders) -> Result<()> {
        let new = Arc::new(open(&self.dir, encoders)?);
        *self.searcher.write().unwrap_or_else(PoisonError::into_inner) = new;
        *self.map.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Ok(())
    }

    /// Turns to commits of other programs. Looking costs one call to the file system.
    pub fn follow(&self) {
        let time = self.commit_time();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if *seen != time {
            match self.index().reload(&Silent) {
                Ok(_) => *seen = time,
                Err(error) => tracing::warn!(index = self.name, %error, "a newer commit cannot be read"),
            }
        }
    }

    fn commit_time(&self) -> Option<SystemTime> {
        std::fs::metadata(self.dir.join("store").join("meta.json")).and_then(|data| data.modified()).ok()
    }
}

/// An index that cannot find its encoder still answers vectors and examples.
fn open(dir: &Path, encoders: &Encoders) -> Result<Searcher> {
    let index = Index::open(dir, &Silent)?;
    let features = match encoders.of(index.model(), &Silent) {
        Ok(features) => features,
        Err(error @ (Error::Format { .. } | Error::Io { .. } | Error::Config(_))) => {
            tracing::warn!(index = %dir.display(), %error, "served without its encoder: texts will be refused");
            None
        }
        Err(error) => return Err(error),
    };
    Searcher::new(index, features)
}
