use std::collections::HashMap;
use std::path::PathBuf;

use micpq::Matrix;
use micpq::model::{CodeShape, Codebooks, Distance};
use safetensors::{Dtype, SafeTensors};

use super::*;
use crate::parameters::Sizes;

fn goldens() -> Option<PathBuf> {
    let workspace = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared"));
    let shared = std::env::var_os("MICPQ_SHARED").map_or(workspace, PathBuf::from);
    let dir = shared.join("goldens");
    if !dir.is_dir() {
        println!("skipped: no goldens in {}; name their folder's parent in MICPQ_SHARED", dir.display());
        return None;
    }
    Some(dir)
}

struct Golden {
    tensors: HashMap<String, (Vec<usize>, Vec<f64>)>,
}

impl Golden {
    fn load(name: &str) -> Option<Golden> {
        let bytes = std::fs::read(goldens()?.join(format!("step_{name}.safetensors"))).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensors = file.tensors().into_iter().map(|(name, t)| {
            let values = match t.dtype() {
                Dtype::F64 => t.data().as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b)).collect(),
                Dtype::I64 => t.data().as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b) as f64).collect(),
                other => panic!("{name} is {other:?}"),
            };
            (name, (t.shape().to_vec(), values))
        });
        Some(Golden { tensors: tensors.collect() })
    }

    fn get(&self, name: &str) -> &[f64] {
        &self.tensors[name].1
    }

    fn dims(&self, name: &str) -> &[usize] {
        &self.tensors[name].0
    }

    fn sizes(&self) -> Sizes {
        let (w1, c) = (self.dims("W1"), self.dims("C"));
        Sizes { inputs: w1[1], hidden: w1[0], code: CodeShape::new(c[0], c[1], c[2]).unwrap() }
    }

    fn parameters<T: Real>(&self) -> Parameters<T> {
        let names = ["W1", "b1", "W2", "b2", "C"];
        let values = names.iter().flat_map(|n| self.get(n)).map(|&v| T::of(v)).collect();
        Parameters { sizes: self.sizes(), values }
    }

    /// `[books, words, n]` from the two `[batch, books, words]`.
    fn draws<T: Real>(&self) -> Vec<T> {
        let [batch, books, words] = self.dims("u_a")[..] else { panic!() };
        let mut out = Vec::new();
        for m in 0..books {
            for k in 0..words {
                for view in ["u_a", "u_b"] {
                    out.extend((0..batch).map(|b| T::of(self.get(view)[(b * books + m) * words + k])));
                }
            }
        }
        out
    }
}

/// Largest difference over the largest expected value.
fn difference<T: Real>(got: impl IntoIterator<Item = T>, expected: &[f64]) -> f64 {
    let got: Vec<f64> = got.into_iter().map(Real::wide).collect();
    assert_eq!(got.len(), expected.len());
    let scale = expected.iter().fold(1e-30, |m: f64, v| m.max(v.abs()));
    got.iter().zip(expected).fold(0.0, |m: f64, (a, b)| m.max((a - b).abs())) / scale
}

fn check<T: Real>(name: &str, tolerance: f64) {
    let Some(golden) = Golden::load(name) else { return };
    let parameters = golden.parameters::<T>();
    let sizes = parameters.sizes;
    let batch = golden.dims("x_a")[0];
    let n = 2 * batch;
    let features: Vec<T> = golden.get("x_a").iter().chain(golden.get("x_b")).map(|&v| T::of(v)).collect();
    let mut objective =
        Objective { tau: golden.get("tau")[0], prob_weight: golden.get("prob_weight")[0], ..Objective::default() };
    if name == "softmax" {
        (objective.floor, objective.gumbel) = (0.0, false);
    }
    let draws = golden.draws::<T>();
    let (mut workspace, mut gradient) = (Workspace::default(), Parameters::zeros(sizes));
    let losses = workspace.step(&parameters, &objective, &features, Noise::Given(&draws), &mut gradient);
    let near = |what: &str, d: f64| assert!(d <= tolerance, "{name}: {what} differs by {d:.1e}");
    near("loss", difference([losses.loss], golden.get("loss")));
    near("contrastive", difference([losses.contrastive], golden.get("contrastive")));
    near("information", difference([losses.information], golden.get("mutual_information")));
    let parts = gradient.parts();
    for (what, got) in [("W1", parts.w1), ("b1", parts.b1), ("W2", parts.w2), ("b2", parts.b2), ("C", parts.words)] {
        near(what, difference(got.iter().copied(), golden.get(&format!("grad.{what}"))));
    }
    let width = sizes.code.width();
    let of_first_view =
        |x: &[T]| (0..batch).flat_map(|b| (0..width).map(move |i| i * n + b)).map(|i| x[i]).collect::<Vec<T>>();
    near("z", difference(of_first_view(workspace.refined()), golden.get("z_a")));
    near("h", difference(of_first_view(workspace.decoded()), golden.get("h_a")));
    let codes: Vec<&[T]> = workspace.codes().collect();
    let words = sizes.code.words();
    let v = (0..batch).flat_map(|b| codes.iter().flat_map(move |c| (0..words).map(move |k| c[k * n + b])));
    near("v", difference(v, golden.get("v_a")));
}

#[test]
fn steps_agree_with_autograd_in_double_precision() {
    for name in ["micpq_m4", "micpq_m8", "contrastive_only", "softmax", "binary_k2"] {
        check::<f64>(name, 1e-9);
    }
}

#[test]
fn steps_agree_with_autograd_in_single_precision() {
    for name in ["micpq_m4", "micpq_m8", "contrastive_only", "softmax", "binary_k2"] {
        check::<f32>(name, 1e-4);
    }
}

#[test]
fn codes_and_both_distances_agree_with_the_reference() {
    for name in ["micpq_m4", "micpq_m8", "contrastive_only", "softmax", "binary_k2"] {
        let Some(golden) = Golden::load(name) else { return };
        let parameters = golden.parameters::<f32>();
        let shape = parameters.sizes.code;
        let (refine, codebooks): (_, Codebooks) = parameters.model_parts().unwrap();
        let rows =
            |x: &str| Matrix::from_vec(parameters.sizes.inputs, golden.get(x).iter().map(|&v| v as f32).collect());
        let codes = codebooks.assign(&refine.apply(&rows("x_a")).unwrap());
        let codes: Vec<&[u8]> = codes.chunks_exact(shape.code_bytes()).collect();
        let expected = golden.get("codes_a");
        for (i, code) in codes.iter().enumerate() {
            for m in 0..shape.books() {
                assert_eq!(shape.word(code, m), expected[i * shape.books() + m] as usize, "{name} {i} {m}");
            }
        }
        let queries = refine.apply(&rows("x_b")).unwrap();
        for (distance, expected) in [(Distance::Squared, "adc_squared"), (Distance::Norm, "adc_norm")] {
            let got = queries.iter().flat_map(|q| {
                let table = codebooks.table(q, distance);
                codes.iter().map(|c| table.distance(c)).collect::<Vec<_>>()
            });
            let d = difference(got, golden.get(expected));
            assert!(d < 1e-5, "{name}: {expected} differs by {d:.1e}");
        }
    }
}

/// A small problem with values of ordinary size.
fn problem<T: Real>(sizes: Sizes, batch: usize) -> (Parameters<T>, Vec<T>, Vec<T>) {
    let draw = |count: usize, number: u64| {
        let mut u = vec![0.0f64; count];
        Stream::new(9, Purpose::Init, &[number]).uniform_f64(&mut u);
        u
    };
    let values = draw(sizes.len(), 0).into_iter().map(|u| T::of(u - 0.5)).collect();
    let features = draw(2 * batch * sizes.inputs, 1).into_iter().map(|u| T::of(2.0 * u - 1.0)).collect();
    let noise = draw(sizes.code.books() * sizes.code.words() * 2 * batch, 2).into_iter().map(T::of).collect();
    (Parameters { sizes, values }, features, noise)
}

#[test]
fn gradients_are_finite_differences_under_every_option() {
    let objectives = [
        Objective::default(),
        Objective { information: Information::Posterior, ..Objective::default() },
        Objective { information: Information::Posterior, floor: 0.0, gumbel: false, ..Objective::default() },
        Objective { floor: 0.0, tau: 2.0, ..Objective::default() },
        Objective { floor: 1e-2, gumbel: false, code_weight: 0.7, prob_weight: 1.5, ..Objective::default() },
    ];
    for (words, books) in [(2, 3), (16, 2), (256, 1)] {
        let sizes = Sizes { inputs: 5, hidden: 7, code: CodeShape::new(books, words, 3).unwrap() };
        let (parameters, features, noise) = problem::<f64>(sizes, 3);
        for objective in &objectives {
            let (mut workspace, mut gradient) = (Workspace::default(), Parameters::zeros(sizes));
            let mut loss = |p: &Parameters<f64>, g: &mut Parameters<f64>| {
                workspace.step(p, objective, &features, Noise::Given(&noise), g).loss
            };
            loss(&parameters, &mut gradient);
            let mut other = Parameters::zeros(sizes);
            let mut moved = parameters.clone();
            for i in (0..sizes.len()).step_by(sizes.len() / 60 + 1) {
                const STEP: f64 = 1e-5;
                moved.values[i] = parameters.values[i] + STEP;
                let above = loss(&moved, &mut other);
                moved.values[i] = parameters.values[i] - STEP;
                let below = loss(&moved, &mut other);
                moved.values[i] = parameters.values[i];
                let slope = (above - below) / (2.0 * STEP);
                let error = (slope - gradient.values[i]).abs();
                assert!(error < 1e-7, "{words} words, {objective:?}, parameter {i}: {slope} {}", gradient.values[i]);
            }
        }
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    let sizes = Sizes { inputs: 50, hidden: 200, code: CodeShape::new(9, 16, 24).unwrap() };
    let (parameters, features, _) = problem::<f32>(sizes, 37);
    let run = |threads: usize| {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(|| {
            let (mut workspace, mut gradient) = (Workspace::default(), Parameters::zeros(sizes));
            let noise = Noise::Drawn { seed: 1, step: 2 };
            let losses = workspace.step(&parameters, &Objective::default(), &features, noise, &mut gradient);
            (losses, gradient)
        })
    };
    let expected = run(1);
    for threads in [2, 4] {
        assert!(run(threads) == expected, "{threads} threads give other bits");
    }
}

#[test]
fn buffers_of_a_larger_batch_leave_no_trace() {
    let sizes = Sizes { inputs: 6, hidden: 10, code: CodeShape::new(2, 16, 4).unwrap() };
    let (parameters, features, noise) = problem::<f64>(sizes, 4);
    let objective = Objective::default();
    let (mut fresh, mut used) = (Workspace::default(), Workspace::default());
    let (mut a, mut b) = (Parameters::zeros(sizes), Parameters::zeros(sizes));
    let (_, large, large_noise) = problem::<f64>(sizes, 9);
    used.step(&parameters, &objective, &large, Noise::Given(&large_noise), &mut b);
    let first = fresh.step(&parameters, &objective, &features, Noise::Given(&noise), &mut a);
    let second = used.step(&parameters, &objective, &features, Noise::Given(&noise), &mut b);
    assert_eq!((first, a), (second, b));
}

#[test]
fn a_feature_that_is_not_a_number_shows_in_the_loss() {
    let sizes = Sizes { inputs: 6, hidden: 10, code: CodeShape::new(2, 16, 4).unwrap() };
    let (parameters, mut features, _) = problem::<f32>(sizes, 4);
    features[3] = f32::NAN;
    let (mut workspace, mut gradient) = (Workspace::default(), Parameters::zeros(sizes));
    let noise = Noise::Drawn { seed: 1, step: 2 };
    assert!(workspace.step(&parameters, &Objective::default(), &features, noise, &mut gradient).loss.is_nan());
}
