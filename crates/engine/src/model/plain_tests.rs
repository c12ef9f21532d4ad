//! A model for tests of what is done with codes: random codewords over embeddings as they are.

use kernels::dropout::mix;

use super::{CodeShape, Codebooks, Dense, Distance, FORMAT, Model, ModelConfig, Projection};

pub(crate) fn noise(seed: u64, i: u64) -> f32 {
    (mix(seed, i) >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// Codebooks of sixteen codewords of two values between `-spread` and `spread`.
pub(crate) fn plain(num_codebooks: usize, distance: Distance, spread: f32) -> Model {
    let shape = CodeShape::new(num_codebooks, 16, 2).unwrap();
    let width = shape.width();
    let identity = (0..width * width).map(|i| f32::from(u8::from(i / width == i % width))).collect();
    let projection = Projection::new(vec![Dense::new(width, identity, vec![0.0; width]).unwrap()]).unwrap();
    let codewords = (0..(width * 16) as u64).map(|i| spread * noise(3, i)).collect();
    let config = ModelConfig {
        format: FORMAT,
        method: "test".into(),
        shape,
        distance,
        embedding: None,
        training: serde_json::Value::Null,
    };
    Model::new(config, projection, Codebooks::new(shape, codewords).unwrap()).unwrap()
}
