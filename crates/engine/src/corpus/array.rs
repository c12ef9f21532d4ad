//! One JSON array of objects, read element by element.

use super::fields::{Row, json_row, utf8};
use super::lines::too_long;
use super::source::{MAX_SKIPPED_BYTES, Source, line_breaks};
use super::{Fault, Rows};
use crate::{Error, Result};

/// Finds the bounds of each element and leaves parsing to the JSON parser. So a bad element is one bad row, and the array
/// may be larger than memory.
pub(super) struct JsonArray {
    source: Source,
    buffer: Vec<u8>,
    limit: usize,
    /// Elements begun so far.
    elements: u64,
    /// The current line, and the line on which the current element began.
    line: u64,
    began: u64,
    state: State,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Before,
    Inside,
    Ended,
}

impl JsonArray {
    pub(super) fn new(source: Source, limit: usize) -> JsonArray {
        JsonArray { source, buffer: Vec::new(), limit, elements: 0, line: 1, began: 1, state: State::Before }
    }

    /// Skips white space and peeks at the next byte.
    fn sign(&mut self) -> Result<Option<u8>> {
        loop {
            let chunk = self.source.fill()?;
            if chunk.is_empty() {
                return Ok(None);
            }
            let blank = chunk.iter().take_while(|b| b.is_ascii_whitespace()).count();
            let found = chunk.get(blank).copied();
            self.line += line_breaks(&chunk[..blank]);
            self.source.consume(blank);
            if found.is_some() {
                return Ok(found);
            }
        }
    }

    /// Moves to the beginning of the next element; `false` at the end of the array.
    fn advance(&mut self) -> Result<bool> {
        if self.state == State::Before {
            self.expect("\"[\", the beginning of one array,", |b| b == b'[')?;
            self.state = State::Inside;
            if self.sign()? == Some(b']') {
                return self.end();
            }
        } else {
            match self.expect("\",\" or \"]\" after an element", |b| matches!(b, b',' | b']'))? {
                b']' => return self.end(),
                _ => {
                    // Python and JavaScript allow a comma after the last element; JSON does not.
                    if self.sign()? == Some(b']') {
                        return Err(self.broken("an element after \",\"", Some(b']')));
                    }
                }
            }
        }
        Ok(true)
    }

    /// Reads one byte of the array's own syntax.
    fn expect(&mut self, what: &str, fits: impl Fn(u8) -> bool) -> Result<u8> {
        match self.sign()? {
            Some(byte) if fits(byte) => {
                if byte != b']' {
                    self.source.consume(1);
                }
                Ok(byte)
            }
            found => Err(self.broken(what, found)),
        }
    }

    /// Reads the closing bracket and refuses anything but white space after it.
    fn end(&mut self) -> Result<bool> {
        self.source.consume(1);
        self.state = State::Ended;
        match self.sign()? {
            None => Ok(false),
            found => Err(self.broken("nothing after the array", found)),
        }
    }

    fn broken(&mut self, what: &str, found: Option<u8>) -> Error {
        self.state = State::Ended;
        let place = format!("{}:{}", self.source.path().display(), self.line);
        let found = match found {
            Some(byte) => format!("found \"{}\"", byte.escape_ascii()),
            None => "the file ends; it was cut short".to_owned(),
        };
        let after = self.elements;
        Error::input(
            place,
            format!("not a JSON array: {what} is expected, {found} (after {after} elements); mend the file"),
        )
    }

    /// Copies one element into the buffer.
    fn element(&mut self) -> std::result::Result<(), Fault> {
        self.buffer.clear();
        self.began = self.line;
        self.elements += 1;
        let mut scan = Scan::default();
        let mut length = 0;
        loop {
            let chunk = self.source.fill()?;
            if chunk.is_empty() {
                self.state = State::Ended;
                let place = format!("{}:{}", self.source.path().display(), self.began);
                let problem = format!(
                    "element {} of the array is not closed: the file was cut short, or a quote or bracket is missing; \
                     mend the file",
                    self.elements
                );
                return Err(Error::input(place, problem).into());
            }
            let (used, closed) = scan.run(chunk);
            let part = &chunk[..used];
            self.line += line_breaks(part);
            length += used;
            if length <= self.limit {
                self.buffer.extend_from_slice(part);
            }
            self.source.consume(used);
            if closed {
                break;
            }
            if length.saturating_sub(self.limit) > MAX_SKIPPED_BYTES {
                return Err(self.source.endless().into());
            }
        }
        if length > self.limit {
            return Err(too_long(length, self.limit));
        }
        Ok(())
    }
}

impl Rows for JsonArray {
    fn next_row(&mut self) -> Option<std::result::Result<Row, Fault>> {
        if self.state == State::Ended {
            return None;
        }
        match self.advance() {
            Ok(false) => return None,
            Ok(true) => {}
            Err(error) => return Some(Err(error.into())),
        }
        Some(self.element().and_then(|()| json_row(utf8(&self.buffer)?).map_err(Fault::Row)))
    }

    fn place(&self) -> String {
        format!("{}:{} (element {})", self.source.path().display(), self.began, self.elements)
    }
}

/// Tracks brackets and strings to find the end of a value.
#[derive(Default)]
struct Scan {
    depth: usize,
    string: bool,
    escaped: bool,
    begun: bool,
}

impl Scan {
    /// Number of bytes that belong to the value, and whether the value ends with them.
    fn run(&mut self, chunk: &[u8]) -> (usize, bool) {
        for (at, &byte) in chunk.iter().enumerate() {
            if self.string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => {
                        self.string = false;
                        if self.depth == 0 {
                            return (at + 1, true);
                        }
                    }
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.string = true,
                b'{' | b'[' => self.depth += 1,
                // At depth 0 these bytes belong to the array and end a value without brackets.
                b',' | b']' | b' ' | b'\n' | b'\r' | b'\t' if self.depth == 0 && self.begun => return (at, true),
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return (at + 1, true);
                    }
                }
                _ => {}
            }
            self.begun = true;
        }
        (chunk.len(), false)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn elements(chunked: &[&[u8]]) -> Vec<String> {
        let mut found = vec![];
        let (mut scan, mut part) = (Scan::default(), String::new());
        for chunk in chunked {
            let mut rest = *chunk;
            while !rest.is_empty() {
                if !scan.begun {
                    rest = rest.strip_prefix(b",").unwrap_or(rest);
                }
                let (used, closed) = scan.run(rest);
                part += std::str::from_utf8(&rest[..used]).unwrap();
                rest = &rest[used..];
                if closed {
                    found.push(std::mem::take(&mut part));
                    scan = Scan::default();
                }
            }
        }
        found
    }

    #[test]
    fn elements_are_found_at_every_cut_of_the_input() {
        let text = r#"{"a":"]}\"{"},[1,[2]],"x,\\",12,null,{}"#;
        let expected = [r#"{"a":"]}\"{"}"#, "[1,[2]]", r#""x,\\""#, "12", "null", "{}"];
        for cut in 0..text.len() {
            let (left, right) = text.as_bytes().split_at(cut);
            // A scalar ends only before the next byte of the array; none of these cuts separates the two.
            assert_eq!(elements(&[left, right]), expected, "cut at {cut}");
        }
    }

    proptest! {
        #[test]
        fn any_strings_round_trip_through_an_array(texts in proptest::collection::vec(any::<String>(), 0..6), cut in 0usize..64) {
            let written: Vec<String> = texts.iter().map(|t| serde_json::json!({ "t": t }).to_string()).collect();
            let joined = written.join(",");
            let mut cut = cut.min(joined.len());
            while !joined.is_char_boundary(cut) {
                cut -= 1;
            }
            let (left, right) = joined.as_bytes().split_at(cut);
            prop_assert_eq!(elements(&[left, right]), written);
        }
    }
}
