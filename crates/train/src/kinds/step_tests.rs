use super::super::head::HeadSizes;
use super::*;
use crate::golden::{Golden, difference};

const NAMES: [&str; 4] = ["W1", "b1", "W2", "b2"];

fn run<T: Real>(golden: &Golden) -> (f64, Head<T>) {
    let (inner, outputs) = (golden.dims("W1"), golden.dims("b2")[0]);
    let codebooks = golden.dims("codes")[1];
    let sizes = HeadSizes { inputs: inner[1], hidden: inner[0], codebooks, codewords: outputs / codebooks };
    let values = |name: &str| golden.get(name).iter().map(|&v| T::of(v)).collect::<Vec<T>>();
    let head = Head { sizes, values: NAMES.iter().flat_map(|name| values(name)).collect() };
    let (x, queries, documents) = (values("x"), values("queries"), values("documents"));
    let (codes, own) = (golden.rows("codes"), golden.rows("own"));
    let batch = Batch { x: &x, queries: &queries, documents: &documents, codes: &codes, own: &own };
    let (mut workspace, mut gradient) = (Workspace::default(), Head::zeros(sizes));
    let temperature = golden.get("temperature")[0];
    // The second step finds the buffers of the first full.
    workspace.step(&head, temperature, &batch, &mut gradient);
    let loss = workspace.step(&head, temperature, &batch, &mut gradient);
    (loss, gradient)
}

fn check<T: Real>(tolerance: f64) {
    let golden = Golden::load("kinds");
    let (loss, gradient) = run::<T>(&golden);
    let off = difference(&[loss], golden.get("loss"));
    assert!(off <= tolerance, "the loss differs by {off:.1e}");
    for (part, name) in Part::ALL.into_iter().zip(NAMES) {
        let off = difference(gradient.part(part), golden.get(&format!("grad.{name}")));
        assert!(off <= tolerance, "the gradient of {name} differs by {off:.1e}");
    }
}

#[test]
fn loss_and_gradients_equal_autograd_in_double_precision() {
    check::<f64>(1e-10);
}

#[test]
fn single_precision_stays_near_autograd() {
    check::<f32>(2e-4);
}

#[test]
fn gradients_do_not_depend_on_threads() {
    let golden = Golden::load("kinds");
    let with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| run::<f32>(&golden))
    };
    assert!(with(1) == with(3));
}
