//! Products of a float vector with vectors of signed bytes: the cosines of re-ranking.

use crate::Backend;

/// The scalar product of `vector` with `bytes`, and the sum of the squares of `bytes`.
///
/// The product runs in sixteen lanes over whole chunks of sixteen, the rest added to the first lanes, and the lanes are folded in
/// halves: every backend gives the same bits.
///
/// # Panics
/// When the lengths differ, or the CPU lacks the backend.
pub fn product_and_square(backend: Backend, vector: &[f32], bytes: &[i8]) -> (f32, u32) {
    assert_eq!(vector.len(), bytes.len(), "a vector of {} values against {} bytes", vector.len(), bytes.len());
    backend.check();
    let (chunks, rest) = bytes.as_chunks::<16>();
    let (whole, vector_rest) = vector.as_chunks::<16>();
    let (mut sums, mut square) = match backend {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the CPU has the backend, and every backend but the reference has AVX2.
        backend if backend != Backend::Reference => unsafe { avx2(whole, chunks) },
        _ => reference(whole, chunks),
    };
    for (lane, (x, &byte)) in sums.iter_mut().zip(vector_rest.iter().zip(rest)) {
        *lane += x * f32::from(byte);
        square += i32::from(byte).pow(2) as u32;
    }
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
    }
    (sums[0], square)
}

/// Asks the CPU to load `bytes` into its cache: rows that lie apart, some rows before they are read.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint that reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

fn reference(vector: &[[f32; 16]], bytes: &[[i8; 16]]) -> ([f32; 16], u32) {
    let (mut sums, mut square) = ([0.0f32; 16], 0u32);
    for (x, bytes) in vector.iter().zip(bytes) {
        for i in 0..16 {
            sums[i] += x[i] * f32::from(bytes[i]);
            square += i32::from(bytes[i]).pow(2) as u32;
        }
    }
    (sums, square)
}

/// # Safety
/// AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2(vector: &[[f32; 16]], bytes: &[[i8; 16]]) -> ([f32; 16], u32) {
    use std::arch::x86_64::*;
    let (mut low, mut high, mut squares) = (_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_si256());
    for (x, bytes) in vector.iter().zip(bytes) {
        // SAFETY: sixteen values and sixteen bytes lie there.
        let (first, second, packed) = unsafe {
            let packed = _mm_loadu_si128(bytes.as_ptr().cast());
            (_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8)), packed)
        };
        let near = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(packed));
        let far = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(packed, packed)));
        // Not fused: the reference rounds the product too.
        low = _mm256_add_ps(low, _mm256_mul_ps(first, near));
        high = _mm256_add_ps(high, _mm256_mul_ps(second, far));
        let wide = _mm256_cvtepi8_epi16(packed);
        squares = _mm256_add_epi32(squares, _mm256_madd_epi16(wide, wide));
    }
    let (mut sums, mut parts) = ([0.0; 16], [0u32; 8]);
    // SAFETY: the arrays hold what is stored.
    unsafe {
        _mm256_storeu_ps(sums.as_mut_ptr(), low);
        _mm256_storeu_ps(sums.as_mut_ptr().add(8), high);
        _mm256_storeu_si256(parts.as_mut_ptr().cast(), squares);
    }
    (sums, parts.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_backend_gives_the_bits_of_the_stated_order() {
        let bits = |i: usize| crate::dropout::mix(3, i as u64);
        for n in (0..70).chain([384, 768, 1024]) {
            let vector: Vec<f32> = (0..n).map(|i| (bits(i) >> 40) as f32 / 1e6 - 8.0).collect();
            let bytes: Vec<i8> = (0..n).map(|i| bits(i + 5000) as i8).collect();
            let expected = product_and_square(Backend::Reference, &vector, &bytes);
            let exact: f64 = vector.iter().zip(&bytes).map(|(x, &b)| f64::from(*x) * f64::from(b)).sum();
            assert!((f64::from(expected.0) - exact).abs() <= 1e-5 * (1.0 + n as f64 * 1024.0), "{n}");
            assert_eq!(expected.1, bytes.iter().map(|&b| i32::from(b).pow(2) as u32).sum::<u32>());
            for backend in Backend::available() {
                let got = product_and_square(backend, &vector, &bytes);
                assert_eq!((got.0.to_bits(), got.1), (expected.0.to_bits(), expected.1), "{} {n}", backend.name());
            }
        }
    }

    #[test]
    fn longest_vectors_do_not_overflow() {
        let (vector, bytes) = (vec![1.0; 1 << 16], vec![i8::MIN; 1 << 16]);
        assert_eq!(product_and_square(Backend::active(), &vector, &bytes), (-((128 << 16) as f32), 1 << 30));
    }
}
