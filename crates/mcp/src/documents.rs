//! The tool `fetch`.

use engine::{Error, Result};
use rmcp::schemars::{self, JsonSchema};
use serde::{Deserialize, Serialize};

use crate::brief::{self, Attributes, Id};
use crate::indexes::Indexes;

/// Bytes of a text in one answer.
pub const MAX_BYTES: usize = 100_000;

/// Characters of a label, and of a text among the attributes.
const ATTRIBUTE: usize = 2000;

/// Bytes of all attributes of an answer.
const MAX_ATTRIBUTE_BYTES: usize = 50_000;

fn default_bytes() -> usize {
    20_000
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fetch {
    /// Id of a document, as a hit has it.
    id: Id,
    /// Name of the index, needed if there are several.
    #[serde(default)]
    index: Option<String>,
    /// Where to begin in the text, in bytes: `offset` of a hit, or `next` of an earlier answer.
    #[serde(default)]
    offset: usize,
    /// How much of the text to return, in bytes.
    #[serde(default = "default_bytes")]
    #[schemars(range(min = 1, max = MAX_BYTES))]
    bytes: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Document {
    id: Id,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    /// The text from `offset`; missing if the index stores no texts.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// Where `text` begins, in bytes.
    offset: usize,
    /// Where the rest begins: an `offset` for the next call. Missing at the end of the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<usize>,
    /// Length of the whole text in bytes.
    length: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    labels: Vec<String>,
    #[serde(skip_serializing_if = "Attributes::is_empty")]
    attributes: Attributes,
    /// What to know about this answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

pub fn fetch(indexes: &Indexes, asked: Fetch) -> Result<Document> {
    if !(1..=MAX_BYTES).contains(&asked.bytes) {
        return Err(Error::option(
            "bytes",
            format!("is {}; give 1 to {MAX_BYTES}, and offset = next of the answer for the rest", asked.bytes),
        ));
    }
    let opened = indexes.named(asked.index.as_deref())?;
    let Id(id) = asked.id;
    let mut record = None;
    for index in opened.current()?.indexes() {
        record = record.or(index.get(&id)?);
    }
    let record = record.ok_or_else(|| {
        Error::config(format!("index \"{}\" has no document {id}; give the id of a hit of this index", opened.name))
    })?;
    let text = record.text.unwrap_or_default();
    let (start, end) = part(&text, asked.offset, asked.bytes)?;
    let (title, attributes) = brief::attributes(record.attributes, ATTRIBUTE);
    let mut document = Document {
        id: Id(record.id),
        title,
        text: Some(text[start..end].to_owned()).filter(|_| !text.is_empty()),
        offset: start,
        next: (end < text.len()).then_some(end),
        length: text.len(),
        labels: brief::labels(record.labels, ATTRIBUTE),
        attributes,
        notes: Vec::new(),
    };
    if text.is_empty() {
        document.notes.push(format!("index \"{}\" stores no text of this document", opened.name));
    }
    if serde_json::to_string(&document.attributes).map_or(0, |json| json.len()) > MAX_ATTRIBUTE_BYTES {
        document.attributes.clear();
        document
            .notes
            .push(format!("attributes are left out, because they have more than {MAX_ATTRIBUTE_BYTES} bytes"));
    }
    Ok(document)
}

/// The part of a text that begins at a byte and has about so many, between characters. It is empty only if the text is.
fn part(text: &str, offset: usize, bytes: usize) -> Result<(usize, usize)> {
    if offset > 0 && offset >= text.len() {
        return Err(Error::option(
            "offset",
            format!("is {offset}, and the text has {} bytes; give an offset below that", text.len()),
        ));
    }
    let start = boundary(text, offset);
    let first = text[start..].chars().next().map_or(0, char::len_utf8);
    Ok((start, boundary(text, start.saturating_add(bytes)).max(start + first)))
}

/// The last place up to a byte that is between characters.
fn boundary(text: &str, byte: usize) -> usize {
    let last = byte.min(text.len());
    (0..=last).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_text_make_it_whole() {
        let text = "Öl – teuer";
        for bytes in 1..=text.len() + 1 {
            let (mut whole, mut at) = (String::new(), 0);
            while at < text.len() {
                let (start, end) = part(text, at, bytes).unwrap();
                assert!(start == at && end > start, "{bytes}: {start} to {end}");
                whole += &text[start..end];
                at = end;
            }
            assert_eq!(whole, text);
        }
        assert_eq!(part("", 0, 10).unwrap(), (0, 0));
        assert_eq!(part(text, 1, 1).unwrap(), (0, 2), "a byte within a character is the character");
        assert!(part(text, text.len(), 1).unwrap_err().to_string().contains("13 bytes"));
    }
}
