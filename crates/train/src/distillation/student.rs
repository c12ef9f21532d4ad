//! The parameters of the student, `z = R x + b + W2 ReLU(W1 x + b1)`, its codebooks and its scale, in one flat vector.

use std::ops::Range;

use engine::Result;
use engine::model::{CodeShape, Codebooks, Dense, Projection};

use crate::random::{Purpose, Stream};
use crate::real::Real;

/// Embeddings reach the student with this mean length. Adam's steps are absolute, so the length decides how fast weights learn.
const INPUT_LENGTH: f64 = 5.0;
/// Length of a projected embedding at the start, where that of the embedding is [`INPUT_LENGTH`].
const PROJECTED_LENGTH: f64 = 4.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StudentSizes {
    /// Values in an embedding, d.
    pub inputs: usize,
    /// Width of the residual's hidden layer, H.
    pub hidden: usize,
    pub code: CodeShape,
}

/// The named parts of the flat vector, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// `R [W, d]`.
    Rotation,
    /// `b [W]`.
    Bias,
    /// `W1 [H, d]`.
    Inner,
    /// `b1 [H]`.
    InnerBias,
    /// `W2 [W, H]`.
    Outer,
    /// `C [codebooks, codewords, dim]`.
    Codewords,
    /// Logarithm of the scale of distances.
    Scale,
}

impl Part {
    pub const ALL: [Part; 7] =
        [Part::Rotation, Part::Bias, Part::Inner, Part::InnerBias, Part::Outer, Part::Codewords, Part::Scale];

    /// Learning rate relative to that of the residual. Bias and codewords start at a good place and move half as fast. So does the
    /// rotation, for embeddings of length 1: its inputs are longer. The scale is one number that must cross whole units in a
    /// few hundred steps.
    pub fn rate(self) -> f64 {
        match self {
            Part::Rotation => 0.5 / INPUT_LENGTH,
            Part::Bias | Part::Codewords => 0.5,
            Part::Inner | Part::InnerBias | Part::Outer => 1.0,
            Part::Scale => 10.0,
        }
    }
}

impl StudentSizes {
    pub fn len(&self) -> usize {
        self.range(Part::Scale).end
    }

    /// Always false: a student has parameters.
    pub fn is_empty(&self) -> bool {
        false
    }

    pub fn range(&self, part: Part) -> Range<usize> {
        let (d, h, w) = (self.inputs, self.hidden, self.code.width());
        let sizes = [w * d, w, h * d, h, w * h, w * self.code.codebook_size(), 1];
        let start = sizes[..part as usize].iter().sum();
        start..start + sizes[part as usize]
    }
}

/// Parameters, or their gradient.
#[derive(Clone, Debug, PartialEq)]
pub struct Student<T> {
    pub sizes: StudentSizes,
    pub values: Vec<T>,
}

impl<T: Real> Student<T> {
    pub fn zeros(sizes: StudentSizes) -> Self {
        Student { sizes, values: vec![T::ZERO; sizes.len()] }
    }

    pub fn part(&self, part: Part) -> &[T] {
        &self.values[self.sizes.range(part)]
    }

    pub fn part_mut(&mut self, part: Part) -> &mut [T] {
        &mut self.values[self.sizes.range(part)]
    }
}

/// Factor that gives embeddings the length the student reads: [`INPUT_LENGTH`] in the mean.
pub fn input_factor(embeddings: &engine::Matrix) -> f32 {
    let lengths = embeddings.iter().map(|row| row.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt());
    let mean = lengths.sum::<f64>() / embeddings.rows().max(1) as f64;
    if mean > 0.0 { (INPUT_LENGTH / mean) as f32 } else { 1.0 }
}

impl Student<f32> {
    /// OPQ, with a residual that is zero: `W1` is drawn, `W2` is zero. `factor` is [`input_factor`]; `sharpness` is the scale
    /// at the start, for projected embeddings of [`PROJECTED_LENGTH`].
    pub fn new(opq: &Dense, codebooks: &Codebooks, hidden: usize, factor: f32, sharpness: f64, seed: u64) -> Self {
        let sizes = StudentSizes { inputs: opq.inputs(), hidden, code: codebooks.shape() };
        let mut student = Student::zeros(sizes);
        // Distances are scaled by `stretch`; the rotation also undoes the factor of its input.
        let stretch = factor * (PROJECTED_LENGTH / INPUT_LENGTH) as f32;
        let scaled = |to: &mut [f32], from: &[f32], by: f32| to.iter_mut().zip(from).for_each(|(t, f)| *t = f * by);
        scaled(student.part_mut(Part::Rotation), opq.weight(), stretch / factor);
        scaled(student.part_mut(Part::Bias), opq.bias(), stretch);
        scaled(student.part_mut(Part::Codewords), codebooks.values(), stretch);
        let inner = student.part_mut(Part::Inner);
        Stream::new(seed, Purpose::Init, &[]).uniform_f32(inner);
        let bound = 1.0 / (sizes.inputs as f32).sqrt();
        inner.iter_mut().for_each(|v| *v = (2.0 * *v - 1.0) * bound);
        student.part_mut(Part::Scale)[0] = sharpness.ln() as f32;
        student
    }

    /// The student as an ordinary projection of two dense layers. The hidden layer is `[ReLU(x), ReLU(-x), ReLU(W1 x + b1)]`:
    /// the first two carry `x` itself past the ReLU, exactly.
    pub fn model_parts(&self, factor: f32) -> Result<(Projection, Codebooks)> {
        let (d, h) = (self.sizes.inputs, self.sizes.hidden);
        let mut inner = vec![0.0; (2 * d + h) * d];
        for i in 0..d {
            inner[i * d + i] = 1.0;
            inner[(d + i) * d + i] = -1.0;
        }
        let scaled = self.part(Part::Inner).iter().map(|v| v * factor);
        inner[2 * d * d..].iter_mut().zip(scaled).for_each(|(to, v)| *to = v);
        let mut inner_bias = vec![0.0; 2 * d];
        inner_bias.extend_from_slice(self.part(Part::InnerBias));
        let mut outer = Vec::with_capacity(self.sizes.code.width() * (2 * d + h));
        for (r, w) in self.part(Part::Rotation).chunks_exact(d).zip(self.part(Part::Outer).chunks_exact(h)) {
            outer.extend(r.iter().map(|v| v * factor));
            outer.extend(r.iter().map(|v| -v * factor));
            outer.extend_from_slice(w);
        }
        let layers =
            vec![Dense::new(d, inner, inner_bias)?, Dense::new(2 * d + h, outer, self.part(Part::Bias).to_vec())?];
        Ok((Projection::new(layers)?, Codebooks::new(self.sizes.code, self.part(Part::Codewords).to_vec())?))
    }
}
