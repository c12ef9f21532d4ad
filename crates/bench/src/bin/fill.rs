//! Creates an index of any size for the load benchmark: `fill BASE EMBEDDINGS.npy COUNT INDEX VECTORS QUERIES`.
//!
//! Repeats the documents of the index BASE. Each copy gets its embedding (a row of EMBEDDINGS, in BASE's order) plus noise.
//! So the index has real texts and real neighbourhoods at a size that would take hours to encode. The embeddings are written
//! to VECTORS as raw 32-bit floats for other programs, and 1,000 more, with the same noise, to QUERIES.

use std::io::{BufWriter, Write};
use std::path::Path;

use engine::corpus::{DocId, Document};
use engine::formats::npy;
use engine::index::{Index, IndexConfig};
use engine::{Error, Matrix, NoProgress, Result};

/// Noise in units of the embeddings' standard deviation. At this level a document's neighbours stay its neighbours.
const NOISE: f32 = 0.35;
const CHUNK: usize = 4096;
const QUERIES: usize = 1000;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [base, embeddings, count, index, vectors, queries] = arguments.as_slice() else {
        return Err(Error::config("usage: fill BASE EMBEDDINGS.npy COUNT INDEX VECTORS QUERIES"));
    };
    let count: usize =
        count.parse().map_err(|_| Error::config("COUNT is not a number; give the number of documents"))?;
    let base = Index::open(Path::new(base), &NoProgress)?;
    let embeddings = npy::read_f32(Path::new(embeddings))?;
    let walk = base.walk()?;
    if walk.len() != embeddings.rows() {
        return Err(Error::config(format!(
            "{} documents, but {} embeddings; give one embedding per document",
            walk.len(),
            embeddings.rows()
        )));
    }
    let texts = (0..walk.len()).map(|i| Ok(walk.get(i)?.text.unwrap_or_default())).collect::<Result<Vec<String>>>()?;
    let deviation = standard_deviation(&embeddings);
    let config = IndexConfig { rerank_vectors: base.rerank_vectors(), replace: true, ..IndexConfig::default() };
    let filled = Index::create(Path::new(index), base.model(), config)?;
    let mut writer = filled.writer()?;
    let create = |path: &str| std::fs::File::create(path).map(BufWriter::new).map_err(Error::io(path));
    let (mut vectors_file, mut queries_file) = (create(vectors)?, create(queries)?);
    for start in (0..count).step_by(CHUNK) {
        let range = start..(start + CHUNK).min(count);
        let mut rows = Matrix::zeros(range.len(), embeddings.cols());
        let mut documents = Vec::with_capacity(range.len());
        for (row, i) in range.enumerate() {
            noisy_copy(&embeddings, i, deviation, rows.row_mut(row));
            documents.push(Document {
                id: DocId::Int(i as u64),
                text: texts[i % texts.len()].clone(),
                labels: Vec::new(),
                attributes: Vec::new(),
            });
        }
        write(&mut vectors_file, rows.as_slice()).map_err(Error::io(vectors))?;
        writer.add_embeddings(&documents, &rows)?;
    }
    writer.commit(&NoProgress)?;
    writer.compact(&NoProgress)?;
    let mut row = vec![0.0; embeddings.cols()];
    for i in 0..QUERIES {
        noisy_copy(&embeddings, count + i * 7919, deviation, &mut row);
        write(&mut queries_file, &row).map_err(Error::io(queries))?;
    }
    println!("{count} documents in {index}: {:?}", filled.info()?.bytes);
    Ok(())
}

fn standard_deviation(embeddings: &Matrix) -> f32 {
    let values = embeddings.as_slice();
    let mean = values.iter().sum::<f32>() / values.len() as f32;
    (values.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / values.len() as f32).sqrt()
}

/// The embedding of document `i`: that of its original, plus its own noise.
fn noisy_copy(embeddings: &Matrix, i: usize, deviation: f32, out: &mut [f32]) {
    let original = embeddings.row(i % embeddings.rows());
    let mut state = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d;
    for (out, value) in out.iter_mut().zip(original) {
        // The sum of four uniform draws is nearly normal, with standard deviation 2 / sqrt(12).
        let mut sum = 0.0;
        for _ in 0..4 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            sum += (state >> 40) as f32 / (1u64 << 24) as f32;
        }
        *out = value + NOISE * deviation * (sum - 2.0) * 1.732;
    }
}

fn write(file: &mut impl Write, values: &[f32]) -> std::io::Result<()> {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    file.write_all(&bytes)
}
