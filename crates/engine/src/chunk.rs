//! Chunks: a text longer than the encoder takes, split into parts that it takes whole.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use rayon::prelude::*;

use crate::corpus::Document;
use crate::encoder::Embedder;
use crate::{Error, Result};

/// How long texts are split, as the user says it.
///
/// ```
/// use engine::chunk::ChunkConfig;
///
/// assert_eq!("200:20".parse::<ChunkConfig>()?, ChunkConfig { tokens: Some(200), overlap: Some(20) });
/// assert_eq!("auto".parse::<ChunkConfig>()?, ChunkConfig::default());
/// # Ok::<(), engine::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkConfig {
    /// Tokens of a chunk at most, with `[CLS]` and `[SEP]`. Default: as many as the encoder takes.
    pub tokens: Option<usize>,
    /// Tokens that a chunk repeats of the one before. Default: an eighth of `tokens`.
    pub overlap: Option<usize>,
}

impl FromStr for ChunkConfig {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse =
            || Error::config(format!("chunk '{text}' is not TOKENS or TOKENS:OVERLAP, such as 256:32, nor auto"));
        let number = |part: &str| match part {
            "auto" => Ok(None),
            _ => part.parse().map(Some).map_err(|_| refuse()),
        };
        let (tokens, overlap) = text.split_once(':').unwrap_or((text, "auto"));
        Ok(ChunkConfig { tokens: number(tokens)?, overlap: number(overlap)? })
    }
}

impl ChunkConfig {
    /// Least tokens of a chunk. Fewer would hold less than a sentence.
    pub const MIN_TOKENS: usize = 8;

    /// The sizes for an encoder. Refuses chunks that it would cut.
    pub fn sizes(self, embedder: &Embedder) -> Result<ChunkSizes> {
        let limit = embedder.config().max_tokens;
        // What a chunk without text has: the ends of a text, and the prompt.
        let Some(empty) = embedder.count_tokens("")? else {
            return Err(Error::config(match embedder.config().terms {
                Some(_) => "this model takes keywords instead of an encoder and cuts no text; leave chunk out",
                None => {
                    "the tokens of an encoder behind a service cannot be counted here; split the texts before, and leave chunk out"
                }
            }));
        };
        let tokens = self.tokens.unwrap_or(limit);
        if tokens > limit {
            return Err(Error::config(format!(
                "chunks of {tokens} tokens are longer than the encoder takes: {limit}; give at most that many, or raise max_tokens"
            )));
        }
        let sizes = ChunkSizes { tokens, overlap: self.overlap.unwrap_or(tokens / 8) };
        sizes.validate()?;
        if 2 * empty >= tokens {
            return Err(Error::config(format!(
                "the encoder's prompt takes {empty} of the {tokens} tokens of a chunk; give larger chunks, or leave chunk out"
            )));
        }
        Ok(sizes)
    }
}

/// How the texts of an index are split, as the index records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChunkSizes {
    pub tokens: usize,
    pub overlap: usize,
}

impl ChunkSizes {
    pub fn validate(&self) -> Result<()> {
        if self.tokens < ChunkConfig::MIN_TOKENS || self.overlap > self.tokens / 2 {
            return Err(Error::config(format!(
                "chunks of {} tokens with an overlap of {}: give at least {} tokens, and an overlap of at most half of them",
                self.tokens,
                self.overlap,
                ChunkConfig::MIN_TOKENS
            )));
        }
        Ok(())
    }
}

impl fmt::Display for ChunkSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.tokens, self.overlap)
    }
}

/// Splits texts for one encoder.
pub struct Chunker<'a> {
    sizes: ChunkSizes,
    /// Tokens of a chunk without text.
    empty: usize,
    embedder: &'a Embedder,
}

impl<'a> Chunker<'a> {
    /// Refuses sizes that the encoder would cut.
    pub fn new(sizes: ChunkSizes, embedder: &'a Embedder) -> Result<Self> {
        ChunkConfig { tokens: Some(sizes.tokens), overlap: Some(sizes.overlap) }.sizes(embedder)?;
        let empty = embedder.count_tokens("")?.unwrap_or(0);
        Ok(Chunker { sizes, empty, embedder })
    }

    /// Byte ranges of a text's chunks, in order. Together they cover it; neighbours overlap. Chunks end at headings, between
    /// paragraphs, sentences or words, whichever is the largest that fits.
    pub fn split(&self, text: &str) -> Vec<Range<usize>> {
        if self.size(text) <= self.sizes.tokens {
            return whole(text);
        }
        let config = text_splitter::ChunkConfig::new(self.sizes.tokens).with_sizer(self).with_trim(true);
        // The sizer counts the ends and the prompt of every piece.
        let overlap = if self.sizes.overlap > 0 { self.sizes.overlap + self.empty } else { 0 };
        let config = config.with_overlap(overlap).expect("both are at most half the size, together below it");
        // Markdown has the headings. In a plain text it finds paragraphs and sentences as well.
        let splitter = text_splitter::MarkdownSplitter::new(config);
        let chunks = covering(text, splitter.chunk_indices(text).map(|(start, chunk)| start..start + chunk.len()));
        let nexts = chunks.iter().skip(1).map(|chunk| chunk.start).chain([text.len()]);
        chunks.iter().zip(nexts).flat_map(|(chunk, next)| self.fit(text, chunk.clone(), next)).collect()
    }

    /// A chunk that is too long, in parts, as far as the next chunk does not have them. The splitter takes longer texts to have
    /// more tokens, which merges of byte pairs, and blanks at the end of a chunk, may break by a few.
    fn fit(&self, text: &str, mut chunk: Range<usize>, next: usize) -> Vec<Range<usize>> {
        let mut parts = Vec::new();
        while self.size(&text[chunk.clone()]) > self.sizes.tokens {
            let own = &text[chunk.clone()];
            // What is left is more than blanks.
            let ends = own.char_indices().map(|(at, _)| at).filter(|at| (1..own.trim_end().len()).contains(at));
            let Some(end) = ends.rev().find(|&end| self.size(&own[..end]) <= self.sizes.tokens) else { break };
            parts.push(chunk.start..chunk.start + end);
            chunk.start += end;
            if next <= chunk.start {
                return parts;
            }
        }
        parts.push(chunk);
        parts
    }

    /// The chunks of several documents, on all cores.
    pub fn split_all(&self, documents: &[Document]) -> Vec<Vec<Range<usize>>> {
        documents.par_iter().map(|document| self.split(&document.text)).collect()
    }

    fn size(&self, text: &str) -> usize {
        // A text that cannot be tokenised is refused where it is encoded.
        self.embedder.count_tokens(text).ok().flatten().unwrap_or(0)
    }
}

impl text_splitter::ChunkSizer for Chunker<'_> {
    fn size(&self, chunk: &str) -> usize {
        Chunker::size(self, chunk)
    }
}

fn whole(text: &str) -> Vec<Range<usize>> {
    std::iter::once(0..text.len()).collect()
}

/// Extends ranges over the white space between them, so that the whole text can be put together again.
fn covering(text: &str, chunks: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut all: Vec<Range<usize>> = chunks.collect();
    for i in 1..all.len() {
        all[i - 1].end = all[i - 1].end.max(all[i].start);
    }
    match all.as_mut_slice() {
        [] => return whole(text),
        [.., last] => last.end = text.len(),
    }
    all[0].start = 0;
    all
}

/// Puts a text together from its chunks: where each begins, and its own text.
pub(crate) fn join(chunks: impl Iterator<Item = (usize, String)>) -> std::result::Result<String, String> {
    let mut text = String::new();
    for (start, chunk) in chunks {
        let known = text.len().checked_sub(start).filter(|known| *known <= chunk.len());
        let new = known.and_then(|known| chunk.get(known..));
        text.push_str(new.ok_or_else(|| format!("a chunk begins at byte {start} of {}", text.len()))?);
    }
    Ok(text)
}
