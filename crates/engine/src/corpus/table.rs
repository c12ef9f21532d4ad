//! CSV and TSV, with a header or without.

use csv_core::{ReadRecordResult, Reader, ReaderBuilder};
use serde_json::{Map, Value as Json};

use super::config::{CorpusConfig, Format};
use super::fields::{Fields, Row, utf8};
use super::lines::too_long;
use super::source::{MAX_SKIPPED_BYTES, Source, line_breaks};
use super::{Fault, Rows};
use crate::{Error, Result};

/// More cells than this are not a table but another format with commas.
const MAX_CELLS: usize = 1 << 16;

/// Rows of cells with column names.
pub(super) struct Table {
    records: Records,
    /// Empty until the first good row shows the number of columns.
    names: Vec<String>,
    /// Configured names for columns without header.
    given: Vec<String>,
    /// The first row, if it was read and turned out not to be a header.
    first: Option<std::result::Result<(), Fault>>,
}

impl Table {
    /// Reads the first row to find the columns.
    pub(super) fn open(source: Source, format: Format, config: &CorpusConfig, fields: &Fields) -> Result<Table> {
        let mut records = Records::new(source, format, config);
        let header = config.header.or((!config.columns.is_empty()).then_some(false));
        let first = match (header, records.next()) {
            (_, None) => return Ok(Table { records, names: vec![], given: vec![], first: None }),
            (_, Some(Err(Fault::Fatal(error)))) => return Err(error),
            (Some(true), Some(Err(Fault::Row(problem)))) => return Err(Error::input(records.place(), problem)),
            (_, Some(first)) => first,
        };
        let named = match (&first, header) {
            (Ok(()), None) => records.texts().is_ok_and(|mut cells| fields.is_header(&mut cells)),
            (_, given) => given == Some(true),
        };
        let refuse = |problem: String| Error::input(records.place(), problem);
        if named {
            let cells = records.texts().map_err(|_| refuse("the header is not UTF-8".into()))?;
            let names: Vec<String> = cells.enumerate().map(|(at, cell)| column_name(at, cell.trim())).collect();
            if let Some((_, name)) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
                return Err(refuse(format!("the header names column \"{name}\" twice; rename one of them")));
            }
            fields.check_columns(&names).map_err(refuse)?;
            return Ok(Table { records, names, given: vec![], first: None });
        }
        let mut table = Table { records, names: vec![], given: config.columns.clone(), first: Some(first) };
        if let Some(Ok(())) = table.first {
            table.names = table.names_by_width();
            fields.check_columns(&table.names).map_err(|problem| Error::input(table.records.place(), problem))?;
        }
        Ok(table)
    }

    /// Names for as many columns as the current row has.
    fn names_by_width(&self) -> Vec<String> {
        let width = self.records.cells;
        let usual = if width == 1 { vec!["text".to_owned()] } else { vec!["label".to_owned(), "text".to_owned()] };
        let names = if self.given.is_empty() { &usual } else { &self.given };
        // Surplus names stay: every row is then refused because it lacks those columns.
        (0..width.max(names.len())).map(|at| column_name(at, names.get(at).map_or("", String::as_str))).collect()
    }

    fn row(&mut self) -> std::result::Result<Row, Fault> {
        if self.names.is_empty() {
            self.names = self.names_by_width();
        }
        let names = &self.names;
        let width = self.records.cells;
        if width != names.len() {
            return Err(Fault::Row(format!(
                "{} cells are expected ({}), found {width}; a cell that holds the delimiter must stand in double quotes",
                names.len(),
                names.join(", "),
            )));
        }
        let mut row = Map::with_capacity(width);
        for (name, cell) in names.iter().zip(self.records.texts()?) {
            row.insert(name.clone(), Json::String(cell.to_owned()));
        }
        Ok(Row::cells(row))
    }
}

impl Rows for Table {
    fn next_row(&mut self) -> Option<std::result::Result<Row, Fault>> {
        let record = match self.first.take() {
            Some(first) => first,
            None => self.records.next()?,
        };
        Some(record.and_then(|()| self.row()))
    }

    fn place(&self) -> String {
        self.records.place()
    }
}

/// `column3` if a column has no name.
fn column_name(at: usize, name: &str) -> String {
    match name {
        "" => format!("column{}", at + 1),
        name => name.to_owned(),
    }
}

/// Records of bounded length. This uses `csv-core` without the `csv` crate, because `csv` holds a whole record in memory: an
/// unclosed quote would read the rest of the corpus into memory.
struct Records {
    source: Source,
    parser: Reader,
    /// Unquoted cells of the current record, one after the other, and the end of each.
    /// Both buffers keep their size between records; `cells` says how much of them is in use.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    cells: usize,
    limit: usize,
    line: u64,
    began: u64,
    finished: bool,
}

impl Records {
    fn new(source: Source, format: Format, config: &CorpusConfig) -> Records {
        let tabs = format == Format::Tsv;
        let delimiter = config.delimiter.unwrap_or(if tabs { '\t' } else { ',' });
        let parser = ReaderBuilder::new().delimiter(delimiter as u8).quoting(config.quoting.unwrap_or(!tabs)).build();
        Records {
            source,
            parser,
            bytes: vec![0; 4096],
            ends: vec![0; 16],
            cells: 0,
            limit: config.max_row_bytes,
            line: 1,
            began: 1,
            finished: false,
        }
    }

    fn place(&self) -> String {
        format!("{}:{}", self.source.path().display(), self.began)
    }

    fn texts(&self) -> std::result::Result<impl Iterator<Item = &str>, Fault> {
        // Each cell is checked alone: the cells together may be valid UTF-8 although a character spans two of them.
        let ends = &self.ends[..self.cells];
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let cells: std::result::Result<Vec<&str>, Fault> =
            starts.zip(ends).map(|(start, end)| utf8(&self.bytes[start..*end])).collect();
        Ok(cells?.into_iter())
    }

    /// Skips line breaks between records, so that a record's line is that of its first cell.
    fn skip_breaks(&mut self) -> Result<()> {
        loop {
            let chunk = self.source.fill()?;
            let breaks = chunk.iter().take_while(|b| matches!(b, b'\n' | b'\r')).count();
            if breaks == 0 {
                return Ok(());
            }
            self.line += line_breaks(&chunk[..breaks]);
            self.source.consume(breaks);
        }
    }

    fn next(&mut self) -> Option<std::result::Result<(), Fault>> {
        if self.finished {
            return None;
        }
        let record = self.read();
        self.finished |= matches!(record, Ok(false) | Err(Fault::Fatal(_)));
        match record {
            Ok(false) => None,
            Ok(true) => Some(Ok(())),
            Err(fault) => Some(Err(fault)),
        }
    }

    /// Reads one record; `false` at the end.
    fn read(&mut self) -> std::result::Result<bool, Fault> {
        self.skip_breaks()?;
        self.began = self.line;
        // `length` counts all written bytes, also those overwritten once the limit is passed.
        let (mut filled, mut cells, mut length, mut dropped) = (0, 0, 0, false);
        loop {
            let input = self.source.fill()?;
            let ended = input.is_empty();
            // At the end of the file the parser gets a line break, which closes an open record. An open quote stays open, and
            // the parser itself does not report it.
            let input = if ended { b"\n" } else { input };
            let (result, read, written, closed) =
                self.parser.read_record(input, &mut self.bytes[filled..], &mut self.ends[cells..]);
            if !ended {
                self.line += line_breaks(&input[..read]);
                self.source.consume(read);
            }
            filled += written;
            cells += closed;
            length += written;
            if length.saturating_sub(self.limit) > MAX_SKIPPED_BYTES {
                return Err(self.source.endless().into());
            }
            match result {
                ReadRecordResult::InputEmpty if ended => {
                    self.finished = true;
                    if length == 0 && cells == 0 && !dropped {
                        return Ok(false);
                    }
                    return Err(Fault::Row(
                        "a double quote is opened in this row and never closed; close it, or say that cells are not quoted"
                            .into(),
                    ));
                }
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull if self.bytes.len() > self.limit => (filled, dropped) = (0, true),
                ReadRecordResult::OutputFull => {
                    let size = (self.bytes.len() * 2).min(self.limit + 1);
                    self.bytes.resize(size.max(self.bytes.len() + 1), 0);
                }
                ReadRecordResult::OutputEndsFull if cells >= MAX_CELLS => (cells, dropped) = (0, true),
                ReadRecordResult::OutputEndsFull => self.ends.resize(self.ends.len() * 2, 0),
                ReadRecordResult::Record => break,
                ReadRecordResult::End => return Ok(false),
            }
        }
        self.cells = cells;
        if length > self.limit {
            return Err(too_long(length, self.limit));
        }
        if dropped {
            return Err(Fault::Row(format!("the row has more than {MAX_CELLS} cells; is this the right delimiter?")));
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Cursor, Read};
    use std::path::Path;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    /// Returns a few bytes per read, so that records are cut everywhere.
    struct Drip(Cursor<Vec<u8>>, usize);

    impl Read for Drip {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = buffer.len().min(self.1);
            self.0.read(&mut buffer[..count])
        }
    }

    fn records(bytes: &[u8], step: usize, config: &CorpusConfig) -> (Vec<Vec<String>>, Vec<u64>, bool) {
        let source = Source::new(Path::new("t"), Drip(Cursor::new(bytes.to_vec()), step), Arc::default()).unwrap();
        let mut records = Records::new(source, Format::Csv, config);
        let (mut found, mut lines) = (vec![], vec![]);
        while let Some(record) = records.next() {
            if record.is_err() {
                return (found, lines, true);
            }
            found.push(records.texts().ok().unwrap().map(str::to_owned).collect());
            lines.push(records.began);
        }
        (found, lines, false)
    }

    #[test]
    fn buffers_stay_within_the_row_limit() {
        let config = CorpusConfig { max_row_bytes: 10_000, ..CorpusConfig::default() };
        let rows = Cursor::new("1,a\n2,\"").chain(io::repeat(b'x').take(1 << 24)).chain(Cursor::new("\"\n3,b\n"));
        let source = Source::new(Path::new("t"), rows, Arc::default()).unwrap();
        let mut records = Records::new(source, Format::Csv, &config);
        assert!(records.next().unwrap().is_ok());
        assert!(matches!(records.next(), Some(Err(Fault::Row(problem))) if problem.contains("16777217 bytes")));
        assert!(records.bytes.capacity() <= 20_000, "{}", records.bytes.capacity());
        assert!(records.next().unwrap().is_ok());
        assert_eq!(records.texts().ok().unwrap().collect::<Vec<_>>(), ["3", "b"]);
        assert!(records.next().is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]
        #[test]
        fn records_equal_those_of_the_csv_crate(text in "[a,\"\n\ré ]{0,50}", step in 1usize..7) {
            let config = CorpusConfig::default();
            let (found, lines, open_quote) = records(text.as_bytes(), step, &config);
            let mut reference =
                csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text.as_bytes());
            let expected: Vec<Vec<String>> =
                reference.records().map(|r| r.unwrap().iter().map(str::to_owned).collect()).collect();
            if open_quote {
                // The `csv` crate returns the record with the open quote as if it were closed.
                prop_assert_eq!(&found[..], &expected[..expected.len() - 1]);
            } else {
                prop_assert_eq!(found, expected);
            }
            // A record begins on the line of its first byte.
            let breaks: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
            prop_assert!(lines.iter().all(|line| *line as usize <= breaks.len() + 1));
            prop_assert!(lines.is_sorted());
        }
    }
}
