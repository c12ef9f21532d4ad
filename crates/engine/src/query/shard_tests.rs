//! Shards against one index that has all documents.

use std::collections::BTreeMap;
use std::path::Path;

use proptest::prelude::*;

use super::tests::{WIDTH, document, embedding, model};
use super::*;
use crate::corpus::DocId;
use crate::index::{Index, IndexConfig, IndexWriter, RerankVectors};
use crate::shards::{FORMAT, Routing, Shard, ShardManifest};
use crate::topics::CodewordTerms;
use crate::{Matrix, NoProgress};

/// One index and the same documents in shards.
pub(super) struct Pair {
    dir: tempfile::TempDir,
    one: Searcher,
    sharded: Searcher,
}

#[derive(Clone, Debug)]
enum Step {
    /// Adds or replaces a document with the text and the embedding of another number.
    Put(u64, u64),
    Delete(u64),
    Commit,
    Compact,
}

impl Pair {
    fn new(shards: usize, steps: &[Step]) -> Pair {
        let dir = tempfile::tempdir().unwrap();
        let config = || IndexConfig { rerank_vectors: RerankVectors::Int8, ..IndexConfig::default() };
        let one = Index::create(&dir.path().join("one"), &model(), config()).unwrap();
        let out = dir.path().join("out");
        std::fs::create_dir(&out).unwrap();
        let names: Vec<String> = (0..shards).map(|i| format!("shard-{i}")).collect();
        let parts: Vec<Index> =
            names.iter().map(|name| Index::create(&out.join(name), &model(), config()).unwrap()).collect();
        history(&one, &parts, steps);
        Pair::open(dir, one.dir(), &names)
    }

    /// An index, and its documents copied into shards.
    pub fn copied(dir: tempfile::TempDir, one: &Index, shards: usize) -> Pair {
        let names: Vec<String> = (0..shards).map(|i| format!("shard-{i}")).collect();
        for (number, name) in names.iter().enumerate() {
            let config = IndexConfig {
                rerank_vectors: one.rerank_vectors(),
                language: one.language(),
                chunk: one.chunk(),
                ..IndexConfig::default()
            };
            let part = Index::create(&dir.path().join("out").join(name), &model(), config).unwrap();
            let mut writer = part.writer().unwrap();
            writer.copy_from(one, |id| ShardManifest::route(id, shards) == number, &NoProgress).unwrap();
            writer.commit(&NoProgress).unwrap();
            writer.close(&NoProgress).unwrap();
        }
        Pair::open(dir, one.dir(), &names)
    }

    fn open(dir: tempfile::TempDir, one: &Path, names: &[String]) -> Pair {
        let out = dir.path().join("out");
        let shard = |name: &String| Shard { name: name.clone(), documents: 0, checksum: String::new() };
        let shards = names.iter().map(shard).collect();
        let manifest =
            ShardManifest { format: FORMAT, routing: Routing::Crc32, model: model().fingerprint().into(), shards };
        manifest.write(&out).unwrap();
        let open = |dir: &Path| Searcher::open(dir, &NoProgress).unwrap();
        Pair { one: open(one), sharded: open(&out), dir }
    }

    /// The answers of one index, of the shards in this process, and of the shards behind calls in JSON.
    fn ask(&self, query: &Query, config: &SearchConfig) -> [crate::Result<Answer>; 3] {
        let queries = std::slice::from_ref(query);
        let first = |answers: Vec<Answer>| answers.into_iter().next().unwrap();
        [
            self.one.search(queries, config, &NoProgress).map(first),
            self.sharded.search(queries, config, &NoProgress).map(first),
            self.remote().search(self.deliver(), queries, config, &NoProgress).map(first),
        ]
    }

    fn remote(&self) -> RemoteSearcher {
        let index = self.one.index();
        RemoteSearcher::new(index.model().clone(), index.rerank_vectors(), index.store(), index.language())
    }

    /// The shards behind calls in JSON.
    fn deliver(&self) -> impl Fn(Vec<Delivery>) -> crate::Result<Replies> + Sync {
        let views: Vec<ShardView> = self.sharded.indexes().iter().map(|index| ShardView::new(index).unwrap()).collect();
        move |calls| {
            let mut replies = BTreeMap::new();
            for (shard, call) in calls {
                for (number, view) in views.iter().enumerate() {
                    if shard.is_none_or(|shard| shard == number) {
                        replies.insert(number, view.answer(&call)?);
                    }
                }
            }
            Ok(replies)
        }
    }

    /// Compares page after page; cursors differ where they name commits.
    pub fn compare(&self, query: &Query, config: &SearchConfig, pages: usize) {
        let mut configs = [config.clone(), config.clone(), config.clone()];
        for page in 0..pages {
            let mut answers = Vec::new();
            for (i, config) in configs.iter().enumerate() {
                let answer = self.ask(query, config).into_iter().nth(i).unwrap();
                answers.push(answer.unwrap());
            }
            assert_eq!(answers[0].hits, answers[1].hits, "page {page} of {query:?} {config:?}");
            assert_eq!(answers[0].hits, answers[2].hits, "page {page} of {query:?} {config:?}, over JSON");
            for (config, answer) in configs.iter_mut().zip(&answers) {
                assert_eq!(answer.next.is_some(), answers[0].next.is_some());
                config.after = answer.next;
            }
            if answers[0].next.is_none() {
                return;
            }
        }
    }
}

impl Pair {
    /// Compares what is asked about all documents.
    fn compare_surveys(&self) {
        let (one, survey) = (self.one.index(), self.sharded.survey().unwrap());
        assert_eq!(survey.documents().unwrap(), one.len());
        for filter in [None, Some("year:[1982 TO 1986]"), Some("NOT labels:wheat"), Some("yaer:1"), Some("year:[")] {
            for most in [1, 3, 100] {
                match (one.facets(filter, most, &NoProgress), survey.facets(filter, most)) {
                    (Ok(expected), Ok(found)) => assert_eq!(found, expected, "{filter:?}"),
                    (expected, found) => {
                        assert_eq!(found.unwrap_err().to_string(), expected.unwrap_err().to_string());
                    }
                }
            }
        }
        let usage = one.usage(&NoProgress).unwrap();
        assert_eq!(survey.usage().unwrap(), usage);
        for (codebook, counts) in usage.iter().enumerate() {
            let codeword = counts.iter().position(|count| *count > 0).unwrap_or(0);
            let expected = members(one, codebook, codeword, None, 9).unwrap();
            assert_eq!(survey.members(codebook, codeword, 9).unwrap(), expected);
        }
        let terms = CodewordTerms::of_shards(&survey, one.language(), 5).unwrap();
        assert_eq!(terms, CodewordTerms::of(one, 5, &NoProgress).unwrap());
        self.compare_texts(|documents| (0..documents).step_by(3).collect());
    }

    /// Compares the documents at some places in the order of insertion.
    fn compare_texts(&self, places: impl Fn(usize) -> Vec<usize>) {
        let walk = self.one.index().walk().unwrap();
        let record = |place| walk.get(place).map(|record| (record.code, record.text)).unwrap();
        let expected: Vec<CodeAndText> = places(walk.len()).into_iter().map(record).collect();
        let mut found = Vec::new();
        self.sharded.survey().unwrap().texts(&places, |texts| found.extend(texts)).unwrap();
        assert_eq!(found, expected);
    }
}

/// The same history in one index and in shards, whose sequences are those of the one index.
fn history(one: &Index, parts: &[Index], steps: &[Step]) {
    let mut writer = one.writer().unwrap();
    let mut writers: Vec<IndexWriter> = parts.iter().map(|part| part.writer().unwrap()).collect();
    let mut sequence = 0;
    for step in steps.iter().chain([&Step::Commit]) {
        match *step {
            Step::Put(id, content) => {
                let documents = [crate::corpus::Document { id: DocId::Int(id), ..document(content) }];
                let embeddings = Matrix::from_vec(WIDTH, embedding(content));
                writer.add_embeddings(&documents, &embeddings).unwrap();
                let owner = &mut writers[ShardManifest::route(&DocId::Int(id), parts.len())];
                owner.add_embeddings_at(&documents, &embeddings, &[sequence]).unwrap();
                sequence += 1;
            }
            Step::Delete(id) => {
                let id = DocId::Int(id);
                let owner = &mut writers[ShardManifest::route(&id, parts.len())];
                assert_eq!(writer.delete(&id).unwrap(), owner.delete(&id).unwrap());
            }
            Step::Commit => {
                for writer in writers.iter_mut().chain([&mut writer]) {
                    writer.commit(&NoProgress).unwrap();
                }
            }
            // Only the one index: merged segments must change no answer.
            Step::Compact => writer.compact(&NoProgress).unwrap(),
        }
    }
    for writer in writers.into_iter().chain([writer]) {
        writer.close(&NoProgress).unwrap();
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => (0u64..80, 0u64..400).prop_map(|(id, content)| Step::Put(id, content)),
        3 => (0u64..80).prop_map(Step::Delete),
        1 => Just(Step::Commit),
        1 => Just(Step::Compact),
    ];
    prop::collection::vec(step, 60..160)
}

fn keywords(text: &str, query: Query) -> Query {
    Query { keywords: Some(text.into()), ..query }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn shards_answer_as_one_index_after_any_history(steps in steps(), shards in 1usize..5, seed in 0u64..1000) {
        let pair = Pair::new(shards, &steps);
        prop_assert_eq!(pair.one.documents(), pair.sharded.documents());
        pair.compare_surveys();
        let living = pair.one.index().records(false).unwrap().next().map(|record| record.unwrap().id);
        let mut queries = vec![
            keywords("wheat cargo money grain", Query::vector(embedding(seed))),
            keywords("credit", Query::vector(embedding(seed + 1)).and(Like::Vector(embedding(seed + 2)), 0.4)),
        ];
        if let Some(id) = living {
            queries.push(keywords("number wheat", Query::document(id.clone())));
            queries.push(keywords("ships money", Query::vector(embedding(seed)).and(Like::Document(id), 2.0)));
        }
        let filter = Some("year:[1982 TO 1986] AND NOT text:credit".to_owned());
        let base = SearchConfig::default();
        let configs = [
            SearchConfig { k: 7, rerank: Rerank::Off, ..base.clone() },
            SearchConfig { k: 9, rerank: Rerank::First(12), explain: false, ..base.clone() },
            SearchConfig { k: 11, filter: filter.clone(), ..base.clone() },
            SearchConfig { k: 10, radius: Some(18.0), hybrid: 0.4, ..base.clone() },
            SearchConfig { k: 6, hybrid: 0.3, filter, snippets: true, ..base.clone() },
            SearchConfig { k: 8, hybrid: 1.0, snippets: true, documents: false, ..base.clone() },
        ];
        for query in &queries {
            for config in &configs {
                // A filter over no documents is refused by none of them, and an unknown attribute by all.
                let refused = pair.ask(query, config).map(|answer| answer.is_err());
                prop_assert!(refused[0] == refused[1] && refused[0] == refused[2], "{refused:?}");
                if !refused[0] {
                    pair.compare(query, config, 4);
                }
            }
        }
    }
}

#[test]
fn equal_scores_of_many_documents_are_cut_alike() {
    // 2,500 documents of two contents: equal codes, equal cosines, equal BM25 scores, more than a hybrid search fuses.
    let steps: Vec<Step> = (0..2500).map(|id| Step::Put(id, id % 2)).collect();
    let pair = Pair::new(3, &steps);
    let query = keywords("number", Query::vector(embedding(0)));
    for hybrid in [0.0, 0.5, 1.0] {
        pair.compare(&query, &SearchConfig { k: 300, hybrid, ..SearchConfig::default() }, 5);
    }
}

#[test]
fn a_sample_over_shards_is_that_of_one_index() {
    // More documents than travel together.
    let steps: Vec<Step> = (0..700).map(|id| Step::Put(id, id)).chain((0..20).map(|id| Step::Delete(7 * id))).collect();
    let pair = Pair::new(3, &steps);
    pair.compare_texts(|documents| (0..documents).collect());
    pair.compare_texts(|documents| vec![0, 1, documents / 2, documents - 1]);
    pair.compare_texts(|_| Vec::new());
}

#[test]
fn recall_over_shards_is_that_of_one_index() {
    let config = RecallConfig { queries: 30, k: 7, windows: 3, rerank: 40 };
    // Documents of equal content have equal codes and vectors; there are more of them than neighbours that are looked for.
    let steps: Vec<Step> = (0..1200).map(|id| Step::Put(id, id % 1000 % 300)).chain([Step::Delete(5)]).collect();
    let pair = Pair::new(3, &steps);
    let expected = pair.one.recall(&config, &NoProgress).unwrap();
    assert!(expected.recall > 0.0 && expected.recall < 1.0, "{expected:?}");
    assert_eq!(pair.remote().recall(pair.deliver(), &config).unwrap(), expected);
    let few = Pair::new(2, &(0..40).map(|id| Step::Put(id, id)).collect::<Vec<_>>());
    let refused = few.one.recall(&config, &NoProgress).unwrap_err().to_string();
    assert_eq!(few.remote().recall(few.deliver(), &config).unwrap_err().to_string(), refused);
}

#[test]
fn an_answer_of_two_commits_of_a_shard_is_refused() {
    let pair = Pair::new(2, &(0..40).map(|id| Step::Put(id, id)).collect::<Vec<_>>());
    let view = || ShardView::new(&pair.sharded.indexes()[0]).unwrap();
    let call = |commit: u64| format!(r#"{{"question": {{"texts": {{"commit": {commit}, "places": [0]}}}}}}"#);
    let commit = view().commit();
    assert!(view().answer(&call(commit)).is_ok());
    let refused = view().answer(&call(commit + 1)).unwrap_err();
    assert!(matches!(refused, crate::Error::Busy(_)), "{refused}");
}

#[test]
fn an_attribute_of_another_shard_is_known_and_a_misspelt_one_refused() {
    let pair = Pair::new(4, &[Step::Put(1, 1), Step::Put(2, 2)]);
    let config = |filter: &str| SearchConfig { filter: Some(filter.into()), ..SearchConfig::default() };
    pair.compare(&Query::vector(embedding(5)), &config("year:[1980 TO 1990]"), 1);
    for answer in pair.ask(&Query::vector(embedding(5)), &config("yaer:1981")) {
        assert!(answer.unwrap_err().to_string().contains("no document has an attribute"));
    }
    for answer in pair.ask(&Query::document(77), &SearchConfig::default()) {
        assert!(answer.unwrap_err().to_string().contains("document 77: is not in the index"));
    }
}

#[test]
fn documents_copied_to_other_shards_answer_alike() {
    let steps: Vec<Step> = (0..300).map(|i| Step::Put(i % 120, i)).collect();
    let pair = Pair::new(3, &steps);
    let out = pair.dir.path().join("more");
    let config = || IndexConfig { rerank_vectors: RerankVectors::Int8, ..IndexConfig::default() };
    let mut copied = 0;
    let copies: Vec<Index> = (0..5)
        .map(|number| {
            let index = Index::create(&out.join(number.to_string()), &model(), config()).unwrap();
            let mut writer = index.writer().unwrap();
            for from in pair.sharded.indexes() {
                let keep = |id: &DocId| ShardManifest::route(id, 5) == number;
                copied += writer.copy_from(from, keep, &NoProgress).unwrap();
            }
            writer.commit(&NoProgress).unwrap();
            writer.close(&NoProgress).unwrap();
            index
        })
        .collect();
    assert_eq!(copied, 120);
    let one: Vec<_> = pair.one.index().records(true).unwrap().map(Result::unwrap).collect();
    let mut all: Vec<_> = copies.iter().flat_map(|index| index.records(true).unwrap()).map(Result::unwrap).collect();
    all.sort_by_key(|record| record.sequence);
    assert_eq!(one, all);
    for record in one {
        let copy = copies[ShardManifest::route(&record.id, 5)].vector(&record.id).unwrap();
        assert_eq!(copy, pair.one.index().vector(&record.id).unwrap(), "bit for bit");
    }
}

#[test]
fn a_manifest_that_does_not_fit_is_refused() {
    let pair = Pair::new(2, &[Step::Put(1, 1)]);
    let out = pair.dir.path().join("out");
    let good = ShardManifest::read(&out).unwrap();
    let refused = |manifest: &ShardManifest| {
        std::fs::write(ShardManifest::path(&out), serde_json::to_string(manifest).unwrap()).unwrap();
        Searcher::open(&out, &NoProgress).err().expect("refused").to_string()
    };
    assert!(refused(&ShardManifest { model: "0".into(), ..good.clone() }).contains("another model"));
    assert!(refused(&ShardManifest { format: 9, ..good.clone() }).contains("has format 9"));
    assert!(refused(&ShardManifest { shards: Vec::new(), ..good.clone() }).contains("lists no shard"));
    let mut outside = good.clone();
    outside.shards[0].name = "../one".into();
    assert!(refused(&outside).contains("not a name beside it"));
    std::fs::write(ShardManifest::path(&out), "{").unwrap();
    assert!(Searcher::open(&out, &NoProgress).is_err());
}

#[test]
fn sequences_of_a_shard_must_rise() {
    let pair = Pair::new(1, &[Step::Put(1, 1), Step::Put(2, 2)]);
    let mut writer = pair.sharded.index().writer().unwrap();
    let documents = [document(3), document(4)];
    let embeddings = Matrix::from_vec(WIDTH, [embedding(3), embedding(4)].concat());
    for sequences in [&[1, 5][..], &[7, 7], &[9, 8], &[9]] {
        let refused = writer.add_embeddings_at(&documents, &embeddings, sequences).unwrap_err();
        assert!(refused.to_string().contains("from 2 up"), "{refused}");
    }
    writer.add_embeddings_at(&documents, &embeddings, &[5, 900]).unwrap();
    writer.commit(&NoProgress).unwrap();
    assert_eq!(writer.next_sequence().unwrap(), 901);
}

#[test]
fn a_page_of_a_remote_shard_comes_with_the_candidates() {
    let pair = Pair::new(2, &(0..200).map(|i| Step::Put(i, i)).collect::<Vec<_>>());
    let index = pair.one.index();
    let remote = RemoteSearcher::new(index.model().clone(), index.rerank_vectors(), index.store(), index.language());
    let views: Vec<ShardView> = pair.sharded.indexes().iter().map(|index| ShardView::new(index).unwrap()).collect();
    let rounds = std::sync::atomic::AtomicUsize::new(0);
    let deliver = |calls: Vec<Delivery>| {
        rounds.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut replies = std::collections::BTreeMap::new();
        for (shard, call) in calls {
            let all = (0..views.len()).filter(|number| shard.is_none_or(|shard| shard == *number));
            for number in all {
                replies.insert(number, views[number].answer(&call)?);
            }
        }
        Ok(replies)
    };
    for (config, expected) in [
        (SearchConfig::default(), 1),
        (SearchConfig { rerank: Rerank::Off, ..SearchConfig::default() }, 1),
        (SearchConfig { documents: false, ..SearchConfig::default() }, 1),
        // So many that most of what the shards sent would not be used.
        (SearchConfig { k: 100, ..SearchConfig::default() }, 2),
    ] {
        rounds.store(0, std::sync::atomic::Ordering::Relaxed);
        let query = [Query::vector(embedding(5))];
        let answer = remote.search(deliver, &query, &config, &NoProgress).unwrap().remove(0);
        assert_eq!(answer.hits, pair.one.search(&query, &config, &NoProgress).unwrap()[0].hits);
        assert_eq!(rounds.load(std::sync::atomic::Ordering::Relaxed), expected, "{config:?}");
    }
}

#[test]
fn an_answer_has_no_statistics_of_another_commit() {
    let pair = Pair::new(1, &[Step::Put(1, 1), Step::Put(2, 2)]);
    let index = pair.sharded.index();
    let remote = RemoteSearcher::new(index.model().clone(), index.rerank_vectors(), index.store(), index.language());
    // A process that was started again between two calls opens the last commit.
    let deliver = |calls: Vec<Delivery>| {
        let reply = ShardView::new(index).unwrap().answer(&calls[0].1)?;
        let mut writer = index.writer().unwrap();
        writer.delete(&DocId::Int(1)).unwrap();
        writer.commit(&NoProgress).unwrap();
        writer.close(&NoProgress).unwrap();
        index.reload(&NoProgress).unwrap();
        Ok(std::collections::BTreeMap::from([(0, reply)]))
    };
    let query = keywords("number", Query::vector(embedding(1)));
    let config = SearchConfig { hybrid: 0.5, ..SearchConfig::default() };
    let refused = remote.search(deliver, &[query], &config, &NoProgress).unwrap_err();
    assert!(matches!(refused, crate::Error::Busy(_)), "{refused}");
}

#[test]
fn a_folder_of_shards_is_verified() {
    use crate::shards::{checksum, verify};

    let pair = Pair::new(3, &(0..60).map(|i| Step::Put(i, i)).collect::<Vec<_>>());
    let out = pair.dir.path().join("out");
    let told =
        |problems: Vec<crate::index::Problem>| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    assert_eq!(told(verify(&out, &NoProgress).unwrap()), "");
    // A document in a shard that does not own it.
    let id = (0..60).find(|id| ShardManifest::route(&DocId::Int(*id), 3) == 1).unwrap();
    let wrong = crate::corpus::Document { id: DocId::Int(id), ..document(5) };
    let mut writer = pair.sharded.indexes()[0].writer().unwrap();
    let before = checksum(&out.join("shard-0")).unwrap();
    writer.add_embeddings(&[wrong], &Matrix::from_vec(WIDTH, embedding(5))).unwrap();
    writer.commit(&NoProgress).unwrap();
    writer.close(&NoProgress).unwrap();
    assert_ne!(checksum(&out.join("shard-0")).unwrap(), before);
    let found = told(verify(&out, &NoProgress).unwrap());
    assert!(
        found.contains("shard-0: has 1 documents that belong to other shards") && found.contains(&id.to_string()),
        "{found}"
    );
    // A damaged file, and a shard that is gone.
    let segment = std::fs::read_dir(out.join("shard-2").join("store")).unwrap();
    let file = segment.map(|entry| entry.unwrap().path()).find(|path| path.extension().is_some_and(|e| e == "fast"));
    let file = file.unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[7] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    assert!(told(verify(&out, &NoProgress).unwrap()).contains("shard-2"));
    std::fs::remove_dir_all(out.join("shard-1")).unwrap();
    assert!(told(verify(&out, &NoProgress).unwrap()).contains("shard-1: is missing"));
}
