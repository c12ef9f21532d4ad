//! Rows of Arrow record batches. Columns hold strings, numbers, booleans, dates, lists of these, or objects of these.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{ArrowError, DataType, Schema, TimeUnit};
use arrow_select::take::take;
use chrono::{NaiveDate, NaiveDateTime, SecondsFormat};
use serde_json::{Map, Value as Json};

use super::fields::{Fields, Row};
use super::lines::too_long;
use super::{Fault, Rows};
use crate::{Error, Result};

pub(super) type Batches = Box<dyn Iterator<Item = std::result::Result<RecordBatch, ArrowError>> + Send>;

pub(super) struct BatchRows {
    path: PathBuf,
    batches: Batches,
    names: Vec<String>,
    columns: Vec<ArrayRef>,
    /// Rows of the current batch, and the index of the next one.
    rows: usize,
    next: usize,
    /// Rows read so far, over all batches.
    done: u64,
    limit: usize,
    position: Option<ReadPosition>,
}

/// A columnar file is not read from front to back, so its position in bytes is estimated from rows.
pub(super) struct ReadPosition {
    pub read: Arc<AtomicU64>,
    pub before: u64,
    pub bytes: u64,
    /// Rows of the whole file.
    pub total: u64,
}

/// Indexes of the columns to read, or an error when these columns cannot make documents.
pub(super) fn kept(path: &Path, schema: &Schema, fields: &Fields) -> Result<Vec<usize>> {
    let refuse = |problem: String| Error::format(path, problem);
    let kept: Vec<usize> = (0..schema.fields().len()).filter(|at| !fields.ignores(schema.field(*at).name())).collect();
    let names: Vec<String> = kept.iter().map(|at| schema.field(*at).name().clone()).collect();
    fields.check_columns(&names).map_err(refuse)?;
    for at in &kept {
        let field = schema.field(*at);
        if !supported(field.data_type(), true) {
            return Err(refuse(format!(
                "column \"{}\" is of type {}, which is neither text nor attribute; leave it out with ignore_fields",
                field.name(),
                field.data_type()
            )));
        }
    }
    Ok(kept)
}

impl BatchRows {
    /// Rows of batches that hold the columns `names`. `path` is the name shown in messages.
    pub(super) fn new(
        path: PathBuf,
        batches: Batches,
        names: Vec<String>,
        limit: usize,
        position: Option<ReadPosition>,
    ) -> Self {
        BatchRows { path, batches, names, columns: vec![], rows: 0, next: 0, done: 0, limit, position }
    }

    /// Decodes the next batch; `false` at the end.
    fn batch(&mut self) -> Result<bool> {
        let batch = guarded(|| match self.batches.next() {
            None => Ok(None),
            Some(batch) => {
                batch.and_then(|batch| plain_columns(&batch).map(|columns| Some((batch.num_rows(), columns))))
            }
        });
        let batch = batch.map_err(|error| {
            Error::format(&self.path, format!("cannot be decoded after row {}: {error}; write it again", self.done))
        })?;
        let Some((rows, columns)) = batch else { return Ok(false) };
        if columns.len() != self.names.len() {
            return Err(Error::format(
                &self.path,
                format!("a batch has {} columns, {} were announced", columns.len(), self.names.len()),
            ));
        }
        (self.rows, self.columns, self.next) = (rows, columns, 0);
        if let Some(ReadPosition { read, before, bytes, total }) = &self.position {
            let share = (self.done + rows as u64) as f64 / (*total).max(1) as f64;
            read.fetch_max(before + (*bytes as f64 * share.min(1.0)) as u64, Ordering::Relaxed);
        }
        Ok(true)
    }

    fn row(&self, at: usize) -> std::result::Result<Row, Fault> {
        let mut fields = Map::with_capacity(self.names.len());
        for (name, column) in self.names.iter().zip(&self.columns) {
            let value = cell(column, at).map_err(|problem| Fault::Row(format!("column \"{name}\": {problem}")))?;
            if let Json::String(text) = &value
                && text.len() > self.limit
            {
                return Err(too_long(text.len(), self.limit));
            }
            fields.insert(name.clone(), value);
        }
        Ok(Row::typed(fields))
    }
}

impl Rows for BatchRows {
    fn next_row(&mut self) -> Option<std::result::Result<Row, Fault>> {
        while self.next == self.rows {
            match self.batch() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(Err(error.into())),
            }
        }
        let at = self.next;
        self.next += 1;
        self.done += 1;
        Some(self.row(at))
    }

    fn place(&self) -> String {
        format!("{} (row {})", self.path.display(), self.done)
    }
}

/// Runs the decoder and turns its panics into errors. It panics on some damaged files, for example after one flipped byte
/// in a level.
pub(super) fn guarded<T, E: std::fmt::Display>(
    work: impl FnOnce() -> std::result::Result<T, E>,
) -> std::result::Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(outcome) => outcome.map_err(|error| error.to_string()),
        Err(_) => Err("the file is damaged".to_owned()),
    }
}

/// Whether [`cell`] can read the type: as a column after [`plain_columns`], or inside another type.
fn supported(kind: &DataType, top: bool) -> bool {
    use DataType::*;
    match kind {
        Null | Boolean | Int8 | Int16 | Int32 | Int64 | UInt8 | UInt16 | UInt32 | UInt64 => true,
        Utf8 | LargeUtf8 | Utf8View => true,
        Float32 | Float64 => true,
        Binary | LargeBinary | BinaryView => top,
        Date32 | Date64 | Timestamp(..) | Float16 | Decimal128(..) | Decimal256(..) => top,
        Dictionary(_, value) => top && supported(value, true),
        // A list of fractions is a vector, which cannot be filtered by.
        List(item) | LargeList(item) => {
            !matches!(item.data_type(), Float32 | Float64 | Struct(_)) && supported(item.data_type(), false)
        }
        Struct(members) => members.iter().all(|member| supported(member.data_type(), false)),
        _ => false,
    }
}

/// Converts columns to the types [`cell`] reads: dictionaries to their values.
fn plain_columns(batch: &RecordBatch) -> std::result::Result<Vec<ArrayRef>, ArrowError> {
    batch.columns().iter().map(plain_column).collect()
}

fn plain_column(column: &ArrayRef) -> std::result::Result<ArrayRef, ArrowError> {
    match column.as_any_dictionary_opt() {
        Some(dictionary) => plain_column(&take(dictionary.values(), dictionary.keys(), None)?),
        None => Ok(column.clone()),
    }
}

/// One value as JSON. JSON has no NaN and no infinity, so they count as absent.
fn cell(column: &dyn Array, at: usize) -> std::result::Result<Json, String> {
    use DataType::*;
    if column.is_null(at) {
        return Ok(Json::Null);
    }
    let list = |values: ArrayRef| (0..values.len()).map(|at| cell(&values, at)).collect::<std::result::Result<_, _>>();
    let bytes = |bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(text) => Ok(Json::from(text)),
        Err(_) => Err("binary and not UTF-8; leave the column out with ignore_fields".to_owned()),
    };
    Ok(match column.data_type() {
        Null => Json::Null,
        Boolean => column.as_boolean().value(at).into(),
        Int8 => column.as_primitive::<Int8Type>().value(at).into(),
        Int16 => column.as_primitive::<Int16Type>().value(at).into(),
        Int32 => column.as_primitive::<Int32Type>().value(at).into(),
        Int64 => column.as_primitive::<Int64Type>().value(at).into(),
        UInt8 => column.as_primitive::<UInt8Type>().value(at).into(),
        UInt16 => column.as_primitive::<UInt16Type>().value(at).into(),
        UInt32 => column.as_primitive::<UInt32Type>().value(at).into(),
        UInt64 => column.as_primitive::<UInt64Type>().value(at).into(),
        Float16 => f64::from(column.as_primitive::<Float16Type>().value(at)).into(),
        Float32 => f64::from(column.as_primitive::<Float32Type>().value(at)).into(),
        Float64 => column.as_primitive::<Float64Type>().value(at).into(),
        Decimal128(..) => decimal(&column.as_primitive::<Decimal128Type>().value_as_string(at))?,
        Decimal256(..) => decimal(&column.as_primitive::<Decimal256Type>().value_as_string(at))?,
        Date32 => date(column.as_primitive::<Date32Type>().value_as_date(at))?,
        Date64 => date(column.as_primitive::<Date64Type>().value_as_date(at))?,
        Timestamp(unit, _) => time(match unit {
            TimeUnit::Second => column.as_primitive::<TimestampSecondType>().value_as_datetime(at),
            TimeUnit::Millisecond => column.as_primitive::<TimestampMillisecondType>().value_as_datetime(at),
            TimeUnit::Microsecond => column.as_primitive::<TimestampMicrosecondType>().value_as_datetime(at),
            TimeUnit::Nanosecond => column.as_primitive::<TimestampNanosecondType>().value_as_datetime(at),
        })?,
        Utf8 => column.as_string::<i32>().value(at).into(),
        LargeUtf8 => column.as_string::<i64>().value(at).into(),
        Utf8View => column.as_string_view().value(at).into(),
        Binary => bytes(column.as_binary::<i32>().value(at))?,
        LargeBinary => bytes(column.as_binary::<i64>().value(at))?,
        BinaryView => bytes(column.as_binary_view().value(at))?,
        List(_) => Json::Array(list(column.as_list::<i32>().value(at))?),
        LargeList(_) => Json::Array(list(column.as_list::<i64>().value(at))?),
        Struct(_) => {
            let object = column.as_struct();
            let mut members = serde_json::Map::new();
            for (name, member) in object.column_names().into_iter().zip(object.columns()) {
                members.insert(name.to_owned(), cell(member, at)?);
            }
            Json::Object(members)
        }
        other => return Err(format!("type {other} is not known")),
    })
}

fn decimal(digits: &str) -> std::result::Result<Json, String> {
    digits.parse::<f64>().map(Json::from).map_err(|_| format!("{digits} is no number"))
}

fn date(date: Option<NaiveDate>) -> std::result::Result<Json, String> {
    date.map(|date| date.to_string().into()).ok_or_else(outside_the_calendar)
}

/// As RFC 3339. A timestamp without a zone counts as UTC; one with a zone is stored in UTC.
fn time(time: Option<NaiveDateTime>) -> std::result::Result<Json, String> {
    let text = |time: NaiveDateTime| time.and_utc().to_rfc3339_opts(SecondsFormat::AutoSi, true).into();
    time.map(text).ok_or_else(outside_the_calendar)
}

fn outside_the_calendar() -> String {
    "the date is outside of the calendar; correct it, or leave the column out with ignore_fields".to_owned()
}
