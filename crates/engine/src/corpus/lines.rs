//! Formats of one row per line: JSON objects and plain text.

use super::fields::{Row, json_row, utf8, value_row};
use super::source::Source;
use super::{Fault, Rows};
use crate::Result;

/// Lines of bounded length, with line numbers.
struct Lines {
    source: Source,
    buffer: Vec<u8>,
    number: u64,
    limit: usize,
}

enum Line {
    /// The line is in the buffer, without its line break.
    Whole,
    /// The line is longer than the limit; its length in bytes.
    TooLong(usize),
    End,
}

impl Lines {
    fn new(source: Source, limit: usize) -> Lines {
        Lines { source, buffer: Vec::new(), number: 0, limit }
    }

    fn next(&mut self) -> Result<Line> {
        self.buffer.clear();
        // Two bytes more than the limit, for the line break.
        let ended = self.source.line(&mut self.buffer, self.limit.saturating_add(2))?;
        if self.buffer.is_empty() {
            return Ok(Line::End);
        }
        self.number += 1;
        let mut length = self.buffer.len();
        if ended {
            while let Some(b'\n' | b'\r') = self.buffer.last() {
                self.buffer.pop();
            }
        } else {
            length += self.source.skip_line()?;
        }
        if !ended || self.buffer.len() > self.limit {
            return Ok(Line::TooLong(length));
        }
        Ok(Line::Whole)
    }

    fn place(&self) -> String {
        format!("{}:{}", self.source.path().display(), self.number)
    }
}

/// Error for a row over the limit.
pub(super) fn too_long(length: usize, limit: usize) -> Fault {
    Fault::Row(format!(
        "the row has {length} bytes or more, the limit is {limit}; cut it, or raise max_row_bytes if it is meant"
    ))
}

/// A JSON object per line. Blank lines are skipped.
pub(super) struct JsonLines {
    lines: Lines,
}

impl JsonLines {
    pub(super) fn new(source: Source, limit: usize) -> JsonLines {
        JsonLines { lines: Lines::new(source, limit) }
    }

    fn row(&self) -> std::result::Result<Row, Fault> {
        let text = utf8(&self.lines.buffer)?;
        json_row(text).map_err(|problem| {
            // The first line of a pretty-printed file shows that it is one.
            let whole = self.lines.number == 1 && matches!(text.trim(), "{" | "[");
            Fault::Row(match whole {
                true => "one JSON object a line is expected, here one is spread over lines; put each on one line, \
                         or make the file one array and say format json"
                    .into(),
                false => problem,
            })
        })
    }
}

impl Rows for JsonLines {
    fn next_row(&mut self) -> Option<std::result::Result<Row, Fault>> {
        loop {
            return match self.lines.next() {
                Ok(Line::End) => None,
                Ok(Line::Whole) if self.lines.buffer.trim_ascii().is_empty() => continue,
                Ok(Line::Whole) => Some(self.row()),
                Ok(Line::TooLong(length)) => Some(Err(too_long(length, self.lines.limit))),
                Err(error) => Some(Err(error.into())),
            };
        }
    }

    fn place(&self) -> String {
        self.lines.place()
    }
}

/// A document per line. Blank lines are skipped, but count as documents if documents may be empty: parallel files of lines
/// then stay aligned.
pub(super) struct TextLines {
    lines: Lines,
    blank_too: bool,
}

impl TextLines {
    pub(super) fn new(source: Source, limit: usize, blank_too: bool) -> TextLines {
        TextLines { lines: Lines::new(source, limit), blank_too }
    }
}

impl Rows for TextLines {
    fn next_row(&mut self) -> Option<std::result::Result<Row, Fault>> {
        loop {
            return match self.lines.next() {
                Ok(Line::End) => None,
                Ok(Line::Whole) if !self.blank_too && self.lines.buffer.trim_ascii().is_empty() => continue,
                Ok(Line::Whole) => Some(utf8(&self.lines.buffer).map(|text| Row::text(text.to_owned()))),
                Ok(Line::TooLong(length)) => Some(Err(too_long(length, self.lines.limit))),
                Err(error) => Some(Err(error.into())),
            };
        }
    }

    fn place(&self) -> String {
        self.lines.place()
    }
}

/// Rows that the caller has parsed.
pub(super) struct Values<I> {
    name: String,
    rows: I,
    number: u64,
}

impl<I: Iterator<Item = serde_json::Value>> Values<I> {
    pub(super) fn new(name: &str, rows: I) -> Self {
        Values { name: name.to_owned(), rows, number: 0 }
    }
}

impl<I: Iterator<Item = serde_json::Value> + Send> Rows for Values<I> {
    fn next_row(&mut self) -> Option<std::result::Result<Row, Fault>> {
        let value = self.rows.next()?;
        self.number += 1;
        Some(value_row(value).map_err(Fault::Row))
    }

    fn place(&self) -> String {
        format!("{}[{}]", self.name, self.number - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read};
    use std::path::Path;
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_huge_line_is_skipped_without_being_held_in_memory() {
        let huge = io::repeat(b'x').take(1 << 28).chain(io::Cursor::new("\nshort\r\nlast"));
        let source = Source::new(Path::new("huge"), huge, Arc::default()).unwrap();
        let mut lines = Lines::new(source, 1 << 16);
        assert!(matches!(lines.next().unwrap(), Line::TooLong(length) if length == (1 << 28) + 1));
        assert!(lines.buffer.capacity() < 1 << 18, "{}", lines.buffer.capacity());
        assert!(matches!(lines.next().unwrap(), Line::Whole));
        assert_eq!((lines.buffer.as_slice(), lines.place().as_str()), (&b"short"[..], "huge:2"));
        assert!(matches!(lines.next().unwrap(), Line::Whole));
        assert_eq!(lines.buffer, b"last");
        assert!(matches!(lines.next().unwrap(), Line::End));
    }

    #[test]
    fn the_row_limit_does_not_count_the_line_break() {
        for (line, fits) in [("1234\n", true), ("1234\r\n", true), ("1234", true), ("12345", false), ("12345\n", false)]
        {
            let source = Source::new(Path::new("l"), io::Cursor::new(line), Arc::default()).unwrap();
            let mut lines = Lines::new(source, 4);
            assert_eq!(matches!(lines.next().unwrap(), Line::Whole), fits, "{line:?}");
            assert!(matches!(lines.next().unwrap(), Line::End), "{line:?}");
        }
    }
}
