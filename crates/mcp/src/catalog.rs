//! The tool `indexes`.

use engine::index::{Facet, Index, Store};
use engine::{Error, NoProgress, Result};
use rmcp::schemars::{self, JsonSchema};
use serde::{Deserialize, Serialize};

use crate::brief;
use crate::indexes::{Indexes, Opened};

/// Attributes of an index that are listed.
const MAX_ATTRIBUTES: usize = 100;

/// Values of an attribute that are shown.
const VALUES: usize = 10;

/// Characters of a value. A longer one cannot be a filter.
const VALUE: usize = 100;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AskIndexes {
    /// Name of one index, whose attributes are then shown with their most frequent values. Default: all indexes, with the
    /// names of their attributes.
    #[serde(default)]
    index: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct IndexView {
    name: String,
    documents: usize,
    /// Bits of a code.
    bits: usize,
    /// Whether a search can weigh the `kind`.
    kinds: bool,
    /// Language of keywords.
    language: String,
    /// Encoder of the texts; missing for an index of user vectors, which takes no text as a query.
    #[serde(skip_serializing_if = "Option::is_none")]
    encoder: Option<String>,
    /// Whether documents have texts.
    texts: bool,
    /// Attributes for filters, and `labels` where there are any.
    attributes: Vec<Attribute>,
    /// What to know about this index.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Attribute {
    name: String,
    /// Documents that have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    documents: Option<u64>,
    /// Different values.
    #[serde(skip_serializing_if = "Option::is_none")]
    distinct: Option<u64>,
    /// Smallest number, if it has numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    least: Option<f64>,
    /// Greatest number, if it has numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    greatest: Option<f64>,
    /// The most frequent values.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    values: Vec<AttributeValue>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct AttributeValue {
    value: serde_json::Value,
    /// Documents that have it.
    count: u64,
    /// The filter for these documents.
    #[serde(skip_serializing_if = "Option::is_none")]
    filter: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct IndexList {
    indexes: Vec<IndexView>,
}

pub fn indexes(indexes: &Indexes, asked: AskIndexes) -> Result<IndexList> {
    let views = match asked.index.as_deref() {
        Some(name) => vec![view(indexes.named(Some(name))?, true)?],
        // An index that cannot be read does not hide the others.
        None => indexes.iter().map(|opened| view(opened, false).unwrap_or_else(|e| unreadable(opened, &e))).collect(),
    };
    Ok(IndexList { indexes: views })
}

fn view(opened: &Opened, values: bool) -> Result<IndexView> {
    let searcher = opened.current()?;
    let (index, model) = (searcher.index(), searcher.index().model());
    let mut notes = Vec::new();
    let mut attributes = match (values, searcher.indexes()) {
        (true, [one]) => one.facets(None, VALUES, &NoProgress)?.into_iter().map(attribute).collect(),
        (shown, shards) => {
            if shown {
                notes.push("values are not counted over several shards".into());
            }
            names(shards)?
        }
    };
    if attributes.len() > MAX_ATTRIBUTES {
        notes.push(format!("{} of {} attributes are listed", MAX_ATTRIBUTES, attributes.len()));
        attributes.truncate(MAX_ATTRIBUTES);
    }
    Ok(IndexView {
        name: opened.name.clone(),
        documents: searcher.documents(),
        bits: model.shape().bits(),
        language: index.language().to_string(),
        kinds: model.kinds().is_some(),
        encoder: model.config.embedding.as_ref().map(|embedding| embedding.encoder.clone()),
        texts: index.store() == Store::All,
        attributes,
        notes,
    })
}

fn unreadable(opened: &Opened, error: &Error) -> IndexView {
    IndexView {
        name: opened.name.clone(),
        documents: 0,
        bits: 0,
        kinds: false,
        language: String::new(),
        encoder: None,
        texts: false,
        attributes: Vec::new(),
        notes: vec![format!("cannot be read: {error}")],
    }
}

/// The attributes of all shards by name alone, which costs no pass over the documents.
fn names(shards: &[Index]) -> Result<Vec<Attribute>> {
    let mut names = Vec::new();
    for shard in shards {
        names.extend(shard.attributes()?);
    }
    names.sort();
    names.dedup();
    Ok(names.into_iter().map(|name| Attribute { name, ..Attribute::default() }).collect())
}

fn attribute(facet: Facet) -> Attribute {
    let value = |(value, count): (engine::corpus::Value, u64)| {
        let filter = Facet::filter(&facet.name, &value);
        let whole = filter.chars().count() <= VALUE + facet.name.chars().count();
        AttributeValue { value: brief::short(value, VALUE), count, filter: whole.then_some(filter) }
    };
    Attribute {
        documents: Some(facet.documents),
        distinct: Some(facet.distinct),
        least: facet.range.map(|range| range.0),
        greatest: facet.range.map(|range| range.1),
        values: facet.values.into_iter().map(value).collect(),
        name: facet.name,
    }
}

/// One line about every index, for the introduction of the server.
pub fn summary(indexes: &Indexes) -> String {
    let line = |opened: &Opened| match opened.current() {
        Ok(searcher) => format!("{} ({} documents)", opened.name, searcher.documents()),
        Err(_) => format!("{} (cannot be read)", opened.name),
    };
    indexes.iter().map(line).collect::<Vec<_>>().join(", ")
}
