//! The indexes an assistant may search, each at its latest commit.

use std::path::PathBuf;
use std::sync::Arc;

use engine::encoder::QueryEncoder;
use engine::index::Index;
use engine::model::Encoders;
use engine::query::Searcher;
use engine::{Error, NoProgress, Progress, Result};
use parking_lot::RwLock;

pub struct Indexes {
    opened: Vec<Opened>,
    encoders: Encoders,
    pub query_encoder: QueryEncoder,
}

pub struct Opened {
    pub name: String,
    dir: PathBuf,
    searcher: RwLock<Arc<Searcher>>,
}

impl Indexes {
    /// Opens every index; reads only metadata. The first text of a query loads the encoder.
    pub fn open(named: &[(String, PathBuf)], query_encoder: QueryEncoder, progress: &dyn Progress) -> Result<Indexes> {
        let open = |(name, dir): &(String, PathBuf)| {
            let searcher = RwLock::new(Arc::new(Searcher::open(dir, progress)?));
            Ok(Opened { name: name.clone(), dir: dir.clone(), searcher })
        };
        let opened = named.iter().map(open).collect::<Result<_>>()?;
        Ok(Indexes { opened, encoders: Encoders::default(), query_encoder })
    }

    pub fn iter(&self) -> impl Iterator<Item = &Opened> {
        self.opened.iter()
    }

    /// The names, as a sentence lists them.
    pub fn names(&self) -> String {
        self.opened.iter().map(|opened| opened.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// The index of this name. Where there is only one, no name is needed.
    pub fn named(&self, name: Option<&str>) -> Result<&Opened> {
        match (name, self.opened.as_slice()) {
            (None, [one]) => Ok(one),
            (None, _) => Err(Error::config(format!("index is missing; give one of: {}", self.names()))),
            (Some(name), all) => all
                .iter()
                .find(|opened| opened.name == name)
                .ok_or_else(|| Error::config(format!("there is no index \"{name}\"; give one of: {}", self.names()))),
        }
    }

    /// A searcher for texts. Indexes with equal encoders share one.
    pub fn for_texts(&self, opened: &Opened) -> Result<Arc<Searcher>> {
        let searcher = opened.current()?;
        let has_no_encoder = searcher.index().model().config.embedding.is_none();
        if has_no_encoder || self.query_encoder == QueryEncoder::Fast || searcher.has_embedder() {
            return Ok(searcher);
        }
        let with = |model: &_| self.encoders.of(model, &NoProgress);
        let searcher = Arc::new(Searcher::open_with(&opened.dir, with, &NoProgress)?);
        *opened.searcher.write() = searcher.clone();
        Ok(searcher)
    }
}

impl Opened {
    /// A searcher of the latest commit, also if another index took the directory.
    pub fn current(&self) -> Result<Arc<Searcher>> {
        let searcher = self.searcher.read().clone();
        let reload = |index: &Index| index.reload(&NoProgress).map(drop);
        match searcher.indexes().iter().try_for_each(reload) {
            Ok(()) => Ok(searcher),
            Err(Error::Format { .. } | Error::Io { .. }) => {
                let searcher = Arc::new(Searcher::open(&self.dir, &NoProgress)?);
                *self.searcher.write() = searcher.clone();
                Ok(searcher)
            }
            Err(error) => Err(error),
        }
    }

    /// The index, for what shards cannot do together.
    pub fn single(&self) -> Result<Index> {
        let searcher = self.current()?;
        match searcher.indexes() {
            [index] => Ok(index.clone()),
            shards => Err(Error::config(format!(
                "index \"{}\" has {} shards, and topics are found in one index only; search it instead",
                self.name,
                shards.len()
            ))),
        }
    }
}
