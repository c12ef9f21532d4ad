use engine::Matrix;
use engine::model::{CodeShape, Codebooks, Distance};

use super::*;
use crate::golden::Golden;
use crate::objective::Information;
use crate::parameters::Sizes;

/// One MICPQ training step in float64 autograd: inputs, losses, gradients, codes and distances.
struct Step(Golden);

impl Step {
    fn load(name: &str) -> Step {
        Step(Golden::load(&format!("step_{name}")))
    }

    fn get(&self, name: &str) -> &[f64] {
        self.0.get(name)
    }

    fn dims(&self, name: &str) -> &[usize] {
        self.0.dims(name)
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

    /// `[codebooks, codewords, n]` from the two `[batch, codebooks, codewords]`.
    fn draws<T: Real>(&self) -> Vec<T> {
        let [batch, codebooks, codewords] = self.dims("u_a")[..] else { panic!() };
        let mut out = Vec::new();
        for m in 0..codebooks {
            for k in 0..codewords {
                for view in ["u_a", "u_b"] {
                    out.extend((0..batch).map(|b| T::of(self.get(view)[(b * codebooks + m) * codewords + k])));
                }
            }
        }
        out
    }
}

/// Largest difference, relative to the largest expected value.
fn difference<T: Real>(got: impl IntoIterator<Item = T>, expected: &[f64]) -> f64 {
    let got: Vec<f64> = got.into_iter().map(Real::wide).collect();
    assert_eq!(got.len(), expected.len());
    let scale = expected.iter().fold(1e-30, |m: f64, v| m.max(v.abs()));
    got.iter().zip(expected).fold(0.0, |m: f64, (a, b)| m.max((a - b).abs())) / scale
}

fn check<T: Real>(name: &str, tolerance: f64) {
    let golden = Step::load(name);
    let parameters = golden.parameters::<T>();
    let sizes = parameters.sizes;
    let batch = golden.dims("x_a")[0];
    let n = 2 * batch;
    let embeddings: Vec<T> = golden.get("x_a").iter().chain(golden.get("x_b")).map(|&v| T::of(v)).collect();
    let mut objective =
        Objective { tau: golden.get("tau")[0], prob_weight: golden.get("prob_weight")[0], ..Objective::default() };
    if name == "softmax" {
        (objective.floor, objective.gumbel) = (0.0, false);
    }
    let draws = golden.draws::<T>();
    let (mut workspace, mut gradient) = (Workspace::default(), Parameters::zeros(sizes));
    let losses = workspace.step(&parameters, &objective, &embeddings, Noise::Given(&draws), &mut gradient);
    let assert_near = |what: &str, d: f64| assert!(d <= tolerance, "{name}: {what} differs by {d:.1e}");
    assert_near("loss", difference([losses.loss], golden.get("loss")));
    assert_near("contrastive", difference([losses.contrastive], golden.get("contrastive")));
    assert_near("information", difference([losses.information], golden.get("mutual_information")));
    let parts = gradient.parts();
    for (what, got) in [("W1", parts.w1), ("b1", parts.b1), ("W2", parts.w2), ("b2", parts.b2), ("C", parts.codewords)]
    {
        assert_near(what, difference(got.iter().copied(), golden.get(&format!("grad.{what}"))));
    }
    let width = sizes.code.width();
    let first_view =
        |x: &[T]| (0..batch).flat_map(|b| (0..width).map(move |i| i * n + b)).map(|i| x[i]).collect::<Vec<T>>();
    assert_near("z", difference(first_view(workspace.projected()), golden.get("z_a")));
    assert_near("h", difference(first_view(workspace.decoded()), golden.get("h_a")));
    let codes: Vec<&[T]> = workspace.codes().collect();
    let codewords = sizes.code.codebook_size();
    let v = (0..batch).flat_map(|b| codes.iter().flat_map(move |c| (0..codewords).map(move |k| c[k * n + b])));
    assert_near("v", difference(v, golden.get("v_a")));
}

#[test]
fn step_equals_autograd_in_double_precision() {
    for name in ["micpq_m4", "micpq_m8", "contrastive_only", "softmax", "binary_k2"] {
        check::<f64>(name, 1e-9);
    }
}

#[test]
fn step_equals_autograd_in_single_precision() {
    for name in ["micpq_m4", "micpq_m8", "contrastive_only", "softmax", "binary_k2"] {
        check::<f32>(name, 1e-4);
    }
}

#[test]
fn codes_and_both_distances_equal_the_reference() {
    for name in ["micpq_m4", "micpq_m8", "contrastive_only", "softmax", "binary_k2"] {
        let golden = Step::load(name);
        let parameters = golden.parameters::<f32>();
        let shape = parameters.sizes.code;
        let (projection, codebooks): (_, Codebooks) = parameters.model_parts().unwrap();
        let rows =
            |x: &str| Matrix::from_vec(parameters.sizes.inputs, golden.get(x).iter().map(|&v| v as f32).collect());
        let codes = codebooks.assign(&projection.apply(&rows("x_a")).unwrap());
        let codes: Vec<&[u8]> = codes.chunks_exact(shape.code_bytes()).collect();
        let expected = golden.get("codes_a");
        for (i, code) in codes.iter().enumerate() {
            for m in 0..shape.num_codebooks() {
                assert_eq!(shape.codeword(code, m), expected[i * shape.num_codebooks() + m] as usize, "{name} {i} {m}");
            }
        }
        let queries = projection.apply(&rows("x_b")).unwrap();
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

/// Parameters, embeddings and noise of a small problem, with values of magnitude about 1.
fn problem<T: Real>(sizes: Sizes, batch: usize) -> (Parameters<T>, Vec<T>, Vec<T>) {
    let draw = |count: usize, number: u64| {
        let mut u = vec![0.0f64; count];
        Stream::new(9, Purpose::Init, &[number]).uniform_f64(&mut u);
        u
    };
    let values = draw(sizes.len(), 0).into_iter().map(|u| T::of(u - 0.5)).collect();
    let embeddings = draw(2 * batch * sizes.inputs, 1).into_iter().map(|u| T::of(2.0 * u - 1.0)).collect();
    let noise =
        draw(sizes.code.num_codebooks() * sizes.code.codebook_size() * 2 * batch, 2).into_iter().map(T::of).collect();
    (Parameters { sizes, values }, embeddings, noise)
}

#[test]
fn gradients_equal_finite_differences_under_every_objective() {
    let objectives = [
        Objective::default(),
        Objective { information: Information::Posterior, ..Objective::default() },
        Objective { information: Information::Posterior, floor: 0.0, gumbel: false, ..Objective::default() },
        Objective { floor: 0.0, tau: 2.0, ..Objective::default() },
        Objective { floor: 1e-2, gumbel: false, code_weight: 0.7, prob_weight: 1.5, ..Objective::default() },
    ];
    for (codewords, codebooks) in [(2, 3), (16, 2), (256, 1)] {
        let sizes = Sizes { inputs: 5, hidden: 7, code: CodeShape::new(codebooks, codewords, 3).unwrap() };
        let (parameters, embeddings, noise) = problem::<f64>(sizes, 3);
        for objective in &objectives {
            let (mut workspace, mut gradient) = (Workspace::default(), Parameters::zeros(sizes));
            let mut loss = |p: &Parameters<f64>, g: &mut Parameters<f64>| {
                workspace.step(p, objective, &embeddings, Noise::Given(&noise), g).loss
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
                assert!(
                    error < 1e-7,
                    "{codewords} codewords, {objective:?}, parameter {i}: {slope} {}",
                    gradient.values[i]
                );
            }
        }
    }
}

#[test]
fn step_gives_the_same_bits_on_any_number_of_threads() {
    let sizes = Sizes { inputs: 50, hidden: 200, code: CodeShape::new(9, 16, 24).unwrap() };
    let (parameters, embeddings, _) = problem::<f32>(sizes, 37);
    let run = |threads: usize| {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(|| {
            let (mut workspace, mut gradient) = (Workspace::default(), Parameters::zeros(sizes));
            let noise = Noise::Drawn { seed: 1, step: 2 };
            let losses = workspace.step(&parameters, &Objective::default(), &embeddings, noise, &mut gradient);
            (losses, gradient)
        })
    };
    let expected = run(1);
    for threads in [2, 4] {
        assert!(run(threads) == expected, "{threads} threads give other bits");
    }
}

#[test]
fn buffers_of_a_larger_batch_do_not_change_the_next_step() {
    let sizes = Sizes { inputs: 6, hidden: 10, code: CodeShape::new(2, 16, 4).unwrap() };
    let (parameters, embeddings, noise) = problem::<f64>(sizes, 4);
    let objective = Objective::default();
    let (mut fresh, mut used) = (Workspace::default(), Workspace::default());
    let (mut a, mut b) = (Parameters::zeros(sizes), Parameters::zeros(sizes));
    let (_, large, large_noise) = problem::<f64>(sizes, 9);
    used.step(&parameters, &objective, &large, Noise::Given(&large_noise), &mut b);
    let first = fresh.step(&parameters, &objective, &embeddings, Noise::Given(&noise), &mut a);
    let second = used.step(&parameters, &objective, &embeddings, Noise::Given(&noise), &mut b);
    assert_eq!((first, a), (second, b));
}

#[test]
fn nan_in_an_embedding_makes_the_loss_nan() {
    let sizes = Sizes { inputs: 6, hidden: 10, code: CodeShape::new(2, 16, 4).unwrap() };
    let (parameters, mut embeddings, _) = problem::<f32>(sizes, 4);
    embeddings[3] = f32::NAN;
    let (mut workspace, mut gradient) = (Workspace::default(), Parameters::zeros(sizes));
    let noise = Noise::Drawn { seed: 1, step: 2 };
    assert!(workspace.step(&parameters, &Objective::default(), &embeddings, noise, &mut gradient).loss.is_nan());
}
