use proptest::prelude::*;

use super::*;

fn noise(n: usize, seed: u32) -> Vec<f32> {
    (0..n as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) ^ seed.wrapping_mul(40_503)) as f32 / 2f32.powi(31) - 1.0)
        .collect()
}

fn check_bits(rows: usize, outputs: usize, inputs: usize) {
    let (x, w, bias) = (noise(rows * inputs, 1), noise(outputs * inputs, 2), noise(outputs, 3));
    let packed = PackedWeight::new(&w, outputs, inputs);
    for epilogue in
        [Epilogue::Bias(&bias), Epilogue::BiasRelu(&bias), Epilogue::BiasGelu(&bias), Epilogue::BiasGeluTanh(&bias)]
    {
        let mut expected = vec![f32::NAN; rows * outputs];
        packed.multiply_on(Backend::Reference, &x, &mut expected, rows, epilogue);
        assert!(expected.iter().all(|v| v.is_finite()));
        for backend in Backend::available() {
            let mut y = vec![f32::NAN; rows * outputs];
            packed.multiply_on(backend, &x, &mut y, rows, epilogue);
            assert_eq!(y, expected, "{} {rows}x{outputs}x{inputs}", backend.name());
            // The panels from the second on: the same values in narrower rows.
            let split = PANEL.min(outputs);
            let (first, width) = (outputs.div_ceil(PANEL).min(1), outputs - split);
            let mut rest = vec![f32::NAN; rows * width];
            packed.multiply_panels_on(backend, first..packed.panels(), &x, &mut rest, rows, epilogue);
            for i in 0..rows {
                assert_eq!(rest[i * width..(i + 1) * width], expected[i * outputs + split..(i + 1) * outputs]);
            }
        }
    }
}

#[test]
fn every_backend_gives_the_references_bits() {
    for (n, outputs, inputs) in
        [(0, 5, 3), (1, 1, 1), (1, 384, 384), (5, 17, 33), (13, 48, 40), (29, 100, 7), (200, 40, 96)]
    {
        check_bits(n, outputs, inputs);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn every_backend_gives_the_references_bits_for_random_shapes(n in 0usize..70, outputs in 1usize..130, inputs in 1usize..300) {
        check_bits(n, outputs, inputs);
    }
}

#[test]
fn the_product_equals_the_f64_product() {
    let (rows, outputs, inputs) = (7, 19, 65);
    let (x, w, bias) = (noise(rows * inputs, 5), noise(outputs * inputs, 6), noise(outputs, 7));
    let mut y = vec![0.0; rows * outputs];
    PackedWeight::new(&w, outputs, inputs).multiply(&x, &mut y, rows, Epilogue::Bias(&bias));
    for i in 0..rows {
        for j in 0..outputs {
            let exact = (0..inputs).map(|t| f64::from(x[i * inputs + t]) * f64::from(w[j * inputs + t])).sum::<f64>()
                + f64::from(bias[j]);
            // 65 rounded operations on sums below 30: half an ulp of 32 each.
            assert!((f64::from(y[i * outputs + j]) - exact).abs() < 65.0 * 2e-6);
        }
    }
}

#[test]
fn both_gelus_equal_their_formulas() {
    let x: Vec<f32> = (-8000..8000).map(|i| i as f32 / 1000.0).collect();
    let one = PackedWeight::new(&[1.0], 1, 1);
    let mut y = vec![0.0; x.len()];
    let tanh = |v: f64| 0.5 * v * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (v + 0.044715 * v.powi(3))).tanh());
    one.multiply(&x, &mut y, x.len(), Epilogue::BiasGeluTanh(&[0.0]));
    for (x, y) in x.iter().zip(&y) {
        let exact = tanh(f64::from(*x));
        assert!((f64::from(*y) - exact).abs() <= 1e-6 * (1.0 + exact.abs()), "gelu_new({x}) = {y}, not {exact}");
    }
    // Phi by summing its density, to 1e-9: an independent computation of the exact form.
    one.multiply(&x, &mut y, x.len(), Epilogue::BiasGelu(&[0.0]));
    let density = |t: f64| (-t * t / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let (mut phi, h) = (0.0, 1e-3);
    for (x, y) in x.iter().zip(&y) {
        let v = f64::from(*x);
        assert!((f64::from(*y) - v * phi).abs() <= 5e-7 * (1.0 + v.abs()), "gelu({x}) = {y}, not {}", v * phi);
        // Simpson's rule from this point to the next.
        phi += h / 6.0 * (density(v) + 4.0 * density(v + h / 2.0) + density(v + h));
    }
}

#[test]
#[should_panic(expected = "x is [rows, inputs]")]
fn a_short_input_is_refused() {
    let packed = PackedWeight::new(&[1.0, 2.0], 1, 2);
    packed.multiply(&[1.0], &mut [0.0], 1, Epilogue::Bias(&[0.0]));
}
