use super::super::student::StudentSizes;
use super::*;
use crate::golden::{Golden, difference};
use engine::model::CodeShape;

const NAMES: [&str; 7] = ["R", "b", "W1", "b1", "W2", "C", "scale"];

fn run<T: Real>(golden: &Golden) -> (DistilLosses, Student<T>, Vec<u32>) {
    let (inner, codebooks) = (golden.dims("W1"), golden.dims("C"));
    let code = CodeShape::new(codebooks[0], codebooks[1], codebooks[2]).unwrap();
    let sizes = StudentSizes { inputs: inner[1], hidden: inner[0], code };
    let values = NAMES.iter().flat_map(|n| golden.get(n)).map(|&v| T::of(v)).collect();
    let student = Student { sizes, values };
    let wide = |name: &str| golden.get(name).iter().map(|&v| T::of(v)).collect::<Vec<T>>();
    let (x, queries, own) = (wide("x"), golden.rows("queries"), golden.rows("own"));
    let [temperature, commitment, assignment_temperature] = golden.get("objective")[..] else { panic!() };
    let objective = DistilObjective { temperature, commitment, assignment_temperature };
    let pool = golden.get("pool")[0] as usize;
    let batch = Batch { pool, x: &x, queries: &queries, own: &own };
    let (mut workspace, mut gradient) = (DistilWorkspace::default(), Student::zeros(sizes));
    // The second step finds the buffers of the first full.
    workspace.step(&student, &objective, &batch, &mut gradient);
    let losses = workspace.step(&student, &objective, &batch, &mut gradient);
    (losses, gradient, workspace.codes().to_vec())
}

fn check<T: Real>(name: &str, tolerance: f64) {
    let golden = Golden::load(&format!("distil_{name}"));
    let (losses, gradient, codes) = run::<T>(&golden);
    assert_eq!(codes, golden.rows("codes"), "{name}: codes");
    for (what, got) in [("loss", losses.loss), ("entropy", losses.entropy), ("error", losses.error)] {
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
    check::<f64>("large", 1e-10);
    check::<f64>("small", 1e-10);
}

#[test]
fn single_precision_stays_near_autograd() {
    check::<f32>("large", 2e-4);
    check::<f32>("small", 2e-4);
}

#[test]
fn gradients_do_not_depend_on_threads() {
    let golden = Golden::load("distil_large");
    let with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| run::<f32>(&golden))
    };
    assert!(with(1) == with(3));
}
