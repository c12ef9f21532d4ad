//! Queries to embeddings, with an encoder that the first text loads.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::ask::{Embedded, Like, Point, Query};
use crate::encoder::{Embedder, Role};
use crate::model::{EmbeddingConfig, Model};
use crate::{Error, Matrix, Progress, Result};
use parking_lot::Mutex;

/// A model's encoder, loaded when it is needed.
#[derive(Default)]
pub(super) struct LazyEmbedder {
    embedder: OnceLock<Arc<Embedder>>,
    // Held while the encoder is loaded, so that two queries at once load it once.
    loading: Mutex<()>,
}

impl LazyEmbedder {
    /// Takes the encoder of a model if it is loaded.
    pub fn new(model: &Model, embedder: Option<Arc<Embedder>>) -> Result<LazyEmbedder> {
        let lazy = LazyEmbedder::default();
        if let Some(embedder) = embedder {
            expect_embedder(model, &embedder)?;
            let _ = lazy.embedder.set(embedder);
        }
        Ok(lazy)
    }

    pub fn is_loaded(&self) -> bool {
        self.embedder.get().is_some()
    }

    /// The encoder the model was trained with. The first call loads it.
    pub fn get(&self, model: &Model, progress: &dyn Progress) -> Result<&Arc<Embedder>> {
        if self.embedder.get().is_none() {
            let _exclusive = self.loading.lock();
            if self.embedder.get().is_none() {
                let _ = self.embedder.set(Arc::new(Embedder::for_model(model, None, progress)?));
            }
        }
        Ok(self.embedder.get().expect("set above"))
    }

    /// Encodes the texts of many queries in one pass.
    pub fn embed(&self, model: &Model, queries: &[Query], progress: &dyn Progress) -> Result<Vec<Embedded>> {
        for (number, query) in queries.iter().enumerate() {
            query.validate(number, model.inputs())?;
        }
        let like = || queries.iter().flat_map(|q| q.like.iter().map(|(like, _)| like));
        let texts: Vec<&str> =
            like().filter_map(|l| if let Like::Text(t) = l { Some(t.as_str()) } else { None }).collect();
        let (mut tokenise, mut encode) = (Duration::ZERO, Duration::ZERO);
        let vectors = if texts.is_empty() {
            Matrix::default()
        } else {
            let embedder = self.get(model, progress)?;
            let begun = Instant::now();
            let tokens = embedder.tokens_of(Role::Query, &texts)?;
            tokenise = begun.elapsed();
            let vectors = embedder.encode_tokens_of(Role::Query, &tokens, progress)?;
            encode = begun.elapsed() - tokenise;
            vectors
        };
        let mut encoded = vectors.iter();
        let mut point = |like: &Like| match like {
            Like::Text(_) => Point::Embedding(encoded.next().expect("a vector for every text").to_vec()),
            Like::Vector(vector) => Point::Embedding(vector.clone()),
            Like::Document(id) => Point::Document(id.clone()),
        };
        let embedded = queries.iter().map(|query| Embedded {
            like: query.like.iter().map(|(like, weight)| (point(like), *weight)).collect(),
            keywords: query.all_keywords(),
            tokenise,
            encode,
        });
        Ok(embedded.collect())
    }
}

/// Refuses another encoder than the one the model was trained with, or the same with other settings.
fn expect_embedder(model: &Model, embedder: &Embedder) -> Result<()> {
    let Some(expected) = &model.config.embedding else {
        return Err(Error::config("the model of this index was trained on user vectors; it has no encoder"));
    };
    let given = embedder.config();
    // The hash decides, not the name. The user may choose another precision.
    let same = EmbeddingConfig { encoder: expected.encoder.clone(), precision: expected.precision, ..given.clone() };
    if same != *expected {
        return Err(Error::config(format!(
            "the encoder given is {} ({given:?}), the model of this index was trained with {} ({expected:?})",
            given.encoder, expected.encoder
        )));
    }
    Ok(())
}
