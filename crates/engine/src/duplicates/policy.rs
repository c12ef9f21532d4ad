//! What becomes of a new document that repeats another.

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, VariantNames};

use super::DuplicatesConfig;
use crate::corpus::DocId;
use crate::{Error, Result};

/// The attribute of a marked document: the id of the document it repeats.
pub const DUPLICATE_OF: &str = "duplicate_of";

/// What to do with a new document that repeats another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Display, EnumString, VariantNames)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", parse_err_ty = Error, parse_err_fn = unknown_action)]
pub enum OnDuplicate {
    /// Add it: nothing is compared.
    #[default]
    Keep,
    /// Leave it out. A document whose id the index has is an update, and is added.
    Skip,
    /// Add it with the attribute [`DUPLICATE_OF`].
    Mark,
    /// Add it, and delete the documents that it repeats.
    Replace,
}

fn unknown_action(name: &str) -> Error {
    Error::unknown("on_duplicate", name, OnDuplicate::VARIANTS)
}

/// What becomes of new documents that repeat another, and what a duplicate is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DuplicatePolicy {
    pub on_duplicate: OnDuplicate,
    pub like: DuplicatesConfig,
}

impl DuplicatePolicy {
    pub fn validate(&self) -> Result<()> {
        if self.on_duplicate == OnDuplicate::Keep && self.like != DuplicatesConfig::default() {
            return Err(Error::config(
                "duplicate_by and duplicate_threshold say what a duplicate is, but on_duplicate keeps them all; give \
                 on_duplicate skip, mark or replace",
            ));
        }
        self.like.validate()
    }
}

/// A new document that repeats another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Repeat {
    pub id: DocId,
    /// The document it repeats: the most similar one, and of equally similar ones the first. A document that replaces several
    /// has an entry for each.
    pub duplicate_of: DocId,
    pub similarity: f32,
}

/// What became of new documents that repeat another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Repeats {
    /// New documents that were left out.
    pub skipped: usize,
    /// New documents that were added with the mark.
    pub marked: usize,
    /// Documents that new ones replaced.
    pub replaced: usize,
    /// Each of them. [`Repeats::extend`] keeps the first [`Repeats::MAX_TOLD`].
    pub documents: Vec<Repeat>,
}

impl Repeats {
    /// Documents told one by one; more are only counted.
    pub const MAX_TOLD: usize = 1000;

    pub fn is_empty(&self) -> bool {
        self.skipped + self.marked + self.replaced == 0
    }

    /// Adds those of a later batch.
    pub fn extend(&mut self, later: Repeats) {
        self.skipped += later.skipped;
        self.marked += later.marked;
        self.replaced += later.replaced;
        self.documents.extend(later.documents);
        self.documents.truncate(Repeats::MAX_TOLD);
    }
}
