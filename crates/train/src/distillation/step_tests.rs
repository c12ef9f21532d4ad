use std::path::PathBuf;

use engine::model::CodeShape;
use safetensors::{Dtype, SafeTensors};

use super::super::student::StudentSizes;
use super::*;

/// A step computed in float64 by autograd: scripts/distillation-goldens writes it.
struct Golden(Vec<(String, Vec<usize>, Vec<f64>)>);

impl Golden {
    fn load(name: &str) -> Golden {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/distil_{name}.safetensors"));
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

    fn find(&self, name: &str) -> (&[usize], &[f64]) {
        let (_, dims, values) = self.0.iter().find(|(n, ..)| n == name).unwrap_or_else(|| panic!("no {name}"));
        (dims, values)
    }

    fn get(&self, name: &str) -> &[f64] {
        self.find(name).1
    }

    fn rows(&self, name: &str) -> Vec<u32> {
        self.get(name).iter().map(|&v| v as u32).collect()
    }
}

const NAMES: [&str; 7] = ["R", "b", "W1", "b1", "W2", "C", "scales"];

/// Largest difference, relative to the largest expected value.
fn difference<T: Real>(got: &[T], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let scale = expected.iter().fold(1e-30, |m: f64, v| m.max(v.abs()));
    got.iter().zip(expected).fold(0.0, |m: f64, (a, b)| m.max((a.wide() - b).abs())) / scale
}

fn run<T: Real>(golden: &Golden) -> (DistilLosses, Student<T>, Vec<u32>) {
    let (inner, books) = (golden.find("W1").0, golden.find("C").0);
    let code = CodeShape::new(books[0], books[1], books[2]).unwrap();
    let sizes = StudentSizes { inputs: inner[1], hidden: inner[0], code };
    let values = NAMES.iter().flat_map(|n| golden.get(n)).map(|&v| T::of(v)).collect();
    let student = Student { sizes, values };
    let wide = |name: &str| golden.get(name).iter().map(|&v| T::of(v)).collect::<Vec<T>>();
    let (x, y, queries, own) = (wide("x"), wide("y"), golden.rows("queries"), golden.rows("own"));
    let [local_temperature, global_temperature, global_weight, commitment, assignment_temperature] =
        golden.get("objective")[..]
    else {
        panic!()
    };
    let objective =
        DistilObjective { local_temperature, global_temperature, global_weight, commitment, assignment_temperature };
    let pool = golden.get("pool")[0] as usize;
    let batch = Batch { pool, random: pool, x: &x, y: &y, queries: &queries, own: &own };
    let (mut workspace, mut gradient) = (DistilWorkspace::default(), Student::zeros(sizes));
    // The second step finds the buffers of the first full.
    workspace.step(&student, &objective, &batch, &mut gradient);
    let losses = workspace.step(&student, &objective, &batch, &mut gradient);
    (losses, gradient, workspace.codes().to_vec())
}

fn check<T: Real>(name: &str, tolerance: f64) {
    let golden = Golden::load(name);
    let (losses, gradient, codes) = run::<T>(&golden);
    assert_eq!(codes, golden.rows("codes"), "{name}: codes");
    for (what, got) in
        [("loss", losses.loss), ("local", losses.local), ("global", losses.global), ("error", losses.error)]
    {
        let off = difference(&[got], golden.get(what));
        assert!(off <= tolerance, "{name}: {what} differs by {off:.1e}");
    }
    for (part, what) in Part::ALL.into_iter().zip(NAMES) {
        let mut off = difference(gradient.part(part), golden.get(&format!("grad.{what}")));
        if part == Part::Bias {
            // Queries and documents move with it together, so its gradient is the small rest of large sums.
            let largest = |name: &str| golden.get(name).iter().fold(0.0, |m: f64, v| m.max(v.abs()));
            off *= largest("grad.b") / largest("grad.R");
        }
        assert!(off <= tolerance, "{name}: gradient of {what} differs by {off:.1e}");
    }
}

#[test]
fn losses_and_gradients_equal_autograd_in_double_precision() {
    check::<f64>("both", 1e-10);
    check::<f64>("local", 1e-10);
}

#[test]
fn single_precision_stays_near_autograd() {
    check::<f32>("both", 2e-4);
    check::<f32>("local", 2e-4);
}

#[test]
fn gradients_do_not_depend_on_threads() {
    let golden = Golden::load("both");
    let with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| run::<f32>(&golden))
    };
    assert!(with(1) == with(3));
}

/// The global distillation of a part of the pool is the difference of two steps on that part alone, which autograd has checked.
#[test]
fn global_teacher_sees_the_random_documents_alone() {
    let golden = Golden::load("both");
    let (inner, books) = (golden.find("W1").0, golden.find("C").0);
    let code = CodeShape::new(books[0], books[1], books[2]).unwrap();
    let sizes = StudentSizes { inputs: inner[1], hidden: inner[0], code };
    let student = Student { sizes, values: NAMES.iter().flat_map(|n| golden.get(n)).copied().collect() };
    let (pool, d) = (golden.get("pool")[0] as usize, sizes.inputs);
    let (x, y, random) = (golden.get("x"), golden.get("y"), pool * 3 / 4);
    let all = golden.rows("queries").into_iter().zip(golden.rows("own"));
    let (queries, own): (Vec<u32>, Vec<u32>) = all.filter(|(_, own)| (*own as usize) < random).unzip();
    let e = y.len() / (x.len() / d);
    // The first documents of the pool and the views, which follow it.
    let cut = |from: &[f64], width: usize| [&from[..random * width], &from[pool * width..]].concat();
    let (few_x, few_y) = (cut(x, d), cut(y, e));
    let moved: Vec<u32> =
        queries.iter().map(|&q| if (q as usize) < pool { q } else { q - (pool - random) as u32 }).collect();
    let whole = Batch { pool, random, x, y: &few_y, queries: &queries, own: &own };
    let part = Batch { pool: random, random, x: &few_x, y: &few_y, queries: &moved, own: &own };
    let step = |batch: &Batch<f64>, global_weight: f64| {
        let objective = DistilObjective {
            local_temperature: 0.06,
            global_temperature: 0.1,
            global_weight,
            commitment: 0.0,
            assignment_temperature: 0.5,
        };
        let mut gradient = Student::zeros(sizes);
        let losses = DistilWorkspace::default().step(&student, &objective, batch, &mut gradient);
        (losses, gradient.values)
    };
    let ((both, gradient), (local, of_local)) = (step(&whole, 2.0), step(&whole, 0.0));
    let ((with, of_both), (_, without)) = (step(&part, 2.0), step(&part, 0.0));
    assert!((both.global - with.global).abs() < 1e-12 && (both.local - local.local).abs() < 1e-12);
    let expected: Vec<f64> = of_local
        .iter()
        .zip(of_both.iter().zip(&without))
        .map(|(local, (with, without))| local + with - without)
        .collect();
    assert!(difference(&gradient, &expected) < 1e-10);
}
