//! Loops over whole slices for training: exponentials, logarithms, noise, the optimizer's update.
//!
//! Each value is computed independently and without a branch, so every backend gives the same bits.

use crate::dispatch::per_backend;
use crate::lanes;

per_backend! {
    /// `x = e^x`, to 2 units in the last place on [-87, 88]; 0 below, infinity above.
    pub fn exp(x: &mut [f32]) => exp_body;
}

per_backend! {
    /// `x = ln x` for positive, normal, finite `x`, to 2 units in the last place.
    pub fn ln(x: &mut [f32]) => ln_body;
}

per_backend! {
    /// Turns uniform draws in [0, 1) into Gumbel noise: `-ln(-ln(u + 1e-20) + 1e-20)`.
    pub fn gumbel(u: &mut [f32]) => gumbel_body;
}

per_backend! {
    /// Turns uniform draws in [0, 1) into standard normal ones (Box and Muller), in place. The first half of the slice gives
    /// the radii, the second the angles.
    ///
    /// # Panics
    /// When the length is odd.
    pub fn normal(u: &mut [f32]) => normal_body;
}

/// Coefficients of one Adam update, bias corrections included.
#[derive(Clone, Copy, Debug)]
pub struct Adam {
    /// Decay of the first moment (beta 1).
    pub keep_first: f32,
    /// Decay of the second moment (beta 2).
    pub keep_second: f32,
    /// Learning rate divided by the first moment's bias correction.
    pub rate: f32,
    /// One over the square root of the second moment's bias correction.
    pub scale: f32,
    /// Added to the square root of the second moment.
    pub epsilon: f32,
}

per_backend! {
    /// One Adam update of `value` by `gradient`; `first` and `second` are the running moments.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn adam(value: &mut [f32], gradient: &[f32], first: &mut [f32], second: &mut [f32], by: Adam) => adam_body;
}

#[inline(always)]
fn exp_body(x: &mut [f32]) {
    for v in x {
        *v = lanes::exp(*v);
    }
}

#[inline(always)]
fn ln_body(x: &mut [f32]) {
    for v in x {
        *v = lanes::ln(*v);
    }
}

#[inline(always)]
fn gumbel_body(u: &mut [f32]) {
    for v in u {
        *v = -lanes::ln(-lanes::ln(*v + 1e-20) + 1e-20);
    }
}

#[inline(always)]
fn normal_body(u: &mut [f32]) {
    assert!(u.len().is_multiple_of(2), "Box and Muller's draws come in pairs, not {}", u.len());
    let (radii, angles) = u.split_at_mut(u.len() / 2);
    for (r, a) in radii.iter_mut().zip(angles) {
        // 1 - u lies in (0, 1]; the draws are multiples of 2^-24, so nothing is lost.
        let radius = (-2.0 * lanes::ln(1.0 - *r)).max(0.0).sqrt();
        let (sine, cosine) = lanes::turn(*a);
        *r = radius * cosine;
        *a = radius * sine;
    }
}

#[inline(always)]
fn adam_body(value: &mut [f32], gradient: &[f32], first: &mut [f32], second: &mut [f32], by: Adam) {
    assert!(value.len() == gradient.len() && value.len() == first.len() && value.len() == second.len());
    for (((x, g), m), v) in value.iter_mut().zip(gradient).zip(first).zip(second) {
        *m = by.keep_first.mul_add(*m, (1.0 - by.keep_first) * g);
        *v = by.keep_second.mul_add(*v, (1.0 - by.keep_second) * g * g);
        *x -= by.rate * *m / v.sqrt().mul_add(by.scale, by.epsilon);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Backend;

    fn draws(n: usize) -> Vec<f32> {
        let mix = |mut x: u64| {
            x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (x ^ (x >> 31)) >> 40
        };
        (0..n as u64).map(|i| mix(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)) as f32 / (1 << 24) as f32).collect()
    }

    #[test]
    fn logarithms_stay_within_their_stated_error() {
        let mut x: Vec<f32> = (-120_000..120_000).map(|i| (i as f32 * 1e-3).exp2()).collect();
        x.extend([1e-20, 1e-12, 1e-9, 0.99999994, 1.0, 1.0000001, f32::MIN_POSITIVE, f32::MAX]);
        x.extend(draws(4096).into_iter().map(|u| u + 1e-20));
        let mut y = x.clone();
        ln(Backend::active(), &mut y);
        for (x, y) in x.iter().zip(&y) {
            let exact = f64::from(*x).ln();
            assert!((f64::from(*y) - exact).abs() <= exact.abs() * 2.4e-7, "ln({x}) = {y}, expected {exact}");
        }
        let mut bad = [f32::NAN];
        ln(Backend::active(), &mut bad);
        assert!(bad[0].is_nan(), "a diverged run must not look healthy");
    }

    #[test]
    fn gumbel_noise_equals_its_formula() {
        let mut u = draws(4096);
        u.extend([0.0, 0.99999994]);
        let mut g = u.clone();
        gumbel(Backend::active(), &mut g);
        for (u, g) in u.iter().zip(&g) {
            let exact = -(-(f64::from(*u) + 1e-20).ln() + 1e-20).ln();
            assert!((f64::from(*g) - exact).abs() < 2e-6 * (1.0 + exact.abs()), "{u}: {g} {exact}");
        }
    }

    #[test]
    fn normal_draws_equal_box_and_muller_and_have_standard_moments() {
        let u = draws(1 << 16);
        let mut x = u.clone();
        normal(Backend::active(), &mut x);
        let half = u.len() / 2;
        for i in 0..half {
            let radius = (-2.0 * (1.0 - f64::from(u[i])).ln()).sqrt();
            let angle = std::f64::consts::TAU * f64::from(u[half + i]);
            assert!((f64::from(x[i]) - radius * angle.cos()).abs() < 3e-6);
            assert!((f64::from(x[half + i]) - radius * angle.sin()).abs() < 3e-6);
        }
        let n = x.len() as f64;
        let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
        let square = x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / n;
        assert!(mean.abs() < 0.02 && (square - 1.0).abs() < 0.02, "{mean} {square}");
    }

    #[test]
    fn every_backend_gives_the_same_bits() {
        for n in [0, 2, 16, 34, 514] {
            let u = draws(n);
            for f in [exp, ln, gumbel, normal] {
                let start: Vec<f32> = u.iter().map(|v| v * 0.9 + 0.01).collect();
                let mut expected = start.clone();
                f(Backend::Reference, &mut expected);
                for backend in Backend::available() {
                    let mut got = start.clone();
                    f(backend, &mut got);
                    assert_eq!(got, expected, "{} {n}", backend.name());
                }
            }
            let by = Adam { keep_first: 0.9, keep_second: 0.999, rate: 1e-2, scale: 31.6, epsilon: 1e-8 };
            let run = |backend| {
                let (mut x, mut m, mut v) = (u.clone(), vec![0.1; n], vec![0.2; n]);
                adam(backend, &mut x, &u, &mut m, &mut v, by);
                (x, m, v)
            };
            for backend in Backend::available() {
                assert_eq!(run(backend), run(Backend::Reference), "{} {n}", backend.name());
            }
        }
    }
}
