//! What a search did: which way it took through each part of the documents, and how much it looked at.

use std::fmt;

/// How one part (a segment of an index, or codes in memory) was searched for one query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The way taken, chosen by what the part holds and what is asked.
    pub way: Way,
    /// Documents of the part, deleted ones too.
    pub documents: usize,
    /// Blocks of 32 documents they fill.
    pub blocks: usize,
    /// Blocks looked at, one at the border of two prefixes perhaps twice; those passed over hold no neighbour.
    pub scanned: usize,
    /// Documents measured in `f32`: those a bound could not rule out, and those of the sample that gave the first one.
    pub measured: usize,
    /// Whether a bitmap (a filter, or deleted documents) was asked about each of them.
    pub filtered: bool,
}

/// A way through a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Lists of documents with equal codes, visited in order of distance until there are enough.
    PostingLists,
    /// Documents with equal leading bits, visited only where a bound over those bits allows a neighbour.
    Prefixes,
    /// Every block, by bounds of one byte a document.
    Blocks,
    /// Only the documents that a selective filter leaves.
    Selected,
    /// Nothing: no document of the part is wanted.
    Nothing,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::PostingLists => "posting lists in order of distance",
            Way::Prefixes => "prefixes that may hold neighbours",
            Way::Blocks => "every block",
            Way::Selected => "only what the filter leaves",
            Way::Nothing => "nothing to look at",
        })
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { way, documents, blocks, scanned, measured, filtered } = self;
        write!(f, "{documents} documents: {way}; {scanned} of {blocks} blocks scanned, {measured} documents measured")?;
        if *filtered { f.write_str(", a filter asked about each") } else { Ok(()) }
    }
}
