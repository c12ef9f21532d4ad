//! Hits in a JSON form that returns every bit: JSON numbers may come back rounded.

use serde::{Deserialize, Serialize};

use super::answer::{Hit, HitChunk, Snippet};
use crate::corpus::DocId;
use crate::corpus::wire::WireValue;

/// A [`Hit`] without its score.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct WireHit {
    id: DocId,
    /// Bits of an `f32`.
    distance: u32,
    text: Option<String>,
    labels: Vec<String>,
    attributes: Vec<(String, WireValue)>,
    snippet: Option<(String, Vec<(usize, usize)>)>,
    chunk: Option<HitChunk>,
    codebook_distances: Option<Vec<u32>>,
    codewords: Option<Vec<u8>>,
}

impl From<Hit> for WireHit {
    fn from(hit: Hit) -> WireHit {
        WireHit {
            id: hit.id,
            distance: hit.distance.to_bits(),
            text: hit.text,
            labels: hit.labels,
            attributes: hit.attributes.into_iter().map(|(name, value)| (name, value.into())).collect(),
            snippet: hit.snippet.map(|s| (s.text, s.marks.into_iter().map(|m| (m.start, m.end)).collect())),
            chunk: hit.chunk,
            codebook_distances: hit.codebook_distances.map(|all| all.into_iter().map(f32::to_bits).collect()),
            codewords: hit.codewords,
        }
    }
}

impl From<WireHit> for Hit {
    fn from(wire: WireHit) -> Hit {
        let distance = f32::from_bits(wire.distance);
        Hit {
            id: wire.id,
            distance,
            score: -distance,
            text: wire.text,
            labels: wire.labels,
            attributes: wire.attributes.into_iter().map(|(name, value)| (name, value.into())).collect(),
            snippet: wire
                .snippet
                .map(|(text, marks)| Snippet { text, marks: marks.into_iter().map(|(from, to)| from..to).collect() }),
            chunk: wire.chunk,
            codebook_distances: wire.codebook_distances.map(|all| all.into_iter().map(f32::from_bits).collect()),
            codewords: wire.codewords,
        }
    }
}

/// An `f32` as its bits, for `#[serde(with)]`.
pub(super) mod bits {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(value: &f32, to: S) -> Result<S::Ok, S::Error> {
        value.to_bits().serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f32, D::Error> {
        u32::deserialize(from).map(f32::from_bits)
    }
}

/// `f32`s as their bits, for `#[serde(with)]`.
pub(super) mod all_bits {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(values: &[f32], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(values.iter().map(|value| value.to_bits()))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f32>, D::Error> {
        Ok(Vec::<u32>::deserialize(from)?.into_iter().map(f32::from_bits).collect())
    }
}
