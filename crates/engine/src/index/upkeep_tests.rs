//! Backups, statistics, migrations and merges, also while a writer is active.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use proptest::prelude::*;

use super::tests::*;
use super::*;
use crate::corpus::{Document, Value};
use crate::query::{Hit, SearchConfig};
use crate::{Matrix, NoProgress};

fn small(bits: usize, seed: u64) -> Model {
    model(CodeShape::micpq(bits).unwrap(), seed)
}

fn fill(index: &Index, range: std::ops::Range<u64>) {
    let mut writer = index.writer().unwrap();
    for i in range {
        writer.add(&document(i), &code(index.model(), i)).unwrap();
    }
    writer.commit(&NoProgress).unwrap();
    writer.close(&NoProgress).unwrap();
}

fn all(index: &Index) -> Vec<Hit> {
    let config = SearchConfig { k: 10_000, ..SearchConfig::default() };
    index.search(&tables(index.model(), 1, 5), &config).unwrap().remove(0)
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Interrupts after this many polls.
struct Stop(AtomicUsize);

impl Progress for Stop {
    fn interrupted(&self) -> bool {
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| Some(n.saturating_sub(1))).unwrap() == 0
    }
}

#[test]
fn a_backup_during_writes_holds_exactly_one_commit() {
    let dir = scratch();
    let path = dir.path().join("index");
    let index = Index::create(&path, &small(32, 1), IndexConfig::default()).unwrap();
    let done = AtomicBool::new(false);
    let model = index.model().clone();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut writer = index.writer().unwrap();
            let mut next = 0;
            while !done.load(Ordering::Relaxed) {
                for _ in 0..20 {
                    writer.add(&document(next), &code(&model, next)).unwrap();
                    next += 1;
                }
                // Deletes create files of their own; merges remove many files.
                if next >= 40 {
                    writer.delete(&document(next - 40).id).unwrap();
                    writer.add(&document(next - 40), &code(&model, next - 40)).unwrap();
                }
                writer.commit(&NoProgress).unwrap();
                if next.is_multiple_of(200) {
                    writer.compact(&NoProgress).unwrap();
                }
            }
        });
        let mut seen = 0;
        for round in 0..25 {
            let to = dir.path().join(format!("copy-{round}"));
            let config = CopyConfig { own_files: round % 3 == 2, ..CopyConfig::default() };
            let copied = backup(&path, &to, config, &NoProgress).unwrap();
            assert_eq!(copied.linked == 0, config.own_files);
            clean(&to);
            let copy = Index::open(&to, &NoProgress).unwrap();
            assert_eq!(copy.len() as u64, copied.documents);
            assert!(copy.len().is_multiple_of(20) && copy.len() >= seen, "{} documents", copy.len());
            seen = copy.len();
            for i in (0..seen as u64).step_by(7) {
                assert_eq!(copy.get(&document(i).id).unwrap().unwrap().code, code(&model, i));
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(names(dir.path()).len(), 26, "nothing is left beside");
    // Writing to the copy does not change the index.
    let before = all(&index);
    let copy = Index::open(&dir.path().join("copy-24"), &NoProgress).unwrap();
    fill(&copy, 5000..5100);
    copy.writer().unwrap().compact(&NoProgress).unwrap();
    clean(copy.dir());
    clean(&path);
    assert_eq!(all(&Index::open(&path, &NoProgress).unwrap()), before);
}

#[test]
fn a_restored_backup_of_an_empty_index_takes_documents() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    let model = model(CodeShape::micpq(32).unwrap(), 1);
    Index::create(&at("index"), &model, IndexConfig::default()).unwrap();
    backup(&at("index"), &at("copy"), CopyConfig::default(), &NoProgress).unwrap();
    // As backups of earlier programs are.
    std::fs::remove_dir(at("copy").join(CODES)).unwrap();
    restore(&at("copy"), &at("again"), CopyConfig::default(), &NoProgress).unwrap();
    for name in ["copy", "again"] {
        let index = Index::open(&at(name), &NoProgress).unwrap();
        let mut writer = index.writer().unwrap();
        writer.add(&document(1), &code(&model, 1)).unwrap();
        assert_eq!(writer.commit(&NoProgress).unwrap(), 1, "{name}");
        writer.close(&NoProgress).unwrap();
        clean(&at(name));
    }
}

#[test]
fn restore_verifies_the_backup_and_replaces_only_on_request() {
    let dir = scratch();
    let (path, copy) = (dir.path().join("index"), dir.path().join("copy"));
    let index = Index::create(&path, &small(64, 2), IndexConfig::default()).unwrap();
    fill(&index, 0..300);
    let config = CopyConfig::default();
    backup(&path, &copy, config, &NoProgress).unwrap();
    let before = all(&index);
    fill(&index, 300..400);

    let said = |r: Result<Copied>| r.unwrap_err().to_string();
    assert!(said(backup(&path, &copy, config, &NoProgress)).contains("already holds an index"));
    assert!(said(restore(&copy, &path, config, &NoProgress)).contains("already holds an index"));
    assert!(said(backup(&path, &path.join("inside"), config, &NoProgress)).contains("outside"));
    assert!(said(backup(&path, &path, config, &NoProgress)).contains("outside"));
    assert!(said(backup(&dir.path().join("nowhere"), &copy, config, &NoProgress)).contains("is not an index"));
    std::fs::create_dir(dir.path().join("letters")).unwrap();
    std::fs::write(dir.path().join("letters/one"), "dear").unwrap();
    let replace = CopyConfig { replace: true, ..config };
    assert!(said(restore(&copy, &dir.path().join("letters"), replace, &NoProgress)).contains("is not an index"));
    {
        let _writer = index.writer().unwrap();
        assert!(matches!(restore(&copy, &path, replace, &NoProgress), Err(Error::Busy(_))));
    }
    assert!(matches!(
        restore(&copy, &dir.path().join("new"), CopyConfig { own_files: true, ..config }, &Stop(2.into())),
        Err(Error::Interrupted)
    ));

    restore(&copy, &path, replace, &NoProgress).unwrap();
    let restored = Index::open(&path, &NoProgress).unwrap();
    assert_eq!(all(&restored), before);
    // A handle opened earlier does not switch to the restored index, although it has the same model.
    let was = all(&index);
    assert_eq!(was.len(), 400);
    let refused = index.reload(&NoProgress).unwrap_err().to_string();
    assert!(refused.contains("open it again"), "{refused}");
    assert_eq!(all(&index), was);
    let ids = [&path, &copy].map(|dir| std::fs::read_to_string(dir.join("index.json")).unwrap());
    assert!(ids[0] != ids[1] && ids.iter().all(|text| text.contains("\"id\"")));
    fill(&restored, 300..310);
    clean(&path);
    clean(&copy);
    assert_eq!(names(dir.path()), ["copy", "index", "letters"]);

    let file = all_files(&copy.join(STORE)).into_iter().find(|f| f.extension().is_some_and(|e| e == "store")).unwrap();
    // A damaged backup is not restored. The damage is done to a copy with its own files, because linked files are
    // shared.
    let own = dir.path().join("own");
    backup(&copy, &own, CopyConfig { own_files: true, ..config }, &NoProgress).unwrap();
    flip(&own.join(STORE).join(file.file_name().unwrap()), 999);
    let refused = said(restore(&own, &dir.path().join("new"), config, &NoProgress));
    assert!(refused.contains("not restored") && refused.contains(".store"), "{refused}");
    assert!(!dir.path().join("new").exists());
    clean(&copy);
}

#[test]
fn statistics_ignore_deleted_documents() {
    for (bits, store) in [(16, Store::All), (64, Store::Codes)] {
        let dir = scratch();
        let model = small(bits, 3);
        let config = IndexConfig { store, ..IndexConfig::default() };
        let index = Index::create(&dir.path().join("index"), &model, config).unwrap();
        fill(&index, 0..200);
        fill(&index, 150..320);
        let mut writer = index.writer().unwrap();
        for i in 0..320 {
            if i % 10 == 7 || i >= 300 {
                writer.delete(&document(i).id).unwrap();
            }
        }
        writer.commit(&NoProgress).unwrap();
        drop(writer);
        let living: Vec<u64> = (0..300).filter(|i| i % 10 != 7).collect();
        let stats = index.stats(&NoProgress).unwrap();
        assert_eq!(stats.info.documents, living.len());
        assert_eq!(stats.parts.iter().map(|p| p.documents as usize).sum::<usize>(), living.len());
        assert_eq!(stats.parts.iter().map(|p| p.deleted as usize).sum::<usize>(), stats.info.deleted);

        let codes: Vec<Vec<u8>> = living.iter().map(|&i| code(&model, i)).collect();
        let mut counts: BTreeMap<&[u8], u64> = BTreeMap::new();
        codes.iter().for_each(|c| *counts.entry(c).or_default() += 1);
        assert_eq!(stats.spread.distinct, counts.len() as u64);
        assert_eq!(stats.spread.largest, *counts.values().max().unwrap());
        assert_eq!(stats.spread.largest, counts[&*hex::decode(&stats.spread.largest_code).unwrap()]);
        assert_eq!(stats.spread.codebooks.len(), model.shape().num_codebooks());
        for (m, codebook) in stats.spread.codebooks.iter().enumerate() {
            let mut codewords = [0f64; 16];
            codes.iter().for_each(|c| codewords[model.shape().codeword(c, m)] += 1.0 / codes.len() as f64);
            let entropy: f64 = codewords.iter().filter(|&&p| p > 0.0).map(|p| -p * p.log2()).sum();
            assert!(
                (codebook.entropy - entropy).abs() < 1e-9
                    && codebook.used == codewords.iter().filter(|&&p| p > 0.0).count()
            );
            assert!((codebook.top - codewords.iter().copied().fold(0.0, f64::max)).abs() < 1e-9);
        }
        if store == Store::Codes {
            assert!(stats.attributes.is_empty() && stats.labels == 0);
            continue;
        }
        let attributes_found: Vec<(&str, Vec<&str>, u64, u64)> = stats
            .attributes
            .iter()
            .map(|a| (a.name.as_str(), a.types.iter().copied().collect(), a.documents, a.distinct))
            .collect();
        let n = living.len() as u64;
        assert_eq!(
            attributes_found,
            [
                ("author", vec!["text"], n, 5),
                ("draft", vec!["bool"], n, 2),
                ("places", vec!["text"], n, 4),
                ("score", vec!["float"], n, n),
                // No document has 1987: the year ends in the same digit as the deleted numbers.
                ("year", vec!["int"], n, 9),
            ]
        );
        assert_eq!(stats.labels, 2);
        assert!(matches!(index.stats(&Stop(0.into())), Err(Error::Interrupted)));
    }
}

/// An embedding that depends only on the text, not on the model.
fn embeddings_of_text(texts: &[&str]) -> Matrix {
    let rows: Vec<f32> = texts
        .iter()
        .flat_map(|t| embeddings(1, u64::from(crc32fast::hash(t.as_bytes()))).as_slice().to_vec())
        .collect();
    Matrix::from_vec(4, rows)
}

#[test]
fn migration_changes_only_the_codes_and_resumes() {
    let dir = scratch();
    let path = dir.path().join("index");
    let (old_model, new_model) = (small(32, 1), small(64, 2));
    let index = Index::create(&path, &old_model, IndexConfig::default()).unwrap();
    // Several segments with replaced and deleted documents: the insertion order differs from the order of ids.
    for batch in 0..4u64 {
        fill(&index, batch * 2000..batch * 2000 + 2500);
    }
    let mut writer = index.writer().unwrap();
    for i in (0..8000).step_by(9) {
        writer.delete(&document(i).id).unwrap();
    }
    writer.commit(&NoProgress).unwrap();
    drop(writer);
    let order = |index: &Index| {
        let snapshot = index.inner.sound().unwrap();
        let mut records: Vec<Record> = all(index).into_iter().map(|h| index.get(&h.id).unwrap().unwrap()).collect();
        records.sort_by_key(|r| r.sequence);
        assert_eq!(records.len() as u64, snapshot.searcher().num_docs());
        records
    };
    let before = order(&index);
    let open_meanwhile = Index::open(&path, &NoProgress).unwrap();
    let was = all(&open_meanwhile);

    let config = MigrateConfig { commit_every: 500, ..MigrateConfig::default() };
    // The encoder is interrupted at its second call.
    let mut calls = 0;
    let mut failing = |texts: &[&str]| {
        calls += 1;
        if calls > 1 { Err(Error::Interrupted) } else { Ok(embeddings_of_text(texts)) }
    };
    assert!(matches!(migrate(&path, &new_model, &mut failing, &config, &NoProgress), Err(Error::Interrupted)));
    assert_eq!(all(&Index::open(&path, &NoProgress).unwrap()), was, "the old one is in place");
    clean(&path);
    assert_eq!(names(dir.path()), [".index.micpq-migration", "index"]);
    let mut good = |texts: &[&str]| Ok(embeddings_of_text(texts));
    let done = migrate(&path, &new_model, &mut good, &config, &NoProgress).unwrap();
    assert_eq!((done.documents, done.resumed), (before.len() as u64, 500));
    assert_eq!(names(dir.path()), ["index"]);

    let new = Index::open(&path, &NoProgress).unwrap();
    new.expect_model(&new_model).unwrap();
    clean(&path);
    let after = order(&new);
    assert_eq!(after.len(), before.len());
    for (old, new) in before.iter().zip(&after) {
        assert_eq!(
            (&old.id, &old.text, &old.labels, &old.attributes),
            (&new.id, &new.text, &new.labels, &new.attributes)
        );
        assert_eq!(new.code, new_model.encode(&embeddings_of_text(&[new.text.as_ref().unwrap()])).unwrap());
    }
    // A reader of the old index keeps its commit, and gets an error when it reloads.
    assert_eq!(all(&open_meanwhile), was);
    let said = open_meanwhile.reload(&NoProgress).unwrap_err().to_string();
    assert!(said.contains("open it again"), "{said}");
    assert!(open_meanwhile.writer().is_err());
    assert_eq!(all(&open_meanwhile), was);

    let said = migrate(&path, &new_model, &mut good, &config, &NoProgress).unwrap_err().to_string();
    assert!(said.contains("nothing to migrate"), "{said}");
    let codes = IndexConfig { store: Store::Codes, ..IndexConfig::default() };
    let bare = dir.path().join("bare");
    fill(&Index::create(&bare, &old_model, codes).unwrap(), 0..10);
    let said = migrate(&bare, &new_model, &mut good, &config, &NoProgress).unwrap_err().to_string();
    assert!(said.contains("keeps no texts"), "{said}");
    let writer = new.writer().unwrap();
    assert!(matches!(migrate(&path, &old_model, &mut good, &config, &NoProgress), Err(Error::Busy(_))));
    drop(writer);
}

#[test]
fn rerank_vectors_are_sized_backed_up_and_migrated() {
    let dir = scratch();
    let path = dir.path().join("index");
    let (old_model, new_model) = (small(32, 1), small(32, 2));
    let config = IndexConfig { rerank_vectors: RerankVectors::Int8, ..IndexConfig::default() };
    let index = Index::create(&path, &old_model, config).unwrap();
    let documents: Vec<Document> = (0..200).map(document).collect();
    let texts: Vec<&str> = documents.iter().map(|d| d.text.as_str()).collect();
    let mut writer = index.writer().unwrap();
    writer.add_embeddings(&documents, &embeddings_of_text(&texts)).unwrap();
    writer.commit(&NoProgress).unwrap();
    writer.close(&NoProgress).unwrap();
    let bytes = index.info().unwrap().bytes;
    // Four values of one byte and a scale, padded to blocks of eight bytes.
    assert!((200 * 8..200 * 40).contains(&bytes.rerank_vectors), "{bytes:?}");
    let copy = dir.path().join("copy");
    backup(&path, &copy, CopyConfig::default(), &NoProgress).unwrap();
    assert_eq!(Index::open(&copy, &NoProgress).unwrap().info().unwrap().bytes.rerank_vectors, bytes.rerank_vectors);
    let mut good = |texts: &[&str]| Ok(embeddings_of_text(texts));
    migrate(&path, &new_model, &mut good, &MigrateConfig::default(), &NoProgress).unwrap();
    let new = Index::open(&path, &NoProgress).unwrap();
    assert_eq!((new.rerank_vectors(), new.len()), (RerankVectors::Int8, 200));
    // Vectors of other texts compress slightly better or worse.
    let (new, old) = (new.info().unwrap().bytes.rerank_vectors, bytes.rerank_vectors);
    assert!(new.abs_diff(old) <= old / 50, "{new} bytes of embeddings, {old} before");
    clean(&path);
    clean(&copy);
}

#[test]
fn a_migration_starts_over_if_the_index_changed() {
    let dir = scratch();
    let path = dir.path().join("index");
    let index = Index::create(&path, &small(32, 1), IndexConfig::default()).unwrap();
    fill(&index, 0..100);
    let (second, third) = (small(32, 2), small(32, 3));
    let config = MigrateConfig { commit_every: 10, ..MigrateConfig::default() };
    let mut good = |texts: &[&str]| Ok(embeddings_of_text(texts));
    // Interrupted after everything is encoded and committed, but before the new index replaces the old one.
    let stop = |model: &Model| {
        let late = Stop(usize::MAX.into());
        let mut encode = |texts: &[&str]| {
            late.0.store(0, Ordering::SeqCst);
            Ok(embeddings_of_text(texts))
        };
        let stopped = migrate(&path, model, &mut encode, &config, &late);
        assert!(matches!(stopped, Err(Error::Interrupted)), "{stopped:?}");
        assert_eq!(names(dir.path()), [".index.micpq-migration", "index"]);
    };
    stop(&second);
    fill(&index, 100..110);
    let done = migrate(&path, &second, &mut good, &config, &NoProgress).unwrap();
    assert_eq!((done.documents, done.resumed), (110, 0));
    let first = small(32, 1);
    stop(&third);
    let done = migrate(&path, &first, &mut good, &config, &NoProgress).unwrap();
    assert_eq!((done.documents, done.resumed), (110, 0));
    // Replacing an index removes its unfinished migration.
    stop(&third);
    Index::create(&path, &third, IndexConfig { replace: true, ..IndexConfig::default() }).unwrap();
    assert_eq!(names(dir.path()), ["index"]);
    let done = migrate(&path, &first, &mut good, &config, &NoProgress).unwrap();
    assert_eq!(done.documents, 0, "an empty index can be migrated too");
}

#[test]
fn small_commits_are_merged_and_codes_exist_before_segments_are_visible() {
    let dir = scratch();
    let path = dir.path().join("index");
    let index = Index::create(&path, &small(32, 4), IndexConfig::default()).unwrap();
    let model = index.model().clone();
    let done = AtomicBool::new(false);
    let looks = AtomicUsize::new(0);
    let mut twin = Twin::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Another process never sees a committed segment without its packed codes.
            let store = Index::open_store(&path, None).unwrap();
            let living = || store.searchable_segment_ids().unwrap();
            while !done.load(Ordering::Relaxed) {
                for id in living() {
                    let there = segment::codes_path(&path, id).exists();
                    assert!(there || !living().contains(&id), "{} has no codes", id.uuid_string());
                    looks.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let mut writer = index.writer().unwrap();
        let mut most = 0;
        for i in 0..400u64 {
            writer.add(&document(i), &code(&model, i)).unwrap();
            twin.add(document(i), code(&model, i));
            if i % 5 == 4 {
                writer.delete(&document(i - 3).id).unwrap();
                twin.delete(&document(i - 3).id);
            }
            writer.commit(&NoProgress).unwrap();
            most = most.max(index.info().unwrap().segments);
        }
        writer.close(&NoProgress).unwrap();
        done.store(true, Ordering::Relaxed);
        // A running merge leaves its segments in place until it ends, so there may be a few more than eight.
        assert!(most < 40, "{most} segments");
    });
    assert!(looks.load(Ordering::Relaxed) > 100);
    assert!(index.info().unwrap().segments <= 8);
    twin.check(&index, 50, None, |_| true);
    clean(&path);
    // No codes of removed segments remain.
    drop(index);
    let index = Index::open(&path, &NoProgress).unwrap();
    index.writer().unwrap().compact(&NoProgress).unwrap();
    assert_eq!(names(&path.join(CODES)).len(), 1);
}

#[test]
fn the_first_search_finds_damage_inside_packed_codes() {
    let dir = scratch();
    let path = dir.path().join("index");
    fill(&Index::create(&path, &small(32, 5), IndexConfig::default()).unwrap(), 0..500);
    let expected = all(&Index::open(&path, &NoProgress).unwrap());
    let file = all_files(&path.join(CODES)).remove(0);
    let whole = std::fs::read(&file).unwrap();
    for bit in (64 * 8..whole.len() * 8).step_by(1777) {
        flip(&file, bit);
        let index = Index::open(&path, &NoProgress).unwrap();
        assert_eq!(all(&index), expected);
        let warnings = index.warnings();
        assert!(warnings.len() == 1 && warnings[0].contains("made again"), "{warnings:?}");
        assert!(index.warnings().is_empty());
        assert_eq!(std::fs::read(&file).unwrap(), whole);
    }
}

#[test]
fn verify_finds_a_file_swapped_from_another_segment() {
    let dir = scratch();
    let path = dir.path().join("index");
    let index = Index::create(&path, &small(32, 8), IndexConfig::default()).unwrap();
    // Both halves have the same number of documents, so that no count tells them apart.
    let mut writer = index.writer().unwrap();
    for half in 0..2u64 {
        for i in half * 300..half * 300 + 300 {
            let text = format!("{} {}", document(i).text, "more ".repeat((i % 7 + half * 8) as usize));
            writer.add(&Document { text, ..document(i) }, &code(index.model(), i * 3 + half)).unwrap();
        }
        writer.commit(&NoProgress).unwrap();
        writer.compact(&NoProgress).unwrap();
        // One segment per half: the second is built separately from the first.
        if half == 0 {
            backup(&path, &dir.path().join("first"), CopyConfig { own_files: true, ..Default::default() }, &NoProgress)
                .unwrap();
            for i in 0..300 {
                writer.delete(&document(i).id).unwrap();
            }
            writer.commit(&NoProgress).unwrap();
        }
    }
    writer.close(&NoProgress).unwrap();
    clean(&path);
    clean(&dir.path().join("first"));
    let find = |root: &Path, ending: &str| {
        let mut files = all_files(root);
        files.retain(|f| f.extension().is_some_and(|e| e == ending));
        assert_eq!(files.len(), 1, "{ending}");
        files.remove(0)
    };
    for ending in ["fast", "store", "term", "idx", "pos", "fieldnorm", "codes"] {
        let (ours, theirs) = (find(&path, ending), find(&dir.path().join("first"), ending));
        let whole = std::fs::read(&ours).unwrap();
        std::fs::copy(&theirs, &ours).unwrap();
        let problems = found(&path).unwrap();
        assert!(!problems.is_empty(), "a foreign .{ending} went unseen");
        let id = ours.file_stem().unwrap().to_string_lossy().into_owned();
        assert!(problems.iter().all(|p| p.to_string().contains(&id)), "{ending}: {problems:?}");
        // Reading it must not panic.
        if let Ok(index) = Index::open(&path, &NoProgress) {
            let _ = index.search(&tables(index.model(), 1, 1), &SearchConfig { k: 300, ..SearchConfig::default() });
        }
        // Opening may have built packed codes from the foreign columns.
        std::fs::write(&ours, whole).unwrap();
        let _ = std::fs::remove_file(segment::codes_path(&path, segment_id(&id)));
        all(&Index::open(&path, &NoProgress).unwrap());
        clean(&path);
    }
}

fn segment_id(text: &str) -> tantivy::index::SegmentId {
    tantivy::index::SegmentId::from_uuid_string(text).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]
    #[test]
    fn migration_keeps_insertion_order(steps in prop::collection::vec((0u8..8, 0u64..80), 1..100)) {
        let dir = scratch();
        let path = dir.path().join("index");
        let index = Index::create(&path, &small(32, 6), IndexConfig::default()).unwrap();
        let mut twin = Twin::default();
        let mut writer = index.writer().unwrap();
        for (step, i) in steps {
            match step {
                0..=4 => {
                    let document = Document { attributes: vec![("n".into(), Value::Int(i as i64))], ..document(i) };
                    writer.add(&document, &code(index.model(), i)).unwrap();
                    twin.add(document, code(index.model(), i));
                }
                5 => {
                    writer.delete(&document(i).id).unwrap();
                    twin.delete(&document(i).id);
                }
                _ => drop(writer.commit(&NoProgress).unwrap()),
            }
        }
        writer.commit(&NoProgress).unwrap();
        drop(writer);
        let new_model = small(16, 7);
        let mut good = |texts: &[&str]| Ok(embeddings_of_text(texts));
        migrate(&path, &new_model, &mut good, &MigrateConfig::default(), &NoProgress).unwrap();
        let new = Index::open(&path, &NoProgress).unwrap();
        let mut expected = Twin::default();
        for (document, _) in twin.documents.values() {
            let code = new_model.encode(&embeddings_of_text(&[&document.text])).unwrap();
            expected.add(document.clone(), code);
        }
        expected.check(&new, 200, None, |_| true);
    }
}
