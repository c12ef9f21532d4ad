//! Recall over shards: the report of one index with all documents.

use std::collections::BTreeMap;

use super::calls::{NearVector, Question, RankQuery, StoredVector, WireVector};
use super::config::MAX_HITS;
use super::recall::{
    RecallConfig, RecallReport, expect_enough, expect_vectors, nearest_by_vectors, report, vectors, windows,
};
use super::searcher::RemoteSearcher;
use super::shard::{Delivery, Replies, ShardView};
use super::survey::{Order, Survey};
use crate::model::DistanceTable;
use crate::search::TopKRequest;
use crate::{Matrix, Progress, Result};

/// Queries that are compared with all stored vectors at a time: the vectors are read once for so many.
const QUERIES: usize = 1000;
/// Queries whose distance tables travel together.
const TABLES: usize = 50;

impl RemoteSearcher {
    /// [`super::Searcher::recall`] over shards. A call to a shard takes long: it reads all its vectors, or searches for many
    /// queries.
    pub fn recall<F: Fn(Vec<Delivery>) -> Result<Replies> + Sync>(
        &self,
        deliver: F,
        config: &RecallConfig,
    ) -> Result<RecallReport> {
        config.validate()?;
        expect_vectors(self.rerank_vectors())?;
        let survey = self.survey(deliver);
        let first = survey.order(&[])?;
        let documents = first.values().map(|order| order.documents).sum();
        expect_enough(documents)?;
        let windows = windows(documents, config);
        let asked: Vec<usize> = windows.iter().flat_map(|window| window.queries.iter().copied()).collect();
        let mut ranks = Vec::with_capacity(asked.len());
        for places in asked.chunks(QUERIES) {
            ranks.extend(ranks_of(&survey, &first, places, config.k)?);
        }
        // No shard has changed meanwhile.
        survey.order_of(&first, &[])?;
        Ok(report(config, documents, &windows, &ranks))
    }
}

/// For every query, the document at a place, the places of its true neighbours in the order by code without itself; [`MAX_HITS`]
/// where it is beyond.
fn ranks_of<F: Fn(Vec<Delivery>) -> Result<Replies> + Sync>(
    survey: &Survey<F>,
    first: &BTreeMap<usize, Order>,
    places: &[usize],
    k: usize,
) -> Result<Vec<Vec<usize>>> {
    let model = survey.model();
    let sequences = survey.sequences(first, places)?;
    let stored: Vec<StoredVector> = survey.at(first, places, |commit, places| Question::Vectors { commit, places })?;
    let values: Vec<f32> = stored.iter().flat_map(|stored| stored.vector.0.iter().copied()).collect();
    let projected = model.projection().apply(&Matrix::from_vec(model.inputs(), values))?;
    let tables: Vec<DistanceTable> =
        projected.iter().map(|row| model.codebooks().table(row, model.config.distance)).collect();
    // A document in the order by code of a query.
    let placed = |query: usize, code: &[u8], sequence: u64| (tables[query].distance(code), sequence);
    let own: Vec<(f32, u64)> =
        (0..places.len()).map(|query| placed(query, &stored[query].code, sequences[query])).collect();

    let queries = stored.into_iter().map(|stored| stored.vector).collect();
    let replies: BTreeMap<usize, Vec<Vec<NearVector>>> = survey.ask(Question::Nearest { queries, k: k + 1 })?;
    let mut nearest: Vec<Vec<NearVector>> = places.iter().map(|_| Vec::new()).collect();
    for reply in replies.into_values() {
        nearest.iter_mut().zip(reply).for_each(|(nearest, near)| nearest.extend(near));
    }
    let neighbours = |(query, mut near): (usize, Vec<NearVector>)| -> Vec<(f32, u64)> {
        near.sort_by(|a, b| a.distance.total_cmp(&b.distance).then(a.sequence.cmp(&b.sequence)));
        let others = near.iter().take(k + 1).filter(|near| near.sequence != sequences[query]);
        others.take(k).map(|near| placed(query, &near.code, near.sequence)).collect()
    };
    let neighbours: Vec<Vec<(f32, u64)>> = nearest.into_iter().enumerate().map(neighbours).collect();

    let ask = |query: usize| RankQuery {
        table: WireVector(tables[query].values().to_vec()),
        documents: neighbours[query].iter().map(|(distance, sequence)| (distance.to_bits(), *sequence)).collect(),
    };
    let mut ranks: Vec<Vec<usize>> = neighbours.iter().map(|neighbours| vec![0; neighbours.len()]).collect();
    for (part, start) in ranks.chunks_mut(TABLES).zip((0..).step_by(TABLES)) {
        let asked = (start..start + part.len()).map(ask).collect();
        let replies: BTreeMap<usize, Vec<Vec<usize>>> = survey.ask(Question::Ranks(asked))?;
        for reply in replies.into_values() {
            for (ranks, counts) in part.iter_mut().zip(reply) {
                ranks.iter_mut().zip(counts).for_each(|(rank, count)| *rank += count);
            }
        }
    }
    for ((ranks, neighbours), own) in ranks.iter_mut().zip(&neighbours).zip(&own) {
        for (rank, neighbour) in ranks.iter_mut().zip(neighbours) {
            let is_beyond = *rank >= MAX_HITS;
            *rank = if is_beyond { MAX_HITS } else { *rank - usize::from(is_before(own, neighbour)) };
        }
    }
    Ok(ranks)
}

/// Whether a document is before another in the order by code.
fn is_before(one: &(f32, u64), other: &(f32, u64)) -> bool {
    one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)).is_lt()
}

impl ShardView {
    pub(super) fn vectors_at(&self, places: &[usize]) -> Result<Vec<StoredVector>> {
        let walk = self.walk()?;
        let rows = vectors(walk, places)?;
        let stored = |(vector, &place): (&[f32], &usize)| {
            let code = self.reader.code(walk.address(place))?;
            Ok(StoredVector { vector: WireVector(vector.to_vec()), code })
        };
        rows.iter().zip(places).map(stored).collect()
    }

    pub(super) fn nearest_by_vectors(
        &self,
        queries: &[WireVector],
        k: usize,
        progress: &dyn Progress,
    ) -> Result<Vec<Vec<NearVector>>> {
        let (walk, reader) = (self.walk()?, &self.reader);
        let values: Vec<f32> = queries.iter().flat_map(|vector| vector.0.iter().copied()).collect();
        let found = nearest_by_vectors(walk, &Matrix::from_vec(reader.model().inputs(), values), k, progress)?;
        let near = |near: kernels::scan::Neighbour| {
            let address = walk.address(near.key as usize);
            let (sequence, code) = (reader.sequence(address), reader.code(address)?);
            Ok(NearVector { distance: near.distance, sequence, code })
        };
        found.into_iter().map(|found| found.into_iter().map(near).collect()).collect()
    }

    /// How many documents of this shard are before each document, by code; counted up to [`MAX_HITS`].
    pub(super) fn ranks(&self, queries: &[RankQuery]) -> Result<Vec<Vec<usize>>> {
        let request = TopKRequest { k: MAX_HITS, radius: None, after: None };
        let ranks = |query: &RankQuery| {
            let table = DistanceTable::new(self.reader.model().shape(), query.table.0.clone())?;
            let (near, _) = self.reader.nearest(&[table], &request, None)?.pop().expect("a list for the table");
            let before = |&(distance, sequence): &(u32, u64)| {
                let document = (f32::from_bits(distance), sequence);
                near.partition_point(|near| is_before(&(near.distance, near.sequence), &document))
            };
            Ok(query.documents.iter().map(before).collect())
        };
        queries.iter().map(ranks).collect()
    }
}
