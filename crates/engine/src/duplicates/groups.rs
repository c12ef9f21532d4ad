//! Groups of documents by union-find.

/// Disjoint sets of the places `0..len`. The root of a set is its smallest place.
pub(super) struct Groups {
    parents: Vec<u32>,
}

impl Groups {
    pub fn new(len: usize) -> Groups {
        Groups { parents: (0..len as u32).collect() }
    }

    /// The smallest place of the set, without shortening paths, so that threads can ask.
    pub fn root(&self, mut place: u32) -> u32 {
        while self.parents[place as usize] != place {
            place = self.parents[place as usize];
        }
        place
    }

    fn shorten(&mut self, mut place: u32) -> u32 {
        while self.parents[place as usize] != place {
            let above = self.parents[place as usize];
            self.parents[place as usize] = self.parents[above as usize];
            place = above;
        }
        place
    }

    pub fn join(&mut self, a: u32, b: u32) {
        let (a, b) = (self.shorten(a), self.shorten(b));
        // The smaller place stays the root: the representative of a group is its first document.
        self.parents[a.max(b) as usize] = a.min(b);
    }

    /// The sets of two or more places, each in rising order, ordered by their first.
    pub fn several(&mut self) -> Vec<Vec<u32>> {
        let roots: Vec<u32> = (0..self.parents.len() as u32).map(|place| self.shorten(place)).collect();
        let mut sizes = vec![0u32; roots.len()];
        roots.iter().for_each(|&root| sizes[root as usize] += 1);
        let mut sets: Vec<Vec<u32>> = Vec::new();
        let mut set_of = std::collections::HashMap::new();
        for (place, &root) in roots.iter().enumerate().filter(|(_, root)| sizes[**root as usize] > 1) {
            let set = *set_of.entry(root).or_insert_with(|| {
                sets.push(Vec::new());
                sets.len() - 1
            });
            sets[set].push(place as u32);
        }
        sets
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Connected components by repeated relabelling.
    fn brute(len: usize, pairs: &[(u32, u32)]) -> Vec<Vec<u32>> {
        let mut labels: Vec<u32> = (0..len as u32).collect();
        while let Some(&(a, b)) = pairs.iter().find(|(a, b)| labels[*a as usize] != labels[*b as usize]) {
            let (from, to) = (labels[a as usize].max(labels[b as usize]), labels[a as usize].min(labels[b as usize]));
            labels.iter_mut().filter(|label| **label == from).for_each(|label| *label = to);
        }
        let set = |label: u32| (0..len as u32).filter(|&p| labels[p as usize] == label).collect::<Vec<_>>();
        (0..len as u32).map(set).filter(|set| set.len() > 1).collect()
    }

    proptest! {
        #[test]
        fn groups_are_the_connected_components(pairs in prop::collection::vec((0u32..40, 0u32..40), 0..60)) {
            let mut groups = Groups::new(40);
            pairs.iter().for_each(|&(a, b)| groups.join(a, b));
            let expected = brute(40, &pairs);
            for set in &expected {
                prop_assert!(set.iter().all(|&place| groups.root(place) == set[0]));
            }
            prop_assert_eq!(groups.several(), expected);
        }
    }
}
