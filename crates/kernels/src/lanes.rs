//! Arithmetic on sixteen lanes in plain Rust, which every backend compiles for its own registers.

/// Lanes of a running sum: two registers of AVX2 or one of AVX-512, with the same additions.
pub(crate) const LANES: usize = 16;

/// Folds the lanes in halves: (0+8, 1+9, ..), then (0+4, ..), (0+2, ..), (0+1).
#[inline(always)]
pub(crate) fn fold(mut lanes: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = f(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// The bits of the nearest `bf16`, ties to even.
#[inline(always)]
pub(crate) fn bf16_round(v: f32) -> u16 {
    let bits = v.to_bits();
    (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

#[inline(always)]
pub(crate) fn bf16_widen(v: u16) -> f32 {
    f32::from_bits(u32::from(v) << 16)
}

/// `e^x` to 2 units in the last place on [-87, 88]; 0 below, infinity above.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let (y, exponent) = power(x.clamp(-87.3, 88.7));
    // The exponent is in [-126, 128]; two factors keep 2^128 from overflowing before the product.
    let half = exponent >> 1;
    let first = f32::from_bits((half.wrapping_add(127) << 23) as u32);
    let second = f32::from_bits((exponent.wrapping_sub(half).wrapping_add(127) << 23) as u32);
    let y = y * first * second;
    let y = if x < -87.3 { 0.0 } else { y };
    if x > 88.7 { f32::INFINITY } else { y }
}

/// The bits of [`exp`] for `x <= 0`, in fewer steps: a result of at most 1 needs no second factor.
#[inline(always)]
pub(crate) fn exp_of_negative(x: f32) -> f32 {
    // NaN fails the comparison and stays NaN.
    let (y, exponent) = power(if x < -87.3 { -87.3 } else { x });
    let y = y * f32::from_bits((exponent.wrapping_add(127) << 23) as u32);
    if x < -87.3 { 0.0 } else { y }
}

/// `e^x` as a value near 1 and a power of two.
///
/// Cephes' scheme: x = n ln 2 + r with |r| <= ln 2 / 2, a polynomial for e^r. Without a branch, so that a loop over it
/// vectorises.
#[inline(always)]
fn power(x: f32) -> (f32, i32) {
    // 1.5 * 2^23: adding it rounds to the nearest integer, which then is in the low bits. A cast would do the same,
    // but Rust's casts saturate, which stops the compiler from vectorising the loop.
    const ROUND: f32 = 12_582_912.0;
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-0.693_359_4, x);
    let r = n.mul_add(2.121_944_4e-4, r);
    let mut p = 1.987_569_1e-4f32;
    p = p.mul_add(r, 1.398_199_9e-3);
    p = p.mul_add(r, 8.333_452e-3);
    p = p.mul_add(r, 4.166_579_6e-2);
    p = p.mul_add(r, 1.666_666_5e-1);
    p = p.mul_add(r, 0.5);
    let y = (p * r).mul_add(r, r) + 1.0;
    (y, (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32))
}

/// `ln x` to 2 units in the last place for positive, normal, finite `x`; NaN stays NaN.
///
/// x = 2^e m with m in [sqrt(1/2), sqrt 2); with s = (m - 1) / (m + 1), |s| <= 0.172, ln m = 2 (s + s^3/3 + s^5/5 ..),
/// whose first omitted term is below 1e-9 of the sum.
#[inline(always)]
pub(crate) fn ln(x: f32) -> f32 {
    // Bits of sqrt(1/2): the difference in the exponent field is e.
    const ROOT_HALF: u32 = 0x3f35_04f3;
    let bits = x.to_bits();
    let e = (bits.wrapping_sub(ROOT_HALF) as i32) >> 23;
    let m = f32::from_bits(bits.wrapping_sub((e as u32) << 23));
    let e = e as f32;
    let s = (m - 1.0) / (m + 1.0);
    let q = s * s;
    let mut p = 1.0 / 9.0f32;
    p = p.mul_add(q, 1.0 / 7.0);
    p = p.mul_add(q, 1.0 / 5.0);
    p = p.mul_add(q, 1.0 / 3.0);
    // e ln 2 in two parts: the first has few enough bits that its product with e is exact.
    let tail = (2.0 * s * q).mul_add(p, e * -2.121_944_4e-4);
    let y = e.mul_add(0.693_359_4, tail + 2.0 * s);
    if x.is_nan() { x } else { y }
}

/// Sine and cosine of `turns` full turns, `turns` in [0, 1); absolute error at most 2e-7.
///
/// The nearest quarter turn is subtracted, Taylor series give the rest (|angle| <= pi/4, omitted terms below 4e-9), and
/// the quarter selects which series is which function and its sign.
#[inline(always)]
pub(crate) fn turn(turns: f32) -> (f32, f32) {
    const ROUND: f32 = 12_582_912.0;
    let shifted = turns.mul_add(4.0, ROUND);
    let quarter = shifted.to_bits() & 3;
    let x = turns.mul_add(4.0, -(shifted - ROUND)) * std::f32::consts::FRAC_PI_2;
    let q = x * x;
    let mut s = 1.0 / 362_880.0f32;
    s = s.mul_add(q, -1.0 / 5040.0);
    s = s.mul_add(q, 1.0 / 120.0);
    s = s.mul_add(q, -1.0 / 6.0);
    let s = (s * q).mul_add(x, x);
    let mut c = 1.0 / 40_320.0f32;
    c = c.mul_add(q, -1.0 / 720.0);
    c = c.mul_add(q, 1.0 / 24.0);
    c = c.mul_add(q, -0.5);
    let c = c.mul_add(q, 1.0);
    let (sine, cosine) = if quarter & 1 == 0 { (s, c) } else { (c, s) };
    // Sine is negative in the third and fourth quarter, cosine in the second and third.
    let sine = f32::from_bits(sine.to_bits() ^ ((quarter & 2) << 30));
    let cosine = f32::from_bits(cosine.to_bits() ^ ((quarter.wrapping_add(1) & 2) << 30));
    (sine, cosine)
}

/// `erf(x)`, absolute error at most 3e-7.
///
/// A minimax polynomial x P(x^2) (error 6e-8 before rounding) on the range where `erf` is below 1 in `f32`; the argument is
/// clamped to that range. The variable of P runs from -1 to 1, so that terms do not cancel. Terms are summed in pairs, fours
/// and eights, so that they do not wait for each other. A quotient of polynomials needs three terms fewer, but AVX-512
/// takes 24 cycles to divide sixteen values (a Xeon) and half a cycle to multiply and add them.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    // erf is 1 - 6e-8, half a unit in the last place below 1, from here on.
    const END: f32 = 3.832_507;
    let x = x.clamp(-END, END);
    let t = (x * x).mul_add(2.0 / (END * END), -1.0);
    let t2 = t * t;
    let t4 = t2 * t2;
    let pair = |high: f32, low: f32| high.mul_add(t, low);
    let first = pair(-1.106_642_4e-1, 1.367_457e-1).mul_add(t2, pair(-1.841_146_2e-1, 3.689_580_3e-1));
    let second = pair(-3.991_164_6e-2, 5.594_575_4e-2).mul_add(t2, pair(-7.304_694e-2, 9.083_527e-2));
    let third = pair(-3.392_851_4e-3, 1.066_309_1e-2).mul_add(t2, pair(-1.951_386_2e-2, 2.776_196_6e-2));
    let fourth = 1.184_306_7e-3f32.mul_add(t2, pair(-3.082_264_2e-3, 2.558_115_4e-3));
    let (low, high) = (second.mul_add(t4, first), fourth.mul_add(t4, third));
    x * high.mul_add(t4 * t4, low)
}

/// `tanh(x)` through `exp`, absolute error at most 2e-7.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let e = exp(-2.0 * x.abs());
    ((1.0 - e) / (1.0 + e)).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Reference erf in f64: the Taylor series where it converges fast, the continued fraction beyond.
    fn erf64(x: f64) -> f64 {
        if x.abs() < 3.0 {
            let (mut term, mut sum) = (x, x);
            for n in 1..200 {
                term *= -x * x / f64::from(n);
                sum += term / f64::from(2 * n + 1);
            }
            sum * 2.0 / std::f64::consts::PI.sqrt()
        } else {
            let mut f = 0.0;
            for n in (1..100).rev() {
                f = f64::from(n) / 2.0 / (x.abs() + f);
            }
            (1.0 - (-x * x).exp() / (x.abs() + f) / std::f64::consts::PI.sqrt()).copysign(x)
        }
    }

    #[test]
    fn exp_erf_and_tanh_stay_within_their_stated_errors() {
        for i in -90_000..=88_000 {
            let x = i as f32 / 1000.0;
            let exact = f64::from(x).exp();
            if x > -87.0 {
                assert!((f64::from(exp(x)) - exact).abs() <= exact * 2.5e-7, "exp({x})");
            }
            if x.abs() < 12.0 {
                assert!((f64::from(erf(x)) - erf64(f64::from(x))).abs() <= 3e-7, "erf({x})");
                assert!((f64::from(tanh(x)) - f64::from(x).tanh()).abs() <= 2e-7, "tanh({x})");
            }
        }
        assert!((1.0 - erf(100.0)).abs() < 1e-7 && (1.0 + erf(f32::NEG_INFINITY)).abs() < 1e-7);
        for i in 0..2_000_000 {
            let x = -(i as f32) / 20_000.0;
            assert_eq!(exp_of_negative(x).to_bits(), exp(x).to_bits(), "exp({x})");
        }
        assert_eq!(exp_of_negative(f32::NEG_INFINITY), 0.0);
        assert!(exp(f32::NAN).is_nan() && exp_of_negative(f32::NAN).is_nan());
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(100.0), f32::INFINITY);
    }
}
