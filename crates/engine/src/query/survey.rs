//! What several shards hold together: values of attributes, codewords, an even sample, the documents of a codeword. The answers
//! are those of one index with all documents.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::answer::Hit;
use super::calls::{Call, FilterText, Gather, Gathered, Question};
use super::config::{Rerank, SearchConfig};
use super::request::Request;
use super::shard::{Delivery, RemoteShards, Replies, ShardView, Shards};
use crate::index::{Facet, FacetCounts, Index, Walk};
use crate::model::{DistanceTable, Model};
use crate::{Error, Progress, Result};

/// Documents whose texts travel together.
const TEXTS: usize = 256;

/// The place of a shard's documents in the order of insertion of all.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    commit: u64,
    pub documents: usize,
    /// Every sequence is before it.
    end: u64,
    before: Vec<usize>,
}

/// The code of a document, and its text if the index stores texts.
pub type CodeAndText = (Vec<u8>, Option<String>);

impl ShardView {
    pub(super) fn answer_question(&self, question: &Question, progress: &dyn Progress) -> Result<serde_json::Value> {
        let reader = &self.reader;
        let answer = match question {
            Question::Documents => serde_json::to_value(reader.len()),
            Question::Facets(filter) => {
                let filter = filter.as_ref().map(|filter| filter.parse(reader)).transpose()?;
                serde_json::to_value(reader.facet_counts(filter.as_ref(), progress)?)
            }
            Question::Usage => serde_json::to_value(reader.usage(progress)?),
            Question::Members { codebook, codeword } => {
                let counts = member_counts(reader.model(), &self.walk()?.codes()?, *codebook, *codeword);
                serde_json::to_value(counts)
            }
            Question::Before(sequences) => {
                let walk = self.walk()?;
                serde_json::to_value(Order {
                    commit: self.commit(),
                    documents: walk.len(),
                    end: reader.end(),
                    before: sequences.iter().map(|&sequence| walk.before(sequence)).collect(),
                })
            }
            Question::Texts { commit, .. } | Question::Vectors { commit, .. } if *commit != self.commit() => {
                return Err(changed());
            }
            Question::Texts { places, .. } => {
                let walk = self.walk()?;
                let one = |&place: &usize| walk.get(place).map(|record| (record.code, record.text));
                serde_json::to_value(places.iter().map(one).collect::<Result<Vec<CodeAndText>>>()?)
            }
            Question::Vectors { places, .. } => serde_json::to_value(self.vectors_at(places)?),
            Question::Nearest { queries, k } => serde_json::to_value(self.nearest_by_vectors(queries, *k, progress)?),
            Question::Ranks(queries) => serde_json::to_value(self.ranks(queries)?),
        };
        Ok(answer.expect("plain data has a JSON form"))
    }
}

fn changed() -> Error {
    Error::Busy("a shard has changed while the request was answered; ask again".into())
}

/// Questions to the shards of one model. `deliver` hands calls to shards and returns their replies; all questions of one survey
/// see one commit of each shard.
pub struct Survey<'a, F> {
    model: &'a Model,
    shards: RemoteShards<F>,
}

impl<'a, F: Fn(Vec<Delivery>) -> Result<Replies> + Sync> Survey<'a, F> {
    pub fn new(model: &'a Model, deliver: F) -> Self {
        Survey { model, shards: RemoteShards::new(deliver) }
    }

    pub fn model(&self) -> &Model {
        self.model
    }

    /// Number of documents.
    pub fn documents(&self) -> Result<usize> {
        let documents: BTreeMap<usize, usize> = self.ask(Question::Documents)?;
        Ok(documents.into_values().sum())
    }

    /// [`Index::facets`] over all shards.
    pub fn facets(&self, filter: Option<&str>, most: usize) -> Result<Vec<Facet>> {
        let config = SearchConfig { filter: filter.map(str::to_owned), ..SearchConfig::default() };
        let known = match filter {
            None => None,
            Some(_) => {
                let gathered = self.shards.gather(&Gather { attributes: true, ..Gather::default() })?;
                let documents: u64 = gathered.values().map(|reply| reply.documents).sum();
                let names = |Gathered { attributes, .. }: Gathered| attributes;
                (documents > 0).then(|| gathered.into_values().flat_map(names).collect())
            }
        };
        let counts: BTreeMap<usize, FacetCounts> = self.ask(Question::Facets(FilterText::of(&config, known)))?;
        let mut sum = FacetCounts::default();
        counts.into_values().for_each(|counts| sum.add(counts));
        Ok(sum.facets(most))
    }

    /// [`Index::usage`] over all shards.
    pub fn usage(&self) -> Result<Vec<Vec<u64>>> {
        let shape = self.model.shape();
        let mut sum = vec![vec![0; shape.codebook_size()]; shape.num_codebooks()];
        let usage: BTreeMap<usize, Vec<Vec<u64>>> = self.ask(Question::Usage)?;
        for usage in usage.into_values() {
            sum.iter_mut().zip(&usage).for_each(|(sum, counts)| add(sum, counts));
        }
        Ok(sum)
    }

    /// [`members`] over all shards.
    pub fn members(&self, codebook: usize, codeword: usize, most: usize) -> Result<Vec<Hit>> {
        let shape = self.model.shape();
        let mut sum = vec![0; shape.num_codebooks() * shape.codebook_size()];
        let counts: BTreeMap<usize, Vec<u64>> = self.ask(Question::Members { codebook, codeword })?;
        counts.into_values().for_each(|counts| add(&mut sum, &counts));
        let (table, config) = most_typical(self.model, &sum, codebook, codeword, most)?;
        Ok(Request::of_table(&self.shards, table, &config).run()?.pop().map(|answer| answer.hits).unwrap_or_default())
    }

    /// Passes codes and texts of the documents at some places in the order of insertion of all shards to `take`, some at a time.
    /// `places` gets the number of documents; the places rise.
    pub fn texts(
        &self,
        places: impl FnOnce(usize) -> Vec<usize>,
        mut take: impl FnMut(Vec<CodeAndText>),
    ) -> Result<()> {
        let first = self.order(&[])?;
        let places = places(first.values().map(|order| order.documents).sum());
        for places in places.chunks(TEXTS) {
            let question = |commit, places| Question::Texts { commit, places };
            self.at(&first, places, question).map(&mut take)?;
        }
        Ok(())
    }

    /// The answers for the documents at some places, from a question to the shards that have them.
    pub(super) fn at<T: serde::de::DeserializeOwned>(
        &self,
        first: &BTreeMap<usize, Order>,
        places: &[usize],
        question: impl Fn(u64, Vec<usize>) -> Question,
    ) -> Result<Vec<T>> {
        let sequences = self.sequences(first, places)?;
        let after: Vec<u64> = sequences.iter().map(|sequence| sequence + 1).collect();
        let (before, behind) = (self.order_of(first, &sequences)?, self.order_of(first, &after)?);
        // The shard of each document, and its place there.
        let mut own: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let mut owners = Vec::with_capacity(places.len());
        for at in 0..places.len() {
            let has =
                |shard: &&usize| behind.get(shard).is_some_and(|behind| behind.before[at] > before[*shard].before[at]);
            let owner = *before.keys().find(has).ok_or_else(changed)?;
            own.entry(owner).or_default().push(before[&owner].before[at]);
            owners.push(owner);
        }
        let call = |(shard, places)| (Some(shard), Call::Question(question(before[&shard].commit, places)));
        let replies: BTreeMap<usize, Vec<T>> = self.shards.ask(own.into_iter().map(call).collect())?;
        let mut replies: BTreeMap<usize, _> =
            replies.into_iter().map(|(shard, own)| (shard, own.into_iter())).collect();
        let mut next = |owner| replies.get_mut(&owner).and_then(Iterator::next).ok_or_else(changed);
        owners.into_iter().map(&mut next).collect()
    }

    /// The insertion sequences of the documents at some places. Every document is before the end and not before 0, so each is found
    /// by halving.
    pub(super) fn sequences(&self, first: &BTreeMap<usize, Order>, places: &[usize]) -> Result<Vec<u64>> {
        let end = first.values().map(|order| order.end).max().unwrap_or(0);
        let mut ranges = vec![(0, end); places.len()];
        while ranges.iter().any(|(low, high)| high - low > 1) {
            let middles: Vec<u64> = ranges.iter().map(|(low, high)| low + (high - low) / 2).collect();
            let orders = self.order_of(first, &middles)?;
            for (at, (low, high)) in ranges.iter_mut().enumerate() {
                let before: usize = orders.values().map(|order| order.before[at]).sum();
                if before <= places[at] { *low = middles[at] } else { *high = middles[at] }
            }
        }
        Ok(ranges.into_iter().map(|(low, _)| low).collect())
    }

    pub(super) fn order(&self, sequences: &[u64]) -> Result<BTreeMap<usize, Order>> {
        self.ask(Question::Before(sequences.to_vec()))
    }

    /// [`Survey::order`] of the same commits as the first ones.
    pub(super) fn order_of(&self, first: &BTreeMap<usize, Order>, sequences: &[u64]) -> Result<BTreeMap<usize, Order>> {
        let orders = self.order(sequences)?;
        let commits =
            |orders: &BTreeMap<usize, Order>| orders.iter().map(|(s, order)| (*s, order.commit)).collect::<Vec<_>>();
        if commits(first) == commits(&orders) { Ok(orders) } else { Err(changed()) }
    }

    pub(super) fn ask<T: serde::de::DeserializeOwned>(&self, question: Question) -> Result<BTreeMap<usize, T>> {
        self.shards.ask(vec![(None, Call::Question(question))])
    }
}

fn add(sum: &mut [u64], counts: &[u64]) {
    sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
}

/// The entropy of each codebook in bits, from the documents of its codewords.
pub fn entropy(usage: &[Vec<u64>]) -> Vec<f64> {
    let documents: u64 = usage.first().map_or(0, |counts| counts.iter().sum());
    let bits = |count: &u64| match *count {
        0 => 0.0,
        count => {
            let share = count as f64 / documents as f64;
            -share * share.log2()
        }
    };
    usage.iter().map(|counts| counts.iter().map(bits).sum()).collect()
}

/// The documents that match a filter; all without one.
pub fn walk(index: &Index, filter: Option<&str>) -> Result<Walk> {
    filter.map_or_else(|| index.walk(), |filter| index.walk_within(filter))
}

/// Documents that match a filter and whose code has `codeword` in `codebook`, the most typical first: those nearest to the mean of
/// them all, by code.
pub fn members(index: &Index, codebook: usize, codeword: usize, filter: Option<&str>, most: usize) -> Result<Vec<Hit>> {
    let model = index.model();
    let counts = member_counts(model, &walk(index, filter)?.codes()?, codebook, codeword);
    let (table, config) = most_typical(model, &counts, codebook, codeword, most)?;
    let config = SearchConfig { filter: filter.map(str::to_owned), ..config };
    Ok(index.search(&[table], &config)?.pop().unwrap_or_default())
}

/// Documents per codeword, `[codebooks, codewords]`, among the codes that have `codeword` in `codebook`.
fn member_counts(model: &Model, codes: &[u8], codebook: usize, codeword: usize) -> Vec<u64> {
    let shape = model.shape();
    let size = shape.codebook_size();
    let mut counts = vec![0u64; shape.num_codebooks() * size];
    for code in codes.chunks_exact(shape.code_bytes()) {
        if shape.codeword(code, codebook) == codeword {
            (0..shape.num_codebooks()).for_each(|m| counts[m * size + shape.codeword(code, m)] += 1);
        }
    }
    counts
}

/// The search for the documents of a codeword that are nearest to their mean.
fn most_typical(
    model: &Model,
    counts: &[u64],
    codebook: usize,
    codeword: usize,
    most: usize,
) -> Result<(DistanceTable, SearchConfig)> {
    let (shape, codebooks) = (model.shape(), model.codebooks());
    let size = shape.codebook_size();
    let mut values: Vec<f32> = (0..shape.num_codebooks())
        .flat_map(|m| {
            let codewords: Vec<&[f32]> = codebooks.codebook(m).collect();
            let centre = mean(&codewords, &counts[m * size..][..size]);
            codewords.into_iter().map(move |codeword| squared(codeword, &centre)).collect::<Vec<_>>()
        })
        .collect();
    // Documents with other codewords are farther than any that has this one.
    let farthest: f32 = values.chunks_exact(size).map(|row| row.iter().copied().fold(0.0, f32::max)).sum();
    let row = &mut values[codebook * size..][..size];
    row.iter_mut().enumerate().for_each(|(k, value)| *value = if k == codeword { 0.0 } else { 4.0 * farthest + 1.0 });
    let config = SearchConfig { k: most, radius: Some(2.0 * farthest), rerank: Rerank::Off, ..SearchConfig::default() };
    Ok((DistanceTable::new(shape, values)?, config))
}

/// The mean of codewords, each as often as it is counted.
fn mean(codewords: &[&[f32]], counts: &[u64]) -> Vec<f64> {
    let total = counts.iter().sum::<u64>().max(1) as f64;
    let mut mean = vec![0.0; codewords.first().map_or(0, |codeword| codeword.len())];
    for (codeword, &count) in codewords.iter().zip(counts) {
        mean.iter_mut().zip(*codeword).for_each(|(sum, &v)| *sum += count as f64 / total * f64::from(v));
    }
    mean
}

fn squared(codeword: &[f32], centre: &[f64]) -> f32 {
    codeword.iter().zip(centre).map(|(&a, b)| (f64::from(a) - b).powi(2)).sum::<f64>() as f32
}
