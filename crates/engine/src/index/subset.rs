//! Documents chosen one by one, as a part of a filter.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tantivy::SegmentReader;
use tantivy::columnar::Column;

use super::filter::Bitmap;
use super::schema::{CHUNK, SEQUENCE};
use super::tantivy_error;
use crate::Result;

/// Documents by their insertion sequences. Documents that were deleted since are in no answer.
#[derive(Clone, Serialize, Deserialize)]
#[serde(from = "Vec<u64>", into = "Vec<u64>")]
pub struct Subset {
    /// Rising.
    sequences: Arc<Vec<u64>>,
    key: u64,
}

impl Subset {
    pub fn new(mut sequences: Vec<u64>) -> Subset {
        sequences.sort_unstable();
        sequences.dedup();
        let mut hash = Sha256::new();
        sequences.iter().for_each(|sequence| hash.update(sequence.to_le_bytes()));
        let key = u64::from_le_bytes(hash.finalize()[..8].try_into().expect("32 bytes"));
        Subset { sequences: Arc::new(sequences), key }
    }

    pub fn len(&self) -> usize {
        self.sequences.len()
    }

    pub fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    /// Takes the rows of other documents from `rows` of a segment. All chunks of a document stay.
    pub(super) fn retain(&self, segment: &SegmentReader, rows: &mut Bitmap) -> Result<()> {
        let failed = |e| tantivy_error(std::path::Path::new(super::STORE), e);
        let sequence: Column<u64> = segment.fast_fields().u64(SEQUENCE).map_err(failed)?;
        // Chunks have the sequences after that of their document.
        let number: Option<Column<u64>> = segment.fast_fields().column_opt(CHUNK).map_err(failed)?;
        rows.retain(|row| {
            let chunk = number.as_ref().and_then(|column| column.first(row)).unwrap_or(0);
            let own = sequence.first(row).and_then(|sequence| sequence.checked_sub(chunk));
            own.is_some_and(|own| self.sequences.binary_search(&own).is_ok())
        });
        Ok(())
    }

    /// Estimated memory.
    pub(super) fn bytes(&self) -> usize {
        8 * self.len()
    }
}

impl From<Vec<u64>> for Subset {
    fn from(sequences: Vec<u64>) -> Subset {
        Subset::new(sequences)
    }
}

impl From<Subset> for Vec<u64> {
    fn from(subset: Subset) -> Vec<u64> {
        subset.sequences.to_vec()
    }
}

impl PartialEq for Subset {
    fn eq(&self, other: &Subset) -> bool {
        self.key == other.key && self.sequences == other.sequences
    }
}

impl Eq for Subset {}

impl Hash for Subset {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

/// Its hash tells it from others, as in the question of a cursor.
impl fmt::Debug for Subset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} documents {:016x}", self.len(), self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{code, document, model, scratch, tables};
    use super::super::{Index, IndexConfig};
    use super::*;
    use crate::NoProgress;
    use crate::corpus::DocId;
    use crate::model::CodeShape;
    use crate::query::SearchConfig;

    #[test]
    fn a_search_within_a_subset_finds_its_living_documents_only() {
        let dir = scratch();
        let model = model(CodeShape::new(3, 16, 4).unwrap(), 1);
        let index = Index::create(&dir.path().join("index"), &model, IndexConfig::default()).unwrap();
        let mut writer = index.writer().unwrap();
        for part in 0..3 {
            (part * 20..part * 20 + 20).for_each(|i| writer.add(&document(i), &code(&model, i)).unwrap());
            writer.commit(&NoProgress).unwrap();
        }
        writer.delete(&document(25).id).unwrap();
        writer.commit(&NoProgress).unwrap();
        writer.close(&NoProgress).unwrap();
        index.reload(&NoProgress).unwrap();
        let chosen: Vec<DocId> = [3, 19, 24, 25, 26, 41].map(|i| document(i).id).to_vec();
        let walk = index.walk().unwrap();
        let mut sequences = Vec::new();
        for i in 0..walk.len() {
            let record = walk.get(i).unwrap();
            sequences.extend(chosen.contains(&record.id).then_some(record.sequence));
        }
        // A document that is deleted, and one that never was.
        sequences.extend([25, 1_000_000]);
        let subset = Subset::new(sequences);
        let config = |filter: Option<&str>| SearchConfig {
            k: 60,
            filter: filter.map(str::to_owned),
            within: Some(subset.clone()),
            ..SearchConfig::default()
        };
        let found = |config: &SearchConfig| {
            let hits = index.search(&tables(index.model(), 1, 1), config).unwrap().remove(0);
            let mut ids: Vec<DocId> = hits.into_iter().map(|hit| hit.id).collect();
            ids.sort();
            ids
        };
        let mut expected: Vec<DocId> = chosen.iter().filter(|id| **id != document(25).id).cloned().collect();
        expected.sort();
        for _ in 0..2 {
            // The second time from the cache of selections.
            assert_eq!(found(&config(None)), expected);
            let japan = found(&config(Some("places:japan")));
            let all = found(&SearchConfig { within: None, ..config(Some("places:japan")) });
            assert_eq!(japan, all.iter().filter(|id| expected.contains(id)).cloned().collect::<Vec<_>>());
            assert!(!japan.is_empty() && japan.len() < expected.len());
        }
        assert_eq!(index.count_within(None, Some(&subset), &NoProgress).unwrap(), expected.len());
        assert_eq!(
            index.count_within(Some("places:japan"), Some(&subset), &NoProgress).unwrap(),
            found(&config(Some("places:japan"))).len()
        );
        assert!(found(&SearchConfig { within: Some(Subset::new(vec![])), ..config(None) }).is_empty());
        let json = serde_json::to_string(&subset).unwrap();
        assert_eq!(serde_json::from_str::<Subset>(&json).unwrap(), subset);
        assert_ne!(subset, Subset::new(vec![1]));
    }
}
