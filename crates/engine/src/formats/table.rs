//! Documents as tables: exports to Parquet and Arrow files, and record batches that Python takes over without a copy.
//!
//! Columns are `id`, `text`, `labels`, one per attribute with the common type of its values, and on request `code`. An
//! attribute with one of those names is written as `attributes.NAME`. A corpus read from the table has the same documents.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::builder::{
    BooleanBuilder, FixedSizeBinaryBuilder, Float64Builder, Int64Builder, ListBuilder, StringBuilder, UInt64Builder,
};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_ipc::writer::FileWriter;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;

use crate::corpus::{DocId, Value};
use crate::index::Record;
use crate::{Error, Progress, Result, disk};

/// Output formats of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableFormat {
    /// Apache Parquet, compressed with zstd.
    Parquet,
    /// Arrow's own file format (Feather version 2), not compressed, so that it can be mapped.
    Arrow,
    /// A JSON object per line.
    Jsonl,
}

/// Rows written at a time.
const BATCH: usize = 8192;

/// The common type of an attribute's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bool,
    Int,
    Float,
    Text,
    Texts,
}

impl Kind {
    fn of(value: &Value) -> Kind {
        match value {
            Value::Bool(_) => Kind::Bool,
            Value::Int(_) => Kind::Int,
            Value::Float(_) => Kind::Float,
            Value::Text(_) => Kind::Text,
            Value::Texts(_) => Kind::Texts,
        }
    }

    /// The type that can hold values of both.
    fn join(self, other: Kind) -> Kind {
        match (self, other) {
            (a, b) if a == b => a,
            (Kind::Int, Kind::Float) | (Kind::Float, Kind::Int) => Kind::Float,
            (Kind::Texts, _) | (_, Kind::Texts) => Kind::Texts,
            _ => Kind::Text,
        }
    }

    fn data_type(self) -> DataType {
        match self {
            Kind::Bool => DataType::Boolean,
            Kind::Int => DataType::Int64,
            Kind::Float => DataType::Float64,
            Kind::Text => DataType::Utf8,
            Kind::Texts => texts(),
        }
    }
}

fn texts() -> DataType {
    DataType::List(Arc::new(Field::new("item", DataType::Utf8, true)))
}

/// The columns that a set of documents needs, found in a pass over all of them.
#[derive(Clone, Debug, Default)]
pub struct Columns {
    named: bool,
    kinds: Vec<(String, Kind)>,
    places: HashMap<String, usize>,
    code_bytes: Option<usize>,
    text: bool,
}

impl Columns {
    /// Columns before any document is seen; `code_bytes` adds a column of codes.
    pub fn new(code_bytes: Option<usize>) -> Self {
        Columns { code_bytes, ..Columns::default() }
    }

    /// Adds the columns of a document.
    pub fn see(&mut self, record: &Record) {
        self.named |= matches!(record.id, DocId::Str(_));
        self.text |= record.text.is_some();
        for (name, value) in &record.attributes {
            match self.places.get(name) {
                Some(&at) => self.kinds[at].1 = self.kinds[at].1.join(Kind::of(value)),
                None => {
                    self.places.insert(name.clone(), self.kinds.len());
                    self.kinds.push((name.clone(), Kind::of(value)));
                }
            }
        }
    }

    pub fn schema(&self) -> SchemaRef {
        let id = if self.named { DataType::Utf8 } else { DataType::UInt64 };
        let mut fields = vec![
            Field::new("id", id, false),
            Field::new("text", DataType::Utf8, true),
            Field::new("labels", texts(), true),
        ];
        for (name, kind) in &self.kinds {
            let taken = ["id", "_id", "text", "label", "labels", "code"].contains(&name.as_str());
            let name = if taken { format!("attributes.{name}") } else { name.clone() };
            fields.push(Field::new(name, kind.data_type(), true));
        }
        if let Some(bytes) = self.code_bytes {
            fields.push(Field::new("code", DataType::FixedSizeBinary(bytes as i32), false));
        }
        Arc::new(Schema::new(fields))
    }

    /// Documents as a record batch of [`Columns::schema`].
    pub fn batch(&self, records: &[Record]) -> Result<RecordBatch> {
        let mut columns: Vec<ArrayRef> = vec![self.ids(records)];
        let mut text = StringBuilder::new();
        records.iter().for_each(|r| text.append_option(r.text.as_deref()));
        columns.push(Arc::new(text.finish()));
        let mut labels = ListBuilder::new(StringBuilder::new());
        for record in records {
            record.labels.iter().for_each(|label| labels.values().append_value(label));
            labels.append(!record.labels.is_empty());
        }
        columns.push(Arc::new(labels.finish()));
        columns.extend(self.kinds.iter().map(|(name, kind)| attribute(records, name, *kind)));
        if let Some(bytes) = self.code_bytes {
            let mut codes = FixedSizeBinaryBuilder::with_capacity(records.len(), bytes as i32);
            for record in records {
                codes.append_value(&record.code).map_err(|e| Error::config(format!("code of {}: {e}", record.id)))?;
            }
            columns.push(Arc::new(codes.finish()));
        }
        RecordBatch::try_new(self.schema(), columns).map_err(|e| Error::config(format!("documents as a table: {e}")))
    }

    fn ids(&self, records: &[Record]) -> ArrayRef {
        if self.named {
            let mut ids = StringBuilder::new();
            records.iter().for_each(|r| ids.append_value(r.id.to_string()));
            return Arc::new(ids.finish());
        }
        let mut ids = UInt64Builder::new();
        for record in records {
            let DocId::Int(number) = record.id else { unreachable!("names were looked for in every document") };
            ids.append_value(number);
        }
        Arc::new(ids.finish())
    }
}

/// One attribute as a column. If a document repeats a name, the last value counts; a column of lists has all values.
fn attribute(records: &[Record], name: &str, kind: Kind) -> ArrayRef {
    let value = |r: &Record| r.attributes.iter().rev().find(|(n, _)| n == name).map(|(_, v)| v.clone());
    let values = records.iter().map(value);
    match kind {
        Kind::Bool => {
            let mut out = BooleanBuilder::new();
            values.for_each(|v| out.append_option(v.and_then(|v| if let Value::Bool(b) = v { Some(b) } else { None })));
            Arc::new(out.finish())
        }
        Kind::Int => {
            let mut out = Int64Builder::new();
            values.for_each(|v| out.append_option(v.and_then(|v| if let Value::Int(i) = v { Some(i) } else { None })));
            Arc::new(out.finish())
        }
        Kind::Float => {
            let mut out = Float64Builder::new();
            values.for_each(|v| {
                out.append_option(match v {
                    Some(Value::Int(i)) => Some(i as f64),
                    Some(Value::Float(x)) => Some(x),
                    _ => None,
                });
            });
            Arc::new(out.finish())
        }
        Kind::Text => {
            let mut out = StringBuilder::new();
            values.for_each(|v| out.append_option(v.map(|v| plain(&v))));
            Arc::new(out.finish())
        }
        Kind::Texts => {
            let mut out = ListBuilder::new(StringBuilder::new());
            for record in records {
                let mut any = false;
                for (_, value) in record.attributes.iter().filter(|(n, _)| n == name) {
                    any = true;
                    match value {
                        Value::Texts(all) => all.iter().for_each(|text| out.values().append_value(text)),
                        one => out.values().append_value(plain(one)),
                    }
                }
                out.append(any);
            }
            Arc::new(out.finish())
        }
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::Bool(v) => v.to_string(),
        Value::Int(v) => v.to_string(),
        Value::Float(v) => v.to_string(),
        Value::Text(v) => v.clone(),
        Value::Texts(v) => v.join(", "),
    }
}

enum Out {
    Parquet(Box<ArrowWriter<File>>),
    Arrow(Box<FileWriter<BufWriter<File>>>),
    Jsonl(BufWriter<File>),
}

/// Writes documents to a file, which appears only when it is complete.
pub struct TableWriter {
    path: PathBuf,
    staged: disk::StagedFile,
    columns: Columns,
    out: Out,
    waiting: Vec<Record>,
}

impl TableWriter {
    /// Begins a file with these columns.
    pub fn create(path: &Path, format: TableFormat, columns: Columns) -> Result<TableWriter> {
        let staged = disk::StagedFile::create(path)?;
        let file = staged.file()?;
        let bad = |e: &dyn std::fmt::Display| Error::format(path, format!("cannot be begun: {e}"));
        let out = match format {
            TableFormat::Parquet => {
                let packing = Compression::ZSTD(ZstdLevel::default());
                let properties = WriterProperties::builder().set_compression(packing).build();
                Out::Parquet(Box::new(
                    ArrowWriter::try_new(file, columns.schema(), Some(properties)).map_err(|e| bad(&e))?,
                ))
            }
            TableFormat::Arrow => {
                let writer = FileWriter::try_new(BufWriter::with_capacity(1 << 20, file), &columns.schema());
                Out::Arrow(Box::new(writer.map_err(|e| bad(&e))?))
            }
            TableFormat::Jsonl => Out::Jsonl(BufWriter::with_capacity(1 << 20, file)),
        };
        Ok(TableWriter { path: path.to_path_buf(), staged, columns, out, waiting: Vec::new() })
    }

    pub fn add(&mut self, record: Record) -> Result<()> {
        self.waiting.push(record);
        if self.waiting.len() == BATCH { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        let records = std::mem::take(&mut self.waiting);
        let bad = |e: &dyn std::fmt::Display| Error::format(&self.path, format!("cannot be written: {e}"));
        match &mut self.out {
            Out::Parquet(writer) => writer.write(&self.columns.batch(&records)?).map_err(|e| bad(&e)),
            Out::Arrow(writer) => writer.write(&self.columns.batch(&records)?).map_err(|e| bad(&e)),
            Out::Jsonl(writer) => records.iter().try_for_each(|record| {
                let row = json_row(record, self.columns.code_bytes.is_some());
                writeln!(writer, "{row}").map_err(Error::io(&self.path))
            }),
        }
    }

    /// Finishes the file and renames it to its final path.
    pub fn finish(mut self) -> Result<()> {
        self.flush()?;
        let bad = |e: &dyn std::fmt::Display| Error::format(&self.path, format!("cannot be ended: {e}"));
        match self.out {
            Out::Parquet(writer) => drop(writer.into_inner().map_err(|e| bad(&e))?),
            Out::Arrow(writer) => {
                writer.into_inner().map_err(|e| bad(&e))?.flush().map_err(Error::io(&self.path))?;
            }
            Out::Jsonl(mut writer) => writer.flush().map_err(Error::io(&self.path))?,
        }
        self.staged.finish()
    }
}

/// A document as a line of JSONL, in the layout of a corpus.
pub fn json_row(record: &Record, code: bool) -> serde_json::Value {
    let mut row = serde_json::Map::new();
    row.insert("id".into(), serde_json::json!(record.id));
    if let Some(text) = &record.text {
        row.insert("text".into(), serde_json::json!(text));
    }
    if !record.labels.is_empty() {
        row.insert("labels".into(), serde_json::json!(record.labels));
    }
    for (name, value) in &record.attributes {
        let taken = row.contains_key(name) || ["_id", "label"].contains(&name.as_str());
        let name = if taken { format!("attributes.{name}") } else { name.clone() };
        row.insert(name, serde_json::json!(value));
    }
    if code {
        row.insert("code".into(), serde_json::json!(hex::encode(&record.code)));
    }
    serde_json::Value::Object(row)
}

/// Writes every document of an index, in the order of insertion. Returns their number.
pub fn write_index(
    index: &crate::index::Index,
    path: &Path,
    format: TableFormat,
    codes: bool,
    progress: &dyn Progress,
) -> Result<u64> {
    let mut columns = Columns::new(codes.then(|| index.model().shape().code_bytes()));
    // One reader for both passes: they see the same commit.
    if format != TableFormat::Jsonl {
        let records = index.records(true)?;
        progress.stage("looking at attributes", Some(records.len() as u64));
        for record in records {
            columns.see(&record?);
            advance(progress)?;
        }
    }
    let records = index.records(true)?;
    progress.stage("writing", Some(records.len() as u64));
    let mut writer = TableWriter::create(path, format, columns)?;
    let mut count = 0;
    for record in records {
        writer.add(record?)?;
        count += 1;
        advance(progress)?;
    }
    writer.finish()?;
    Ok(count)
}

fn advance(progress: &dyn Progress) -> Result<()> {
    progress.advance(1);
    progress.go_on()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::{Corpus, CorpusConfig, Document};

    fn records() -> Vec<Record> {
        let record = |i: u64, attributes: Vec<(&str, Value)>| Record {
            id: DocId::Int(i),
            code: vec![i as u8, 7],
            sequence: i,
            text: Some(format!("text {i}")),
            labels: if i.is_multiple_of(2) { vec!["even".into(), "b".into()] } else { vec![] },
            attributes: attributes.into_iter().map(|(n, v)| (n.to_owned(), v)).collect(),
        };
        vec![
            record(0, vec![("year", Value::Int(1987)), ("price", Value::Int(2)), ("open", Value::Bool(true))]),
            record(1, vec![("price", Value::Float(2.5)), ("places", Value::Texts(vec!["japan".into(), "usa".into()]))]),
            record(2, vec![("year", Value::Int(-3)), ("title", Value::Text("t".into()))]),
        ]
    }

    fn documents(path: &Path) -> Vec<Document> {
        Corpus::open(path, &CorpusConfig::default()).unwrap().collect::<Result<_>>().unwrap()
    }

    #[test]
    fn written_tables_are_read_as_the_same_corpus() {
        let folder = tempfile::tempdir().unwrap();
        for (name, format) in
            [("t.parquet", TableFormat::Parquet), ("t.arrow", TableFormat::Arrow), ("t.jsonl", TableFormat::Jsonl)]
        {
            let path = folder.path().join(name);
            let mut columns = Columns::new(None);
            records().iter().for_each(|r| columns.see(r));
            let mut writer = TableWriter::create(&path, format, columns).unwrap();
            records().into_iter().for_each(|r| writer.add(r).unwrap());
            assert!(!path.exists());
            writer.finish().unwrap();
            for (document, record) in documents(&path).iter().zip(records()) {
                assert_eq!((&document.id, Some(&document.text)), (&record.id, record.text.as_ref()), "{name}");
                assert_eq!(document.labels, record.labels, "{name}");
                for (attribute, value) in &document.attributes {
                    let expected = &record.attributes.iter().find(|(n, _)| n == attribute).unwrap().1;
                    // An integer in a column with fractions becomes a float.
                    let same = value == expected
                        || matches!((value, expected), (Value::Float(x), Value::Int(i)) if *x == *i as f64);
                    assert!(same, "{name}: {attribute} {value:?} {expected:?}");
                }
                assert_eq!(document.attributes.len(), record.attributes.len(), "{name}");
            }
        }
    }

    #[test]
    fn codes_and_attributes_with_reserved_names_have_their_own_columns() {
        let mut all = records();
        all[1].id = DocId::Str("x".into());
        all[2].attributes.push(("label".into(), Value::Text("l".into())));
        let mut columns = Columns::new(Some(2));
        all.iter().for_each(|r| columns.see(r));
        let batch = columns.batch(&all).unwrap();
        let schema = batch.schema();
        let names: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
        assert_eq!(
            names,
            ["id", "text", "labels", "year", "price", "open", "places", "title", "attributes.label", "code"]
        );
        assert_eq!(schema.field(0).data_type(), &DataType::Utf8);
        assert_eq!(schema.field(4).data_type(), &DataType::Float64);
        assert_eq!(json_row(&all[0], true)["code"], "0007");
    }
}
