//! Views without encoder passes: a model of the effect of dropout on an embedding.
//!
//! ```text
//! view(x) = x + A [x; 1] + L e,   e ~ N(0, I)
//! A:    least squares of (mean of the document's R passes - x) on [x; 1]: the shift caused by dropout
//! L L': covariance of (pass - mean of the document's passes), times R / (R - 1), over all documents
//! ```
//! With mean pooling it loses no precision against the passes themselves (AGNews and DBpedia, two seeds each). With CLS
//! pooling it loses one to three points of precision, so there the passes are worth their time.

use engine::{Error, Matrix, Result};
use rayon::prelude::*;

use super::{Draw, ViewCache, Views};
use crate::cholesky::Cholesky;
use crate::product::{View, multiply, multiply_add};
use crate::random::{Purpose, Stream};

/// Added to the diagonals of both linear systems, relative to their mean. It keeps them solvable when the sample has fewer
/// documents than dimensions, and has no visible effect when it has more.
const RIDGE: f64 = 1e-8;
/// Rows of a symmetric product per task.
const ROWS: usize = 96;
/// Vectors that the covariance is computed from; more change it little.
const MAX_SPREAD_VECTORS: usize = 20_000;

/// Shift and covariance of the noise.
#[derive(Clone, Debug, PartialEq)]
pub struct NoiseModel {
    width: usize,
    // A without its last column [width, width], and that column [width]. An empty `shift` stands for zeros.
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

/// Whether no dimension varies. Rounding of the mean leaves equal vectors with a tiny variance.
fn is_constant(covariance: &[f64], mean: &[f64], width: usize) -> bool {
    (0..width).all(|i| covariance[i * width + i] <= 1e-24 * mean[i] * mean[i])
}

impl NoiseModel {
    /// Fits the passes `views[r] [n, width]` of documents with clean embeddings `clean [n, width]`.
    pub fn fit(clean: &Matrix, views: &[Matrix]) -> Result<Self> {
        let (n, width, passes) = (clean.rows(), clean.cols(), views.len());
        if n < 2 || passes < 2 {
            let problem = format!(
                "the noise model needs two documents with two passes each, not {n} documents with {passes} passes"
            );
            return Err(Error::input("views", problem));
        }
        if views.iter().any(|v| v.rows() != n || v.cols() != width) {
            return Err(Error::input("views", format!("every pass must hold {n} embeddings of {width} values")));
        }
        let mut mean = vec![0.0f64; n * width];
        for view in views {
            mean.par_iter_mut().zip(view.as_slice()).for_each(|(m, &v)| *m += f64::from(v));
        }
        mean.par_iter_mut().for_each(|m| *m /= passes as f64);
        let mut covariance = vec![0.0; width * width];
        for view in views {
            let deviations: Vec<f64> = mean.par_iter().zip(view.as_slice()).map(|(m, &v)| f64::from(v) - m).collect();
            add_gram(&mut covariance, &deviations, width);
        }
        // R - 1 and not R, because the mean comes from the same passes.
        let scale = 1.0 / (n * (passes - 1)) as f64;
        covariance.iter_mut().for_each(|c| *c *= scale);
        if !covariance.iter().all(|c| c.is_finite()) {
            return Err(Error::input("views", "hold values that are not finite numbers; check the documents"));
        }
        if is_constant(&covariance, &mean, width) {
            let problem = "all passes of a document are equal, so the encoder's dropout is off; set dropout above 0";
            return Err(Error::input("views", problem));
        }
        add_ridge(&mut covariance, width);
        let factor = Cholesky::new(covariance, width).ok_or_else(|| {
            Error::input(
                "views",
                "the covariance of their noise is not positive definite; check the embeddings, or use full views",
            )
        })?;
        let (shift, constant) = fit_shift(clean, mean)?;
        let factor = factor.lower().iter().map(|&v| v as f32).collect();
        Ok(NoiseModel { width, shift, constant, factor })
    }

    /// Noise for vectors without passes: `scale` times the standard deviation of the vectors themselves, with their
    /// covariance. `vectors` is `[n, width]`; an evenly spaced sample of the rows is used.
    pub fn spread(vectors: &[f32], width: usize, scale: f64) -> Result<Self> {
        let n = vectors.len() / width.max(1);
        if n < 2 {
            return Err(Error::input(
                "vectors",
                format!("there are {n}; give at least 2 to estimate their covariance"),
            ));
        }
        let step = n.div_ceil(MAX_SPREAD_VECTORS);
        let rows: Vec<&[f32]> = vectors.chunks_exact(width).step_by(step).collect();
        let mut mean = vec![0.0f64; width];
        for row in &rows {
            mean.iter_mut().zip(*row).for_each(|(m, &v)| *m += f64::from(v) / rows.len() as f64);
        }
        let deviations: Vec<f64> =
            rows.iter().flat_map(|row| row.iter().zip(&mean).map(|(&v, m)| f64::from(v) - m)).collect();
        let mut covariance = vec![0.0; width * width];
        add_gram(&mut covariance, &deviations, width);
        let factor = scale * scale / rows.len() as f64;
        covariance.iter_mut().for_each(|c| *c *= factor);
        if is_constant(&covariance, &mean, width) {
            return Err(Error::input("vectors", "are all equal, so documents cannot be told apart; check the vectors"));
        }
        add_ridge(&mut covariance, width);
        let factor = Cholesky::new(covariance, width)
            .ok_or_else(|| Error::input("vectors", "hold values that are not finite numbers; check the vectors"))?;
        let factor = factor.lower().iter().map(|&v| v as f32).collect();
        Ok(NoiseModel { width, shift: Vec::new(), constant: vec![0.0; width], factor })
    }

    /// Writes two views of every document to `out`. `clean [documents.len(), width]` are the clean embeddings.
    pub(super) fn pair(&self, clean: &[f32], documents: &[u32], draw: Draw, out: &mut [f32]) {
        assert_eq!(out.len(), 2 * clean.len());
        let mut means = vec![0.0; clean.len()];
        self.shift_clean(clean, &mut means);
        let streams: Vec<Stream> = (0..2)
            .flat_map(|view| documents.iter().map(move |&document| [draw.epoch, u64::from(document), view]))
            .map(|address| Stream::new(draw.seed, Purpose::Views, &address))
            .collect();
        self.draw_noise(&streams, out);
        for half in out.chunks_exact_mut(clean.len()) {
            half.iter_mut().zip(&means).for_each(|(o, m)| *o += m);
        }
    }

    /// Covers everything that decides a view.
    pub(super) fn checksum(&self) -> u32 {
        let values = self.shift.iter().chain(&self.constant).chain(&self.factor);
        crc32fast::hash(&values.flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())
    }

    /// Fits the cached passes of a sample.
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

    /// Values in an embedding.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The linear part of the shift, `[width, width]`.
    pub fn shift(&self) -> &[f32] {
        &self.shift
    }

    /// The constant part of the shift, `[width]`.
    pub fn constant(&self) -> &[f32] {
        &self.constant
    }

    /// `L [width, width]`, lower triangular.
    pub fn factor(&self) -> &[f32] {
        &self.factor
    }

    /// Means of the views of clean embeddings, `x + A [x; 1]`.
    fn shift_clean(&self, clean: &[f32], out: &mut [f32]) {
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

    /// `L e` for every row; the stream of the row gives `e`.
    fn draw_noise(&self, streams: &[Stream], out: &mut [f32]) {
        let d = self.width;
        const VIEWS: usize = 64;
        out.par_chunks_mut(VIEWS * d).zip(streams.par_chunks(VIEWS)).for_each(|(out, streams)| {
            let mut e = vec![0.0; out.len()];
            e.chunks_exact_mut(d).zip(streams).for_each(|(row, stream)| stream.normal(row));
            multiply(out, View::new(&e, streams.len(), d), View::new(&self.factor, d, d).transposed(), 1.0);
        });
    }
}

/// Solves the normal equations of `A`. Returns its square part and its last column.
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
        Error::input(
            "views",
            "the clean embeddings hold values that are not finite numbers, or are all zero; check the documents",
        )
    })?;
    normal.solve(&mut right, d);
    // right is A' [width + 1, width].
    let shift = (0..d * d).map(|i| right[(i % d) * d + i / d] as f32).collect();
    let constant = right[d * d..].iter().map(|&v| v as f32).collect();
    Ok((shift, constant))
}

enum Clean {
    Cache(ViewCache),
    Memory(Matrix),
}

/// Views that are clean embeddings plus noise of a [`NoiseModel`].
pub struct NoiseViews {
    clean: Clean,
    model: NoiseModel,
    fingerprint: String,
}

impl NoiseViews {
    /// Of clean embeddings in memory.
    pub fn new(clean: Matrix, model: NoiseModel) -> Result<Self> {
        let bytes: Vec<u8> = clean.as_slice().iter().flat_map(|v| v.to_le_bytes()).collect();
        let fingerprint = format!("memory/{:08x}", crc32fast::hash(&bytes));
        Self::join(clean.cols(), Clean::Memory(clean), model, fingerprint)
    }

    /// Of cached clean embeddings.
    pub fn from_cache(clean: ViewCache, model: NoiseModel) -> Result<Self> {
        let fingerprint = clean.fingerprint();
        Self::join(clean.width(), Clean::Cache(clean), model, fingerprint)
    }

    fn join(width: usize, clean: Clean, model: NoiseModel, clean_fingerprint: String) -> Result<Self> {
        if width != model.width {
            let found = model.width;
            return Err(Error::config(format!(
                "the noise model is fitted on embeddings of {found} values, not {width}; use one encoder"
            )));
        }
        let fingerprint = format!("{clean_fingerprint}+noise/{:08x}", model.checksum());
        Ok(NoiseViews { clean, model, fingerprint })
    }
}

impl Views for NoiseViews {
    fn documents(&self) -> usize {
        match &self.clean {
            Clean::Cache(cache) => cache.documents(),
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
            Clean::Cache(cache) => cache.clean(documents, out),
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
