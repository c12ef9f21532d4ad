//! CSV, TSV and Parquet.

use std::sync::Arc;

use ::parquet::arrow::ArrowWriter;
use ::parquet::basic::{Compression, GzipLevel, ZstdLevel};
use ::parquet::file::properties::WriterProperties;
use arrow_array::builder::*;
use arrow_array::types::{Decimal256Type, Float16Type, Int32Type};
use arrow_array::*;
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions};

use super::*;

fn csv() -> CorpusConfig {
    format(Format::Csv)
}

#[test]
fn tables_without_header_are_label_and_text() {
    let rows = "\"1\",\"It #39;s \"\"quoted\"\", yes\",\"src\"\n\"2\",\"two\nlines\",\"\"\r\n\n3,plain,12\n";
    let (documents, _) = read(rows, &csv()).unwrap();
    assert_eq!(texts(&documents), ["It #39;s \"quoted\", yes", "two\nlines", "plain"]);
    assert_eq!(documents.iter().map(|d| d.labels[0].as_str()).collect::<Vec<_>>(), ["1", "2", "3"]);
    assert_eq!(documents[0].attributes, [("column3".to_owned(), Value::Text("src".into()))]);
    assert_eq!(documents[1].attributes, []);
    assert_eq!(documents[2].attributes, [("column3".to_owned(), Value::Int(12))]);
    assert_eq!(ids(&documents), ["0", "1", "2"]);
    // A single column is a text.
    assert_eq!(texts(&read("one\ntwo\n", &csv()).unwrap().0), ["one", "two"]);
    assert_eq!(read("", &csv()).unwrap().0, []);
    assert_eq!(read("\n\r\n", &csv()).unwrap().0, []);
}

#[test]
fn headers_are_detected_or_configured() {
    let rows = "id,label,text,year,ok\n007,a,\"x, y\",2004,true\n8,,z,1.5,\n";
    let (documents, _) = read(rows, &csv()).unwrap();
    assert_eq!(ids(&documents), ["007", "8"]);
    assert_eq!(documents[1].id, DocId::Int(8));
    assert_eq!(texts(&documents), ["x, y", "z"]);
    assert_eq!(documents[0].labels, ["a"]);
    assert!(documents[1].labels.is_empty());
    assert_eq!(documents[0].attributes, [("year".to_owned(), Value::Int(2004)), ("ok".to_owned(), Value::Bool(true))]);
    assert_eq!(documents[1].attributes, [("year".to_owned(), Value::Float(1.5))]);

    let untyped = CorpusConfig { infer_types: false, ..csv() };
    let (documents, _) = read(rows, &untyped).unwrap();
    assert_eq!(documents[0].attributes[0].1, Value::Text("2004".into()));

    // A header of unknown names is read as a row, unless the configuration says otherwise.
    let rows = "topic,headline\nsports,a game\n";
    assert_eq!(read(rows, &csv()).unwrap().0.len(), 2);
    for config in [
        CorpusConfig { text_fields: strings(&["headline"]), ..csv() },
        CorpusConfig { text_fields: strings(&["headline"]), header: Some(true), ..csv() },
    ] {
        let (documents, _) = read(rows, &config).unwrap();
        assert_eq!(texts(&documents), ["a game"]);
        assert_eq!(documents[0].attributes, [("topic".to_owned(), Value::Text("sports".into()))]);
    }
    // A row that looks like a header but is none.
    let config = CorpusConfig { header: Some(false), ..csv() };
    assert_eq!(texts(&read("label,text\n1,a\n", &config).unwrap().0), ["text", "a"]);
    // Configured names for a file without header.
    let config = CorpusConfig { columns: strings(&["l1", "label", "text", "split"]), ..csv() };
    let (documents, _) = read("1,10,words,val\n", &config).unwrap();
    assert_eq!((documents[0].text.as_str(), documents[0].labels[0].as_str()), ("words", "10"));
    assert_eq!(documents[0].attributes[1], ("split".to_owned(), Value::Text("val".into())));
}

#[test]
fn tabs_and_other_delimiters_are_read() {
    let scene = Scene::new();
    let path = scene.file("a.tsv.gz", gzip(b"id\ttext\n1\t\"a quote that stays, and is not closed\n2\tb\n"));
    let (documents, _) = drain(Corpus::open(&path, &CorpusConfig::default()).unwrap()).unwrap();
    assert_eq!(texts(&documents), ["\"a quote that stays, and is not closed", "b"]);
    let config = CorpusConfig { quoting: Some(true), ..format(Format::Tsv) };
    assert_eq!(texts(&read("1\t\"a\tb\"\n", &config).unwrap().0), ["a\tb"]);
    let config = CorpusConfig { delimiter: Some(';'), ..csv() };
    assert_eq!(texts(&read("1;a, b\n", &config).unwrap().0), ["a, b"]);
}

#[test]
fn bad_rows_and_bad_headers_are_refused() {
    let rows = "label,text\n1,a\n2,b,c\n3\n4,\"d\"\n5,";
    let (documents, skipped) = read(rows, &CorpusConfig { on_error: OnError::Skip, ..csv() }).unwrap();
    assert_eq!(texts(&documents), ["a", "d"]);
    let reasons = skipped.reasons();
    assert_eq!(reasons.len(), 3);
    assert!(reasons[0].starts_with("memory:3: 2 cells are expected (label, text), found 3"), "{skipped}");
    assert!(reasons[1].starts_with("memory:4: 2 cells are expected (label, text), found 1"), "{skipped}");
    assert!(reasons[2].starts_with("memory:6: the text (\"text\") is empty"), "{skipped}");
    let error = read(rows, &csv()).unwrap_err().to_string();
    assert!(error.contains("memory:3") && error.contains("double quotes"), "{error}");

    // Line numbers count breaks inside quotes and both kinds of line break.
    let rows = "text,n\r\n\"a\n\nb\",1\r\n\"c\",2\n\n\nd\n";
    let error = read(rows, &csv()).unwrap_err().to_string();
    assert!(error.starts_with("memory:8: 2 cells"), "{error}");

    let refused = |rows: &str, config: CorpusConfig, words: &[&str]| {
        let error = read(rows, &CorpusConfig { on_error: OnError::Skip, ..config }).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "{word:?} is not in: {error}");
        }
    };
    refused("id,headline\n1,a\n", csv(), &["memory:1", "\"text\", \"body\", \"content\"", "\"id\", \"headline\""]);
    refused("text,text\na,b\n", csv(), &["\"text\" twice"]);
    let config = CorpusConfig { text_fields: strings(&["headline"]), ..csv() };
    refused("1,a\n", config, &["\"headline\" is expected", "\"label\", \"text\""]);
    let config = CorpusConfig { id_field: Some("key".into()), ..csv() };
    refused("id,text\n1,a\n", config, &["no id column \"key\"", "\"id\", \"text\""]);
    let config = CorpusConfig { label_field: Some("topic".into()), ..csv() };
    refused("id,text\n1,a\n", config, &["no label column \"topic\""]);

    // A configured id column must be filled; a detected one need not be.
    let rows = "id,text\n,a\n";
    assert_eq!(ids(&read(rows, &csv()).unwrap().0), ["0"]);
    let error = read(rows, &CorpusConfig { id_field: Some("id".into()), ..csv() }).unwrap_err().to_string();
    assert!(error.contains("\"id\" is empty"), "{error}");
}

#[test]
fn an_unclosed_quote_is_reported() {
    let error = read("1,a\n2,\"b\n3,c\n", &csv()).unwrap_err().to_string();
    assert!(error.contains("memory:2") && error.contains("never closed"), "{error}");
    // A stray quote inside a cell, and a missing last line break, are no errors.
    assert_eq!(texts(&read("1,a 5\" disk", &csv()).unwrap().0), ["a 5\" disk"]);
    assert_eq!(texts(&read("1,\"a\"", &csv()).unwrap().0), ["a"]);
}

#[test]
fn a_row_of_too_many_cells_is_refused() {
    let wide = ",".repeat(200_000);
    let config = CorpusConfig { on_error: OnError::Skip, ..csv() };
    let (documents, skipped) = read(format!("1,a\n{wide}\n1,b\n"), &config).unwrap();
    assert_eq!(texts(&documents), ["a", "b"]);
    assert!(skipped.reasons()[0].contains("more than 65536 cells"), "{skipped}");
}

fn write(columns: Vec<(&str, ArrayRef)>, compression: Compression) -> Vec<u8> {
    let batch = RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true))).unwrap();
    // Small row groups, so that reading crosses them.
    let properties =
        WriterProperties::builder().set_compression(compression).set_max_row_group_row_count(Some(700)).build();
    let mut bytes = vec![];
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    bytes
}

#[test]
fn parquet_of_all_types_is_read() {
    let dictionary: DictionaryArray<Int32Type> = vec![Some("red"), None, Some("red")].into_iter().collect();
    let mut tags = ListBuilder::new(StringBuilder::new());
    tags.append_value([Some("x"), None, Some("y")]);
    tags.append_null();
    tags.append_value([] as [Option<&str>; 0]);
    let member: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(3)]));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(Int64Array::from(vec![10, -11, 12]))),
        ("text", Arc::new(LargeStringArray::from(vec!["a", "b", "c"]))),
        ("label", Arc::new(UInt8Array::from(vec![Some(1), None, Some(3)]))),
        ("ok", Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)]))),
        ("score", Arc::new(Float32Array::from(vec![Some(0.5), Some(f32::NAN), None]))),
        (
            "half",
            Arc::new(
                [Some(1.5), None, None]
                    .map(|v| v.map(half::f16::from_f32))
                    .into_iter()
                    .collect::<PrimitiveArray<Float16Type>>(),
            ),
        ),
        ("view", Arc::new(StringViewArray::from(vec![Some("v"), None, None]))),
        ("raw", Arc::new(BinaryArray::from_opt_vec(vec![Some(b"bytes"), None, None]))),
        ("colour", Arc::new(dictionary)),
        ("day", Arc::new(Date32Array::from(vec![Some(0), None, None]))),
        ("at", Arc::new(TimestampMillisecondArray::from(vec![Some(1_000_000_000_123), None, None]))),
        ("utc", Arc::new(TimestampMicrosecondArray::from(vec![Some(0), None, None]).with_timezone("UTC"))),
        (
            "price",
            Arc::new(Decimal128Array::from(vec![Some(1050), None, None]).with_precision_and_scale(9, 2).unwrap()),
        ),
        ("tags", Arc::new(tags.finish())),
        ("meta", Arc::new(StructArray::try_from(vec![("n", member)]).unwrap())),
        ("nothing", Arc::new(NullArray::new(3))),
    ];
    let scene = Scene::new();
    let zstd_pages = Compression::ZSTD(ZstdLevel::default());
    let gzip_pages = Compression::GZIP(GzipLevel::default());
    for compression in [Compression::UNCOMPRESSED, Compression::SNAPPY, gzip_pages, zstd_pages] {
        let bytes = write(columns.clone(), compression);
        let path = scene.file("a.parquet", &bytes);
        let (documents, _) = drain(Corpus::open(&path, &CorpusConfig::default()).unwrap()).unwrap();
        assert_eq!(ids(&documents), ["10", "-11", "12"]);
        assert_eq!(texts(&documents), ["a", "b", "c"]);
        assert_eq!(documents[0].labels, ["1"]);
        let text = |text: &str| Value::Text(text.into());
        let expected: Vec<(String, Value)> = [
            ("ok", Value::Bool(true)),
            ("score", Value::Float(0.5)),
            ("half", Value::Float(1.5)),
            ("view", text("v")),
            ("raw", text("bytes")),
            ("colour", text("red")),
            ("day", text("1970-01-01")),
            ("at", text("2001-09-09T01:46:40.123Z")),
            ("utc", text("1970-01-01T00:00:00Z")),
            ("price", Value::Float(10.5)),
            ("tags", Value::Texts(strings(&["x", "y"]))),
            ("meta.n", Value::Int(1)),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
        assert_eq!(documents[0].attributes, expected);
        assert_eq!(documents[1].attributes, []);
        // Compressed as a whole, and through a pipe.
        for bytes in [bytes.clone(), gzip(&bytes), zstd(&bytes)] {
            let corpus = Corpus::from_reader("pipe", Cursor::new(bytes.clone()), &format(Format::Parquet)).unwrap();
            assert_eq!(drain(corpus).unwrap().0, documents);
            let path = scene.file("b.parquet.gz", bytes);
            assert_eq!(drain(Corpus::open(&path, &CorpusConfig::default()).unwrap()).unwrap().0, documents);
        }
    }
}

#[test]
fn dates_and_decimals_of_every_width_are_read_from_compressed_arrow_files() {
    let text: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
    let days: ArrayRef = Arc::new(Date32Array::from(vec![Some(-1), None]));
    let days = DictionaryArray::<Int32Type>::new(Int32Array::from(vec![0, 1]), days);
    let wide =
        Decimal256Array::from(vec![Some(<Decimal256Type as ArrowPrimitiveType>::Native::from_i128(-12_345)), None]);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("text", text.clone()),
        ("second", Arc::new(TimestampSecondArray::from(vec![Some(1), None]))),
        ("nanosecond", Arc::new(TimestampNanosecondArray::from(vec![Some(1_000_000_000_000_000_001), None]))),
        ("berlin", Arc::new(TimestampSecondArray::from(vec![Some(0), None]).with_timezone("Europe/Berlin"))),
        ("date", Arc::new(Date64Array::from(vec![Some(86_400_000), None]))),
        ("day", Arc::new(days)),
        ("wide", Arc::new(wide.with_precision_and_scale(50, 3).unwrap())),
        // In binary, 0.1 and 2^53 + 1 have no exact value: the nearest ones.
        ("tenth", Arc::new(Decimal128Array::from(vec![Some(1), None]).with_precision_and_scale(9, 1).unwrap())),
        (
            "large",
            Arc::new(
                Decimal128Array::from(vec![Some(9_007_199_254_740_993), None]).with_precision_and_scale(20, 0).unwrap(),
            ),
        ),
    ];
    let text_of = |text: &str| Value::Text(text.into());
    let expected: Vec<(String, Value)> = [
        ("second", text_of("1970-01-01T00:00:01Z")),
        ("nanosecond", text_of("2001-09-09T01:46:40.000000001Z")),
        ("berlin", text_of("1970-01-01T00:00:00Z")),
        ("date", text_of("1970-01-02")),
        ("day", text_of("1969-12-31")),
        ("wide", Value::Float(-12.345)),
        ("tenth", Value::Float(0.1)),
        ("large", Value::Float(9_007_199_254_740_992.0)),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect();
    for compression in [None, Some(CompressionType::LZ4_FRAME), Some(CompressionType::ZSTD)] {
        let bytes = arrow_file(columns.clone(), compression);
        let (documents, _) = read(bytes, &CorpusConfig::default()).unwrap();
        assert_eq!(documents[0].attributes, expected, "{compression:?}");
        assert_eq!(documents[1].attributes, []);
    }
    // A time after the last year is the fault of its row.
    let late: ArrayRef = Arc::new(TimestampSecondArray::from(vec![Some(i64::MAX), Some(0)]));
    let (documents, skipped) = read(arrow_file(vec![("text", text), ("at", late)], None), &skipping()).unwrap();
    assert_eq!(texts(&documents), ["b"]);
    assert!(skipped.reasons()[0].contains("column \"at\": the date is outside of the calendar"), "{skipped}");
}

fn arrow_file(columns: Vec<(&str, ArrayRef)>, compression: Option<CompressionType>) -> Vec<u8> {
    let batch = RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true))).unwrap();
    let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
    let mut bytes = vec![];
    let mut writer = FileWriter::try_new_with_options(&mut bytes, &batch.schema(), options).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    drop(writer);
    bytes
}

#[test]
fn parquet_shards_are_read_with_progress() {
    let scene = Scene::new();
    for shard in 0..2 {
        let texts: StringArray = (0..2000).map(|n| Some(format!("document {shard} {n}"))).collect();
        let bytes = write(vec![("content", Arc::new(texts))], Compression::SNAPPY);
        scene.file(&format!("train-{shard}.parquet"), bytes);
    }
    let mut corpus = Corpus::open(scene.root(), &CorpusConfig::default()).unwrap();
    let total = corpus.bytes_total().unwrap();
    let first: Vec<Document> = corpus.by_ref().take(2000).collect::<Result<_>>().unwrap();
    let half = corpus.bytes_read() as f64 / total as f64;
    assert!((0.4..0.6).contains(&half), "{half}");
    assert_eq!(first[1999].text, "document 0 1999");
    let rest: Vec<Document> = corpus.by_ref().collect::<Result<_>>().unwrap();
    assert_eq!((rest.len(), rest[1999].id.clone()), (2000, DocId::Int(3999)));
    assert_eq!(corpus.bytes_read(), total);
}

#[test]
fn unsupported_parquet_columns_and_bad_rows_are_refused() {
    let text: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None]));
    let mut vectors = ListBuilder::new(Float32Builder::new());
    vectors.append_value([Some(0.5)]);
    vectors.append_value([Some(1.0)]);
    let vectors: ArrayRef = Arc::new(vectors.finish());
    let bytes = write(vec![("text", text.clone()), ("vector", vectors)], Compression::SNAPPY);
    let error = read(&bytes, &CorpusConfig::default()).unwrap_err().to_string();
    assert!(error.contains("column \"vector\"") && error.contains("ignore_fields"), "{error}");
    let config = CorpusConfig { ignore_fields: strings(&["vector"]), ..skipping() };
    let (documents, skipped) = read(&bytes, &config).unwrap();
    assert_eq!((texts(&documents), skipped.count()), (vec!["a"], 1));
    assert!(skipped.reasons()[0].contains("memory (row 2)"), "{skipped}");

    let error = read(write(vec![("words", text.clone())], Compression::SNAPPY), &CorpusConfig::default()).unwrap_err();
    assert!(error.to_string().contains("the fields are \"words\""), "{error}");
    let short = CorpusConfig { max_row_bytes: 3, ..skipping() };
    let long: ArrayRef = Arc::new(StringArray::from(vec!["abc", "abcd"]));
    assert_eq!(texts(&read(write(vec![("text", long)], Compression::SNAPPY), &short).unwrap().0), ["abc"]);
}

#[test]
fn damaged_parquet_never_panics() {
    let texts: StringArray = (0..300).map(|n| Some(format!("document {n}"))).collect();
    let mut tags = ListBuilder::new(StringBuilder::new());
    (0..300).for_each(|n| tags.append_value([Some(format!("tag {}", n % 7))]));
    let columns: Vec<(&str, ArrayRef)> = vec![("text", Arc::new(texts)), ("tags", Arc::new(tags.finish()))];
    let whole = write(columns, Compression::SNAPPY);
    for cut in [5, whole.len() / 2, whole.len() - 1] {
        assert!(read(&whole[..cut], &format(Format::Parquet)).is_err());
    }
    // Every byte in turn: an error or readable rows, but no panic.
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        if let Ok((documents, _)) = read(&bytes, &CorpusConfig { on_error: OnError::Skip, ..format(Format::Parquet) }) {
            assert!(documents.len() <= 300, "byte {at}");
        }
    }
}

#[test]
fn a_compressed_table_is_unpacked_up_to_a_limit() {
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["the same words"; 2000]));
    let bytes = write(vec![("text", texts)], Compression::UNCOMPRESSED);
    let packed = gzip(&bytes);
    let at_most = |limit: usize| CorpusConfig { max_unpacked_bytes: limit as u64, ..CorpusConfig::default() };
    assert_eq!(read(&packed, &at_most(bytes.len())).unwrap().0.len(), 2000);
    let error = read(&packed, &at_most(bytes.len() - 1)).unwrap_err().to_string();
    assert!(error.contains(&format!("more than {} bytes unpacked", bytes.len() - 1)), "{error}");
    assert!(error.contains("max_unpacked_bytes"), "{error}");
}
