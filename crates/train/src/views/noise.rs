//! Views without the passes: what dropout does to a feature vector, modelled.
//!
//! ```text
//! view(x) = x + A [x; 1] + L e,   e ~ N(0, I)
//! A:    least squares of (mean of a document's passes - x) on [x; 1]: the shift dropout causes
//! L L': covariance of (pass - mean of that document's passes), times R / (R - 1): one for all documents
//! ```
//! On mean-pooled features it gives up nothing against the passes themselves (AGNews and DBpedia, two seeds each); on CLS
//! vectors one to three points of precision, so there the passes are worth their time.

use micpq::{Error, Matrix, Result};
use rayon::prelude::*;

use super::{Draw, ViewCache, Views};
use crate::cholesky::Cholesky;
use crate::product::{View, multiply, multiply_add};
use crate::random::{Purpose, Stream};

/// Added to the diagonals of both systems, as a share of their mean: it keeps them solvable when the sample has fewer
/// documents than dimensions, and changes nothing visible when it has more.
const RIDGE: f64 = 1e-8;
/// Rows of a symmetric product computed by one task.
const ROWS: usize = 96;
/// Vectors looked at to see how they spread: their covariance changes little after so many.
const SPREAD_SAMPLE: usize = 20_000;

/// The fitted noise.
#[derive(Clone, Debug, PartialEq)]
pub struct NoiseModel {
    width: usize,
    // A without its last column [width, width], and that column [width]. No values: nothing is shifted but by the column.
    shift: Vec<f32>,
    constant: Vec<f32>,
    // L [width, width], lower triangular.
    factor: Vec<f32>,
}

/// `out [cols, cols] += x' x` for `x [rows, cols]`.
fn add_gram(out: &mut [f64], x: &[f64], cols: usize) {
    let all = View::new(x, x.len() / cols, cols);
    out.par_chunks_mut(ROWS * cols).enumerate().for_each(|(chunk, out)| {
        multiply_add(out, all.columns(chunk * ROWS, out.len() / cols).transposed(), all, 1.0);
    });
}

fn add_ridge(square: &mut [f64], n: usize) {
    let mean = (0..n).map(|i| square[i * n + i]).sum::<f64>() / n as f64;
    (0..n).for_each(|i| square[i * n + i] += RIDGE * mean);
}

impl NoiseModel {
    /// Fits the passes `views[r] [n, width]` of documents with clean vectors `clean [n, width]`.
    pub fn fit(clean: &Matrix, views: &[Matrix]) -> Result<Self> {
        let (n, width, passes) = (clean.rows(), clean.cols(), views.len());
        if n < 2 || passes < 2 {
            let problem = format!("the noise model needs two documents with two passes each, not {n} with {passes}");
            return Err(Error::input("views", problem));
        }
        if views.iter().any(|v| v.rows() != n || v.cols() != width) {
            return Err(Error::input("views", format!("every pass must hold {n} vectors of {width} values")));
        }
        let mut mean = vec![0.0f64; n * width];
        for view in views {
            mean.par_iter_mut().zip(view.as_slice()).for_each(|(m, &v)| *m += f64::from(v));
        }
        mean.par_iter_mut().for_each(|m| *m /= passes as f64);
        let mut covariance = vec![0.0; width * width];
        for view in views {
            let off: Vec<f64> = mean.par_iter().zip(view.as_slice()).map(|(m, &v)| f64::from(v) - m).collect();
            add_gram(&mut covariance, &off, width);
        }
        // R / (R - 1) for the mean taken from the same passes.
        let scale = 1.0 / (n * (passes - 1)) as f64;
        covariance.iter_mut().for_each(|c| *c *= scale);
        if !covariance.iter().all(|c| c.is_finite()) {
            return Err(Error::input("views", "hold values that are not finite numbers"));
        }
        // A mean that does not come out even leaves equal vectors a rounding apart.
        let alike = |i: usize| covariance[i * width + i] <= 1e-24 * mean[i] * mean[i];
        if (0..width).all(alike) {
            let problem =
                "all passes of a document are equal: the encoder's dropout is off, and two views would be one";
            return Err(Error::input("views", problem));
        }
        add_ridge(&mut covariance, width);
        let factor = Cholesky::new(covariance, width)
            .ok_or_else(|| Error::input("views", "the covariance of their noise is not positive definite"))?;
        let (shift, constant) = fit_shift(clean, mean)?;
        let factor = factor.lower().iter().map(|&v| v as f32).collect();
        Ok(NoiseModel { width, shift, constant, factor })
    }

    /// Noise for vectors that come without passes: `scale` times the spread of the vectors themselves, in the directions
    /// they spread in. `vectors` is `[n, width]`; an even sample of them is looked at.
    pub fn spread(vectors: &[f32], width: usize, scale: f64) -> Result<Self> {
        let n = vectors.len() / width.max(1);
        if n < 2 {
            return Err(Error::input(
                "vectors",
                format!("there are {n}; at least 2 are needed to see how they spread"),
            ));
        }
        let step = n.div_ceil(SPREAD_SAMPLE);
        let rows: Vec<&[f32]> = vectors.chunks_exact(width).step_by(step).collect();
        let mut mean = vec![0.0f64; width];
        for row in &rows {
            mean.iter_mut().zip(*row).for_each(|(m, &v)| *m += f64::from(v) / rows.len() as f64);
        }
        let off: Vec<f64> = rows.iter().flat_map(|row| row.iter().zip(&mean).map(|(&v, m)| f64::from(v) - m)).collect();
        let mut covariance = vec![0.0; width * width];
        add_gram(&mut covariance, &off, width);
        let share = scale * scale / rows.len() as f64;
        covariance.iter_mut().for_each(|c| *c *= share);
        // A mean that does not come out even leaves equal vectors a rounding apart.
        let alike = |i: usize| covariance[i * width + i] <= 1e-24 * mean[i] * mean[i];
        if (0..width).all(alike) {
            return Err(Error::input("vectors", "are all equal: there is nothing to tell documents apart by"));
        }
        add_ridge(&mut covariance, width);
        let factor = Cholesky::new(covariance, width)
            .ok_or_else(|| Error::input("vectors", "hold values that are not finite numbers"))?;
        let factor = factor.lower().iter().map(|&v| v as f32).collect();
        Ok(NoiseModel { width, shift: Vec::new(), constant: vec![0.0; width], factor })
    }

    /// Two views of every document whose clean vectors are `clean [documents.len(), width]`.
    pub(super) fn pair(&self, clean: &[f32], documents: &[u32], draw: Draw, out: &mut [f32]) {
        assert_eq!(out.len(), 2 * clean.len());
        let mut middle = vec![0.0; clean.len()];
        self.shifted(clean, &mut middle);
        let streams: Vec<Stream> = (0..2)
            .flat_map(|view| documents.iter().map(move |&document| [draw.epoch, u64::from(document), view]))
            .map(|address| Stream::new(draw.seed, Purpose::Views, &address))
            .collect();
        self.noise(&streams, out);
        for half in out.chunks_exact_mut(clean.len()) {
            half.iter_mut().zip(&middle).for_each(|(o, m)| *o += m);
        }
    }

    /// A checksum of everything that decides a view.
    pub(super) fn checksum(&self) -> u32 {
        let values = self.shift.iter().chain(&self.constant).chain(&self.factor);
        crc32fast::hash(&values.flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())
    }

    /// Fits the passes of a kept sample.
    pub fn fit_cache(sample: &ViewCache) -> Result<Self> {
        let read = |view: u32| {
            let mut out = Matrix::zeros(sample.documents(), sample.width());
            let rows = out.as_mut_slice().par_chunks_exact_mut(sample.width());
            rows.enumerate().for_each(|(document, row)| sample.read(document, view, row));
            out
        };
        let views: Vec<Matrix> = (1..=sample.passes()).map(read).collect();
        Self::fit(&read(0), &views)
    }

    /// Values in a vector.
    pub fn width(&self) -> usize {
        self.width
    }

    /// `[width, width]` of the shift, without its constant.
    pub fn shift(&self) -> &[f32] {
        &self.shift
    }

    /// The constant part of the shift.
    pub fn constant(&self) -> &[f32] {
        &self.constant
    }

    /// `L [width, width]`, lower triangular.
    pub fn factor(&self) -> &[f32] {
        &self.factor
    }

    /// Clean vectors to where the middle of their views lies: `x + A [x; 1]`.
    fn shifted(&self, clean: &[f32], out: &mut [f32]) {
        let d = self.width;
        const DOCUMENTS: usize = 32;
        out.par_chunks_mut(DOCUMENTS * d).zip(clean.par_chunks(DOCUMENTS * d)).for_each(|(out, x)| {
            for (row, x) in out.chunks_exact_mut(d).zip(x.chunks_exact(d)) {
                row.iter_mut().zip(x).zip(&self.constant).for_each(|((o, x), c)| *o = x + c);
            }
            if !self.shift.is_empty() {
                multiply_add(out, View::new(x, x.len() / d, d), View::new(&self.shift, d, d).transposed(), 1.0);
            }
        });
    }

    /// `L e` for every row, the row's `e` from its stream.
    fn noise(&self, streams: &[Stream], out: &mut [f32]) {
        let d = self.width;
        const VIEWS: usize = 64;
        out.par_chunks_mut(VIEWS * d).zip(streams.par_chunks(VIEWS)).for_each(|(out, streams)| {
            let mut e = vec![0.0; out.len()];
            e.chunks_exact_mut(d).zip(streams).for_each(|(row, stream)| stream.normal(row));
            multiply(out, View::new(&e, streams.len(), d), View::new(&self.factor, d, d).transposed(), 1.0);
        });
    }
}

/// `A` by its normal equations, split into its square part and its last column.
fn fit_shift(clean: &Matrix, mean: Vec<f64>) -> Result<(Vec<f32>, Vec<f32>)> {
    let (n, d) = (clean.rows(), clean.cols());
    let e = d + 1;
    let mut x = vec![1.0; n * e];
    for (row, clean) in x.chunks_exact_mut(e).zip(clean.iter()) {
        row.iter_mut().zip(clean).for_each(|(x, &c)| *x = f64::from(c));
    }
    let y: Vec<f64> = mean.par_iter().zip(clean.as_slice()).map(|(m, &c)| m - f64::from(c)).collect();
    let mut normal = vec![0.0; e * e];
    add_gram(&mut normal, &x, e);
    add_ridge(&mut normal, e);
    let mut right = vec![0.0; e * d];
    let (xv, yv) = (View::new(&x, n, e), View::new(&y, n, d));
    right.par_chunks_mut(ROWS * d).enumerate().for_each(|(chunk, out)| {
        multiply(out, xv.columns(chunk * ROWS, out.len() / d).transposed(), yv, 1.0);
    });
    let normal = Cholesky::new(normal, e).ok_or_else(|| {
        Error::input("views", "the clean vectors hold values that are not finite numbers, or are all zero")
    })?;
    normal.solve(&mut right, d);
    // right is A' [width + 1, width].
    let shift = (0..d * d).map(|i| right[(i % d) * d + i / d] as f32).collect();
    let constant = right[d * d..].iter().map(|&v| v as f32).collect();
    Ok((shift, constant))
}

enum Clean {
    Kept(ViewCache),
    Memory(Matrix),
}

/// Clean vectors with modelled noise.
pub struct NoiseViews {
    clean: Clean,
    model: NoiseModel,
    fingerprint: String,
}

impl NoiseViews {
    /// Over vectors in memory.
    pub fn new(clean: Matrix, model: NoiseModel) -> Result<Self> {
        let bytes: Vec<u8> = clean.as_slice().iter().flat_map(|v| v.to_le_bytes()).collect();
        let fingerprint = format!("memory/{:08x}", crc32fast::hash(&bytes));
        Self::join(clean.cols(), Clean::Memory(clean), model, fingerprint)
    }

    /// Over kept vectors.
    pub fn from_cache(clean: ViewCache, model: NoiseModel) -> Result<Self> {
        let fingerprint = clean.fingerprint();
        Self::join(clean.width(), Clean::Kept(clean), model, fingerprint)
    }

    fn join(width: usize, clean: Clean, model: NoiseModel, clean_fingerprint: String) -> Result<Self> {
        if width != model.width {
            let found = model.width;
            return Err(Error::config(format!("a noise model of {found} values cannot serve vectors of {width}")));
        }
        let fingerprint = format!("{clean_fingerprint}+noise/{:08x}", model.checksum());
        Ok(NoiseViews { clean, model, fingerprint })
    }
}

impl Views for NoiseViews {
    fn documents(&self) -> usize {
        match &self.clean {
            Clean::Kept(cache) => cache.documents(),
            Clean::Memory(matrix) => matrix.rows(),
        }
    }

    fn width(&self) -> usize {
        self.model.width
    }

    fn fingerprint(&self) -> String {
        self.fingerprint.clone()
    }

    fn clean(&self, documents: &[u32], out: &mut [f32]) {
        match &self.clean {
            Clean::Kept(cache) => cache.clean(documents, out),
            Clean::Memory(matrix) => {
                for (row, &document) in out.chunks_exact_mut(matrix.cols()).zip(documents) {
                    row.copy_from_slice(matrix.row(document as usize));
                }
            }
        }
    }

    fn pair(&self, documents: &[u32], draw: Draw, out: &mut [f32]) {
        let mut clean = vec![0.0; documents.len() * self.model.width];
        self.clean(documents, &mut clean);
        self.model.pair(&clean, documents, draw, out);
    }
}
