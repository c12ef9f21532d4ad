//! A tokenised corpus behind its encoder: where clean vectors and dropout views come from, and where the clean ones are
//! kept.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use micpq::encoder::{Dropout, Features};
use micpq::npy::{self, NpyWriter};
use micpq::{Error, Matrix, Result, Watch, hex};
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use crate::views::Encode;

/// Seed of the encoder's masks. One for all runs, so that runs of different seeds share one cache of views; what a
/// training run draws from the cache is decided by its own seed.
const MASKS: u64 = 1;

/// Documents in a file of clean vectors: what an interrupted pass loses at most.
const CHUNK: usize = 2048;

/// Token sequences, the encoder that reads them, and their clean vectors.
pub struct Passes<'a> {
    features: &'a Features,
    tokens: Vec<Vec<u32>>,
    dropout: f64,
    fingerprint: String,
    clean: Matrix,
}

impl<'a> Passes<'a> {
    /// Tokenises `texts` and encodes them cleanly, or takes the vectors kept under `cache` from an earlier run on the same
    /// tokens and encoder. Views are passes with dropout at `rate`.
    pub fn new(
        features: &'a Features,
        texts: &[impl AsRef<str> + Sync],
        rate: f64,
        cache: Option<&Path>,
        watch: &dyn Watch,
    ) -> Result<Self> {
        if !(0.0..1.0).contains(&rate) {
            return Err(Error::config(format!("a dropout rate is in [0, 1), not {rate}")));
        }
        watch.stage("tokenising", None);
        let tokens = features.tokens(texts)?;
        let config = features.config();
        // Everything that decides a value, and nothing that does not: texts cleaned to the same tokens share vectors.
        // Vectors of a GPU agree with the CPU's to a few thousandths and are not the same bits, so neither passes for
        // the other: a run goes on with the kind it began with.
        let mut encoder = format!("{}|{}|{}", config.encoder_sha256, config.pooling, config.unit_length);
        if let Some(convolution) = &config.convolution {
            encoder = format!("{encoder}|{}", convolution.sha256);
        }
        if let Some(arithmetic) = features.encoder().map(|e| e.arithmetic()).filter(|a| *a != "f32") {
            encoder += &format!("|{arithmetic}");
        }
        let keys: Vec<Key> = tokens.par_iter().map(|sequence| key(sequence)).collect();
        let mut hash = Sha256::new();
        hash.update(&encoder);
        keys.iter().for_each(|key| hash.update(key));
        let fingerprint = format!("{}|{rate}|{MASKS}", hex(&hash.finalize()[..16]));
        let store = cache.map(|dir| {
            let name = hex(&Sha256::digest(&encoder)[..8]);
            VectorStore::open(dir.join(format!("vectors-{name}")), features.width())
        });
        let clean = clean_vectors(features, &tokens, &keys, store.transpose()?, watch)?;
        Ok(Passes { features, tokens, dropout: rate, fingerprint, clean })
    }

    /// The clean vectors, one a text.
    pub fn clean(&self) -> &Matrix {
        &self.clean
    }

    /// The clean vectors alone.
    pub fn into_clean(self) -> Matrix {
        self.clean
    }

    /// Clean vectors and token sequences.
    pub fn into_parts(self) -> (Matrix, Vec<Vec<u32>>) {
        (self.clean, self.tokens)
    }
}

/// What a token sequence is known by.
type Key = [u8; 16];

fn key(sequence: &[u32]) -> Key {
    let bytes: Vec<u8> = sequence.iter().flat_map(|id| id.to_le_bytes()).collect();
    Sha256::digest(&bytes)[..16].try_into().expect("sixteen bytes")
}

/// Clean vectors of one encoder, kept by the tokens they belong to: a corpus, its sample, its index and its evaluation
/// share them. Each file of vectors has a file of keys beside it, written after it; without keys it does not count.
struct VectorStore {
    dir: PathBuf,
    width: usize,
    // Where a sequence's vector lies: number of the file, row.
    rows: HashMap<Key, (usize, usize)>,
    files: Vec<PathBuf>,
}

impl VectorStore {
    fn open(dir: PathBuf, width: usize) -> Result<Self> {
        std::fs::create_dir_all(&dir).map_err(Error::io(&dir))?;
        let mut store = VectorStore { dir, width, rows: HashMap::new(), files: Vec::new() };
        let mut names: Vec<PathBuf> = std::fs::read_dir(&store.dir)
            .map_err(Error::io(&store.dir))?
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.to_string_lossy().ends_with(".keys.npy"))
            .collect();
        names.sort();
        for path in names {
            // A damaged file is passed over: what it held is encoded again.
            if let Ok((16, bytes)) = npy::read_u8(&path) {
                let file = store.files.len();
                store.rows.extend(bytes.as_chunks::<16>().0.iter().enumerate().map(|(row, key)| (*key, (file, row))));
                store.files.push(PathBuf::from(path.to_string_lossy().replace(".keys.npy", ".rows.npy")));
            }
        }
        Ok(store)
    }

    /// Puts down vectors under keys. The name is this process's own: others may write beside it.
    fn write(&self, number: usize, keys: &[Key], vectors: &Matrix) -> Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos());
        let name = format!("{now:024x}-{:x}-{number}", std::process::id());
        let mut rows = NpyWriter::f32(&self.dir.join(format!("{name}.rows.npy")), self.width)?;
        rows.rows_f32(vectors)?;
        rows.finish()?;
        let mut names = NpyWriter::u8(&self.dir.join(format!("{name}.keys.npy")), 16)?;
        names.rows_u8(keys.as_flattened())?;
        names.finish()?;
        Ok(())
    }
}

fn clean_vectors(
    features: &Features,
    tokens: &[Vec<u32>],
    keys: &[Key],
    store: Option<VectorStore>,
    watch: &dyn Watch,
) -> Result<Matrix> {
    let mut out = Matrix::zeros(tokens.len(), features.width());
    watch.stage("encoding", Some(tokens.len() as u64));
    // Documents by the file their vector lies in; the others are new, equal ones once.
    let mut kept: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
    let mut new: Vec<usize> = Vec::new();
    let mut places: HashMap<Key, Vec<usize>> = HashMap::new();
    let mut want = |document: usize| {
        let same = places.entry(keys[document]).or_default();
        if same.is_empty() {
            new.push(document);
        }
        same.push(document);
    };
    for (document, key) in keys.iter().enumerate() {
        match store.as_ref().and_then(|s| s.rows.get(key)) {
            Some(&(file, row)) => kept.entry(file).or_default().push((document, row)),
            None => want(document),
        }
    }
    for (file, documents) in kept {
        let path = &store.as_ref().expect("only a store keeps").files[file];
        let vectors = npy::read_f32(path)
            .ok()
            .filter(|m| m.cols() == features.width() && documents.iter().all(|&(_, row)| row < m.rows()));
        match vectors {
            Some(vectors) => {
                documents.iter().for_each(|&(d, row)| out.row_mut(d).copy_from_slice(vectors.row(row)));
                watch.advance(documents.len() as u64);
            }
            None => documents.iter().for_each(|&(document, _)| want(document)),
        }
    }
    let together = CHUNK.max(features.encoder().map_or(0, |e| e.sequences_at_once()));
    for (number, chunk) in new.chunks(together).enumerate() {
        let sequences: Vec<&[u32]> = chunk.iter().map(|&d| tokens[d].as_slice()).collect();
        let vectors = features.encode_tokens(&sequences, None, watch)?;
        let chunk_keys: Vec<Key> = chunk.iter().map(|&d| keys[d]).collect();
        if let Some(store) = &store {
            store.write(number, &chunk_keys, &vectors)?;
        }
        for (row, key) in chunk_keys.iter().enumerate() {
            for &document in &places[key] {
                out.row_mut(document).copy_from_slice(vectors.row(row));
            }
            watch.advance(places[key].len() as u64 - 1);
        }
    }
    Ok(out)
}

impl Passes<'_> {
    fn views(
        &self,
        documents: &[usize],
        views: Range<u32>,
        last: Option<usize>,
        watch: &dyn Watch,
    ) -> Result<Vec<Matrix>> {
        let sequences: Vec<&[u32]> = documents.iter().map(|&d| self.tokens[d].as_slice()).collect();
        let numbers: Vec<u64> = documents.iter().map(|&d| d as u64).collect();
        let dropout = |view| {
            let whole = Dropout::new(self.dropout, MASKS, view, &numbers);
            Some(last.map_or(whole, |layers| whole.in_last(layers)))
        };
        let dropped: Vec<Option<Dropout>> = views.clone().filter(|view| *view > 0).map(dropout).collect();
        let mut out = Vec::with_capacity(views.len());
        if views.contains(&0) {
            out.push(self.clean.select(documents));
        }
        if !dropped.is_empty() {
            out.extend(self.features.encode_views(&sequences, &dropped, &OnlyStops(watch))?);
        }
        Ok(out)
    }
}

impl Encode for Passes<'_> {
    fn documents(&self) -> usize {
        self.tokens.len()
    }

    fn width(&self) -> usize {
        self.features.width()
    }

    fn fingerprint(&self) -> String {
        self.fingerprint.clone()
    }

    fn encode_views(&self, documents: &[usize], views: Range<u32>, watch: &dyn Watch) -> Result<Vec<Matrix>> {
        self.views(documents, views, None, watch)
    }

    fn in_last(&self, layers: u32) -> Result<Box<dyn Encode + '_>> {
        let has = self.features.encoder().map_or(0, |e| e.config().num_hidden_layers);
        if layers as usize > has {
            return Err(Error::config(format!("views last{layers}: the encoder has {has} layers")));
        }
        Ok(Box::new(Ending { passes: self, layers }))
    }

    fn documents_at_once(&self) -> usize {
        self.features.encoder().map_or(0, |e| e.sequences_at_once())
    }
}

/// Passes with dropout in the last layers alone.
struct Ending<'a> {
    passes: &'a Passes<'a>,
    layers: u32,
}

impl Encode for Ending<'_> {
    fn documents(&self) -> usize {
        self.passes.documents()
    }

    fn width(&self) -> usize {
        self.passes.width()
    }

    fn fingerprint(&self) -> String {
        format!("{}/last{}", self.passes.fingerprint, self.layers)
    }

    fn encode_views(&self, documents: &[usize], views: Range<u32>, watch: &dyn Watch) -> Result<Vec<Matrix>> {
        self.passes.views(documents, views, Some(self.layers as usize), watch)
    }

    fn in_last(&self, layers: u32) -> Result<Box<dyn Encode + '_>> {
        self.passes.in_last(layers)
    }

    // All passes of a document in one call: they have the first layers in common.
    fn documents_at_once(&self) -> usize {
        self.passes.documents_at_once().max(256)
    }
}

/// Passes on the wish to stop, and keeps the count to itself: the caller counts documents, not passes.
struct OnlyStops<'a>(&'a dyn Watch);

impl Watch for OnlyStops<'_> {
    fn interrupted(&self) -> bool {
        self.0.interrupted()
    }
}
