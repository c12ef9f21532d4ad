//! Loaded encoders that several indexes share.

use std::sync::Arc;

use parking_lot::Mutex;

use super::Model;
use crate::encoder::Embedder;
use crate::{Progress, Result};

/// The loaded encoders. Indexes with equal encoders share one.
#[derive(Default)]
pub struct Encoders {
    loaded: Mutex<Vec<Arc<Embedder>>>,
}

impl Encoders {
    /// The encoder of a model, loaded on first use. `None` for a model of user vectors.
    pub fn of(&self, model: &Model, progress: &dyn Progress) -> Result<Option<Arc<Embedder>>> {
        let Some(config) = &model.config.embedding else { return Ok(None) };
        // Locked during the load, so that two indexes load it once.
        let mut loaded = self.loaded.lock();
        if let Some(embedder) = loaded.iter().find(|embedder| embedder.config() == config) {
            return Ok(Some(embedder.clone()));
        }
        let embedder = Arc::new(model.embedder(None, progress)?);
        loaded.push(embedder.clone());
        Ok(Some(embedder))
    }
}
