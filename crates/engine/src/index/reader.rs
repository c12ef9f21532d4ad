//! A reader holds one commit while a request is answered.

use std::sync::Arc;

use tantivy::DocAddress;
use tantivy::snippet::SnippetGenerator;

use super::files::Part;
use super::filter::Filter;
use super::keywords::Keywords;
use super::schema::Stored;
use super::snapshot::{Candidate, Scanned, Snapshot};
use super::{Index, Inner, RerankVectors, STORE, Store, guarded, guarded_ours};
use crate::Result;
use crate::corpus::DocId;
use crate::model::{DistanceTable, Model};
use crate::search::TopKRequest;

/// The query layer's view of an index: one commit, unaffected by writers.
pub(crate) struct Reader {
    inner: Arc<Inner>,
    snapshot: Arc<Snapshot>,
}

impl Index {
    pub(crate) fn reader(&self) -> Result<Reader> {
        Ok(Reader { inner: self.inner.clone(), snapshot: self.inner.sound()? })
    }
}

impl Reader {
    pub fn model(&self) -> &Model {
        &self.inner.model
    }

    pub fn rerank_vectors(&self) -> RerankVectors {
        self.inner.manifest.rerank_vectors()
    }

    pub fn store(&self) -> Store {
        self.inner.manifest.store()
    }

    /// Changes with every commit and merge.
    pub fn number(&self) -> u64 {
        self.snapshot.number()
    }

    pub fn filter(&self, text: &str) -> Result<Filter> {
        guarded_ours(&self.inner.dir.join(STORE), || self.inner.parse_filter(text, Some(&self.snapshot)))
    }

    /// Address of the document with this id; deleted ones are not found.
    pub fn find(&self, id: &DocId) -> Result<Option<DocAddress>> {
        guarded_ours(&self.inner.dir.join(STORE), || self.snapshot.find(&self.inner.fields, id))
    }

    /// See [`Snapshot::nearest`].
    pub fn nearest(
        &self,
        tables: &[DistanceTable],
        request: &TopKRequest,
        filter: Option<&Filter>,
    ) -> Result<Vec<(Vec<Candidate>, Vec<Scanned>)>> {
        let shape = self.inner.model.shape();
        let filter = filter.map(|filter| (filter, &self.inner.selections));
        guarded_ours(&self.inner.dir.join(STORE), || self.snapshot.nearest(shape, tables, request, filter))
    }

    pub fn code(&self, address: DocAddress) -> Result<Vec<u8>> {
        guarded_ours(&self.inner.dir.join(STORE), || Ok(self.snapshot.code(address)))
    }

    /// Passes the rerank vectors of documents to `take`, in the order of `addresses`.
    pub fn read_rerank_vectors(
        &self,
        addresses: impl Iterator<Item = DocAddress>,
        mut take: impl FnMut(&[f32]),
    ) -> Result<()> {
        let (mut blocks, mut embedding) = (Vec::new(), vec![0.0; self.inner.model.inputs()]);
        guarded_ours(&self.inner.dir.join(STORE), || {
            for address in addresses {
                self.snapshot.rerank_vector(address, &mut blocks, &mut embedding)?;
                take(&embedding);
            }
            Ok(())
        })
    }

    /// The keywords of a text; `None` if it has none or the index stores no texts.
    pub fn keywords(&self, text: &str) -> Option<Keywords> {
        let fields = self.inner.fields.documents.as_ref()?;
        Keywords::new(fields.text, text)
    }

    /// The best documents by BM25, best first. Ties are ordered by insertion.
    pub fn by_keywords(
        &self,
        keywords: &Keywords,
        table: &DistanceTable,
        filter: Option<&Filter>,
        limit: usize,
    ) -> Result<Vec<Candidate>> {
        let store = self.inner.dir.join(STORE);
        self.snapshot.require(Part::Terms)?;
        let found = guarded(&store, || keywords.best(self.snapshot.searcher(), filter.map(Filter::query), limit))?;
        guarded_ours(&store, || {
            let mut scored: Vec<(f32, Candidate)> =
                found.iter().map(|&(address, score)| (score, self.snapshot.near(table, address))).collect();
            scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.sequence.cmp(&b.1.sequence)));
            Ok(scored.into_iter().map(|(_, near)| near).collect())
        })
    }

    pub fn snippets(&self, keywords: &Keywords, most_chars: usize) -> Result<SnippetGenerator> {
        self.snapshot.require(Part::Terms)?;
        guarded(&self.inner.dir.join(STORE), || keywords.snippets(self.snapshot.searcher(), most_chars))
    }

    pub fn id(&self, address: DocAddress) -> Result<DocId> {
        guarded_ours(&self.inner.dir.join(STORE), || self.snapshot.id(address))
    }

    pub fn stored(&self, address: DocAddress) -> Result<Stored> {
        guarded_ours(&self.inner.dir.join(STORE), || self.snapshot.stored(&self.inner.fields, address))
    }
}
