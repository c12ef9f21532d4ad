//! Which documents meet in a step: queries, drawn without repetition, and a pool of random documents and float neighbours.

use engine::{Matrix, Progress, Result};
use rayon::prelude::*;

use crate::float;
use crate::random::{Purpose, Stream};

/// Float neighbours known of each document.
const KNOWN: usize = 200;
/// First number of the addresses of draws.
const ADDRESS: u64 = 20;

/// The nearest documents of every document by cosine, nearest first, without itself.
pub struct Neighbours {
    each: usize,
    // [documents, each]
    lists: Vec<u32>,
}

impl Neighbours {
    /// Exact, by blocked products: for `n` documents of `d` values `n^2 d` multiplications.
    pub fn find(documents: &Matrix, progress: &dyn Progress) -> Result<Self> {
        let each = KNOWN.min(documents.rows() - 1);
        let found = float::search(documents, documents, each + 1, progress)?.cosine;
        let without_own = |(own, list): (usize, Vec<u32>)| {
            list.into_iter().filter(move |&other| other as usize != own).take(each).collect::<Vec<u32>>()
        };
        let lists: Vec<Vec<u32>> = found.into_par_iter().enumerate().map(without_own).collect();
        Ok(Neighbours { each, lists: lists.concat() })
    }

    fn of(&self, document: u32) -> &[u32] {
        &self.lists[document as usize * self.each..][..self.each]
    }
}

/// Draws queries and random documents of every step from seed and step number alone.
#[derive(Clone, Copy, Debug)]
pub struct RandomDraws {
    pub seed: u64,
    pub documents: usize,
    /// Queries per step.
    pub batch: usize,
    /// Random documents of a step, the queries' own among them.
    pub pool: usize,
}

/// The documents of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct RandomDrawn {
    /// Queries, each another document.
    pub queries: Vec<u32>,
    /// The queries' documents and other random ones, in order.
    pub pool: Vec<u32>,
}

impl RandomDraws {
    /// Steps in which every document but a remainder is a query once.
    pub fn steps_per_pass(&self) -> usize {
        (self.documents / self.batch).max(1)
    }

    pub fn step(&self, number: usize) -> RandomDrawn {
        let (pass, place) = (number / self.steps_per_pass(), number % self.steps_per_pass());
        let order = Stream::new(self.seed, Purpose::Method, &[ADDRESS, pass as u64]).permutation(self.documents);
        let first = place * self.batch;
        let last = (first + self.batch).min(self.documents);
        // The next documents of the same permutation are as random as the queries.
        let count = self.pool.max(last - first).min(self.documents);
        let mut pool: Vec<u32> = order.iter().cycle().skip(first).take(count).copied().collect();
        pool.sort_unstable();
        RandomDrawn { queries: order[first..last].to_vec(), pool }
    }
}

/// The documents of a step with neighbours.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawn {
    /// Queries, each another document.
    pub queries: Vec<u32>,
    /// The queries' documents, then neighbours of the queries; both in order, each document once.
    pub pool: Vec<u32>,
}

/// Draws the documents of every step from seed and step number alone.
pub struct Draws {
    pub random: RandomDraws,
    /// Neighbours drawn for each query.
    pub per_query: usize,
}

impl Draws {
    pub fn step(&self, number: usize, neighbours: &Neighbours) -> Drawn {
        let RandomDrawn { queries, pool: random } = self.random.step(number);
        let mut pool = Vec::with_capacity(queries.len() * self.per_query);
        for &query in &queries {
            let address = [ADDRESS + 1, number as u64, u64::from(query)];
            let stream = Stream::new(self.random.seed, Purpose::Method, &address);
            let mut draws = vec![0.0f32; self.per_query];
            stream.uniform_f32(&mut draws);
            let list = neighbours.of(query);
            // The square draws towards the near ones: half of the draws come from the first quarter.
            pool.extend(draws.iter().map(|u| list[(u * u * list.len() as f32) as usize]));
        }
        pool.retain(|document| random.binary_search(document).is_err());
        pool.sort_unstable();
        pool.dedup();
        Drawn { queries, pool: [random, pool].concat() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::NoProgress;

    #[test]
    fn pools_hold_random_and_near_documents_and_every_document_is_a_query() {
        // Documents on a circle: the neighbours of i are i - 1, i + 1, i - 2, ...
        let angle = |i: usize| i as f32 / 1000.0 * std::f32::consts::TAU;
        let circle = Matrix::from_vec(2, (0..1000).flat_map(|i| [angle(i).cos(), angle(i).sin()]).collect());
        let neighbours = Neighbours::find(&circle, &NoProgress).unwrap();
        let random = RandomDraws { seed: 3, documents: 1000, batch: 100, pool: 200 };
        let draws = Draws { random, per_query: 4 };
        let mut seen = Vec::new();
        for step in 0..random.steps_per_pass() {
            let drawn = draws.step(step, &neighbours);
            assert_eq!(drawn, draws.step(step, &neighbours));
            let (random, near) = drawn.pool.split_at(200);
            assert_eq!(random, draws.random.step(step).pool, "the random documents come first");
            assert!(random.len() == 200 && random.is_sorted_by(|a, b| a < b) && near.is_sorted_by(|a, b| a < b));
            assert!(near.iter().all(|n| random.binary_search(n).is_err()));
            assert!(drawn.queries.iter().all(|q| random.binary_search(q).is_ok()));
            let distance = |a: u32, b: u32| (i64::from(a) - i64::from(b)).rem_euclid(1000);
            for document in near {
                let near = drawn.queries.iter().map(|q| distance(*q, *document).min(distance(*document, *q))).min();
                assert!(near.unwrap() <= 101, "{document} is no neighbour of a query");
            }
            seen.extend(drawn.queries);
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..1000).collect::<Vec<u32>>());
    }
}
