//! Keyword search: BM25 over the text, and the keywords to mark in snippets.

use std::collections::BTreeSet;

use tantivy::collector::TopDocs;
use tantivy::query::{BooleanQuery, ConstScoreQuery, Occur, Query, TermQuery};
use tantivy::schema::{Field, IndexRecordOption};
use tantivy::snippet::SnippetGenerator;
use tantivy::tokenizer::{
    Language, LowerCaser, RemoveLongFilter, SimpleTokenizer, Stemmer, StopWordFilter, TextAnalyzer, TokenStream,
};
use tantivy::{DocAddress, Searcher, Term};

/// The keywords of a query as stems, like the terms of the text field.
#[derive(Clone, Debug)]
pub(crate) struct Keywords {
    field: Field,
    stems: Vec<String>,
}

/// Max bytes of a keyword, as in tantivy's `en_stem`.
const LONGEST: usize = 40;

impl Keywords {
    /// Splits a text into keywords. A document may match any of them and need not match all. Stop words ("the", "of")
    /// count only if the text has no other keyword. `None` if the text has no keyword at all.
    pub fn new(field: Field, text: &str) -> Option<Keywords> {
        let stop_words = StopWordFilter::new(Language::English).expect("tantivy knows the stop keywords of English");
        let plain = TextAnalyzer::builder(SimpleTokenizer::default()).filter(RemoveLongFilter::limit(LONGEST));
        let mut analyzer = plain.filter(LowerCaser).filter(stop_words).filter(Stemmer::new(Language::English)).build();
        let mut stems = stems(&mut analyzer, text);
        if stems.is_empty() {
            let plain = TextAnalyzer::builder(SimpleTokenizer::default()).filter(RemoveLongFilter::limit(LONGEST));
            stems = self::stems(&mut plain.filter(LowerCaser).filter(Stemmer::new(Language::English)).build(), text);
        }
        (!stems.is_empty()).then(|| Keywords { field, stems: stems.into_iter().collect() })
    }

    /// The keywords as they are looked up: lower case and stemmed.
    pub fn stems(&self) -> &[String] {
        &self.stems
    }

    fn query(&self) -> BooleanQuery {
        let clause = |stem: &String| -> (Occur, Box<dyn Query>) {
            let term = Term::from_field_text(self.field, stem);
            (Occur::Should, Box::new(TermQuery::new(term, IndexRecordOption::WithFreqs)))
        };
        BooleanQuery::new(self.stems.iter().map(clause).collect())
    }

    /// The best documents by BM25, best first. tantivy's statistics count deleted documents until they are merged away.
    pub fn best(
        &self,
        searcher: &Searcher,
        filter: Option<&dyn Query>,
        limit: usize,
    ) -> tantivy::Result<Vec<(DocAddress, f32)>> {
        let top = TopDocs::with_limit(limit).order_by_score();
        let found = match filter {
            None => searcher.search(&self.query(), &top)?,
            Some(filter) => {
                let only = ConstScoreQuery::new(filter.box_clone(), 0.0);
                let both = vec![
                    (Occur::Must, Box::new(self.query()) as Box<dyn Query>),
                    (Occur::Must, Box::new(only) as Box<dyn Query>),
                ];
                searcher.search(&BooleanQuery::new(both), &top)?
            }
        };
        Ok(found.into_iter().map(|(score, address)| (address, score)).collect())
    }

    /// A generator of snippets that marks these keywords.
    pub fn snippets(&self, searcher: &Searcher, most_chars: usize) -> tantivy::Result<SnippetGenerator> {
        let mut generator = SnippetGenerator::create(searcher, &self.query(), self.field)?;
        generator.set_max_num_chars(most_chars);
        Ok(generator)
    }
}

fn stems(analyzer: &mut TextAnalyzer, text: &str) -> BTreeSet<String> {
    let mut stems = BTreeSet::new();
    let mut stream = analyzer.token_stream(text);
    while stream.advance() {
        stems.insert(stream.token().text.clone());
    }
    stems
}
