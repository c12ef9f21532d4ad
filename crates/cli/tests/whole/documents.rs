//! Long texts, folders of files, and languages.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;

use crate::bench::{Bench, TINY, text};
use crate::serve::Server;

/// A long document: a section of thirty words on each topic, in an order of its own.
fn long(i: usize) -> String {
    let topics =
        ["oil crude barrel opec", "bank rate loan credit", "wheat corn harvest grain", "ship port strike cargo"];
    let section = |topic: usize| {
        let words: Vec<&str> = topics[topic].split(' ').collect();
        let words: Vec<&str> = (0..30).map(|w| words[(w * (i + 3) + w / 4) % 4]).collect();
        format!("# Section {topic}\n\n{}.\n\n", words.join(" "))
    };
    (0..4).map(|s| section((s + i) % 4)).collect()
}

fn long_corpus(bench: &Bench, name: &str, documents: std::ops::Range<usize>) {
    let row = |i: usize| serde_json::json!({ "id": format!("doc-{i}"), "text": long(i), "year": 1980 + i % 5 });
    let rows: String = documents.map(|i| format!("{}\n", row(i))).collect();
    std::fs::write(bench.path(name), rows).unwrap();
}

const QUICK: &str = "--epochs 2 --views noise:4";

#[test]
fn texts_that_are_cut_are_counted_with_the_remedy() {
    let bench = Bench::new();
    long_corpus(&bench, "long.jsonl", 0..40);
    let output = bench.run(&format!("build long.jsonl {TINY} {QUICK} -o long.micpq"));
    let said = text(&output.stderr);
    assert!(output.status.success() && said.contains("40 of 40 texts are longer than the 32 tokens"), "{said}");
    assert!(said.contains("Build the index with chunk") && said.matches("are longer than").count() == 1, "{said}");
    let output = bench.run("encode long.jsonl --encoder tiny -o long.npy");
    let said = text(&output.stderr);
    assert!(output.status.success() && said.contains("40 of 40 texts are longer than 32 tokens"), "{said}");
    assert_eq!(bench.json("encode long.jsonl --encoder tiny -o long.npy")[0]["cut"], 40);
    assert_eq!(bench.json("encode news.jsonl --encoder tiny -o news.npy")[0]["cut"], 0);
    let output = bench.run("index add long.micpq news.jsonl");
    assert!(!text(&output.stderr).contains("are longer than"), "short texts are not cut");
    let built = &bench.json(&format!("build long.jsonl {TINY} {QUICK} --chunk --force -o long.micpq"))[0];
    assert_eq!((built["cut"].as_u64(), built["documents"].as_u64()), (Some(0), Some(40)));
    assert!(built["texts"].as_u64() > Some(160), "{built}");
}

#[test]
fn an_index_with_chunks_answers_documents() {
    let bench = Bench::new();
    long_corpus(&bench, "long.jsonl", 0..40);
    bench.ok(&format!("build long.jsonl {TINY} {QUICK} --chunk 24:4 -o long.micpq"));
    let info = &bench.json("index info long.micpq")[0];
    assert_eq!(
        (&info["documents"], &info["chunk"]["tokens"], &info["chunk"]["overlap"]),
        (&40.into(), &24.into(), &4.into())
    );
    let chunks = info["chunks"].as_u64().unwrap();
    assert!(chunks > 200, "{chunks} chunks");

    for flags in ["", "--rerank off", "--group sum", "--hybrid 0.3", "--filter year:1982"] {
        let all = bench.json(&format!("search long.micpq 'wheat corn' -k 100 {flags}"));
        let ids: std::collections::BTreeSet<&str> = all.iter().map(|hit| hit["id"].as_str().unwrap()).collect();
        assert_eq!((all.len(), ids.len()), if flags.contains("year") { (8, 8) } else { (40, 40) }, "{flags}");
        assert_eq!(bench.pages(&format!("search long.micpq 'wheat corn' -k 7 {flags}")).len(), all.len(), "{flags}");
        let hit = &all[0];
        let (number, of, start) =
            (&hit["chunk"]["number"], &hit["chunk"]["of"], hit["chunk"]["start"].as_u64().unwrap());
        assert!(number.as_u64() < of.as_u64(), "{hit}");
        let document = long(hit["id"].as_str().unwrap()[4..].parse().unwrap());
        assert!(
            document[start as usize..].starts_with(hit["text"].as_str().unwrap()),
            "the text is the passage: {hit}"
        );
        assert!(hit["attributes"]["year"].is_i64(), "{hit}");
    }
    let snippet = &bench.json("search long.micpq 'harvest' --hybrid 1 --snippets -k 1")[0]["snippet"];
    assert!(snippet["text"].as_str().unwrap().contains("harvest"), "{snippet}");

    // Replaced and deleted whole.
    std::fs::write(bench.path("one.jsonl"), "{\"id\": \"doc-3\", \"text\": \"oil\"}\n").unwrap();
    assert_eq!(bench.json("index add long.micpq one.jsonl")[0]["documents"], 40);
    assert_eq!(
        bench.json("index delete long.micpq doc-4 doc-5")[0],
        serde_json::json!({ "deleted": 2, "documents": 38 })
    );
    assert!(bench.json("index info long.micpq")[0]["chunks"].as_u64().unwrap() < chunks - 10);
    assert_eq!(bench.json("index verify long.micpq")[0]["sound"], true);
    assert!(bench.fails("export long.micpq --to codes -o codes.npy", 2).contains("one code per document"));
    bench.ok("export long.micpq --to jsonl -o out.jsonl");
    let exported = text(&bench.bytes("out.jsonl"));
    let row: serde_json::Value = serde_json::from_str(exported.lines().next().unwrap()).unwrap();
    assert_eq!(row["text"], long(0), "the whole text comes back");

    let said = bench.fails(&format!("build long.jsonl {TINY} --chunk 1000 -o x.micpq"), 2);
    assert!(said.contains("1000 tokens are longer than the encoder takes: 32"), "{said}");
    assert!(bench.fails(&format!("build long.jsonl {TINY} --chunk 8:7 -o x.micpq"), 2).contains("half"));
}

#[test]
fn a_server_splits_long_texts_and_says_how_many_it_cut() {
    let bench = Bench::new();
    bench.ok(&format!("build news.jsonl {TINY} {QUICK} -o news.micpq"));
    let server = Server::start(&bench, "news.micpq --data served");
    let documents: Vec<_> = (0..10).map(|i| json!({ "id": format!("doc-{i}"), "text": long(i) })).collect();
    for (name, chunk, cut) in [("whole", json!(null), 10), ("parts", json!({ "tokens": 24, "overlap": 4 }), 0)] {
        let created = server.ok(
            "PUT",
            &format!("/v1/indexes/{name}"),
            json!({ "like": "news", "chunk": chunk, "language": "de" }),
        );
        assert_eq!((&created["language"], created["chunk"].is_null()), (&json!("de"), chunk.is_null()), "{created}");
        let stored =
            server.ok("PUT", &format!("/v1/indexes/{name}/documents"), json!({ "documents": documents.as_slice() }));
        assert_eq!((&stored["documents"], &stored["cut"]), (&json!(10), &json!(cut)), "{name}: {stored}");
    }
    for group in ["best", "sum"] {
        let query = json!({ "text": "wheat harvest", "k": 100, "group": group });
        let found = server.ok("POST", "/v1/indexes/parts/query", query);
        let hits = found["hits"].as_array().unwrap();
        assert_eq!(hits.len(), 10, "{group}: hits are documents");
        let hit = &hits[0];
        let start = hit["chunk"]["start"].as_u64().unwrap() as usize;
        let whole = long(hit["id"].as_str().unwrap()[4..].parse().unwrap());
        assert!(whole[start..].starts_with(hit["text"].as_str().unwrap()), "{hit}");
    }
    server.ok("DELETE", "/v1/indexes/parts/documents/doc-3", json!(null));
    assert_eq!(server.count("parts"), 9);
    let (status, refused) =
        server.call("PUT", "/v1/indexes/other", json!({ "like": "news", "chunk": { "tokens": 1000 } }));
    assert!(status == 422 && refused.to_string().contains("longer than the encoder takes"), "{status} {refused}");
}

/// A folder with a file of every kind, and some that cannot be read.
fn folder(bench: &Bench) {
    let write = |name: &str, bytes: &[u8]| {
        let path = bench.path("docs").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    };
    for i in 0..20 {
        write(
            &format!("notes/{i}.md"),
            format!("# Oil {i}\n\ncrude barrel opec\n\n## Bank\n\nrate loan credit {i}\n").as_bytes(),
        );
    }
    write("page.html", b"<title>Wheat</title><body><nav>menu</nav><h1>Harvest</h1><p>corn and grain</p></body>");
    write("mail.mbox", b"From a Thu Mar 19 10:00:00 1987\nFrom: a@b.c\nSubject: ship\nMessage-ID: <1@b>\n\nport strike\n\nFrom a Thu Mar 19 10:00:00 1987\nFrom: a@b.c\nSubject: cargo\nMessage-ID: <2@b>\n\ndock union\n");
    write("plain.txt", b"tanker price");
    write("latin.txt", b"caf\xe9");
    write("latin.html", b"<title>Caf\xe9</title><p>coffee</p>");
    write(
        "wide.html",
        &"\u{feff}<title>Wide</title><p>wheat</p>".encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>(),
    );
    write("broken.pdf", b"this is no PDF");
}

#[test]
fn a_folder_of_files_is_read_and_what_fails_is_counted() {
    let bench = Bench::new();
    folder(&bench);
    let output = bench.run(&format!("build docs {TINY} {QUICK} --extract 'pdf=false {{}}' -o docs.micpq"));
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("latin.txt: not UTF-8: byte 0xe9") && said.contains("broken.pdf: \"false\" cannot read it"),
        "{said}"
    );
    assert!(
        said.contains("latin.html: not UTF-8: byte 0xe9") && said.contains("wide.html: this is UTF-16; convert it"),
        "{said}"
    );
    assert!(said.contains("4 rows skipped"), "{said}");
    let hits = bench.json("search docs.micpq 'x' -k 100");
    let titles: BTreeMap<&str, &str> = hits
        .iter()
        .map(|hit| (hit["id"].as_str().unwrap(), hit["attributes"]["title"].as_str().unwrap_or("")))
        .collect();
    assert_eq!(hits.len(), 24);
    assert_eq!((titles["notes/7.md"], titles["page.html"], titles["mail.mbox#2@b"]), ("Oil 7", "Wheat", "cargo"));
    let page = hits.iter().find(|hit| hit["id"] == "page.html").unwrap();
    assert_eq!(page["text"], "# Wheat\n\n# Harvest\n\ncorn and grain");

    assert!(text(&bench.run(&format!("build docs {TINY} {QUICK} -o none.micpq")).stderr).contains("pdftotext {} -"));
    assert!(bench.fails(&format!("build docs {TINY} --on-error stop -o stop.micpq"), 1).contains("broken.pdf"));
    let said = bench.fails("build hf://datasets/org/name/data/a.parquet -o x.micpq", 1);
    assert!(said.contains("hf download org/name 'data/a.parquet' --repo-type dataset --local-dir data"), "{said}");
    assert!(
        bench.fails("build hf://org/name@v1 -o x.micpq", 1).contains("hf download org/name --revision v1 --local-dir")
    );
    assert!(
        bench
            .fails(&format!("build docs {TINY} --max-extract-seconds 0 -o x.micpq"), 2)
            .contains("--max-extract-seconds is 0")
    );
    assert!(bench.fails("build 'docs/*.xyz' -o x.micpq", 1).contains("matches no file"));
    assert!(bench.fails("build docs --extract pdf -o x.micpq", 2).contains("pdf=pdftotext {} -"));
    let hits = bench.ok(&format!("build 'docs/notes/1*.md' {TINY} {QUICK} -o some.micpq"));
    assert!(hits.contains("11 documents"), "{hits}");
}

/// Programs of the user's, where they are installed.
#[test]
fn pdf_and_office_files_are_extracted_by_commands() {
    let bench = Bench::new();
    std::fs::create_dir(bench.path("docs")).unwrap();
    let here = |program: &str| {
        Command::new(program).arg("--help").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    };
    if !here("pdftotext") || !here("pandoc") {
        eprintln!("skipped: extraction of PDF and office files needs pdftotext (poppler-utils) and pandoc");
        return;
    }
    let stream = "BT /F1 24 Tf 72 720 Td (crude oil barrel) Tj ET";
    let pdf = format!(
        "%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj\n\
         3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>endobj\n\
         4 0 obj<</Length {}>>stream\n{stream}\nendstream endobj\n\
         5 0 obj<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>endobj\ntrailer<</Root 1 0 R>>\n",
        stream.len()
    );
    std::fs::write(bench.path("docs/a.pdf"), pdf).unwrap();
    std::fs::write(bench.path("docs/none.pdf"), "this is no PDF").unwrap();
    std::fs::write(bench.path("source.md"), "# Wheat\n\ncorn harvest grain\n").unwrap();
    for name in ["docs/b.docx", "docs/c.odt"] {
        let made =
            Command::new("pandoc").arg(bench.path("source.md")).arg("-o").arg(bench.path(name)).status().unwrap();
        assert!(made.success(), "{name}");
    }
    bench.ok(&format!("train news.jsonl {TINY} {QUICK} -o model"));
    let extract = "--extract 'pdf=pdftotext {} -' --extract 'docx,odt=pandoc -t plain {}'";
    let output = bench.run(&format!("index create docs.micpq docs --model model {extract}"));
    assert!(
        output.status.success() && text(&output.stderr).contains("none.pdf: \"pdftotext\" cannot read it"),
        "{output:?}"
    );
    let hits = bench.json("search docs.micpq 'oil' -k 10");
    let texts: BTreeMap<&str, &str> =
        hits.iter().map(|hit| (hit["id"].as_str().unwrap(), hit["text"].as_str().unwrap())).collect();
    assert_eq!(texts.len(), 3, "{texts:?}");
    assert!(texts["a.pdf"].contains("crude oil barrel"), "{texts:?}");
    assert!(
        texts["b.docx"].contains("corn harvest grain") && texts["c.odt"].contains("corn harvest grain"),
        "{texts:?}"
    );
}

/// Ids and texts of an index.
fn contents(bench: &Bench, index: &str) -> BTreeMap<String, String> {
    let _ = std::fs::remove_file(bench.path("contents.jsonl"));
    bench.ok(&format!("export {index} --to jsonl -o contents.jsonl"));
    let rows = text(&bench.bytes("contents.jsonl"));
    let rows = rows.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    rows.map(|row| (row["id"].as_str().unwrap().to_owned(), row["text"].as_str().unwrap().to_owned())).collect()
}

#[test]
fn sync_makes_an_index_like_its_folder() {
    let bench = Bench::new();
    folder(&bench);
    bench.ok(&format!("build docs {TINY} {QUICK} --chunk 12:2 -o docs.micpq"));
    let first = &bench.json("sync docs docs.micpq")[0];
    assert_eq!(
        (&first["added"], &first["replaced"], &first["deleted"], &first["unchanged"]),
        (&0.into(), &0.into(), &0.into(), &23.into())
    );
    assert_eq!(first["skipped"], 4);

    std::fs::remove_file(bench.path("docs/notes/3.md")).unwrap();
    std::fs::write(bench.path("docs/notes/4.md"), "# Changed\n\nwheat\n").unwrap();
    std::fs::write(bench.path("docs/new.md"), "# New\n\nship\n").unwrap();
    // One message less, and one that cannot be read any more.
    std::fs::write(
        bench.path("docs/mail.mbox"),
        "From a Thu Mar 19 10:00:00 1987\nFrom: a@b.c\nSubject: cargo\nMessage-ID: <2@b>\n\nnew dock\n",
    )
    .unwrap();
    std::fs::write(bench.path("docs/plain.txt"), b"caf\xe9").unwrap();
    let second = &bench.json("sync docs docs.micpq")[0];
    assert_eq!(
        (&second["added"], &second["replaced"], &second["deleted"], &second["skipped"]),
        (&1.into(), &2.into(), &1.into(), &5.into()),
        "{second}"
    );
    let now = contents(&bench, "docs.micpq");
    assert!(!now.contains_key("notes/3.md") && !now.contains_key("mail.mbox#1@b"));
    assert_eq!((now["notes/4.md"].as_str(), now["new.md"].as_str()), ("# Changed\n\nwheat\n", "# New\n\nship\n"));
    assert_eq!(now["mail.mbox#2@b"], "# cargo\n\nnew dock");
    assert_eq!(now["plain.txt"], "tanker price", "what cannot be read replaces nothing");
    assert_eq!(bench.json("index verify docs.micpq")[0]["sound"], true);
    assert!(bench.fails("sync docs nothing.micpq", 2).contains("micpq build docs"));
}

#[test]
fn a_folder_that_lost_its_files_empties_no_index() {
    let bench = Bench::new();
    folder(&bench);
    bench.ok(&format!("build docs {TINY} {QUICK} -o docs.micpq"));
    let before = contents(&bench, "docs.micpq");
    let commit = || bench.bytes("docs.micpq/store/meta.json");
    // As if the disk were not mounted: the folder is there and has nothing.
    let put = |from: &str, to: &str| {
        let entries: Vec<_> = std::fs::read_dir(bench.path(from)).unwrap().map(Result::unwrap).collect();
        for entry in entries {
            std::fs::rename(entry.path(), bench.path(to).join(entry.file_name())).unwrap();
        }
    };
    std::fs::create_dir(bench.path("disk")).unwrap();
    put("docs", "disk");
    let refused = |line: &str, says: &[&str]| {
        let made = commit();
        let said = bench.fails(line, 1);
        assert!(says.iter().all(|says| said.contains(says)) && said.contains("Nothing was changed"), "{said}");
        assert!(contents(&bench, "docs.micpq") == before && commit() == made, "{line}");
    };
    refused("sync docs docs.micpq", &["docs: has no files", "0 of the 23", "documents of 23", "set --allow-empty"]);
    #[cfg(unix)]
    {
        // One folder cannot be read, and everything else is gone.
        std::os::unix::fs::symlink("notes", bench.path("docs/notes")).unwrap();
        refused("sync docs docs.micpq", &["0 of the 23", "documents of 3 ", "set --allow-empty"]);
        std::fs::remove_file(bench.path("docs/notes")).unwrap();
    }
    put("disk", "docs");
    assert_eq!(bench.json("sync docs docs.micpq")[0]["unchanged"], 23);
    // Two files are gone.
    std::fs::remove_file(bench.path("docs/plain.txt")).unwrap();
    std::fs::remove_file(bench.path("docs/notes/3.md")).unwrap();
    refused(
        "sync docs docs.micpq --max-delete 1",
        &["lost 2 of the 23 files", "--max-delete is 1", "set --max-delete to 2"],
    );
    assert_eq!(bench.json("sync docs docs.micpq --max-delete 2")[0]["deleted"], 2);
    put("docs", "disk");
    assert_eq!(bench.json("sync docs docs.micpq --allow-empty")[0]["deleted"], 21);
    assert_eq!(bench.json("index info docs.micpq")[0]["documents"], 0);
}

/// A message of an mbox file.
fn message(id: &str, subject: &str) -> String {
    format!("From a Thu Mar 19 10:00:00 1987\nFrom: a@b.c\nSubject: {subject}\nMessage-ID: <{id}>\n\nport strike\n\n")
}

#[cfg(unix)]
#[test]
fn files_below_a_folder_that_cannot_be_read_keep_their_documents() {
    let bench = Bench::new();
    folder(&bench);
    bench.ok(&format!("build docs {TINY} {QUICK} -o docs.micpq"));
    let before = contents(&bench, "docs.micpq");
    // A folder that fails, for root too: its name leads in a circle. Another file is gone.
    std::fs::rename(bench.path("docs/notes"), bench.path("away")).unwrap();
    std::os::unix::fs::symlink("notes", bench.path("docs/notes")).unwrap();
    std::fs::remove_file(bench.path("docs/plain.txt")).unwrap();
    let output = bench.run("sync docs docs.micpq");
    let said = text(&output.stderr);
    assert!(output.status.success() && said.contains("docs/notes: "), "{said}");
    let now = contents(&bench, "docs.micpq");
    assert!(!now.contains_key("plain.txt") && now.len() == before.len() - 1, "{} of {}", now.len(), before.len());
    // It is back, without one file.
    std::fs::remove_file(bench.path("docs/notes")).unwrap();
    std::fs::rename(bench.path("away"), bench.path("docs/notes")).unwrap();
    std::fs::remove_file(bench.path("docs/notes/3.md")).unwrap();
    let third = &bench.json("sync docs docs.micpq")[0];
    assert_eq!((&third["deleted"], &third["unchanged"]), (&1.into(), &21.into()), "{third}");
}

#[test]
fn a_message_that_cannot_be_read_any_more_keeps_its_document() {
    let bench = Bench::new();
    folder(&bench);
    bench.ok(&format!("build docs {TINY} {QUICK} -o docs.micpq"));
    let mailbox = bench.path("docs/mail.mbox");
    let broken = "From a Thu Mar 19 10:00:00 1987\n\u{1}\u{2} no header\n\n";
    std::fs::write(&mailbox, broken.to_owned() + &message("2@b", "cargo ship")).unwrap();
    for round in 0..2 {
        let synced = &bench.json("sync docs docs.micpq")[0];
        assert_eq!((&synced["replaced"], &synced["deleted"]), (&1.into(), &0.into()), "{round}: {synced}");
        let now = contents(&bench, "docs.micpq");
        assert_eq!(now["mail.mbox#1@b"], "# ship\n\nport strike", "{round}");
        assert_eq!(now["mail.mbox#2@b"], "# cargo ship\n\nport strike", "{round}");
    }
    // It is gone now, and all that is there can be read.
    std::fs::write(&mailbox, message("2@b", "cargo ship")).unwrap();
    bench.ok("sync docs docs.micpq");
    assert!(!contents(&bench, "docs.micpq").contains_key("mail.mbox#1@b"));
    assert_eq!(bench.json("sync docs docs.micpq")[0]["unchanged"], 23);
}

#[test]
fn messages_with_the_same_id_are_all_kept() {
    let bench = Bench::new();
    folder(&bench);
    let mailbox = |subjects: &[&str]| {
        let messages: String = subjects.iter().map(|subject| message("same@b", subject)).collect();
        std::fs::write(bench.path("docs/mail.mbox"), messages).unwrap();
    };
    let subjects = || {
        let mail = contents(&bench, "docs.micpq").into_iter().filter(|(id, _)| id.starts_with("mail.mbox"));
        mail.map(|(id, text)| format!("{id} {}", text.lines().next().unwrap())).collect::<Vec<_>>()
    };
    mailbox(&["one", "two"]);
    bench.ok(&format!("build docs {TINY} {QUICK} -o docs.micpq"));
    assert_eq!(subjects(), ["mail.mbox#same@b # one", "mail.mbox#same@b#2 # two"]);
    mailbox(&["one", "two", "three"]);
    bench.ok("sync docs docs.micpq");
    assert_eq!(subjects(), ["mail.mbox#same@b # one", "mail.mbox#same@b#2 # two", "mail.mbox#same@b#3 # three"]);
    mailbox(&["two"]);
    bench.ok("sync docs docs.micpq");
    assert_eq!(subjects(), ["mail.mbox#same@b # two"]);
}

#[test]
fn an_index_is_kept_like_one_folder_which_may_move() {
    let bench = Bench::new();
    folder(&bench);
    bench.ok(&format!("build docs {TINY} {QUICK} -o docs.micpq"));
    let before = contents(&bench, "docs.micpq");
    std::fs::create_dir(bench.path("other")).unwrap();
    std::fs::write(bench.path("other/plain.txt"), "wheat harvest").unwrap();
    let said = bench.fails("sync other docs.micpq", 2);
    assert!(said.contains("another folder than") && said.contains("23 files, of which 0 are here"), "{said}");
    assert_eq!(contents(&bench, "docs.micpq"), before);
    std::fs::rename(bench.path("docs"), bench.path("moved")).unwrap();
    std::fs::write(bench.path("moved/plain.txt"), "tanker").unwrap();
    let synced = &bench.json("sync moved docs.micpq")[0];
    assert_eq!((&synced["unchanged"], &synced["replaced"], &synced["deleted"]), (&22.into(), &1.into(), &0.into()));
    // Where it is, everything may change.
    std::fs::remove_dir_all(bench.path("moved")).unwrap();
    std::fs::create_dir(bench.path("moved")).unwrap();
    std::fs::write(bench.path("moved/plain.txt"), "tanker").unwrap();
    assert!(bench.fails("sync moved docs.micpq", 2).contains("another folder"), "its files came from the old place");
}

#[test]
fn a_watch_goes_on_after_an_error() {
    let bench = Bench::new();
    folder(&bench);
    bench.ok(&format!("build docs {TINY} {QUICK} -o docs.micpq"));
    let said = std::fs::File::create(bench.path("said")).unwrap();
    let mut watch = bench.command("sync docs docs.micpq --watch 0.2");
    let mut watch = watch.stdout(Stdio::null()).stderr(said).spawn().unwrap();
    let mut wait = |what: &str, done: &dyn Fn() -> bool| {
        let limit = std::time::Instant::now() + Duration::from_secs(60);
        while !done() {
            assert!(watch.try_wait().unwrap().is_none(), "it ended: {}", text(&bench.bytes("said")));
            assert!(std::time::Instant::now() < limit, "{what}: {}", text(&bench.bytes("said")));
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    wait("skips are told", &|| text(&bench.bytes("said")).contains("skipped: "));
    std::fs::rename(bench.path("docs"), bench.path("away")).unwrap();
    wait("the error is told", &|| text(&bench.bytes("said")).contains("sync failed, the next look tries again"));
    std::fs::write(bench.path("away/new.md"), "# New\n\nship\n").unwrap();
    std::fs::rename(bench.path("away"), bench.path("docs")).unwrap();
    wait("the new file is there", &|| contents(&bench, "docs.micpq").contains_key("new.md"));
    watch.kill().unwrap();
    watch.wait().unwrap();
    let told = text(&bench.bytes("said")).matches("sync failed").count();
    assert_eq!(told, 1, "the same error is told once");
}

#[test]
fn a_killed_sync_is_finished_by_the_next() {
    let bench = Bench::new();
    folder(&bench);
    bench.ok(&format!("build docs {TINY} {QUICK} -o docs.micpq"));
    for round in 0..6u64 {
        for i in 0..40 {
            let path = bench.path("docs").join(format!("notes/{}.md", (i * 7 + round) % 60));
            std::fs::write(path, format!("# Round {round}\n\noil crude barrel {i}\n")).unwrap();
        }
        let _ = std::fs::remove_file(bench.path(&format!("docs/notes/{}.md", round * 5)));
        let mut child = bench
            .command("sync docs docs.micpq --commit-every 3")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(40 + 60 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(bench.json("index verify docs.micpq")[0]["sound"], true, "round {round}");
    }
    bench.ok("sync docs docs.micpq");
    let now = contents(&bench, "docs.micpq");
    let mut expected: BTreeMap<String, String> = BTreeMap::new();
    for entry in std::fs::read_dir(bench.path("docs/notes")).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("notes/{}", path.file_name().unwrap().to_str().unwrap());
        expected.insert(name, std::fs::read_to_string(path).unwrap());
    }
    let notes: BTreeMap<String, String> = now.into_iter().filter(|(id, _)| id.starts_with("notes/")).collect();
    assert_eq!(notes, expected);
    let again = &bench.json("sync docs docs.micpq")[0];
    assert_eq!((&again["added"], &again["replaced"], &again["deleted"]), (&0.into(), &0.into(), &0.into()));
}

#[test]
fn keyword_search_follows_the_language_of_the_texts() {
    let bench = Bench::new();
    let german = |i: usize| {
        format!("Das Programm Nummer {i} kopiert Dateien und Verzeichnisse von einem Ort zu einem anderen Ort.")
    };
    let japanese = |i: usize| format!("番号{i}のコマンドはファイルとディレクトリを検索します。");
    for (code, rows, word, missing) in [
        ("de", (0..30).map(german).collect::<Vec<_>>(), "Verzeichnis", "Datenbanken"),
        ("ja", (0..30).map(japanese).collect(), "検索", "印刷"),
    ] {
        let rows: String = rows.iter().map(|text| format!("{}\n", serde_json::json!({ "text": text }))).collect();
        std::fs::write(bench.path("texts.jsonl"), rows).unwrap();
        bench.ok(&format!("build texts.jsonl {TINY} {QUICK} --force -o texts.micpq"));
        assert_eq!(bench.json("index info texts.micpq")[0]["language"], code);
        let hits = bench.json(&format!("search texts.micpq x --keywords {word} --hybrid 1 --snippets -k 100"));
        assert_eq!(hits.len(), 30, "{word}");
        assert!(!hits[0]["snippet"]["marks"].as_array().unwrap().is_empty(), "{}", hits[0]);
        assert!(bench.json(&format!("search texts.micpq x --keywords {missing} --hybrid 1")).is_empty());
        let english = bench.ok(&format!("build texts.jsonl {TINY} {QUICK} --force --language en -o english.micpq"));
        assert!(english.contains("30 documents"));
        assert!(
            bench.json(&format!("search english.micpq x --keywords {word} --hybrid 1")).is_empty(),
            "{word} in English"
        );
    }
    assert!(bench.fails("build texts.jsonl --language xx -o x.micpq", 2).contains("unknown language 'xx'"));
}
