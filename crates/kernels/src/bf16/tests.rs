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

fn check_bits(n: usize, outputs: usize, inputs: usize) {
    let (x, w, bias) = (noise(n * inputs, 1), noise(outputs * inputs, 2), noise(outputs, 3));
    let weight = HalfWeight::new(&w, outputs, inputs);
    let mut rows = HalfRows::default();
    rows.fill(Backend::Reference, &x, inputs);
    for backend in Backend::available() {
        let mut same = HalfRows::default();
        same.fill(backend, &x, inputs);
        assert_eq!(same.values[..], rows.values[..], "{}", backend.name());
    }
    for epilogue in [Epilogue::Bias(&bias), Epilogue::BiasGelu(&bias)] {
        let expected = [Order::Tiles, Order::Pairs].map(|order| {
            let mut y = vec![f32::NAN; n * outputs];
            let args = ProductArgs { weight: &weight, x: &rows, outputs, first: 0, epilogue };
            (0..weight.panels()).for_each(|panel| reference(&args, &mut y, panel, order));
            assert!(y.iter().all(|v| v.is_finite()));
            y
        });
        for unit in Unit::available() {
            let mut y = vec![f32::NAN; n * outputs];
            weight.multiply_panels_on(unit, 0..weight.panels(), &rows, &mut y, epilogue);
            assert_eq!(y, expected[unit.order() as usize], "{} {n}x{outputs}x{inputs}", unit.name());
            // Rounding in the store equals rounding afterwards, with zeros up to whole steps.
            let mut halves = HalfRows::default();
            halves.fill(Backend::active(), &noise(90 * outputs, 4), outputs);
            weight.multiply_into(unit, &rows, &mut halves, epilogue);
            let mut after = HalfRows::default();
            after.fill(Backend::Reference, &y, outputs);
            let size = n * after.stride();
            assert_eq!(halves.values[..size], after.values[..size], "{} {n}x{outputs}x{inputs}", unit.name());
        }
    }
}

#[test]
fn every_unit_gives_the_bits_of_the_reference() {
    for (n, outputs, inputs) in
        [(0, 5, 3), (1, 1, 1), (1, 384, 384), (5, 17, 33), (13, 48, 40), (29, 100, 7), (50, 40, 96), (33, 48, 1536)]
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
fn the_product_equals_the_f64_product_of_rounded_values() {
    let (n, outputs, inputs) = (7, 19, 65);
    let (x, w) = (noise(n * inputs, 5), noise(outputs * inputs, 6));
    let mut rows = HalfRows::default();
    rows.fill(Backend::active(), &x, inputs);
    let weight = HalfWeight::new(&w, outputs, inputs);
    let mut y = vec![0.0; n * outputs];
    weight.multiply_panels(0..weight.panels(), &rows, &mut y, Epilogue::Bias(&vec![0.0; outputs]));
    let rounded = |v: f32| f64::from(widen(round(v)));
    for i in 0..n {
        for j in 0..outputs {
            let exact: f64 = (0..inputs).map(|t| rounded(x[i * inputs + t]) * rounded(w[j * inputs + t])).sum();
            assert!((f64::from(y[i * outputs + j]) - exact).abs() < 1e-5);
        }
    }
}

#[test]
fn rounding_is_to_nearest_with_ties_to_even() {
    for (value, expected) in [
        (1.0f32, 1.0f32),
        (f32::from_bits(0x3f80_7fff), 1.0),
        (f32::from_bits(0x3f80_8000), 1.0),
        (f32::from_bits(0x3f81_8000), f32::from_bits(0x3f82_0000)),
        (f32::from_bits(0x3f80_8001), f32::from_bits(0x3f81_0000)),
        (-0.0, -0.0),
        (-3.140_625, -3.140_625),
    ] {
        assert_eq!(widen(round(value)).to_bits(), expected.to_bits(), "{value}");
    }
}
