//! The parameters of the network from an embedding to its tables, in one flat vector.

use std::ops::Range;

use engine::Result;
use engine::model::{Dense, Projection};

use crate::random::{Purpose, Stream};
use crate::real::Real;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadSizes {
    /// Values in an embedding, d.
    pub inputs: usize,
    /// Width of the hidden layer, H.
    pub hidden: usize,
    pub codebooks: usize,
    /// Codewords of a codebook.
    pub codewords: usize,
}

/// The named parts of the flat vector, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `W1 [H, d]`.
    Inner,
    /// `b1 [H]`.
    InnerBias,
    /// `W2 [codebooks * codewords, H]`.
    Outer,
    /// `b2 [codebooks * codewords]`.
    OuterBias,
}

impl Part {
    pub const ALL: [Part; 4] = [Part::Inner, Part::InnerBias, Part::Outer, Part::OuterBias];
}

impl HeadSizes {
    /// Values of a query's tables.
    pub fn outputs(&self) -> usize {
        self.codebooks * self.codewords
    }

    /// Number of parameters.
    pub fn parameters(&self) -> usize {
        self.range(Part::OuterBias).end
    }

    pub fn range(&self, part: Part) -> Range<usize> {
        let (d, h, t) = (self.inputs, self.hidden, self.outputs());
        let sizes = [h * d, h, t * h, t];
        let start = sizes[..part as usize].iter().sum();
        start..start + sizes[part as usize]
    }
}

/// Parameters, or their gradient.
#[derive(Clone, Debug, PartialEq)]
pub struct Head<T> {
    pub sizes: HeadSizes,
    pub values: Vec<T>,
}

impl<T: Real> Head<T> {
    pub fn zeros(sizes: HeadSizes) -> Self {
        Head { sizes, values: vec![T::ZERO; sizes.parameters()] }
    }

    pub fn part(&self, part: Part) -> &[T] {
        &self.values[self.sizes.range(part)]
    }

    pub fn part_mut(&mut self, part: Part) -> &mut [T] {
        &mut self.values[self.sizes.range(part)]
    }
}

impl Head<f32> {
    /// Weights and biases even between plus and minus the inverse root of a layer's inputs.
    pub fn new(sizes: HeadSizes, seed: u64) -> Self {
        let mut head = Head::zeros(sizes);
        for part in Part::ALL {
            let inputs = if matches!(part, Part::Inner | Part::InnerBias) { sizes.inputs } else { sizes.hidden };
            let bound = 1.0 / (inputs as f32).sqrt();
            let values = head.part_mut(part);
            Stream::new(seed, Purpose::Init, &[part as u64]).uniform_f32(values);
            values.iter_mut().for_each(|v| *v = (2.0 * *v - 1.0) * bound);
        }
        head
    }

    /// The layers of a model, for embeddings that the head reads multiplied with `factor`.
    pub fn layers(&self, factor: f32) -> Result<Projection> {
        let inner = self.part(Part::Inner).iter().map(|v| v * factor).collect();
        Projection::new(vec![
            Dense::new(self.sizes.inputs, inner, self.part(Part::InnerBias).to_vec())?,
            Dense::new(self.sizes.hidden, self.part(Part::Outer).to_vec(), self.part(Part::OuterBias).to_vec())?,
        ])
    }
}
