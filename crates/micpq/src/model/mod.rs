//! A trained model: a refinement of the encoder's features, codebooks, and the record of how they came about.
//!
//! Every method ends in the same three parts, which is why one index and one search serve them all: dense layers with
//! ReLU between them (MICPQ two, a rotation one, a hash one or more), `M` codebooks of `K` words, and a [`Distance`].
//! A binary hash is `K = 2` with words -1 and +1 of one dimension: the nearest word is the sign.

mod card;
mod cells;
mod codebooks;
mod directory;
mod refine;
mod shape;

pub use cells::Cells;
pub use codebooks::{Codebooks, Distance, Table};
pub use directory::{FORMAT, FeatureConfig, ModelConfig, OLDEST_READABLE};
pub use refine::{Dense, Refine};
pub use shape::CodeShape;

use crate::{Error, Matrix, Result};

/// A model in memory, ready to turn features into codes and queries into tables.
#[derive(Clone, Debug)]
pub struct Model {
    /// How it was made, and what it expects.
    pub config: ModelConfig,
    refine: Refine,
    codebooks: Codebooks,
    fingerprint: String,
}

impl Model {
    /// Joins the parts; they must agree in width.
    pub fn new(config: ModelConfig, refine: Refine, codebooks: Codebooks) -> Result<Self> {
        if refine.outputs() != codebooks.shape().width() {
            return Err(Error::config(format!(
                "refinement ends in {} values, the codebooks take {}",
                refine.outputs(),
                codebooks.shape().width()
            )));
        }
        if let Some(cells) = refine.cells()
            && cells.sizes().0 != codebooks.shape().dim()
        {
            return Err(Error::config(format!(
                "cells have heads of {} values, the words of the first book have {}",
                cells.sizes().0,
                codebooks.shape().dim()
            )));
        }
        let fingerprint = directory::fingerprint(&config, &refine, &codebooks);
        Ok(Model { config, refine, codebooks, fingerprint })
    }

    /// The shape of its codes.
    pub fn shape(&self) -> CodeShape {
        self.codebooks.shape()
    }

    /// Values in a feature vector.
    pub fn inputs(&self) -> usize {
        self.refine.inputs()
    }

    /// The dense layers.
    pub fn refine(&self) -> &Refine {
        &self.refine
    }

    /// The codebooks.
    pub fn codebooks(&self) -> &Codebooks {
        &self.codebooks
    }

    /// Sixteen hex digits over weights, codebooks and everything that decides how text becomes features. An index
    /// built with one model refuses another by it.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Features `[n, inputs]` to packed codes `[n, code_bytes]`.
    pub fn encode(&self, features: &Matrix) -> Result<Vec<u8>> {
        Ok(self.codebooks.assign(&self.refine.apply(features)?))
    }

    /// Query features `[n, inputs]` to distance tables.
    pub fn tables(&self, features: &Matrix, distance: Distance) -> Result<Vec<Table>> {
        let refined = self.refine.apply(features)?;
        Ok(refined.iter().map(|row| self.codebooks.table(row, distance)).collect())
    }
}
