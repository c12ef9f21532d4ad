//! Documents by their words: BM25 over the text, and the words to mark in it.

use std::collections::BTreeSet;

use tantivy::collector::TopDocs;
use tantivy::query::{BooleanQuery, ConstScoreQuery, Occur, Query, TermQuery};
use tantivy::schema::{Field, IndexRecordOption};
use tantivy::snippet::SnippetGenerator;
use tantivy::tokenizer::{
    Language, LowerCaser, RemoveLongFilter, SimpleTokenizer, Stemmer, StopWordFilter, TextAnalyzer, TokenStream,
};
use tantivy::{DocAddress, Searcher, Term};

/// The words of a query, as the text field has them.
#[derive(Clone, Debug)]
pub(crate) struct Words {
    field: Field,
    stems: Vec<String>,
}

/// Longest word that is looked for, as in tantivy's `en_stem`.
const LONGEST: usize = 40;

impl Words {
    /// Understands a text as plain words: each may be in a document, none must. Words without meaning of their own
    /// ("the", "of") count only where there is no other. `None` where there is no word at all.
    pub fn new(field: Field, text: &str) -> Option<Words> {
        let telling = StopWordFilter::new(Language::English).expect("tantivy knows the stop words of English");
        let plain = TextAnalyzer::builder(SimpleTokenizer::default()).filter(RemoveLongFilter::limit(LONGEST));
        let mut some = plain.filter(LowerCaser).filter(telling).filter(Stemmer::new(Language::English)).build();
        let mut stems = stems(&mut some, text);
        if stems.is_empty() {
            let plain = TextAnalyzer::builder(SimpleTokenizer::default()).filter(RemoveLongFilter::limit(LONGEST));
            stems = self::stems(&mut plain.filter(LowerCaser).filter(Stemmer::new(Language::English)).build(), text);
        }
        (!stems.is_empty()).then(|| Words { field, stems: stems.into_iter().collect() })
    }

    /// As they are looked up: small letters, without endings.
    pub fn stems(&self) -> &[String] {
        &self.stems
    }

    fn query(&self) -> BooleanQuery {
        let word = |stem: &String| -> (Occur, Box<dyn Query>) {
            let term = Term::from_field_text(self.field, stem);
            (Occur::Should, Box::new(TermQuery::new(term, IndexRecordOption::WithFreqs)))
        };
        BooleanQuery::new(self.stems.iter().map(word).collect())
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

    /// Finds these words in texts.
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
