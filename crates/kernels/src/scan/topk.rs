//! The best `k` under one total order, so that every way of scanning gives the same answer.

use std::cmp::Ordering;

/// A document the scan kept: its distance, and the key by which equal distances are ordered.
#[derive(Clone, Copy, Debug)]
pub struct Neighbour {
    /// Sum of the query's table over the document's code, in book order, in `f32`.
    pub distance: f32,
    /// The document's key: its position, or what the blocks' owner gave for it.
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

/// Collects the `k` least neighbours in the order (distance, key), whatever the order they come in.
///
/// Newcomers are set down unsorted until there are twice as many as wanted, then the better half is kept: a few
/// nanoseconds a newcomer, where a heap of 100 took about fifty.
#[derive(Clone, Debug)]
pub struct TopK {
    k: usize,
    // What a newcomer must stay below: the packed worst of the last better half, or the first beyond the ceiling.
    bar: u64,
    // What a newcomer must reach: the first of the order that is wanted.
    floor: u64,
    limit: f32,
    kept: Vec<u64>,
    effort: Effort,
}

/// What filling a collector cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effort {
    /// Blocks whose documents were looked at through their bytes.
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
    /// Room for `k`; nothing is kept when `k` is zero.
    pub fn new(k: usize) -> Self {
        TopK::below(k, f32::INFINITY)
    }

    /// Room for `k` of which none is farther than `ceiling`: what is known from elsewhere (another part of the
    /// documents, a sample) spares this scan the documents that cannot matter. A distance equal to the ceiling stays.
    pub fn below(k: usize, ceiling: f32) -> Self {
        let bar = if k == 0 { 0 } else { Neighbour { distance: ceiling, key: u32::MAX }.packed().saturating_add(1) };
        // A user may ask for "all" with a number far above the index: memory follows what is found.
        let kept = Vec::with_capacity(k.min(1024) * 2);
        TopK { k, bar, floor: 0, limit: ceiling, kept, effort: Effort::default() }
    }

    /// Leaves out what comes before `first` in the order: the page before.
    pub fn starting(mut self, first: Neighbour) -> Self {
        self.floor = first.packed();
        self
    }

    /// Takes a neighbour if it may be among the best. Returns whether the limit fell.
    #[inline]
    pub fn push(&mut self, neighbour: Neighbour) -> bool {
        let packed = neighbour.packed();
        if packed >= self.bar || packed < self.floor {
            return false;
        }
        self.kept.push(packed);
        if self.kept.len() / 2 < self.k {
            return false;
        }
        self.shrink();
        true
    }

    /// Whether a neighbour, or one of its distance with a greater key, would be kept now.
    #[inline]
    pub(super) fn may_keep(&self, neighbour: Neighbour) -> bool {
        neighbour.packed() < self.bar
    }

    /// Keeps the better half.
    #[cold]
    fn shrink(&mut self) {
        let (_, worst, _) = self.kept.select_nth_unstable(self.k - 1);
        self.bar = *worst;
        self.limit = Neighbour::unpacked(*worst).distance;
        self.kept.truncate(self.k);
    }

    /// Brings the limit down to the worst of the present best `k`, if there are so many.
    pub fn settle(&mut self) {
        if self.k > 0 && self.kept.len() > self.k {
            self.shrink();
        } else if self.k > 0 && self.kept.len() == self.k {
            let worst = *self.kept.iter().max().expect("k of them");
            self.bar = worst;
            self.limit = Neighbour::unpacked(worst).distance;
        }
    }

    /// The distance a newcomer must not exceed: at first the ceiling, later the worst of `k`.
    #[inline]
    pub fn limit(&self) -> f32 {
        self.limit
    }

    /// Whether `k` are there.
    pub fn is_full(&self) -> bool {
        self.kept.len() >= self.k
    }

    /// How many were asked for.
    pub fn k(&self) -> usize {
        self.k
    }

    /// What it cost so far.
    pub fn effort(&self) -> Effort {
        self.effort
    }

    /// Adds to what it cost.
    pub(super) fn spend(&mut self, effort: Effort) {
        self.effort += effort;
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// The neighbours, best first.
    pub fn into_sorted(mut self) -> Vec<Neighbour> {
        self.kept.sort_unstable();
        self.kept.truncate(self.k);
        self.kept.into_iter().map(Neighbour::unpacked).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_distances_go_by_key_whatever_the_order_of_arrival() {
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
