use proptest::prelude::*;

use super::*;

fn noise(n: usize, seed: u32) -> Vec<f32> {
    (0..n as u32)
        .map(|i| {
            let mut h = i.wrapping_mul(2_654_435_761) ^ seed.wrapping_mul(0x9E37_79B9);
            h = (h ^ (h >> 15)).wrapping_mul(0x85EB_CA6B);
            (h ^ (h >> 13)) as f32 / 2f32.powi(31) - 1.0
        })
        .collect()
}

fn rows(backend: Backend, x: &[f32], inputs: usize) -> ByteRows {
    let mut rows = ByteRows::default();
    rows.fill(backend, x, inputs);
    rows
}

/// Value of a packed weight.
fn dequantized(weight: &ByteWeight, j: usize, k: usize) -> f64 {
    let group = &weight.panel(j / PANEL)[k / 4 * 4 * PANEL..];
    f64::from(weight.scale[j]) * f64::from(group[j % PANEL * 4 + k % 4])
}

fn check_bits(n: usize, outputs: usize, inputs: usize) {
    let (x, w, bias) = (noise(n * inputs, 1), noise(outputs * inputs, 2), noise(outputs, 3));
    let (x, weight) = (rows(Backend::Reference, &x, inputs), ByteWeight::new(&w, outputs, inputs));
    for epilogue in [Epilogue::Bias(&bias), Epilogue::BiasGelu(&bias), Epilogue::BiasGeluTanh(&bias)] {
        let mut expected = vec![f32::NAN; n * outputs];
        weight.multiply_on(Unit::Reference, &x, &mut expected, epilogue);
        assert!(expected.iter().all(|v| v.is_finite()));
        for unit in Unit::available() {
            let mut y = vec![f32::NAN; n * outputs];
            weight.multiply_on(unit, &x, &mut y, epilogue);
            assert_eq!(y, expected, "{} {n}x{outputs}x{inputs}", unit.name());
            // In two ranges of panels: the same values, side by side.
            let half = weight.panels() / 2;
            let split = (half * PANEL).min(outputs);
            let (mut a, mut b) = (vec![0.0; n * split], vec![0.0; n * (outputs - split)]);
            weight.multiply_panels_on(unit, 0..half, &x, &mut a, epilogue);
            weight.multiply_panels_on(unit, half..weight.panels(), &x, &mut b, epilogue);
            for i in 0..n {
                let joined = [&a[i * split..(i + 1) * split], &b[i * (outputs - split)..(i + 1) * (outputs - split)]];
                assert_eq!(joined.concat(), expected[i * outputs..(i + 1) * outputs]);
            }
        }
    }
}

#[test]
fn every_unit_gives_the_bits_of_the_reference() {
    for (n, outputs, inputs) in
        [(0, 5, 3), (1, 1, 1), (1, 384, 384), (5, 17, 33), (13, 48, 40), (29, 100, 7), (50, 40, 96), (17, 32, 1536)]
    {
        check_bits(n, outputs, inputs);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn every_unit_gives_the_bits_of_the_reference_for_random_shapes(n in 0usize..70, outputs in 1usize..130, inputs in 1usize..300) {
        check_bits(n, outputs, inputs);
    }
}

#[test]
fn the_largest_values_do_not_saturate() {
    // Every byte and every weight at its maximum, which overflows sixteen bits if the bound is wrong. The weights of a quad are
    // clamped from a sum of 508 to 258, so the expected product is that of the clamped weights.
    for sign in [-1.0f32, 1.0] {
        let inputs = 3072;
        let mut x = vec![1.0f32; 2 * inputs];
        (x[0], x[inputs]) = (0.0, 0.0);
        let (x, weight) = (rows(Backend::Reference, &x, inputs), ByteWeight::new(&vec![sign; 16 * inputs], 16, inputs));
        let clamped: i32 = weight.panel(0).iter().map(|w| i32::from(*w)).sum::<i32>() / 16;
        assert_eq!(clamped, sign as i32 * 258 * 3072 / 4);
        let expected = f64::from(weight.scale[0]) * (f64::from(clamped) - f64::from(weight.panel(0)[0]));
        for unit in Unit::available() {
            let mut y = vec![0.0; 32];
            weight.multiply_on(unit, &x, &mut y, Epilogue::Bias(&[0.0; 16]));
            assert!(y.iter().all(|v| (f64::from(*v) - expected).abs() < 0.01), "{} {}", unit.name(), y[0]);
        }
    }
}

#[test]
fn a_quad_is_clamped_to_its_sum_and_other_weights_do_not_change() {
    // 127 + 100 + 60 is 29 too many: the largest is lowered until it equals the next, then both are.
    let mut eight = [127, 100, 3, -5, 60, -127, 120, -90];
    clamp_quads(&mut eight);
    assert_eq!(i32::from(eight[0]) + i32::from(eight[1]), 258 - 60);
    assert!((eight[0] - eight[1]).abs() <= 1);
    assert_eq!(eight[2..], [3, -5, 60, -127, 120, -90]);
}

#[test]
fn constant_and_zero_rows_are_exact() {
    let weight = ByteWeight::new(&[63.0, -127.0, 0.0, 0.0, 0.0, 0.0], 2, 3);
    let mut y = vec![f32::NAN; 4];
    weight.multiply(&rows(Backend::active(), &[2.0, 2.0, 2.0, 0.0, 0.0, 0.0], 3), &mut y, Epilogue::Bias(&[1.0, 3.0]));
    assert_eq!(y, [-127.0, 3.0, 1.0, 3.0]);
}

#[test]
fn memory_of_wider_rows_does_not_leak_into_narrower_rows() {
    let mut reused = ByteRows::default();
    reused.fill(Backend::active(), &noise(40 * 200, 1), 200);
    let x = noise(3 * 70, 2);
    reused.fill(Backend::active(), &x, 70);
    let fresh = rows(Backend::active(), &x, 70);
    let weight = ByteWeight::new(&noise(20 * 70, 3), 20, 70);
    let multiply = |x: &ByteRows| {
        let mut y = vec![0.0; 60];
        weight.multiply(x, &mut y, Epilogue::Bias(&[0.0; 20]));
        y
    };
    assert_eq!(multiply(&reused), multiply(&fresh));
}

#[test]
fn outliers_do_not_coarsen_the_other_values() {
    // Two of 768 inputs at 90 and -40 among values below 1, as BERT-base has them, on every unit.
    let (n, outputs, inputs) = (5, 40, 768);
    let (mut x, w) = (noise(n * inputs, 4), noise(outputs * inputs, 5));
    for row in x.chunks_exact_mut(inputs) {
        (row[381], row[308]) = (90.0, -40.0);
    }
    let (bytes, weight) = (rows(Backend::active(), &x, inputs), ByteWeight::new(&w, outputs, inputs));
    let scales = bytes.scales(0..n);
    assert!((0..n).all(|i| scales.outliers(i).len() == 2 && scales.steps[i] < 2.0 / 126.0));
    for unit in Unit::available() {
        let mut y = vec![0.0; n * outputs];
        weight.multiply_on(unit, &bytes, &mut y, Epilogue::Bias(&[0.0; 40]));
        for (i, row) in x.chunks_exact(inputs).enumerate() {
            for j in 0..outputs {
                let exact: f64 = row.iter().enumerate().map(|(k, v)| f64::from(*v) * dequantized(&weight, j, k)).sum();
                // 768 values each off by at most half of 2/127 with a random sign: a spread of about 0.07.
                assert!((f64::from(y[i * outputs + j]) - exact).abs() < 0.5, "{}", unit.name());
            }
        }
    }
}

#[test]
fn rounding_in_the_store_equals_rounding_afterwards() {
    for (n, outputs, inputs) in [(1, 1, 1), (37, 40, 130), (50, 96, 384)] {
        let (x, w, bias) = (noise(n * inputs, 7), noise(outputs * inputs, 8), noise(outputs, 9));
        let (bytes, weight) = (rows(Backend::active(), &x, inputs), ByteWeight::new(&w, outputs, inputs));
        for unit in Unit::available() {
            let mut y = vec![0.0; n * outputs];
            weight.multiply_on(unit, &bytes, &mut y, Epilogue::BiasGelu(&bias));
            let (mut expected, mut got) = (HalfRows::default(), HalfRows::default());
            expected.fill(Backend::Reference, &y, outputs);
            weight.multiply_into(unit, &bytes, &mut got, Epilogue::BiasGelu(&bias));
            let size = n * expected.stride();
            assert_eq!(got.values()[..size], expected.values()[..size], "{}", unit.name());
        }
    }
}

proptest! {
    /// Bytes are the same on every backend, and give their value to half a step.
    #[test]
    fn a_byte_is_within_half_a_step(
        x in prop::collection::vec(-50.0f32..50.0, 1..200),
        far in prop::collection::vec((0usize..200, -5e3f32..5e3), 0..12),
        scale in 1e-3f32..1e3,
    ) {
        let mut x: Vec<f32> = x.iter().map(|v| v * scale).collect();
        for (at, v) in far {
            if let Some(value) = x.get_mut(at) {
                *value = v * scale;
            }
        }
        let expected = rows(Backend::Reference, &x, x.len());
        let scales = expected.scales(0..1);
        let (step, floor) = (scales.steps[0], scales.floors[0]);
        for backend in Backend::available() {
            let got = rows(backend, &x, x.len());
            prop_assert_eq!(got.row(0), expected.row(0));
            let got = got.scales(0..1);
            prop_assert_eq!((got.steps, got.floors), (scales.steps, scales.floors));
            prop_assert_eq!(got.outliers(0), scales.outliers(0));
        }
        prop_assert!(scales.outliers(0).len() <= 8);
        for (k, (q, v)) in expected.row(0).iter().zip(&x).enumerate() {
            let excess = scales.outliers(0).iter().find(|(input, _)| *input == k as u32).map_or(0.0, |(_, more)| *more);
            let dequantized = f64::from(floor) + f64::from(step) * f64::from(*q) + f64::from(excess);
            prop_assert!((dequantized - f64::from(*v)).abs() <= f64::from(step) * 0.5001 + 1e-3 * f64::from(scale));
            prop_assert!(*q <= 127);
        }
    }

    /// The product of bytes equals the product of values to the sum of both rounding errors.
    #[test]
    fn the_product_equals_the_f64_product_within_its_error_bound(n in 1usize..9, outputs in 1usize..40, inputs in 1usize..130, seed in 0u32..1000) {
        let (x, w) = (noise(n * inputs, seed), noise(outputs * inputs, seed + 1));
        let (bytes, weight) = (rows(Backend::active(), &x, inputs), ByteWeight::new(&w, outputs, inputs));
        let mut y = vec![0.0; n * outputs];
        weight.multiply(&bytes, &mut y, Epilogue::Bias(&vec![0.0; outputs]));
        for i in 0..n {
            for j in 0..outputs {
                let (a, b) = (&x[i * inputs..(i + 1) * inputs], &w[j * inputs..(j + 1) * inputs]);
                let exact: f64 = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                // A value is off by at most half of 2/127, a weight by half of 1/127, both below 1 in magnitude; clamped weights
                // are off by more.
                let clamped: f64 = (0..inputs).map(|k| (f64::from(b[k]) - dequantized(&weight, j, k)).abs()).sum();
                let bound = inputs as f64 * (1.0 / 127.0 + 1e-4) + clamped;
                prop_assert!((f64::from(y[i * outputs + j]) - exact).abs() <= bound);
            }
        }
    }
}
