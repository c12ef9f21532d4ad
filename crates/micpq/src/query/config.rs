//! How a search is done: every option, its default, and the one check.

use super::Cursor;
use crate::model::Distance;
use crate::{Error, Result};

/// Most hits of one page.
pub const MOST: usize = 10_000;

/// The second stage: candidates found by their codes, ranked again by kept features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rerank {
    /// The first [`Rerank::DEFAULT`] where the index keeps features, none where it does not.
    #[default]
    Auto,
    /// Codes alone.
    Off,
    /// The first `n`; an index that keeps no features refuses.
    First(usize),
}

impl Rerank {
    /// Candidates ranked again unless said otherwise.
    pub const DEFAULT: usize = 200;
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
                Error::config(format!("rerank '{text}' is no number of candidates; write auto, off or 1 to {MOST}"))
            }),
        }
    }
}

/// How a search is done.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchConfig {
    /// Hits wanted for a query, 1 to [`MOST`].
    pub k: usize,
    /// Only documents that match, in tantivy's query language: `places:japan AND year:[1987 TO 1988]`. Words without a
    /// field are looked for in the text; parts without an operator must all match.
    pub filter: Option<String>,
    /// Only documents whose code is no farther than this.
    pub within: Option<f32>,
    /// Hits behind those of an earlier page, for one query at a time.
    pub after: Option<Cursor>,
    /// Weight of the words, 0 (codes alone) to 1 (words alone). A hit's score is then
    /// `(1 - hybrid) / (60 + rank by code) + hybrid / (60 + rank by BM25)`.
    pub hybrid: f32,
    /// Whether the first candidates are ranked again by kept features.
    pub rerank: Rerank,
    /// The distance of codes; the model's own unless said.
    pub distance: Option<Distance>,
    /// Whether hits bring text, labels and attributes, or only ids.
    pub documents: bool,
    /// Whether hits bring the part of their text that matches the words of the query.
    pub snippets: bool,
    /// Whether the answer says how it came about, and hits each book's share of their distance.
    pub explain: bool,
}

impl Default for SearchConfig {
    fn default() -> Self {
        SearchConfig {
            k: 10,
            filter: None,
            within: None,
            after: None,
            hybrid: 0.0,
            rerank: Rerank::Auto,
            distance: None,
            documents: true,
            snippets: false,
            explain: false,
        }
    }
}

impl SearchConfig {
    /// Refuses what cannot be asked for.
    pub fn validate(&self) -> Result<()> {
        if self.k == 0 {
            return Err(Error::config("k is 0; ask for at least one neighbour"));
        }
        if self.k > MOST {
            return Err(Error::config(format!(
                "k is {}; at most {MOST} hits come at once, ask for the next page with the cursor of the last one",
                self.k
            )));
        }
        if let Some(r) = self.within.filter(|r| !r.is_finite() || *r < 0.0) {
            return Err(Error::config(format!("a distance within {r} cannot be; give a finite number from 0 on")));
        }
        if !(0.0..=1.0).contains(&self.hybrid) {
            return Err(Error::config(format!(
                "hybrid is {}; it goes from 0 (codes alone) to 1 (words alone)",
                self.hybrid
            )));
        }
        if let Rerank::First(n) = self.rerank
            && !(1..=MOST).contains(&n)
        {
            return Err(Error::config(format!(
                "rerank is {n}; 1 to {MOST} candidates can be ranked again, or \"off\""
            )));
        }
        Ok(())
    }
}
