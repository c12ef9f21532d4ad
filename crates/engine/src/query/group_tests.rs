//! Documents of an index with chunks, against brute force over all chunks.

use std::collections::HashMap;

use proptest::prelude::*;

use super::shard_tests::Pair;
use super::tests::{WIDTH, cosine, embedding, model};
use super::*;
use crate::chunk::ChunkSizes;
use crate::corpus::{DocId, Document, Value};
use crate::index::{Index, IndexConfig, RerankVectors};
use crate::model::{Distance, DistanceTable};
use crate::{Matrix, NoProgress};

/// A document of the test: its chunks are `word NUMBER`, each with the embedding of its number.
#[derive(Clone, Debug)]
struct Long {
    id: u64,
    chunks: Vec<u64>,
}

impl Long {
    /// The text, and the ranges of its chunks, which overlap by a blank.
    fn document(&self) -> (Document, Vec<std::ops::Range<usize>>) {
        let (mut text, mut ranges) = (String::new(), Vec::new());
        for number in &self.chunks {
            let start = text.len().saturating_sub(1);
            text.push_str(&format!("{} {number} ", ["grain", "ships", "money"][*number as usize % 3]));
            ranges.push(start..text.len());
        }
        let attributes = vec![("year".into(), Value::Int(self.year()))];
        (Document { id: DocId::Int(self.id), text, labels: vec![format!("l{}", self.id % 2)], attributes }, ranges)
    }

    fn year(&self) -> i64 {
        1980 + (self.id % 4) as i64
    }
}

struct Case {
    dir: tempfile::TempDir,
    searcher: Searcher,
    /// In the order of insertion.
    all: Vec<Long>,
}

fn index(dir: &std::path::Path, rerank_vectors: RerankVectors) -> Index {
    let chunk = Some(ChunkSizes { tokens: 16, overlap: 1 });
    Index::create(&dir.join("index"), &model(), IndexConfig { rerank_vectors, chunk, ..IndexConfig::default() })
        .unwrap()
}

fn add(writer: &mut crate::index::IndexWriter, some: &[Long]) {
    let documents: Vec<_> = some.iter().map(Long::document).collect();
    let split: Vec<_> = documents.iter().map(|(document, ranges)| (document, ranges.clone())).collect();
    let rows = some.iter().flat_map(|long| long.chunks.iter().flat_map(|&number| embedding(number))).collect();
    writer.add_chunks(&split, &Matrix::from_vec(WIDTH, rows)).unwrap();
}

impl Case {
    /// Adds documents in three commits, replaces and deletes some.
    fn new(sizes: &[usize], rerank_vectors: RerankVectors) -> Case {
        let dir = tempfile::tempdir().unwrap();
        let index = index(dir.path(), rerank_vectors);
        let mut number = 0;
        let mut long = |id: usize, chunks: usize| {
            number += chunks as u64;
            Long { id: id as u64, chunks: (number - chunks as u64..number).collect() }
        };
        let mut all: Vec<Long> = sizes.iter().enumerate().map(|(id, &chunks)| long(id, chunks)).collect();
        let mut writer = index.writer().unwrap();
        for part in all.chunks(all.len().div_ceil(3)) {
            add(&mut writer, part);
            writer.commit(&NoProgress).unwrap();
        }
        // Every fifth document is replaced by a longer one, every seventh is deleted.
        for id in (0..sizes.len()).step_by(5) {
            let new = long(id, sizes[id] + 1);
            add(&mut writer, std::slice::from_ref(&new));
            all.retain(|old| old.id != new.id);
            all.push(new);
        }
        for id in (3..sizes.len()).step_by(7) {
            assert!(writer.delete(&DocId::Int(id as u64)).unwrap());
            all.retain(|old| old.id != id as u64);
        }
        assert_eq!(writer.commit(&NoProgress).unwrap(), all.len());
        writer.close(&NoProgress).unwrap();
        assert!(crate::index::verify(index.dir(), &NoProgress).unwrap().is_empty());
        Case { dir, searcher: Searcher::new(index, None).unwrap(), all }
    }

    fn table(&self, query: u64) -> DistanceTable {
        let model = self.searcher.index().model();
        model.tables(&Matrix::from_vec(WIDTH, embedding(query)), Distance::Norm).unwrap().pop().unwrap()
    }

    /// Distances of the chunks of each document that `matches`, with the order of insertion.
    fn chunks(
        &self,
        table: &DistanceTable,
        radius: f32,
        matches: impl Fn(&Long) -> bool,
    ) -> Vec<(u64, Vec<(f32, u64)>)> {
        let model = self.searcher.index().model();
        let mut sequence = 0;
        let mut all = Vec::new();
        for long in &self.all {
            let mut own = Vec::new();
            for &number in &long.chunks {
                let distance = table.distance(&model.encode(&Matrix::from_vec(WIDTH, embedding(number))).unwrap());
                sequence += 1;
                if distance <= radius {
                    own.push((distance, sequence));
                }
            }
            own.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            if matches(long) && !own.is_empty() {
                all.push((long.id, own));
            }
        }
        all
    }

    /// Ids and scores of all documents by brute force, best first.
    fn brute(
        &self,
        table: &DistanceTable,
        group: Group,
        radius: f32,
        matches: impl Fn(&Long) -> bool,
    ) -> Vec<(u64, f32)> {
        let mut all = self.chunks(table, radius, matches);
        all.sort_by(|a, b| a.1[0].0.total_cmp(&b.1[0].0).then(a.1[0].1.cmp(&b.1[0].1)));
        let score = |own: &[(f32, u64)]| match group {
            Group::Best => -own[0].0,
            Group::Sum => own.iter().take(3).fold(0.0, |sum, (distance, _)| sum + 1.0 / (1.0 + distance)),
        };
        let mut scored: Vec<(u64, f32)> = all.iter().map(|(id, own)| (*id, score(own))).collect();
        scored.sort_by(|a, b| b.1.total_cmp(&a.1));
        scored
    }

    fn hits(&self, query: &Query, config: &SearchConfig) -> Vec<(u64, f32)> {
        let answer = self.searcher.search(std::slice::from_ref(query), config, &NoProgress).unwrap().pop().unwrap();
        answer.hits.iter().map(|hit| (number(&hit.id), hit.score)).collect()
    }

    fn pages(&self, query: &Query, config: &SearchConfig) -> Vec<(u64, f32)> {
        let (mut config, mut all) = (config.clone(), Vec::new());
        loop {
            let answer =
                self.searcher.search(std::slice::from_ref(query), &config, &NoProgress).unwrap().pop().unwrap();
            assert!(answer.hits.len() == config.k || answer.next.is_none(), "a page that is not the last is full");
            all.extend(answer.hits.iter().map(|hit| (number(&hit.id), hit.score)));
            match answer.next {
                Some(next) => config.after = Some(next.to_string().parse().unwrap()),
                None => return all,
            }
        }
    }
}

fn number(id: &DocId) -> u64 {
    let DocId::Int(number) = id else { panic!("{id} was not put in") };
    *number
}

fn codes(k: usize, group: Group) -> SearchConfig {
    SearchConfig { k, group, rerank: Rerank::Off, ..SearchConfig::default() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn documents_equal_brute_force_grouping(
        sizes in prop::collection::vec(prop_oneof![3 => 1usize..4, 1 => 4usize..40], 3..60),
        query in 5000u64..6000,
        k in 1usize..70,
        page in 1usize..9,
    ) {
        let case = Case::new(&sizes, RerankVectors::None);
        let (asked, table) = (Query::vector(embedding(query)), case.table(query));
        let middle = case.brute(&table, Group::Best, f32::MAX, |_| true)[case.all.len() / 2].1;
        for group in [Group::Best, Group::Sum] {
            let all = case.brute(&table, group, f32::MAX, |_| true);
            prop_assert_eq!(case.hits(&asked, &codes(k, group)), &all[..k.min(all.len())]);
            prop_assert_eq!(case.pages(&asked, &codes(page, group)), all);

            let radius = -middle;
            let near = SearchConfig { radius: Some(radius), ..codes(100, group) };
            prop_assert_eq!(case.hits(&asked, &near), case.brute(&table, group, radius, |_| true));

            if case.all.iter().any(|long| long.year() == 1981) {
                let filtered = SearchConfig { filter: Some("year:1981".into()), ..codes(100, group) };
                prop_assert_eq!(
                    case.pages(&asked, &SearchConfig { k: page, ..filtered }),
                    case.brute(&table, group, f32::MAX, |long| long.year() == 1981)
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]
    #[test]
    fn documents_of_shards_equal_those_of_one_index(
        sizes in prop::collection::vec(1usize..8, 3..40),
        query in 5000u64..6000,
        shards in 1usize..4,
    ) {
        let case = Case::new(&sizes, RerankVectors::Int8);
        let like = Query::document(case.all[0].id);
        let vector = Query { keywords: Some("grain ships".into()), ..Query::vector(embedding(query)) };
        let middle = -case.brute(&case.table(query), Group::Best, f32::MAX, |_| true)[case.all.len() / 2].1;
        let pair = Pair::copied(case.dir, case.searcher.index(), shards);
        for group in [Group::Best, Group::Sum] {
            for query in [&vector, &like] {
                pair.compare(query, &codes(4, group), 4);
                pair.compare(query, &SearchConfig { rerank: Rerank::First(6), ..codes(4, group) }, 4);
                pair.compare(query, &SearchConfig { radius: Some(middle), ..codes(4, group) }, 4);
            }
            pair.compare(&vector, &SearchConfig { hybrid: 0.4, snippets: true, ..codes(5, group) }, 4);
            pair.compare(&vector, &SearchConfig { hybrid: 1.0, radius: Some(middle), ..codes(5, group) }, 4);
        }
    }
}

#[test]
fn rerank_orders_documents_by_the_cosines_of_their_best_chunks() {
    let sizes: Vec<usize> = (0..60).map(|i| 1 + i % 5).collect();
    let case = Case::new(&sizes, RerankVectors::F16);
    let (asked, table) = (Query::vector(embedding(7777)), case.table(7777));
    for group in [Group::Best, Group::Sum] {
        let by_code = case.brute(&table, group, f32::MAX, |_| true);
        for first in [10, 1000] {
            let config = SearchConfig { rerank: Rerank::First(first), ..codes(100, group) };
            let found = case.hits(&asked, &config);
            let head = first.min(found.len());
            let ids = |hits: &[(u64, f32)]| hits.iter().map(|hit| hit.0).collect::<std::collections::BTreeSet<_>>();
            assert_eq!(ids(&found[..head]), ids(&by_code[..head]), "the same candidates");
            assert!(found.windows(2).all(|pair| pair[0].1 >= pair[1].1), "the score falls");
            let tail = |hits: &[(u64, f32)]| hits[head..].iter().map(|hit| hit.0).collect::<Vec<_>>();
            assert_eq!(tail(&found), tail(&by_code), "the rest by code");
            for (id, score) in &found[..head] {
                // The best three chunks by code.
                let long = case.all.iter().find(|long| long.id == *id).unwrap();
                let distance = |number: u64| {
                    let model = case.searcher.index().model();
                    table.distance(&model.encode(&Matrix::from_vec(WIDTH, embedding(number))).unwrap())
                };
                let mut numbers = long.chunks.clone();
                numbers.sort_by(|a, b| distance(*a).total_cmp(&distance(*b)));
                let cosines = numbers.iter().take(3).map(|number| cosine(&embedding(7777), &embedding(*number)));
                let expected = match group {
                    Group::Best => cosines.fold(-1.0, f64::max),
                    Group::Sum => cosines.map(|cosine| (1.0 + cosine) / 2.0).sum(),
                };
                assert!((f64::from(*score) - expected).abs() < 0.01, "{group}: {score} {expected}");
            }
        }
        // Pages of re-ranked documents are parts of one list.
        let whole = case.hits(&asked, &SearchConfig { rerank: Rerank::First(10), ..codes(100, group) });
        assert_eq!(case.pages(&asked, &SearchConfig { rerank: Rerank::First(10), ..codes(7, group) }), whole);
    }
}

#[test]
fn hits_are_documents_with_their_passage_and_the_attributes_of_the_whole() {
    let case = Case::new(&[4, 1, 9, 2, 6, 3, 3, 8], RerankVectors::Int8);
    let index = case.searcher.index();
    assert_eq!(index.len(), case.all.len());
    let info = index.info().unwrap();
    assert_eq!(info.chunks, Some(case.all.iter().map(|long| long.chunks.len()).sum()));
    for long in &case.all {
        let (document, ranges) = long.document();
        let record = index.get(&document.id).unwrap().unwrap();
        assert_eq!((record.text.as_deref(), &record.attributes), (Some(document.text.as_str()), &document.attributes));
        // The embedding of each chunk finds that chunk.
        for (i, number) in long.chunks.iter().enumerate() {
            let answer =
                case.searcher.search(&[Query::vector(embedding(*number))], &SearchConfig::default(), &NoProgress);
            let hit = answer.unwrap().pop().unwrap().hits.remove(0);
            let chunk = hit.chunk.unwrap();
            assert_eq!((&hit.id, chunk.number as usize, chunk.of as usize), (&document.id, i, ranges.len()));
            assert_eq!(
                (hit.text.as_deref(), chunk.start as usize),
                (Some(&document.text[ranges[i].clone()]), ranges[i].start)
            );
            assert_eq!((hit.labels, hit.attributes), (document.labels.clone(), document.attributes.clone()));
        }
    }
    let years = |year: i64| case.all.iter().filter(|long| long.year() == year).count();
    assert_eq!(index.count("year:1982").unwrap(), years(1982));
    let facet = index.facets(None, 10, &NoProgress).unwrap().into_iter().find(|facet| facet.name == "year").unwrap();
    assert_eq!(facet.documents as usize, case.all.len());
    assert_eq!(index.records(true).unwrap().count(), case.all.len());
    // Like a document: it is not among its own hits, by none of its chunks.
    let like = case.hits(&Query::document(2), &SearchConfig::default());
    assert!(like.len() == case.all.len() - 1 && like.iter().all(|hit| hit.0 != 2), "{like:?}");

    let mut writer = index.writer().unwrap();
    assert_eq!(writer.delete_where("text:grain").unwrap(), index.count("text:grain").unwrap());
    writer.commit(&NoProgress).unwrap();
    assert_eq!(index.count("text:grain").unwrap(), 0, "whole documents are deleted");
    writer.compact(&NoProgress).unwrap();
    assert!(crate::index::verify(index.dir(), &NoProgress).unwrap().is_empty());
}

#[test]
fn hybrid_search_fuses_lists_of_documents() {
    let sizes: Vec<usize> = (0..50).map(|i| 1 + i % 4).collect();
    let case = Case::new(&sizes, RerankVectors::None);
    let asked = Query { keywords: Some("grain".into()), ..Query::vector(embedding(6001)) };
    let config = SearchConfig { hybrid: 0.4, ..codes(100, Group::Best) };
    let found = case.hits(&asked, &config);
    let ids: std::collections::HashSet<u64> = found.iter().map(|hit| hit.0).collect();
    assert_eq!(ids.len(), found.len(), "a document is one hit");
    let by_code: HashMap<u64, usize> =
        case.hits(&asked, &codes(100, Group::Best)).into_iter().enumerate().map(|(rank, hit)| (hit.0, rank)).collect();
    let only = case.hits(&asked, &SearchConfig { hybrid: 1.0, ..config.clone() });
    let by_keywords: HashMap<u64, usize> = only.iter().enumerate().map(|(rank, hit)| (hit.0, rank)).collect();
    for (id, score) in &found {
        let part =
            |ranks: &HashMap<u64, usize>, weight: f32| ranks.get(id).map_or(0.0, |r| weight / (61.0 + *r as f32));
        assert!((score - part(&by_code, 0.6) - part(&by_keywords, 0.4)).abs() < 1e-6);
    }
    assert_eq!(case.pages(&asked, &SearchConfig { k: 7, ..config }), found);
}
