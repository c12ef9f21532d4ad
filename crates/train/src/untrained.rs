//! A model without training, for an index that starts empty: signs of random projections.
//!
//! Two unit vectors at angle `t` differ in the sign of a random projection with probability `t / pi`. So codes order
//! documents approximately by angle; more bits give a better approximation. This is locality-sensitive hashing, the baseline
//! that training has to beat.

use engine::encoder::EmbeddingConfig;
use engine::model::{CodeShape, Codebooks, Dense, Distance, Model, ModelConfig, Projection};
use engine::{Error, Result};

use crate::random::{Purpose, Stream};

/// Standard deviation of a projected unit vector. The codewords are -1 and +1. Well between them, the distance to a codeword
/// is linear in the projection. So a query, which is not rounded to signs, is compared by its inner product with the code.
const SPREAD: f32 = 0.5;

/// A model with codes of `bits` bits. The embeddings must be scaled to unit length.
pub fn model(embedding: &EmbeddingConfig, bits: usize) -> Result<Model> {
    if !embedding.unit_length {
        return Err(Error::config("untrained codes need embeddings of unit length; set unit_length"));
    }
    let shape = CodeShape::new(bits, 2, 1)?;
    let mut weight = vec![0.0; bits * embedding.width];
    Stream::new(0, Purpose::Init, &[bits as u64]).normal(&mut weight);
    weight.iter_mut().for_each(|w| *w *= SPREAD);
    let projection = Projection::new(vec![Dense::new(embedding.width, weight, vec![0.0; bits])?])?;
    let codebooks = Codebooks::new(shape, [-1.0, 1.0].repeat(bits))?;
    let config = ModelConfig {
        format: engine::model::FORMAT,
        method: "untrained".into(),
        shape,
        distance: Distance::Norm,
        embedding: Some(embedding.clone()),
        training: serde_json::json!({ "method": "untrained", "seed": 0 }),
    };
    Model::new(config, projection, codebooks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Matrix;
    use engine::encoder::Pooling;

    #[test]
    fn nearest_code_is_that_of_the_nearest_vector() {
        let width = 64;
        let embedding = EmbeddingConfig {
            unit_length: true,
            ..EmbeddingConfig::new("none".into(), String::new(), width, Pooling::Mean, 16)
        };
        assert!(model(&EmbeddingConfig { unit_length: false, ..embedding.clone() }, 64).is_err());
        let model = model(&embedding, 128).unwrap();
        let mut values = vec![0.0; 200 * width];
        Stream::new(1, Purpose::Init, &[]).normal(&mut values);
        // Every second vector is the one before it with a little noise.
        for pair in values.chunks_exact_mut(2 * width) {
            let (a, b) = pair.split_at_mut(width);
            b.iter_mut().zip(a).for_each(|(b, a)| *b = *a + 0.3 * *b);
        }
        let mut vectors = Matrix::from_vec(width, values);
        vectors.normalize_rows();
        let codes = model.encode(&vectors).unwrap();
        let tables = model.tables(&vectors, Distance::Norm).unwrap();
        let code = |i: usize| &codes[i * 16..(i + 1) * 16];
        let found = (0..100).filter(|i| {
            let table = &tables[2 * i];
            let nearest = (0..200)
                .filter(|j| *j != 2 * i)
                .min_by(|a, b| table.distance(code(*a)).total_cmp(&table.distance(code(*b))));
            nearest == Some(2 * i + 1)
        });
        let found = found.count();
        assert!(found >= 95, "{found} of 100 neighbours found");
    }
}
