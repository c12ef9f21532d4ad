//! The tools `search` and `similar`.

use engine::index::{Index, Store};
use engine::query::{self, Query, SearchConfig, Searcher};
use engine::{Error, Progress, Result};
use rmcp::schemars::{self, JsonSchema};
use serde::{Deserialize, Serialize};

use crate::brief::{self, Attributes, Id};
use crate::indexes::{Indexes, Opened};

/// Hits of a page. An assistant reads every hit.
pub const MAX_HITS: usize = 50;

/// Bytes of a query text.
pub const MAX_QUERY_BYTES: usize = 100_000;

/// Characters of a snippet.
const SNIPPET: usize = 300;

/// Characters of a label, and of a text among the attributes of a hit.
const ATTRIBUTE: usize = 200;

/// Bytes of the hits of an answer; attributes are left out of a longer one.
const MAX_BYTES: usize = 60_000;

fn default_k() -> usize {
    SearchConfig::default().k
}

fn default_hybrid() -> f64 {
    SearchConfig::default().hybrid.into()
}

fn default_kind() -> f64 {
    SearchConfig::default().kind.into()
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Search {
    /// What the documents are about. A phrase or a sentence says more than single words.
    query: String,
    /// Name of the index, needed if there are several; the tool `indexes` lists them.
    #[serde(default)]
    index: Option<String>,
    /// Number of hits.
    #[serde(default = "default_k")]
    #[schemars(range(min = 1, max = MAX_HITS))]
    k: usize,
    /// Only documents that match this condition on attributes, such as `places:japan AND year:[1987 TO 1988]`,
    /// `NOT year:1988` or `labels:grain`. Names without an attribute are searched in the text. The tool `indexes` lists the
    /// attributes.
    #[serde(default)]
    filter: Option<String>,
    /// How much the exact words of the query count: 0 finds by meaning alone, 1 by words alone. 0.3 suits names and rare words.
    #[serde(default = "default_hybrid")]
    #[schemars(range(min = 0.0, max = 1.0))]
    hybrid: f64,
    /// From the particular document (0) to everything of its kind (1), which suits overviews. Only for an index whose `kinds` is
    /// true.
    #[serde(default = "default_kind")]
    #[schemars(range(min = 0.0, max = 1.0))]
    kind: f64,
    /// `next` of an earlier answer to the same arguments, for the hits after it.
    #[serde(default)]
    after: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Similar {
    /// Id of a document, as a hit has it. It is not among its own hits.
    id: Id,
    /// Name of the index, needed if there are several.
    #[serde(default)]
    index: Option<String>,
    /// Number of hits.
    #[serde(default = "default_k")]
    #[schemars(range(min = 1, max = MAX_HITS))]
    k: usize,
    /// Only documents that match this condition on attributes, as in `search`.
    #[serde(default)]
    filter: Option<String>,
    /// From documents that say the same (0) to everything of its kind (1), as in `search`.
    #[serde(default = "default_kind")]
    #[schemars(range(min = 0.0, max = 1.0))]
    kind: f64,
    /// `next` of an earlier answer to the same arguments, for the hits after it.
    #[serde(default)]
    after: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Hit {
    /// For the tools `fetch` and `similar`.
    id: Id,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    /// The part of the text that matches best.
    #[serde(skip_serializing_if = "Option::is_none")]
    snippet: Option<String>,
    /// Hits are ordered by it, falling. It compares hits of one answer, not of different queries.
    score: f64,
    /// Where the passage found begins in a long document, in bytes: an `offset` for `fetch`.
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    labels: Vec<String>,
    #[serde(skip_serializing_if = "Attributes::is_empty")]
    attributes: Attributes,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Found {
    /// Best first.
    hits: Vec<Hit>,
    /// For `after`, if there are more hits.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    /// What to know about this answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

pub fn search(indexes: &Indexes, asked: Search, progress: &dyn Progress) -> Result<Found> {
    if asked.query.trim().is_empty() {
        return Err(Error::option("query", "is empty; say what the documents are about"));
    }
    if asked.query.len() > MAX_QUERY_BYTES {
        let problem = format!("has {} bytes, more than {MAX_QUERY_BYTES}; shorten it", asked.query.len());
        return Err(Error::option("query", problem));
    }
    let opened = indexes.named(asked.index.as_deref())?;
    let config = SearchConfig {
        hybrid: share("hybrid", asked.hybrid)?,
        kind: share("kind", asked.kind)?,
        ..config(asked.k, asked.filter, asked.after.as_deref())?
    };
    let query = Query { encoder: indexes.query_encoder, ..Query::text(asked.query) };
    find(opened, &*indexes.for_texts(opened)?, query, config, progress)
}

pub fn similar(indexes: &Indexes, asked: Similar, progress: &dyn Progress) -> Result<Found> {
    let opened = indexes.named(asked.index.as_deref())?;
    let kind = share("kind", asked.kind)?;
    let config = SearchConfig { kind, ..config(asked.k, asked.filter, asked.after.as_deref())? };
    find(opened, &*opened.current()?, Query::document(asked.id.0), config, progress)
}

/// Checked in double precision: rounding could move a value that is just out of range into it.
fn share(name: &str, value: f64) -> Result<f32> {
    if (0.0..=1.0).contains(&value) {
        return Ok(value as f32);
    }
    Err(Error::option(name, format!("is {value}; give a number from 0 to 1")))
}

fn config(k: usize, filter: Option<String>, after: Option<&str>) -> Result<SearchConfig> {
    if !(1..=MAX_HITS).contains(&k) {
        return Err(Error::option(
            "k",
            format!("is {k}; give 1 to {MAX_HITS}, and after = next of the answer for the hits that follow"),
        ));
    }
    // An empty filter is what an assistant sends for no filter.
    let filter = filter.filter(|filter| !filter.trim().is_empty());
    let after = after.filter(|after| !after.is_empty()).map(str::parse).transpose()?;
    Ok(SearchConfig { k, filter, after, ..SearchConfig::default() })
}

fn find(
    opened: &Opened,
    searcher: &Searcher,
    query: Query,
    config: SearchConfig,
    progress: &dyn Progress,
) -> Result<Found> {
    let stores_texts = searcher.index().store() == Store::All;
    let config = SearchConfig { snippets: stores_texts, ..config };
    let answer = searcher.search(&[query], &config, progress)?.pop();
    let answer = answer.ok_or_else(|| Error::input("the query", "has no answer; ask again"))?;
    let mut found = Found {
        hits: answer.hits.into_iter().map(hit).collect(),
        next: answer.next.map(|cursor| cursor.to_string()),
        notes: searcher.warnings(),
    };
    if !stores_texts {
        found.notes.push(format!("index \"{}\" stores only ids and codes, so hits have no text", opened.name));
    }
    if config.filter.is_some() && found.hits.is_empty() && config.after.is_none() {
        found.notes.push(nothing_matches(searcher, config.filter.as_deref().unwrap_or_default()));
    }
    if serde_json::to_string(&found.hits).map_or(0, |json| json.len()) > MAX_BYTES {
        found.hits.iter_mut().for_each(|hit| (hit.attributes, hit.labels) = (Attributes::new(), Vec::new()));
        found.notes.push(
            "labels and attributes are left out, because the answer is long; fetch shows them, or give a smaller k"
                .into(),
        );
    }
    Ok(found)
}

/// Says which attributes there are: an unknown name in a filter is an error, an unknown value is not.
fn nothing_matches(searcher: &Searcher, filter: &str) -> String {
    let mut names: Vec<String> =
        searcher.indexes().iter().flat_map(|index| Index::attributes(index).unwrap_or_default()).collect();
    names.sort();
    names.dedup();
    format!(
        "no document matches the filter {filter}; attributes: {}. The tool `indexes` with the name of the index shows their values",
        brief::cut(&names.join(", "), 1000)
    )
}

fn hit(hit: query::Hit) -> Hit {
    let (title, attributes) = brief::attributes(hit.attributes, ATTRIBUTE);
    let snippet = hit.snippet.map(|snippet| snippet.text).filter(|text| !text.is_empty()).or(hit.text);
    Hit {
        id: Id(hit.id),
        title,
        snippet: snippet.map(|text| brief::beginning(&text, SNIPPET)),
        score: brief::rounded(hit.score),
        offset: hit.chunk.filter(|chunk| chunk.of > 1).map(|chunk| chunk.start),
        labels: brief::labels(hit.labels, ATTRIBUTE),
        attributes,
    }
}
