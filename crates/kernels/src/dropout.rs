//! Seeded dropout. Whether an element is dropped is a function of a key and its position, so a view is the same in every
//! batch, thread and backend.

use crate::dispatch::per_backend;

/// Dropout probability, and the scale of the elements that stay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    threshold: u32,
    scale: f32,
}

impl Rate {
    /// `p` in [0, 1).
    ///
    /// # Panics
    /// When `p` is outside of that range.
    pub fn new(p: f64) -> Self {
        assert!((0.0..1.0).contains(&p), "a dropout rate is in [0, 1), not {p}");
        Rate { threshold: (p * 4_294_967_296.0) as u32, scale: (1.0 / (1.0 - p)) as f32 }
    }
}

/// Mixes two numbers into a key (the finaliser of SplitMix64 over a Weyl step).
#[inline]
pub fn mix(key: u64, with: u64) -> u64 {
    let mut z = key ^ with.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

per_backend! {
    /// Drops elements of one row and scales the others. Element `i` depends on `key` and `i` alone.
    pub fn drop_row(row: &mut [f32], key: u64, rate: Rate) => drop_row_body;
}

#[inline(always)]
pub(crate) fn drop_row_body(row: &mut [f32], key: u64, rate: Rate) {
    let (low, high) = (key as u32, (key >> 32) as u32);
    for (i, v) in row.iter_mut().enumerate() {
        // Murmur3's 32-bit finaliser: two 32-bit multiplications per lane, which AVX2 has.
        let mut h = (i as u32).wrapping_mul(0x9E37_79B9) ^ low;
        h = (h ^ (h >> 16)).wrapping_mul(0x85EB_CA6B);
        h = (h ^ (h >> 13) ^ high).wrapping_mul(0xC2B2_AE35);
        h ^= h >> 16;
        let factor = if h >= rate.threshold { rate.scale } else { 0.0 };
        *v *= factor;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Backend;

    #[test]
    fn the_dropped_share_equals_the_rate_and_keys_are_independent() {
        let rate = Rate::new(0.3);
        let (n, rows) = (384, 2000);
        let masks: Vec<Vec<f32>> = (0..rows)
            .map(|r| {
                let mut row = vec![1.0; n];
                drop_row(Backend::active(), &mut row, mix(7, r), rate);
                row
            })
            .collect();
        let share = |f: &dyn Fn(usize, usize) -> bool| {
            let hits = (1..rows as usize).map(|r| (1..n).filter(|&i| f(r, i)).count()).sum::<usize>();
            hits as f64 / ((rows as usize - 1) * (n - 1)) as f64
        };
        // Standard error of a share of 0.3 over 766,000 draws: 5e-4.
        assert!((share(&|r, i| masks[r][i] == 0.0) - 0.3).abs() < 3e-3);
        assert!((share(&|r, i| masks[r][i] == 0.0 && masks[r][i - 1] == 0.0) - 0.09).abs() < 3e-3);
        assert!((share(&|r, i| masks[r][i] == 0.0 && masks[r - 1][i] == 0.0) - 0.09).abs() < 3e-3);
        assert_eq!(masks[0].iter().copied().fold(0.0, f32::max), (1.0 / 0.7f64) as f32);
    }

    #[test]
    fn every_backend_drops_the_same_elements() {
        for n in [0, 1, 15, 16, 17, 100] {
            let mut expected = vec![2.0; n];
            drop_row(Backend::Reference, &mut expected, 99, Rate::new(0.5));
            for backend in Backend::available() {
                let mut row = vec![2.0; n];
                drop_row(backend, &mut row, 99, Rate::new(0.5));
                assert_eq!(row, expected);
            }
        }
    }
}
