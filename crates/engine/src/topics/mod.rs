//! Topics of an index: clusters of its codes, with names, typical documents, a hierarchy and a trend.
//!
//! Codes are clustered by k-means as they are: the distance of a document to a centre is a sum of table entries, one per
//! codebook, and the mean of a cluster follows from how often it has each codeword. No vector is read, so a million
//! documents take a few seconds and a few bytes each. Names come from the terms of the index.

mod choose;
mod codewords;
pub(crate) mod hierarchy;
mod later;
mod marks;
mod names;
#[cfg(test)]
mod tests;
mod trend;

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use crate::clusters::Fences;
use crate::clusters::kmeans::{self, Clusters};
use crate::clusters::points::{self, Points};
use crate::corpus::{DocId, Value};
pub use crate::index::topics::{MAX_TOPICS, carry, follow, followed, unfollow};
use crate::index::{Index, Record, Walk};
use crate::{Error, Progress, Result};
pub use codewords::{CodewordTerms, LatestTerms, SharedCodeword};
pub use later::{Later, find_later, mark_later};
pub use marks::{CodewordDocuments, Mark};
pub use names::TopicTerm;

/// Documents between two looks at whether to stop.
const CHUNK: usize = 4096;

/// How topics are found.
#[derive(Clone, Debug, PartialEq)]
pub struct TopicsConfig {
    /// Number of topics; `None` chooses it.
    pub topics: Option<usize>,
    /// Of the first centres. The same seed gives the same topics.
    pub seed: u64,
    /// Terms of a topic.
    pub terms: usize,
    /// Typical documents of a topic.
    pub typical: usize,
    /// Attribute with dates, for the trend. `None`: the first one that has dates, if any.
    pub over: Option<String>,
}

impl Default for TopicsConfig {
    fn default() -> Self {
        TopicsConfig { topics: None, seed: 1, terms: 10, typical: 3, over: None }
    }
}

impl TopicsConfig {
    pub fn validate(&self) -> Result<()> {
        Error::check_count("topics", self.topics.unwrap_or(1), MAX_TOPICS)?;
        Error::check_count("terms", self.terms, 100)?;
        Error::check_count("typical", self.typical, 100)
    }
}

/// A document that is near the centre of its topic.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TypicalDocument {
    pub id: DocId,
    /// Its attribute `title`, or the beginning of its text; `None` if the index stores no texts.
    pub text: Option<String>,
}

/// A cluster of documents.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Topic {
    /// From 0, by falling size.
    pub number: usize,
    /// Its first terms.
    pub name: String,
    /// Documents without outliers.
    pub documents: u64,
    /// Of all documents of the index.
    pub share: f64,
    /// Documents that are nearest to this topic, but far from it.
    pub outliers: u64,
    /// The best first. Empty if the index stores no texts.
    pub terms: Vec<TopicTerm>,
    /// The most typical first.
    pub typical: Vec<TypicalDocument>,
    /// Documents by period; empty without dates.
    pub trend: Vec<u64>,
}

/// Two topics as one. The first merge has the number after the last topic, and so on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TopicMerge {
    pub number: usize,
    pub children: [usize; 2],
    pub name: String,
    pub documents: u64,
    /// How much the squared distances of documents to their centres grow, per document of the index.
    pub cost: f64,
}

/// The topic of a document.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Assignment {
    pub topic: u16,
    /// Whether it is far from its topic, compared with the other documents there.
    pub outlier: bool,
}

/// The result of [`find`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Topics {
    pub documents: u64,
    pub outliers: u64,
    pub topics: Vec<Topic>,
    /// From the nearest two topics to all as one.
    pub hierarchy: Vec<TopicMerge>,
    /// The attribute of the trend.
    pub over: Option<String>,
    /// Periods of the trend, in order.
    pub periods: Vec<String>,
    /// Of every document, in the order of insertion, with its id and insertion sequence.
    #[serde(skip)]
    pub assignments: Vec<(DocId, u64, Assignment)>,
}

/// Finds the topics of the current commit. The result depends on the documents and the seed, not on threads or segments.
pub fn find(index: &Index, config: &TopicsConfig, progress: &dyn Progress) -> Result<Topics> {
    let walk = index.walk()?;
    let points = Points::new(index.model().codebooks(), &walk.codes()?);
    let (clusters, assigned) = clusters(&points, config, progress)?;
    describe(&walk, &clusters, &assigned, config, progress)
}

/// Topics with no more than their names: the same ones as those of [`find`].
pub(crate) struct NamedTopics {
    /// The topic of every document; `None` for outliers.
    pub classes: Vec<Option<u16>>,
    /// Documents of each topic, without outliers.
    pub documents: Vec<u64>,
    pub merges: Vec<hierarchy::Merge>,
    /// Names of the topics, then of the merges.
    pub names: Vec<String>,
}

/// Finds the topics of these documents. `points` are their codes.
pub(crate) fn find_named(
    walk: &Walk,
    points: &Points,
    config: &TopicsConfig,
    progress: &dyn Progress,
) -> Result<NamedTopics> {
    let (clusters, assigned) = clusters(points, config, progress)?;
    let count = clusters.centres.len();
    let classes = classes(&assigned);
    let documents = documents(&classes, count);
    let merges = hierarchy::merges(&clusters.centres, &documents);
    let terms = names::terms(walk, &classes, count, &merges, config.terms, progress)?;
    let names = terms.iter().enumerate().map(|(number, terms)| name(terms, number)).collect();
    Ok(NamedTopics { classes, documents, merges, names })
}

/// Clusters of points, by falling size, and who belongs to them.
fn clusters(points: &Points, config: &TopicsConfig, progress: &dyn Progress) -> Result<(Clusters, Vec<Assignment>)> {
    config.validate()?;
    if points.len() < config.topics.unwrap_or(1) || points.len() == 0 {
        return Err(Error::config(format!(
            "the index has {} documents; give at least as many as topics ({})",
            points.len(),
            config.topics.unwrap_or(1)
        )));
    }
    let count = match config.topics {
        Some(count) => count,
        None => choose::number(points, config.seed, progress)?,
    };
    progress.stage("finding topics", Some(kmeans::iterations(points.len())));
    let clusters = by_size(kmeans::cluster(points, count, config.seed, progress)?);
    let assigned = assign(&clusters, count);
    Ok((clusters, assigned))
}

/// The topic of every document that is no outlier.
fn classes(assigned: &[Assignment]) -> Vec<Option<u16>> {
    assigned.iter().map(|a| (!a.outlier).then_some(a.topic)).collect()
}

fn documents(classes: &[Option<u16>], count: usize) -> Vec<u64> {
    let mut documents = vec![0; count];
    classes.iter().flatten().for_each(|&topic| documents[usize::from(topic)] += 1);
    documents
}

/// Gives every document an attribute with the number of its topic, and takes the attribute from outliers and from documents
/// that were added since. Returns how many documents changed.
pub fn mark(index: &Index, found: &Topics, attribute: &str, progress: &dyn Progress) -> Result<usize> {
    let inside = found.assignments.iter().filter(|(_, _, assignment)| !assignment.outlier);
    let values: HashMap<u64, Value> =
        inside.map(|(_, sequence, assignment)| (*sequence, Value::Int(assignment.topic.into()))).collect();
    let changed = index.set_attribute(attribute, &values, progress)?;
    if followed(index)?.as_deref() == Some(attribute) {
        // The numbers mean other topics now.
        follow(index, attribute, progress)?;
    }
    Ok(changed)
}

/// The same clusters numbered by falling size; equal ones keep their order.
fn by_size(mut clusters: Clusters) -> Clusters {
    let count = clusters.centres.len();
    let sizes = sizes(&clusters, count);
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|&c| std::cmp::Reverse(sizes[c]));
    let mut number = vec![0u16; count];
    order.iter().enumerate().for_each(|(new, &old)| number[old] = new as u16);
    clusters.nearest.iter_mut().for_each(|near| near.centre = number[usize::from(near.centre)]);
    let values = order.iter().flat_map(|&c| clusters.centres.row(c).to_vec()).collect();
    clusters.centres.values = values;
    clusters
}

fn sizes(clusters: &Clusters, count: usize) -> Vec<u64> {
    let mut sizes = vec![0; count];
    clusters.nearest.iter().for_each(|near| sizes[usize::from(near.centre)] += 1);
    sizes
}

/// Tells outliers from the others by Tukey's rule: farther from the centre than the third quartile of the topic's distances
/// and one and a half times the distance between the quartiles.
fn assign(clusters: &Clusters, count: usize) -> Vec<Assignment> {
    let fences = Fences::of(clusters, count);
    let assignment = |near: &points::Nearest| Assignment { topic: near.centre, outlier: fences.is_outlier(near) };
    clusters.nearest.iter().map(assignment).collect()
}

fn describe(
    walk: &Walk,
    clusters: &Clusters,
    assigned: &[Assignment],
    config: &TopicsConfig,
    progress: &dyn Progress,
) -> Result<Topics> {
    let (total, count) = (walk.len() as f64, clusters.centres.len());
    let classes = classes(assigned);
    let documents = documents(&classes, count);
    let all = sizes(clusters, count);
    let merges = hierarchy::merges(&clusters.centres, &documents);
    let mut terms = names::terms(walk, &classes, count, &merges, config.terms, progress)?;
    let merge_terms = terms.split_off(count);
    let trend = trend::trend(walk, &classes, count, config.over.as_deref(), progress)?;
    progress.stage("reading typical documents", Some(count as u64));
    let nearest = central(clusters, &classes, count);
    let mut topics = Vec::with_capacity(count);
    for (number, terms) in terms.into_iter().enumerate() {
        if progress.interrupted() {
            return Err(Error::Interrupted);
        }
        topics.push(Topic {
            number,
            name: name(&terms, number),
            documents: documents[number],
            share: documents[number] as f64 / total,
            outliers: all[number] - documents[number],
            terms,
            typical: typical(walk, &nearest[number], config.typical)?,
            trend: trend.as_ref().map_or_else(Vec::new, |trend| trend.counts[number].clone()),
        });
        progress.advance(1);
    }
    let merge = |(i, (merge, terms)): (usize, (hierarchy::Merge, Vec<TopicTerm>))| TopicMerge {
        number: count + i,
        children: merge.children,
        name: name(&terms, count + i),
        documents: merge.documents,
        cost: merge.cost / total,
    };
    Ok(Topics {
        documents: walk.len() as u64,
        outliers: assigned.iter().filter(|a| a.outlier).count() as u64,
        topics,
        hierarchy: merges.into_iter().zip(merge_terms).enumerate().map(merge).collect(),
        over: trend.as_ref().map(|trend| trend.attribute.clone()),
        periods: trend.map_or_else(Vec::new, |trend| trend.periods),
        assignments: with_ids(walk, assigned, progress)?,
    })
}

/// Assignments with the ids and insertion sequences of their documents.
fn with_ids(walk: &Walk, assigned: &[Assignment], progress: &dyn Progress) -> Result<Vec<(DocId, u64, Assignment)>> {
    progress.stage("reading ids", Some(assigned.len() as u64));
    let mut all = Vec::with_capacity(assigned.len());
    for part in assigned.chunks(CHUNK) {
        if progress.interrupted() {
            return Err(Error::Interrupted);
        }
        for assignment in part {
            let (id, sequence) = walk.id_and_sequence(all.len())?;
            all.push((id, sequence, *assignment));
        }
        progress.advance(part.len() as u64);
    }
    Ok(all)
}

fn name(terms: &[TopicTerm], number: usize) -> String {
    /// Terms of a name.
    const TERMS: usize = 4;
    match terms {
        [] => format!("topic {number}"),
        _ => terms.iter().take(TERMS).map(|term| term.term.as_str()).collect::<Vec<_>>().join(", "),
    }
}

/// Documents per topic that typical ones are taken from: some have the same text.
const CENTRAL: usize = 200;

/// The places of the documents nearest to each centre, nearest first; equal ones by insertion.
fn central(clusters: &Clusters, classes: &[Option<u16>], count: usize) -> Vec<Vec<usize>> {
    let mut members: Vec<Vec<usize>> = vec![Vec::new(); count];
    let inside = classes.iter().enumerate().filter_map(|(place, class)| Some((place, (*class)?)));
    inside.for_each(|(place, topic)| members[usize::from(topic)].push(place));
    for places in &mut members {
        let by_distance = |&a: &usize, &b: &usize| {
            clusters.nearest[a].distance.total_cmp(&clusters.nearest[b].distance).then(a.cmp(&b))
        };
        places.sort_unstable_by(by_distance);
        places.truncate(CENTRAL);
    }
    members
}

/// The first `most` of `places` whose texts differ.
fn typical(walk: &Walk, places: &[usize], most: usize) -> Result<Vec<TypicalDocument>> {
    let (mut seen, mut typical) = (HashSet::new(), Vec::new());
    for &place in places {
        if typical.len() == most {
            break;
        }
        let record = walk.get(place)?;
        let text = title(&record);
        if text.is_none() || seen.insert(text.clone()) {
            typical.push(TypicalDocument { id: record.id, text });
        }
    }
    Ok(typical)
}

/// The attribute `title` of a document, or the beginning of its text, in one line; `None` if it has neither.
pub fn title(record: &Record) -> Option<String> {
    /// Characters of a text.
    const CHARS: usize = 120;
    let own = record.attributes.iter().find_map(|(name, value)| match value {
        Value::Text(text) if name == "title" && !text.trim().is_empty() => Some(text),
        _ => None,
    });
    let text = own.or(record.text.as_ref())?;
    let words: Vec<&str> = text.split_whitespace().collect();
    (!words.is_empty()).then(|| words.join(" ").chars().take(CHARS).collect())
}
