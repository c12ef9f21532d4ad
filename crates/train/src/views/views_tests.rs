use std::sync::atomic::{AtomicU64, Ordering};

use engine::NoProgress;

use super::*;

/// An encoder by formula: a random clean embedding per document, plus noise per view.
pub(crate) struct Formula {
    pub documents: usize,
    pub width: usize,
    pub encoded: AtomicU64,
    pub name: &'static str,
}

impl Formula {
    pub(crate) fn new(documents: usize, width: usize) -> Self {
        Formula { documents, width, encoded: AtomicU64::new(0), name: "formula" }
    }
}

impl Encode for Formula {
    fn documents(&self) -> usize {
        self.documents
    }

    fn width(&self) -> usize {
        self.width
    }

    fn fingerprint(&self) -> String {
        self.name.into()
    }

    fn encode_views(&self, documents: &[usize], views: Range<u32>, _progress: &dyn Progress) -> Result<Vec<Matrix>> {
        Ok(views.map(|view| self.view(documents, view)).collect())
    }
}

impl Formula {
    fn view(&self, documents: &[usize], view: u32) -> Matrix {
        self.encoded.fetch_add(documents.len() as u64, Ordering::Relaxed);
        let mut out = Matrix::zeros(documents.len(), self.width);
        for (i, &document) in documents.iter().enumerate() {
            Stream::new(1, Purpose::Init, &[document as u64]).normal(out.row_mut(i));
            if view > 0 {
                let mut noise = vec![0.0; self.width];
                Stream::new(1, Purpose::Init, &[document as u64, u64::from(view)]).normal(&mut noise);
                out.row_mut(i).iter_mut().zip(&noise).for_each(|(x, e)| *x = 0.9 * *x + 0.3 * e);
            }
        }
        out
    }
}

/// Interrupts after this many checks.
struct StopAfter(AtomicU64);

impl Progress for StopAfter {
    fn interrupted(&self) -> bool {
        self.0.fetch_sub(1, Ordering::Relaxed) == 0
    }
}

#[test]
fn view_choices_are_parsed_and_displayed() {
    for (text, choice) in [
        ("full:16", ViewChoice::Full(16)),
        ("noise", ViewChoice::Noise(12)),
        ("noise:4", ViewChoice::Noise(4)),
        ("last2:8", ViewChoice::Last { layers: 2, passes: 8 }),
    ] {
        assert_eq!(text.parse::<ViewChoice>().unwrap(), choice);
        assert_eq!(choice.to_string().parse::<ViewChoice>().unwrap(), choice);
    }
    for text in ["full", "full:1", "noise:x", "some", "full:", "noise:100000", "last2", "last:4", "last0:4", "last-1:4"]
    {
        assert!(text.parse::<ViewChoice>().unwrap_err().to_string().contains(text));
    }
    assert_eq!(ViewChoice::Full(16).passes(10_000), 170_000);
    assert_eq!(ViewChoice::Noise(12).passes(10_000), 36_000);
}

#[test]
fn interrupted_cache_is_resumed_to_the_same_file() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, resumed) = (dir.path().join("whole"), dir.path().join("resumed"));
    let encoder = Formula::new(700, 5);
    let all: Vec<usize> = (0..700).collect();
    ViewCache::open_or_fill(&whole, &encoder, &all, 3, &NoProgress).unwrap();
    assert_eq!(encoder.encoded.load(Ordering::Relaxed), 2800);

    // Interrupted in the second of three blocks.
    let stopped = Formula::new(700, 5);
    let error = ViewCache::open_or_fill(&resumed, &stopped, &all, 3, &StopAfter(AtomicU64::new(6))).err().unwrap();
    assert!(matches!(error, Error::Interrupted));
    assert!(!resumed.exists());
    // A killed writer may leave half a block.
    let partial = dir.path().join("resumed.partial");
    let mut bytes = std::fs::read(&partial).unwrap();
    bytes.extend([7; 100]);
    std::fs::write(&partial, bytes).unwrap();

    let rest = Formula::new(700, 5);
    ViewCache::open_or_fill(&resumed, &rest, &all, 3, &NoProgress).unwrap();
    assert_eq!(rest.encoded.load(Ordering::Relaxed), (700 - 256) * 4, "the finished block is reused");
    assert_eq!(std::fs::read(&whole).unwrap(), std::fs::read(&resumed).unwrap());
}

/// An encoder like a GPU, with many documents and all views per call, that fails at call `failing_call`.
struct FailingGpu {
    inner: Formula,
    calls: AtomicU64,
    failing_call: u64,
}

impl Encode for FailingGpu {
    fn documents(&self) -> usize {
        self.inner.documents
    }

    fn width(&self) -> usize {
        self.inner.width
    }

    fn fingerprint(&self) -> String {
        self.inner.fingerprint()
    }

    fn encode_views(&self, documents: &[usize], views: Range<u32>, progress: &dyn Progress) -> Result<Vec<Matrix>> {
        if self.calls.fetch_add(1, Ordering::Relaxed) == self.failing_call {
            return Err(Error::device("the GPU has fallen off the bus"));
        }
        self.inner.encode_views(documents, views, progress)
    }

    fn documents_at_once(&self) -> usize {
        600
    }
}

#[test]
fn finished_blocks_survive_a_failing_gpu_and_are_reused() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, resumed) = (dir.path().join("whole"), dir.path().join("resumed"));
    let all: Vec<usize> = (0..1500).collect();
    ViewCache::open_or_fill(&whole, &Formula::new(1500, 5), &all, 3, &NoProgress).unwrap();
    let gpu = |failing_call| FailingGpu { inner: Formula::new(1500, 5), calls: AtomicU64::new(0), failing_call };
    // Six blocks of 256, two per call: the third call fails.
    let error = ViewCache::open_or_fill(&resumed, &gpu(2), &all, 3, &NoProgress).err().unwrap();
    assert!(matches!(error, Error::Device(_)), "{error}");
    assert!(!resumed.exists());
    let rest = gpu(u64::MAX);
    ViewCache::open_or_fill(&resumed, &rest, &all, 3, &NoProgress).unwrap();
    assert_eq!(rest.inner.encoded.load(Ordering::Relaxed), (1500 - 1024) * 4, "four finished blocks are reused");
    // The number of calls does not change the file.
    assert_eq!(std::fs::read(&whole).unwrap(), std::fs::read(&resumed).unwrap());
}

#[test]
fn finished_cache_is_read_without_encoding() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("views");
    let all: Vec<usize> = (0..300).collect();
    ViewCache::open_or_fill(&path, &Formula::new(300, 6), &all, 2, &NoProgress).unwrap();
    let encoder = Formula::new(300, 6);
    let cache = ViewCache::open_or_fill(&path, &encoder, &all, 2, &NoProgress).unwrap();
    assert_eq!(encoder.encoded.load(Ordering::Relaxed), 0);
    let mut row = [0.0; 6];
    for (document, view) in [(0, 0), (255, 2), (256, 0), (299, 1)] {
        let expected = encoder.view(&[document], view);
        cache.read(document, view, &mut row);
        assert!(row.iter().zip(expected.as_slice()).all(|(a, b)| (a - b).abs() <= 1e-3 * b.abs() + 1e-6));
    }
}

#[test]
fn damaged_and_foreign_caches_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("views");
    let all: Vec<usize> = (0..300).collect();
    let encoder = Formula::new(300, 6);
    ViewCache::open_or_fill(&path, &encoder, &all, 2, &NoProgress).unwrap();
    let good = std::fs::read(&path).unwrap();
    let refused = |bytes: &[u8], encoder: &Formula, expected: &str| {
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, bytes).unwrap();
        let error = ViewCache::open_or_fill(&path, encoder, &all, 2, &NoProgress).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let mut bad = good.clone();
    bad[4000] ^= 1;
    refused(&bad, &encoder, "documents 0 to 256 are damaged");
    let mut bad = good.clone();
    bad[20] ^= 1;
    refused(&bad, &encoder, "damaged header");
    let mut bad = good.clone();
    bad[8] = 9;
    refused(&bad, &encoder, "format 9");
    refused(&good[..good.len() - 3], &encoder, "bytes, expected");
    refused(b"something else entirely", &encoder, "is not a file of views");
    refused(&good, &Formula { name: "other", ..Formula::new(300, 6) }, "belongs to another corpus or encoder");
}

#[test]
fn cache_locked_by_another_writer_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("views");
    let lock = std::fs::File::create(dir.path().join("views.partial")).unwrap();
    lock.lock().unwrap();
    let error = ViewCache::open_or_fill(&path, &Formula::new(3, 2), &[0, 1, 2], 2, &NoProgress).err().unwrap();
    assert!(matches!(error, Error::Busy(_)), "{error}");
}

#[test]
fn views_differ_from_each_other_and_between_epochs_and_seeds() {
    let dir = tempfile::tempdir().unwrap();
    let encoder = Formula::new(300, 8);
    for choice in [ViewChoice::Full(4), ViewChoice::Noise(4)] {
        let views = choice.prepare(&encoder, dir.path(), &NoProgress).unwrap();
        let documents: Vec<u32> = (0..64).collect();
        let draw = |seed, epoch| {
            let mut out = vec![0.0; 2 * 64 * 8];
            views.pair(&documents, Draw { seed, epoch }, &mut out);
            out
        };
        let a = draw(0, 1);
        let (first, second) = a.split_at(64 * 8);
        assert!(first.chunks(8).zip(second.chunks(8)).all(|(x, y)| x != y), "{choice}");
        assert_eq!(a, draw(0, 1), "{choice}");
        assert_ne!(a, draw(0, 2), "{choice}");
        assert_ne!(a, draw(1, 1), "{choice}");
        // The views of a document do not depend on its position in the batch.
        let mut reversed: Vec<u32> = documents.clone();
        reversed.reverse();
        let mut out = vec![0.0; 2 * 64 * 8];
        views.pair(&reversed, Draw { seed: 0, epoch: 1 }, &mut out);
        for (i, row) in out[..64 * 8].chunks(8).enumerate() {
            let expected = &first[(63 - i) * 8..(64 - i) * 8];
            assert!(row.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{choice}");
        }
        let mut clean = vec![0.0; 8];
        views.clean(&[17], &mut clean);
        let expected = encoder.view(&[17], 0);
        assert!(clean.iter().zip(expected.as_slice()).all(|(a, b)| (a - b).abs() < 2e-3));
    }
}

#[test]
fn noise_model_recovers_a_known_shift_and_covariance() {
    const D: usize = 6;
    let (n, passes) = (3000, 10);
    let mut clean = Matrix::zeros(n, D);
    Stream::new(2, Purpose::Init, &[0]).normal(clean.as_mut_slice());
    // A known shift and a known lower factor.
    let a = |i: usize, j: usize| ((i * 5 + j * 3) % 7) as f32 / 20.0 - 0.15;
    let c = |i: usize| i as f32 / 10.0 - 0.2;
    let l = |i: usize, j: usize| if j > i { 0.0 } else { 0.1 + ((i * 3 + j) % 4) as f32 / 10.0 };
    let views: Vec<Matrix> = (0..passes)
        .map(|r| {
            let mut out = Matrix::zeros(n, D);
            for d in 0..n {
                let mut e = [0.0; D];
                Stream::new(3, Purpose::Views, &[d as u64, r]).normal(&mut e);
                let x = clean.row(d).to_vec();
                for (i, o) in out.row_mut(d).iter_mut().enumerate() {
                    *o = x[i] + c(i) + (0..D).map(|j| a(i, j) * x[j] + l(i, j) * e[j]).sum::<f32>();
                }
            }
            out
        })
        .collect();
    let model = NoiseModel::fit(&clean, &views).unwrap();
    for i in 0..D {
        assert!((model.constant()[i] - c(i)).abs() < 0.02, "constant {i}");
        for j in 0..D {
            assert!((model.shift()[i * D + j] - a(i, j)).abs() < 0.02, "shift {i} {j}");
            assert!(
                (model.factor()[i * D + j] - l(i, j)).abs() < 0.02,
                "factor {i} {j}: {}",
                model.factor()[i * D + j]
            );
        }
    }
    // The generated views have the same shift and covariance.
    let views = NoiseViews::new(clean.clone(), model).unwrap();
    let documents: Vec<u32> = (0..n as u32).collect();
    let generated: Vec<Matrix> = (0..5)
        .flat_map(|epoch| {
            let mut out = vec![0.0; 2 * n * D];
            views.pair(&documents, Draw { seed: 0, epoch }, &mut out);
            let second = out.split_off(n * D);
            [Matrix::from_vec(D, out), Matrix::from_vec(D, second)]
        })
        .collect();
    let refitted = NoiseModel::fit(&clean, &generated).unwrap();
    for i in 0..D {
        for j in 0..D {
            assert!(
                (refitted.shift()[i * D + j] - a(i, j)).abs() < 0.03
                    && (refitted.factor()[i * D + j] - l(i, j)).abs() < 0.03
            );
        }
    }
}

#[test]
fn noise_model_of_equal_passes_is_refused() {
    let clean = Matrix::from_vec(2, vec![1.0, 2.0, 3.0, 5.0, 1.0, 0.0]);
    let error = NoiseModel::fit(&clean, &[clean.clone(), clean.clone()]).unwrap_err().to_string();
    assert!(error.contains("dropout is off"), "{error}");
    assert!(NoiseModel::fit(&clean, std::slice::from_ref(&clean)).unwrap_err().to_string().contains("two passes"));
    // Fewer documents than dimensions still fit.
    let few = Formula::new(3, 20);
    let views: Vec<Matrix> = (1..4).map(|v| few.view(&[0, 1, 2], v)).collect();
    NoiseModel::fit(&few.view(&[0, 1, 2], 0), &views).unwrap();
}
