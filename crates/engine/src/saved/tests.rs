//! Matches against comparison of every pair, and what outlives a commit, a copy and a new model.

use super::*;
use crate::corpus::{DocId, Document, Value};
use crate::duplicates::tests::{WIDTH, model};
use crate::index::{
    CopyConfig, Index, IndexConfig, MigrateConfig, RerankVectors, SplitDocument, backup, migrate, verify,
};
use crate::model::Model;
use crate::model::plain_tests::noise;
use crate::{Matrix, NoProgress};

fn document(id: u64) -> Document {
    let attributes = vec![("year".to_owned(), Value::Int(1980 + id as i64 % 10))];
    Document { id: DocId::Int(id), text: format!("story {id} of the town"), labels: vec![], attributes }
}

fn vector(seed: u64) -> Vec<f32> {
    (0..WIDTH as u64).map(|i| noise(seed, i)).collect()
}

fn create(path: &std::path::Path, config: IndexConfig) -> Searcher {
    Searcher::new(Index::create(path, &model(), config).unwrap(), None).unwrap()
}

fn with_vectors() -> IndexConfig {
    IndexConfig { rerank_vectors: RerankVectors::Int8, ..IndexConfig::default() }
}

fn add(index: &Index, ids: std::ops::Range<u64>, seed: u64) {
    let mut writer = index.writer().unwrap();
    let documents: Vec<Document> = ids.clone().map(document).collect();
    // In an index with chunks, every third document has two.
    let chunks = |document: &Document, id: u64| match index.chunk() {
        Some(_) if id.is_multiple_of(3) => vec![0..5, 5..document.text.len()],
        _ => std::iter::once(0..document.text.len()).collect(),
    };
    let split: Vec<SplitDocument> = documents.iter().zip(ids).map(|(d, id)| (d, chunks(d, id))).collect();
    let rows: usize = split.iter().map(|(_, chunks)| chunks.len()).sum();
    let values = (0..rows as u64).flat_map(|row| vector(seed + row)).collect();
    writer.add_chunks(&split, &Matrix::from_vec(WIDTH, values)).unwrap();
    writer.commit(&NoProgress).unwrap();
    writer.close(&NoProgress).unwrap();
    index.reload(&NoProgress).unwrap();
}

fn query(name: &str, seed: u64, threshold: Threshold, filter: Option<&str>) -> SavedQuery {
    SavedQuery {
        name: name.into(),
        vector: Some(vector(seed)),
        threshold: Some(threshold),
        filter: filter.map(str::to_owned),
        ..SavedQuery::default()
    }
}

fn saved(searcher: &Searcher, query: SavedQuery) -> SavedQuery {
    let mut writer = searcher.index().writer().unwrap();
    save(searcher, &mut writer, query, &NoProgress).unwrap().0
}

fn found(searcher: &Searcher, start: Start) -> Matches {
    matches(searcher, &MatchRequest { start, limit: usize::MAX, ..MatchRequest::default() }, &NoProgress).unwrap()
}

/// The matches of every living document, from its stored vectors and codes.
fn brute(index: &Index, queries: &[SavedQuery], from: u64) -> Vec<Match> {
    let (walk, reader, model) = (index.walk().unwrap(), index.reader().unwrap(), index.model());
    let mut all = Vec::new();
    for i in 0..walk.len() {
        let record = walk.get(i).unwrap();
        let year =
            record.attributes.iter().find_map(|(_, value)| if let Value::Int(n) = value { Some(*n) } else { None });
        for query in queries.iter().filter(|query| record.sequence >= query.since.max(from)) {
            if query.filter.as_ref().is_some_and(|filter| *filter != format!("year:{}", year.unwrap())) {
                continue;
            }
            let Some(wanted) = &query.vector else {
                all.push(Match { query: query.name.clone(), id: record.id.clone(), cosine: None, distance: None });
                continue;
            };
            let wanted = Matrix::from_vec(WIDTH, wanted.clone());
            let table = &model.tables(&wanted, model.config.distance).unwrap()[0];
            let (mut cosine, mut distance) = (None::<f32>, f32::INFINITY);
            for address in reader.chunks(walk.address(i)) {
                distance = distance.min(table.distance(&reader.code(address).unwrap()));
                reader
                    .read_rerank_vectors(std::iter::once(address), |row| {
                        let mut both = Matrix::from_vec(WIDTH, [wanted.row(0), row].concat());
                        both.normalize_rows();
                        let own = 1.0 - kernels::squares::squared(both.row(0), both.row(1)) / 2.0;
                        cosine = Some(cosine.map_or(own, |best| best.max(own)));
                    })
                    .unwrap();
            }
            let near = match query.threshold.unwrap() {
                Threshold::Cosine(least) => cosine.unwrap() >= least,
                Threshold::Distance(most) => distance <= most,
            };
            if near {
                let (query, id) = (query.name.clone(), record.id.clone());
                all.push(Match { query, id, cosine, distance: Some(distance) });
            }
        }
    }
    all
}

#[test]
fn matches_are_those_of_every_pair() {
    let chunks = Some(crate::chunk::ChunkSizes { tokens: 32, overlap: 4 });
    for config in [with_vectors(), IndexConfig { chunk: chunks, ..with_vectors() }] {
        let dir = tempfile::tempdir().unwrap();
        let searcher = create(&dir.path().join("i"), config);
        let index = searcher.index();
        let mut queries = Vec::new();
        for round in 0..6u64 {
            for (i, threshold) in
                [Threshold::Cosine(0.2), Threshold::Cosine(0.5), Threshold::Distance(18.0)].into_iter().enumerate()
            {
                let name = format!("q{round}{i}");
                let filter = (i == 0).then(|| format!("year:{}", 1980 + round));
                queries.push(saved(&searcher, query(&name, 500 + round * 7 + i as u64, threshold, filter.as_deref())));
            }
            // Some documents again: updates are new.
            add(index, round * 40..round * 40 + 60, round * 1000);
        }
        queries.push(saved(
            &searcher,
            SavedQuery { name: "only".into(), filter: Some("year:1984".into()), ..SavedQuery::default() },
        ));
        add(index, 300..320, 9000);
        let mut writer = index.writer().unwrap();
        writer.delete_where("year:1987").unwrap();
        writer.commit(&NoProgress).unwrap();
        writer.close(&NoProgress).unwrap();
        queries.sort_by(|a, b| a.name.cmp(&b.name));
        assert_eq!(list(index).unwrap(), queries);

        let expected = brute(index, &queries, 0);
        assert!(expected.len() > 300, "{}", expected.len());
        let all = found(&searcher, Start::Saved);
        assert_eq!(all.matches, expected);
        assert!(all.matches.iter().any(|m| m.query == "only"));
        // Page after page.
        let (mut pages, mut start) = (Vec::new(), Start::Saved);
        loop {
            let page =
                matches(&searcher, &MatchRequest { start, limit: 7, ..MatchRequest::default() }, &NoProgress).unwrap();
            pages.extend(page.matches);
            if !page.more {
                assert_eq!(page.next, all.next);
                break;
            }
            start = Start::After(page.next);
        }
        assert_eq!(pages, expected);
        // Nothing is new, until something is.
        let after = |place: &Place| found(&searcher, Start::After(place.clone()));
        assert_eq!(after(&all.next).matches, []);
        add(index, 5..6, 77);
        let new = after(&all.next);
        assert_eq!(new.matches, brute(index, &queries, all.next.sequence()));
        assert_eq!(after(&new.next).matches, []);
        index.writer().unwrap().compact(&NoProgress).unwrap();
        assert_eq!(after(&all.next).matches, new.matches, "a merge makes nothing new");
        let values = std::collections::HashMap::from([(0, Value::Bool(true))]);
        index.set_attribute("seen", &values, &NoProgress).unwrap();
        assert_eq!(after(&new.next).matches, [], "an attribute makes nothing new");
    }
}

#[test]
fn a_query_is_tried_on_all_documents_and_told_of_new_ones_only() {
    let dir = tempfile::tempdir().unwrap();
    let searcher = create(&dir.path().join("i"), with_vectors());
    let index = searcher.index();
    add(index, 0..50, 0);
    let first = saved(&searcher, query("a", 7, Threshold::Cosine(0.99), None));
    saved(&searcher, query("b", 8, Threshold::Cosine(0.99), None));
    assert_eq!(found(&searcher, Start::Saved).matches, []);
    let tried = MatchRequest { start: Start::All, name: Some("a".into()), ..MatchRequest::default() };
    let ids = |matches: Matches| matches.matches.into_iter().map(|m| m.id).collect::<Vec<_>>();
    assert_eq!(ids(matches(&searcher, &tried, &NoProgress).unwrap()), [DocId::Int(7)]);
    add(index, 57..58, 7);
    assert_eq!(ids(found(&searcher, Start::Saved)), [DocId::Int(57)]);
    // Saved again, it begins again.
    assert_eq!(position(index).unwrap(), None);
    assert_eq!(ids(found(&searcher, Start::Remembered)), [DocId::Int(57)]);
    set_position(index, &found(&searcher, Start::Remembered).next).unwrap();
    assert_eq!(ids(found(&searcher, Start::Remembered)), []);
    let mut writer = index.writer().unwrap();
    let (again, replaced) =
        save(&searcher, &mut writer, SavedQuery { since: 0, ..first.clone() }, &NoProgress).unwrap();
    assert!(replaced && again.since > first.since);
    assert!(remove(&mut writer, index, "b").unwrap() && !remove(&mut writer, index, "b").unwrap());
    assert_eq!(list(index).unwrap().len(), 1);
    drop(writer);
    assert_eq!(ids(found(&searcher, Start::Saved)), []);
}

#[test]
fn saved_queries_outlive_a_copy_and_a_new_model() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("i");
    let searcher = create(&path, with_vectors());
    let index = searcher.index();
    add(index, 0..40, 0);
    saved(&searcher, query("near", 45, Threshold::Cosine(0.9), None));
    add(index, 40..60, 40);
    let place = found(&searcher, Start::Saved).next;
    set_position(index, &place).unwrap();
    add(index, 60..80, 45);
    // Numbers of insertion have gaps now.
    let mut writer = index.writer().unwrap();
    for id in 0..30 {
        writer.delete(&DocId::Int(id)).unwrap();
    }
    writer.commit(&NoProgress).unwrap();
    writer.close(&NoProgress).unwrap();
    index.reload(&NoProgress).unwrap();
    let told =
        |searcher: &Searcher, start| found(searcher, start).matches.into_iter().map(|m| m.id).collect::<Vec<_>>();
    assert_eq!(told(&searcher, Start::Saved), [DocId::Int(45), DocId::Int(60)]);
    assert_eq!(told(&searcher, Start::Remembered), [DocId::Int(60)]);

    let copy = dir.path().join("copy");
    backup(&path, &copy, CopyConfig::default(), &NoProgress).unwrap();
    let copied = Searcher::open(&copy, &NoProgress).unwrap();
    assert_eq!(told(&copied, Start::Remembered), [DocId::Int(60)]);
    let refused = |searcher: &Searcher| {
        let request = MatchRequest { start: Start::After(place.clone()), ..MatchRequest::default() };
        matches(searcher, &request, &NoProgress).unwrap_err().to_string()
    };
    assert!(refused(&copied).contains("is of another index"));

    let other = Model::new(
        crate::model::ModelConfig { method: "other".into(), ..model().config },
        model().projection().clone(),
        crate::model::Codebooks::new(model().shape(), (0..8 * 16 * 2).map(|i| noise(4, i)).collect()).unwrap(),
    )
    .unwrap();
    let encoded: Vec<(String, Vec<f32>)> = {
        let walk = index.walk().unwrap();
        (0..walk.len()).map(|i| (walk.get(i).unwrap().text.unwrap(), walk.vector(i).unwrap().unwrap())).collect()
    };
    let mut encode = |texts: &[&str]| {
        let of = |text: &&str| encoded.iter().find(|(own, _)| own == text).unwrap().1.clone();
        Ok(Matrix::from_vec(WIDTH, texts.iter().flat_map(of).collect()))
    };
    migrate(&path, &other, &mut encode, &MigrateConfig::default(), &NoProgress).unwrap();
    let migrated = Searcher::open(&path, &NoProgress).unwrap();
    assert_eq!(told(&migrated, Start::Saved), [DocId::Int(45), DocId::Int(60)]);
    assert_eq!(told(&migrated, Start::Remembered), [DocId::Int(60)]);
    assert!(refused(&migrated).contains("is of another index"));
    add(migrated.index(), 100..101, 45);
    assert_eq!(told(&migrated, Start::Remembered), [DocId::Int(60), DocId::Int(100)]);
    assert_eq!(verify(&path, &NoProgress).unwrap().len(), 0);
}

#[test]
fn damage_is_found_and_nothing_is_guessed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("i");
    let searcher = create(&path, with_vectors());
    saved(&searcher, query("near", 1, Threshold::Cosine(0.5), None));
    let file = path.join("saved/queries.json");
    let good = std::fs::read_to_string(&file).unwrap();
    for bad in [
        good.replace("0.5", "0.4"),
        good[..good.len() / 2].to_owned(),
        String::new(),
        good.replace("\"format\": 1", "\"format\": 9"),
    ] {
        std::fs::write(&file, &bad).unwrap();
        let said = list(searcher.index()).unwrap_err().to_string();
        assert!(said.contains("queries.json"), "{said}");
        assert_eq!(verify(&path, &NoProgress).unwrap().len(), 1);
    }
    std::fs::write(&file, &good).unwrap();
    assert_eq!(list(searcher.index()).unwrap().len(), 1);
    std::fs::write(path.join("saved/position"), "x").unwrap();
    assert!(position(searcher.index()).unwrap_err().to_string().contains("is not a number"));
}

#[test]
fn what_cannot_be_saved_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let searcher = create(&dir.path().join("i"), IndexConfig::default());
    let mut writer = searcher.index().writer().unwrap();
    let near = |threshold| query("near", 1, threshold, None);
    let bare = SavedQuery { name: "near".into(), ..SavedQuery::default() };
    for (query, reason) in [
        (SavedQuery { name: "a b".into(), ..near(Threshold::Distance(1.0)) }, "a name that cannot be used"),
        (SavedQuery { name: String::new(), ..near(Threshold::Distance(1.0)) }, "a name that cannot be used"),
        (bare.clone(), "asks for nothing"),
        (SavedQuery { threshold: None, ..near(Threshold::Distance(1.0)) }, "no threshold"),
        (
            SavedQuery { threshold: Some(Threshold::Cosine(0.5)), filter: Some("a:b".into()), ..bare.clone() },
            "neither a text",
        ),
        (near(Threshold::Distance(f32::NAN)), "a distance of NaN"),
        (near(Threshold::Cosine(1.5)), "a cosine of 1.5"),
        (near(Threshold::Cosine(0.5)), "stores no rerank vectors"),
        (SavedQuery { filter: Some("year:[".into()), ..near(Threshold::Distance(1.0)) }, "cannot be understood"),
        (SavedQuery { vector: Some(vec![1.0]), ..near(Threshold::Distance(1.0)) }, "its vector has 1 values"),
        (SavedQuery { text: Some(" ".into()), ..near(Threshold::Distance(1.0)) }, "an empty text"),
    ] {
        let said = save(&searcher, &mut writer, query, &NoProgress).unwrap_err().to_string();
        assert!(said.contains(reason), "{said}, expected {reason}");
    }
    assert_eq!(list(searcher.index()).unwrap(), []);
    let asked = |request: MatchRequest| matches(&searcher, &request, &NoProgress).unwrap_err().to_string();
    assert!(asked(MatchRequest { limit: 0, ..MatchRequest::default() }).contains("limit is 0"));
    assert!(asked(MatchRequest { name: Some("none".into()), ..MatchRequest::default() }).contains("\"none\""));
    assert!("nothing".parse::<Place>().is_err() && ".5".parse::<Place>().is_err());
    // Nothing is saved: the place is the end.
    assert_eq!(found(&searcher, Start::Saved).matches, []);
}
