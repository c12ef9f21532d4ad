//! A model for the first day, before there is anything to train on: signs of random projections.
//!
//! Two unit vectors at angle `t` differ in the sign of a random projection with probability `t / pi`, so codes order
//! documents by angle, roughly: the more bits, the less roughly. It is the field's locality-sensitive hashing, and what
//! training has to beat.

use micpq::model::{CodeShape, Codebooks, Dense, Distance, FeatureConfig, Model, ModelConfig, Refine};
use micpq::{Error, Result};

use crate::random::{Purpose, Stream};

/// Spread of a projected unit vector. Words are -1 and +1; well inside them the distance to a word is linear in the
/// projection, so that a query, which is not rounded to signs, is compared by its inner product with them.
const SPREAD: f32 = 0.5;

/// Codes of `bits` bits for features scaled to unit length.
pub fn model(features: &FeatureConfig, bits: usize) -> Result<Model> {
    if !features.unit_length {
        return Err(Error::config("untrained codes need features of unit length; set unit_length"));
    }
    let shape = CodeShape::new(bits, 2, 1)?;
    let mut weight = vec![0.0; bits * features.width];
    Stream::new(0, Purpose::Init, &[bits as u64]).normal(&mut weight);
    weight.iter_mut().for_each(|w| *w *= SPREAD);
    let refine = Refine::new(vec![Dense::new(features.width, weight, vec![0.0; bits])?])?;
    let codebooks = Codebooks::new(shape, [-1.0, 1.0].repeat(bits))?;
    let config = ModelConfig {
        format: micpq::model::FORMAT,
        method: "untrained".into(),
        shape,
        distance: Distance::Norm,
        features: Some(features.clone()),
        training: serde_json::json!({ "method": "untrained", "seed": 0 }),
    };
    Model::new(config, refine, codebooks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use micpq::Matrix;
    use micpq::encoder::Pooling;
    use micpq::text::Clean;

    #[test]
    fn near_vectors_have_near_codes() {
        let width = 64;
        let features = FeatureConfig {
            encoder: "none".into(),
            encoder_sha256: String::new(),
            width,
            pooling: Pooling::Mean,
            max_tokens: 16,
            clean: Clean::None,
            unit_length: true,
            precision: Default::default(),
            terms: None,
            convolution: None,
        };
        assert!(model(&FeatureConfig { unit_length: false, ..features.clone() }, 64).is_err());
        let model = model(&features, 128).unwrap();
        let mut values = vec![0.0; 200 * width];
        Stream::new(1, Purpose::Init, &[]).normal(&mut values);
        // Every second vector is its neighbour, a little moved.
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
