//! Distance tables by kind: which codewords do documents of a query's kind have?
//!
//! A code that says where a document lies among all others also says much about its kind, but a distance to the query does not
//! read it. A small network does: from the query's embedding to one value per codeword, learned so that their sum over a code
//! is small where a document is of the query's kind. That is a table like any other, so the same scan searches it exactly, and
//! a weighted sum of both tables asks for both.

use super::codebooks::DistanceTable;
use super::{CodeShape, Projection};
use crate::{Error, Matrix, Result};

/// The network from embeddings to `[codebooks, codewords]`.
#[derive(Clone, Debug)]
pub struct KindTables {
    shape: CodeShape,
    layers: Projection,
}

impl KindTables {
    /// Takes layers that end in a value per codeword.
    pub fn new(shape: CodeShape, layers: Projection) -> Result<Self> {
        let expected = shape.num_codebooks() * shape.codebook_size();
        if layers.outputs() != expected || layers.cells().is_some() {
            return Err(Error::config(format!(
                "tables by kind have {} values, the codes have {expected} codewords",
                layers.outputs()
            )));
        }
        Ok(KindTables { shape, layers })
    }

    pub fn layers(&self) -> &Projection {
        &self.layers
    }

    /// Tables of query embeddings `[n, inputs]`: small where a document is of the query's kind, and 0 at the best codeword of
    /// every codebook.
    pub fn tables(&self, embeddings: &Matrix) -> Result<Vec<DistanceTable>> {
        let table = |row: &[f32]| {
            let mut values = row.to_vec();
            for codebook in values.chunks_exact_mut(self.shape.codebook_size()) {
                let least = codebook.iter().fold(f32::INFINITY, |least, v| least.min(*v));
                codebook.iter_mut().for_each(|v| *v -= least);
            }
            DistanceTable::new(self.shape, values)
        };
        self.layers.apply(embeddings)?.iter().map(table).collect()
    }
}

impl DistanceTable {
    /// `1 - weight` of this table and `weight` of one by kind, which is stretched to spread as far as this one: so the weight
    /// means the same for every query, and the sum stays in the unit of this distance.
    pub fn with_kind(&self, kind: &DistanceTable, weight: f32) -> DistanceTable {
        assert_eq!(self.shape(), kind.shape());
        let (own, other) = (self.spread(), kind.spread());
        let stretch = if other > 0.0 && own > 0.0 { own / other } else { 1.0 };
        let sum = |(a, b): (&f32, &f32)| (1.0 - weight) * a + weight * stretch * b;
        let values = self.values().iter().zip(kind.values()).map(sum).collect();
        DistanceTable::new(self.shape(), values).expect("a sum of distances is a distance")
    }

    /// The standard deviation of the distance, if all codewords were as frequent and codebooks independent.
    fn spread(&self) -> f32 {
        let variance = |values: &[f32]| {
            let mean = values.iter().sum::<f32>() / values.len() as f32;
            values.iter().map(|v| (v - mean) * (v - mean)).sum::<f32>() / values.len() as f32
        };
        self.values().chunks_exact(self.shape().codebook_size()).map(variance).sum::<f32>().sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Codebooks, Dense, Distance, FORMAT, Model, ModelConfig};

    fn shape() -> CodeShape {
        CodeShape::new(2, 4, 3).unwrap()
    }

    fn kinds() -> KindTables {
        let weight: Vec<f32> = (0..8 * 3).map(|i| ((i * 7) % 11) as f32 - 5.0).collect();
        KindTables::new(shape(), Projection::new(vec![Dense::new(3, weight, vec![0.5; 8]).unwrap()]).unwrap()).unwrap()
    }

    #[test]
    fn tables_begin_at_zero_in_every_codebook_and_keep_differences() {
        let table = kinds().tables(&Matrix::from_vec(3, vec![1.0, -2.0, 0.5])).unwrap().remove(0);
        let plain = kinds().layers.apply(&Matrix::from_vec(3, vec![1.0, -2.0, 0.5])).unwrap();
        for (m, codebook) in table.values().chunks_exact(4).enumerate() {
            assert_eq!(codebook.iter().copied().fold(f32::INFINITY, f32::min), 0.0);
            let plain = &plain.row(0)[4 * m..4 * m + 4];
            assert!((codebook[1] - codebook[2] - (plain[1] - plain[2])).abs() < 1e-5);
        }
    }

    #[test]
    fn a_weight_of_0_keeps_the_distance_and_1_keeps_the_order_of_kinds() {
        let own = DistanceTable::new(shape(), vec![0.0, 10.0, 40.0, 20.0, 5.0, 0.0, 30.0, 10.0]).unwrap();
        let kind = kinds().tables(&Matrix::from_vec(3, vec![1.0, -2.0, 0.5])).unwrap().remove(0);
        assert_eq!(own.with_kind(&kind, 0.0), own);
        let all = own.with_kind(&kind, 1.0);
        assert!((all.spread() - own.spread()).abs() < 1e-3, "it spreads as far as the distance");
        let ratio = own.spread() / kind.spread();
        assert!(all.values().iter().zip(kind.values()).all(|(a, k)| (a - ratio * k).abs() < 1e-4));
        // A table without differences has nothing to say.
        let flat = DistanceTable::new(shape(), vec![0.0; 8]).unwrap();
        assert_eq!(own.with_kind(&flat, 0.5).values()[2], 20.0);
    }

    #[test]
    fn layers_of_another_size_are_refused() {
        let layers = Projection::new(vec![Dense::new(3, vec![0.0; 21], vec![0.0; 7]).unwrap()]).unwrap();
        let problem = KindTables::new(shape(), layers).unwrap_err().to_string();
        assert!(problem.contains("7 values") && problem.contains("8 codewords"), "{problem}");
    }

    #[test]
    fn tables_survive_saving_and_are_part_of_the_fingerprint() {
        let config = ModelConfig {
            format: FORMAT,
            method: "distilled".into(),
            shape: shape(),
            distance: Distance::Squared,
            embedding: None,
            training: serde_json::Value::Null,
        };
        let identity = |n: usize| (0..n * n).map(|i| f32::from(u8::from(i % (n + 1) == 0))).collect::<Vec<f32>>();
        let layer = Dense::new(6, identity(6), vec![0.0; 6]).unwrap();
        let codebooks = Codebooks::new(shape(), (0..24).map(|i| i as f32).collect()).unwrap();
        let plain = Model::new(config, Projection::new(vec![layer]).unwrap(), codebooks).unwrap();
        let tables = |sign: f32| {
            let weight = (0..48).map(|i| sign * ((i * 7) % 11) as f32).collect();
            Projection::new(vec![Dense::new(6, weight, vec![0.5; 8]).unwrap()]).unwrap()
        };
        let [one, other] = [1.0, -1.0].map(|sign| plain.clone().with_kinds(tables(sign)).unwrap());
        let prints = [&plain, &one, &other].map(|model| model.fingerprint().to_owned());
        assert!(prints[0] != prints[1] && prints[1] != prints[2]);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model");
        one.save(&path, &serde_json::Value::Null).unwrap();
        let loaded = Model::load(&path).unwrap();
        assert_eq!(loaded.fingerprint(), prints[1]);
        let query = Matrix::from_vec(6, vec![1.0, 0.0, -2.0, 0.5, 0.25, 3.0]);
        let of = |model: &Model| model.kinds().unwrap().tables(&query).unwrap();
        assert_eq!(of(&loaded), of(&one));
        assert!(plain.with_kinds(kinds().layers).unwrap_err().to_string().contains("3 values, the model takes 6"));
    }
}
