//! Flags of what becomes of a new document that repeats another.

use clap::Args as Flags;
use engine::duplicates::{DuplicatePolicy, DuplicatesConfig, Measure, OnDuplicate};

#[derive(Flags, Clone, Copy)]
pub struct DuplicateArgs {
    /// What to do with a new document that repeats one of the index or one before it: keep it, skip it, mark it (attribute
    /// duplicate_of), or replace the older one
    #[arg(long, value_name = "keep|skip|mark|replace", default_value_t = OnDuplicate::default())]
    pub on_duplicate: OnDuplicate,
    /// What makes a duplicate, as in micpq dedup --by. Default: words, or vectors in an index without texts
    #[arg(long, value_name = "text|words|vectors")]
    pub duplicate_by: Option<Measure>,
    /// Least similarity of two duplicates. Default: 0.4 by words, 0.9 by vectors
    #[arg(long, value_name = "0..1")]
    pub duplicate_threshold: Option<f32>,
}

impl DuplicateArgs {
    pub fn policy(self) -> DuplicatePolicy {
        let like = DuplicatesConfig {
            by: self.duplicate_by,
            threshold: self.duplicate_threshold,
            ..DuplicatesConfig::default()
        };
        DuplicatePolicy { on_duplicate: self.on_duplicate, like }
    }
}
