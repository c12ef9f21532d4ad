//! Counter-based randomness: a draw is a function of the seed and its address, never of earlier draws. So a killed run
//! resumes with the same numbers, and threads cannot change them.

/// 2^64 over the golden ratio, odd: the step between the counters of neighbouring draws.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The use of a stream. The numbers decide every trained model: never change one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Init = 1,
    /// Order of the documents in an epoch.
    Shuffle = 2,
    /// Gumbel noise of the soft code.
    Gumbel = 3,
    /// The two views drawn for a document, or their noise.
    Views = 4,
    /// Documents held out for validation.
    HeldOut = 5,
    /// Order of the database in an evaluation.
    Database = 6,
    /// Documents the noise model is fitted on.
    Sample = 7,
    /// Pieces of documents that a query encoder learns from.
    Pieces = 8,
    /// Every draw of the other methods; the first number of the address tells them apart.
    Method = 16,
}

/// Independent draws, addressed by number.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    key: u64,
}

/// The finaliser of SplitMix64: every input bit changes every output bit with probability about one half.
#[inline]
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Stream {
    /// The stream of `purpose` at `address`, for example epoch and document.
    pub fn new(seed: u64, purpose: Purpose, address: &[u64]) -> Self {
        let mut key = mix(seed ^ GOLDEN);
        for (i, part) in std::iter::once(&(purpose as u64)).chain(address).enumerate() {
            key = mix(key ^ mix(part.wrapping_add(GOLDEN.wrapping_mul(i as u64 + 1))));
        }
        Stream { key }
    }

    /// The key that decides all draws. A GPU draws from it.
    pub fn key(self) -> u64 {
        self.key
    }

    #[inline]
    pub fn bits(self, number: u64) -> u64 {
        mix(self.key.wrapping_add(number.wrapping_add(1).wrapping_mul(GOLDEN)))
    }

    /// Uniform in `[0, n)`.
    pub fn below(self, number: u64, n: u64) -> u64 {
        ((u128::from(self.bits(number)) * u128::from(n)) >> 64) as u64
    }

    /// Two different numbers in `[0, n)`, from the draws 0 and 1.
    pub fn two_below(self, n: u64) -> (u64, u64) {
        let one = self.below(0, n);
        let other = self.below(1, n - 1);
        (one, other + u64::from(other >= one))
    }

    /// Uniform in [0, 1) with 24 bits each; 64 random bits give two values.
    pub fn uniform_f32(self, out: &mut [f32]) {
        const SCALE: f32 = 1.0 / (1 << 24) as f32;
        for (i, pair) in out.chunks_mut(2).enumerate() {
            let bits = self.bits(i as u64);
            pair[0] = (bits >> 40) as f32 * SCALE;
            if let Some(second) = pair.get_mut(1) {
                *second = ((bits >> 8) & 0xff_ffff) as f32 * SCALE;
            }
        }
    }

    /// Uniform in [0, 1) with 53 bits each.
    pub fn uniform_f64(self, out: &mut [f64]) {
        for (i, value) in out.iter_mut().enumerate() {
            *value = (self.bits(i as u64) >> 11) as f64 / (1u64 << 53) as f64;
        }
    }

    pub fn normal(self, out: &mut [f32]) {
        let backend = kernels::Backend::active();
        let even = out.len() / 2 * 2;
        self.uniform_f32(&mut out[..even]);
        kernels::elementwise::normal(backend, &mut out[..even]);
        if even < out.len() {
            let mut last = [0.0; 2];
            Stream { key: mix(self.key ^ GOLDEN) }.uniform_f32(&mut last);
            kernels::elementwise::normal(backend, &mut last);
            out[even] = last[0];
        }
    }

    /// The numbers below `n` in random order.
    pub fn permutation(self, n: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..u32::try_from(n).expect("fewer than 2^32 documents")).collect();
        for i in (1..n).rev() {
            order.swap(i, self.below(i as u64, i as u64 + 1) as usize);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_different_addresses_or_purposes_share_no_draw() {
        let a = Stream::new(0, Purpose::Views, &[1, 2]);
        let same = Stream::new(0, Purpose::Views, &[1, 2]);
        assert_eq!(a.bits(7), same.bits(7));
        for other in [
            Stream::new(1, Purpose::Views, &[1, 2]),
            Stream::new(0, Purpose::Views, &[2, 1]),
            Stream::new(0, Purpose::Views, &[1, 2, 0]),
            Stream::new(0, Purpose::Gumbel, &[1, 2]),
        ] {
            let equal = (0..1000).filter(|&i| a.bits(i) == other.bits(i)).count();
            assert_eq!(equal, 0);
        }
    }

    #[test]
    fn uniform_draws_are_even_and_uncorrelated() {
        let mut u = vec![0.0f32; 100_001];
        Stream::new(3, Purpose::Gumbel, &[]).uniform_f32(&mut u);
        let mut cells = [0usize; 16];
        u.iter().for_each(|&x| cells[(x * 16.0) as usize] += 1);
        // Chi-square with 15 degrees of freedom stays below 45 in all but one of 10,000 streams.
        let expected = u.len() as f64 / 16.0;
        let chi: f64 = cells.iter().map(|&c| (c as f64 - expected).powi(2) / expected).sum();
        assert!(chi < 45.0, "{chi}");
        // Neighbours are not correlated.
        let covariance: f64 = u.windows(2).map(|w| f64::from(w[0] - 0.5) * f64::from(w[1] - 0.5)).sum::<f64>();
        assert!((covariance / u.len() as f64 * 12.0).abs() < 0.015);
    }

    #[test]
    fn a_permutation_holds_every_number_once() {
        let order = Stream::new(0, Purpose::Shuffle, &[4]).permutation(1000);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1000).collect::<Vec<u32>>());
        assert_ne!(order, sorted);
        assert_ne!(order, Stream::new(0, Purpose::Shuffle, &[5]).permutation(1000));
    }

    #[test]
    fn odd_number_of_normal_draws_fills_every_value() {
        let mut x = vec![f32::NAN; 10_001];
        Stream::new(0, Purpose::Init, &[]).normal(&mut x);
        let square: f64 = x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / x.len() as f64;
        assert!(x.iter().all(|v| v.is_finite()) && (square - 1.0).abs() < 0.06, "{square}");
    }
}
