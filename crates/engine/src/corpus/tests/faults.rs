//! Bad corpora. Every fault is reported with its place and is skipped or final, never a panic.

use proptest::prelude::*;

use super::*;

/// Checks the error that stops the reading, and the number of documents left when bad rows are skipped.
fn stops(bytes: impl AsRef<[u8]>, config: &CorpusConfig, words: &[&str], left: usize) {
    let bytes = bytes.as_ref();
    let stop = CorpusConfig { on_error: OnError::Stop, ..config.clone() };
    let error = read(bytes, &stop).unwrap_err();
    assert!(matches!(error, Error::Input { .. }), "{error:?}");
    let message = error.to_string();
    for word in words {
        assert!(message.contains(word), "{word:?} is not in: {message}");
    }
    let skip = CorpusConfig { on_error: OnError::Skip, ..config.clone() };
    let (documents, skipped) = read(bytes, &skip).unwrap();
    assert_eq!(documents.len(), left, "{skipped}");
    assert_eq!(skipped.count(), 1);
    assert_eq!(skipped.reasons(), [message]);
}

/// Checks an error that stops the reading even when bad rows are skipped.
fn ends(bytes: impl AsRef<[u8]>, config: &CorpusConfig, words: &[&str]) {
    for on_error in [OnError::Skip, OnError::Stop] {
        let message = read(bytes.as_ref(), &CorpusConfig { on_error, ..config.clone() }).unwrap_err().to_string();
        for word in words {
            assert!(message.contains(word), "{word:?} is not in: {message}");
        }
    }
}

#[test]
fn repeated_ids_are_refused() {
    let config = CorpusConfig::default();
    let rows = "{\"id\": \"a\", \"text\": \"1\"}\n{\"id\": \"b\", \"text\": \"2\"}\n{\"id\": \"a\", \"text\": \"3\"}\n";
    stops(rows, &config, &["memory:3", "id \"a\"", "row 3"], 2);
    let (documents, _) = read(rows, &skipping()).unwrap();
    assert_eq!(texts(&documents), ["1", "2"], "the earlier one stays");
    // A number and a string that print alike; a row number that equals a given id.
    stops("{\"id\": \"1\", \"text\": \"x\"}\n{\"id\": 1, \"text\": \"y\"}", &config, &["id \"1\""], 1);
    stops("{\"id\": 1, \"text\": \"x\"}\n{\"text\": \"y\"}", &config, &["id \"1\""], 1);
    let config = CorpusConfig { unique_ids: false, ..config };
    assert_eq!(read(rows, &config).unwrap().0.len(), 3);
    // Useless ids can be ignored.
    let config = CorpusConfig { ignore_fields: strings(&["id"]), ..CorpusConfig::default() };
    assert_eq!(ids(&read(rows, &config).unwrap().0), ["0", "1", "2"]);
    // The id of a bad row can be used again.
    let rows = "{\"id\": \"a\", \"text\": \"\"}\n{\"id\": \"a\", \"text\": \"x\"}\n";
    stops(rows, &CorpusConfig::default(), &["empty"], 1);
}

#[test]
fn empty_texts_are_refused_by_default() {
    let rows = "{\"text\": \"a\"}\n{\"text\": \" \\n\"}\n{\"text\": \"b\"}\n";
    stops(rows, &CorpusConfig::default(), &["memory:2", "\"text\"", "empty"], 2);
    stops("{\"text\": null}\n", &CorpusConfig::default(), &["empty"], 0);
    let config = CorpusConfig { allow_empty_text: true, ..CorpusConfig::default() };
    assert_eq!(texts(&read(rows, &config).unwrap().0), ["a", "", "b"]);
    assert_eq!(texts(&read("{\"text\": null}", &config).unwrap().0), [""]);
    // A wrong field name must not give a corpus of empty texts.
    stops("{\"txt\": \"a\"}", &config, &["no text"], 0);
    let (documents, _) = read(rows, &skipping()).unwrap();
    assert_eq!(ids(&documents), ["0", "2"], "a row keeps its number whatever was passed over");
}

#[test]
fn bytes_that_are_not_utf8_are_refused() {
    stops(
        b"{\"text\": \"a\"}\n{\"text\": \"\xe9\"}\n{\"text\": \"b\"}\n",
        &CorpusConfig::default(),
        &["memory:2", "0xe9", "byte 11", "iconv"],
        2,
    );
    stops(
        b"[{\"text\": \"a\"},\n{\"text\": \"\xe9\"}]",
        &CorpusConfig::default(),
        &["memory:2 (element 2)", "0xe9"],
        1,
    );
    stops(b"1,a\n1,\xe9\n", &format(Format::Csv), &["memory:2", "0xe9"], 1);
    stops(b"a\n\xff\xff\nb", &format(Format::Text), &["memory:2", "0xff"], 2);
    // Two halves of a character in two cells.
    stops(b"1,a\n\xc3,\xa9\n", &format(Format::Csv), &["memory:2", "0xc3"], 1);
    ends(b"\xff\xfe{\0\"\0", &CorpusConfig::default(), &["UTF-16", "iconv"]);
}

#[test]
fn rows_over_the_limit_are_bad_rows() {
    let long = "x".repeat(5000);
    let config = |format| CorpusConfig { format: Some(format), max_row_bytes: 1000, ..CorpusConfig::default() };
    let expected = ["memory:2", "the limit is 1000", "max_row_bytes"];
    stops(
        format!("{{\"text\": \"a\"}}\n{{\"text\": \"{long}\"}}\n{{\"text\": \"b\"}}"),
        &config(Format::Jsonl),
        &expected,
        2,
    );
    stops(
        format!("[{{\"text\": \"a\"}},\n{{\"text\": \"{long}\"}}, {{\"text\": \"b\"}}]"),
        &config(Format::Json),
        &expected,
        2,
    );
    stops(format!("1,a\n1,{long}\n1,b\n"), &config(Format::Csv), &expected, 2);
    stops(format!("1,a\n1,\"{long}\"\n1,b"), &config(Format::Csv), &expected, 2);
    stops(format!("a\n{long}\nb\n"), &config(Format::Text), &expected, 2);
    // The columns come from the second row when the first is over the limit.
    stops(format!("1,{long}\n1,b,source\n"), &config(Format::Csv), &["memory:1", "the limit"], 1);

    let scene = Scene::new();
    scene.file("a", "a");
    scene.file("long", &long);
    scene.file("packed", gzip(long.as_bytes()));
    let config = CorpusConfig { on_error: OnError::Skip, ..config(Format::Folder) };
    let (documents, skipped) = drain(Corpus::open(scene.root(), &config).unwrap()).unwrap();
    assert_eq!((documents.len(), skipped.count()), (1, 2));
}

#[test]
fn an_unclosed_quote_is_not_held_in_memory() {
    // An unclosed quote swallows 64 MiB; only the limit is held in memory.
    let bad = io::Cursor::new("1,a\n1,\"").chain(io::repeat(b'x').take(64 << 20));
    let config = CorpusConfig { max_row_bytes: 1 << 16, ..format(Format::Csv) };
    let mut corpus = Corpus::from_reader("bad", bad, &config).unwrap();
    assert_eq!(corpus.next().unwrap().unwrap().text, "a");
    let error = corpus.next().unwrap().unwrap_err().to_string();
    assert!(error.contains("bad:2") && error.contains("never closed"), "{error}");
    assert!(corpus.next().is_none());
}

#[test]
fn truncated_or_damaged_archives_are_refused() {
    let rows: String =
        (0..2000).map(|n| format!("{{\"id\": {n}, \"text\": \"document {n} {}\"}}\n", n * 7919)).collect();
    for (packed, name) in [(gzip(rows.as_bytes()), "gzip"), (zstd(rows.as_bytes()), "zstd")] {
        assert_eq!(read(&packed, &CorpusConfig::default()).unwrap().0.len(), 2000);
        for cut in [12, packed.len() / 2, packed.len() - 3] {
            ends(&packed[..cut], &format(Format::Jsonl), &["memory", name, "cut short", "again"]);
        }
        let mut flipped = packed.clone();
        let middle = flipped.len() / 2;
        flipped[middle..middle + 40].fill(0xa5);
        assert!(read(&flipped, &format(Format::Jsonl)).is_err());
    }
    // In a folder of texts a damaged archive is one bad document.
    let scene = Scene::new();
    scene.file("a.gz", gzip(b"fine"));
    scene.file("b.gz", &gzip(rows.as_bytes())[..100]);
    let config = CorpusConfig { on_error: OnError::Skip, ..format(Format::Folder) };
    let (documents, skipped) = drain(Corpus::open(scene.root(), &config).unwrap()).unwrap();
    assert_eq!((documents.len(), skipped.count()), (1, 1));
    assert!(skipped.reasons()[0].contains("b.gz") && skipped.reasons()[0].contains("cut short"), "{skipped}");
}

#[test]
fn malformed_arrays_are_refused() {
    let config = format(Format::Json);
    ends("[{\"text\": \"a\"},\n {\"text\": \"b", &config, &["memory:2", "element 2", "cut short"]);
    ends("[{\"text\": \"a\"}\n", &config, &["memory:2", "after an element", "cut short", "after 1 elements"]);
    ends("[{\"text\": \"a\"},\n", &config, &["memory:2", "cut short"]);
    ends("[", &config, &["cut short"]);
    ends("", &config, &["beginning of one array", "cut short"]);
    ends("[{\"text\": \"a\"} {\"text\": \"b\"}]", &config, &["after an element", "found \"{\""]);
    ends("[{\"text\": \"a\"},]", &config, &["found \"]\""]);
    ends("[{\"text\": \"a\"}]\n[]", &config, &["nothing after the array", "found \"[\""]);
    ends("{\"data\": []}", &config, &["beginning of one array", "found \"{\""]);
    // One bad element is one bad row.
    stops("[{\"text\": \"a\"},\n{\"text\" \"b\"}, {\"text\": \"c\"}]", &config, &["memory:2 (element 2)", "column"], 2);
    stops("[{\"text\": \"a\"}, 12]", &config, &["(element 2)", "found a number"], 1);
}

#[test]
fn lines_that_are_not_json_are_refused() {
    let config = format(Format::Jsonl);
    stops("{\"text\": \"a\"}\n{\"text\": \"b\"\n{\"text\": \"c\"}", &config, &["memory:2", "EOF", "column 12"], 2);
    stops("{\"text\": \"a\"}\n[1]\n", &config, &["memory:2", "found a list"], 1);
    stops("{\"text\": \"\\ud800\"}", &config, &["memory:1", "hex escape"], 0);
    stops(format!("{{\"text\": \"a\", \"deep\": {}}}", "[".repeat(100_000)), &config, &["recursion limit"], 0);
    let error = read("{\n  \"text\": \"a\"\n}\n", &config).unwrap_err().to_string();
    assert!(error.contains("spread over lines"), "{error}");
}

#[test]
fn values_of_wrong_types_are_refused() {
    let config = CorpusConfig::default();
    let row = |fields: &str| format!("{{\"text\": \"good\"}}\n{{{fields}}}\n");
    stops(row("\"text\": 5"), &config, &["memory:2", "text field \"text\" is a number"], 1);
    stops(row("\"text\": [\"a\"]"), &config, &["\"text\" is a list"], 1);
    stops(row("\"text\": \"a\", \"id\": 1.5"), &config, &["id field \"id\" is a number with a fraction"], 1);
    stops(row("\"text\": \"a\", \"id\": true"), &config, &["id field \"id\" is a boolean"], 1);
    stops(row("\"text\": \"a\", \"id\": \"\""), &config, &["\"id\" is empty"], 1);
    stops(row(&format!("\"text\": \"a\", \"id\": \"{}\"", "i".repeat(5000))), &config, &["5000 bytes", "4096"], 1);
    stops(
        row("\"text\": \"a\", \"label\": 1.5"),
        &config,
        &["label field \"label\" holds a number with a fraction"],
        1,
    );
    stops(row("\"text\": \"a\", \"labels\": [[1]]"), &config, &["label field \"labels\" holds a list"], 1);
    stops(row("\"text\": \"a\", \"vector\": [0.5, 1]"), &config, &["attribute \"vector\"", "fraction", "ignore"], 1);
    stops(row("\"text\": \"a\", \"x\": [{\"y\": 1}]"), &config, &["attribute \"x\"", "an object", "ignore"], 1);
    stops(
        row("\"text\": \"a\", \"x\": 18446744073709551615"),
        &config,
        &["\"x\" is 18446744073709551615", "string"],
        1,
    );
    stops(row("\"text\": \"a\", \"x.y\": 1, \"x\": {\"y\": 2}"), &config, &["\"x.y\" is both"], 1);
}

#[test]
fn missing_fields_are_reported() {
    let rows = "{\"text\": \"a\", \"key\": 1}\n{\"headline\": \"b\", \"year\": 2}\n";
    let words = ["memory:2", "\"text\", \"body\", \"content\"", "\"headline\", \"year\""];
    stops(rows, &CorpusConfig::default(), &words, 1);
    let config = CorpusConfig { text_fields: strings(&["title", "text"]), ..CorpusConfig::default() };
    stops(rows, &config, &["one of \"title\", \"text\" is expected", "\"headline\", \"year\""], 1);
    let config = CorpusConfig { id_field: Some("key".into()), ..CorpusConfig::default() };
    stops(
        "{\"text\": \"a\", \"key\": 1}\n{\"text\": \"b\", \"id\": 2}\n",
        &config,
        &["no id field \"key\"", "\"id\""],
        1,
    );
    stops("{}", &format(Format::Jsonl), &["there are no fields"], 0);
    // The message about a row of very many fields does not list them all.
    let wide: String = (0..1000).map(|n| format!("\"field{n}\": 1")).collect::<Vec<_>>().join(",");
    let error = read(format!("{{{wide}}}"), &CorpusConfig::default()).unwrap_err().to_string();
    assert!(error.contains("and 980 more") && error.len() < 1000, "{error}");
}

#[test]
fn unreadable_files_are_refused() {
    let scene = Scene::new();
    let missing = scene.root().join("missing.jsonl");
    let error = Corpus::open(&missing, &CorpusConfig::default()).unwrap_err();
    assert!(matches!(&error, Error::Io { path, .. } if *path == missing), "{error:?}");
    let error = Corpus::open(&scene.file("a.xyz", "what is this"), &CorpusConfig::default()).unwrap_err().to_string();
    assert!(
        error.contains("a.xyz") && error.contains("jsonl, json, csv, tsv, parquet, arrow, beir, text, folder"),
        "{error}"
    );
    let error = Corpus::open(&scene.file("a.txt", "text"), &format(Format::Folder)).unwrap_err().to_string();
    assert!(error.contains("no folder"), "{error}");
    let error = Corpus::open(&scene.file("a.parquet", "PAR1 not"), &CorpusConfig::default()).unwrap_err().to_string();
    assert!(error.contains("a.parquet") && error.contains("Parquet"), "{error}");
    let config = CorpusConfig { max_row_bytes: 0, ..CorpusConfig::default() };
    assert!(matches!(Corpus::open(&missing, &config), Err(Error::Config { .. })));
}

#[cfg(unix)]
#[test]
fn unreadable_files_of_a_folder_are_bad_rows() {
    let scene = Scene::new();
    scene.file("a", "fine");
    std::os::unix::fs::symlink(scene.root().join("nowhere"), scene.root().join("b")).unwrap();
    std::os::unix::fs::symlink("/", scene.root().join("c")).unwrap();
    fs::write(scene.root().join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"d\xff")), "x").unwrap();
    let stop = CorpusConfig { on_error: OnError::Stop, ..CorpusConfig::default() };
    let error = Corpus::open(scene.root(), &stop).unwrap().nth(1).unwrap().unwrap_err().to_string();
    assert!(error.contains("/b: cannot be read"), "{error}");
    // A folder may hold anything: by default its bad files are skipped.
    for config in [skipping(), CorpusConfig::default()] {
        let (documents, skipped) = drain(Corpus::open(scene.root(), &config).unwrap()).unwrap();
        assert_eq!((ids(&documents), skipped.count()), (strings(&["a"]), 2));
        assert!(skipped.reasons()[1].contains("not UTF-8"), "{skipped}");
    }
}

#[test]
fn the_first_reasons_are_stored_and_all_bad_rows_are_counted() {
    let rows: String = (0..1000).map(|n| if n % 2 == 0 { "{\"text\": \"a\"}\n" } else { "{\"text\": 5}\n" }).collect();
    let (documents, skipped) = read(rows, &skipping()).unwrap();
    assert_eq!((documents.len(), skipped.count(), skipped.reasons().len()), (500, 500, 10));
    let summary = skipped.to_string();
    assert!(summary.starts_with("500 rows skipped\n  memory:2: ") && summary.ends_with("and 490 more"), "{summary}");
}

#[test]
fn iteration_ends_after_an_error() {
    let mut corpus =
        Corpus::from_reader("m", Cursor::new("{\"text\": 1}\n{\"text\": \"a\"}"), &CorpusConfig::default()).unwrap();
    assert!(corpus.next().unwrap().is_err());
    assert!(corpus.next().is_none());
}

/// Reads with bad rows skipped. The result does not matter, but it must not panic.
fn survives(bytes: &[u8], format: Format) {
    let config = CorpusConfig { format: Some(format), max_row_bytes: 40, ..skipping() };
    if let Ok((documents, skipped)) = read(bytes, &config) {
        let summary = skipped.to_string();
        assert!(documents.iter().all(|document| !document.text.trim().is_empty()), "{summary}");
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        text in "[\\[\\]{}\":,a\\\\ \n\r\t1.é-]{0,120}",
    ) {
        for format in Format::ALL.iter().copied() {
            survives(&bytes, format);
            survives(text.as_bytes(), format);
            survives(&gzip(text.as_bytes()), format);
        }
    }

    #[test]
    fn damaged_files_never_panic(at in 0.0..1.0f64, byte in any::<u8>(), cut in 0.0..1.2f64) {
        let rows = b"[{\"id\": 1, \"text\": \"one\", \"x\": {\"y\": [true]}},\n {\"text\": \"two\", \"label\": 3}]".to_vec();
        for (whole, format) in [(rows.clone(), Format::Json), (gzip(&rows), Format::Json), (zstd(&rows), Format::Json)] {
            let mut bytes = whole;
            let position = (at * bytes.len() as f64) as usize;
            bytes[position] = byte;
            bytes.truncate((cut * bytes.len() as f64) as usize);
            survives(&bytes, format);
        }
    }
}

#[test]
fn an_endless_row_is_a_fatal_error() {
    for (shape, begin) in
        [(Format::Text, "a\n"), (Format::Jsonl, "{\"text\": \""), (Format::Csv, "1,\""), (Format::Json, "[\"")]
    {
        let endless = io::Cursor::new(begin).chain(io::repeat(b'x'));
        let config = CorpusConfig { format: Some(shape), max_row_bytes: 1 << 16, ..skipping() };
        let read =
            Corpus::from_reader("endless", endless, &config).and_then(|corpus| corpus.collect::<Result<Vec<_>>>());
        let error = read.unwrap_err().to_string();
        assert!(error.contains("a row of more than"), "{shape}: {error}");
    }
}

#[cfg(unix)]
#[test]
fn a_device_is_refused_and_a_named_pipe_is_read() {
    let error = Corpus::open(Path::new("/dev/zero"), &format(Format::Text)).unwrap_err().to_string();
    assert!(error.contains("/dev/zero: is a device"), "{error}");

    let scene = Scene::new();
    let pipe = scene.root().join("pipe");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| std::fs::write(&pipe, "a\nb\n").unwrap());
        let (documents, _) = drain(Corpus::open(&pipe, &format(Format::Text)).unwrap()).unwrap();
        assert_eq!(texts(&documents), ["a", "b"]);
    });
}
