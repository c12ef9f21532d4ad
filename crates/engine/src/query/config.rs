//! Every option of a search, its default, and the one check.

use serde::de::{Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use strum::{Display, EnumString, VariantNames};

use super::Cursor;
use crate::index::{RerankVectors, Subset};
use crate::model::Distance;
use crate::{Error, Result};

/// Maximum number of hits of one page.
pub const MAX_HITS: usize = 10_000;

/// Re-ranking: the first candidates by code are ordered by the cosine of their rerank vectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rerank {
    /// The first [`Rerank::DEFAULT`] where the index stores rerank vectors, none where it does not, and none of a search by
    /// kind: cosines would undo its order.
    #[default]
    Auto,
    /// Order by code.
    Off,
    /// The first `n`; an error in an index without rerank vectors.
    First(usize),
}

impl Rerank {
    /// Candidates that are re-ranked by default. Titles of Reuters that look for their bodies, MICPQ at 64 bits: nDCG@10 is 0.50 with
    /// 200, 0.64 with 1,000 (`benchmarks/results/judged.md`); a query takes 0.4 ms longer.
    pub const DEFAULT: usize = 1000;
}

impl std::fmt::Display for Rerank {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Rerank::Auto => f.write_str("auto"),
            Rerank::Off => f.write_str("off"),
            Rerank::First(n) => n.fmt(f),
        }
    }
}

impl std::str::FromStr for Rerank {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Rerank::Auto),
            "off" => Ok(Rerank::Off),
            _ => text.parse().map(Rerank::First).map_err(|_| {
                Error::config(format!(
                    "rerank '{text}' is not a number of candidates; give auto, off or 1 to {MAX_HITS}"
                ))
            }),
        }
    }
}

impl Serialize for Rerank {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            Rerank::First(n) => to.serialize_u64(*n as u64),
            name => to.collect_str(name),
        }
    }
}

/// From "auto", "off" or a whole number. JSON has one number type, so `200.0` is 200.
impl<'de> Deserialize<'de> for Rerank {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        struct Written;
        impl Visitor<'_> for Written {
            type Value = Rerank;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                write!(f, "auto, off, or a number of candidates from 1 to {MAX_HITS}")
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> std::result::Result<Rerank, E> {
                match name {
                    "auto" => Ok(Rerank::Auto),
                    "off" => Ok(Rerank::Off),
                    other => Err(E::invalid_value(Unexpected::Str(other), &self)),
                }
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> std::result::Result<Rerank, E> {
                Ok(Rerank::First(usize::try_from(number).unwrap_or(usize::MAX)))
            }

            fn visit_f64<E: serde::de::Error>(self, number: f64) -> std::result::Result<Rerank, E> {
                if number.fract() == 0.0 && (0.0..9e15).contains(&number) {
                    self.visit_u64(number as u64)
                } else {
                    Err(E::invalid_value(Unexpected::Float(number), &self))
                }
            }
        }
        from.deserialize_any(Written)
    }
}

/// How a document's chunks make its place among the hits. Without chunks it changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Display, EnumString, VariantNames)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", parse_err_ty = Error, parse_err_fn = unknown_group)]
pub enum Group {
    #[default]
    Best,
    /// The sum over its best three chunks: by code of `1 / (1 + distance)`, re-ranked of `(1 + cosine) / 2`.
    Sum,
}

fn unknown_group(name: &str) -> Error {
    Error::unknown("group", name, Group::VARIANTS)
}

/// The options of a search.
///
/// ```
/// use engine::query::SearchConfig;
///
/// let config = SearchConfig { k: 20, filter: Some("year:[1987 TO 1988]".into()), ..SearchConfig::default() };
/// assert!(config.validate().is_ok());
/// assert!(SearchConfig { k: 0, ..config }.validate().is_err());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SearchConfig {
    /// Hits per query, 1 to [`MAX_HITS`].
    pub k: usize,
    /// Only documents that match, in tantivy's query language: `places:japan AND year:[1987 TO 1988]`. Terms without a
    /// field are searched in the text; parts without an operator must all match.
    pub filter: Option<String>,
    /// Only these documents.
    pub within: Option<Subset>,
    /// Only documents whose code is no farther than this.
    pub radius: Option<f32>,
    /// Begin after an earlier page, for one query at a time.
    pub after: Option<Cursor>,
    /// Weight of the keywords, 0 (only codes) to 1 (only keywords). A hit's score is then
    /// `(1 - hybrid) / (60 + rank by code) + hybrid / (60 + rank by BM25)`.
    pub hybrid: f32,
    /// From the particular document, 0, to everything of its kind, 1: the weight of the model's tables by kind in the distance.
    pub kind: f32,
    pub rerank: Rerank,
    /// In an index with chunks, how the chunks of a document make its place.
    pub group: Group,
    /// The distance over codes. Default: the model's own.
    pub distance: Option<Distance>,
    /// Whether hits have text, labels and attributes, or only ids.
    pub documents: bool,
    /// Whether hits have a snippet that marks the query's keywords.
    pub snippets: bool,
    /// Bytes of texts, labels, attributes and snippets that the hits of all queries of a search may have together. A search
    /// that finds more is refused ([`Error::TooLarge`]). Default: no limit.
    pub max_bytes: Option<usize>,
    /// Whether answers have an explanation, and hits their codebook distances.
    pub explain: bool,
}

impl Default for SearchConfig {
    fn default() -> Self {
        SearchConfig {
            k: 10,
            filter: None,
            within: None,
            radius: None,
            after: None,
            hybrid: 0.0,
            kind: 0.0,
            rerank: Rerank::Auto,
            group: Group::Best,
            distance: None,
            documents: true,
            snippets: false,
            max_bytes: None,
            explain: false,
        }
    }
}

impl SearchConfig {
    /// How many candidates are re-ranked in an index that stores these vectors.
    pub fn reranked(&self, stored: RerankVectors) -> Result<usize> {
        match self.rerank {
            Rerank::Off => Ok(0),
            Rerank::Auto if stored == RerankVectors::None || self.kind > 0.0 => Ok(0),
            Rerank::Auto => Ok(Rerank::DEFAULT),
            Rerank::First(_) if stored == RerankVectors::None => Err(Error::config(
                "this index stores no rerank vectors; leave rerank out, or build the index with rerank_vectors int8",
            )),
            Rerank::First(n) => Ok(n),
        }
    }

    pub fn validate(&self) -> Result<()> {
        if self.k == 0 {
            return Err(Error::option("k", "is 0; request at least one neighbour"));
        }
        if self.k > MAX_HITS {
            return Err(Error::option(
                "k",
                format!(
                    "is {}; a page has at most {MAX_HITS} hits, request the next page with the cursor of this one",
                    self.k
                ),
            ));
        }
        if let Some(r) = self.radius.filter(|r| !r.is_finite() || *r < 0.0) {
            return Err(Error::option("radius", format!("is {r}; give a finite number from 0 up")));
        }
        if !(0.0..=1.0).contains(&self.hybrid) {
            return Err(Error::option(
                "hybrid",
                format!("is {}; it goes from 0 (only codes) to 1 (only keywords)", self.hybrid),
            ));
        }
        if !(0.0..=1.0).contains(&self.kind) {
            return Err(Error::option(
                "kind",
                format!("is {}; it goes from 0 (the particular document) to 1 (everything of its kind)", self.kind),
            ));
        }
        if let Rerank::First(n) = self.rerank
            && !(1..=MAX_HITS).contains(&n)
        {
            return Err(Error::option(
                "rerank",
                format!("is {n}; 1 to {MAX_HITS} candidates can be re-ranked, or \"off\""),
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reranking_is_written_in_json_as_a_name_or_a_number() {
        for (rerank, json) in [(Rerank::Auto, "\"auto\""), (Rerank::Off, "\"off\""), (Rerank::First(200), "200")] {
            assert_eq!(serde_json::to_string(&rerank).unwrap(), json);
            assert_eq!(serde_json::from_str::<Rerank>(json).unwrap(), rerank);
        }
        assert_eq!(serde_json::from_str::<Rerank>("200.0").unwrap(), Rerank::First(200));
        for wrong in ["\"200\"", "200.5", "-1", "true", "null", "[1]"] {
            let error = serde_json::from_str::<Rerank>(wrong).unwrap_err().to_string();
            assert!(error.contains("auto, off, or a number"), "{wrong}: {error}");
        }
    }
}
