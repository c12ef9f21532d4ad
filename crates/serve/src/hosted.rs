//! A served index: its searcher, and its queues of queries and writes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use engine::index::Index;
use engine::model::Encoders;
use engine::query::{Query, RecallReport, SearchConfig, Searcher};
use engine::topics::LatestTerms;
use engine::{Error, NoProgress, Result};
use parking_lot::{Mutex, RwLock};

use crate::config::ServeConfig;
use crate::mapped::LastMap;
use crate::metrics::Metrics;
use crate::queries::QueryQueue;
use crate::writes::WriteQueue;

pub struct Hosted {
    name: String,
    dir: PathBuf,
    searcher: Arc<RwLock<Arc<Searcher>>>,
    /// Created over HTTP, so that HTTP may drop it.
    pub ours: bool,
    /// Time of the newest commit that the server knows.
    seen: Mutex<Option<SystemTime>>,
    /// The last map, of the model that is served now.
    pub map: LastMap,
    /// The last topics that were found, of the model that is served now.
    pub topics: Mutex<Option<Arc<serde_json::Value>>>,
    /// What codewords stand for, by the model that is served now.
    pub codeword_terms: LatestTerms,
    /// Held while that is found out.
    pub finding_terms: tokio::sync::Mutex<()>,
    /// The last measurement of recall, of the model that is served now.
    pub recall: Mutex<Option<Arc<RecallReport>>>,
    pub queries: QueryQueue,
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
            move || searcher.read().clone()
        };
        let queries = QueryQueue::start(name, current(), config, metrics.clone())?;
        let writes = WriteQueue::start(name, current(), config, metrics)?;
        let hosted = Hosted {
            name: name.to_owned(),
            dir: dir.to_path_buf(),
            ours,
            seen: Mutex::new(None),
            map: LastMap::default(),
            topics: Mutex::new(None),
            codeword_terms: LatestTerms::default(),
            finding_terms: tokio::sync::Mutex::new(()),
            recall: Mutex::new(None),
            queries,
            writes,
            searcher,
        };
        *hosted.seen.lock() = hosted.commit_time();
        Ok(hosted)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The current searcher. Training replaces it.
    pub fn searcher(&self) -> Arc<Searcher> {
        self.searcher.read().clone()
    }

    pub fn index(&self) -> Index {
        self.searcher().index().clone()
    }

    /// Opens the directory again after another index replaced it.
    pub fn reopen(&self, encoders: &Encoders) -> Result<()> {
        let new = Arc::new(open(&self.dir, encoders)?);
        *self.searcher.write() = new;
        self.map.forget();
        *self.topics.lock() = None;
        self.codeword_terms.clear();
        *self.recall.lock() = None;
        Ok(())
    }

    /// Loads commits of other programs, and the index that has taken the place of this one. A check costs one file system
    /// call.
    pub fn follow(&self, encoders: &Encoders) {
        let time = self.commit_time();
        let mut seen = self.seen.lock();
        if *seen == time {
            return;
        }
        let index = self.index();
        let loaded = index.is_replaced().and_then(|is_replaced| match is_replaced {
            true => self.reopen(encoders),
            false => index.reload(&NoProgress).map(drop),
        });
        match loaded {
            Ok(()) => *seen = time,
            Err(error) => tracing::warn!(index = self.name, %error, "cannot read a newer commit"),
        }
    }

    fn commit_time(&self) -> Option<SystemTime> {
        std::fs::metadata(self.dir.join("store").join("meta.json")).and_then(|data| data.modified()).ok()
    }
}

/// Opens an index. Without its encoder an index still answers vector and document queries.
fn open(dir: &Path, encoders: &Encoders) -> Result<Searcher> {
    let index = Index::open(dir, &NoProgress)?;
    let embedder = match encoders.of(index.model(), &NoProgress) {
        Ok(embedder) => embedder,
        Err(error @ (Error::Format { .. } | Error::Io { .. } | Error::Config { .. })) => {
            tracing::warn!(index = %dir.display(), %error, "served without its encoder: texts will be refused");
            None
        }
        Err(error) => return Err(error),
    };
    let searcher = Searcher::new(index, embedder)?;
    warm(&searcher);
    Ok(searcher)
}

/// Answers one query, so that the first caller does not wait for checksums, for codes from the disk or for the encoder's
/// threads.
fn warm(searcher: &Searcher) {
    let vector = || Query::vector(vec![0.0; searcher.index().model().inputs()]);
    let query = if searcher.has_embedder() { Query::text("the first query") } else { vector() };
    if let Err(error) = searcher.search(&[query], &SearchConfig::default(), &NoProgress) {
        // The callers get the same error, for their own queries.
        tracing::warn!(index = %searcher.index().dir().display(), %error, "a first query failed");
    }
}
