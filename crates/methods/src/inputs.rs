//! The inputs of a method, and the layers and codebooks that come out of it.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use engine::encoder::{Convolution, Dropout, Embedder, Layer, Terms, Vocabulary, WINDOW, Weighting};
use engine::model::{CodeShape, Codebooks, Dense, Distance, Projection};
use engine::{Error, Matrix, Progress, Result};
use half::f16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;
use train::Labels;

use crate::entry::{Entry, Windows};
use crate::graph::dense;
use crate::scale::Scale;
use crate::yardstick::Row;

/// Labelled queries that choose the best epoch.
#[derive(Clone, Copy)]
pub struct Validation<'a> {
    pub queries: &'a Inputs,
    pub query_labels: &'a Labels,
    pub document_labels: &'a Labels,
}

/// Texts projected at a time. Only the first layer's output of one block is dense in memory.
const BLOCK: usize = 4096;
/// Rate of dropout in passes over token states: that of BERT's own training.
const DROPOUT: f64 = 0.1;

/// Documents or queries as a method reads them.
pub enum Inputs {
    Embeddings(Matrix),
    Terms(TermRows),
    TokenStates(TokenStates),
}

/// The states of every token of texts, in half precision. The encoder runs before the first step and not again.
pub struct TokenStates {
    // The clean pass, then the passes with dropout.
    passes: Vec<Vec<f16>>,
    // The end of each text, in tokens.
    ends: Vec<usize>,
    width: usize,
    // The GPU of the encoder.
    gpu: Option<cuda::Device>,
    // Computed once for all models: it takes two passes over all states.
    scales: OnceLock<Scales>,
}

/// Scales token states to mean 0 and variance 1. States of `[CLS]` are distributed differently and have a scale of their own. A
/// few values of BERT's states are ten times the others and the same in every token. Without scaling all texts get one code within the
/// first epoch, and no gradient leads out of it (bert-base does the same in PyTorch).
pub struct Scales {
    /// Of `[CLS]`.
    pub first: Scale,
    pub others: Scale,
}

impl Scales {
    fn of(tokens: &TokenStates) -> Self {
        let (width, texts) = (tokens.width(), 0..tokens.len());
        Scales {
            first: Scale::of_rows(width, texts.clone().map(|text| tokens.first(text, 0))),
            others: Scale::of_rows(width, texts.map(|text| tokens.others(text, 0))),
        }
    }
}

/// Refuses token states that do not fit into memory: the kernel would kill the process without a message.
fn check_memory(texts: usize, passes: usize, needed: usize) -> Result<()> {
    let Some(free) = engine::memory::available()
        .map(|free| usize::try_from(free).unwrap_or(usize::MAX))
        .filter(|free| needed > *free)
    else {
        return Ok(());
    };
    let [needed, free] = [needed, free].map(|bytes| bytes as f64 / (1u64 << 30) as f64);
    Err(Error::config(format!(
        "token states of {texts} texts, read {passes} times, need {needed:.1} GiB of memory and {free:.1} GiB are free; lower sample or passes"
    )))
}

/// Texts by their terms.
pub struct TermRows {
    pub vocabulary: Arc<Vocabulary>,
    pub weighting: Weighting,
    /// Terms of every text, in their order.
    pub tokens: Vec<Vec<u32>>,
    /// The same as sparse rows.
    pub rows: Vec<Row>,
}

impl TokenStates {
    /// Encodes the sequences once without dropout, then `dropped` times with it.
    pub fn new(embedder: &Embedder, sequences: &[Vec<u32>], dropped: usize, progress: &dyn Progress) -> Result<Self> {
        let encoder = embedder.encoder().ok_or_else(|| Error::config("token states need an encoder"))?;
        let (width, numbers) = (encoder.width(), (0..sequences.len() as u64).collect::<Vec<u64>>());
        let lengths = sequences.iter().map(Vec::len);
        let ends: Vec<usize> = lengths
            .scan(0, |end, length| {
                *end += length;
                Some(*end)
            })
            .collect();
        check_memory(sequences.len(), 1 + dropped, 2 * width * ends.last().unwrap_or(&0) * (1 + dropped))?;
        progress.stage("reading token states", Some((sequences.len() * (1 + dropped)) as u64));
        let pass = |number: usize| -> Result<Vec<f16>> {
            let mut states = vec![f16::ZERO; ends.last().map_or(0, |end| end * width)];
            let (mut rest, mut slots) = (&mut states[..], Vec::with_capacity(sequences.len()));
            for sequence in sequences {
                let (own, after) = rest.split_at_mut(sequence.len() * width);
                slots.push(own);
                rest = after;
            }
            let dropout = (number > 0).then(|| Dropout::new(DROPOUT, 0, number as u32, &numbers));
            encoder.reduce(sequences, dropout, slots, |own, slot| slot.convert_from_f32_slice(own), progress)?;
            Ok(states)
        };
        let passes = (0..=dropped).map(pass).collect::<Result<_>>()?;
        Ok(TokenStates { passes, ends, width, gpu: encoder.gpu().cloned(), scales: OnceLock::new() })
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Values per state.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The GPU of their encoder, if it runs on one.
    pub fn gpu(&self) -> Option<&cuda::Device> {
        self.gpu.as_ref()
    }

    /// The tokens of one text.
    fn range(&self, text: usize) -> Range<usize> {
        (if text == 0 { 0 } else { self.ends[text - 1] })..self.ends[text]
    }

    fn states(&self, tokens: Range<usize>, pass: usize) -> Vec<f32> {
        let mut out = vec![0.0; tokens.len() * self.width];
        self.passes[pass][tokens.start * self.width..tokens.end * self.width].convert_to_f32_slice(&mut out);
        out
    }

    /// Number of tokens of a text.
    pub fn count(&self, text: usize) -> usize {
        self.range(text).len()
    }

    /// The state of a text's first token, `[CLS]`, in one of the passes; pass 0 is the clean one.
    pub fn first(&self, text: usize, pass: usize) -> Vec<f32> {
        let start = self.range(text).start;
        self.states(start..start + 1, pass)
    }

    /// States of all its tokens but the first, `[tokens, width]`.
    pub fn others(&self, text: usize, pass: usize) -> Vec<f32> {
        let Range { start, end } = self.range(text);
        self.states(start + 1..end, pass)
    }
}

impl TokenStates {
    /// Scales the states to mean 0 and variance 1.
    pub fn scales(&self) -> &Scales {
        self.scales.get_or_init(|| Scales::of(self))
    }

    /// The windows of some texts in a pass, scaled.
    pub fn scaled_windows(&self, texts: &[u32], pass: usize) -> Windows {
        let others = &self.scales().others;
        let scale = |mut states: Vec<f32>| {
            others.apply_to(&mut states);
            states
        };
        let texts: Vec<Vec<f32>> = texts.par_iter().map(|&text| scale(self.others(text as usize, pass))).collect();
        // The finished model reads zeros beyond the ends of a text; zeros are scaled like states.
        Windows::new(&texts, &scale(vec![0.0; self.width]))
    }
}

impl TermRows {
    pub fn new(vocabulary: Arc<Vocabulary>, weighting: Weighting, tokens: Vec<Vec<u32>>) -> Self {
        let rows = tokens.par_iter().map(|terms| vocabulary.row(terms, weighting)).collect();
        TermRows { vocabulary, weighting, tokens, rows }
    }
}

impl Inputs {
    pub fn len(&self) -> usize {
        match self {
            Inputs::Embeddings(rows) => rows.rows(),
            Inputs::Terms(terms) => terms.rows.len(),
            Inputs::TokenStates(tokens) => tokens.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Values per row.
    pub fn width(&self) -> usize {
        match self {
            Inputs::Embeddings(rows) => rows.cols(),
            Inputs::Terms(terms) => terms.vocabulary.len(),
            Inputs::TokenStates(tokens) => WINDOW * tokens.width,
        }
    }
}

/// A trained network: turns an input into a code.
#[derive(Clone)]
pub struct Built {
    pub front: Front,
    pub projection: Projection,
    pub codebooks: Codebooks,
    pub distance: Distance,
    /// Layers from embeddings to tables by kind.
    pub kinds: Option<Projection>,
}

impl Built {
    /// Reads embeddings and compares by squared distance.
    pub fn quantizer(projection: Projection, codebooks: Codebooks) -> Built {
        Built { front: Front::Embeddings, projection, codebooks, distance: Distance::Squared, kinds: None }
    }
}

/// Where the first layer of the projection reads from.
#[derive(Clone, Debug)]
pub enum Front {
    Embeddings,
    /// Terms with their first layer.
    Terms(Terms),
    /// A learned convolution over token states.
    Convolution(Convolution),
}

/// The layers of a network: `entry`, then `behind`, with ReLU before each.
pub fn network(entry: &Entry, behind: Vec<Dense>, inputs: &Inputs) -> Result<(Front, Projection)> {
    match inputs {
        Inputs::Embeddings(_) => {
            let mut layers = vec![dense(&entry.weight, &entry.bias)?];
            layers.extend(behind);
            Ok((Front::Embeddings, Projection::new(layers)?))
        }
        Inputs::TokenStates(tokens) => {
            let (weight, bias) = (entry.weight.values.clone(), entry.bias.values.clone());
            let convolution = Convolution::new(tokens.width, weight, bias)?;
            Ok((Front::Convolution(convolution), Projection::new(behind)?))
        }
        Inputs::Terms(terms) => {
            let layer = Layer { weight: entry.weight.values.clone(), bias: entry.bias.values.clone() };
            let terms = Terms::new(terms.weighting, !behind.is_empty(), terms.vocabulary.clone(), layer)?;
            let behind = if behind.is_empty() { vec![identity_layer(entry.weight.shape[1])?] } else { behind };
            Ok((Front::Terms(terms), Projection::new(behind)?))
        }
    }
}

/// The identity as a layer: a model has at least one.
fn identity_layer(n: usize) -> Result<Dense> {
    Dense::new(n, crate::rotation::identity(n).as_slice().to_vec(), vec![0.0; n])
}

/// A codebook with the codewords -1 and +1 for every bit: the nearest codeword is the sign.
pub fn signs(bits: usize) -> Result<Codebooks> {
    Codebooks::new(CodeShape::new(bits, 2, 1)?, [-1.0, 1.0].repeat(bits))
}

/// Projects all inputs.
pub fn projected(front: &Front, projection: &Projection, inputs: &Inputs) -> Result<Matrix> {
    match (front, inputs) {
        (Front::Terms(terms), Inputs::Terms(rows)) => {
            let mut out = Matrix::zeros(0, projection.outputs());
            for block in rows.tokens.chunks(BLOCK) {
                out.extend(&projection.apply(&terms.encode(block)?)?);
            }
            Ok(out)
        }
        (Front::Embeddings, Inputs::Embeddings(vectors)) => projection.apply(vectors),
        (Front::Convolution(convolution), Inputs::TokenStates(tokens)) => {
            let mut pooled = Matrix::zeros(tokens.len(), convolution.outputs);
            // If the layer does not fit on the GPU, the CPU takes over.
            if let Some(Ok(layer)) = tokens.gpu().map(|device| Entry::of_convolution(convolution).on(device)) {
                pool_on_gpu(layer, tokens, &mut pooled)?;
                return projection.apply(&pooled);
            }
            pooled.as_mut_slice().par_chunks_exact_mut(convolution.outputs).enumerate().for_each(|(i, row)| {
                convolution.pool(&tokens.others(i, 0), row);
            });
            projection.apply(&pooled)
        }
        _ => unreachable!("a network reads the kind of input it was trained on"),
    }
}

/// Texts per convolution on a GPU.
const GPU_TEXTS: usize = 256;

/// [`Convolution::pool`] of every text, on a GPU.
fn pool_on_gpu(mut filters: cuda::Layer, tokens: &TokenStates, out: &mut Matrix) -> Result<()> {
    let (outputs, none) = (out.cols(), vec![0.0; tokens.width]);
    for (i, rows) in out.as_mut_slice().chunks_mut(GPU_TEXTS * outputs).enumerate() {
        let texts = i * GPU_TEXTS..i * GPU_TEXTS + rows.len() / outputs;
        let states: Vec<Vec<f32>> = texts.into_par_iter().map(|text| tokens.others(text, 0)).collect();
        let found = filters.pool(&Windows::new(&states, &none).texts());
        rows.copy_from_slice(&found.map_err(|problem| Error::device(problem.to_string()))?);
    }
    Ok(())
}

/// Subtracts the median of every output, so that each bit is set in half of the documents.
pub fn centred(projection: Projection, projected: &Matrix) -> Result<Projection> {
    let mut layers = projection.layers().to_vec();
    let last = layers.pop().expect("a projection has layers");
    let medians = (0..projected.cols()).map(|j| {
        let mut column: Vec<f32> = projected.iter().map(|row| row[j]).collect();
        let middle = column.len() / 2;
        *column.select_nth_unstable_by(middle, f32::total_cmp).1
    });
    let bias = last.bias().iter().zip(medians).map(|(b, m)| b - m).collect();
    layers.push(Dense::new(last.inputs(), last.weight().to_vec(), bias)?);
    Projection::new(layers)
}
