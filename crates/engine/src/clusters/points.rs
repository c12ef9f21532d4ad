//! Decoded codes as points. A point is a codeword number per codebook; its vector is never built.

use kernels::dropout::mix;
use rayon::prelude::*;

use crate::model::{CodeShape, Codebooks};

/// Points per task.
const CHUNK: usize = 2048;

/// Codes of documents, read as the vectors that their codewords make up.
pub(crate) struct Points<'a> {
    codebooks: &'a Codebooks,
    /// Codeword numbers `[n, codebooks]`.
    codewords: Vec<u8>,
}

/// The nearest centres of a point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Nearest {
    pub centre: u16,
    /// Squared distances of the nearest and of the second nearest centre.
    pub distance: f32,
    pub second: f32,
}

/// Centres of clusters, `[centres, width]` with the width of a projected vector.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Centres {
    pub width: usize,
    pub values: Vec<f32>,
}

impl Centres {
    pub fn len(&self) -> usize {
        self.values.len() / self.width
    }

    pub fn row(&self, centre: usize) -> &[f32] {
        &self.values[centre * self.width..][..self.width]
    }
}

impl<'a> Points<'a> {
    /// Unpacks codes `[n, code_bytes]`.
    pub fn new(codebooks: &'a Codebooks, codes: &[u8]) -> Points<'a> {
        let shape = codebooks.shape();
        let unpack = |code: &[u8]| -> Vec<u8> {
            let largest = shape.codebook_size() - 1;
            (0..shape.num_codebooks()).map(|m| shape.codeword(code, m).min(largest) as u8).collect()
        };
        Points { codebooks, codewords: codes.par_chunks_exact(shape.code_bytes()).flat_map_iter(unpack).collect() }
    }

    /// At most `most` points, evenly spread.
    pub fn sample(&self, most: usize) -> Points<'a> {
        let (n, width) = (self.len(), self.shape().num_codebooks());
        let count = n.min(most);
        let codewords = (0..count).flat_map(|i| self.codewords[i * n / count * width..][..width].iter().copied());
        Points { codebooks: self.codebooks, codewords: codewords.collect() }
    }

    /// Two halves, drawn by the seed.
    pub fn halves(&self, seed: u64) -> (Points<'a>, Points<'a>) {
        let mut order: Vec<usize> = (0..self.len()).collect();
        order.sort_by_key(|&i| mix(seed, i as u64));
        let (one, other) = order.split_at(order.len() / 2);
        (self.select(one), self.select(other))
    }

    pub fn select(&self, places: &[usize]) -> Points<'a> {
        let codewords = places.iter().flat_map(|&i| self.point(i).iter().copied()).collect();
        Points { codebooks: self.codebooks, codewords }
    }

    pub fn codebooks(&self) -> &Codebooks {
        self.codebooks
    }

    pub fn shape(&self) -> CodeShape {
        self.codebooks.shape()
    }

    pub fn len(&self) -> usize {
        self.codewords.len() / self.shape().num_codebooks()
    }

    pub fn point(&self, i: usize) -> &[u8] {
        let width = self.shape().num_codebooks();
        &self.codewords[i * width..][..width]
    }

    /// The vector of a point, `[width]`.
    pub fn vector(&self, point: &[u8]) -> Vec<f32> {
        let (size, dim) = (self.shape().codebook_size(), self.shape().dim());
        let slice = |(m, &k): (usize, &u8)| &self.codebooks.values()[(m * size + usize::from(k)) * dim..][..dim];
        point.iter().enumerate().flat_map(slice).copied().collect()
    }

    /// The nearest centre of every point, the first of equally near ones.
    pub fn nearest(&self, centres: &Centres) -> Vec<Nearest> {
        let table = self.table(centres);
        let codebooks = self.shape().num_codebooks();
        let chunk = |codewords: &[u8]| -> Vec<Nearest> {
            let mut sums = vec![0.0; centres.len()];
            codewords.chunks_exact(codebooks).map(|point| table.nearest(point, &mut sums)).collect()
        };
        self.codewords.par_chunks(CHUNK * codebooks).flat_map_iter(chunk).collect()
    }

    /// The nearest centre of one point, the first of equally near ones. It builds no table.
    pub fn nearest_one(&self, point: &[u8], centres: &Centres) -> Nearest {
        let vector = self.vector(point);
        let dim = self.shape().dim();
        let mut best = Nearest { centre: 0, distance: f32::INFINITY, second: f32::INFINITY };
        for c in 0..centres.len() {
            // Summed by codebook, as the tables are.
            let slices = vector.chunks_exact(dim).zip(centres.row(c).chunks_exact(dim));
            let distance = slices.map(|(a, b)| kernels::squares::squared(a, b)).sum::<f32>();
            if distance < best.distance {
                best = Nearest { centre: c as u16, distance, second: best.distance };
            } else if distance < best.second {
                best.second = distance;
            }
        }
        best
    }

    /// Calls `with(point, nearest)` for every point, in any order, and returns the results in order. `nearest` are its `N` nearest
    /// centres, or all if there are fewer, with their squared distances, nearest first; equally near ones by number.
    pub fn map_nearest<const N: usize, T: Send>(
        &self,
        centres: &Centres,
        with: impl Fn(&[u8], &[(u16, f32)]) -> T + Sync + Send,
    ) -> Vec<T> {
        let table = self.table(centres);
        let codebooks = self.shape().num_codebooks();
        let count = N.min(centres.len());
        let chunk = |codewords: &[u8]| -> Vec<T> {
            let mut sums = vec![0.0; centres.len()];
            let one = |point: &[u8]| {
                let near: [(u16, f32); N] = table.several(point, &mut sums);
                with(point, &near[..count])
            };
            codewords.chunks_exact(codebooks).map(one).collect()
        };
        self.codewords.par_chunks(CHUNK * codebooks).flat_map_iter(chunk).collect()
    }

    /// Squared distances of all codewords to the slices of all centres.
    fn table(&self, centres: &Centres) -> Table {
        let (size, dim) = (self.shape().codebook_size(), self.shape().dim());
        let mut values = Vec::with_capacity(self.codebooks.values().len() / dim * centres.len());
        for (i, codeword) in self.codebooks.values().chunks_exact(dim).enumerate() {
            let slice = i / size * dim..(i / size + 1) * dim;
            let distance = |c| kernels::squares::squared(codeword, &centres.row(c)[slice.clone()]);
            values.extend((0..centres.len()).map(distance));
        }
        Table { size, centres: centres.len(), values }
    }

    /// How many points of each cluster have each codeword: `[centres, codebooks, codewords]`. Whole numbers, so the sum is the
    /// same in any order of threads.
    pub fn histograms(&self, nearest: &[Nearest], centres: usize) -> Vec<u32> {
        let (codebooks, size) = (self.shape().num_codebooks(), self.shape().codebook_size());
        let empty = || vec![0u32; centres * codebooks * size];
        let count = |mut counts: Vec<u32>, (points, nearest): (&[u8], &[Nearest])| {
            for (point, near) in points.chunks_exact(codebooks).zip(nearest) {
                let own = &mut counts[usize::from(near.centre) * codebooks * size..][..codebooks * size];
                point.iter().enumerate().for_each(|(m, &k)| own[m * size + usize::from(k)] += 1);
            }
            counts
        };
        let add = |mut a: Vec<u32>, b: Vec<u32>| {
            a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
            a
        };
        // Large parts: each has its own counts.
        let part = (1 << 16).max(self.len().div_ceil(rayon::current_num_threads()));
        let parts = self.codewords.par_chunks(part * codebooks).zip(nearest.par_chunks(part));
        parts.map(|part| count(empty(), part)).reduce(empty, add)
    }

    /// Means of clusters by their histograms; an empty cluster keeps its centre.
    pub fn means(&self, histograms: &[u32], old: &Centres) -> Centres {
        let (codebooks, size, dim) = (self.shape().num_codebooks(), self.shape().codebook_size(), self.shape().dim());
        let mut centres = old.clone();
        for (c, counts) in histograms.chunks_exact(codebooks * size).enumerate() {
            let total: u32 = counts[..size].iter().sum();
            if total == 0 {
                continue;
            }
            let mut sums = vec![0.0f64; codebooks * dim];
            for (i, (&count, codeword)) in counts.iter().zip(self.codebooks.values().chunks_exact(dim)).enumerate() {
                let sums = &mut sums[i / size * dim..][..dim];
                sums.iter_mut().zip(codeword).for_each(|(s, &v)| *s += f64::from(count) * f64::from(v));
            }
            let row = &mut centres.values[c * old.width..][..old.width];
            row.iter_mut().zip(sums).for_each(|(x, s)| *x = (s / f64::from(total)) as f32);
        }
        centres
    }
}

/// Distances of codewords to slices of centres: `[codebooks, codewords, centres]`. The centres of a codeword lie side by side,
/// so the distances of a point to all centres are sums of rows.
struct Table {
    size: usize,
    centres: usize,
    values: Vec<f32>,
}

impl Table {
    fn sum(&self, point: &[u8], sums: &mut [f32]) {
        sums.fill(0.0);
        for (m, &k) in point.iter().enumerate() {
            let row = &self.values[(m * self.size + usize::from(k)) * self.centres..][..self.centres];
            sums.iter_mut().zip(row).for_each(|(sum, d)| *sum += d);
        }
    }

    /// The `N` nearest centres; the last ones are infinitely far if there are fewer.
    fn several<const N: usize>(&self, point: &[u8], sums: &mut [f32]) -> [(u16, f32); N] {
        self.sum(point, sums);
        let mut near = [(0, f32::INFINITY); N];
        for (c, &distance) in sums.iter().enumerate() {
            if distance < near[N - 1].1 {
                let mut at = N - 1;
                while at > 0 && distance < near[at - 1].1 {
                    near[at] = near[at - 1];
                    at -= 1;
                }
                near[at] = (c as u16, distance);
            }
        }
        near
    }

    fn nearest(&self, point: &[u8], sums: &mut [f32]) -> Nearest {
        self.sum(point, sums);
        let mut best = Nearest { centre: 0, distance: f32::INFINITY, second: f32::INFINITY };
        for (c, &distance) in sums.iter().enumerate() {
            if distance < best.distance {
                best = Nearest { centre: c as u16, distance, second: best.distance };
            } else if distance < best.second {
                best.second = distance;
            }
        }
        best
    }
}
