//! Tensors that a Python package computed in float64, for tests.

use std::path::PathBuf;

use safetensors::{Dtype, SafeTensors};

use crate::real::Real;

/// A file of `tests/data`, all its values as `f64`.
pub struct Golden(Vec<(String, Vec<usize>, Vec<f64>)>);

impl Golden {
    pub fn load(name: &str) -> Golden {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/{name}.safetensors"));
        let bytes = std::fs::read(path).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensors = file.tensors().into_iter().map(|(name, t)| {
            let bytes = t.data().as_chunks::<8>().0;
            let values = match t.dtype() {
                Dtype::F64 => bytes.iter().map(|b| f64::from_le_bytes(*b)).collect(),
                Dtype::I64 => bytes.iter().map(|b| i64::from_le_bytes(*b) as f64).collect(),
                other => panic!("{name} is {other:?}"),
            };
            (name, t.shape().to_vec(), values)
        });
        Golden(tensors.collect())
    }

    fn find(&self, name: &str) -> &(String, Vec<usize>, Vec<f64>) {
        self.0.iter().find(|(n, ..)| n == name).unwrap_or_else(|| panic!("no {name}"))
    }

    pub fn dims(&self, name: &str) -> &[usize] {
        &self.find(name).1
    }

    pub fn get(&self, name: &str) -> &[f64] {
        &self.find(name).2
    }

    pub fn rows(&self, name: &str) -> Vec<u32> {
        self.get(name).iter().map(|&v| v as u32).collect()
    }
}

/// Largest difference, relative to the largest expected value.
pub fn difference<T: Real>(got: &[T], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let scale = expected.iter().fold(1e-30, |m: f64, v| m.max(v.abs()));
    got.iter().zip(expected).fold(0.0, |m: f64, (a, b)| m.max((a.wide() - b).abs())) / scale
}
