//! Views of user vectors. There is no encoder here, so dropout cannot give the views.

use engine::{Error, Result};
use rayon::prelude::*;

use super::{Draw, NoiseModel, Views};
use crate::random::{Purpose, Stream};

/// User vectors, borrowed from the caller, and their views.
pub struct UserVectorViews<'a> {
    clean: &'a [f32],
    width: usize,
    kind: Kind<'a>,
    fingerprint: String,
}

enum Kind<'a> {
    Noise(NoiseModel),
    Given(Vec<&'a [f32]>),
}

impl<'a> UserVectorViews<'a> {
    /// Views are the vectors `clean [n, width]` plus noise of `scale` times their standard deviation.
    pub fn noisy(clean: &'a [f32], width: usize, scale: f64) -> Result<Self> {
        let count = check(clean, width, "vectors")?;
        if !(scale > 0.0 && scale <= 10.0) {
            return Err(Error::option("noise", format!("is {scale}; it must be above 0 and at most 10")));
        }
        let model = NoiseModel::spread(clean, width, scale)?;
        let fingerprint = format!("user-vectors/{count}/{:08x}+noise/{:08x}", checksum(clean), model.checksum());
        Ok(UserVectorViews { clean, width, kind: Kind::Noise(model), fingerprint })
    }

    /// The user gives the views of the same documents: other passes of the encoder, or embeddings of changed texts.
    pub fn given(clean: &'a [f32], width: usize, views: Vec<&'a [f32]>) -> Result<Self> {
        let count = check(clean, width, "vectors")?;
        if views.len() < 2 {
            return Err(Error::config(format!(
                "{} views given; training compares two distinct views, so give at least 2",
                views.len()
            )));
        }
        let mut sums = String::new();
        for (i, view) in views.iter().enumerate() {
            if check(view, width, &format!("view {i}"))? != count {
                return Err(Error::config(format!(
                    "view {i} holds {} values, expected {} like the vectors",
                    view.len(),
                    clean.len()
                )));
            }
            sums += &format!("/{:08x}", checksum(view));
        }
        let fingerprint = format!("user-vectors/{count}/{:08x}+views{sums}", checksum(clean));
        Ok(UserVectorViews { clean, width, kind: Kind::Given(views), fingerprint })
    }
}

/// Number of rows of `values [n, width]`. Returns an error when a value is not finite.
fn check(values: &[f32], width: usize, what: &str) -> Result<usize> {
    if width == 0 || !values.len().is_multiple_of(width) {
        return Err(Error::config(format!(
            "{what}: {} values are not a multiple of the width; give rows of {width} values",
            values.len()
        )));
    }
    match values.par_chunks(width).position_first(|row| !row.iter().all(|v| v.is_finite())) {
        None => Ok(values.len() / width),
        Some(row) => Err(Error::input(
            format!("{what}, row {row}"),
            "holds a value that is not a finite number; leave the document out or encode it again",
        )),
    }
}

fn checksum(values: &[f32]) -> u32 {
    let mut hash = crc32fast::Hasher::new();
    for chunk in values.chunks(1 << 14) {
        hash.update(&chunk.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>());
    }
    hash.finalize()
}

impl Views for UserVectorViews<'_> {
    fn documents(&self) -> usize {
        self.clean.len() / self.width
    }

    fn width(&self) -> usize {
        self.width
    }

    fn fingerprint(&self) -> String {
        self.fingerprint.clone()
    }

    fn clean(&self, documents: &[u32], out: &mut [f32]) {
        copy(self.clean, self.width, documents, out);
    }

    fn pair(&self, documents: &[u32], draw: Draw, out: &mut [f32]) {
        let size = documents.len() * self.width;
        match &self.kind {
            Kind::Noise(model) => {
                let mut clean = vec![0.0; size];
                self.clean(documents, &mut clean);
                model.pair(&clean, documents, draw, out);
            }
            Kind::Given(views) => {
                let (first, second) = out.split_at_mut(size);
                let rows = first.chunks_exact_mut(self.width).zip(second.chunks_exact_mut(self.width));
                for (&document, (first, second)) in documents.iter().zip(rows) {
                    let stream = Stream::new(draw.seed, Purpose::Views, &[draw.epoch, u64::from(document)]);
                    let (one, other) = stream.two_below(views.len() as u64);
                    copy(views[one as usize], self.width, &[document], first);
                    copy(views[other as usize], self.width, &[document], second);
                }
            }
        }
    }
}

fn copy(from: &[f32], width: usize, documents: &[u32], out: &mut [f32]) {
    for (row, &document) in out.chunks_exact_mut(width).zip(documents) {
        let start = document as usize * width;
        row.copy_from_slice(&from[start..start + width]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vectors(n: usize, width: usize) -> Vec<f32> {
        let mut out = vec![0.0; n * width];
        Stream::new(3, Purpose::Init, &[0]).normal(&mut out);
        // The first dimension has ten times the standard deviation.
        out.chunks_exact_mut(width).for_each(|row| row[0] *= 10.0);
        out
    }

    #[test]
    fn noise_has_the_requested_standard_deviation() {
        let clean = vectors(3000, 5);
        let views = UserVectorViews::noisy(&clean, 5, 0.5).unwrap();
        let documents: Vec<u32> = (0..3000).collect();
        let mut out = vec![0.0; 2 * clean.len()];
        views.pair(&documents, Draw { seed: 1, epoch: 2 }, &mut out);
        let deviation = |dimension: usize| {
            let squares = out
                .chunks_exact(5)
                .zip(clean.chunks_exact(5).cycle())
                .map(|(v, c)| f64::from(v[dimension] - c[dimension]).powi(2));
            (squares.sum::<f64>() / 6000.0).sqrt()
        };
        assert!((deviation(0) - 5.0).abs() < 0.3, "{}", deviation(0));
        assert!((deviation(3) - 0.5).abs() < 0.03, "{}", deviation(3));
        assert_ne!(out[..5], out[clean.len()..clean.len() + 5], "two views differ");
    }

    #[test]
    fn pair_takes_two_different_given_views() {
        let clean = vectors(10, 3);
        let given: Vec<Vec<f32>> = (0..3).map(|v| clean.iter().map(|x| x + (v + 1) as f32 * 100.0).collect()).collect();
        let views = UserVectorViews::given(&clean, 3, given.iter().map(Vec::as_slice).collect()).unwrap();
        let mut out = vec![0.0; 60];
        views.pair(&(0..10).collect::<Vec<_>>(), Draw { seed: 1, epoch: 1 }, &mut out);
        for i in 0..10 {
            let number = |v: &[f32]| ((v[1] - clean[3 * i + 1]) / 100.0).round();
            let (one, other) = (number(&out[3 * i..]), number(&out[30 + 3 * i..]));
            assert!(one != other && (1.0..=3.0).contains(&one) && (1.0..=3.0).contains(&other), "{one} {other}");
        }
    }

    #[test]
    fn errors_name_what_is_wrong_with_the_vectors() {
        let refuse = |result: Result<UserVectorViews>, expected: &str| {
            let error = result.err().expect("refused").to_string();
            assert!(error.contains(expected), "{error}");
        };
        let mut clean = vectors(10, 3);
        refuse(UserVectorViews::noisy(&clean, 4, 0.5), "rows of 4");
        refuse(UserVectorViews::noisy(&clean, 3, 0.0), "noise is 0");
        refuse(UserVectorViews::noisy(&[1.0; 30], 3, 0.5), "all equal");
        refuse(UserVectorViews::given(&clean, 3, vec![&clean]), "at least 2");
        refuse(UserVectorViews::given(&clean, 3, vec![&clean, &clean[..27]]), "view 1");
        clean[7] = f32::NAN;
        refuse(UserVectorViews::noisy(&clean, 3, 0.5), "row 2");
    }
}
