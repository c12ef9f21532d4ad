//! The part of an index that matches a filter, as if there were no other documents.

use tantivy::DocAddress;
use tantivy::directory::RamDirectory;
use tantivy::query::EnableScoring;

use super::files::Part;
use super::filter::{Filter, matched};
use super::snapshot::{Record, Snapshot};
use super::walk::Walk;
use super::{Index, STORE, guarded_ours, tantivy_error};
use crate::Result;
use crate::corpus::{DocId, Document};

/// Memory of the index in which new documents are compared with a filter.
const SCRATCH_BYTES: usize = 32 << 20;

/// Where a document is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// The index has no document of this id.
    Unknown,
    /// It matches the filter.
    Inside,
    /// It does not.
    Outside,
}

impl Index {
    /// Whether the documents of these ids exist and match a filter, in the order of the ids.
    pub fn memberships(&self, ids: &[DocId], filter: &str) -> Result<Vec<Membership>> {
        let snapshot = self.inner.sound()?;
        let store = self.inner.dir.join(STORE);
        guarded_ours(&store, || {
            let filter = self.inner.parse_filter_of(filter, None)?;
            let mut found = vec![Membership::Unknown; ids.len()];
            let mut rows: Vec<(DocAddress, usize)> = Vec::new();
            for (number, id) in ids.iter().enumerate() {
                if let Some(first) = snapshot.find(&self.inner.fields, id)? {
                    found[number] = Membership::Outside;
                    rows.extend(snapshot.chunks(first).map(|row| (row, number)));
                }
            }
            rows.sort_unstable();
            for number in self.inner.matching_rows(&snapshot, &rows, &filter)? {
                found[number] = Membership::Inside;
            }
            Ok(found)
        })
    }

    /// The document of an id, if it matches a filter.
    pub fn get_within(&self, id: &DocId, filter: &str) -> Result<Option<Record>> {
        match self.memberships(std::slice::from_ref(id), filter)?[..] {
            [Membership::Inside] => self.get(id),
            _ => Ok(None),
        }
    }

    /// [`Index::walk`] over the documents that match a filter.
    pub fn walk_within(&self, filter: &str) -> Result<Walk> {
        let mut walk = self.walk()?;
        let reader = walk.reader();
        let rows = reader.matching(&reader.filter(filter, None)?)?;
        let documents: Vec<_> =
            rows.into_iter().enumerate().map(|(ordinal, rows)| walk.snapshot.documents_of(ordinal, rows)).collect();
        walk.order.retain(|address| documents[address.segment_ord as usize].contains(address.doc_id));
        Ok(walk)
    }

    /// Whether each of these documents would match a filter, were it added.
    pub fn would_match(&self, documents: &[&Document], filter: &str) -> Result<Vec<bool>> {
        let store = self.inner.dir.join(STORE);
        guarded_ours(&store, || {
            let failed = |error| tantivy_error(&store, error);
            let filter = self.inner.parse_filter_of(filter, None)?;
            let builder = tantivy::Index::builder()
                .schema(self.inner.tantivy.schema())
                .tokenizers(self.inner.tantivy.tokenizers().clone());
            let mut writer =
                builder.single_segment_index_writer(RamDirectory::create(), SCRATCH_BYTES).map_err(failed)?;
            let code = vec![0; self.inner.model.shape().code_bytes()];
            for document in documents {
                let whole = (0, 0..document.text.len());
                let row = self.inner.fields.document(document, whole, &code, &[], 0)?;
                writer.add_document(row).map_err(failed)?;
            }
            let searcher = writer.finalize().and_then(|index| index.reader()).map_err(failed)?.searcher();
            let mut found = Vec::with_capacity(documents.len());
            for segment in searcher.segment_readers() {
                let rows = matched(&searcher, segment, &filter)?;
                found.extend((0..segment.max_doc()).map(|row| rows.contains(row)));
            }
            Ok(found)
        })
    }
}

impl super::Inner {
    /// The numbers of the rows that match a filter. The rows rise.
    fn matching_rows(&self, snapshot: &Snapshot, rows: &[(DocAddress, usize)], filter: &Filter) -> Result<Vec<usize>> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        snapshot.require(Part::Terms)?;
        let failed = |error| tantivy_error(&self.dir.join(STORE), error);
        let searcher = snapshot.searcher();
        let weight = filter.query().weight(EnableScoring::disabled_from_searcher(searcher)).map_err(failed)?;
        let mut found = Vec::new();
        for rows in rows.chunk_by(|(a, _), (b, _)| a.segment_ord == b.segment_ord) {
            let reader = searcher.segment_reader(rows[0].0.segment_ord);
            let mut scorer = weight.scorer(reader, 1.0).map_err(failed)?;
            for (row, number) in rows {
                let at = scorer.doc();
                let at = if at < row.doc_id { scorer.seek(row.doc_id) } else { at };
                if at == row.doc_id {
                    found.push(*number);
                }
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::Membership::{Inside, Outside, Unknown};
    use crate::NoProgress;
    use crate::corpus::DocId;
    use crate::index::tests::{code, document, model, scratch};
    use crate::index::{Index, IndexConfig};
    use crate::model::CodeShape;

    #[test]
    fn what_is_within_a_filter_equals_a_scan_of_all_documents() {
        let dir = scratch();
        let model = model(CodeShape::new(3, 16, 4).unwrap(), 1);
        let index = Index::create(&dir.path().join("index"), &model, IndexConfig::default()).unwrap();
        let mut writer = index.writer().unwrap();
        // Several segments, deleted and replaced documents.
        for part in 0..3 {
            (0..20).for_each(|i| writer.add(&document(15 * part + i), &code(&model, 15 * part + i)).unwrap());
            writer.commit(&NoProgress).unwrap();
        }
        writer.delete(&document(7).id).unwrap();
        writer.commit(&NoProgress).unwrap();
        index.reload(&NoProgress).unwrap();
        let ids: Vec<DocId> = (0..70).map(|i| document(i).id).collect();
        for filter in ["places:japan", "year:[1980 TO 1990] AND NOT places:japan", "*", "nowhere:x", "NOT places:japan"]
        {
            let walk = index.walk_within(filter).unwrap();
            let inside: Vec<DocId> = (0..walk.len()).map(|i| walk.get(i).unwrap().id).collect();
            assert_eq!(inside.len(), index.count(&crate::index::filter_within(Some("*"), filter)).unwrap(), "{filter}");
            let found = index.memberships(&ids, filter).unwrap();
            for (i, (id, found)) in ids.iter().zip(&found).enumerate() {
                let expected = match index.get(id).unwrap() {
                    None => Unknown,
                    Some(_) if inside.contains(id) => Inside,
                    Some(_) => Outside,
                };
                assert_eq!(*found, expected, "{filter}: {i}");
                assert_eq!(index.get_within(id, filter).unwrap().is_some(), expected == Inside);
            }
            // A document that is not added yet matches what it will match.
            let new: Vec<_> = (0..60).map(document).collect();
            let would = index.would_match(&new.iter().collect::<Vec<_>>(), filter).unwrap();
            for ((document, would), found) in
                new.iter().zip(would).zip(&found).filter(|((..), found)| **found != Unknown)
            {
                assert_eq!(would, *found == Inside, "{filter}: {:?}", document.id);
            }
        }
        assert!(index.memberships(&ids, "places:").is_err() && index.would_match(&[], "places:").is_err());
    }
}
