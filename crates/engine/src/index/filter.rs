//! Filters: tantivy's query language, and the documents of a segment that match.

use std::collections::BTreeSet;
use std::sync::Arc;

use tantivy::query::{EnableScoring, Query, QueryParser};
use tantivy::query_grammar::{self, Occur, UserInputAst, UserInputBound, UserInputLeaf};
use tantivy::schema::Schema;
use tantivy::{Searcher, SegmentReader, TantivyError};

use super::manifest::Store;
use super::nesting::{Grammar, MAX_FILTER_BYTES, MAX_FILTER_DEPTH, too_deep};
use super::schema::Fields;
use super::subset::Subset;
use super::tantivy_error;
use crate::{Error, Result};

pub(crate) struct Filter {
    key: Arc<UserInputAst>,
    length: usize,
    query: Box<dyn Query>,
    within: Option<Subset>,
}

/// The filter of every document.
pub(crate) const ALL: &str = "*";

impl Filter {
    /// Only the documents of a subset, if one is given.
    pub fn within(self, subset: Option<&Subset>) -> Filter {
        Filter { within: subset.cloned(), ..self }
    }

    /// Without the subset.
    pub(super) fn query(&self) -> &dyn Query {
        self.query.as_ref()
    }

    pub(super) fn into_query(self) -> Box<dyn Query> {
        self.query
    }

    /// Cache key; unique within one index.
    pub(super) fn key(&self) -> FilterKey {
        (self.key.clone(), self.within.clone())
    }

    /// Estimated memory of the key: the syntax tree takes several times the length of the text.
    pub(super) fn bytes(&self) -> usize {
        8 * self.length + self.within.as_ref().map_or(0, Subset::bytes)
    }
}

/// The syntax tree with full attribute names and the subset, independent of spaces and redundant parentheses. The schema of an index
/// never changes, so equal keys match the same documents.
pub(super) type FilterKey = (Arc<UserInputAst>, Option<Subset>);

/// Separates filters that must all match, the record separator of ASCII. Each is parsed by itself, so that no quote or
/// parenthesis of one reaches into another.
const BOTH: char = '\u{1e}';

/// Filters that one text may join.
const MAX_JOINED: usize = 4;

/// A filter for the documents that match `within` and, if it is given, `filter`. No document must have the attributes that they
/// name.
pub fn filter_within(filter: Option<&str>, within: &str) -> String {
    format!("{}{BOTH}{within}", filter.unwrap_or(ALL))
}

/// Refuses a text that is a filter of no index. Which attributes there are is not looked at.
pub fn check_filter(text: &str) -> Result<()> {
    check_bounds(text)?;
    if text.contains(BOTH) || query_grammar::parse_query(text).is_err() {
        return Err(Error::filter(
            None,
            format!("the filter {} cannot be understood; write it like places:japan", beginning(text)),
        ));
    }
    Ok(())
}

/// Parses a filter. Attributes need no prefix: `places:japan` means `attributes.places:japan`. If the `known`
/// attributes are given, any other name is refused: a misspelt one would match nothing, or with `NOT` everything. In joined
/// filters any name is taken: the names of other documents are not to be told.
pub(super) fn parse(
    index: &tantivy::Index,
    fields: &Fields,
    store: Store,
    text: &str,
    known: Option<&BTreeSet<String>>,
) -> Result<Filter> {
    let parts: Vec<&str> = text.split(BOTH).collect();
    let tree = match parts[..] {
        [only] => parse_part(index, fields, store, only, known)?,
        _ if parts.len() > MAX_JOINED => {
            return Err(Error::filter(
                None,
                format!("the filter joins {} filters, more than {MAX_JOINED}", parts.len()),
            ));
        }
        _ => {
            let part = |part: &&str| Ok((Some(Occur::Must), parse_part(index, fields, store, part, None)?));
            UserInputAst::Clause(parts.iter().map(part).collect::<Result<_>>()?)
        }
    };
    let mut parser = QueryParser::for_index(index, fields.documents.as_ref().map_or(Vec::new(), |f| vec![f.text]));
    parser.set_conjunction_by_default();
    let query = parser
        .build_query_from_user_input_ast(tree.clone())
        .map_err(|e| not_understood(store, parts[0], &e.to_string(), None))?;
    Ok(Filter { key: Arc::new(tree), length: text.len(), query, within: None })
}

fn not_understood(store: Store, text: &str, reason: &str, position: Option<usize>) -> Error {
    let only_ids = match store {
        Store::All => "",
        Store::Codes => " (this index keeps only ids and codes, so only id:... can be asked for)",
    };
    let place = position.map_or_else(String::new, |position| format!(" at character {position}"));
    Error::filter(
        position,
        format!(
            "the filter {} cannot be understood: {reason}{place}{only_ids}; write it like places:japan AND year:[1987 TO 1988]",
            beginning(text)
        ),
    )
}

/// The syntax tree of one filter, with full attribute names.
fn parse_part(
    index: &tantivy::Index,
    fields: &Fields,
    store: Store,
    text: &str,
    known: Option<&BTreeSet<String>>,
) -> Result<UserInputAst> {
    check_bounds(text)?;
    let refuse = |reason: String, position| not_understood(store, text, &reason, position);
    let mut tree = query_grammar::parse_query(text).map_err(|_| {
        // The lenient parser tells where the strict one stopped. It nests deeper where it takes a quote for a letter.
        let shallow = too_deep(text, Grammar::Lenient).is_none();
        let first = shallow.then(|| query_grammar::parse_query_lenient(text).1).into_iter().flatten().next();
        let position = first.as_ref().and_then(|e| text.get(..e.pos)).map(|before| before.chars().count());
        refuse(first.map_or("syntax error".into(), |e| e.message), position)
    })?;
    exclude_from_all(&mut tree);
    if fields.documents.is_some() {
        let mut unknown = None;
        name_attributes(&mut tree, &index.schema(), known, &mut unknown);
        if let (Some(name), Some(known)) = (unknown, known) {
            return Err(refuse(no_attribute(&name, known), None));
        }
    }
    Ok(tree)
}

/// Refuses a filter that would cost tantivy's parser, or code that walks its tree, too much time or stack.
fn check_bounds(text: &str) -> Result<()> {
    if text.trim().is_empty() {
        return Err(Error::filter(None, "the filter is empty; leave it out, or write one like places:japan"));
    }
    if text.len() > MAX_FILTER_BYTES {
        return Err(Error::filter(
            Some(text.char_indices().take_while(|(at, _)| *at < MAX_FILTER_BYTES).count()),
            format!(
                "the filter {} has {} bytes, more than {MAX_FILTER_BYTES}; split it and ask several times, or give the documents an attribute to filter by",
                beginning(text),
                text.len()
            ),
        ));
    }
    match too_deep(text, Grammar::Strict) {
        None => Ok(()),
        Some(position) => Err(Error::filter(
            Some(position),
            format!(
                "the filter {} nests more than {MAX_FILTER_DEPTH} parentheses and NOTs at character {position}; write it flatter: a OR b OR c needs no parentheses",
                beginning(text)
            ),
        )),
    }
}

/// Max characters of a filter quoted in an error.
const TOLD_CHARS: usize = 200;

/// The filter in quotes for an error message, shortened if it is long.
fn beginning(text: &str) -> String {
    match text.char_indices().nth(TOLD_CHARS) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}...", &text[..end]),
    }
}

/// Makes `NOT places:japan` mean every other document, at any level of the tree.
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

/// Adds the prefix `attributes.` to every name that is no field. tantivy does so for plain terms only, not for ranges,
/// sets and existence.
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
            parts.iter_mut().for_each(|(_, part)| name_attributes(part, schema, known, unknown));
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

/// Whether some document has the attribute, or one below it: `author` is known if there is `author.name`.
fn is_known(name: &str, known: &BTreeSet<String>) -> bool {
    known.contains(name) || known.iter().any(|k| k.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
}

/// Max attribute names listed in an error.
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

/// Splits a range with bounds of different kinds, like `[10 TO 20.5]`, into two ranges. tantivy would parse both bounds
/// as the kind of the first and panic. Ranges of one kind are not split: a document with several values could match
/// each half with a different value.
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

/// How tantivy parses a bound on an attribute.
#[derive(PartialEq)]
enum Kind {
    Whole,
    /// Whole, with a magnitude of 9e15 or more, and not written as an `i64`.
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
pub(crate) struct Bitmap {
    blocks: Vec<u64>,
}

impl Bitmap {
    pub fn empty(len: usize) -> Bitmap {
        Bitmap { blocks: vec![0; len.div_ceil(64)] }
    }

    pub fn insert(&mut self, i: u32) {
        self.blocks[i as usize / 64] |= 1 << (i % 64);
    }

    pub fn contains(&self, i: u32) -> bool {
        self.blocks[i as usize / 64] >> (i % 64) & 1 == 1
    }

    pub fn count(&self) -> usize {
        self.blocks.iter().map(|w| w.count_ones() as usize).sum()
    }

    pub fn blocks(&self) -> &[u64] {
        &self.blocks
    }

    /// Clears the bits for which `stays` is false.
    pub fn retain(&mut self, stays: impl Fn(u32) -> bool) {
        for (i, block) in self.blocks.iter_mut().enumerate() {
            let mut left = *block;
            while left != 0 {
                let bit = left.trailing_zeros();
                left &= left - 1;
                if !stays(i as u32 * 64 + bit) {
                    *block &= !(1 << bit);
                }
            }
        }
    }

    /// The set bits in rising order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.blocks.iter().enumerate().flat_map(|(i, &block)| {
            std::iter::successors((block != 0).then_some(block), |w| (w & (w - 1) != 0).then_some(w & (w - 1)))
                .map(move |w| i as u32 * 64 + w.trailing_zeros())
        })
    }
}

/// Documents of a segment: their numbers in rising order while they are few, otherwise a bitmap.
pub(super) enum Matched {
    Few(Vec<u32>),
    Many(Bitmap),
}

/// The documents of a segment that match, deleted or not; few are at most `few`.
pub(super) fn matched_few(
    searcher: &Searcher,
    segment: &SegmentReader,
    filter: &Filter,
    few: usize,
) -> Result<Matched> {
    if filter.within.is_some() {
        return matched(searcher, segment, filter).map(Matched::Many);
    }
    let mut found = Matched::Few(Vec::new());
    each_matched(searcher, segment, &*filter.query, |documents| {
        if let Matched::Few(all) = &mut found
            && all.len() + documents.len() > few
        {
            let mut bits = Bitmap::empty(segment.max_doc() as usize);
            all.iter().for_each(|&document| bits.insert(document));
            found = Matched::Many(bits);
        }
        match &mut found {
            Matched::Few(all) => all.extend_from_slice(documents),
            Matched::Many(bits) => documents.iter().for_each(|&document| bits.insert(document)),
        }
    })?;
    Ok(found)
}

/// The documents of a segment that match, deleted or not.
pub(super) fn matched(searcher: &Searcher, segment: &SegmentReader, filter: &Filter) -> Result<Bitmap> {
    let mut bits = Bitmap::empty(segment.max_doc() as usize);
    each_matched(searcher, segment, &*filter.query, |documents| {
        documents.iter().for_each(|&document| bits.insert(document));
    })?;
    if let Some(subset) = &filter.within {
        subset.retain(segment, &mut bits)?;
    }
    Ok(bits)
}

/// Passes all documents that match to `take`, in rising order, some at a time.
fn each_matched(
    searcher: &Searcher,
    segment: &SegmentReader,
    query: &dyn Query,
    mut take: impl FnMut(&[u32]),
) -> Result<()> {
    let refuse = |e| match e {
        TantivyError::InvalidArgument(problem) | TantivyError::SchemaError(problem) => {
            Error::filter(None, format!("the filter cannot be applied: {problem}"))
        }
        other => tantivy_error(std::path::Path::new(super::STORE), other),
    };
    let weight = query.weight(EnableScoring::disabled_from_searcher(searcher)).map_err(refuse)?;
    weight.for_each_no_score(segment, &mut take).map_err(refuse)
}

/// The documents of a segment that match and are not deleted.
pub(super) fn matching(searcher: &Searcher, segment: &SegmentReader, filter: &Filter) -> Result<Bitmap> {
    let mut bits = matched(searcher, segment, filter)?;
    if let Some(alive) = segment.alive_bitset() {
        bits.retain(|document| alive.is_alive(document));
    }
    Ok(bits)
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use crate::index::tests::{code, document, model, scratch, tables};
    use crate::index::{Index, IndexConfig};
    use crate::model::CodeShape;
    use crate::query::SearchConfig;

    use super::*;

    fn filled(dir: &std::path::Path) -> Index {
        let model = model(CodeShape::new(3, 16, 4).unwrap(), 1);
        let index = Index::create(dir, &model, IndexConfig::default()).unwrap();
        let mut writer = index.writer().unwrap();
        (0..30).for_each(|i| writer.add(&document(i), &code(&model, i)).unwrap());
        writer.commit(&crate::NoProgress).unwrap();
        index.reload(&crate::NoProgress).unwrap();
        index
    }

    /// Uses a filter in every possible call, with a quarter of the stack of a server thread.
    fn ask(index: &Index, filter: &str) -> Result<usize> {
        let every_use = || {
            let count = index.count(filter)?;
            index.facets(Some(filter), 5, &crate::NoProgress)?;
            let config = SearchConfig { filter: Some(filter.into()), k: 50, ..SearchConfig::default() };
            let hits = index.search(&tables(index.model(), 1, 1), &config)?;
            assert_eq!(hits[0].len(), count, "{filter}");
            Ok(count)
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(512 << 10);
            thread.spawn_scoped(scope, every_use).unwrap().join().unwrap()
        })
    }

    #[test]
    fn the_deepest_filter_fits_a_small_stack() {
        let dir = scratch();
        let index = filled(&dir.path().join("index"));
        let nested = |open: &str, close: &str, times: usize| {
            format!("{}places:japan{}", open.repeat(times), close.repeat(times))
        };
        for (open, close, times, count) in [
            ("(", ")", MAX_FILTER_DEPTH, 10),
            ("NOT ", "", MAX_FILTER_DEPTH, 10),
            ("NOT ", "", MAX_FILTER_DEPTH - 1, 20),
            ("(year:1980 OR -", ")", MAX_FILTER_DEPTH, 0),
            ("(year:1980 OR draft:true AND (", ")^2)", MAX_FILTER_DEPTH / 2, 0),
            ("NOT (year:1980 OR ", ")^2", MAX_FILTER_DEPTH / 2, 0),
            ("text:(report OR ", ")^3", MAX_FILTER_DEPTH, 0),
            ("NOT text : (-grain ", ")", MAX_FILTER_DEPTH / 2, 0),
        ] {
            let filter = nested(open, close, times);
            let found = ask(&index, &filter).unwrap();
            assert!(count == 0 || found == count, "{filter}: {found}");
            // An unclosed parenthesis runs both parsers.
            assert!(matches!(ask(&index, &format!("({filter}")), Err(Error::FilterSyntax { .. })), "{filter}");
        }
    }

    #[test]
    fn no_part_of_a_joined_filter_reaches_into_another() {
        let dir = scratch();
        let index = filled(&dir.path().join("index"));
        let within = "places:japan";
        let own = index.count(within).unwrap();
        assert!(own > 0 && own < 30);
        let parts = [
            "places:usa",
            "*",
            "places:usa OR *",
            "NOT places:japan",
            "year:[1900 TO 2100]",
            "nowhere:x",
            "NOT nowhere:x",
        ];
        for part in parts {
            let alone = index.count(part).unwrap_or(0);
            let both = ask(&index, &filter_within(Some(part), within)).unwrap();
            assert!(both <= own.min(alone.max(own)), "{part}: {both}");
            let listed = ask(&index, &format!("{part}{BOTH}{within}{BOTH}{within}")).unwrap();
            assert_eq!(both, listed, "{part}");
        }
        assert_eq!(
            ask(&index, &filter_within(Some("places:usa"), within)).unwrap(),
            index.count("places:usa AND places:japan").unwrap()
        );
        assert_eq!(ask(&index, &filter_within(Some("*"), within)).unwrap(), own);
        assert_eq!(ask(&index, &filter_within(Some("NOT places:japan"), within)).unwrap(), 0);
        assert_eq!(ask(&index, &filter_within(None, within)).unwrap(), own);
        assert_eq!(ask(&index, &filter_within(None, "nowhere:x")).unwrap(), 0);
        // Text that would close the other part if both were one text.
        for sly in
            ["*) OR (*", "a) OR (NOT b", "\"", "'", "places:usa OR \"", "\\", "(", "text:it's OR *) OR (", "places:["]
        {
            match index.count(&filter_within(Some(sly), within)) {
                Ok(found) => assert!(found <= own, "{sly}: {found}"),
                Err(error) => assert!(matches!(error, Error::FilterSyntax { .. }), "{sly}: {error}"),
            }
        }
        // Names of attributes of other documents are not told, and not refused either.
        assert_eq!(ask(&index, &filter_within(Some("nowhere:x"), within)).unwrap(), 0);
        for wrong in [&format!("a{BOTH}"), &format!("{BOTH}a"), &["a"; 5].join("\u{1e}")] {
            assert!(matches!(index.count(wrong), Err(Error::FilterSyntax { .. })), "{wrong:?}");
        }
        check_filter("tenant:acme AND NOT draft:true").unwrap();
        for wrong in ["", "tenant:", "(a", &format!("a{BOTH}b")] {
            assert!(check_filter(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_filter_over_the_limits_is_refused_with_its_position() {
        let dir = scratch();
        let index = filled(&dir.path().join("index"));
        for (filter, expected) in [
            ("NOT ".repeat(500) + "places:japan", 4 * MAX_FILTER_DEPTH + 3),
            ("(".repeat(10_000), MAX_FILTER_DEPTH),
            ("text:(".repeat(5_000), 6 * MAX_FILTER_DEPTH + 5),
            ("a OR ".repeat(MAX_FILTER_BYTES / 5 + 1) + "b", MAX_FILTER_BYTES),
        ] {
            let error = ask(&index, &filter).unwrap_err();
            let said = error.to_string();
            let Error::FilterSyntax { position, .. } = error else { panic!("{error:?}") };
            assert_eq!(position, Some(expected), "{said}");
            assert!(said.len() < 500 && said.starts_with("the filter"), "{said}");
        }
        let error = ask(&index, "places:japan AND year:[1987 TO").unwrap_err();
        assert!(matches!(error, Error::FilterSyntax { position: Some(_), .. }), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn no_filter_panics_or_overflows(
            filters in prop::collection::vec(
                prop::collection::vec(prop::sample::select(vec![
                    "(", ")", "[", "]", "{", "}", "\"", "'", "\\", ":", "+", "-", "^", "~", "*", " ", "NOT ", "AND ",
                    "OR ", "IN ", "TO ", "text", "places:", "year:>", "/", "2", "japan", "((((((((((", "NOT NOT NOT ",
                ]), 0..400).prop_map(|parts| parts.concat()),
                8,
            ),
            length in 0..MAX_FILTER_BYTES,
        ) {
            static FILLED: LazyLock<(tempfile::TempDir, Index)> = LazyLock::new(|| {
                let dir = scratch();
                let index = filled(&dir.path().join("index"));
                (dir, index)
            });
            let (_, index) = &*FILLED;
            for filter in filters {
                let _ = ask(index, &filter);
                if !filter.is_empty() {
                    let long: String = filter.chars().cycle().take(length).collect();
                    let _ = ask(index, &long);
                }
            }
        }
    }
}
