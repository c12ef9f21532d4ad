//! Damaged files: no answer is computed from them, and no operation rewrites them as sound ones.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, SystemTime};

use kernels::dropout::mix;

use super::tests::*;
use super::*;
use crate::chunk::ChunkSizes;
use crate::corpus::Document;
use crate::query::SearchConfig;
use crate::query::{Query, Searcher};
use crate::{Matrix, NoProgress};

fn add(index: &Index, numbers: std::ops::Range<u64>) {
    let documents: Vec<Document> = numbers.clone().map(document).collect();
    // Where there are chunks, most documents have several, which overlap by a blank.
    let chunks = |i: u64, text: &str| match (index.chunk(), text.match_indices(' ').nth(1)) {
        (Some(_), Some((blank, _))) if !i.is_multiple_of(4) => vec![0..blank + 1, blank..text.len()],
        _ => std::iter::once(0..text.len()).collect(),
    };
    let split: Vec<_> = documents.iter().zip(numbers).map(|(d, i)| (i, d, chunks(i, &d.text))).collect();
    let row = |i: u64, chunk: usize| embeddings(1, mix(5, i + 1000 * chunk as u64) % 40).as_slice().to_vec();
    let rows = split.iter().flat_map(|(i, _, chunks)| (0..chunks.len()).flat_map(|chunk| row(*i, chunk))).collect();
    let split: Vec<SplitDocument> = split.into_iter().map(|(_, document, chunks)| (document, chunks)).collect();
    let mut writer = index.writer().unwrap();
    writer.add_chunks(&split, &Matrix::from_vec(4, rows)).unwrap();
    writer.commit(&NoProgress).unwrap();
}

/// Two segments with every kind of data: texts, labels, attributes, deletes and rerank vectors.
fn full(dir: &Path) -> PathBuf {
    filled(dir, None)
}

fn filled(dir: &Path, chunk: Option<ChunkSizes>) -> PathBuf {
    let path = dir.join("index");
    let model = model(CodeShape::micpq(32).unwrap(), 4);
    let config = IndexConfig { rerank_vectors: RerankVectors::Int8, chunk, ..IndexConfig::default() };
    let index = Index::create(&path, &model, config).unwrap();
    // How a writer's threads divide the documents is chance, and a small segment that loses many is rewritten at once. So the
    // deletions are in one segment of all that are there, and the others have none.
    add(&index, 0..60);
    index.writer().unwrap().compact(&NoProgress).unwrap();
    add(&index, 60..100);
    let mut writer = index.writer().unwrap();
    for i in (0..60).step_by(5) {
        writer.delete(&document(i).id).unwrap();
    }
    writer.commit(&NoProgress).unwrap();
    writer.close(&NoProgress).unwrap();
    clean(&path);
    path
}

/// A file of the last commit with this extension. Files of segments already merged may still exist and are skipped.
fn first(path: &Path, ending: &str) -> PathBuf {
    let metas = Index::open(path, &NoProgress).unwrap().inner.tantivy.load_metas().unwrap();
    let mut names: Vec<PathBuf> = metas.list_segment_files().into_iter().collect();
    names.sort();
    let mut paths = names.into_iter().map(|name| path.join(STORE).join(name));
    paths.find(|p| p.extension().is_some_and(|e| e == ending) && p.exists()).unwrap()
}

fn told_of(file: &Path, result: Result<impl std::fmt::Debug>) {
    let name = file.file_name().unwrap().to_str().unwrap();
    let said = result.expect_err(name).to_string();
    assert!(said.contains(name) && said.contains("damaged") && said.contains("restore the index"), "{name}: {said}");
}

#[test]
fn damaged_files_are_not_merged_migrated_or_backed_up() {
    let dir = scratch();
    let path = full(dir.path());
    for ending in ["fast", "store", "term", "idx", "pos", "fieldnorm", "del"] {
        let file = first(&path, ending);
        let whole = std::fs::read(&file).unwrap();
        flip(&file, 35);
        told_of(&file, Index::open(&path, &NoProgress).and_then(|index| index.writer()?.compact(&NoProgress)));
        let other = model(CodeShape::micpq(64).unwrap(), 5);
        let mut encode = |texts: &[&str]| Ok(embeddings(texts.len(), 3));
        told_of(&file, migrate(&path, &other, &mut encode, &MigrateConfig::default(), &NoProgress));
        for own_files in [false, true] {
            let config = CopyConfig { own_files, ..CopyConfig::default() };
            told_of(&file, backup(&path, &dir.path().join("copy"), config, &NoProgress));
            assert!(!dir.path().join("copy").exists());
        }
        // The damage is still detected.
        let problems = verify(&path, &NoProgress).unwrap();
        assert!(problems.iter().any(|p| p.path == file), "{}: {problems:?}", file.display());
        std::fs::write(&file, whole).unwrap();
        clean(&path);
    }
    let index = Index::open(&path, &NoProgress).unwrap();
    index.writer().unwrap().compact(&NoProgress).unwrap();
    clean(&path);
}

#[test]
fn background_merges_skip_a_damaged_segment() {
    let dir = scratch();
    let path = dir.path().join("index");
    let model = model(CodeShape::micpq(32).unwrap(), 4);
    let index = Index::create(&path, &model, IndexConfig::default()).unwrap();
    let write = |index: &Index, i: u64| {
        let mut writer = index.writer().unwrap();
        writer.add(&document(i), &code(&model, i)).unwrap();
        writer.commit(&NoProgress).unwrap();
        writer.close(&NoProgress).unwrap();
    };
    (0..7).for_each(|i| write(&index, i));
    assert_eq!(index.info().unwrap().segments, 7);
    drop(index);
    let file = first(&path, "store");
    flip(&file, 35);
    // The eighth segment makes a merge due, and so does the ninth.
    let index = Index::open(&path, &NoProgress).unwrap();
    write(&index, 7);
    write(&index, 8);
    let warnings = index.warnings();
    assert!(warnings.iter().any(|w| w.contains(&*file.file_name().unwrap().to_string_lossy())), "{warnings:?}");
    let problems = verify(&path, &NoProgress).unwrap();
    assert!(problems.iter().any(|p| p.path == file), "{problems:?}");
    // By now there are eight sound segments; they are merged without the damaged one.
    assert_eq!(index.info().unwrap().segments, 2);
    flip(&file, 35);
    clean(&path);
    assert_eq!(Index::open(&path, &NoProgress).unwrap().len(), 9);
}

type Question = (&'static str, Box<dyn Fn(&Index) -> Result<String>>);

/// Every kind of read request.
fn questions() -> Vec<Question> {
    fn text(value: impl std::fmt::Debug) -> String {
        format!("{value:?}")
    }
    let search =
        |config: SearchConfig| move |index: &Index| index.search(&tables(index.model(), 2, 7), &config).map(text);
    let ask = |config: SearchConfig| {
        move |index: &Index| {
            let like = embeddings(1, 11).as_slice().to_vec();
            let query = Query { keywords: Some("ships report money".into()), ..Query::vector(like) };
            let answers = Searcher::new(index.clone(), None)?.search(&[query], &config, &NoProgress)?;
            Ok(text(answers.into_iter().map(|a| a.hits).collect::<Vec<_>>()))
        }
    };
    let base = SearchConfig { k: 12, ..SearchConfig::default() };
    let filter = Some("places:japan AND year:[1981 TO 1988] AND text:report".to_string());
    vec![
        ("search", Box::new(search(base.clone()))),
        ("search with a filter", Box::new(search(SearchConfig { filter: filter.clone(), ..base.clone() }))),
        ("re-ranked", Box::new(ask(base.clone()))),
        ("hybrid", Box::new(ask(SearchConfig { hybrid: 0.5, snippets: true, explain: true, ..base.clone() }))),
        ("hybrid with a filter", Box::new(ask(SearchConfig { hybrid: 0.5, filter, ..base }))),
        ("count", Box::new(|index| index.count("author:\"writer 3\" OR labels:acq").map(text))),
        ("facets", Box::new(|index| index.facets(Some("draft:true"), 5, &NoProgress).map(text))),
        (
            "get",
            Box::new(|index| {
                [4u64, 5, 77].iter().map(|&i| index.get(&document(i).id)).collect::<Result<Vec<_>>>().map(text)
            }),
        ),
        ("export", Box::new(|index| index.records(true)?.collect::<Result<Vec<_>>>().map(text))),
        ("statistics", Box::new(|index| index.stats(&NoProgress).map(|s| text((s.spread, s.labels, s.attributes))))),
        ("usage", Box::new(|index| index.usage(&NoProgress).map(text))),
        ("length", Box::new(|index| Ok(text(index.len())))),
    ]
}

/// Sends every request to an index with one changed file. Returns how many were refused.
fn right_or_refused(path: &Path, expected: &[String], what: &str) -> usize {
    let asked = |(name, question): &Question, expected: &String| {
        // Each request opens its own index, so that no answer is right only because an earlier request ran a check.
        let answer =
            catch_unwind(AssertUnwindSafe(|| Index::open(path, &NoProgress).and_then(|index| question(&index))));
        match answer.unwrap_or_else(|_| panic!("{what}: a panic reached the asker of \"{name}\"")) {
            Ok(answer) => {
                assert_eq!(answer, *expected, "{what}: wrong answer to \"{name}\"");
                0
            }
            Err(e) => {
                let said = e.to_string();
                assert!(said.contains(&*path.to_string_lossy()) || said.contains("store"), "{what}: {said}");
                1
            }
        }
    };
    questions().iter().zip(expected).map(|(question, expected)| asked(question, expected)).sum()
}

#[test]
fn an_answer_from_damaged_files_is_right_or_an_error() {
    damage_every_file(None);
}

#[test]
fn an_answer_from_damaged_files_of_an_index_with_chunks_is_right_or_an_error() {
    damage_every_file(Some(ChunkSizes { tokens: 16, overlap: 1 }));
}

fn damage_every_file(chunk: Option<ChunkSizes>) {
    let dir = scratch();
    let path = filled(dir.path(), chunk);
    let index = Index::open(&path, &NoProgress).unwrap();
    let expected: Vec<String> = questions().iter().map(|(_, question)| question(&index).unwrap()).collect();
    drop(index);
    let (mut tried, mut refused) = (0, 0);
    for file in all_files(&path).iter().filter(|f| std::fs::metadata(f).unwrap().len() > 0) {
        let whole = std::fs::read(file).unwrap();
        let bits = whole.len() * 8;
        for n in 0..12u64 {
            let bit = mix(tried, n) as usize % bits;
            flip(file, bit);
            refused += right_or_refused(&path, &expected, &format!("bit {bit} of {}", file.display()));
            std::fs::write(file, &whole).unwrap();
            tried += 1;
        }
        for n in 0..3u64 {
            let mut zeroed = whole.clone();
            let (at, len) = (mix(tried, n) as usize % whole.len(), whole.len().min(512));
            zeroed[at..(at + len).min(whole.len())].fill(0);
            std::fs::write(file, &zeroed).unwrap();
            refused += right_or_refused(&path, &expected, &format!("zeros from {at} on in {}", file.display()));
            std::fs::write(file, &whole).unwrap();
            tried += 1;
        }
    }
    assert!(tried > 300 && refused > 300, "{tried} files damaged, {refused} answers refused");
    assert_eq!(right_or_refused(&path, &expected, "nothing"), 0);
    clean(&path);
}

#[test]
fn a_changed_digit_in_the_list_of_segments_is_told() {
    let dir = scratch();
    let path = full(dir.path());
    let index = Index::open(&path, &NoProgress).unwrap();
    let expected: Vec<String> = questions().iter().map(|(_, question)| question(&index).unwrap()).collect();
    drop(index);
    let file = path.join(STORE).join(SEGMENTS);
    let whole = std::fs::read(&file).unwrap();
    // Digits of segment ids are names of files: one is enough.
    let in_id =
        |at: usize| whole[..at].iter().rev().take_while(|b| **b != b'"').all(|b| b.is_ascii_hexdigit() || *b == b'-');
    let digits: Vec<usize> = (0..whole.len()).filter(|&at| whole[at].is_ascii_digit() && !in_id(at)).collect();
    assert!(digits.len() > 30, "{digits:?}");
    for at in digits {
        for bit in 0..4 {
            let mut changed = whole.clone();
            changed[at] ^= 1 << bit;
            if !changed[at].is_ascii_digit() {
                continue;
            }
            std::fs::write(&file, &changed).unwrap();
            let what = format!("{} for {} at {at}", char::from(changed[at]), char::from(whole[at]));
            right_or_refused(&path, &expected, &what);
            // No writer makes it permanent.
            let compacted = Index::open(&path, &NoProgress).and_then(|index| index.writer()?.compact(&NoProgress));
            assert!(compacted.is_err(), "{what}: compacted");
        }
    }
    // Without their number the deletions would not be read, and what was deleted would be found again.
    let text = String::from_utf8(whole.clone()).unwrap();
    let (before, count) = text.split_once("\"num_deleted_docs\": ").unwrap();
    let after = count.trim_start_matches(|c: char| c.is_ascii_digit());
    std::fs::write(&file, format!("{before}\"num_deleted_docs\": 0{after}")).unwrap();
    assert_eq!(right_or_refused(&path, &expected, "no deletions"), questions().len());
    std::fs::write(&file, whole).unwrap();
    clean(&path);
}

#[test]
fn an_open_index_notices_a_changed_list_of_segments() {
    let dir = scratch();
    let path = full(dir.path());
    let index = Index::open(&path, &NoProgress).unwrap();
    let file = path.join(STORE).join(SEGMENTS);
    let text = std::fs::read_to_string(&file).unwrap();
    let (before, rows) = text.split_once("\"max_doc\": ").unwrap();
    let (rows, after) = rows.split_once(',').unwrap();
    let fewer = rows.parse::<u32>().unwrap() - 1;
    std::fs::write(&file, format!("{before}\"max_doc\": {fewer},{after}")).unwrap();
    assert!(index.reload(&NoProgress).is_err());
    assert!(index.writer().is_err());
    std::fs::write(&file, text).unwrap();
    assert!(!index.reload(&NoProgress).unwrap());
    drop(index.writer().unwrap());
    clean(&path);
}

#[test]
fn a_bit_flipped_under_an_open_index_is_not_written_anew() {
    let dir = scratch();
    let path = full(dir.path());
    for ending in ["fast", "store", "term", "idx", "pos", "fieldnorm"] {
        let index = Index::open(&path, &NoProgress).unwrap();
        for (_, question) in questions() {
            question(&index).unwrap();
        }
        let file = first(&path, ending);
        flip(&file, 35);
        told_of(&file, index.writer().and_then(|mut writer| writer.compact(&NoProgress)));
        told_of(&file, index.set_attribute("mark", &Default::default(), &NoProgress));
        let other = Index::create(
            &dir.path().join("other"),
            index.model(),
            IndexConfig { rerank_vectors: RerankVectors::Int8, replace: true, ..IndexConfig::default() },
        );
        let copied = other.unwrap().writer().unwrap().copy_from(&index, |_| true, &NoProgress);
        told_of(&file, copied);
        told_of(&file, backup(&path, &dir.path().join("copy"), CopyConfig::default(), &NoProgress));
        flip(&file, 35);
    }
    clean(&path);
}

#[test]
fn a_commit_that_cannot_be_opened_yet_is_acknowledged_and_a_retry_adds_no_duplicates() {
    let dir = scratch();
    let path = dir.path().join("index");
    let index = Index::create(&path, &model(CodeShape::micpq(32).unwrap(), 1), IndexConfig::default()).unwrap();
    let mut writer = index.writer().unwrap();
    let put = |writer: &mut IndexWriter| -> Result<usize> {
        for i in 0..5 {
            writer.add(&document(i), &code(index.model(), i))?;
        }
        writer.commit(&NoProgress)
    };
    for i in 0..5 {
        writer.add(&document(i), &code(index.model(), i)).unwrap();
    }
    let (manifest, away) = (path.join("index.json"), dir.path().join("away"));
    std::fs::rename(&manifest, &away).unwrap();
    assert_eq!(writer.commit(&NoProgress).unwrap(), 5);
    let warnings = index.warnings();
    assert!(warnings.iter().any(|w| w.contains("the commit is on disk")), "{warnings:?}");
    // The ids cannot be looked up now, so every change is refused.
    assert!(put(&mut writer).is_err());
    assert!(writer.contains(&document(1).id).is_err() && writer.delete(&document(1).id).is_err());
    std::fs::rename(&away, &manifest).unwrap();
    assert!(writer.contains(&document(1).id).unwrap());
    assert_eq!(put(&mut writer).unwrap(), 5);
    assert_eq!(index.len(), 5);
    assert!(writer.delete(&document(1).id).unwrap());
    assert_eq!(writer.commit(&NoProgress).unwrap(), 4);
    writer.close(&NoProgress).unwrap();
    clean(&path);
    let sequences: Vec<u64> = index.records(false).unwrap().map(|r| r.unwrap().sequence).collect();
    assert_eq!(sequences, [5, 7, 8, 9]);
}

#[test]
fn verify_finds_an_id_that_two_documents_have() {
    let dir = scratch();
    let path = dir.path().join("index");
    let index = Index::create(&path, &model(CodeShape::micpq(32).unwrap(), 1), IndexConfig::default()).unwrap();
    let mut writer = index.writer().unwrap();
    for i in 0..5 {
        writer.add(&document(i), &code(index.model(), i)).unwrap();
    }
    writer.commit(&NoProgress).unwrap();
    writer.close(&NoProgress).unwrap();
    // As a program would that does not look ids up.
    let mut raw: tantivy::IndexWriter = index.inner.tantivy.writer_with_num_threads(1, 15_000_000).unwrap();
    let second = document(2);
    let chunk = (0, 0..second.text.len());
    let again = index.inner.fields.document(&second, chunk, &code(index.model(), 9), &[], 5).unwrap();
    raw.add_document(again).unwrap();
    let mut prepared = raw.prepare_commit().unwrap();
    let payload = super::payload::Payload { next: 6, opstamp: prepared.opstamp() };
    prepared.set_payload(&payload.to_json());
    prepared.commit().unwrap();
    raw.wait_merging_threads().unwrap();

    let problems = verify(&path, &NoProgress).unwrap();
    let expected = format!("holds the id \"{}\" 2 times", document(2).id);
    assert!(problems.len() == 1 && problems[0].problem.contains(&expected), "{problems:?}");
    // The advice of the message helps.
    let index = Index::open(&path, &NoProgress).unwrap();
    let mut writer = index.writer().unwrap();
    writer.add(&document(2), &code(index.model(), 9)).unwrap();
    assert_eq!(writer.commit(&NoProgress).unwrap(), 5);
    writer.close(&NoProgress).unwrap();
    clean(&path);
}

#[test]
fn a_writer_of_a_directory_that_was_replaced_is_refused() {
    let dir = scratch();
    let (path, other) = (dir.path().join("index"), dir.path().join("other"));
    let model = model(CodeShape::micpq(32).unwrap(), 1);
    let index = Index::create(&path, &model, IndexConfig::default()).unwrap();
    let second = Index::create(&other, &model, IndexConfig::default()).unwrap();
    let mut writer = second.writer().unwrap();
    (100..110).for_each(|i| writer.add(&document(i), &code(&model, i)).unwrap());
    writer.commit(&NoProgress).unwrap();
    writer.close(&NoProgress).unwrap();

    let mut writer = index.writer().unwrap();
    (0..5).for_each(|i| writer.add(&document(i), &code(&model, i)).unwrap());
    writer.commit(&NoProgress).unwrap();
    writer.add(&document(5), &code(&model, 5)).unwrap();
    let files: Vec<_> =
        all_files(&other).iter().map(|f| (f.file_name().unwrap().to_owned(), std::fs::read(f).unwrap())).collect();
    let away = dir.path().join("away");
    std::fs::rename(&path, &away).unwrap();
    std::fs::rename(&other, &path).unwrap();
    for _ in 0..2 {
        let said = writer.commit(&NoProgress).unwrap_err().to_string();
        assert!(said.contains("replaced") && said.contains("open it again"), "{said}");
        assert!(writer.add(&document(6), &code(&model, 6)).is_err());
    }
    assert!(index.reload(&NoProgress).unwrap_err().to_string().contains("open it again"));
    assert_eq!(index.len(), 5);
    drop(writer);
    let now: Vec<_> =
        all_files(&path).iter().map(|f| (f.file_name().unwrap().to_owned(), std::fs::read(f).unwrap())).collect();
    assert!(now == files, "the new directory was touched");
    clean(&path);
    clean(&away);
    assert_eq!(Index::open(&path, &NoProgress).unwrap().len(), 10);
}

/// Sets the modification time back by a minute.
fn age(path: &Path) {
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(60)).unwrap();
}

#[test]
fn the_next_writer_removes_leftovers_of_killed_processes() {
    let dir = scratch();
    let path = full(dir.path());
    let orphan = format!("{}/{:032x}.store", STORE, 12345);
    let dead = ["store/.tmpAbC123", "store/.making-AbC123", "codes/.making-AbC123", orphan.as_str()];
    for name in dead {
        std::fs::write(path.join(name), "half").unwrap();
        age(&path.join(name));
    }
    let young = path.join("codes/.making-young");
    std::fs::write(&young, "being written").unwrap();
    let locked = path.join("codes/.making-locked");
    std::fs::write(&locked, "being written").unwrap();
    age(&locked);
    let lock = std::fs::File::open(&locked).unwrap();
    lock.lock().unwrap();
    std::fs::create_dir_all(dir.path().join(".index.micpq-dead/new")).unwrap();
    std::fs::create_dir_all(dir.path().join(".index.micpq-migration/new")).unwrap();

    drop(Index::open(&path, &NoProgress).unwrap().writer().unwrap());
    for name in dead {
        assert!(!path.join(name).exists(), "{name} is still there");
    }
    assert!(young.exists() && locked.exists());
    assert!(!dir.path().join(".index.micpq-dead").exists());
    assert!(dir.path().join(".index.micpq-migration").exists(), "a migration can be resumed");
    clean(&path);
}

#[test]
fn deletes_of_a_commit_that_never_came_do_not_hinder_the_next_writer() {
    let dir = scratch();
    let path = full(dir.path());
    let index = Index::open(&path, &NoProgress).unwrap();
    let metas = index.inner.tantivy.load_metas().unwrap();
    // A killed writer wrote them and did not commit; the next one numbers its commit like that one.
    for segment in &metas.segments {
        for after in 1..20 {
            let name = format!("{}.{}.del", segment.id().uuid_string(), metas.opstamp + after);
            std::fs::write(path.join(STORE).join(name), "half").unwrap();
        }
    }
    let before = index.len();
    let mut writer = index.writer().unwrap();
    assert!(writer.delete(&document(1).id).unwrap() && writer.delete(&document(70).id).unwrap());
    assert_eq!(writer.commit(&NoProgress).unwrap(), before - 2);
    writer.close(&NoProgress).unwrap();
    assert!(index.get(&document(1).id).unwrap().is_none() && index.get(&document(2).id).unwrap().is_some());
    clean(&path);
}

#[test]
fn verify_only_notes_packed_codes_torn_by_a_power_cut() {
    let dir = scratch();
    let path = full(dir.path());
    let file = all_files(&path.join(CODES)).remove(0);
    let whole = std::fs::read(&file).unwrap();
    let zeros = [&whole[..100], &vec![0; whole.len() - 100][..]].concat();
    for torn in [Vec::new(), whole[..whole.len() / 2].to_vec(), zeros] {
        std::fs::write(&file, torn).unwrap();
        let notes = Notes::default();
        assert_eq!(verify(&path, &notes).unwrap(), []);
        let notes = notes.taken();
        assert!(notes.len() == 1 && notes[0].contains("made again") && notes[0].contains(".codes"), "{notes:?}");
    }
}
