//! Answers against brute force.

use std::collections::HashMap;

use kernels::dropout::mix;
use proptest::prelude::*;

use super::*;
use crate::corpus::{DocId, Document, Value};
use crate::formats::trec::Qrels;
use crate::index::{Index, IndexConfig, RerankVectors, Store};
use crate::model::{CodeShape, Codebooks, Dense, Distance, Model, ModelConfig, Projection};
use crate::{Error, Matrix, NoProgress};

/// Width of an embedding.
pub(super) const WIDTH: usize = 20;
const WORDS: [&str; 6] = ["grain", "ships", "money", "wheat", "cargo", "credit"];

fn noise(n: usize, seed: u64) -> Vec<f32> {
    (0..n as u64).map(|i| (mix(seed, i) >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
}

pub(super) fn model() -> Model {
    let shape = CodeShape::micpq(32).unwrap();
    let width = shape.width();
    let projection =
        Projection::new(vec![Dense::new(WIDTH, noise(WIDTH * width, 1), noise(width, 2)).unwrap()]).unwrap();
    let codebooks =
        Codebooks::new(shape, noise(shape.num_codebooks() * shape.codebook_size() * shape.dim(), 3)).unwrap();
    let config = ModelConfig {
        format: 1,
        method: "micpq".into(),
        shape,
        distance: Distance::Norm,
        embedding: None,
        training: serde_json::Value::Null,
    };
    Model::new(config, projection, codebooks).unwrap()
}

/// Near one of a few centres, so that equal codes are common.
pub(super) fn embedding(i: u64) -> Vec<f32> {
    let centre = noise(WIDTH, 100 + mix(9, i) % 12);
    centre.iter().zip(noise(WIDTH, 1000 + i)).map(|(c, n)| c + 0.15 * n).collect()
}

pub(super) fn document(i: u64) -> Document {
    let word = |salt: u64| WORDS[(mix(salt, i) % 6) as usize];
    Document {
        id: DocId::Int(i),
        text: format!("The {} of {} and the {}, number {i}", word(1), word(2), word(3)),
        labels: vec![word(1).into()],
        attributes: vec![("year".into(), Value::Int(1980 + (i % 10) as i64))],
    }
}

struct Case {
    _dir: tempfile::TempDir,
    searcher: Searcher,
    documents: u64,
}

impl Case {
    /// Three commits, some documents replaced and deleted.
    fn new(keep: RerankVectors, store: Store, documents: u64) -> Case {
        Case::of(&model(), keep, store, documents)
    }

    fn of(model: &Model, keep: RerankVectors, store: Store, documents: u64) -> Case {
        let dir = tempfile::tempdir().unwrap();
        let config = IndexConfig { rerank_vectors: keep, store, ..IndexConfig::default() };
        let index = Index::create(&dir.path().join("index"), model, config).unwrap();
        let mut writer = index.writer().unwrap();
        for third in 0..3 {
            let ids: Vec<u64> = (documents * third / 3..documents * (third + 1) / 3).collect();
            add(&mut writer, &ids);
            writer.delete(&DocId::Int(documents + third)).unwrap();
            add(&mut writer, &[documents + third]);
            writer.commit(&NoProgress).unwrap();
        }
        for extra in 0..3 {
            writer.delete(&DocId::Int(documents + extra)).unwrap();
        }
        writer.commit(&NoProgress).unwrap();
        writer.close(&NoProgress).unwrap();
        Case { _dir: dir, searcher: Searcher::new(index, None).unwrap(), documents }
    }

    fn ask(&self, query: &Query, config: &SearchConfig) -> Result<Answer, Error> {
        Ok(self.searcher.search(std::slice::from_ref(query), config, &NoProgress)?.pop().unwrap())
    }

    fn hits(&self, query: &Query, config: &SearchConfig) -> Vec<(u64, f32, f32)> {
        let answer = self.ask(query, config).unwrap();
        answer.hits.iter().map(|h| (number(&h.id), h.distance, h.score)).collect()
    }

    /// All pages in order.
    fn pages(&self, query: &Query, config: &SearchConfig) -> Vec<(u64, f32, f32)> {
        let mut config = config.clone();
        let mut all = Vec::new();
        loop {
            let answer = self.ask(query, &config).unwrap();
            assert!(answer.hits.len() == config.k || answer.next.is_none(), "a page that is not the last is full");
            all.extend(answer.hits.iter().map(|h| (number(&h.id), h.distance, h.score)));
            match answer.next {
                Some(next) => config.after = Some(next.to_string().parse().unwrap()),
                None => return all,
            }
        }
    }

    /// Distances of all documents by brute force, best first.
    fn brute(&self, distance: impl Fn(&[u8]) -> f32) -> Vec<(u64, f32)> {
        let model = self.searcher.index().model();
        let mut all: Vec<(u64, f32)> = (0..self.documents)
            .map(|i| (i, distance(&model.encode(&Matrix::from_vec(WIDTH, embedding(i))).unwrap())))
            .collect();
        all.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
        all
    }
}

fn add(writer: &mut crate::index::IndexWriter, ids: &[u64]) {
    let documents: Vec<Document> = ids.iter().map(|&i| document(i)).collect();
    let embeddings = Matrix::from_vec(WIDTH, ids.iter().flat_map(|&i| embedding(i)).collect());
    writer.add_embeddings(&documents, &embeddings).unwrap();
}

fn number(id: &DocId) -> u64 {
    let DocId::Int(n) = id else { panic!("{id} was not put in") };
    *n
}

pub(super) fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

fn codes_alone(k: usize) -> SearchConfig {
    SearchConfig { k, rerank: Rerank::Off, ..SearchConfig::default() }
}

#[test]
fn search_by_vector_document_and_mixture_equals_brute_force() {
    let case = Case::new(RerankVectors::Int8, Store::All, 400);
    let model = case.searcher.index().model().clone();
    let vector = embedding(777);
    let table = model.tables(&Matrix::from_vec(WIDTH, vector.clone()), Distance::Norm).unwrap().pop().unwrap();
    let found = case.hits(&Query::vector(vector.clone()), &codes_alone(500));
    let expected = case.brute(|code| table.distance(code));
    assert_eq!(found, expected.iter().map(|&(i, d)| (i, d, -d)).collect::<Vec<_>>());

    // A document is not like itself; those of the same code are, at distance 0.
    let code = model.encode(&Matrix::from_vec(WIDTH, embedding(33))).unwrap();
    let own = model.codebooks().symmetric_table(&code, Distance::Norm);
    let expected: Vec<(u64, f32)> =
        case.brute(|code| own.distance(code)).into_iter().filter(|(i, _)| *i != 33).collect();
    for k in [1, 50, 399, 400] {
        let found = case.hits(&Query::document(33), &codes_alone(k));
        assert_eq!(found.iter().map(|&(i, d, _)| (i, d)).collect::<Vec<_>>(), expected[..k.min(399)]);
    }

    // The distance to several is the weighted mean of the distances to each.
    let both = Query::vector(vector).and(Like::Document(DocId::Int(33)), 3.0);
    let found = case.hits(&both, &codes_alone(500));
    assert_eq!(found.len(), 399);
    for &(i, distance, _) in &found {
        let code = model.encode(&Matrix::from_vec(WIDTH, embedding(i))).unwrap();
        let mean = 0.25 * table.distance(&code) + 0.75 * own.distance(&code);
        assert!((distance - mean).abs() < 1e-3, "{distance} {mean}");
    }
    assert!(found.windows(2).all(|w| w[0].1 <= w[1].1));

    // A batch answers as one by one.
    let queries: Vec<Query> = (0..9).map(|q| Query::vector(embedding(500 + q))).collect();
    for config in [codes_alone(20), SearchConfig::default()] {
        let batch = case.searcher.search(&queries, &config, &NoProgress).unwrap();
        for (query, answer) in queries.iter().zip(batch) {
            assert_eq!(answer.hits, case.ask(query, &config).unwrap().hits);
        }
    }
}

#[test]
fn search_by_kind_equals_brute_force_over_the_mixed_table() {
    let shape = model().shape();
    let layer = Dense::new(WIDTH, noise(WIDTH * 128, 21), noise(128, 22)).unwrap();
    assert_eq!(shape.num_codebooks() * shape.codebook_size(), 128);
    let model = model().with_kinds(Projection::new(vec![layer]).unwrap()).unwrap();
    let case = Case::of(&model, RerankVectors::Int8, Store::All, 400);
    let vector = embedding(777);
    let row = Matrix::from_vec(WIDTH, vector.clone());
    let own = model.tables(&row, Distance::Norm).unwrap().remove(0);
    let kind = model.kinds().unwrap().tables(&row).unwrap().remove(0);
    for weight in [0.3, 1.0] {
        let table = own.with_kind(&kind, weight);
        let expected = case.brute(|code| table.distance(code));
        // The default re-ranks nothing then.
        let config = SearchConfig { k: 500, kind: weight, ..SearchConfig::default() };
        let found = case.hits(&Query::vector(vector.clone()), &config);
        assert_eq!(found, expected.iter().map(|&(i, d)| (i, d, -d)).collect::<Vec<_>>());
        assert_eq!(case.pages(&Query::vector(vector.clone()), &SearchConfig { k: 37, ..config }), found);
    }
    // Re-ranked, the first are ordered by cosine.
    let config = SearchConfig { k: 20, kind: 1.0, rerank: Rerank::First(20), ..SearchConfig::default() };
    let found = case.hits(&Query::vector(vector), &config);
    assert!(found.windows(2).all(|w| w[0].2 >= w[1].2) && found[0].2 > 0.0);
}

#[test]
fn rerank_orders_the_first_candidates_by_cosine() {
    for (keep, error) in [(RerankVectors::Int8, 0.01), (RerankVectors::F16, 0.001)] {
        let case = Case::new(keep, Store::Codes, 1200);
        let vector = embedding(1801);
        let query = Query::vector(vector.clone());
        let by_code = case.hits(&query, &codes_alone(1200));
        for (rerank, first) in [(Rerank::First(30), 30), (Rerank::Auto, Rerank::DEFAULT), (Rerank::First(5000), 1200)] {
            let found = case.hits(&query, &SearchConfig { k: 1200, rerank, ..SearchConfig::default() });
            let mut head: Vec<u64> = by_code[..first].iter().map(|h| h.0).collect();
            let mut got: Vec<u64> = found[..first].iter().map(|h| h.0).collect();
            head.sort_unstable();
            got.sort_unstable();
            assert_eq!(head, got, "the same candidates");
            for &(i, _, score) in &found[..first] {
                assert!((f64::from(score) - cosine(&vector, &embedding(i))).abs() < error, "{keep}: {score}");
            }
            assert!(found.windows(2).all(|w| w[0].2 >= w[1].2), "the score falls");
            let tail: Vec<(u64, f32)> = found[first..].iter().map(|h| (h.0, h.1)).collect();
            assert_eq!(tail, by_code[first..].iter().map(|h| (h.0, h.1)).collect::<Vec<_>>(), "the rest as they were");
        }
        // The document itself is its own nearest by embedding, whatever other document has its code.
        for i in [0, 77, 250] {
            assert_eq!(case.hits(&Query::vector(embedding(i)), &SearchConfig::default())[0].0, i);
        }
        // By example: its rerank vector is the query's embedding.
        let found = case.hits(&Query::document(5), &SearchConfig::default());
        assert!(
            found
                .iter()
                .all(|&(i, _, s)| i != 5 && (f64::from(s) - cosine(&embedding(5), &embedding(i))).abs() < 2.0 * error)
        );
    }
    let none = Case::new(RerankVectors::None, Store::All, 50);
    let query = Query::vector(embedding(1));
    assert_eq!(none.hits(&query, &SearchConfig::default()), none.hits(&query, &codes_alone(10)));
    let refused = none.ask(&query, &SearchConfig { rerank: Rerank::First(9), ..SearchConfig::default() });
    assert!(refused.unwrap_err().to_string().contains("rerank_vectors int8"));
}

#[test]
fn rerank_vectors_survive_merges_updates_and_reopening() {
    let case = Case::new(RerankVectors::Int8, Store::All, 300);
    let index = case.searcher.index().clone();
    let query = Query::vector(embedding(900));
    let config = SearchConfig { k: 300, ..SearchConfig::default() };
    let before = case.hits(&query, &config);
    let mut writer = index.writer().unwrap();
    writer.compact(&NoProgress).unwrap();
    assert_eq!(index.info().unwrap().segments, 1);
    assert_eq!(case.hits(&query, &config), before);
    // A replaced document takes its new embedding with it.
    let replaced = [Document { id: DocId::Int(7), ..document(7) }];
    writer.add_embeddings(&replaced, &Matrix::from_vec(WIDTH, embedding(900))).unwrap();
    writer.commit(&NoProgress).unwrap();
    let first = case.hits(&query, &SearchConfig::default())[0];
    assert!(first.0 == 7 && first.2 > 0.999, "{first:?}");
    writer.close(&NoProgress).unwrap();
    let again = Searcher::open(index.dir(), &NoProgress).unwrap();
    let answer = again.search(std::slice::from_ref(&query), &SearchConfig::default(), &NoProgress).unwrap();
    assert_eq!(answer[0].hits[0].id, DocId::Int(7));
    assert!(crate::index::verify(index.dir(), &NoProgress).unwrap().is_empty());
}

#[test]
fn an_index_with_rerank_vectors_refuses_bare_codes_and_bad_vectors() {
    let case = Case::new(RerankVectors::Int8, Store::All, 10);
    let mut writer = case.searcher.index().writer().unwrap();
    let code = vec![0; 4];
    assert!(writer.add(&document(1), &code).unwrap_err().to_string().contains("stores rerank vectors"));
    let mut bad = embedding(1);
    bad[3] = f32::NAN;
    assert!(
        writer
            .add_embeddings(&[document(1)], &Matrix::from_vec(WIDTH, bad))
            .unwrap_err()
            .to_string()
            .contains("value 3")
    );
    let narrow = Matrix::from_vec(3, vec![0.0; 3]);
    assert!(writer.add_embeddings(&[document(1)], &narrow).unwrap_err().to_string().contains("20 values"));
    assert!(writer.add_embeddings(&[], &Matrix::default()).is_ok());
}

#[test]
fn an_index_of_an_earlier_format_is_read() {
    let case = Case::new(RerankVectors::None, Store::All, 60);
    let index = case.searcher.index();
    let query = Query::vector(embedding(3));
    let before = case.hits(&query, &codes_alone(60));
    let path = index.dir().join("index.json");
    let fourth = std::fs::read_to_string(&path).unwrap();
    assert!(fourth.contains("\"format\": 4") && fourth.contains("  \"rerank_vectors\": \"none\",\n"), "{fourth}");
    let third = fourth.replace("\"format\": 4", "\"format\": 3").replace("  \"language\": \"en\",\n", "");
    let id = third.lines().find(|line| line.contains("\"id\"")).unwrap().to_owned() + "\n";
    let second = third.replace("\"format\": 3", "\"format\": 2").replace(&id, "").replace("rerank_vectors", "keep");
    let all = [(2, &second), (3, &third), (4, &fourth)];
    for (format, text) in all {
        std::fs::write(&path, text).unwrap();
        let searcher = Searcher::open(index.dir(), &NoProgress).unwrap();
        let config = SearchConfig { k: 60, ..SearchConfig::default() };
        let answer = searcher.search(std::slice::from_ref(&query), &config, &NoProgress).unwrap();
        assert_eq!(answer[0].hits.iter().map(|h| (number(&h.id), h.distance, h.score)).collect::<Vec<_>>(), before);
        assert!(crate::index::verify(index.dir(), &NoProgress).unwrap().is_empty());
        assert_eq!(
            (searcher.index().rerank_vectors(), searcher.index().info().unwrap().format),
            (RerankVectors::None, format)
        );
    }
    // No form may borrow from another, and a later one is refused.
    for (from, text) in all {
        for to in (1..=4).filter(|to| *to != from) {
            std::fs::write(&path, text.replace(&format!("\"format\": {from}"), &format!("\"format\": {to}"))).unwrap();
            assert!(Searcher::open(index.dir(), &NoProgress).is_err(), "{from} as {to}");
        }
    }
    // Of format 1 there is no index that a program of its time wrote.
    let first = second.replace("\"format\": 2", "\"format\": 1").replace("  \"keep\": \"none\",\n", "");
    for text in [first, fourth.replace("\"format\": 4", "\"format\": 5")] {
        std::fs::write(&path, text).unwrap();
        assert!(Searcher::open(index.dir(), &NoProgress).err().unwrap().to_string().contains("reads 2 to 4"));
    }
}

fn keywords(text: &str) -> Query {
    Query { keywords: Some(text.into()), ..Query::vector(embedding(700)) }
}

#[test]
fn hybrid_is_the_fusion_of_both_lists() {
    let case = Case::new(RerankVectors::Int8, Store::All, 400);
    let query = keywords("wheat cargo");
    for (rerank, filter) in
        [(Rerank::Off, None), (Rerank::First(50), None), (Rerank::Auto, Some("year:[1981 TO 1985]".to_owned()))]
    {
        let config =
            |hybrid| SearchConfig { k: 400, rerank, filter: filter.clone(), hybrid, ..SearchConfig::default() };
        let codes = case.hits(&query, &config(0.0));
        let only_words = case.hits(&query, &config(1.0));
        let matching = |i: u64| filter.is_none() || (1..=5).contains(&(i % 10));
        let expected = (0..400).filter(|&i| {
            let text = document(i).text;
            matching(i) && (text.contains("wheat") || text.contains("cargo"))
        });
        assert_eq!(only_words.len(), expected.count());
        for (i, distance, _) in &only_words {
            assert_eq!(codes.iter().find(|c| c.0 == *i).unwrap().1, *distance, "found by keywords, measured by code");
        }
        let mut scores: HashMap<u64, f32> = HashMap::new();
        for (list, weight) in [(&codes, 0.7), (&only_words, 0.3)] {
            list.iter()
                .zip(1..)
                .for_each(|(hit, rank)| *scores.entry(hit.0).or_default() += weight / (60.0 + rank as f32));
        }
        let found = case.hits(&query, &config(0.3));
        assert_eq!(found.len(), scores.len());
        for (i, _, score) in &found {
            assert!((scores[i] - score).abs() < 1e-7);
        }
        assert!(found.windows(2).all(|w| w[0].2 >= w[1].2));
    }
    let near = case.hits(&query, &SearchConfig { k: 400, hybrid: 0.5, radius: Some(20.0), ..SearchConfig::default() });
    assert!(near.iter().all(|h| h.1 <= 20.0));
}

#[test]
fn snippets_mark_keywords_in_any_script() {
    let case = Case::new(RerankVectors::None, Store::All, 30);
    let mut writer = case.searcher.index().writer().unwrap();
    let texts = ["Überschuß: wheats für 東京, the WHEAT of Ägypten", "nothing of the kind"];
    let documents: Vec<Document> =
        (0u64..).zip(texts).map(|(i, t)| Document { text: t.into(), id: DocId::Int(500 + i), ..document(i) }).collect();
    writer.add_embeddings(&documents, &Matrix::from_vec(WIDTH, [embedding(1), embedding(2)].concat())).unwrap();
    writer.commit(&NoProgress).unwrap();
    let config = SearchConfig { k: 40, snippets: true, documents: false, ..SearchConfig::default() };
    let answer = case.ask(&keywords("the wheat"), &config).unwrap();
    let of = |id: u64| answer.hits.iter().find(|h| number(&h.id) == id).unwrap();
    let snippet = of(500).snippet.as_ref().unwrap();
    let marked: Vec<&str> = snippet.marks.iter().map(|m| &snippet.text[m.clone()]).collect();
    assert_eq!(marked, ["wheats", "WHEAT"], "stems match, keywords without meaning are not marked");
    let chars: Vec<char> = snippet.text.chars().collect();
    let by_chars: Vec<String> = snippet.marks_in_chars().into_iter().map(|m| chars[m].iter().collect()).collect();
    assert_eq!(by_chars, ["wheats", "WHEAT"]);
    assert_eq!(of(501).snippet.as_ref().unwrap(), &Snippet { text: texts[1].into(), marks: vec![] });
    assert!(of(500).text.is_none(), "texts were not asked for");
    // A query of stop keywords alone looks for them.
    let answer = case.ask(&keywords("the"), &SearchConfig { hybrid: 1.0, ..config }).unwrap();
    assert!(!answer.hits.is_empty());
}

#[test]
fn cursors_stay_exact_by_code_and_are_refused_when_stale() {
    let case = Case::new(RerankVectors::Int8, Store::All, 200);
    let query = Query::vector(embedding(31));
    let page = case.ask(&query, &codes_alone(50)).unwrap();
    let reranked = case.ask(&query, &SearchConfig::default()).unwrap();
    let fused = case.ask(&keywords("wheat"), &SearchConfig { hybrid: 0.5, k: 5, ..SearchConfig::default() }).unwrap();
    let all = case.hits(&query, &codes_alone(200));
    let mut writer = case.searcher.index().writer().unwrap();
    // The last hit of the page goes, and a new document comes before it.
    writer.delete(&page.hits[49].id).unwrap();
    writer
        .add_embeddings(&[Document { id: DocId::Int(5000), ..document(1) }], &Matrix::from_vec(WIDTH, embedding(31)))
        .unwrap();
    writer.commit(&NoProgress).unwrap();
    let rest = case.hits(&query, &SearchConfig { k: 200, after: page.next, ..codes_alone(1) });
    assert_eq!(rest, all[50..], "nothing twice, nothing left out");
    for (query, config, next) in [
        (&query, SearchConfig::default(), reranked.next),
        (&keywords("wheat"), SearchConfig { hybrid: 0.5, k: 5, ..SearchConfig::default() }, fused.next),
    ] {
        assert!(next.is_some());
        let said = case.ask(query, &SearchConfig { after: next, ..config }).unwrap_err().to_string();
        assert!(said.contains("stale"), "{said}");
    }
    for config in [
        SearchConfig { filter: Some("year:1981".into()), ..codes_alone(50) },
        SearchConfig { radius: Some(3.0), ..codes_alone(50) },
        SearchConfig { distance: Some(Distance::Squared), ..codes_alone(50) },
        SearchConfig { k: 50, ..SearchConfig::default() },
    ] {
        let said = case.ask(&query, &SearchConfig { after: page.next, ..config }).unwrap_err().to_string();
        assert!(said.contains("another question"), "{said}");
    }
    let two = [query.clone(), query.clone()];
    assert!(case.searcher.search(&two, &SearchConfig { after: page.next, ..codes_alone(5) }, &NoProgress).is_err());
}

#[test]
fn invalid_queries_and_options_are_refused() {
    let case = Case::new(RerankVectors::Int8, Store::All, 20);
    let good = Query::vector(embedding(1));
    let mut nan = embedding(1);
    nan[7] = f32::NAN;
    for (query, word) in [
        (Query::default(), "asks for nothing"),
        (Query::vector(vec![1.0; 3]), "3 values, the model of this index takes 20"),
        (Query::vector(nan), "value 7"),
        (Query::document(12345), "document 12345"),
        (good.clone().and(Like::Document(DocId::Int(1)), 0.0), "weight 0"),
        (good.clone().and(Like::Document(DocId::Int(1)), f32::NAN), "weight NaN"),
        (Query::text("grain"), "user vectors and cannot encode text; give vectors instead"),
    ] {
        let said = case.ask(&query, &SearchConfig::default()).unwrap_err().to_string();
        assert!(said.contains(word), "{said}");
    }
    for (config, word) in [
        (codes_alone(0), "at least one"),
        (codes_alone(10_001), "next page"),
        (SearchConfig { radius: Some(f32::NAN), ..codes_alone(1) }, "NaN"),
        (SearchConfig { radius: Some(-1.0), ..codes_alone(1) }, "from 0 up"),
        (SearchConfig { hybrid: 1.5, ..codes_alone(1) }, "only keywords"),
        (SearchConfig { hybrid: 0.5, ..codes_alone(1) }, "has no keyword"),
        (SearchConfig { rerank: Rerank::First(0), ..codes_alone(1) }, "1 to 10000"),
        (SearchConfig { filter: Some("year:[".into()), ..codes_alone(1) }, "at character"),
        (SearchConfig { filter: Some("yaer:1983".into()), ..codes_alone(1) }, "known: year"),
        (SearchConfig { filter: Some(" ".into()), ..codes_alone(1) }, "empty"),
    ] {
        let said = case.ask(&good, &config).unwrap_err().to_string();
        assert!(said.contains(word), "{said}");
    }
    let codes = Case::new(RerankVectors::None, Store::Codes, 20);
    for config in [SearchConfig { hybrid: 0.5, ..codes_alone(1) }, SearchConfig { snippets: true, ..codes_alone(1) }] {
        assert!(codes.ask(&keywords("wheat"), &config).unwrap_err().to_string().contains("build it with store all"));
    }
    assert!(case.searcher.search(&[], &SearchConfig::default(), &NoProgress).unwrap().is_empty());
    for text in ["auto", "off", "17"] {
        assert_eq!(text.parse::<Rerank>().unwrap().to_string(), text);
    }
    assert!("some".parse::<Rerank>().is_err());
}

#[test]
fn explanation_adds_up() {
    let case = Case::new(RerankVectors::Int8, Store::All, 300);
    let config =
        SearchConfig { explain: true, hybrid: 0.4, filter: Some("year:1983".into()), ..SearchConfig::default() };
    let answer = case.ask(&keywords("wheat"), &config).unwrap();
    for hit in &answer.hits {
        let codebook_distances = hit.codebook_distances.as_ref().unwrap();
        assert_eq!(codebook_distances.len(), 8);
        assert_eq!(codebook_distances.iter().fold(0.0f32, |sum, share| sum + share), hit.distance);
    }
    let told = answer.explanation.unwrap();
    assert_eq!(told.segments.iter().map(|s| s.matching).sum::<usize>(), 30);
    assert_eq!((told.candidates, told.reranked, told.keywords), (30, 30, vec!["wheat".to_owned()]));
    assert!(told.by_keywords > 0 && told.segments.iter().any(|s| s.strategy.is_some()));
    assert!(case.ask(&keywords("wheat"), &SearchConfig::default()).unwrap().explanation.is_none());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn pages_are_one_list_cut(
        k in 1usize..40,
        rerank in prop::sample::select(vec![Rerank::Off, Rerank::Auto, Rerank::First(1), Rerank::First(13), Rerank::First(40)]),
        hybrid in prop::sample::select(vec![0.0f32, 0.0, 0.3, 1.0]),
        filtered in any::<bool>(),
        within in prop::option::of(5.0f32..40.0),
        example in any::<bool>(),
        seed in 0u64..50,
    ) {
        thread_local!(static CASE: Case = Case::new(RerankVectors::Int8, Store::All, 120));
        CASE.with(|case| {
            let mut query = if example { Query::document(seed) } else { Query::vector(embedding(1000 + seed)) };
            query.keywords = Some("wheat of grain".into());
            let filter = filtered.then(|| "year:[1980 TO 1986]".to_owned());
            let config = SearchConfig { k, rerank, hybrid, filter, radius: within, ..SearchConfig::default() };
            let whole = case.hits(&query, &SearchConfig { k: 500, ..config.clone() });
            assert_eq!(case.pages(&query, &config), whole);
        });
    }
}

#[test]
fn measured_recall_equals_that_of_searches() {
    let case = Case::new(RerankVectors::Int8, Store::Codes, 1200);
    let all = RecallConfig { queries: 1200, rerank: 20, ..RecallConfig::default() };
    let report = case.searcher.recall(&all, &NoProgress).unwrap();
    assert_eq!((report.documents, report.queries, report.windows.len()), (1200, 1200, 4));
    let walk = case.searcher.index().walk().unwrap();
    let vectors: Vec<Vec<f32>> = (0..1200).map(|i| walk.vector(i).unwrap().unwrap()).collect();
    let ids: Vec<u64> = (0..1200).map(|i| number(&walk.get(i).unwrap().id)).collect();
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
    let mut found = 0;
    for (own, vector) in vectors.iter().enumerate() {
        let mut cosines: Vec<(f64, u64)> = (0..1200)
            .filter(|&i| i != own)
            .map(|i| (-dot(vector, &vectors[i]) / dot(&vectors[i], &vectors[i]).sqrt(), ids[i]))
            .collect();
        cosines.sort_by(|a, b| a.0.total_cmp(&b.0));
        let query = Query { like: vec![(Like::Vector(vector.clone()), 1.0)], ..Query::default() };
        let config = SearchConfig { k: 21, rerank: Rerank::Off, ..SearchConfig::default() };
        let near: Vec<u64> =
            case.hits(&query, &config).iter().map(|hit| hit.0).filter(|id| *id != ids[own]).take(20).collect();
        found += cosines[..10].iter().filter(|(_, id)| near.contains(id)).count();
    }
    // Two cosines that differ by less than f32 holds may change places.
    assert!((report.recall - found as f64 / 12_000.0).abs() < 1e-3, "{} {found}", report.recall);
    assert!(report.depths.windows(2).all(|d| d[0].recall <= d[1].recall));
    assert_eq!(report.depths.last().unwrap().recall, 1.0, "all documents are candidates");
}

#[test]
fn target_recall_chooses_the_fewest_candidates_that_reach_it() {
    let case = Case::new(RerankVectors::Int8, Store::Codes, 1200);
    let report = case.searcher.recall(&RecallConfig::default(), &NoProgress).unwrap();
    for target in [0.3, 0.8, 1.0] {
        let chosen = case.searcher.rerank_for(target, 10, &NoProgress).unwrap();
        assert!(chosen.recall >= target);
        assert!(report.depths.iter().all(|d| d.rerank >= chosen.rerank || d.recall < target));
    }
    let measured = || case.searcher.measured().lock().clone().unwrap();
    let (place, first) = measured();
    case.searcher.rerank_for(0.5, 10, &NoProgress).unwrap();
    assert!(std::sync::Arc::ptr_eq(&measured().1, &first), "measured once");
    case.searcher.rerank_for(0.5, 5, &NoProgress).unwrap();
    assert!(measured().0 != place && measured().1.k == 5, "again for another number of hits");
    let error = |searcher: &Searcher, target| searcher.rerank_for(target, 10, &NoProgress).unwrap_err().to_string();
    assert!(error(&case.searcher, 0.0).contains("target_recall is 0"));
    let without = Case::new(RerankVectors::None, Store::Codes, 30);
    assert!(error(&without.searcher, 0.9).contains("no rerank vectors"));
    let few = Case::new(RerankVectors::F16, Store::Codes, 30);
    assert_eq!(few.searcher.rerank_for(0.9, 10, &NoProgress).unwrap().rerank, 30, "all of them");
    assert!(few.searcher.recall(&RecallConfig::default(), &NoProgress).unwrap_err().to_string().contains("1000"));
}

#[test]
fn every_way_to_search_is_scored_by_the_judgements() {
    let case = Case::new(RerankVectors::Int8, Store::All, 300);
    // The vector and the number of a document ask for the document itself.
    let asks = |i: u64| Query { keywords: Some(format!("number {i}")), ..Query::vector(embedding(i)) };
    let queries: Vec<(String, Query)> = (0..40).map(|i| (format!("q{i}"), asks(i))).collect();
    let relevant = |i: u64| (format!("q{i}"), [(i.to_string(), 1)].into());
    let qrels = Qrels((0..30).map(relevant).collect());
    let report = case.searcher.judge(&queries, &qrels, &JudgedConfig::default(), &NoProgress).unwrap();
    assert_eq!((report.documents, report.queries, report.missing.len()), (300, 30, 0));
    let names: Vec<&str> = report.ways.iter().map(|way| way.way.as_str()).collect();
    assert_eq!(names, ["codes", "codes, 1000 re-ranked", "hybrid 0.5", "BM25", "exact float"]);
    let mrr: Vec<f64> = report.ways.iter().map(|way| way.scores.mean.mrr).collect();
    assert_eq!((mrr[3], mrr[4]), (1.0, 1.0), "numbers are unique, and so are vectors");
    let ranked = |i: u64| {
        let config = SearchConfig { k: 100, rerank: Rerank::Off, ..SearchConfig::default() };
        let rank = case.hits(&asks(i), &config).iter().position(|hit| hit.0 == i);
        rank.map_or(0.0, |rank| 1.0 / (rank + 1) as f64)
    };
    let expected = (0..30).map(ranked).sum::<f64>() / 30.0;
    assert!((mrr[0] - expected).abs() < 1e-12 && mrr[0] < mrr[1], "{mrr:?} {expected}");
    let none = Qrels::default();
    let error = case.searcher.judge(&queries, &none, &JudgedConfig::default(), &NoProgress).unwrap_err();
    assert!(error.to_string().contains("none of the 40 queries"));
    let codes = Case::new(RerankVectors::None, Store::Codes, 60);
    let report = codes.searcher.judge(&queries, &qrels, &JudgedConfig::default(), &NoProgress).unwrap();
    assert_eq!((report.ways.len(), report.missing.len()), (1, 2));
}
