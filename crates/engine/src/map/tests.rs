//! Maps of planted clusters: what is near, what does not matter, and what a map answers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::clusters::points::Centres;
use crate::corpus::{Document, Value};
use crate::index::{IndexConfig, Store};
use crate::model::plain_tests::{noise, plain};
use crate::model::{Distance, Model};
use crate::{Matrix, NoProgress};

const WIDTH: usize = 16;
const CLASSES: u64 = 12;

fn model() -> Model {
    plain(8, Distance::Norm, 2.5)
}

/// `count` documents of twelve classes, in several commits.
fn index(dir: &tempfile::TempDir, count: u64, commits: usize) -> Index {
    let index =
        Index::create(&dir.path().join(format!("{count}-{commits}")), &model(), IndexConfig::default()).unwrap();
    let mut writer = index.writer().unwrap();
    let document = |i: u64| Document {
        id: DocId::Int(i),
        text: format!("word{} story number {i} <b>", i % CLASSES),
        labels: vec![format!("class {}", i % CLASSES)],
        attributes: vec![("class".into(), Value::Int((i % CLASSES) as i64))],
    };
    let vector = |i: u64| (0..WIDTH as u64).map(move |w| noise(i % CLASSES + 50, w) * 2.0 + 0.7 * noise(i + 1000, w));
    let all: Vec<u64> = (0..count).collect();
    for part in all.chunks(count as usize / commits) {
        let documents: Vec<Document> = part.iter().map(|&i| document(i)).collect();
        let vectors = part.iter().flat_map(|&i| vector(i)).collect();
        writer.add_embeddings(&documents, &Matrix::from_vec(WIDTH, vectors)).unwrap();
        writer.commit(&NoProgress).unwrap();
    }
    writer.close(&NoProgress).unwrap();
    index
}

fn config() -> MapConfig {
    MapConfig { topics: Some(12), ..MapConfig::default() }
}

/// The share of the ten nearest points that have the class of a point, over a sample.
fn agreement(places: &[[f64; 2]], class: impl Fn(usize) -> u64) -> f64 {
    let sample: Vec<usize> = (0..places.len()).step_by(7).collect();
    let share = |&i: &usize| {
        let mut near: Vec<(f64, usize)> = (0..places.len())
            .filter(|&j| j != i)
            .map(|j| ((places[i][0] - places[j][0]).powi(2) + (places[i][1] - places[j][1]).powi(2), j))
            .collect();
        near.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        near[..10].iter().filter(|(_, j)| class(*j) == class(i)).count() as f64 / 10.0
    };
    sample.iter().map(share).sum::<f64>() / sample.len() as f64
}

#[test]
fn neighbours_on_the_map_are_alike_more_often_than_on_principal_axes() {
    let dir = tempfile::tempdir().unwrap();
    // More distinct codes than landmarks: most documents lie between them.
    let index = index(&dir, 6000, 2);
    let map = make(&index, &config(), &NoProgress).unwrap();
    let on_map: Vec<[f64; 2]> = (0..map.len()).map(|i| [f64::from(map.x[i]), f64::from(map.y[i])]).collect();
    let id = |point: usize| u64::from(map.places[point]);
    let mapped = agreement(&on_map, |i| id(i) % CLASSES);
    let points = Points::new(index.model().codebooks(), &index.walk().unwrap().codes().unwrap());
    let values = (0..points.len()).flat_map(|i| points.vector(points.point(i))).collect();
    let axes = layout::principal_axes(&Centres { width: WIDTH, values });
    let projected = agreement(&axes, |i| i as u64 % CLASSES);
    assert!(mapped > projected + 0.2 && mapped > 0.8, "map {mapped:.3}, principal axes {projected:.3}");
}

#[test]
fn the_map_depends_on_neither_threads_nor_segments() {
    let dir = tempfile::tempdir().unwrap();
    let one = index(&dir, 1200, 1);
    let map = make(&one, &config(), &NoProgress).unwrap();
    let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let again = alone.install(|| make(&one, &config(), &NoProgress)).unwrap();
    assert_eq!(again.to_bytes(), map.to_bytes());
    let several = index(&dir, 1200, 4);
    assert_eq!(make(&several, &config(), &NoProgress).unwrap(), map);
    let mut writer = several.writer().unwrap();
    writer.compact(&NoProgress).unwrap();
    writer.close(&NoProgress).unwrap();
    several.reload(&NoProgress).unwrap();
    assert_eq!(make(&several, &config(), &NoProgress).unwrap().to_bytes(), map.to_bytes());
}

#[test]
fn a_map_names_its_points_and_finds_documents_on_it() {
    let dir = tempfile::tempdir().unwrap();
    let index = index(&dir, 600, 2);
    let map = make(&index, &config(), &NoProgress).unwrap();
    assert_eq!((map.len(), map.topics.len()), (600, 12));
    // Topics are those of the topics of the index.
    let found =
        topics::find(&index, &TopicsConfig { topics: Some(12), ..TopicsConfig::default() }, &NoProgress).unwrap();
    for (topic, own) in found.topics.iter().zip(&map.topics) {
        assert_eq!((topic.number, &topic.name, topic.documents), (own.number, &own.name, own.documents));
    }
    let ids: Vec<DocId> = [7, 599, 1234].map(DocId::Int).to_vec();
    let points = map.find(&index, &ids, &NoProgress).unwrap();
    assert!(points[0].is_some() && points[1].is_some() && points[2].is_none());
    let known: Vec<u32> = points.into_iter().flatten().collect();
    let documents = map.documents(&index, &known, &NoProgress).unwrap();
    assert_eq!(documents.iter().map(|d| d.as_ref().unwrap().id.clone()).collect::<Vec<_>>(), ids[..2]);
    for (point, (id, _, assignment)) in map.points.iter().zip(&found.assignments) {
        let topic = if assignment.outlier { NO_TOPIC } else { assignment.topic };
        assert_eq!(map.topic[*point as usize], topic, "{id}");
    }
    // An even sample: the first half of the points has half of each class.
    let classes = (0..300).fold(HashMap::new(), |mut counts: HashMap<u64, u32>, point| {
        *counts.entry(u64::from(map.places[point]) % CLASSES).or_default() += 1;
        counts
    });
    assert!(classes.len() == 12 && classes.values().all(|n| (10..=42).contains(n)), "{classes:?}");

    let values = map.values(&index, "class", 3, &NoProgress).unwrap();
    assert_eq!(values.names, [("0", 50), ("1", 50), ("10", 50)].map(|(name, n)| (name.to_owned(), n)));
    for point in 0..600 {
        let class = u64::from(map.places[point]) % CLASSES;
        let expected = match class {
            0 => 0,
            1 => 1,
            10 => 2,
            _ => MapValues::OTHER,
        };
        assert_eq!(values.values[point], expected);
    }
    assert_eq!(map.values(&index, "labels", 100, &NoProgress).unwrap().names.len(), 12);
    assert!(map.values(&index, "nothing", 9, &NoProgress).unwrap().values.iter().all(|v| *v == MapValues::NONE));

    // A document that is deleted is on the map, but no answer.
    let mut writer = index.writer().unwrap();
    writer.delete(&DocId::Int(7)).unwrap();
    writer.commit(&NoProgress).unwrap();
    writer.close(&NoProgress).unwrap();
    index.reload(&NoProgress).unwrap();
    let documents = map.documents(&index, &known, &NoProgress).unwrap();
    assert!(documents[0].is_none() && documents[1].is_some());
    assert_eq!(map.find(&index, &ids[..1], &NoProgress).unwrap(), [None]);
}

#[test]
fn an_area_is_an_exact_filter() {
    let dir = tempfile::tempdir().unwrap();
    let index = index(&dir, 600, 3);
    let map = make(&index, &config(), &NoProgress).unwrap();
    let (mut xs, mut ys) = (map.x.clone(), map.y.clone());
    xs.sort_unstable();
    ys.sort_unstable();
    let (x, y) = (f64::from(xs[300]), f64::from(ys[300]));
    let quarter = [[-1.0, -1.0], [x, -1.0], [x, y], [-1.0, y]];
    let inside = |i: usize| f64::from(map.x[i]) < x && f64::from(map.y[i]) < y;
    let expected = (0..600).filter(|&i| inside(i)).count();
    let subset = map.inside(&quarter, &NoProgress).unwrap();
    assert!(expected > 50 && subset.len() == expected, "{} {expected}", subset.len());
    assert_eq!(index.count_within(None, Some(&subset), &NoProgress).unwrap(), expected);
    let class = |i: usize| u64::from(map.places[i]) % CLASSES;
    let ones = (0..600).filter(|&i| inside(i) && class(i) == 1).count();
    assert_eq!(index.count_within(Some("class:1"), Some(&subset), &NoProgress).unwrap(), ones);
    // A polygon that crosses itself leaves out what it covers twice.
    let twice = map.inside(&[&quarter[..], &quarter[..]].concat(), &NoProgress).unwrap();
    assert_eq!(twice.len(), 0);
    for (polygon, says) in
        [(vec![[0.0, 0.0]; 2], "3 to"), (vec![[f64::NAN, 0.0]; 3], "corner"), (vec![[1e9, 0.0]; 3], "corner")]
    {
        assert!(map.inside(&polygon, &NoProgress).unwrap_err().to_string().contains(says));
    }
}

/// Interrupted from the question after so many on.
struct Patience(AtomicUsize);

impl Progress for Patience {
    fn interrupted(&self) -> bool {
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_err()
    }
}

#[test]
fn counts_facets_and_questions_to_a_map_end_when_nobody_waits() {
    let dir = tempfile::tempdir().unwrap();
    let index = index(&dir, 9000, 3);
    let map = make(&index, &config(), &NoProgress).unwrap();
    let all = [[-1.0, -1.0], [70_000.0, -1.0], [70_000.0, 70_000.0], [-1.0, 70_000.0]];
    let subset = map.inside(&all, &NoProgress).unwrap();
    let ids = [7, 599, 1234].map(DocId::Int);
    type Ask<'a> = Box<dyn Fn(&dyn Progress) -> Result<()> + 'a>;
    let asks: [(&str, Ask); 7] = [
        ("count", Box::new(|p| index.count_within(Some("class:1"), None, p).map(drop))),
        ("count in an area", Box::new(|p| index.count_within(None, Some(&subset), p).map(drop))),
        ("facets", Box::new(|p| index.facets(Some("class:1"), 5, p).map(drop))),
        ("area", Box::new(|p| map.inside(&all, p).map(drop))),
        ("values", Box::new(|p| map.values(&index, "class", 3, p).map(drop))),
        ("documents", Box::new(|p| map.documents(&index, &[0, 1, 2], p).map(drop))),
        ("places", Box::new(|p| map.find(&index, &ids, p).map(drop))),
    ];
    for (what, ask) in asks {
        // Each looks several times: once for each segment, part of the map or document.
        for looks in 0..3 {
            let ended = ask(&Patience(AtomicUsize::new(looks)));
            assert!(matches!(ended, Err(Error::Interrupted)), "{what} after {looks} looks: {ended:?}");
        }
        ask(&Patience(AtomicUsize::new(1000))).unwrap();
    }
}

#[test]
fn small_and_empty_indexes_have_maps_or_an_answer() {
    let dir = tempfile::tempdir().unwrap();
    for count in [1, 2, 3, 9] {
        let index = index(&dir, count, 1);
        let map = make(&index, &MapConfig::default(), &NoProgress).unwrap();
        assert_eq!(map.len() as u64, count);
        assert_eq!(&map.to_bytes()[..8], b"MICPQMAP");
        assert_eq!(map.to_bytes().len() as u64, 24 + 6 * count);
    }
    let empty = Index::create(&dir.path().join("empty"), &model(), IndexConfig::default()).unwrap();
    let said = make(&empty, &MapConfig::default(), &NoProgress).unwrap_err().to_string();
    assert!(said.contains("no documents"), "{said}");
    let said = make(&empty, &MapConfig { topics: Some(0), seed: 1 }, &NoProgress).unwrap_err().to_string();
    assert!(said.contains("topics is 0"), "{said}");
    let codes = Index::create(
        &dir.path().join("codes"),
        &model(),
        IndexConfig { store: Store::Codes, ..IndexConfig::default() },
    );
    let codes = codes.unwrap();
    let mut writer = codes.writer().unwrap();
    let source = index(&dir, 60, 1).walk().unwrap();
    for i in 0..60 {
        let record = source.get(i).unwrap();
        let code = record.code.clone();
        writer.add(&record.into(), &code).unwrap();
    }
    writer.commit(&NoProgress).unwrap();
    writer.close(&NoProgress).unwrap();
    codes.reload(&NoProgress).unwrap();
    assert_eq!(make(&codes, &config(), &NoProgress).unwrap().topics[3].name, "topic 3");
}

#[test]
fn a_file_of_html_holds_the_map_and_no_markup_of_documents() {
    use std::io::Read;

    let dir = tempfile::tempdir().unwrap();
    let index = index(&dir, 300, 1);
    let path = dir.path().join("map.html");
    let config = HtmlMapConfig {
        map: config(),
        title: "A <b>map</b> of {{data}}".into(),
        titles: 100,
        attributes: vec!["class".into()],
    };
    let written = write_html(&index, &path, &config, &NoProgress).unwrap();
    let html = std::fs::read_to_string(&path).unwrap();
    assert_eq!((written.documents, written.titles, written.bytes), (300, 100, html.len() as u64));
    assert!(html.contains("<title>A &#60;b&#62;map&#60;/b&#62; of &#123;&#123;data&#125;&#125;</title>"));
    assert!(!html.contains("{{") && !html.contains("story number"), "nothing of a document is in the clear");
    assert_eq!(html.matches("</script>").count(), 2);
    assert!(!html.contains("\nexport ") && !html.contains("\nimport "));
    let data = html.split("type=\"text/plain\">").nth(1).unwrap().split('<').next().unwrap();
    let packed = base64::Engine::decode(&base64::prelude::BASE64_STANDARD, data).unwrap();
    let mut payload = Vec::new();
    flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut payload).unwrap();
    let size = |at: usize| u32::from_le_bytes(payload[at..at + 4].try_into().unwrap()) as usize;
    let map = make(&index, &config.map, &NoProgress).unwrap();
    assert_eq!(payload[8..8 + size(4)], map.to_bytes());
    assert_eq!(payload.len(), 8 + size(4) + 2 * 300 + size(0));
    let about: serde_json::Value = serde_json::from_slice(&payload[payload.len() - size(0)..]).unwrap();
    let id = u64::from(map.places[5]);
    assert_eq!(about["documents"][5], serde_json::json!([id, format!("word{} story number {id} <b>", id % CLASSES)]));
    let unknown = HtmlMapConfig { attributes: vec!["nowhere".into()], ..config };
    let said = write_html(&index, &path, &unknown, &NoProgress).unwrap_err().to_string();
    assert!(said.contains("\"nowhere\"") && said.contains("class"), "{said}");
}

#[test]
fn a_map_is_kept_with_the_index_it_is_of() {
    let dir = tempfile::tempdir().unwrap();
    let index = index(&dir, 600, 2);
    assert!(kept(&index).unwrap().is_none());
    let (commit, map) = (index.commit_number(), make(&index, &config(), &NoProgress).unwrap());
    keep(&index, &map, commit).unwrap();
    let open = || Index::open(index.dir(), &NoProgress).unwrap();
    assert_eq!(kept(&open()).unwrap(), Some((commit, map.clone())));
    assert_eq!(open().commit_number(), commit, "it is told that the map is of the last commit");
    // A later commit: the map is that of the commit it was made of.
    let mut writer = index.writer().unwrap();
    writer.delete(&DocId::Int(7)).unwrap();
    writer.commit(&NoProgress).unwrap();
    writer.close(&NoProgress).unwrap();
    assert_eq!(kept(&open()).unwrap(), Some((commit, map.clone())));
    assert_ne!(open().commit_number(), commit);
    // Another index numbers its documents itself.
    let copy = dir.path().join("copy");
    crate::index::backup(index.dir(), &copy, crate::index::CopyConfig::default(), &NoProgress).unwrap();
    assert!(!copy.join("map").exists());
    let file = index.dir().join("map/last");
    let good = std::fs::read(&file).unwrap();
    std::fs::create_dir(copy.join("map")).unwrap();
    std::fs::write(copy.join("map/last"), &good).unwrap();
    assert!(kept(&Index::open(&copy, &NoProgress).unwrap()).unwrap().is_none());
    // A smaller map takes its place.
    let small = DocumentMap::new(vec![[1, 2]], vec![NO_TOPIC], vec![3], Vec::new(), Vec::new());
    keep(&index, &small, 9).unwrap();
    assert_eq!(kept(&index).unwrap(), Some((9, small)));
    // Any damage is an error, and no part of a map.
    for at in (0..good.len()).step_by(good.len() / 50).chain([good.len() - 1]) {
        let mut bad = good.clone();
        bad[at] ^= 4;
        std::fs::write(&file, &bad).unwrap();
        let said = kept(&index).unwrap_err().to_string();
        assert!(said.contains("map/last") && said.contains("make the map anew"), "{at}: {said}");
        let told = crate::index::verify(index.dir(), &NoProgress).unwrap();
        assert_eq!(told.iter().map(|problem| &problem.path).collect::<Vec<_>>(), [&file], "{at}");
    }
    for length in [0, 8, 15, 16, 20, 100, good.len() - 1] {
        std::fs::write(&file, &good[..length]).unwrap();
        assert!(kept(&index).is_err(), "{length}");
    }
    // The folder is a part of the index: one that replaces it may take its place.
    let config = IndexConfig { replace: true, ..IndexConfig::default() };
    assert!(kept(&Index::create(index.dir(), &model(), config).unwrap()).unwrap().is_none());
}
