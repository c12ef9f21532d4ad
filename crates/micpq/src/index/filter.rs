//! Filters: tantivy's query language, and the documents of a segment that match.

use std::collections::BTreeSet;
use std::sync::Arc;

use tantivy::query::{EnableScoring, Query, QueryParser};
use tantivy::query_grammar::{self, Occur, UserInputAst, UserInputBound, UserInputLeaf};
use tantivy::schema::Schema;
use tantivy::{Searcher, SegmentReader, TantivyError};

use super::manifest::Store;
use super::schema::Fields;
use super::tantivy_error;
use crate::{Error, Result};

/// A filter that was understood.
pub(crate) struct Filter {
    key: FilterKey,
    length: usize,
    query: Box<dyn Query>,
}

impl Filter {
    pub fn query(&self) -> &dyn Query {
        self.query.as_ref()
    }

    pub(super) fn into_query(self) -> Box<dyn Query> {
        self.query
    }

    /// Tells it from others of the same index.
    pub(super) fn key(&self) -> FilterKey {
        self.key.clone()
    }

    /// About the memory its key takes: the tree holds the words and a few times as much around them.
    pub(super) fn bytes(&self) -> usize {
        8 * self.length
    }
}

/// A filter as it was understood, whatever its spaces and brackets were, with the names of attributes in full. The schema of
/// an index stays, so equal ones match the same documents.
pub(super) type FilterKey = Arc<UserInputAst>;

/// Understands a filter. Attributes need no prefix: `places:japan` is `attributes.places:japan`. Given the attributes
/// that are `known`, any other name is refused: a misspelt one would match nothing, or with `NOT` everything.
pub(super) fn parse(
    index: &tantivy::Index,
    fields: &Fields,
    store: Store,
    text: &str,
    known: Option<&BTreeSet<String>>,
) -> Result<Filter> {
    if text.trim().is_empty() {
        return Err(Error::config("the filter is empty; leave it out, or write one like places:japan"));
    }
    let refuse = |reason: String| {
        let only_ids = match store {
            Store::All => "",
            Store::Codes => " (this index keeps only ids and codes, so only id:... can be asked for)",
        };
        Error::config(format!(
            "the filter {text:?} cannot be understood: {reason}{only_ids}; write it like places:japan AND year:[1987 TO 1988]"
        ))
    };
    let mut tree = query_grammar::parse_query(text).map_err(|_| {
        // The forgiving parser knows where the strict one stopped.
        let (_, errors) = query_grammar::parse_query_lenient(text);
        refuse(errors.first().map_or("syntax error".into(), |e| format!("{} at character {}", e.message, e.pos)))
    })?;
    exclude_from_all(&mut tree);
    if fields.documents.is_some() {
        let mut unknown = None;
        name_attributes(&mut tree, &index.schema(), known, &mut unknown);
        if let (Some(name), Some(known)) = (unknown, known) {
            return Err(refuse(no_attribute(&name, known)));
        }
    }
    let mut parser = QueryParser::for_index(index, fields.documents.as_ref().map_or(Vec::new(), |f| vec![f.text]));
    parser.set_conjunction_by_default();
    let query = parser.build_query_from_user_input_ast(tree.clone()).map_err(|e| refuse(e.to_string()))?;
    Ok(Filter { key: Arc::new(tree), length: text.len(), query })
}

/// Lets `NOT places:japan` mean all documents but those, wherever it stands.
fn exclude_from_all(tree: &mut UserInputAst) {
    match tree {
        UserInputAst::Clause(parts) => {
            parts.iter_mut().for_each(|(_, part)| exclude_from_all(part));
            if parts.iter().all(|(occur, _)| *occur == Some(Occur::MustNot)) {
                parts.push((Some(Occur::Must), UserInputAst::Leaf(Box::new(UserInputLeaf::All))));
            }
        }
        UserInputAst::Boost(part, _) => exclude_from_all(part),
        UserInputAst::Leaf(_) => {}
    }
}

/// Puts the attributes' field before every name that is no field. tantivy would do so for plain terms only, and not for
/// ranges, sets and existence.
fn name_attributes(
    tree: &mut UserInputAst,
    schema: &Schema,
    known: Option<&BTreeSet<String>>,
    unknown: &mut Option<String>,
) {
    let mut full = |name: &mut String| {
        let attribute = match schema.find_field(name) {
            None => name.clone(),
            Some((_, path)) if name.starts_with("attributes.") => path.to_owned(),
            Some(_) => return,
        };
        let plain = attribute.replace("\\.", ".");
        if unknown.is_none() && known.is_some_and(|known| !is_known(&plain, known)) {
            *unknown = Some(plain);
        }
        *name = format!("attributes.{attribute}");
    };
    match tree {
        UserInputAst::Clause(parts) => {
            parts.iter_mut().for_each(|(_, part)| name_attributes(part, schema, known, unknown))
        }
        UserInputAst::Boost(part, _) => name_attributes(part, schema, known, unknown),
        UserInputAst::Leaf(leaf) => match leaf.as_mut() {
            UserInputLeaf::Literal(literal) => literal.field_name.iter_mut().for_each(full),
            UserInputLeaf::Range { field, .. }
            | UserInputLeaf::Set { field, .. }
            | UserInputLeaf::Regex { field, .. } => field.iter_mut().for_each(full),
            UserInputLeaf::Exists { field } => full(field),
            UserInputLeaf::All => {}
        },
    }
    split_range(tree);
}

/// Whether some document has the attribute, or one below it: `author` where there is `author.name`.
fn is_known(name: &str, known: &BTreeSet<String>) -> bool {
    known.contains(name) || known.iter().any(|k| k.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
}

/// Names told in an error at most.
const TOLD: usize = 30;

fn no_attribute(name: &str, known: &BTreeSet<String>) -> String {
    if known.is_empty() {
        return format!("no document has an attribute \"{name}\": this index has none");
    }
    let mut names: Vec<&str> = known.iter().take(TOLD).map(String::as_str).collect();
    if known.len() > TOLD {
        names.push("...");
    }
    format!("no document has an attribute \"{name}\"; known: {}", names.join(", "))
}

/// Two bounds of different kinds, like `[10 TO 20.5]`, as two ranges: tantivy would read both as the kind of the first,
/// and panic. Only then: a document with several values could meet the two halves with two of them.
fn split_range(tree: &mut UserInputAst) {
    let UserInputAst::Leaf(leaf) = tree else { return };
    let UserInputLeaf::Range { field, lower, upper } = leaf.as_ref() else { return };
    let (Some(first), Some(last)) = (Kind::of(lower), Kind::of(upper)) else { return };
    if first == last {
        return;
    }
    let half = |lower: UserInputBound, upper: UserInputBound| {
        let range = UserInputLeaf::Range { field: field.clone(), lower, upper };
        (Some(Occur::Must), UserInputAst::Leaf(Box::new(range)))
    };
    let halves = vec![half(lower.clone(), UserInputBound::Unbounded), half(UserInputBound::Unbounded, upper.clone())];
    *tree = UserInputAst::Clause(halves);
}

/// How tantivy reads a bound on an attribute.
#[derive(PartialEq)]
enum Kind {
    Whole,
    /// Whole, and beyond 2^63.
    Great,
    Fraction,
    Text,
}

impl Kind {
    fn of(bound: &UserInputBound) -> Option<Kind> {
        let text = match bound {
            UserInputBound::Inclusive(text) | UserInputBound::Exclusive(text) if text != "*" => text,
            _ => return None,
        };
        Some(match text.parse::<f64>() {
            Err(_) => Kind::Text,
            Ok(_) if text.parse::<i64>().is_ok() => Kind::Whole,
            Ok(x) if x.fract() == 0.0 && x.abs() < 9e15 => Kind::Whole,
            Ok(x) if x.fract() == 0.0 => Kind::Great,
            Ok(_) => Kind::Fraction,
        })
    }
}

/// A bitmap over a segment's documents.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bitmap {
    words: Vec<u64>,
}

impl Bitmap {
    pub fn empty(len: usize) -> Bitmap {
        Bitmap { words: vec![0; len.div_ceil(64)] }
    }

    pub fn insert(&mut self, i: u32) {
        self.words[i as usize / 64] |= 1 << (i % 64);
    }

    pub fn count(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Takes out the bits that do not stay.
    pub fn retain(&mut self, stays: impl Fn(u32) -> bool) {
        for (i, word) in self.words.iter_mut().enumerate() {
            let mut left = *word;
            while left != 0 {
                let bit = left.trailing_zeros();
                left &= left - 1;
                if !stays(i as u32 * 64 + bit) {
                    *word &= !(1 << bit);
                }
            }
        }
    }

    /// The set bits, rising.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().enumerate().flat_map(|(i, &word)| {
            std::iter::successors((word != 0).then_some(word), |w| (w & (w - 1) != 0).then_some(w & (w - 1)))
                .map(move |w| i as u32 * 64 + w.trailing_zeros())
        })
    }
}

/// The documents of a segment that match, deleted or not.
pub(super) fn matched(searcher: &Searcher, segment: &SegmentReader, query: &dyn Query) -> Result<Bitmap> {
    let refuse = |e| match e {
        TantivyError::InvalidArgument(problem) | TantivyError::SchemaError(problem) => {
            Error::config(format!("the filter cannot be applied: {problem}"))
        }
        other => tantivy_error(std::path::Path::new(super::STORE), other),
    };
    let weight = query.weight(EnableScoring::disabled_from_searcher(searcher)).map_err(refuse)?;
    let mut bits = Bitmap::empty(segment.max_doc() as usize);
    let mut take = |documents: &[u32]| documents.iter().for_each(|&document| bits.insert(document));
    weight.for_each_no_score(segment, &mut take).map_err(refuse)?;
    Ok(bits)
}

/// The living documents of a segment that match.
pub(super) fn matching(searcher: &Searcher, segment: &SegmentReader, query: &dyn Query) -> Result<Bitmap> {
    let mut bits = matched(searcher, segment, query)?;
    if let Some(alive) = segment.alive_bitset() {
        bits.retain(|document| alive.is_alive(document));
    }
    Ok(bits)
}
