//! Tokens to projected vector, distance table and the nearest codes, with the kernels of the program.

use kernels::Backend;
use kernels::gemm::{Epilogue, PackedWeight};
use kernels::pieces;
use kernels::scan::{BlocksRef, Neighbour, Query, Shape, TopK, nearest, pack};
use kernels::squares::squared_distances;

use crate::bytes::{MAGIC, Problem, Reader, VERSION};

/// How codewords are compared; the number is that of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Distance {
    Norm,
    Squared,
    Hamming,
}

/// An open export.
pub struct Search {
    shape: Shape,
    dim: usize,
    distance: Distance,
    documents: usize,
    // Of the query encoder.
    table: Vec<i8>,
    scales: Vec<f32>,
    weight: PackedWeight,
    bias: Vec<f32>,
    // [codebooks, codewords, dim]
    codewords: Vec<f32>,
    // In blocks, in the order of insertion.
    blocks: Vec<u8>,
}

impl Search {
    pub fn open(bytes: &[u8]) -> Result<Search, Problem> {
        let mut reader = Reader::new(bytes);
        if reader.take(MAGIC.len())? != MAGIC {
            return Err(Problem("search.bin is not of a micpq export".into()));
        }
        let version = reader.number()?;
        if version != VERSION as usize {
            return Err(Problem(format!("search.bin has version {version}, this page reads {VERSION}; export again")));
        }
        let [num_codebooks, codebook_size, dim] = [reader.number()?, reader.number()?, reader.number()?];
        let distance = match reader.number()? {
            0 => Distance::Norm,
            1 => Distance::Squared,
            2 => Distance::Hamming,
            other => return Err(Problem(format!("search.bin names distance {other}, which is not known"))),
        };
        let [documents, tokens, width] = [reader.number()?, reader.number()?, reader.number()?];
        let sound = (1..=1024).contains(&num_codebooks)
            && (2..=256).contains(&codebook_size)
            && (1..=4096).contains(&dim)
            && (1..=4096).contains(&width)
            && tokens <= 1 << 24;
        if !sound {
            return Err(Problem("search.bin names sizes that no export has: it is damaged".into()));
        }
        let (shape, outputs) = (Shape::new(num_codebooks, codebook_size), num_codebooks * dim);
        let scales = reader.floats(tokens)?;
        let weight = PackedWeight::new(&reader.floats(outputs * width)?, outputs, width);
        let bias = reader.floats(outputs)?;
        let codewords = reader.floats(outputs * codebook_size)?;
        let table = reader.take(tokens * width)?.iter().map(|value| value.cast_signed()).collect();
        let codes = reader.take(documents * shape.code_bytes())?;
        reader.end()?;
        let order: Vec<u32> = (0..documents as u32).collect();
        let blocks = pack(shape, codes, &order);
        Ok(Search { shape, dim, distance, documents, table, scales, weight, bias, codewords, blocks })
    }

    pub fn documents(&self) -> usize {
        self.documents
    }

    /// The nearest documents of a query by its tokens, best first; equal distances in the order of insertion.
    pub fn nearest(&self, tokens: &[u32], k: usize) -> Result<Vec<Neighbour>, Problem> {
        if let Some(token) = tokens.iter().find(|token| **token as usize >= self.scales.len()) {
            return Err(Problem(format!("token {token} is not in the table")));
        }
        let table = self.distances(&self.project(tokens));
        if !table.iter().all(|value| value.is_finite()) {
            return Err(Problem("the query has no finite distance: search.bin is damaged".into()));
        }
        let query = Query::new(self.shape, &table);
        let blocks = BlocksRef::new(self.shape, self.documents, &self.blocks, &[], &[]);
        let mut best = [TopK::new(k.clamp(1, self.documents.max(1)))];
        nearest(Backend::active(), &blocks, 0..self.documents, &[&query], &mut best, None);
        let [best] = best;
        Ok(best.into_sorted())
    }

    /// The projected vector, `[codebooks * dim]`.
    fn project(&self, tokens: &[u32]) -> Vec<f32> {
        let mut mean = vec![0.0; self.weight.inputs()];
        pieces::mean(&self.table, &self.scales, tokens, &mut mean);
        let mut projected = vec![0.0; self.weight.outputs()];
        self.weight.multiply(&mean, &mut projected, 1, Epilogue::Bias(&self.bias));
        projected
    }

    /// The distance table, `[codebooks, codewords]`.
    fn distances(&self, projected: &[f32]) -> Vec<f32> {
        let size = self.shape.codebook_size();
        let mut values = vec![0.0; self.shape.num_codebooks() * size];
        let codebooks = projected.chunks_exact(self.dim).zip(self.codewords.chunks_exact(size * self.dim));
        for ((slice, codebook), values) in codebooks.zip(values.chunks_exact_mut(size)) {
            squared_distances(Backend::active(), slice, codebook, values);
            match self.distance {
                Distance::Squared => {}
                Distance::Norm => values.iter_mut().for_each(|value| *value = value.sqrt()),
                Distance::Hamming => differing(values),
            }
        }
        values
    }
}

/// 0 for the nearest codeword, the first of equals, and 1 for every other.
fn differing(values: &mut [f32]) {
    let mut own = 0;
    for (k, value) in values.iter().enumerate() {
        if *value < values[own] {
            own = k;
        }
    }
    values.iter_mut().enumerate().for_each(|(k, value)| *value = f32::from(u8::from(k != own)));
}
