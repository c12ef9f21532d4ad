//! Which segments are merged, and when.

use std::collections::HashSet;

use tantivy::index::{SegmentId, SegmentMeta};
use tantivy::merge_policy::{LogMergePolicy, MergeCandidate, MergePolicy};

use super::Inner;
use super::directory::StoreDirectory;

/// Share of deleted documents above which a segment is rewritten.
const DELETED: f32 = 0.3;

/// Max documents per segment.
pub(super) fn most_documents(inner: &Inner) -> usize {
    inner.manifest.rerank_vectors().most_documents(inner.model.inputs())
}

/// Groups of segments to merge, each of at most `most` documents if possible: one group, unless the segments are huge.
pub(super) fn groups(metas: &[SegmentMeta], most: usize) -> Vec<Vec<SegmentId>> {
    let (mut groups, mut documents) = (vec![Vec::new()], 0);
    for meta in metas {
        let more = meta.num_docs() as usize;
        if documents + more > most && documents > 0 {
            groups.push(Vec::new());
            documents = 0;
        }
        documents += more;
        groups.last_mut().expect("begun with one").push(meta.id());
    }
    groups
}

/// Merge policy. A level holds segments up to eight times as large as its smallest; the first level holds all segments
/// up to a thousand documents. A level is merged when it has eight segments, so at most seven remain in each. 10
/// million documents lie in about 30 segments however small the commits were, and each document is rewritten once per
/// level.
fn merge_policy() -> LogMergePolicy {
    let mut policy = LogMergePolicy::default();
    policy.set_min_num_segments(8);
    policy.set_min_layer_size(1000);
    policy.set_level_log_size(3.0);
    policy.set_del_docs_ratio_before_merge(DELETED);
    policy
}

/// Merges only sound segments: merged damage would get a valid checksum and could not be found any more.
pub(super) struct SoundMerges {
    policy: LogMergePolicy,
    directory: StoreDirectory,
}

impl SoundMerges {
    pub fn new(inner: &Inner) -> Self {
        let mut policy = merge_policy();
        // A merge takes eight segments or more of similar size. Its result must fit the column of rerank vectors.
        policy.set_max_docs_before_merge((most_documents(inner) / 16).min(10_000_000));
        SoundMerges { policy, directory: inner.directory.clone() }
    }
}

impl MergePolicy for SoundMerges {
    fn compute_merge_candidates(&self, segments: &[SegmentMeta]) -> Vec<MergeCandidate> {
        let mut left = segments.to_vec();
        loop {
            let merges = self.policy.compute_merge_candidates(&left);
            let due = merges.iter().flat_map(|merge| &merge.0);
            let unsound: HashSet<SegmentId> = due.copied().filter(|id| !self.directory.is_sound(*id)).collect();
            if unsound.is_empty() {
                return merges;
            }
            left.retain(|segment| !unsound.contains(&segment.id()));
        }
    }
}

impl std::fmt::Debug for SoundMerges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SoundMerges({:?})", self.policy)
    }
}
