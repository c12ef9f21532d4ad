//! Topics as a part of the index: what an attribute has of them, and which one a new document gets.

mod follow;
mod marked;

pub(crate) use follow::{Follower, problem};
pub use follow::{carry, follow, followed, unfollow};
pub(crate) use marked::Marked;

pub const MAX_TOPICS: usize = 1000;
