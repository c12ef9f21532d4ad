//! An encoder on a GPU: sequences in, embeddings out, batch after batch on two streams.

use std::cell::Cell;

use crate::driver::batch::{Capacity, check, cut};
use crate::driver::compile::{Kernels, compile};
use crate::driver::device::Device;
use crate::driver::forward::{Lane, Model};
use crate::driver::gemm::Products;
use crate::driver::library::guarded;
use crate::driver::memory::{Event, Stream};
use crate::driver::weights::{Weights, widen};
use crate::{Dropout, Error, Pooling, Precision, Report, Result, Shape, Source};
use parking_lot::Mutex;

/// Default size of a batch.
const BATCH_TOKENS: usize = 16 * 1024;
/// Streams. While one computes a batch, the ids and embeddings of the other are copied and its small kernels fill gaps.
const LANES: usize = 2;

/// An encoder whose weights are on a GPU.
pub struct Bert {
    // Dropped first: the streams still use the model.
    lanes: Mutex<Lanes>,
    model: Model,
    device: Device,
}

struct Lanes {
    lanes: Vec<Lane>,
    tokens: usize,
    halved: u32,
}

impl Bert {
    /// Compiles the kernels for the encoder and copies its weights to the GPU.
    ///
    /// `weights` returns a tensor by its Hugging Face name without the prefix `bert.`, row-major, in f32.
    pub fn new(device: &Device, shape: Shape, precision: Precision, weights: Source) -> Result<Self> {
        Self::with_batch(device, shape, precision, weights, BATCH_TOKENS)
    }

    /// [`Bert::new`] with batches of up to `tokens` tokens.
    pub fn with_batch(
        device: &Device,
        shape: Shape,
        precision: Precision,
        weights: Source,
        tokens: usize,
    ) -> Result<Self> {
        shape.check()?;
        if tokens == 0 || tokens > 1 << 20 {
            return Err(Error::Input(format!("a batch has 1 to {} tokens, not {tokens}", 1 << 20)));
        }
        guarded("preparing the encoder on the GPU", || {
            device.bind()?;
            let image = compile(&shape, precision, device.info().capability)?;
            let kernels = Kernels::load(device, &image)?;
            let widest = shape.intermediate.max(3 * shape.hidden);
            let load = |trial: Option<usize>| -> Result<(Products, Weights)> {
                let mut products = Products::new(device, precision, trial)?;
                let weights = Weights::load(device, &products, &kernels, &shape, precision, weights)?;
                products.end_trial();
                Ok((products, weights))
            };
            // Where memory is short, skip the search for the fastest products, which needs memory of its own.
            let (products, weights) = match load(Some(widest)) {
                Err(error) if error.is_memory() => load(None)?,
                other => other?,
            };
            let model = Model { shape, precision, weights, products, kernels, use_own_product: true };
            let lanes = Mutex::new(Lanes { lanes: Vec::new(), tokens, halved: 0 });
            Ok(Bert { lanes, model, device: device.clone() })
        })
    }

    /// Uses only cuBLASLt's products, which every chip has. The bits are the same; for comparison.
    pub fn plain(mut self) -> Self {
        self.model.use_own_product = false;
        self
    }

    /// One line per product: the time of cuBLASLt's first algorithm, of its fastest, and of our own kernel.
    pub fn choices(&self) -> Vec<String> {
        self.model.products.choices()
    }

    pub fn shape(&self) -> &Shape {
        &self.model.shape
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Writes the embeddings of token sequences, one row of `out` each: raw pooled vectors, not normalized.
    pub fn encode(
        &self,
        sequences: &[&[u32]],
        pooling: Pooling,
        dropout: Option<Dropout>,
        out: &mut [f32],
    ) -> Result<Report> {
        self.encode_views(sequences, pooling, &[dropout], &mut [out], &|_| true)
    }

    /// Writes the embeddings of every view into its own slice of `outs`. Each batch is uploaded once for all views.
    ///
    /// `progress` gets the number of finished rows, over all views, and stops the work by returning false.
    ///
    /// # Errors
    /// When an argument does not fit, the GPU fails, or its memory does not hold one sequence. `outs` may be partly
    /// written then.
    pub fn encode_views(
        &self,
        sequences: &[&[u32]],
        pooling: Pooling,
        views: &[Option<Dropout>],
        outs: &mut [&mut [f32]],
        progress: &dyn Fn(usize) -> bool,
    ) -> Result<Report> {
        let shape = &self.model.shape;
        check(sequences, shape)?;
        views.iter().flatten().try_for_each(|v| v.check(sequences.len()))?;
        let values = sequences.len() * shape.hidden;
        if outs.len() != views.len() || outs.iter().any(|o| o.len() != values) {
            let found: Vec<usize> = outs.iter().map(|o| o.len()).collect();
            let n = views.len();
            return Err(Error::Input(format!(
                "{n} views of {values} values each do not fit outputs of {found:?} values"
            )));
        }
        let longest = sequences.iter().map(|s| s.len()).max().unwrap_or(0);
        let tokens = sequences.iter().map(|s| s.len() as u64).sum();
        // Only the caller's closure can panic under the lock; the lanes are abandoned before their next use.
        let mut state = self.lanes.lock();
        guarded("encoding on the GPU", || {
            self.device.bind()?;
            // A driver may load kernels at their first launch, and find only then that memory is short.
            let done = Cell::new(0);
            let counted = |rows: usize| {
                done.set(done.get() + rows);
                progress(rows)
            };
            let (batches, capacity) = loop {
                state.reserve(&self.device, &self.model, longest)?;
                let capacity = state.lanes[0].capacity();
                let batches = cut(sequences, capacity);
                let result = self.run(&mut state.lanes, sequences, &batches, pooling, views, outs, &counted);
                let Err(error) = result else { break (batches.len(), capacity) };
                state.abandon();
                if done.get() > 0 || error_is_final(&error, state.tokens, longest) {
                    return Err(error);
                }
                state.tokens /= 2;
                state.halved += 1;
            };
            let Lanes { halved, .. } = *state;
            Ok(Report { tokens, batches, batch_tokens: capacity.tokens, halved })
        })
    }

    /// Writes the token states after the last layer, sequence after sequence: `[tokens of all sequences, hidden]`. `progress`
    /// gets the number of finished sequences and stops the work by returning false.
    ///
    /// # Errors
    /// As for [`Bert::encode_views`].
    pub fn states(
        &self,
        sequences: &[&[u32]],
        dropout: Option<Dropout>,
        out: &mut [f32],
        progress: &dyn Fn(usize) -> bool,
    ) -> Result<()> {
        let Model { shape, precision, .. } = &self.model;
        check(sequences, shape)?;
        dropout.iter().try_for_each(|v| v.check(sequences.len()))?;
        let tokens: usize = sequences.iter().map(|s| s.len()).sum();
        if out.len() != tokens * shape.hidden {
            let (found, expected) = (out.len(), tokens * shape.hidden);
            return Err(Error::Input(format!("token states of {expected} values do not fit an output of {found}")));
        }
        self.on_lane("encoding on the GPU", sequences, |lane| {
            let (mut rest, mut bits) = (out, Vec::new());
            let mut pooled = vec![0.0; sequences.len() * shape.hidden];
            for rows in cut(sequences, lane.capacity()) {
                lane.upload(shape, &sequences[rows.clone()])?;
                // Mean pooling is the last kernel and only reads the states, so they stay valid until the next launch.
                lane.launch(&self.model, Pooling::Mean, 0, dropout, rows.clone(), &mut |_, _| Ok(()))?;
                while lane.collect(&self.model, &mut [&mut pooled])?.is_some() {}
                let values = sequences[rows.clone()].iter().map(|s| s.len()).sum::<usize>() * shape.hidden;
                bits.resize(values, 0u16);
                lane.states(&mut bits)?;
                let (own, after) = std::mem::take(&mut rest).split_at_mut(values);
                widen(&bits, *precision, own);
                rest = after;
                if !progress(rows.len()) {
                    return Err(Error::Interrupted);
                }
            }
            Ok(())
        })
    }

    /// Microseconds per stage of a pass over the first batch of `sequences`, summed over layers; the mean of `rounds`
    /// consecutive passes.
    pub fn profile(
        &self,
        sequences: &[&[u32]],
        pooling: Pooling,
        dropout: Option<Dropout>,
        rounds: usize,
    ) -> Result<Vec<(&'static str, f64)>> {
        let shape = &self.model.shape;
        check(sequences, shape)?;
        dropout.iter().try_for_each(|v| v.check(sequences.len()))?;
        self.on_lane("timing the GPU", sequences, |lane| {
            let rows = match cut(sequences, lane.capacity()).into_iter().next() {
                Some(rows) if rounds > 0 => rows,
                _ => return Ok(Vec::new()),
            };
            let mut out = vec![0f32; sequences.len() * shape.hidden];
            lane.upload(shape, &sequences[rows.clone()])?;
            let mut marks: Vec<(&'static str, Event)> = Vec::new();
            for _ in 0..rounds {
                while lane.is_full() {
                    lane.collect(&self.model, &mut [&mut out])?;
                }
                let mut mark = |stream: &Stream, name| {
                    let event = Event::timed(&self.device)?;
                    event.record(stream)?;
                    marks.push((name, event));
                    Ok(())
                };
                lane.launch(&self.model, pooling, 0, dropout, rows.clone(), &mut mark)?;
            }
            while lane.collect(&self.model, &mut [&mut out])?.is_some() {}
            let mut stages: Vec<(&'static str, f64)> = Vec::new();
            for pair in marks.windows(2) {
                let [(_, before), (name, event)] = pair else { continue };
                // The time between two passes is copies, not the first stage.
                if *name == "keys" {
                    continue;
                }
                let micros = event.micros_since(before)? / rounds as f64;
                match stages.iter_mut().find(|(n, _)| n == name) {
                    Some((_, sum)) => *sum += micros,
                    None => stages.push((name, micros)),
                }
            }
            Ok(stages)
        })
    }

    /// Runs work on one lane, without retries.
    fn on_lane<T>(&self, doing: &str, sequences: &[&[u32]], work: impl FnOnce(&mut Lane) -> Result<T>) -> Result<T> {
        let longest = sequences.iter().map(|s| s.len()).max().unwrap_or(0);
        let mut state = self.lanes.lock();
        guarded(doing, || {
            self.device.bind()?;
            state.reserve(&self.device, &self.model, longest)?;
            let result = work(&mut state.lanes[0]);
            if result.is_err() {
                state.abandon();
            }
            result
        })
    }

    #[allow(clippy::too_many_arguments)]
    fn run(
        &self,
        lanes: &mut [Lane],
        sequences: &[&[u32]],
        batches: &[std::ops::Range<usize>],
        pooling: Pooling,
        views: &[Option<Dropout>],
        outs: &mut [&mut [f32]],
        progress: &dyn Fn(usize) -> bool,
    ) -> Result<()> {
        let collect = |lane: &mut Lane, outs: &mut [&mut [f32]]| -> Result<bool> {
            match lane.collect(&self.model, outs)? {
                None => Ok(false),
                Some(rows) if progress(rows) => Ok(true),
                Some(_) => Err(Error::Interrupted),
            }
        };
        for group in batches.chunks(lanes.len()) {
            for (lane, rows) in lanes.iter_mut().zip(group) {
                lane.upload(&self.model.shape, &sequences[rows.clone()])?;
            }
            for (v, dropout) in views.iter().enumerate() {
                for (lane, rows) in lanes.iter_mut().zip(group) {
                    if lane.is_full() {
                        collect(lane, outs)?;
                    }
                    lane.launch(&self.model, pooling, v, *dropout, rows.clone(), &mut |_, _| Ok(()))?;
                }
            }
        }
        for lane in lanes {
            while collect(lane, outs)? {}
        }
        Ok(())
    }
}

impl Lanes {
    /// Drops the lanes after a failure, so that no queued work writes to a lane of the next call.
    fn abandon(&mut self) {
        self.lanes.iter_mut().for_each(Lane::abandon);
        self.lanes.clear();
    }

    /// Allocates lanes that hold the longest sequence, and halves the batch while the GPU's memory is short.
    fn reserve(&mut self, device: &Device, model: &Model, longest: usize) -> Result<()> {
        if self.lanes.len() == LANES && self.lanes[0].capacity().tokens >= longest {
            return Ok(());
        }
        self.lanes.clear();
        let (lanes, tokens, halved) = halve_until_it_fits(self.tokens.max(longest), longest, |tokens| {
            (0..LANES).map(|_| Lane::new(device, model, Capacity::new(tokens))).collect()
        })?;
        (self.lanes, self.tokens) = (lanes, tokens);
        self.halved += halved;
        Ok(())
    }
}

/// Calls `allocate` with `tokens`, and with half as many each time memory is short, until the longest sequence does not fit.
/// Returns the allocation, its tokens, and how often they were halved.
fn halve_until_it_fits<T>(
    mut tokens: usize,
    longest: usize,
    mut allocate: impl FnMut(usize) -> Result<T>,
) -> Result<(T, usize, u32)> {
    let mut halved = 0;
    loop {
        match allocate(tokens) {
            Ok(allocated) => return Ok((allocated, tokens, halved)),
            Err(error) if error_is_final(&error, tokens, longest) => return Err(error),
            Err(_) => (tokens, halved) = (tokens / 2, halved + 1),
        }
    }
}

/// Whether a smaller batch cannot help.
fn error_is_final(error: &Error, tokens: usize, longest: usize) -> bool {
    !error.is_memory() || tokens / 2 < longest.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoder_may_be_shared_between_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<Bert>();
        shared::<Device>();
    }

    /// Allocates on a simulated GPU with memory for `room` tokens.
    fn allocate(tokens: usize, longest: usize, room: usize) -> Result<(usize, usize, u32)> {
        halve_until_it_fits(tokens, longest, |tokens| match tokens {
            t if t <= room => Ok(t),
            t => Err(Error::Memory { what: format!("a batch of {t} tokens"), needed: t, free: room, total: 143_771 }),
        })
    }

    #[test]
    fn short_memory_halves_the_batch_and_then_fails_with_a_remedy() {
        assert_eq!(allocate(16384, 512, 16384).unwrap(), (16384, 16384, 0));
        assert_eq!(allocate(16384, 512, 5000).unwrap(), (4096, 4096, 2));
        assert_eq!(allocate(16384, 512, 512).unwrap(), (512, 512, 5));
        let message = allocate(16384, 512, 511).unwrap_err().to_string();
        assert!(message.contains("too little memory for a batch of 512 tokens"), "{message}");
        assert!(message.contains("511 MiB free of 143771 MiB") && message.contains("use the CPU"), "{message}");
        // Other errors are not retried.
        let mut tries = 0;
        let result = halve_until_it_fits(16384, 1, |_| -> Result<()> {
            tries += 1;
            Err(Error::Interrupted)
        });
        assert!(matches!(result, Err(Error::Interrupted)) && tries == 1);
    }

    #[test]
    fn short_memory_is_final_when_half_a_batch_does_not_hold_the_longest_sequence() {
        let short = Error::Memory { what: "a batch".into(), needed: 1, free: 0, total: 1 };
        assert!(!error_is_final(&short, 16384, 512));
        assert!(!error_is_final(&short, 1024, 512));
        assert!(error_is_final(&short, 1023, 512));
        assert!(error_is_final(&short, 1, 0));
        assert!(error_is_final(&Error::Interrupted, 16384, 1));
        let report = Report { tokens: 1, batches: 1, batch_tokens: 4096, halved: 2 };
        assert!(report.note().unwrap().contains("4096 tokens instead of 16384"));
        assert_eq!(Report { halved: 0, ..report }.note(), None);
    }
}
