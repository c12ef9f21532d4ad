//! What a system is trained on, and the model its weights amount to.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use half::f16;
use half::slice::HalfFloatSliceExt;
use micpq::encoder::{Convolution, Dropout, Features, Layer, Terms, Vocabulary, WINDOW, Weighting};
use micpq::model::{CodeShape, Codebooks, Dense, Distance, Refine};
use micpq::{Error, Matrix, Result, Watch};
use rayon::prelude::*;

use crate::entry::{Entry, Windows};
use crate::graph::dense;
use crate::scale::Scale;
use crate::yardstick::Row;

/// Texts refined at a time: the first layer's output of a block is all that is ever dense.
const BLOCK: usize = 4096;
/// Rate of passes with dropout over token states: BERT's own.
const DROPOUT: f64 = 0.1;

/// Documents or queries as a system sees them.
pub enum Inputs {
    /// An encoder's vectors.
    Vectors(Matrix),
    /// Words.
    Words(Words),
    /// States of every token.
    Tokens(Tokens),
}

/// Texts by the states of their tokens, in half precision: the encoder is read before the first step and not again.
pub struct Tokens {
    // Clean ones, then those of every pass with dropout.
    passes: Vec<Vec<f16>>,
    // Where each text ends, in tokens.
    ends: Vec<usize>,
    width: usize,
    // Where the encoder that made them is.
    gpu: Option<cuda::Device>,
    // Found once, whatever the number of models: two passes over all states.
    scales: OnceLock<Scales>,
}

/// What brings token states to mean 0 and variance 1: those of `[CLS]` are of another kind and have their own. A few
/// values of BERT's states are ten times the others and the same in every token; as they are, all texts get one code within
/// the first epoch and no gradient leads out of it (so it went with bert-base in PyTorch too).
pub struct Scales {
    /// That of `[CLS]`.
    pub first: Scale,
    /// That of all others.
    pub others: Scale,
}

impl Scales {
    fn of(tokens: &Tokens) -> Self {
        let (width, texts) = (tokens.width(), 0..tokens.len());
        Scales {
            first: Scale::of_rows(width, texts.clone().map(|text| tokens.first(text, 0))),
            others: Scale::of_rows(width, texts.map(|text| tokens.others(text, 0))),
        }
    }
}

/// Refuses token states for which there is no memory: a run that takes them all the same is killed without a word.
fn check_room(texts: usize, passes: usize, needed: usize) -> Result<()> {
    let Some(free) = free_memory().filter(|free| needed > *free) else { return Ok(()) };
    let [needed, free] = [needed, free].map(|bytes| bytes as f64 / (1u64 << 30) as f64);
    Err(Error::config(format!(
        "token states of {texts} texts, read {passes} times, take {needed:.1} GiB of memory and {free:.1} are free; take fewer texts (sample) or fewer passes"
    )))
}

/// Bytes of memory that can be had without pushing others out, where the system says so.
fn free_memory() -> Option<usize> {
    let said = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = said.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok().map(|kib| kib << 10)
}

/// Texts by their words.
pub struct Words {
    /// The words that count.
    pub vocabulary: Arc<Vocabulary>,
    /// What they weigh.
    pub weighting: Weighting,
    /// Terms of every text, in order.
    pub tokens: Vec<Vec<u32>>,
    /// The same as sparse rows.
    pub rows: Vec<Row>,
}

impl Tokens {
    /// Reads every token of the sequences: once as they are, then `dropped` times with dropout.
    pub fn new(features: &Features, sequences: &[Vec<u32>], dropped: usize, watch: &dyn Watch) -> Result<Self> {
        let encoder = features.encoder().ok_or_else(|| Error::config("token states need an encoder"))?;
        let (width, numbers) = (encoder.width(), (0..sequences.len() as u64).collect::<Vec<u64>>());
        let lengths = sequences.iter().map(Vec::len);
        let ends: Vec<usize> = lengths
            .scan(0, |end, length| {
                *end += length;
                Some(*end)
            })
            .collect();
        check_room(sequences.len(), 1 + dropped, 2 * width * ends.last().unwrap_or(&0) * (1 + dropped))?;
        watch.stage("reading token states", Some((sequences.len() * (1 + dropped)) as u64));
        let pass = |number: usize| -> Result<Vec<f16>> {
            let mut states = vec![f16::ZERO; ends.last().map_or(0, |end| end * width)];
            let (mut rest, mut places) = (&mut states[..], Vec::with_capacity(sequences.len()));
            for sequence in sequences {
                let (own, after) = rest.split_at_mut(sequence.len() * width);
                places.push(own);
                rest = after;
            }
            let dropout = (number > 0).then(|| Dropout::new(DROPOUT, 0, number as u32, &numbers));
            encoder.reduce(sequences, dropout, places, |own, place| place.convert_from_f32_slice(own), watch)?;
            Ok(states)
        };
        let passes = (0..=dropped).map(pass).collect::<Result<_>>()?;
        Ok(Tokens { passes, ends, width, gpu: encoder.gpu().cloned(), scales: OnceLock::new() })
    }

    /// Number of texts.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Values of a state.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The GPU their encoder is on, where it is on one: what reads them belongs there too.
    pub fn gpu(&self) -> Option<&cuda::Device> {
        self.gpu.as_ref()
    }

    /// Where one text's tokens are.
    fn range(&self, text: usize) -> Range<usize> {
        (if text == 0 { 0 } else { self.ends[text - 1] })..self.ends[text]
    }

    fn states(&self, tokens: Range<usize>, pass: usize) -> Vec<f32> {
        let mut out = vec![0.0; tokens.len() * self.width];
        self.passes[pass][tokens.start * self.width..tokens.end * self.width].convert_to_f32_slice(&mut out);
        out
    }

    /// Tokens of a text.
    pub fn count(&self, text: usize) -> usize {
        self.range(text).len()
    }

    /// The state of a text's first token, `[CLS]`, in one of the passes, of which 0 is the clean one.
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

impl Tokens {
    /// What brings the states to mean 0 and variance 1.
    pub fn scales(&self) -> &Scales {
        self.scales.get_or_init(|| Scales::of(self))
    }

    /// What filters see of some texts in a pass, the scale applied.
    pub fn scaled_windows(&self, texts: &[u32], pass: usize) -> Windows {
        let others = &self.scales().others;
        let scale = |mut states: Vec<f32>| {
            others.apply_to(&mut states);
            states
        };
        let texts: Vec<Vec<f32>> = texts.par_iter().map(|&text| scale(self.others(text as usize, pass))).collect();
        // Beyond the ends of a text a filter of the finished model sees zeros.
        Windows::new(&texts, &scale(vec![0.0; self.width]))
    }
}

impl Words {
    /// Texts given by their terms.
    pub fn new(vocabulary: Arc<Vocabulary>, weighting: Weighting, tokens: Vec<Vec<u32>>) -> Self {
        let rows = tokens.par_iter().map(|terms| vocabulary.row(terms, weighting)).collect();
        Words { vocabulary, weighting, tokens, rows }
    }
}

impl Inputs {
    /// How many.
    pub fn len(&self) -> usize {
        match self {
            Inputs::Vectors(rows) => rows.rows(),
            Inputs::Words(words) => words.rows.len(),
            Inputs::Tokens(tokens) => tokens.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Values of a row.
    pub fn width(&self) -> usize {
        match self {
            Inputs::Vectors(rows) => rows.cols(),
            Inputs::Words(words) => words.vocabulary.len(),
            Inputs::Tokens(tokens) => WINDOW * tokens.width,
        }
    }
}

/// Everything that turns an input into a code.
#[derive(Clone)]
pub struct Built {
    /// What comes before the layers, where the input is not an encoder's vectors.
    pub front: Front,
    /// The layers behind it, or all of them.
    pub refine: Refine,
    /// The words of the code.
    pub codebooks: Codebooks,
    /// How codes are compared.
    pub distance: Distance,
}

/// What stands between a text and a model's layers.
#[derive(Clone, Debug)]
pub enum Front {
    /// An encoder's own vectors.
    Vectors,
    /// Words and the first layer.
    Words(Terms),
    /// A convolution over token states.
    Tokens(Convolution),
}

/// Layers of a network whose first is `entry`, of which `used` outputs count, and whose others are `behind`, ReLU before
/// each.
pub fn network(entry: &Entry, used: usize, behind: Vec<Dense>, inputs: &Inputs) -> Result<(Front, Refine)> {
    let cut = |weight: &[f32]| -> Vec<f32> {
        let outputs = entry.weight.shape[1];
        weight.chunks_exact(outputs).flat_map(|row| row[..used].iter().copied()).collect()
    };
    let mut entry = entry.clone();
    (entry.weight.values, entry.bias.values) = (cut(&entry.weight.values), cut(&entry.bias.values));
    (entry.weight.shape[1], entry.bias.shape[1]) = (used, used);
    match inputs {
        Inputs::Vectors(_) => {
            let mut layers = vec![dense(&entry.weight, &entry.bias)?];
            layers.extend(behind);
            Ok((Front::Vectors, Refine::new(layers)?))
        }
        Inputs::Tokens(tokens) => {
            let convolution = Convolution::new(tokens.width, entry.weight.values, entry.bias.values)?;
            Ok((Front::Tokens(convolution), Refine::new(behind)?))
        }
        Inputs::Words(words) => {
            let layer = Layer { weight: entry.weight.values, bias: entry.bias.values };
            let terms = Terms::new(words.weighting, !behind.is_empty(), words.vocabulary.clone(), layer)?;
            let behind = if behind.is_empty() { vec![same(used)?] } else { behind };
            Ok((Front::Words(terms), Refine::new(behind)?))
        }
    }
}

/// A layer that changes nothing: a model has at least one.
fn same(n: usize) -> Result<Dense> {
    Dense::new(n, crate::rotation::identity(n).as_slice().to_vec(), vec![0.0; n])
}

/// One book of the words -1 and +1 for every bit: the nearest is the sign.
pub fn signs(bits: usize) -> Result<Codebooks> {
    Codebooks::new(CodeShape::new(bits, 2, 1)?, [-1.0, 1.0].repeat(bits))
}

/// Refined vectors of all inputs.
pub fn refined(front: &Front, refine: &Refine, inputs: &Inputs) -> Result<Matrix> {
    match (front, inputs) {
        (Front::Words(terms), Inputs::Words(words)) => {
            let mut out = Matrix::zeros(0, refine.outputs());
            for block in words.tokens.chunks(BLOCK) {
                out.extend(&refine.apply(&terms.encode(block)?)?);
            }
            Ok(out)
        }
        (Front::Vectors, Inputs::Vectors(vectors)) => refine.apply(vectors),
        (Front::Tokens(convolution), Inputs::Tokens(tokens)) => {
            let mut pooled = Matrix::zeros(tokens.len(), convolution.outputs);
            // A GPU without room for it leaves it to the CPU.
            if let Some(Ok(layer)) = tokens.gpu().map(|device| Entry::of_convolution(convolution).on(device)) {
                pool_by(layer, tokens, &mut pooled)?;
                return refine.apply(&pooled);
            }
            pooled.as_mut_slice().par_chunks_exact_mut(convolution.outputs).enumerate().for_each(|(i, row)| {
                convolution.pool(&tokens.others(i, 0), row);
            });
            refine.apply(&pooled)
        }
        _ => unreachable!("a network is built for the inputs it was trained on"),
    }
}

/// Texts whose tokens pass a convolution on a GPU at a time.
const POOLED: usize = 256;

/// What [`Convolution::pool`] makes of every text, by the same filters on a GPU.
fn pool_by(mut filters: cuda::Layer, tokens: &Tokens, out: &mut Matrix) -> Result<()> {
    let (outputs, none) = (out.cols(), vec![0.0; tokens.width]);
    for (i, rows) in out.as_mut_slice().chunks_mut(POOLED * outputs).enumerate() {
        let texts = i * POOLED..i * POOLED + rows.len() / outputs;
        let states: Vec<Vec<f32>> = texts.into_par_iter().map(|text| tokens.others(text, 0)).collect();
        let found = filters.pool(&Windows::new(&states, &none).texts());
        rows.copy_from_slice(&found.map_err(|problem| Error::device(problem.to_string()))?);
    }
    Ok(())
}

/// The layers with the median of every output taken away, so that each bit is set in half of the documents.
pub fn centred(refine: Refine, refined: &Matrix) -> Result<Refine> {
    let mut layers = refine.layers().to_vec();
    let last = layers.pop().expect("a refinement has layers");
    let medians = (0..refined.cols()).map(|j| {
        let mut column: Vec<f32> = refined.iter().map(|row| row[j]).collect();
        let middle = column.len() / 2;
        *column.select_nth_unstable_by(middle, f32::total_cmp).1
    });
    let bias = last.bias().iter().zip(medians).map(|(b, m)| b - m).collect();
    layers.push(Dense::new(last.inputs(), last.weight().to_vec(), bias)?);
    Refine::new(layers)
}
