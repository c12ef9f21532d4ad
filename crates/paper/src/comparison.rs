//! Whether two methods differ: a bootstrap over queries and seeds, or, for cells that kept no queries, a test over seeds.

use strum::{Display, IntoStaticStr};
use train::random::{Purpose, Stream};

use crate::cell::Figures;

/// Two methods differ if a difference this large or larger has at most this probability by chance.
pub const LEVEL: f64 = 0.05;
/// Samples of queries and seeds.
const SAMPLES: usize = 2000;

/// P@100 of one method minus P@100 of another, on the same queries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// In points.
    pub difference: f64,
    /// Of 95 %.
    pub interval: [f64; 2],
    /// Two-sided.
    pub p: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Display, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Verdict {
    Above,
    Tie,
    Below,
}

impl Comparison {
    pub fn verdict(&self) -> Verdict {
        match self.difference {
            _ if self.p >= LEVEL => Verdict::Tie,
            d if d > 0.0 => Verdict::Above,
            _ => Verdict::Below,
        }
    }
}

/// Samples of the queries of a corpus, the same for every method.
pub struct Samples {
    // How often each query is in each sample: [SAMPLES, queries].
    counts: Vec<Vec<u16>>,
}

impl Samples {
    pub fn new(queries: usize) -> Self {
        let draw = |sample: u64| {
            let stream = Stream::new(0, Purpose::Sample, &[100, sample]);
            let mut counts = vec![0u16; queries];
            (0..queries as u64).for_each(|i| counts[stream.below(i, queries as u64) as usize] += 1);
            counts
        };
        Samples { counts: (0..SAMPLES as u64).map(draw).collect() }
    }

    /// P@100 of one run in every sample, from its hits per query. `scale` turns a mean number of hits into percent.
    pub fn of(&self, hits: &[u8], scale: f64) -> Vec<f64> {
        let of = |counts: &Vec<u16>| {
            let sum: u64 = counts.iter().zip(hits).map(|(&c, &h)| u64::from(c) * u64::from(h)).sum();
            sum as f64 * scale / hits.len() as f64
        };
        self.counts.iter().map(of).collect()
    }
}

/// The runs of a method in one cell of a table, one per seed.
pub struct Runs {
    means: Vec<f64>,
    // P@100 of every run in every sample; empty if a run kept no queries.
    sampled: Vec<Vec<f64>>,
}

impl Runs {
    pub fn new<'a>(
        runs: impl Iterator<Item = &'a Figures>,
        samples: impl Fn(usize) -> std::sync::Arc<Samples>,
    ) -> Self {
        let (mut means, mut sampled, mut whole) = (Vec::new(), Vec::new(), true);
        for figures in runs {
            means.push(figures.precision[2]);
            match figures.hits_scale() {
                Some(scale) => sampled.push(samples(figures.hits.len()).of(&figures.hits, scale)),
                None => whole = false,
            }
        }
        Runs { means, sampled: if whole { sampled } else { Vec::new() } }
    }

    /// This minus `other`; `None` where nothing can be said: no run, or single runs that kept no queries.
    pub fn minus(&self, other: &Runs) -> Option<Comparison> {
        if self.means.is_empty() || other.means.is_empty() {
            return None;
        }
        if self.sampled.is_empty() || other.sampled.is_empty() {
            return by_seeds(&self.means, &other.means);
        }
        let mut differences: Vec<f64> =
            (0..SAMPLES).map(|i| drawn(&self.sampled, i, 101) - drawn(&other.sampled, i, 102)).collect();
        let (not_above, not_below) =
            differences.iter().fold((0, 0), |(a, b), &d| (a + usize::from(d <= 0.0), b + usize::from(d >= 0.0)));
        differences.sort_by(f64::total_cmp);
        let at = |share: f64| differences[((SAMPLES - 1) as f64 * share).round() as usize];
        Some(Comparison {
            difference: mean(&self.means) - mean(&other.means),
            interval: [at(0.025), at(0.975)],
            p: (2.0 * (1 + not_above.min(not_below)) as f64 / (SAMPLES + 1) as f64).min(1.0),
        })
    }
}

/// The mean of runs drawn from all of them, in one sample of queries. One run less than there are is drawn: the mean of so many
/// varies as the mean of all runs does, while a draw of as many varies less. A single run has no variation to show.
fn drawn(sampled: &[Vec<f64>], sample: usize, side: u64) -> f64 {
    let runs = sampled.len();
    let stream = Stream::new(0, Purpose::Sample, &[side, sample as u64]);
    let draws = runs.max(2) as u64 - 1;
    (0..draws).map(|i| sampled[stream.below(i, runs as u64) as usize][sample]).sum::<f64>() / draws as f64
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Welch's test over seeds. It knows nothing of the queries, so it needs two runs of both methods.
fn by_seeds(a: &[f64], b: &[f64]) -> Option<Comparison> {
    if a.len() < 2 || b.len() < 2 {
        return None;
    }
    // The variance of a mean.
    let of_mean = |x: &[f64]| {
        let m = mean(x);
        x.iter().map(|v| (v - m).powi(2)).sum::<f64>() / (x.len() - 1) as f64 / x.len() as f64
    };
    let (va, vb, difference) = (of_mean(a), of_mean(b), mean(a) - mean(b));
    let error = (va + vb).sqrt();
    if error == 0.0 {
        let p = if difference == 0.0 { 1.0 } else { 0.0 };
        return Some(Comparison { difference, interval: [difference; 2], p });
    }
    let freedom = (va + vb).powi(2) / (va.powi(2) / (a.len() - 1) as f64 + vb.powi(2) / (b.len() - 1) as f64);
    // The half-width of the interval: where the two-sided probability falls to 5 %.
    let (mut low, mut high) = (0.0, 1e3);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if beyond(middle, freedom) > 0.05 { low = middle } else { high = middle }
    }
    let reach = low * error;
    let p = beyond(difference.abs() / error, freedom);
    Some(Comparison { difference, interval: [difference - reach, difference + reach], p })
}

/// Probability that Student's t lies beyond `t` on either side. With `t = sqrt(freedom) tan(angle)` its density is
/// `cos(angle)^(freedom - 1)`, which Simpson's rule integrates.
fn beyond(t: f64, freedom: f64) -> f64 {
    let integral = |end: f64| {
        const STEPS: usize = 400;
        let h = end / STEPS as f64;
        let at = |i: usize| (i as f64 * h).cos().max(0.0).powf(freedom - 1.0);
        let inner: f64 = (1..STEPS).map(|i| at(i) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
        (at(0) + inner + at(STEPS)) * h / 3.0
    };
    1.0 - integral((t / freedom.sqrt()).atan()) / integral(std::f64::consts::FRAC_PI_2)
}

/// `0.012`, or `< 0.001`.
pub fn probability(p: f64) -> String {
    if p < 0.001 { "< 0.001".into() } else { format!("{p:.3}") }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const QUERIES: usize = 800;

    /// A run whose queries have about `mean` hits, with noise of the query that all methods share and of the run's own.
    fn run(mean: f64, seed: u64) -> Figures {
        let uniform = |stream: Stream, i: u64| stream.below(i, 1000) as f64 / 1000.0 - 0.5;
        let (shared, own) = (Stream::new(0, Purpose::Init, &[]), Stream::new(seed, Purpose::Init, &[1]));
        let hits: Vec<u8> = (0..QUERIES as u64)
            .map(|i| (mean + 50.0 * uniform(shared, i) + 8.0 * uniform(own, i)).round().clamp(0.0, 100.0) as u8)
            .collect();
        let precision = hits.iter().map(|h| f64::from(*h)).sum::<f64>() / QUERIES as f64;
        Figures { precision: [0.0, 0.0, precision], hits, sizes: (5000, QUERIES), ..Figures::default() }
    }

    fn compare(a: &[Figures], b: &[Figures]) -> Option<Comparison> {
        let samples = Arc::new(Samples::new(QUERIES));
        let runs = |f: &[Figures]| Runs::new(f.iter(), |_| samples.clone());
        runs(a).minus(&runs(b))
    }

    #[test]
    fn equal_methods_tie_and_a_point_apart_differ() {
        let of = |mean: f64, seeds: std::ops::Range<u64>| seeds.map(|s| run(mean, s)).collect::<Vec<_>>();
        let tie = compare(&of(60.0, 0..3), &of(60.0, 3..6)).unwrap();
        assert_eq!(tie.verdict(), Verdict::Tie, "{tie:?}");
        assert!(tie.interval[0] < 0.0 && tie.interval[1] > 0.0);
        let above = compare(&of(61.0, 0..3), &of(60.0, 3..6)).unwrap();
        assert_eq!(above.verdict(), Verdict::Above, "{above:?}");
        let below = compare(&of(60.0, 3..6), &of(61.0, 0..3)).unwrap();
        assert_eq!(below.verdict(), Verdict::Below, "{below:?}");
        assert!((above.difference + below.difference).abs() < 1e-9);
        // The same runs give the same numbers.
        assert_eq!(above, compare(&of(61.0, 0..3), &of(60.0, 3..6)).unwrap());
    }

    #[test]
    fn seeds_that_differ_widen_the_interval() {
        // Both pairs of methods differ by a point on average. The seeds of the second are ten points apart.
        let near = compare(&[run(61.0, 0), run(61.0, 1)], &[run(60.0, 2), run(60.0, 3)]).unwrap();
        let far = compare(&[run(66.0, 0), run(56.0, 1)], &[run(65.0, 2), run(55.0, 3)]).unwrap();
        assert_eq!((near.verdict(), far.verdict()), (Verdict::Above, Verdict::Tie), "{near:?} {far:?}");
    }

    #[test]
    fn cells_without_queries_are_tested_over_seeds_or_not_at_all() {
        let bare = |p: f64| Figures { precision: [0.0, 0.0, p], ..Figures::default() };
        let all = |values: &[f64]| values.iter().map(|v| bare(*v)).collect::<Vec<_>>();
        assert_eq!(compare(&all(&[80.0]), &all(&[70.0])), None);
        assert_eq!(compare(&all(&[]), &all(&[70.0, 71.0])), None);
        // Means 80.1 and 79.6, deviations 0.3 and 0.1: t = 2.739, 2.44 degrees of freedom.
        let found = compare(&all(&[79.8, 80.1, 80.4]), &all(&[79.5, 79.6, 79.7])).unwrap();
        assert!((found.difference - 0.5).abs() < 1e-9 && (found.p - 0.0895).abs() < 2e-3, "{found:?}");
        assert_eq!(found.verdict(), Verdict::Tie);
        assert_eq!(compare(&all(&[79.9, 80.0, 80.1]), &all(&[75.0, 75.1, 75.2])).unwrap().verdict(), Verdict::Above);
    }

    #[test]
    fn student_probabilities_equal_known_quantiles() {
        for (t, freedom, p) in
            [(12.706, 1.0, 0.05), (4.303, 2.0, 0.05), (2.776, 4.0, 0.05), (1.98, 120.0, 0.05), (2.0, 10.0, 0.07339)]
        {
            assert!((beyond(t, freedom) - p).abs() < 2e-4, "{t} {freedom}: {}", beyond(t, freedom));
        }
    }
}
