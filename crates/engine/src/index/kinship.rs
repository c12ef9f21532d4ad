//! Checks that the files of a segment belong together. A file of another segment has a valid checksum too, but then a
//! document is not found alike in all files.

use tantivy::fieldnorm::FieldNormReader;
use tantivy::postings::Postings;
use tantivy::schema::{IndexRecordOption, Value as _};
use tantivy::tokenizer::TokenStream;
use tantivy::{DocSet, SegmentReader, TERMINATED, TantivyDocument, Term};

use super::schema::Fields;
use super::snapshot::Ids;

/// Number of documents checked per segment, evenly spaced.
const LOOKED_UP: u32 = 64;

/// The extension of a file that does not fit and the mismatch; `None` if all files fit.
pub(super) fn check(reader: &SegmentReader, fields: &Fields) -> tantivy::Result<Option<(&'static str, String)>> {
    let ids = Ids::open(reader)?;
    let norms = fields.documents.as_ref().map(|f| reader.get_fieldnorms_reader(f.text)).transpose()?;
    let store = reader.get_store_reader(2)?;
    let step = (reader.max_doc() / LOOKED_UP).max(1);
    for document in (0..reader.max_doc()).step_by(step as usize) {
        let id = match ids.get(document) {
            Ok(id) => id,
            Err(problem) => return Ok(Some(("fast", problem))),
        };
        if !holds(reader, &fields.id_term(&id), document, None)? {
            return Ok(Some(("term", format!("document {document} is not found by its id \"{id}\""))));
        }
        let (Some(fields), Some(norms)) = (&fields.documents, &norms) else { continue };
        let stored: TantivyDocument = store.get(document)?;
        let Some(text) = stored.get_first(fields.text).and_then(|v| v.as_str().map(str::to_owned)) else {
            return Ok(Some(("store", format!("document {document} has no text"))));
        };
        let terms = terms_of(reader, &text)?;
        if norms.fieldnorm_id(document) != FieldNormReader::fieldnorm_to_id(terms.len() as u32) {
            let said = norms.fieldnorm(document);
            let problem = format!("document {document} has {} terms, {said} are written down", terms.len());
            return Ok(Some(("fieldnorm", problem)));
        }
        // A term from the middle: the first terms are often the same in many documents.
        if let Some((term, _)) = terms.get(terms.len() / 2) {
            let places: Vec<u32> = terms.iter().filter(|(t, _)| t == term).map(|&(_, place)| place).collect();
            if !holds(reader, &Term::from_field_text(fields.text, term), document, Some(&places))? {
                let problem = format!("document {document} is not found by its term \"{term}\" at its places");
                return Ok(Some(("store", problem)));
            }
        }
    }
    Ok(None)
}

/// Whether a document is in the posting list of a term; if `places` is given, at exactly these positions.
fn holds(reader: &SegmentReader, term: &Term, document: u32, places: Option<&[u32]>) -> tantivy::Result<bool> {
    let option = if places.is_some() { IndexRecordOption::WithFreqsAndPositions } else { IndexRecordOption::Basic };
    let Some(mut postings) = reader.inverted_index(term.field())?.read_postings(term, option)? else {
        return Ok(false);
    };
    let mut at = postings.doc();
    while at < document && at != TERMINATED {
        at = postings.advance();
    }
    let mut found = Vec::new();
    if at == document && places.is_some() {
        postings.positions(&mut found);
    }
    Ok(at == document && places.is_none_or(|places| places == found))
}

/// The terms of a text as they are indexed, with their positions.
fn terms_of(reader: &SegmentReader, text: &str) -> tantivy::Result<Vec<(String, u32)>> {
    let field = reader.schema().get_field("text")?;
    let mut analyzer = reader.index().tokenizer_for_field(field)?;
    let mut terms = Vec::new();
    analyzer.token_stream(text).process(&mut |token| terms.push((token.text.clone(), token.position as u32)));
    Ok(terms)
}
