//! Documents by words that stand side by side in their texts.

use tantivy::query::{EnableScoring, PhraseQuery, Query, TermQuery};
use tantivy::schema::IndexRecordOption;
use tantivy::tokenizer::TokenStream;
use tantivy::{DocAddress, TERMINATED, Term};

use super::files::Part;
use super::reader::Reader;
use super::{STORE, guarded};
use crate::Result;

/// Terms of a phrase that are looked up; a language without spaces makes many of two words.
const MAX_TERMS: usize = 8;
/// Documents with the rarest term of a phrase. A phrase of more frequent terms says little and takes long to look up.
const MAX_POSTINGS: u64 = 50_000;

impl Reader {
    /// Living rows whose texts have these words side by side, at most `limit`; none if all of the words are frequent, or the
    /// index stores no texts.
    pub fn having_words(&self, words: &str, limit: usize) -> Result<Vec<DocAddress>> {
        let Some(fields) = self.inner.fields.documents else { return Ok(Vec::new()) };
        self.snapshot.require(Part::Terms)?;
        let searcher = self.snapshot.searcher();
        guarded(&self.inner.dir.join(STORE), || {
            let mut terms: Vec<(usize, Term)> = Vec::new();
            let mut analyzer = searcher.index().tokenizer_for_field(fields.text)?;
            analyzer.token_stream(words).process(&mut |token| {
                terms.push((token.position, Term::from_field_text(fields.text, &token.text)));
            });
            terms.truncate(MAX_TERMS);
            let mut rarest = u64::MAX;
            for (_, term) in &terms {
                rarest = rarest.min(searcher.doc_freq(term)?);
            }
            let query: Box<dyn Query> = match terms.len() {
                _ if rarest == 0 || rarest > MAX_POSTINGS => return Ok(Vec::new()),
                1 => Box::new(TermQuery::new(terms.remove(0).1, IndexRecordOption::Basic)),
                _ => Box::new(PhraseQuery::new_with_offset(terms)),
            };
            let weight = query.weight(EnableScoring::disabled_from_searcher(searcher))?;
            let mut found = Vec::new();
            for (reader, ordinal) in searcher.segment_readers().iter().zip(0u32..) {
                let mut rows = weight.scorer(reader, 1.0)?;
                while rows.doc() != TERMINATED && found.len() < limit {
                    if !reader.is_deleted(rows.doc()) {
                        found.push(DocAddress::new(ordinal, rows.doc()));
                    }
                    rows.advance();
                }
            }
            Ok(found)
        })
    }
}
