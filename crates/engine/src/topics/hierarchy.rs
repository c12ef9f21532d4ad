//! A hierarchy over clusters, by Ward's method: the two whose union raises the squared error least are merged first.

use crate::clusters::points::Centres;

/// Two clusters as one. Clusters have the numbers `0..n`, the first merge makes cluster `n`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Merge {
    pub children: [usize; 2],
    pub documents: u64,
    /// How much the merge raises the sum of squared distances to the centres.
    pub cost: f64,
}

/// All merges, down to one cluster. Equal costs go by cluster number.
pub(super) fn merges(centres: &Centres, documents: &[u64]) -> Vec<Merge> {
    let mut live: Vec<(usize, u64, Vec<f64>)> =
        (0..centres.len()).map(|c| (c, documents[c], centres.row(c).iter().map(|&x| f64::from(x)).collect())).collect();
    let cost = |a: &(usize, u64, Vec<f64>), b: &(usize, u64, Vec<f64>)| {
        let (n, m) = (a.1 as f64, b.1 as f64);
        let squared: f64 = a.2.iter().zip(&b.2).map(|(x, y)| (x - y) * (x - y)).sum();
        if n + m > 0.0 { n * m / (n + m) * squared } else { 0.0 }
    };
    // Costs of all pairs; a merge replaces two rows by one.
    let mut costs: Vec<Vec<f64>> = live.iter().map(|a| live.iter().map(|b| cost(a, b)).collect()).collect();
    let mut merges = Vec::new();
    while live.len() > 1 {
        let pairs = (0..live.len()).flat_map(|i| (i + 1..live.len()).map(move |j| (i, j)));
        let (i, j) = pairs.min_by(|a, b| costs[a.0][a.1].total_cmp(&costs[b.0][b.1])).expect("two clusters");
        let (second, first) = (live.remove(j), live.remove(i));
        let total = first.1 + second.1;
        merges.push(Merge { children: [first.0, second.0], documents: total, cost: costs[i][j] });
        let mean = |(x, y): (&f64, &f64)| (first.1 as f64 * x + second.1 as f64 * y) / total.max(1) as f64;
        let joined = (centres.len() + merges.len() - 1, total, first.2.iter().zip(&second.2).map(mean).collect());
        for at in [j, i] {
            costs.remove(at);
            costs.iter_mut().for_each(|row| _ = row.remove(at));
        }
        let new: Vec<f64> = live.iter().map(|other| cost(&joined, other)).collect();
        costs.iter_mut().zip(&new).for_each(|(row, &c)| row.push(c));
        costs.push(new.into_iter().chain([0.0]).collect());
        live.push(joined);
    }
    merges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_clusters_merge_first_and_documents_add_up() {
        // Two pairs on a line: 0, 1 and 10, 12.
        let centres = Centres { width: 1, values: vec![0.0, 10.0, 1.0, 12.0] };
        let merges = merges(&centres, &[5, 5, 5, 5]);
        assert_eq!(merges.len(), 3);
        assert_eq!((merges[0].children, merges[0].documents), ([0, 2], 10));
        assert_eq!(merges[1].children, [1, 3]);
        assert_eq!((merges[2].children, merges[2].documents), ([4, 5], 20));
        assert_eq!(merges[0].cost, 2.5);
        assert!(merges.is_sorted_by(|a, b| a.cost <= b.cost));
        assert!(super::merges(&Centres { width: 1, values: vec![1.0] }, &[3]).is_empty());
    }
}
