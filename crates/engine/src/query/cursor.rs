//! The end of a page.

use sha2::{Digest, Sha256};

use super::config::{MAX_HITS, SearchConfig};
use crate::model::DistanceTable;
use crate::{Error, Result};

/// The end of a page, as text that fits into an address: it goes back unchanged in [`SearchConfig::after`], with the
/// same query.
///
/// In the order of codes, and after the re-ranked candidates, it is the last hit's distance and insertion sequence. The next
/// page begins exactly after it, even when documents were added or deleted meanwhile. Within the re-ranked candidates and in
/// a hybrid search it is a position in one ranked list, which another commit may reorder: a cursor of an earlier commit is
/// refused.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cursor {
    /// Hash of query, filter and everything else that decides the order.
    pub(super) question: u64,
    pub(super) place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Place {
    /// After this distance and sequence in the order of codes. `tail` where the list began with re-ranked candidates.
    Code { distance: f32, sequence: u64, tail: bool },
    /// After `given` hits of a list of one commit; `depth` is how many of each list a hybrid search fused.
    List { commit: u64, given: u32, depth: u32 },
}

/// Hits before a page of one commit's list at most. A page costs as much as all before it.
const MAX_GIVEN: usize = 100 * MAX_HITS;

const BYTES: usize = 1 + 8 + 16 + 4;

impl std::fmt::Display for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut bytes = Vec::with_capacity(BYTES);
        match self.place {
            Place::Code { tail, .. } => bytes.push(1 + u8::from(tail)),
            Place::List { .. } => bytes.push(3),
        }
        bytes.extend_from_slice(&self.question.to_le_bytes());
        match self.place {
            Place::Code { distance, sequence, .. } => {
                bytes.extend_from_slice(&sequence.to_le_bytes());
                bytes.extend_from_slice(&distance.to_le_bytes());
                bytes.extend_from_slice(&[0; 4]);
            }
            Place::List { commit, given, depth } => {
                bytes.extend_from_slice(&commit.to_le_bytes());
                bytes.extend_from_slice(&given.to_le_bytes());
                bytes.extend_from_slice(&depth.to_le_bytes());
            }
        }
        bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
        f.write_str(&hex::encode(&bytes))
    }
}

impl std::str::FromStr for Cursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse = || Error::config(format!("'{text}' is no cursor; give the cursor of a page unchanged"));
        let digit = |c: u8| (c as char).to_digit(16).map(|d| d as u8);
        let pairs = text.as_bytes().chunks(2);
        let bytes: Option<Vec<u8>> = pairs.map(|p| Some(digit(p[0])? << 4 | digit(*p.get(1)?)?)).collect();
        let bytes = bytes.filter(|b| b.len() == BYTES).ok_or_else(refuse)?;
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        if number(BYTES - 4) != crc32fast::hash(&bytes[..BYTES - 4]) {
            return Err(refuse());
        }
        let distance = f32::from_bits(number(17));
        let place = match bytes[0] {
            kind @ (1 | 2) if distance.is_finite() => Place::Code { distance, sequence: long(9), tail: kind == 2 },
            3 if number(17) as usize <= MAX_GIVEN && number(21) as usize <= MAX_HITS => {
                Place::List { commit: long(9), given: number(17), depth: number(21) }
            }
            _ => return Err(refuse()),
        };
        Ok(Cursor { question: long(1), place })
    }
}

impl Cursor {
    /// Hash of everything that decides the order of hits, except the commit.
    pub(super) fn question(
        table: &DistanceTable,
        keywords: Option<&[String]>,
        first: usize,
        config: &SearchConfig,
    ) -> u64 {
        let mut hash = Sha256::new();
        table.values().iter().for_each(|v| hash.update(v.to_le_bytes()));
        let SearchConfig { filter, within, radius, hybrid, group, .. } = config;
        hash.update(format!("{keywords:?} {first} {filter:?} {radius:?} {hybrid} {group}"));
        if let Some(subset) = within {
            hash.update(format!(" {subset:?}"));
        }
        u64::from_le_bytes(hash.finalize()[..8].try_into().expect("32 bytes"))
    }

    /// Refuses a cursor of another question or of another commit.
    pub(super) fn check(&self, question: u64, commit: u64) -> Result<()> {
        if self.question != question {
            return Err(Error::config(
                "the cursor belongs to another question; request the next page with the same query, filter and options",
            ));
        }
        match self.place {
            Place::List { commit: of, .. } if of != commit => Err(Error::config(
                "the cursor is stale: the index has changed since that page; request the first page again, or set rerank off, whose pages stay exact",
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_round_trip_and_other_texts_are_refused() {
        for place in [
            Place::Code { distance: 1.25, sequence: u64::MAX, tail: false },
            Place::Code { distance: 0.0, sequence: 0, tail: true },
            Place::List { commit: 77, given: 20, depth: 1000 },
        ] {
            let cursor = Cursor { question: 0x0123_4567_89AB_CDEF, place };
            let text = cursor.to_string();
            assert!(text.bytes().all(|b| b.is_ascii_alphanumeric()));
            assert_eq!(text.parse::<Cursor>().unwrap(), cursor);
            for i in 0..text.len() {
                let mut other = text.clone().into_bytes();
                other[i] = if other[i] == b'0' { b'1' } else { b'0' };
                assert!(String::from_utf8(other).unwrap().parse::<Cursor>().is_err());
            }
            assert!(text[1..].parse::<Cursor>().is_err());
        }
        for text in ["", "zz", "é", "next"] {
            assert!(text.parse::<Cursor>().unwrap_err().to_string().contains("no cursor"));
        }
    }
}
