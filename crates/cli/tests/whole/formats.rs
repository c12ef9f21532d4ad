//! Export, import and scores.

use crate::bench::{Bench, TINY, corpus};

fn built() -> Bench {
    let bench = Bench::new();
    bench.ok(&format!("build news.jsonl {TINY} --epochs 3 --views noise:4 -o i"));
    bench
}

#[test]
fn exported_tables_give_the_same_index() {
    let bench = built();
    for (format, file) in [("jsonl", "t.jsonl"), ("parquet", "t.parquet"), ("arrow", "t.arrow")] {
        assert_eq!(bench.json(&format!("export i --to {format} -o {file}"))[0]["documents"], 400);
        bench.ok(&format!("index create from-{format} {file} --model i/model"));
        let ask = |index: &str| bench.json(&format!("search {index} 'crude oil' -k 30 --rerank off"));
        assert_eq!(ask("i"), ask(&format!("from-{format}")), "{format}");
    }
    bench.ok("export i --to jsonl --codes -o codes.jsonl");
    let first = String::from_utf8(bench.bytes("codes.jsonl")).unwrap();
    let row: serde_json::Value = serde_json::from_str(first.lines().next().unwrap()).unwrap();
    assert_eq!(row["code"].as_str().unwrap().len(), 4);
    bench.ok("export i --to codes -o c.npy");
    bench.ok("encode news.jsonl --model i/model -o d.npy");
    assert_eq!(bench.bytes("c.npy"), bench.bytes("d.npy"), "codes are in the order of insertion");
    assert_eq!(bench.bytes("c.npy.ids.jsonl").iter().filter(|b| **b == b'\n').count(), 400);
}

#[test]
fn exported_faiss_files_give_the_same_index() {
    let bench = built();
    let ask = |index: &str| {
        let hits = bench.json(&format!("search {index} 'bank loan' -k 30 --rerank off"));
        hits.iter().map(|h| (h["id"].clone(), h["distance"].clone())).collect::<Vec<_>>()
    };
    for target in ["faiss", "faiss-fastscan"] {
        assert_eq!(bench.json(&format!("export i --to {target} -o {target}.faiss"))[0]["documents"], 400);
        bench.ok(&format!("import {target}.faiss --model i/model -o from-{target}"));
        assert_eq!(ask("i"), ask(&format!("from-{target}")), "{target}");
        let plain = &bench.json(&format!("import {target}.faiss -o plain-{target}"))[0];
        assert_eq!((plain["inputs"].as_u64(), plain["documents"].as_u64()), (Some(32), Some(400)));
        assert_eq!(bench.json(&format!("index verify plain-{target}"))[0]["sound"], true);
    }
    assert!(bench.path("faiss.faiss.projection.npz").exists());
    assert!(!bench.path("faiss.faiss.ids.jsonl").exists(), "the FAISS file itself has ids that are numbers");
    assert!(bench.fails("search plain-faiss 'bank'", 2).contains("vectors"));
    std::fs::write(
        bench.path("named.jsonl"),
        (0..40).map(|i| format!("{{\"id\": \"x{i}\", \"text\": \"crude oil {i}\"}}\n")).collect::<String>(),
    )
    .unwrap();
    bench.ok("index create named named.jsonl --model i/model");
    bench.ok("export named --to faiss -o named.faiss");
    let ids = String::from_utf8(bench.bytes("named.faiss.ids.jsonl")).unwrap();
    assert_eq!(ids.lines().nth(3), Some("\"x3\""));
}

#[test]
fn vectors_are_imported_as_an_index() {
    let bench = Bench::new();
    bench.ok("encode news.jsonl --encoder tiny -o v.npy");
    let flags = "--bits 16 --hidden 32 --epochs 8 --cache cache";
    let imported = &bench.json(&format!("import v.npy {flags} -o rows"))[0];
    assert_eq!((imported["documents"].as_u64(), imported["inputs"].as_u64()), (Some(400), Some(32)));
    bench.ok(&format!("import v.npy --documents news.jsonl {flags} -o both"));
    let near = bench.json("search both --like 8 -k 20 --rerank off");
    let kind = near.iter().filter(|h| h["labels"][0] == "oil").count();
    assert!(kind >= 12, "{kind} of 20 are of the kind of document 8");
    // The same vectors as .fbin give the same codes.
    let npy = bench.bytes("v.npy");
    let fbin = [&400u32.to_le_bytes()[..], &32u32.to_le_bytes(), &npy[128..]].concat();
    std::fs::write(bench.path("v.fbin"), fbin).unwrap();
    bench.ok("import v.fbin --model rows/model -o again");
    for index in ["rows", "again"] {
        bench.ok(&format!("export {index} --to codes -o {index}.npy"));
    }
    assert_eq!(bench.bytes("rows.npy"), bench.bytes("again.npy"));
    std::fs::write(bench.path("few.jsonl"), corpus(0, 30)).unwrap();
    let stderr = bench.fails("import v.npy --documents few.jsonl --model rows/model -o short", 1);
    assert!(stderr.contains("30 documents") && stderr.contains("400"), "{stderr}");
}

#[test]
fn beir_export_and_trec_run_are_scored() {
    let bench = built();
    std::fs::write(bench.path("q.jsonl"), corpus(1000, 1020)).unwrap();
    assert_eq!(bench.json("export i --to beir --queries q.jsonl -o beir")[0]["documents"], 400);
    bench.ok("index create j beir --model i/model");
    assert_eq!(bench.json("export j --to trec --queries beir -k 100 -o r.run")[0]["queries"], 20);
    let scores = &bench.json("score r.run beir/qrels/test.tsv --each")[0];
    assert_eq!((scores["queries"].as_u64(), scores["unanswered"].as_u64()), (Some(20), Some(0)));
    assert!(scores["ndcg@10"].as_f64().unwrap() > 0.5, "{scores}");
    assert_eq!(scores["each"].as_object().unwrap().len(), 20);
    assert!(bench.ok("score r.run beir/qrels/test.tsv").contains("nDCG@10"));
}

#[test]
fn wrong_exports_and_imports_are_refused_and_leave_nothing() {
    let bench = built();
    std::fs::write(bench.path("text.txt"), "no index\n").unwrap();
    std::fs::write(bench.path("bad.npy"), b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f4'}").unwrap();
    std::fs::write(bench.path("other.qrels"), "nobody 0 d 1\n").unwrap();
    std::fs::write(bench.path("r.run"), "q Q0 d 1 2.0 t\n").unwrap();
    std::fs::create_dir(bench.path("mine")).unwrap();
    std::fs::write(bench.path("mine/letter.txt"), "dear").unwrap();
    bench.ok("index create codes news.jsonl --model i/model --store codes --rerank-vectors none");
    for (line, code, word) in [
        ("export i -o x", 2, "--to"),
        ("export i --to xml -o x", 2, "xml"),
        ("export nowhere --to faiss -o x", 1, "nowhere"),
        ("export i --to trec -o x", 2, "--queries"),
        ("export i --to faiss --queries news.jsonl -o x", 2, "--queries"),
        ("export i --to trec --queries news.jsonl -k 0 -o x", 2, "at least one"),
        ("export i --to beir -o mine", 1, "is taken: it holds letter.txt"),
        ("export codes --to beir -o x", 2, "texts"),
        ("export i --to parquet -o no/where.parquet", 1, "no/where"),
        ("import text.txt -o x", 1, "FAISS"),
        ("import bad.npy -o x", 1, "bad.npy"),
        ("import missing.npy -o x", 1, "missing.npy"),
        ("import news.jsonl -o i", 2, "--force"),
        ("score r.run other.qrels", 1, "none of the 1 judged"),
        ("score news.jsonl other.qrels", 1, "line 1"),
    ] {
        let stderr = bench.fails(line, code);
        assert!(stderr.contains(word), "{line}: {stderr}");
        assert!(!bench.path("x").exists(), "{line} left a file");
    }
    bench.ok("encode news.jsonl --encoder tiny -o v.npy");
    std::fs::write(bench.path("cut.fbin"), [1, 0, 0, 0, 9, 0, 0, 0, 1]).unwrap();
    assert!(bench.fails("import cut.fbin -o x", 1).contains("9 values"));
    bench.ok("export i --to faiss -o i.faiss");
    bench.ok(&format!("train news.jsonl {TINY} --epochs 1 --views noise:4 --seed 9 -o m2"));
    assert!(bench.fails("import i.faiss --model m2 -o x", 2).contains("other codebooks"));
    assert!(bench.fails("import v.npy --model i.faiss -o x", 1).contains("i.faiss"));
}
