//! Squared distances of one vector to many: a distance table, codebook by codebook.

use crate::Backend;

/// Writes the squared distance of `vector` to each of `codewords` `[n, dim]` into `out`. A sum runs in eight lanes over whole
/// chunks of eight, the rest added to the first lanes, folded as `((0 + 4) + (1 + 5)) + ((2 + 6) + (3 + 7))`.
///
/// # Panics
/// When the lengths do not fit, or the CPU lacks the backend.
pub fn squared_distances(backend: Backend, vector: &[f32], codewords: &[f32], out: &mut [f32]) {
    assert_eq!(codewords.len(), vector.len() * out.len(), "{} codewords of {} values", out.len(), vector.len());
    backend.check();
    #[cfg(target_arch = "x86_64")]
    if backend != Backend::Reference && !vector.is_empty() && vector.len().is_multiple_of(8) {
        // SAFETY: the CPU has the backend, and the lengths fit.
        return unsafe { avx2(vector, codewords, out) };
    }
    if vector.is_empty() {
        return out.fill(0.0);
    }
    for (out, codeword) in out.iter_mut().zip(codewords.chunks_exact(vector.len())) {
        *out = squared(vector, codeword);
    }
}

/// The sum of squared differences in the stated order.
pub fn squared(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    let (a8, a_rest) = a.as_chunks::<8>();
    let (b8, b_rest) = b.as_chunks::<8>();
    for (x, y) in a8.iter().zip(b8) {
        for i in 0..8 {
            let d = x[i] - y[i];
            sums[i] += d * d;
        }
    }
    for (i, (x, y)) in a_rest.iter().zip(b_rest).enumerate() {
        let d = x - y;
        sums[i] += d * d;
    }
    ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]))
}

/// Four codewords at a time: their lanes are folded together.
///
/// # Safety
/// AVX2; `codewords` holds as many vectors as `out` values, of a length that is a multiple of eight and not zero.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2(vector: &[f32], codewords: &[f32], out: &mut [f32]) {
    use std::arch::x86_64::*;
    let dim = vector.len();
    let (fours, rest) = out.as_chunks_mut::<4>();
    for (out, codewords) in fours.iter_mut().zip(codewords.chunks_exact(4 * dim)) {
        // SAFETY: 4 x dim values lie there, read eight at a time.
        unsafe {
            let mut sums = [_mm256_setzero_ps(); 4];
            for at in (0..dim).step_by(8) {
                let x = _mm256_loadu_ps(vector.as_ptr().add(at));
                for (w, sum) in sums.iter_mut().enumerate() {
                    let d = _mm256_sub_ps(x, _mm256_loadu_ps(codewords.as_ptr().add(w * dim + at)));
                    *sum = _mm256_add_ps(*sum, _mm256_mul_ps(d, d));
                }
            }
            let [a, b, c, d] = sums.map(|sum| _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps::<1>(sum)));
            let folded = _mm_hadd_ps(_mm_hadd_ps(a, b), _mm_hadd_ps(c, d));
            _mm_storeu_ps(out.as_mut_ptr(), folded);
        }
    }
    let done = codewords.len() / dim / 4 * 4;
    for (out, codeword) in rest.iter_mut().zip(codewords[done * dim..].chunks_exact(dim)) {
        *out = squared(vector, codeword);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_backend_gives_the_bits_of_the_stated_order() {
        let value = |i: usize| (crate::dropout::mix(3, i as u64) >> 40) as f32 / 1e6 - 8.0;
        for dim in 0..=40 {
            for n in [0, 1, 3, 4, 5, 16, 19] {
                let vector: Vec<f32> = (0..dim).map(value).collect();
                let codewords: Vec<f32> = (0..n * dim).map(|i| value(i + 1000)).collect();
                let expected: Vec<u32> =
                    (0..n).map(|w| squared(&vector, &codewords[w * dim..(w + 1) * dim]).to_bits()).collect();
                for backend in Backend::available() {
                    let mut out = vec![f32::NAN; n];
                    squared_distances(backend, &vector, &codewords, &mut out);
                    let got: Vec<u32> = out.iter().map(|v| v.to_bits()).collect();
                    assert_eq!(got, expected, "{} dim {dim} n {n}", backend.name());
                }
            }
        }
    }
}
