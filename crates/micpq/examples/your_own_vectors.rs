//! Trains and searches on vectors that came from elsewhere. Here they are drawn around a few centres.
//! `cargo run --release --example your_own_vectors`

use micpq::pipeline::{ModelSource, Source};
use micpq::vectors::train_on_vectors;
use micpq::{BuildConfig, DocId, Document, Matrix, NoProgress, Query, Result, SearchConfig, Searcher, build};

const WIDTH: usize = 32;
const DOCUMENTS: usize = 2_000;

fn main() -> Result<()> {
    let vectors = clustered(DOCUMENTS);
    let folder = std::env::temp_dir().join(format!("micpq-vectors-{}", std::process::id()));

    // The model learns from the vectors alone.
    let config = BuildConfig::default();
    let trained = train_on_vectors(&config.training, &vectors, &folder.join("cache"), &NoProgress)?;

    // Each document goes with its vector. The text is stored, not encoded.
    let documents = (0..DOCUMENTS as u64).map(|i| {
        Ok(Document { id: DocId::Int(i), text: format!("document {i}"), labels: Vec::new(), attributes: Vec::new() })
    });
    let source = Source::Documents(Box::new(documents));
    let path = folder.join("index");
    let model = ModelSource::Vectors { model: &trained.model, metrics: trained.metrics, vectors: &vectors };
    let built = build(source, &path).model(model).config(config).run()?;

    let searcher = Searcher::new(built.index, None)?;
    let query = Query::vector(vectors.row(7).to_vec());
    let answers = searcher.search(&[query], &SearchConfig { k: 3, ..SearchConfig::default() }, &NoProgress)?;
    for hit in &answers[0].hits {
        println!("{:.3}  {}", hit.score, hit.id);
    }
    std::fs::remove_dir_all(&folder).map_err(micpq::Error::io(&folder))
}

/// Vectors `[documents, WIDTH]` around twenty centres.
fn clustered(documents: usize) -> Matrix {
    let mut state = 1u64;
    let mut uniform = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    let centres: Vec<f32> = (0..20 * WIDTH).map(|_| uniform()).collect();
    let mut values = Vec::with_capacity(documents * WIDTH);
    for i in 0..documents {
        let centre = i % 20 * WIDTH;
        values.extend((0..WIDTH).map(|j| centres[centre + j] + 0.3 * uniform()));
    }
    Matrix::from_vec(WIDTH, values)
}
