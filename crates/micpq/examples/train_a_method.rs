//! Trains a method by its name and measures what its codes keep of float search:
//! `cargo run --release --example train_a_method -- opq`.

use micpq::methods::recall::FloatRecall;
use micpq::vectors::train_on_vectors;
use micpq::{Matrix, NoProgress, Result, Training};

const WIDTH: usize = 48;

fn main() -> Result<()> {
    let method = std::env::args().nth(1).unwrap_or_else(|| "opq".into());
    let training = Training::named(&method, 32)?;
    let vectors = drawn(3_000);
    let cache = std::env::temp_dir().join(format!("micpq-method-{}", std::process::id()));
    let trained = train_on_vectors(&training, &vectors, &cache, &NoProgress)?;
    println!("{method}: {} bits, {}", trained.model.shape().bits(), trained.summary());
    if let Some(recall) = FloatRecall::measure(&trained.model, &vectors, 0, &NoProgress)? {
        println!("{}", recall.summary(&method, trained.model.shape().bits()));
    }
    trained.model.save(&cache.join("model"), &trained.metrics)?;
    std::fs::remove_dir_all(&cache).map_err(micpq::Error::io(&cache))
}

/// Vectors whose spread falls from value to value, as embeddings' does after a rotation.
fn drawn(rows: usize) -> Matrix {
    let mut state = 7u64;
    let mut uniform = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    let values = (0..rows * WIDTH).map(|i| uniform() / (1.0 + (i % WIDTH) as f32).sqrt()).collect();
    Matrix::from_vec(WIDTH, values)
}
