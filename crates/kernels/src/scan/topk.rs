//! The best `k` under one total order, so that every scan strategy gives the same result.

use std::cmp::Ordering;

/// A document found by the scan. Neighbours are ordered by distance, then by key.
#[derive(Clone, Copy, Debug)]
pub struct Neighbour {
    /// Sum of the query's distance table over the document's code, in codebook order, in `f32`.
    pub distance: f32,
    /// The document's key: its position, or the key that the blocks give it.
    pub key: u32,
}

impl Ord for Neighbour {
    fn cmp(&self, other: &Self) -> Ordering {
        self.distance.total_cmp(&other.distance).then(self.key.cmp(&other.key))
    }
}

impl PartialOrd for Neighbour {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Neighbour {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Neighbour {}

impl Neighbour {
    /// A number that compares as the neighbour does.
    fn packed(self) -> u64 {
        let bits = self.distance.to_bits();
        // total_cmp: negative numbers in reverse, below the others.
        let rising = bits ^ if bits >> 31 == 1 { u32::MAX } else { 1 << 31 };
        u64::from(rising) << 32 | u64::from(self.key)
    }

    fn unpacked(packed: u64) -> Self {
        let rising = (packed >> 32) as u32;
        let bits = rising ^ if rising >> 31 == 1 { 1 << 31 } else { u32::MAX };
        Neighbour { distance: f32::from_bits(bits), key: packed as u32 }
    }
}

/// Collects the `k` smallest neighbours in the order (distance, key), for every order of arrival.
///
/// Newcomers are appended unsorted until there are `2 k`, then the better half stays: a few nanoseconds per newcomer, where a
/// heap of 100 took about fifty.
#[derive(Clone, Debug)]
pub struct TopK {
    k: usize,
    // Exclusive upper bound of a newcomer: the packed worst of the last better half, or the first value beyond the ceiling.
    upper: u64,
    // Inclusive lower bound of a newcomer: the start of the page.
    lower: u64,
    limit: f32,
    entries: Vec<u64>,
    effort: Effort,
}

/// Work done to fill a collector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effort {
    /// Blocks whose byte sums were computed.
    pub blocks: usize,
    /// Documents whose distance was summed in `f32`.
    pub measured: usize,
}

impl std::ops::AddAssign for Effort {
    fn add_assign(&mut self, other: Effort) {
        self.blocks += other.blocks;
        self.measured += other.measured;
    }
}

impl TopK {
    /// Collects up to `k` neighbours; none when `k` is zero.
    pub fn new(k: usize) -> Self {
        TopK::below(k, f32::INFINITY)
    }

    /// Collects up to `k` neighbours no farther than `ceiling`, inclusive. A ceiling known from another segment or from a sample
    /// saves the scan the documents that cannot matter.
    pub fn below(k: usize, ceiling: f32) -> Self {
        let upper = if k == 0 { 0 } else { Neighbour { distance: ceiling, key: u32::MAX }.packed().saturating_add(1) };
        // A request for all documents may have a k far above the size of the index: memory grows with the entries.
        let entries = Vec::with_capacity(k.min(1024) * 2);
        TopK { k, upper, lower: 0, limit: ceiling, entries, effort: Effort::default() }
    }

    /// Excludes neighbours before `first` in the order: those of earlier pages.
    pub fn starting(mut self, first: Neighbour) -> Self {
        self.lower = first.packed();
        self
    }

    /// Adds a neighbour if it may be among the best. Returns whether the limit fell.
    #[inline]
    pub fn push(&mut self, neighbour: Neighbour) -> bool {
        let packed = neighbour.packed();
        if packed >= self.upper || packed < self.lower {
            return false;
        }
        self.entries.push(packed);
        if self.entries.len() / 2 < self.k {
            return false;
        }
        self.shrink();
        true
    }

    /// Whether the collector would accept the neighbour; if not, it rejects larger keys at this distance too.
    #[inline]
    pub(super) fn may_keep(&self, neighbour: Neighbour) -> bool {
        neighbour.packed() < self.upper
    }

    /// Drops all but the best `k`.
    #[cold]
    fn shrink(&mut self) {
        let (_, worst, _) = self.entries.select_nth_unstable(self.k - 1);
        self.upper = *worst;
        self.limit = Neighbour::unpacked(*worst).distance;
        self.entries.truncate(self.k);
    }

    /// Lowers the limit to the worst of the current best `k`, if there are `k`.
    pub fn settle(&mut self) {
        if self.k > 0 && self.entries.len() > self.k {
            self.shrink();
        } else if self.k > 0 && self.entries.len() == self.k {
            let worst = *self.entries.iter().max().expect("k entries");
            self.upper = worst;
            self.limit = Neighbour::unpacked(worst).distance;
        }
    }

    /// The distance that a newcomer must not exceed: first the ceiling, later that of the worst of `k`.
    #[inline]
    pub fn limit(&self) -> f32 {
        self.limit
    }

    /// Whether there are at least `k` entries.
    pub fn is_full(&self) -> bool {
        self.entries.len() >= self.k
    }

    pub fn k(&self) -> usize {
        self.k
    }

    pub fn effort(&self) -> Effort {
        self.effort
    }

    pub(super) fn add_effort(&mut self, effort: Effort) {
        self.effort += effort;
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The neighbours, best first.
    pub fn into_sorted(mut self) -> Vec<Neighbour> {
        self.entries.sort_unstable();
        self.entries.truncate(self.k);
        self.entries.into_iter().map(Neighbour::unpacked).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_distances_are_ordered_by_key_for_any_order_of_arrival() {
        let all: Vec<Neighbour> =
            (0..200u32).map(|i| Neighbour { distance: (i % 5) as f32, key: (i * 77) % 200 }).collect();
        let mut sorted = all.clone();
        sorted.sort();
        let odd = [f32::INFINITY, -0.0, 0.0, -1.5, f32::MAX, f32::MIN_POSITIVE, f32::NEG_INFINITY];
        let odd: Vec<Neighbour> =
            odd.iter().enumerate().map(|(i, &d)| Neighbour { distance: d, key: i as u32 }).collect();
        for (a, b) in odd.iter().flat_map(|a| odd.iter().map(move |b| (a, b))) {
            assert_eq!(a.packed().cmp(&b.packed()), a.cmp(b));
            assert_eq!(Neighbour::unpacked(a.packed()).distance.to_bits(), a.distance.to_bits());
        }
        for k in [0, 1, 39, 40, 41, 200, 1000] {
            let mut forward = TopK::new(k);
            let mut backward = TopK::new(k);
            for &n in &all {
                forward.push(n);
            }
            for &n in all.iter().rev() {
                backward.push(n);
            }
            assert_eq!(forward.into_sorted(), sorted[..k.min(200)]);
            assert_eq!(backward.into_sorted(), sorted[..k.min(200)]);
        }
    }
}
