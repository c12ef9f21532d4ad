//! Encoding in other processes that have the same encoder, with the same bits.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Dropout, Embedder};
use crate::{Error, Matrix, Progress, Result};

/// Sequences of one batch: a few seconds of work on a core, so that the workers end at about the same time.
const BATCH: usize = 256;

/// Processes that encode batches. A batch and its reply are bytes that [`Embedder::encode_batch`] reads and writes.
pub trait EncodingWorkers: Send + Sync {
    /// Batches that are encoded at the same time.
    fn count(&self) -> usize;

    /// The replies to batches, in their order.
    fn encode(&self, batches: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>>;
}

/// Sequences and the views that are wanted of them.
#[derive(Serialize, Deserialize)]
struct Batch {
    sequences: Vec<Vec<u32>>,
    views: Vec<Option<View>>,
}

/// [`Dropout`] in a form that travels.
#[derive(Serialize, Deserialize)]
pub(super) struct View {
    /// Bits of the rate.
    pub rate: u64,
    pub key: u64,
    pub documents: Vec<u64>,
    pub last: Option<usize>,
}

/// The other half of an [`Embedder`]: encodes its documents elsewhere.
pub(super) struct Remote(pub Arc<dyn EncodingWorkers>);

impl Remote {
    /// Enough for every worker to have a batch while it encodes another.
    pub fn sequences_at_once(&self) -> usize {
        2 * BATCH * self.0.count().max(1)
    }

    pub fn encode_views(
        &self,
        tokens: &[impl AsRef<[u32]>],
        views: &[Option<Dropout>],
        width: usize,
        progress: &dyn Progress,
    ) -> Result<Vec<Matrix>> {
        let mut out: Vec<Vec<f32>> = vec![Vec::with_capacity(tokens.len() * width); views.len()];
        let starts: Vec<usize> = (0..tokens.len()).step_by(BATCH).collect();
        for starts in starts.chunks(2 * self.0.count().max(1)) {
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
            let ranges: Vec<_> = starts.iter().map(|&start| start..(start + BATCH).min(tokens.len())).collect();
            let batch = |range: &std::ops::Range<usize>| {
                let view = |view: &Option<Dropout>| view.map(|view| view.part(range.clone()).travelling());
                let sequences = tokens[range.clone()].iter().map(|sequence| sequence.as_ref().to_vec()).collect();
                let batch = Batch { sequences, views: views.iter().map(view).collect() };
                serde_json::to_vec(&batch).expect("plain data has a JSON form")
            };
            let replies = self.0.encode(ranges.iter().map(batch).collect())?;
            let fits = |(range, reply): (&std::ops::Range<usize>, &Vec<u8>)| {
                reply.len() == 4 * range.len() * views.len() * width
            };
            if replies.len() != ranges.len() || !ranges.iter().zip(&replies).all(fits) {
                return Err(Error::config("a worker returned embeddings of another encoder; give all the same one"));
            }
            for (range, reply) in ranges.iter().zip(&replies) {
                let values: Vec<f32> =
                    reply.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
                for (out, rows) in out.iter_mut().zip(values.chunks_exact(range.len() * width)) {
                    out.extend_from_slice(rows);
                }
                progress.advance((range.len() * views.len()) as u64);
            }
        }
        Ok(out.into_iter().map(|values| Matrix::from_vec(width, values)).collect())
    }
}

impl Embedder {
    /// The reply to a batch of an [`Embedder`] in another process: its views, `[views, sequences, width]`.
    pub fn encode_batch(&self, batch: &[u8], progress: &dyn Progress) -> Result<Vec<u8>> {
        let unreadable = |problem: serde_json::Error| Error::config(format!("the batch cannot be read: {problem}"));
        let Batch { sequences, views } = serde_json::from_slice(batch).map_err(unreadable)?;
        if views.iter().flatten().any(|view| view.documents.len() != sequences.len()) {
            return Err(Error::config("the batch cannot be read: a view has another number of documents"));
        }
        let views: Vec<Option<Dropout>> = views.iter().map(|view| view.as_ref().map(Dropout::arrived)).collect();
        let encoded = self.encode_views(&sequences, &views, progress)?;
        Ok(encoded.iter().flat_map(Matrix::as_slice).flat_map(|value| value.to_le_bytes()).collect())
    }
}
