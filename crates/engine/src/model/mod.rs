//! A trained model: a projection of embeddings, codebooks, and the options of its training.
//!
//! Every method ends in the same three parts, which is why one index and one search serve them all: dense layers with
//! ReLU between them (MICPQ two, a rotation one, a hash one or more), `M` codebooks of `K` codewords, and a [`Distance`].
//! A binary hash is `K = 2` with the codewords -1 and +1 of one dimension: the nearest codeword is the sign. A [`FastEncoder`]
//! may lie beside them: encoder and projection, distilled for queries. [`KindTables`] are part of a model that was trained to find
//! documents of a kind as well as the particular one.

mod shape;
mod projection;
mod cells;
mod codebooks;
mod kind;
mod directory;
mod card;

mod fast;
mod encoders;

#[cfg(test)]
pub(crate) mod plain_tests;

pub use cells::Cells;
pub use codebooks::{Codebooks, Distance, DistanceTable};
pub use directory::{FORMAT, ModelConfig, OLDEST_READABLE};
pub use encoders::Encoders;
pub use fast::{FastEncoder, FastInfo, FastParts};
pub use kind::KindTables;
pub use projection::{Dense, Projection};
pub use shape::CodeShape;

use crate::encoder::{Embedder, Precision, pull};
use crate::{Error, Matrix, Progress, Result};

/// A model in memory: it turns embeddings into codes and queries into distance tables.
///
/// The front page of this crate builds one by hand; `Model::load` reads a trained one.
///
/// ```
/// use engine::Matrix;
/// use engine::model::Model;
///
/// let model = Model::load("tests/data/index-3/model".as_ref())?;
/// assert_eq!((model.inputs(), model.shape().bits()), (8, 16));
///
/// // Two documents are two bytes each. A query is compared with them by its distances to all codewords.
/// let documents = Matrix::from_vec(8, (0..16).map(|i| (i as f32).sin()).collect());
/// let codes = model.encode(&documents)?;
/// assert_eq!(codes.len(), 2 * 2);
/// let query = documents.select(&[1]);
/// let table = &model.tables(&query, model.config.distance)?[0];
/// assert!(table.distance(&codes[2..]) <= table.distance(&codes[..2]));
/// # Ok::<(), engine::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Model {
    pub config: ModelConfig,
    projection: Projection,
    codebooks: Codebooks,
    kinds: Option<KindTables>,
    fingerprint: String,
}

impl Model {
    /// Joins the parts; they must agree in width.
    pub fn new(config: ModelConfig, projection: Projection, codebooks: Codebooks) -> Result<Self> {
        Model::of_parts(config, projection, codebooks, None)
    }

    /// Joins the parts, and layers of tables by kind where there are any. The fingerprint reads every weight, so all come at once.
    fn of_parts(
        config: ModelConfig,
        projection: Projection,
        codebooks: Codebooks,
        kinds: Option<Projection>,
    ) -> Result<Self> {
        if projection.outputs() != codebooks.shape().width() {
            return Err(Error::config(format!(
                "projection ends in {} values, the codebooks take {}",
                projection.outputs(),
                codebooks.shape().width()
            )));
        }
        if let Some(cells) = projection.cells()
            && cells.sizes().0 != codebooks.shape().dim()
        {
            return Err(Error::config(format!(
                "cells have heads of {} values, the codewords of the first codebook have {}",
                cells.sizes().0,
                codebooks.shape().dim()
            )));
        }
        let kinds = kinds.map(|layers| {
            if layers.inputs() != projection.inputs() {
                return Err(Error::config(format!(
                    "tables by kind take vectors of {} values, the model takes {}",
                    layers.inputs(),
                    projection.inputs()
                )));
            }
            KindTables::new(codebooks.shape(), layers)
        });
        let kinds = kinds.transpose()?;
        let fingerprint = directory::fingerprint(&config, &projection, &codebooks, kinds.as_ref());
        Ok(Model { config, projection, codebooks, kinds, fingerprint })
    }

    /// The same model with tables by kind, from layers that read its embeddings.
    pub fn with_kinds(self, layers: Projection) -> Result<Self> {
        Model::of_parts(self.config, self.projection, self.codebooks, Some(layers))
    }

    pub fn shape(&self) -> CodeShape {
        self.codebooks.shape()
    }

    /// Width of an embedding.
    pub fn inputs(&self) -> usize {
        self.projection.inputs()
    }

    pub fn projection(&self) -> &Projection {
        &self.projection
    }

    pub fn codebooks(&self) -> &Codebooks {
        &self.codebooks
    }

    /// Where the model was trained for both: the tables that search documents of a query's kind.
    pub fn kinds(&self) -> Option<&KindTables> {
        self.kinds.as_ref()
    }

    /// Sixteen hex digits: a hash of weights, codebooks and all options that turn text into embeddings. An index refuses a
    /// model with another fingerprint.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Loads the encoder it was trained with, and fetches a registered one that is missing. Default: the precision of its training.
    pub fn embedder(&self, precision: Option<Precision>, progress: &dyn Progress) -> Result<Embedder> {
        let Some(config) = &self.config.embedding else {
            return Err(Error::config(
                "this model was trained on user vectors and cannot encode text; give vectors instead",
            ));
        };
        if config.terms.is_none() && config.service.is_none() {
            pull::locate_or_pull(&config.encoder, progress)?;
        }
        Embedder::of_model_in(config, precision.unwrap_or(config.precision))
    }

    /// Embeddings `[n, inputs]` to packed codes `[n, code_bytes]`.
    pub fn encode(&self, embeddings: &Matrix) -> Result<Vec<u8>> {
        Ok(self.codebooks.assign(&self.projection.apply(embeddings)?))
    }

    /// Query embeddings `[n, inputs]` to distance tables.
    pub fn tables(&self, embeddings: &Matrix, distance: Distance) -> Result<Vec<DistanceTable>> {
        let projected = self.projection.apply(embeddings)?;
        Ok(projected.iter().map(|row| self.codebooks.table(row, distance)).collect())
    }
}
