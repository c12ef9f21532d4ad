//! Queries to embeddings, with an encoder that the first text loads.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::ask::{Embedded, Like, Point, Query};
use crate::encoder::{Embedder, EmbeddingConfig, QueryEncoder, Role};
use crate::error::Remedy;
use crate::model::{FastEncoder, Model};
use crate::{Error, Matrix, Progress, Result};
use parking_lot::Mutex;

/// A model's encoder and its distilled copy, each loaded when it is needed.
#[derive(Default)]
pub(super) struct LazyEmbedder {
    embedder: OnceLock<Arc<Embedder>>,
    fast: OnceLock<Arc<FastEncoder>>,
    // Of the model, where the distilled copy lies.
    directory: Option<PathBuf>,
    // Held while an encoder is loaded, so that two queries at once load it once.
    loading: Mutex<()>,
}

impl LazyEmbedder {
    /// Takes the encoder of a model if it is loaded. The model lies in `directory`.
    pub fn new(model: &Model, directory: &Path, embedder: Option<Arc<Embedder>>) -> Result<LazyEmbedder> {
        let lazy = LazyEmbedder { directory: Some(directory.to_path_buf()), ..LazyEmbedder::default() };
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
                let _ = self.embedder.set(Arc::new(model.embedder(None, progress)?));
            }
        }
        Ok(self.embedder.get().expect("set above"))
    }

    /// Wakes the threads that will encode a text that is about to come, where the encoder is loaded.
    pub fn wake(&self) {
        if let Some(embedder) = self.embedder.get() {
            embedder.wake();
        }
    }

    /// The distilled copy of the encoder. The first call loads it.
    pub fn fast(&self, model: &Model) -> Result<&Arc<FastEncoder>> {
        if self.fast.get().is_none() {
            let _exclusive = self.loading.lock();
            if self.fast.get().is_none() {
                let directory = self.directory.as_deref();
                let loaded = directory.map_or(Ok(None), |dir| FastEncoder::load(dir, model))?;
                let missing = || {
                    Error::config("this index has no fast query encoder; distil one, or search with the full encoder")
                        .remedied(Remedy::Distil)
                };
                let _ = self.fast.set(Arc::new(loaded.ok_or_else(missing)?));
            }
        }
        Ok(self.fast.get().expect("set above"))
    }

    /// Encodes the texts of many queries, in one pass per encoder.
    pub fn embed(&self, model: &Model, queries: &[Query], progress: &dyn Progress) -> Result<Vec<Embedded>> {
        for (number, query) in queries.iter().enumerate() {
            query.validate(number, model.inputs())?;
        }
        let texts_of = |encoder: QueryEncoder| -> Vec<&str> {
            let own = queries.iter().filter(|query| query.encoder == encoder);
            let like = own.flat_map(|query| query.like.iter().map(|(like, _)| like));
            like.filter_map(|like| if let Like::Text(text) = like { Some(text.as_str()) } else { None }).collect()
        };
        let (full, fast) = (texts_of(QueryEncoder::Full), texts_of(QueryEncoder::Fast));
        let (mut tokenise, mut encode) = (Duration::ZERO, Duration::ZERO);
        let mut vectors = Matrix::default();
        if !full.is_empty() {
            let embedder = self.get(model, progress)?;
            if full.len() == 1 {
                embedder.wake();
            }
            let begun = Instant::now();
            let tokens = embedder.tokens_of(Role::Query, &full)?;
            tokenise += begun.elapsed();
            let begun = Instant::now();
            vectors = embedder.encode_tokens_of(Role::Query, &tokens, progress)?;
            encode += begun.elapsed();
        }
        let mut distilled = (Matrix::default(), Matrix::default());
        if !fast.is_empty() {
            let encoder = self.fast(model)?;
            let begun = Instant::now();
            let tokens = encoder.tokens(&fast)?;
            tokenise += begun.elapsed();
            let begun = Instant::now();
            distilled = encoder.encode(&tokens);
            encode += begun.elapsed();
        }
        let mut encoded = vectors.iter();
        let mut distilled = distilled.0.iter().zip(distilled.1.iter());
        let whole = |embedding: &[f32]| Point::Embedding { embedding: embedding.to_vec(), projected: None };
        let mut point = |like: &Like, encoder: QueryEncoder| match (like, encoder) {
            (Like::Text(_), QueryEncoder::Full) => whole(encoded.next().expect("a vector for every text")),
            (Like::Text(_), QueryEncoder::Fast) => {
                let (embedding, projected) = distilled.next().expect("vectors for every text");
                Point::Embedding { embedding: embedding.to_vec(), projected: Some(projected.to_vec()) }
            }
            (Like::Vector(vector), _) => whole(vector),
            (Like::Document(id), _) => Point::Document(id.clone()),
        };
        let embedded = queries.iter().map(|query| Embedded {
            like: query.like.iter().map(|(like, weight)| (point(like, query.encoder), *weight)).collect(),
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
