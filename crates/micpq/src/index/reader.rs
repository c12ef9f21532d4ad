//! One commit held still for as long as a request is answered.

use std::sync::Arc;

use tantivy::DocAddress;
use tantivy::snippet::SnippetGenerator;

use super::filter::Filter;
use super::schema::Stored;
use super::snapshot::{Near, Scanned, Snapshot};
use super::words::Words;
use super::{Index, Inner, Keep, STORE, Store, guarded, guarded_ours};
use crate::Result;
use crate::corpus::DocId;
use crate::model::{Model, Table};
use crate::search::Want;

/// What the query layer sees of an index: one commit, whatever writers do meanwhile.
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

    pub fn keep(&self) -> Keep {
        self.inner.manifest.keep()
    }

    pub fn store(&self) -> Store {
        self.inner.manifest.store()
    }

    /// Changes with every commit and merge.
    pub fn number(&self) -> u64 {
        self.snapshot.number()
    }

    pub fn filter(&self, text: &str) -> Result<Filter> {
        self.inner.parse_filter(text, Some(&self.snapshot))
    }

    /// Where the living document of an id lies.
    pub fn find(&self, id: &DocId) -> Result<Option<DocAddress>> {
        guarded_ours(&self.inner.dir.join(STORE), || self.snapshot.find(&self.inner.fields, id))
    }

    /// As [`Snapshot::nearest`].
    pub fn nearest(
        &self,
        tables: &[Table],
        want: &Want,
        filter: Option<&Filter>,
    ) -> Result<Vec<(Vec<Near>, Vec<Scanned>)>> {
        let shape = self.inner.model.shape();
        let filter = filter.map(|filter| (filter, &self.inner.selections));
        guarded_ours(&self.inner.dir.join(STORE), || self.snapshot.nearest(shape, tables, want, filter))
    }

    pub fn code(&self, address: DocAddress) -> Vec<u8> {
        self.snapshot.code(address)
    }

    /// Kept features of documents, handed over one by one in their order.
    pub fn features(&self, addresses: impl Iterator<Item = DocAddress>, mut take: impl FnMut(&[f32])) -> Result<()> {
        let (mut words, mut feature) = (Vec::new(), vec![0.0; self.inner.model.inputs()]);
        guarded_ours(&self.inner.dir.join(STORE), || {
            for address in addresses {
                self.snapshot.feature(address, &mut words, &mut feature)?;
                take(&feature);
            }
            Ok(())
        })
    }

    /// The words of a text; `None` where there is none, or the index keeps no text.
    pub fn words(&self, text: &str) -> Option<Words> {
        let fields = self.inner.fields.documents.as_ref()?;
        Words::new(fields.text, text)
    }

    /// The best documents by BM25, best first; of equal ones the earlier comes first.
    pub fn by_words(&self, words: &Words, table: &Table, filter: Option<&Filter>, limit: usize) -> Result<Vec<Near>> {
        let store = self.inner.dir.join(STORE);
        let found = guarded(&store, || words.best(self.snapshot.searcher(), filter.map(Filter::query), limit))?;
        guarded_ours(&store, || {
            let mut scored: Vec<(f32, Near)> =
                found.iter().map(|&(address, score)| (score, self.snapshot.near(table, address))).collect();
            scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.sequence.cmp(&b.1.sequence)));
            Ok(scored.into_iter().map(|(_, near)| near).collect())
        })
    }

    pub fn snippets(&self, words: &Words, most_chars: usize) -> Result<SnippetGenerator> {
        guarded(&self.inner.dir.join(STORE), || words.snippets(self.snapshot.searcher(), most_chars))
    }

    pub fn id(&self, address: DocAddress) -> Result<DocId> {
        self.snapshot.id(address)
    }

    pub fn stored(&self, address: DocAddress) -> Result<Stored> {
        guarded_ours(&self.inner.dir.join(STORE), || self.snapshot.stored(&self.inner.fields, address))
    }
}
