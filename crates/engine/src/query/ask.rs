//! Queries: what hits should be like.

use std::time::Duration;

use crate::corpus::DocId;
use crate::encoder::QueryEncoder;
use crate::{Error, Result};

/// An example of the hits.
#[derive(Clone, Debug, PartialEq)]
pub enum Like {
    /// A text, encoded as the documents were.
    Text(String),
    /// An embedding, as wide as the model's input.
    Vector(Vec<f32>),
    /// A document of the index, by its stored code. It is not among its own hits.
    Document(DocId),
}

/// One query: an example, or several fused with weights.
///
/// ```
/// use engine::query::{Like, Query};
///
/// let query = Query::text("oil prices").and(Like::Document(7.into()), 0.5);
/// assert_eq!(query.like.len(), 2);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Query {
    /// Examples with their weights; only the ratio of the weights counts.
    pub like: Vec<(Like, f32)>,
    /// Keywords of a hybrid search and of snippets. Default: the texts of `like`.
    pub keywords: Option<String>,
    /// Which encoder reads its texts.
    pub encoder: QueryEncoder,
}

impl Query {
    /// Documents like a text.
    pub fn text(text: impl Into<String>) -> Query {
        Query::like(Like::Text(text.into()))
    }

    /// Documents like an embedding.
    pub fn vector(vector: Vec<f32>) -> Query {
        Query::like(Like::Vector(vector))
    }

    /// Documents like one of the index.
    pub fn document(id: impl Into<DocId>) -> Query {
        Query::like(Like::Document(id.into()))
    }

    fn like(like: Like) -> Query {
        Query { like: vec![(like, 1.0)], ..Query::default() }
    }

    /// Adds an example.
    pub fn and(mut self, like: Like, weight: f32) -> Query {
        self.like.push((like, weight));
        self
    }

    /// The text whose keywords BM25 searches.
    pub(super) fn all_keywords(&self) -> Option<String> {
        if self.keywords.is_some() {
            return self.keywords.clone();
        }
        let texts: Vec<&str> =
            self.like.iter().filter_map(|(l, _)| if let Like::Text(t) = l { Some(t.as_str()) } else { None }).collect();
        (!texts.is_empty()).then(|| texts.join("\n"))
    }

    /// Refuses an empty query, bad weights and bad vectors. `number` is for the message.
    pub(super) fn validate(&self, number: usize, width: usize) -> Result<()> {
        let name = || format!("query {number}");
        if self.like.is_empty() {
            return Err(Error::config(format!(
                "query {number} asks for nothing; give it a text, a vector or a document's id"
            )));
        }
        for (like, weight) in &self.like {
            if !weight.is_finite() || *weight <= 0.0 {
                return Err(Error::config(format!(
                    "query {number} has an example of weight {weight}; a weight is a finite number above 0"
                )));
            }
            let Like::Vector(vector) = like else { continue };
            if vector.len() != width {
                return Err(Error::input(
                    name(),
                    format!("its vector has {} values, the model of this index takes {width}", vector.len()),
                ));
            }
            if let Some(i) = vector.iter().position(|x| !x.is_finite()) {
                return Err(Error::input(
                    name(),
                    format!("value {i} of its vector is {}; a vector holds finite numbers", vector[i]),
                ));
            }
        }
        Ok(())
    }
}

/// A query whose texts are encoded: it needs no encoder any more.
#[derive(Clone, Debug)]
pub struct Embedded {
    pub(super) like: Vec<(Point, f32)>,
    pub(super) keywords: Option<String>,
    pub(super) tokenise: Duration,
    pub(super) encode: Duration,
}

impl Embedded {
    /// The embedding of a query that is one text or one vector.
    pub(crate) fn into_embedding(self) -> Option<Vec<f32>> {
        match self.like.into_iter().next() {
            Some((Point::Embedding { embedding, .. }, _)) => Some(embedding),
            _ => None,
        }
    }
}

/// An example as an embedding, or a document of the index.
#[derive(Clone, Debug)]
pub(super) enum Point {
    /// A query encoder may give the projected vector too; otherwise the model projects the embedding.
    Embedding {
        embedding: Vec<f32>,
        projected: Option<Vec<f32>>,
    },
    Document(DocId),
}
