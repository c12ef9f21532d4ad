//! Cache of the documents that match a filter, per segment.
//!
//! A segment never changes, so its documents that match a filter do not change either. Only deletions do, and they are
//! subtracted when they come. A filter is therefore evaluated once per segment, and repeating it costs only the scan. The first
//! search with a selective filter scans the codes in the order they are found in; they are sorted for later searches meanwhile.

use std::sync::Arc;

use lru::LruCache;
use parking_lot::{Mutex, MutexGuard};
use tantivy::index::SegmentId;
use tantivy::{Searcher, SegmentReader};

use super::filter::{Filter, FilterKey, Matched, matched_few};
use super::segment::Segment;
use crate::Result;
use crate::search::{FEW, Selection};

/// Max bytes of the cache of one index: 500 filters that each match half of a million documents.
const MAX_BYTES: usize = 64 << 20;

/// Overhead of an entry, in bytes.
const ENTRY: usize = 256;

/// LRU cache, limited by memory.
pub(super) struct Selections {
    held: Arc<Mutex<Held>>,
    most: usize,
}

struct Held {
    entries: LruCache<(SegmentId, FilterKey), Entry>,
    bytes: usize,
}

#[derive(Clone)]
struct Entry {
    /// Matching documents, deleted or not.
    all: Arc<Selection<'static>>,
    /// The matching documents that remain after the deletions up to this opstamp.
    living: Option<(u64, Arc<Selection<'static>>)>,
    /// Bytes of the key.
    key: usize,
}

impl Entry {
    fn bytes(&self) -> usize {
        ENTRY + self.key + self.all.bytes() + self.living.as_ref().map_or(0, |(_, living)| living.bytes())
    }
}

impl Default for Selections {
    fn default() -> Selections {
        Selections::with_memory(MAX_BYTES)
    }
}

impl Selections {
    fn with_memory(most: usize) -> Selections {
        Selections { held: Arc::new(Mutex::new(Held { entries: LruCache::unbounded(), bytes: 0 })), most }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock()
    }

    /// Bytes of the cache.
    pub fn bytes(&self) -> usize {
        self.held().bytes
    }

    /// The matching documents of a segment that are not deleted, and whether the filter was cached.
    pub fn of(
        &self,
        searcher: &Searcher,
        reader: &SegmentReader,
        segment: &Segment,
        filter: &Filter,
    ) -> Result<(Arc<Selection<'static>>, bool)> {
        let key = (segment.id, filter.key());
        let known = self.held().entries.get(&key).cloned();
        let cached = known.is_some();
        let mut entry = match known {
            Some(entry) => entry,
            None => {
                let all = match matched_few(searcher, reader, filter, segment.blocks.len() / FEW)? {
                    Matched::Few(documents) => Selection::few(&segment.blocks, documents, &segment.columns),
                    Matched::Many(bits) => {
                        Selection::new(&segment.blocks, bits.blocks(), &segment.columns).into_owned()
                    }
                };
                Entry { all: Arc::new(all), living: None, key: filter.bytes() }
            }
        };
        let (living, changed) = match (reader.delete_opstamp().zip(reader.alive_bitset()), &entry.living) {
            (None, _) => (entry.all.clone(), !cached),
            (Some((stamp, _)), Some((at, living))) if *at == stamp => (living.clone(), !cached),
            (Some((stamp, alive)), _) => {
                let living = Arc::new(entry.all.retained(&segment.blocks, |document| alive.is_alive(document)));
                entry.living = Some((stamp, living.clone()));
                (living, true)
            }
        };
        if changed {
            if entry.all.can_be_sorted() {
                self.sort_later(key.clone(), entry.clone());
            }
            self.held().keep(key, entry, self.most);
        }
        Ok((living, cached))
    }

    /// Sorts the codes of an entry beside the search that made it.
    fn sort_later(&self, key: (SegmentId, FilterKey), entry: Entry) {
        let (held, most) = (self.held.clone(), self.most);
        rayon::spawn(move || {
            let all = Arc::new(entry.all.sorted());
            let living = entry.living.as_ref().map(|(stamp, living)| (*stamp, Arc::new(living.sorted())));
            let mut held = held.lock();
            // Unless another search has replaced it, or it had no room.
            if held.entries.peek(&key).is_some_and(|now| Arc::ptr_eq(&now.all, &entry.all)) {
                held.keep(key, Entry { all, living, key: entry.key }, most);
            }
        });
    }
}

impl Held {
    /// Adds or replaces an entry, within the limit of memory.
    fn keep(&mut self, key: (SegmentId, FilterKey), entry: Entry, most: usize) {
        self.bytes += entry.bytes();
        let before = self.entries.push(key, entry);
        self.bytes -= before.map_or(0, |(_, entry)| entry.bytes());
        while self.bytes > most {
            let Some((_, entry)) = self.entries.pop_lru() else { break };
            self.bytes -= entry.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::{Twin, code, document, model, scratch};
    use super::super::{Index, IndexConfig};
    use super::*;
    use crate::NoProgress;
    use crate::corpus::{Document, Value};
    use crate::model::CodeShape;

    fn year(document: &Document) -> i64 {
        let years = document.attributes.iter().filter_map(|(name, v)| if name == "year" { Some(v) } else { None });
        years.map(|v| if let Value::Int(year) = v { *year } else { 0 }).next().unwrap_or_default()
    }

    /// Filters that match a few documents, most of them, one, none, and one filter written in two ways.
    fn check(twin: &Twin, index: &Index) {
        twin.check(index, 12, Some("year:1983"), |d| year(d) == 1983);
        twin.check(index, 12, Some("year:[1982  TO 1989]"), |d| year(d) >= 1982);
        twin.check(index, 12, Some("(year:[1982 TO 1989])"), |d| year(d) >= 1982);
        twin.check(index, 12, Some("NOT text:grain"), |d| !d.text.contains("grain"));
        twin.check(index, 12, Some("id:9 OR id:doc-8"), |d| {
            d.text.contains("number 8 ") || d.text.contains("number 9 ")
        });
        twin.check(index, 12, Some("text:nowhere"), |_| false);
        twin.check(index, 12, None, |_| true);
    }

    #[derive(Clone, Debug)]
    enum Change {
        Add(u64, u64),
        Delete(u64, u64),
        DeleteYear(u64),
        Compact,
    }

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            4 => (0u64..300, 1u64..200).prop_map(|(from, count)| Change::Add(from, count)),
            2 => (0u64..300, 1u64..100).prop_map(|(from, count)| Change::Delete(from, count)),
            1 => (0u64..10).prop_map(Change::DeleteYear),
            1 => Just(Change::Compact),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        /// Repeats the same filters after every commit. A cached selection must not survive an update, a deletion or a
        /// merge, and a reader of an old commit must not see a new one.
        #[test]
        fn cached_filters_equal_brute_force_after_any_change(changes in prop::collection::vec(change(), 1..9)) {
            let dir = scratch();
            let model = model(CodeShape::micpq(32).unwrap(), 1);
            let index = Index::create(&dir.path().join("index"), &model, IndexConfig::default()).unwrap();
            let (mut twin, mut writer) = (Twin::default(), index.writer().unwrap());
            for i in 0..150 {
                writer.add(&document(i), &code(&model, i)).unwrap();
                twin.add(document(i), code(&model, i));
            }
            writer.commit(&NoProgress).unwrap();
            let behind = Index::open(index.dir(), &NoProgress).unwrap();
            check(&twin, &behind);
            for (round, change) in changes.into_iter().enumerate() {
                let before = twin.clone();
                match change {
                    Change::Add(from, count) => (from..from + count).for_each(|i| {
                        let code = code(&model, i + round as u64);
                        writer.add(&document(i), &code).unwrap();
                        twin.add(document(i), code);
                    }),
                    Change::Delete(from, count) => (from..from + count).for_each(|i| {
                        writer.delete(&document(i).id).unwrap();
                        twin.delete(&document(i).id);
                    }),
                    Change::DeleteYear(y) => {
                        if !twin.documents.is_empty() {
                            writer.delete_where(&format!("year:{}", 1980 + y)).unwrap();
                            twin.documents.retain(|_, (d, _)| year(d) != 1980 + y as i64);
                        }
                    }
                    Change::Compact => {
                        writer.compact(&NoProgress).unwrap();
                    }
                }
                writer.commit(&NoProgress).unwrap();
                check(&before, &behind);
                if !twin.documents.is_empty() {
                    check(&twin, &index);
                    check(&twin, &index);
                }
                behind.reload(&NoProgress).unwrap();
                if twin.documents.is_empty() {
                    break;
                }
                check(&twin, &behind);
            }
        }
    }

    #[test]
    fn cache_memory_is_limited_and_recently_used_filters_stay() {
        let dir = scratch();
        let model = model(CodeShape::micpq(32).unwrap(), 1);
        let index = Index::create(&dir.path().join("index"), &model, IndexConfig::default()).unwrap();
        let mut writer = index.writer().unwrap();
        (0..500).for_each(|i| writer.add(&document(i), &code(&model, i)).unwrap());
        writer.compact(&NoProgress).unwrap();
        writer.close(&NoProgress).unwrap();
        let snapshot = index.inner.snapshot();
        let (segment, reader) = (&snapshot.segments()[0], snapshot.searcher().segment_reader(0));
        let filter = |text: &str| index.inner.parse_filter(text, Some(&snapshot)).unwrap();
        let ask = |selections: &Selections, text: &str| {
            let (found, cached) = selections.of(snapshot.searcher(), reader, segment, &filter(text)).unwrap();
            assert_eq!(found.count(), index.count(text).unwrap(), "{text}");
            cached
        };

        let all = Selections::default();
        assert!(!ask(&all, "year:1983"));
        assert!(ask(&all, " ( year:1983 )"));
        assert!(ask(&all, "attributes.year:1983"));
        let one = all.held().bytes;
        assert!(one > ENTRY);

        // Room for three.
        let few = Selections::with_memory(3 * one + one / 2);
        for year in 1980..1989 {
            assert!(!ask(&few, &format!("year:{year}")));
            // Used repeatedly, so it stays.
            ask(&few, "year:1980");
            assert!(few.held().bytes <= few.most);
        }
        assert!(ask(&few, "year:1980"));
        assert!(ask(&few, "year:1988"));
        assert!(!ask(&few, "year:1981"));

        // An entry larger than the cache is not cached, and is no error.
        let none = Selections::with_memory(10);
        assert!(!ask(&none, "year:1983"));
        assert!(!ask(&none, "year:1983"));
        let held = none.held();
        assert_eq!((held.bytes, held.entries.len()), (0, 0));
    }
}
