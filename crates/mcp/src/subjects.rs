//! The tool `topics`.

use engine::topics::{self, Topic, TopicsConfig};
use engine::{Error, Progress, Result};
use rmcp::schemars::{self, JsonSchema};
use serde::{Deserialize, Serialize};

use crate::brief::Id;
use crate::indexes::Indexes;

/// Topics of an answer.
pub const MAX_TOPICS: usize = 50;

/// Periods of a trend. More of them say little to a reader.
const MAX_PERIODS: usize = 50;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AskTopics {
    /// Name of the index, needed if there are several.
    #[serde(default)]
    index: Option<String>,
    /// Number of topics. Default: chosen by how well they are told apart.
    #[serde(default)]
    #[schemars(range(min = 1, max = MAX_TOPICS))]
    topics: Option<usize>,
    /// Attribute with dates or years, to count the documents of every topic by period.
    #[serde(default)]
    over: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct TopicView {
    /// The terms that tell it from the others.
    terms: Vec<String>,
    documents: u64,
    /// Its share of all documents.
    share: f64,
    /// Documents near its middle.
    typical: Vec<Typical>,
    /// Documents by period, with `over`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    trend: Vec<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Typical {
    /// For the tools `fetch` and `similar`.
    id: Id,
    /// Its title, or the beginning of its text.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct TopicList {
    /// The largest first.
    topics: Vec<TopicView>,
    /// Documents of the index.
    documents: u64,
    /// Documents that are far from every topic.
    outliers: u64,
    /// Periods of the trends, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    periods: Vec<String>,
    /// What to know about this answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

pub fn topics(indexes: &Indexes, asked: AskTopics, progress: &dyn Progress) -> Result<TopicList> {
    if let Some(topics) = asked.topics.filter(|topics| !(1..=MAX_TOPICS).contains(topics)) {
        return Err(Error::option("topics", format!("is {topics}; give 1 to {MAX_TOPICS}")));
    }
    let index = indexes.named(asked.index.as_deref())?.single()?;
    let by_period = asked.over.is_some();
    let config = TopicsConfig { topics: asked.topics, over: asked.over, ..TopicsConfig::default() };
    let mut found = topics::find(&index, &config, progress)?;
    let mut notes = Vec::new();
    if found.topics.len() > MAX_TOPICS {
        notes.push(format!("the largest {MAX_TOPICS} of {} topics; give a number for fewer", found.topics.len()));
        found.topics.truncate(MAX_TOPICS);
    }
    if by_period && found.periods.len() > MAX_PERIODS {
        notes.push(format!("no trend: it has {} periods, more than {MAX_PERIODS}", found.periods.len()));
    }
    let periods = if by_period && found.periods.len() <= MAX_PERIODS { found.periods } else { Vec::new() };
    Ok(TopicList {
        topics: found.topics.into_iter().map(|topic| view(topic, !periods.is_empty())).collect(),
        documents: found.documents,
        outliers: found.outliers,
        periods,
        notes,
    })
}

fn view(topic: Topic, by_period: bool) -> TopicView {
    let typical = topic.typical.into_iter().map(|document| Typical { id: Id(document.id), text: document.text });
    TopicView {
        terms: topic.terms.into_iter().map(|term| term.term).collect(),
        documents: topic.documents,
        share: (topic.share * 1e4).round() / 1e4,
        typical: typical.collect(),
        trend: if by_period { topic.trend } else { Vec::new() },
    }
}
