//! Every format, plain and compressed, from files, folders and pipes.

use super::*;

const LINES: &str = r#"{"id": "a", "text": "one", "label": 3, "year": 2004, "price": 1.5, "ok": true, "tags": ["x", "y"], "none": null}

{"_id": 7, "body": "two", "labels": ["s", 4], "deep": {"er": {"est": 1}, "list": [1, true, "z"]}}
{"content": "three", "title": "T"}
"bare"
"#;

#[test]
fn json_lines_of_all_types_are_read() {
    let (documents, skipped) = read(LINES, &CorpusConfig::default()).unwrap();
    assert_eq!(skipped.count(), 0);
    let attribute = |name: &str, value: Value| (name.to_owned(), value);
    assert_eq!(
        documents,
        [
            Document {
                id: DocId::Str("a".into()),
                text: "one".into(),
                labels: strings(&["3"]),
                attributes: vec![
                    attribute("year", Value::Int(2004)),
                    attribute("price", Value::Float(1.5)),
                    attribute("ok", Value::Bool(true)),
                    attribute("tags", Value::Texts(strings(&["x", "y"]))),
                ],
            },
            Document {
                id: DocId::Int(7),
                text: "two".into(),
                labels: strings(&["s", "4"]),
                attributes: vec![
                    attribute("deep.er.est", Value::Int(1)),
                    attribute("deep.list", Value::Texts(strings(&["1", "true", "z"]))),
                ],
            },
            Document {
                id: DocId::Int(2),
                text: "three".into(),
                labels: vec![],
                attributes: vec![attribute("title", Value::Text("T".into()))],
            },
            Document { id: DocId::Int(3), text: "bare".into(), labels: vec![], attributes: vec![] },
        ]
    );
}

#[test]
fn compression_is_detected_by_content() {
    let scene = Scene::new();
    let (plain, _) = read(LINES, &CorpusConfig::default()).unwrap();
    let (left, right) = LINES.as_bytes().split_at(150);
    let two_members = [gzip(left), gzip(right)].concat();
    let two_frames = [zstd(left), zstd(right)].concat();
    for (name, bytes) in [
        ("a.jsonl", LINES.into()),
        ("a.jsonl.gz", gzip(LINES.as_bytes())),
        ("a.jsonl.zst", zstd(LINES.as_bytes())),
        ("members.jsonl.gz", two_members),
        ("frames.jsonl.zst", two_frames),
        // Wrong names, and one without an ending.
        ("zstd-inside.jsonl.gz", zstd(LINES.as_bytes())),
        ("gzip-inside.jsonl", gzip(LINES.as_bytes())),
        ("plain-inside.jsonl.gz", LINES.into()),
        ("corpus", gzip(LINES.as_bytes())),
        ("marked.jsonl", ["\u{feff}", LINES].concat().into()),
    ] {
        let path = scene.file(name, &bytes);
        let corpus = Corpus::open(&path, &CorpusConfig::default()).unwrap();
        assert_eq!((corpus.format(), corpus.bytes_total()), (Format::Jsonl, Some(bytes.len() as u64)), "{name}");
        let mut corpus = corpus;
        let documents = corpus.by_ref().collect::<Result<Vec<_>>>().unwrap();
        assert_eq!(documents, plain, "{name}");
        assert_eq!(corpus.bytes_read(), bytes.len() as u64, "{name}");
    }
}

#[test]
fn a_pipe_of_single_bytes_is_read() {
    struct Drip(Cursor<Vec<u8>>);
    impl Read for Drip {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = buffer.len().min(1);
            self.0.read(&mut buffer[..count])
        }
    }
    let array = format!("   \n [{}]", r#"{"text": "a"}, {"text": "b"}"#);
    for (bytes, format, count) in [
        (gzip(LINES.as_bytes()), Format::Jsonl, 4),
        (zstd(LINES.as_bytes()), Format::Jsonl, 4),
        (array.into_bytes(), Format::Json, 2),
        (b"[Reuters] one\n\ntwo\n".to_vec(), Format::Text, 2),
        (vec![], Format::Text, 0),
    ] {
        let corpus = Corpus::from_reader("pipe", Drip(Cursor::new(bytes)), &CorpusConfig::default()).unwrap();
        assert_eq!((corpus.format(), corpus.bytes_total()), (format, None));
        assert_eq!(drain(corpus).unwrap().0.len(), count);
    }
}

#[test]
fn arrays_are_read_element_by_element() {
    let array = r#"
      [ {"title": "A ] title", "body": "its \"body\"\n}", "topics": ["cocoa"], "places": ["usa", "uk"], "id": "1"},
        {"title": "only a title", "id": "2", "topics": []},
        {"body": "only a body", "id": "9"} ,
        "a bare text"
      ]
    "#;
    let config = CorpusConfig {
        text_fields: strings(&["title", "body"]),
        label_field: Some("topics".into()),
        ..CorpusConfig::default()
    };
    let (documents, _) = read(array, &config).unwrap();
    assert_eq!(texts(&documents), ["A ] title its \"body\"\n}", "only a title", "only a body", "a bare text"]);
    assert_eq!(ids(&documents), ["1", "2", "9", "3"]);
    assert_eq!(documents[0].labels, ["cocoa"]);
    assert_eq!(documents[0].attributes, [("places".to_owned(), Value::Texts(strings(&["usa", "uk"])))]);
    assert!(documents[1].labels.is_empty());
    assert_eq!(read("[]", &CorpusConfig::default()).unwrap().0, []);
    assert_eq!(read(" [ ] ", &CorpusConfig::default()).unwrap().0, []);
}

#[test]
fn a_json_file_may_hold_json_lines() {
    let scene = Scene::new();
    let corpus = Corpus::open(&scene.file("a.json", LINES), &CorpusConfig::default()).unwrap();
    assert_eq!(corpus.format(), Format::Jsonl);
    assert_eq!(drain(corpus).unwrap().0.len(), 4);
}

#[test]
fn beir_folders_are_read() {
    let rows = concat!(
        r#"{"_id": "MED-10", "title": "Statins", "text": "and cancer.", "metadata": {"url": "http://a", "n": {}}}"#,
        "\n",
        r#"{"_id": "MED-14", "title": "", "text": "no title", "metadata": {}}"#,
        "\n"
    );
    for (name, bytes) in [
        ("corpus.jsonl", rows.into()),
        ("corpus.jsonl.gz", gzip(rows.as_bytes())),
        ("corpus.jsonl.zst", zstd(rows.as_bytes())),
    ] {
        let scene = Scene::new();
        let file = scene.file(name, bytes);
        scene.file("queries.jsonl", r#"{"_id": "q", "text": "not a document"}"#);
        scene.file("qrels/test.tsv", "query-id\tcorpus-id\tscore\n");
        for (path, config) in [(scene.root(), CorpusConfig::default()), (file.as_path(), format(Format::Beir))] {
            let corpus = Corpus::open(path, &config).unwrap();
            assert_eq!(corpus.format(), Format::Beir);
            let (documents, _) = drain(corpus).unwrap();
            assert_eq!(texts(&documents), ["Statins and cancer.", "no title"]);
            assert_eq!(documents[0].id, DocId::Str("MED-10".into()));
            assert_eq!(documents[0].attributes, [("metadata.url".to_owned(), Value::Text("http://a".into()))]);
        }
    }
    let error = Corpus::open(Scene::new().root(), &format(Format::Beir)).unwrap_err().to_string();
    assert!(error.contains("corpus.jsonl"), "{error}");
}

#[test]
fn every_line_of_plain_text_is_a_document() {
    let scene = Scene::new();
    let path = scene.file("a.txt", "one\r\n\n  \ntwo {\"text\": 1}\nlast");
    let (documents, skipped) = drain(Corpus::open(&path, &CorpusConfig::default()).unwrap()).unwrap();
    assert_eq!(texts(&documents), ["one", "two {\"text\": 1}", "last"]);
    assert_eq!((ids(&documents), skipped.count()), (strings(&["0", "1", "2"]), 0));
    // With empty documents allowed, every line is a document.
    let config = CorpusConfig { allow_empty_text: true, text_fields: strings(&["body"]), ..CorpusConfig::default() };
    let (documents, _) = drain(Corpus::open(&path, &config).unwrap()).unwrap();
    assert_eq!(texts(&documents), ["one", "", "", "two {\"text\": 1}", "last"]);
}

#[test]
fn folders_of_text_files_are_read() {
    let scene = Scene::new();
    scene.file("b/2.txt", "second");
    scene.file("b/10.txt", "tenth\nof b");
    scene.file("a.txt", gzip(b"packed"));
    scene.file("b.md", zstd(b"packed too"));
    scene.file(".hidden", "no");
    scene.file(".git/objects", "no");
    scene.file("b/deep/er/x", "deep");
    let (documents, _) = drain(Corpus::open(scene.root(), &CorpusConfig::default()).unwrap()).unwrap();
    assert_eq!(ids(&documents), ["a.txt", "b/10.txt", "b/2.txt", "b/deep/er/x", "b.md"]);
    assert_eq!(texts(&documents), ["packed", "tenth\nof b", "second", "deep", "packed too"]);
    assert!(documents.iter().all(|document| document.labels.is_empty()));

    let config = CorpusConfig { folder_labels: true, ..CorpusConfig::default() };
    let (documents, _) = drain(Corpus::open(scene.root(), &config).unwrap()).unwrap();
    let labels: Vec<&[String]> = documents.iter().map(|document| document.labels.as_slice()).collect();
    assert_eq!(labels, [&[] as &[String], &strings(&["b"]), &strings(&["b"]), &strings(&["b"]), &[]]);
}

#[cfg(unix)]
#[test]
fn links_to_files_are_followed_and_links_to_folders_are_not() {
    let scene = Scene::new();
    scene.file("in/a.txt", "text");
    std::os::unix::fs::symlink(scene.root().join("in/a.txt"), scene.root().join("in/b.txt")).unwrap();
    std::os::unix::fs::symlink(scene.root(), scene.root().join("in/circle")).unwrap();
    let (documents, _) = drain(Corpus::open(scene.root(), &CorpusConfig::default()).unwrap()).unwrap();
    assert_eq!(ids(&documents), ["in/a.txt", "in/b.txt"]);
}

#[test]
fn folders_of_row_files_are_one_corpus() {
    let scene = Scene::new();
    scene.file("part-1.jsonl.gz", gzip(br#"{"text": "a"}"#));
    scene.file("part-2.jsonl", "{\"text\": \"b\"}\n{\"text\": \"c\"}\n");
    let corpus = Corpus::open(scene.root(), &CorpusConfig::default()).unwrap();
    assert_eq!(corpus.format(), Format::Jsonl);
    let (documents, _) = drain(corpus).unwrap();
    assert_eq!((texts(&documents), ids(&documents)), (vec!["a", "b", "c"], strings(&["0", "1", "2"])));

    // A note among the files makes the format ambiguous; a configured format settles it.
    scene.file("README.md", "about");
    let error = Corpus::open(scene.root(), &CorpusConfig::default()).unwrap_err().to_string();
    assert!(error.contains("2 jsonl, 1 text"), "{error}");
    assert_eq!(drain(Corpus::open(scene.root(), &format(Format::Jsonl)).unwrap()).unwrap().0.len(), 3);
    assert_eq!(drain(Corpus::open(scene.root(), &format(Format::Folder)).unwrap()).unwrap().0.len(), 3);
    let error = Corpus::open(scene.root(), &format(Format::Parquet)).unwrap_err().to_string();
    assert!(error.contains("no parquet file"), "{error}");
}

#[test]
fn fields_can_be_chosen_dotted_and_ignored() {
    let row = r#"{"doc": {"key": 5, "abstract": "A", "vector": [0.5]}, "text": "T", "cat": "a; b;", "x": [[1]]}"#;
    let config = CorpusConfig {
        id_field: Some("doc.key".into()),
        text_fields: strings(&["doc.abstract", "text"]),
        label_field: Some("cat".into()),
        label_separator: Some(";".into()),
        ignore_fields: strings(&["doc.vector", "x"]),
        ..CorpusConfig::default()
    };
    let (documents, _) = read(row, &config).unwrap();
    let expected = Document { id: DocId::Int(5), text: "A T".into(), labels: strings(&["a", "b"]), attributes: vec![] };
    assert_eq!(documents, [expected]);
}

#[test]
fn signed_ids_keep_their_sign() {
    let (documents, _) = read(r#"{"id": -5, "text": "t"}"#, &CorpusConfig::default()).unwrap();
    assert_eq!(documents[0].id, DocId::Str("-5".into()));
}
