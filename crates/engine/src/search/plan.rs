//! The record of a search: the scan strategy of each segment, and how much of it was scanned.

use std::fmt;

/// How one segment of an index, or codes in memory, was searched for one query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    pub strategy: ScanStrategy,
    /// Documents of the segment, deleted ones included.
    pub documents: usize,
    /// Blocks of 32 documents they fill.
    pub blocks: usize,
    /// Blocks scanned. One at the border of two prefixes may count twice. Blocks that were skipped hold no neighbour.
    pub scanned: usize,
    /// Documents measured in `f32`: those a bound could not rule out, and those of the sample that gave the first bound.
    pub measured: usize,
    /// Whether a bitmap (a filter, or deleted documents) was tested for each of them.
    pub filtered: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanStrategy {
    /// Lists of documents with equal codes, visited in order of distance until there are enough.
    PostingLists,
    /// Documents with equal leading bits, visited only where a bound over those bits allows a neighbour.
    Prefixes,
    /// Every block, by bounds of one byte per document.
    Blocks,
    /// Only the documents that a selective filter leaves.
    Selected,
    /// Nothing: no document of the segment may be found.
    Nothing,
}

impl fmt::Display for ScanStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ScanStrategy::PostingLists => "posting lists in order of distance",
            ScanStrategy::Prefixes => "prefixes that may hold neighbours",
            ScanStrategy::Blocks => "every block",
            ScanStrategy::Selected => "only what the filter leaves",
            ScanStrategy::Nothing => "nothing to look at",
        })
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { strategy, documents, blocks, scanned, measured, filtered } = self;
        write!(
            f,
            "{documents} documents: {strategy}; {scanned} of {blocks} blocks scanned, {measured} documents measured"
        )?;
        if *filtered { f.write_str(", a filter asked about each") } else { Ok(()) }
    }
}
