//! Features kept beside the codes, by which the first candidates of a search are ranked again.

use serde::{Deserialize, Serialize};
use tantivy::SegmentReader;
use tantivy::columnar::Column;

use super::schema::FEATURE;
use crate::{Error, Result};

/// How the features of documents are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Keep {
    /// Not at all: codes alone, no second stage.
    #[default]
    None,
    /// A byte a value, with one scale for the vector: its greatest magnitude is 127.
    Int8,
    /// Half precision.
    F16,
}

impl std::fmt::Display for Keep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Keep::None => "none",
            Keep::Int8 => "int8",
            Keep::F16 => "f16",
        })
    }
}

impl std::str::FromStr for Keep {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "none" => Ok(Keep::None),
            "int8" => Ok(Keep::Int8),
            "f16" => Ok(Keep::F16),
            _ => Err(Error::config(format!("unknown way to keep features '{name}'; known: int8, f16, none"))),
        }
    }
}

/// Bytes of the scale before the values of [`Keep::Int8`].
const SCALE: usize = 4;

impl Keep {
    /// Bytes a document takes on disk for a feature of `width` values.
    pub fn bytes(self, width: usize) -> usize {
        8 * self.words(width)
    }

    /// Eight bytes a word, the last filled up with zeros.
    pub(super) fn words(self, width: usize) -> usize {
        match self {
            Keep::None => 0,
            Keep::Int8 => (SCALE + width).div_ceil(8),
            Keep::F16 => (2 * width).div_ceil(8),
        }
    }

    /// Most documents of a segment: tantivy numbers the values of a column by 32 bits.
    pub(super) fn most_documents(self, width: usize) -> usize {
        (u32::MAX as usize).checked_div(self.words(width)).unwrap_or(u32::MAX as usize)
    }

    /// A feature as it is stored, or why it cannot be.
    pub(super) fn pack(self, feature: &[f32]) -> std::result::Result<Vec<u64>, String> {
        if let Some(i) = feature.iter().position(|x| !x.is_finite()) {
            return Err(format!("value {i} of its feature is {}; a feature holds finite numbers", feature[i]));
        }
        let mut bytes = Vec::with_capacity(self.bytes(feature.len()));
        match self {
            Keep::None => {}
            Keep::Int8 => {
                let greatest = feature.iter().fold(0.0f32, |m, x| m.max(x.abs()));
                let scale = greatest / 127.0;
                bytes.extend_from_slice(&scale.to_le_bytes());
                let inverse = if greatest > 0.0 { 127.0 / greatest } else { 0.0 };
                bytes.extend(feature.iter().map(|x| (x * inverse).round() as i8 as u8));
            }
            Keep::F16 => {
                let greatest = half::f16::MAX.to_f32();
                if let Some(i) = feature.iter().position(|x| x.abs() > greatest) {
                    return Err(format!(
                        "value {i} of its feature is {}; half precision ends at {greatest}, keep int8 instead",
                        feature[i]
                    ));
                }
                bytes.extend(feature.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()));
            }
        }
        bytes.resize(self.bytes(feature.len()), 0);
        Ok(bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
    }

    /// Back to the feature, as near as it was kept.
    fn unpack(self, words: &[u64], feature: &mut [f32]) {
        match self {
            Keep::None => {}
            Keep::Int8 => {
                let scale = f32::from_bits(words[0] as u32);
                let (first, rest) = feature.split_at_mut(SCALE.min(feature.len()));
                let value = |byte: u8| f32::from(byte as i8) * scale;
                first.iter_mut().zip(&words[0].to_le_bytes()[SCALE..]).for_each(|(x, &b)| *x = value(b));
                // Eight at a time, which vectorises: this is most of what the second stage does.
                for (values, word) in rest.chunks_mut(8).zip(&words[1..]) {
                    values.iter_mut().zip(word.to_le_bytes()).for_each(|(x, b)| *x = value(b));
                }
            }
            Keep::F16 => {
                for (values, word) in feature.chunks_mut(4).zip(words) {
                    let halves = word.to_le_bytes();
                    for (x, half) in values.iter_mut().zip(halves.as_chunks::<2>().0) {
                        *x = half::f16::from_le_bytes(*half).to_f32();
                    }
                }
            }
        }
    }
}

/// The features of one segment, in a mapped column.
pub(super) struct Kept {
    keep: Keep,
    width: usize,
    column: Option<Column<u64>>,
}

impl Kept {
    pub fn open(reader: &SegmentReader, keep: Keep, width: usize) -> tantivy::Result<Kept> {
        let column = if keep == Keep::None { None } else { reader.fast_fields().column_opt::<u64>(FEATURE)? };
        Ok(Kept { keep, width, column })
    }

    /// A document's feature `[width]`; `words` is room to read into.
    pub fn read(&self, document: u32, words: &mut Vec<u64>, feature: &mut [f32]) -> std::result::Result<(), String> {
        debug_assert_eq!(feature.len(), self.width);
        words.resize(self.keep.words(self.width), 0);
        let rows = self.column.as_ref().map_or(0..0, |column| column.index.value_row_ids(document));
        match &self.column {
            Some(column) if rows.len() == words.len() => {
                column.values.get_range(u64::from(rows.start), words);
                self.keep.unpack(words, feature);
                Ok(())
            }
            _ => Err(format!("document {document} has {} words of a feature, {} expected", rows.len(), words.len())),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_kept_comes_back_as_near_as_promised(feature in prop::collection::vec(-50.0f32..50.0, 1..100)) {
            let greatest = feature.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            for (keep, error) in [(Keep::Int8, greatest / 127.0 * 0.5001), (Keep::F16, greatest / 1024.0)] {
                let words = keep.pack(&feature).unwrap();
                prop_assert_eq!(words.len() * 8, keep.bytes(feature.len()));
                let mut back = vec![f32::NAN; feature.len()];
                keep.unpack(&words, &mut back);
                for (a, b) in feature.iter().zip(&back) {
                    prop_assert!((a - b).abs() <= error, "{} became {} ({})", a, b, keep);
                }
            }
        }
    }

    #[test]
    fn extremes_are_kept_or_refused() {
        for keep in [Keep::Int8, Keep::F16] {
            assert!(keep.pack(&[1.0, f32::NAN]).unwrap_err().contains("value 1"));
            assert!(keep.pack(&[f32::INFINITY]).is_err());
            let words = keep.pack(&[0.0; 5]).unwrap();
            let mut back = [1.0; 5];
            keep.unpack(&words, &mut back);
            assert_eq!(back, [0.0; 5]);
        }
        assert!(Keep::F16.pack(&[1e6]).unwrap_err().contains("int8"));
        let mut back = [0.0; 2];
        Keep::Int8.unpack(&Keep::Int8.pack(&[1e38, -1e38]).unwrap(), &mut back);
        assert!(back[0] > 0.99e38 && back[1] < -0.99e38);
        assert_eq!((Keep::Int8.bytes(384), Keep::F16.bytes(384), Keep::None.bytes(384)), (392, 768, 0));
        assert_eq!(Keep::Int8.most_documents(384), u32::MAX as usize / 49);
    }
}
