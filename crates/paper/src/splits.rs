//! The splits of a corpus: texts, and the embeddings, token states, terms and views of them that cells share.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use engine::corpus::{Corpus, CorpusConfig};
use engine::encoder::{Convolution, Device, Embedder, EmbedderConfig, Precision, Vocabulary, Weighting};
use engine::formats::npy;
use engine::model::{Dense, Distance, Projection};
use engine::{Error, Matrix, Progress, Result};
use rayon::prelude::*;
use train::Labels;
use train::dataset::{Dataset, LabelNames};
use train::float;
use train::passes::Passes;
use train::random::{Purpose, Stream};
use train::views::{ViewChoice, Views};

use crate::plan::{CorpusPlan, Plan, Source, locate};
use methods::inputs::{Built, Inputs, TermRows, TokenStates, signs};
use methods::tfidf::LexiconConfig;

/// Documents, validation queries and queries of one corpus.
pub struct Splits {
    pub documents: Dataset,
    /// Queries that choose the best epoch.
    pub validation: Dataset,
    /// Queries that measure the finished model.
    pub queries: Dataset,
    /// Number of different labels.
    pub classes: usize,
}

impl Splits {
    /// A file of the corpus that is not there.
    pub fn absent(corpus: &CorpusPlan, data: &Path) -> Option<PathBuf> {
        let files = [Some(&corpus.documents), corpus.validation.as_ref(), corpus.queries.as_ref()];
        files.into_iter().flatten().map(|file| locate(data, file)).find(|file| !file.exists())
    }

    /// Reads a corpus; `None` where a file of it is missing.
    pub fn read(plan: &Plan, corpus: &CorpusPlan, data: &Path, progress: &dyn Progress) -> Result<Option<Splits>> {
        let at = |file: &Path| locate(data, file);
        let documents = at(&corpus.documents);
        let (validation, queries) = (corpus.validation.as_deref().map(at), corpus.queries.as_deref().map(at));
        if let Some(missing) = Splits::absent(corpus, data) {
            progress.note(&format!("{}: {} is missing; its column stays empty", corpus.name, missing.display()));
            return Ok(None);
        }
        let mut names = LabelNames::default();
        let mut read = |file: &Path, max: Option<usize>| -> Result<Dataset> {
            let label_field = corpus.label.clone();
            let config = CorpusConfig { unique_ids: false, label_field, ..CorpusConfig::default() };
            Dataset::sample(&mut Corpus::open(file, &config)?, max.unwrap_or(usize::MAX), 0, &mut names, progress)
        };
        let mut documents = read(&documents, corpus.sample)?;
        let queries = match queries {
            Some(file) => read(&file, None)?,
            None => set_aside(&mut documents, usize::MAX, 2),
        };
        let validation = match validation {
            Some(file) => read(&file, plan.validation)?,
            None => set_aside(&mut documents, plan.validation.unwrap_or(usize::MAX), 3),
        };
        let splits = Splits { documents, validation, queries, classes: names.len() };
        if let Some(problem) = splits.strange_labels(corpus.published.as_deref()) {
            progress.note(&format!("{}: {problem}", corpus.name));
        }
        Ok(Some(splits))
    }

    /// A problem of the labels: a class of the queries that no document has can never be found.
    fn strange_labels(&self, published: Option<&str>) -> Option<String> {
        let known: HashSet<u32> = classes(&self.documents.labels).collect();
        let asked: HashSet<u32> = classes(&self.queries.labels).collect();
        let unknown = asked.iter().filter(|label| !known.contains(label)).count();
        let mut text = (unknown > 0).then(|| {
            format!("{unknown} of {} labels of the queries are on no document: their queries find nothing", asked.len())
        });
        if published == Some("nyt") && known.len() != NYT_CLASSES {
            let problem = format!(
                "its documents have {} labels, and NYT has {NYT_CLASSES}. In the public copy of the authors' data (qiuzx2/MICPQ), \
                 train.csv and val.csv of NYT are those of DBpedia; the copies of J-zin/DHIM are NYT",
                known.len()
            );
            text = Some(text.map_or_else(|| problem.clone(), |text| format!("{text}; {problem}")));
        }
        text
    }
}

/// Classes of NYT in the paper.
const NYT_CLASSES: usize = 26;

fn classes(labels: &Labels) -> impl Iterator<Item = u32> + '_ {
    (0..labels.len()).flat_map(|i| labels.get(i).iter().copied())
}

/// Moves a tenth of the documents, at most `max`, into a set of their own; always the same ones.
fn set_aside(documents: &mut Dataset, max: usize, purpose: u64) -> Dataset {
    let count = documents.texts.len();
    let order = Stream::new(0, Purpose::Sample, &[purpose]).permutation(count);
    let (aside, rest) = order.split_at((count / 10).min(max));
    let part = |chosen: &[u32]| {
        let mut chosen = chosen.to_vec();
        chosen.sort_unstable();
        documents.select(&chosen)
    };
    let (aside, rest) = (part(aside), part(rest));
    *documents = rest;
    aside
}

impl Splits {
    /// The same with at most `max` documents, drawn evenly.
    pub fn sampled(&self, max: usize) -> Splits {
        let mut order = Stream::new(0, Purpose::Sample, &[1]).permutation(self.documents.texts.len());
        order.truncate(max);
        order.sort_unstable();
        let documents = self.documents.select(&order);
        Splits { documents, validation: self.validation.clone(), queries: self.queries.clone(), classes: self.classes }
    }
}

/// The three splits as a method reads them.
pub struct EncodedSplits {
    pub documents: Inputs,
    pub validation: Inputs,
    pub queries: Inputs,
    nearest: OnceLock<Vec<Vec<u32>>>,
}

impl EncodedSplits {
    pub fn embeddings(
        embedder: &Embedder,
        splits: &Splits,
        cache: &Path,
        progress: &dyn Progress,
    ) -> Result<EncodedSplits> {
        let of = |set: &Dataset| -> Result<Inputs> {
            Ok(Inputs::Embeddings(Passes::new(embedder, &set.texts, 0.0, Some(cache), progress)?.into_clean()))
        };
        Ok(EncodedSplits {
            documents: of(&splits.documents)?,
            validation: of(&splits.validation)?,
            queries: of(&splits.queries)?,
            nearest: OnceLock::new(),
        })
    }

    /// Vectors of the user, from `folder/CORPUS`.
    pub fn vectors(data: &Path, folder: &Path, corpus: &CorpusPlan, splits: &Splits) -> Result<EncodedSplits> {
        let folder = locate(data, folder).join(&corpus.name);
        let read = |split: (&str, &Dataset)| -> Result<Inputs> {
            let path = split_file(&folder, corpus, split.0);
            Ok(Inputs::Embeddings(rows_of(split.1, npy::read_vectors(&path)?, &path)?))
        };
        let encoded = EncodedSplits {
            documents: read(("documents", &splits.documents))?,
            validation: read(("validation", &splits.validation))?,
            queries: read(("queries", &splits.queries))?,
            nearest: OnceLock::new(),
        };
        let widths = [&encoded.documents, &encoded.validation, &encoded.queries].map(Inputs::width);
        if widths != [widths[0]; 3] {
            return Err(Error::input(
                folder.display().to_string(),
                format!("documents, validation and queries have vectors of {widths:?} values; one width is expected"),
            ));
        }
        Ok(encoded)
    }

    /// Packed codes of the user, from `folder/CORPUS/BITS`, with the model that reads them: every bit is a value of -1 or +1.
    pub fn codes(
        data: &Path,
        folder: &Path,
        corpus: &CorpusPlan,
        bits: usize,
        splits: &Splits,
    ) -> Result<(Built, EncodedSplits)> {
        let folder = locate(data, folder).join(&corpus.name).join(bits.to_string());
        let read = |split: (&str, &Dataset)| -> Result<Inputs> {
            let path = split_file(&folder, corpus, split.0);
            let (bytes, codes) = npy::read_u8(&path)?;
            if bytes * 8 != bits {
                return Err(Error::input(
                    path.display().to_string(),
                    format!("its codes have {bytes} bytes; {bits} bits are {}", bits / 8),
                ));
            }
            // Bit i of a code is bit i % 8 of byte i / 8, the lowest first.
            let sign = |byte: u8, i: usize| if byte >> i & 1 == 1 { 1.0 } else { -1.0 };
            let values = codes.iter().flat_map(|&byte| (0..8).map(move |i| sign(byte, i))).collect();
            Ok(Inputs::Embeddings(rows_of(split.1, Matrix::from_vec(bits, values), &path)?))
        };
        let identity = methods::rotation::identity(bits).as_slice().to_vec();
        let built = Built {
            distance: Distance::Hamming,
            ..Built::quantizer(Projection::new(vec![Dense::new(bits, identity, vec![0.0; bits])?])?, signs(bits)?)
        };
        let empty = || Inputs::Embeddings(Matrix::zeros(0, bits));
        let (documents, queries) = (read(("documents", &splits.documents))?, read(("queries", &splits.queries))?);
        Ok((built, EncodedSplits { documents, validation: empty(), queries, nearest: OnceLock::new() }))
    }

    /// States of every token, fifty times the size of an embedding: mostly of a sample of the documents. For all of them the
    /// exact neighbours of a query are those by embeddings, as for every method. Documents are read `passes` times more with
    /// dropout.
    pub fn token_states(
        embedder: &Embedder,
        splits: &Splits,
        own: &EncodedSplits,
        passes: usize,
        progress: &dyn Progress,
    ) -> Result<EncodedSplits> {
        let whole = own.documents.len() == splits.documents.texts.len();
        let nearest = if whole { own.same_nearest(progress)? } else { OnceLock::new() };
        let of = |set: &Dataset, passes: usize| -> Result<Inputs> {
            Ok(Inputs::TokenStates(TokenStates::new(embedder, &embedder.tokens(&set.texts)?, passes, progress)?))
        };
        Ok(EncodedSplits {
            documents: of(&splits.documents, passes)?,
            validation: of(&splits.validation, 0)?,
            queries: of(&splits.queries, 0)?,
            nearest,
        })
    }

    /// Embeddings from a learned convolution over token states. The states are pooled as they are read: those of a whole corpus
    /// do not fit into memory. The exact neighbours of a query are those by the encoder's own embeddings, as for every method.
    pub fn convolved(
        embedder: &Embedder,
        convolution: &Convolution,
        splits: &Splits,
        own: &EncodedSplits,
        progress: &dyn Progress,
    ) -> Result<EncodedSplits> {
        let encoder = embedder.encoder().ok_or_else(|| Error::config("token states need an encoder"))?;
        let of = |set: &Dataset| -> Result<Inputs> {
            let sequences = embedder.tokens(&set.texts)?;
            progress.stage("reading token states", Some(sequences.len() as u64));
            Ok(Inputs::Embeddings(encoder.convolve(convolution, &sequences, progress)?))
        };
        let nearest = own.same_nearest(progress)?;
        Ok(EncodedSplits {
            documents: of(&splits.documents)?,
            validation: of(&splits.validation)?,
            queries: of(&splits.queries)?,
            nearest,
        })
    }

    pub fn terms(plan: &Plan, splits: &Splits, lexicon: LexiconConfig, weighting: Weighting) -> Result<EncodedSplits> {
        let vocabulary: Arc<Vocabulary> = Arc::new(lexicon.fit(&splits.documents.texts, plan.clean)?);
        let of = |set: &Dataset| {
            let terms = |text: &String| vocabulary.term_numbers(&plan.clean.apply(text, None));
            Inputs::Terms(TermRows::new(vocabulary.clone(), weighting, set.texts.par_iter().map(terms).collect()))
        };
        Ok(EncodedSplits {
            documents: of(&splits.documents),
            validation: of(&splits.validation),
            queries: of(&splits.queries),
            nearest: OnceLock::new(),
        })
    }

    /// The exact neighbours, for other inputs of the same texts.
    fn same_nearest(&self, progress: &dyn Progress) -> Result<OnceLock<Vec<Vec<u32>>>> {
        Ok(self.nearest(progress)?.map_or_else(OnceLock::new, |found| OnceLock::from(found.to_vec())))
    }

    /// The ten documents nearest to every query by cosine of embeddings; computed once.
    pub fn nearest(&self, progress: &dyn Progress) -> Result<Option<&[Vec<u32>]>> {
        if let (Inputs::Embeddings(documents), Inputs::Embeddings(queries), None) =
            (&self.documents, &self.queries, self.nearest.get())
        {
            let found = float::search(documents, queries, 10, progress)?.cosine;
            // Another cell may have set it first; both found the same.
            let _ = self.nearest.set(found);
        }
        Ok(self.nearest.get().map(Vec::as_slice))
    }
}

/// The file of a split; a split without a corpus file of its own was set aside from the documents.
fn split_file(folder: &Path, corpus: &CorpusPlan, split: &str) -> PathBuf {
    let own = match split {
        "validation" => corpus.validation.is_some(),
        "queries" => corpus.queries.is_some(),
        _ => true,
    };
    folder.join(format!("{}.npy", if own { split } else { "documents" }))
}

/// The rows of the texts of a split, from a row for every text of its corpus file.
fn rows_of(set: &Dataset, all: Matrix, path: &Path) -> Result<Matrix> {
    if all.rows() != set.seen {
        return Err(Error::input(
            path.display().to_string(),
            format!(
                "it has {} rows, and the corpus file has {} texts; one row per text is expected",
                all.rows(),
                set.seen
            ),
        ));
    }
    Ok(all.select(&set.positions))
}

/// The encoder of a source for a corpus.
pub fn encoder(
    plan: &Plan,
    corpus: &CorpusPlan,
    source: &Source,
    device: Device,
    progress: &dyn Progress,
) -> Result<Embedder> {
    let embedder = Embedder::load_local(&EmbedderConfig {
        encoder: source.encoder.clone(),
        pooling: source.pooling.into(),
        max_tokens: Some(corpus.max_tokens),
        clean: plan.clean,
        // The published tables are single precision.
        precision: Precision::F32,
        ..EmbedderConfig::default()
    })?;
    embedder.on(device, progress)
}

/// Views of the documents under a rate of dropout and a seed of its masks.
pub fn views(
    embedder: &Embedder,
    splits: &Splits,
    choice: ViewChoice,
    (dropout, masks): (f64, u64),
    cache: &Path,
    progress: &dyn Progress,
) -> Result<Box<dyn Views>> {
    let passes = Passes::new(embedder, &splits.documents.texts, dropout, Some(cache), progress)?.masked_by(masks);
    choice.prepare(&passes, cache, progress)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_aside_moves_a_tenth_of_the_documents() {
        let all = || Dataset {
            texts: (0..205).map(|i| format!("text {i}")).collect(),
            labels: Labels::single((0..205).map(|i| i % 7).collect()),
            positions: (0..205).collect(),
            seen: 205,
        };
        let mut documents = all();
        let queries = set_aside(&mut documents, usize::MAX, 2);
        let validation = set_aside(&mut documents, 5, 3);
        assert_eq!((queries.texts.len(), validation.texts.len(), documents.texts.len()), (20, 5, 180));
        let mut encoded: Vec<&String> =
            [&queries, &validation, &documents].into_iter().flat_map(|set| &set.texts).collect();
        encoded.sort();
        encoded.dedup();
        assert_eq!(encoded.len(), 205);
        assert_eq!(set_aside(&mut all(), usize::MAX, 2).texts, queries.texts);
    }

    #[test]
    fn nyt_with_the_documents_of_dbpedia_is_noticed() {
        let set = |classes: u32, count: u32| Dataset {
            texts: vec![String::new(); count as usize],
            labels: Labels::single((0..count).map(|i| i % classes).collect()),
            ..Dataset::default()
        };
        let of = |documents: u32, published: Option<&str>| {
            let splits = Splits {
                documents: set(documents, 60),
                validation: set(documents, 60),
                queries: set(26, 60),
                classes: 26,
            };
            splits.strange_labels(published)
        };
        let problem = of(14, Some("nyt")).unwrap();
        assert!(problem.contains("12 of 26 labels") && problem.contains("DBpedia"), "{problem}");
        assert_eq!(of(26, Some("nyt")), None);
        assert!(of(14, None).is_some_and(|p| !p.contains("DBpedia")));
    }

    #[test]
    fn vectors_and_codes_are_read_by_the_position_of_their_text() {
        let dir = tempfile::tempdir().unwrap();
        let corpus: CorpusPlan = toml::from_str("name = \"texts\"\ndocuments = \"t.csv\"\nmax_tokens = 8").unwrap();
        let all = Dataset {
            texts: (0..30).map(|i| format!("text {i}")).collect(),
            labels: Labels::single((0..30).map(|i| i % 3).collect()),
            positions: (0..30).collect(),
            seen: 30,
        };
        let mut documents = all.clone();
        let queries = set_aside(&mut documents, usize::MAX, 2);
        let validation = set_aside(&mut documents, usize::MAX, 3);
        let splits = Splits { documents, validation, queries, classes: 3 };
        let folder = dir.path().join("mine/texts");
        std::fs::create_dir_all(folder.join("16")).unwrap();
        let mut writer = npy::NpyWriter::f32(&folder.join("documents.npy"), 2).unwrap();
        writer.rows_f32(&Matrix::from_vec(2, (0..60).map(|i| i as f32).collect())).unwrap();
        writer.finish().unwrap();
        let encoded = EncodedSplits::vectors(dir.path(), Path::new("mine"), &corpus, &splits).unwrap();
        for (inputs, set) in [(&encoded.documents, &splits.documents), (&encoded.queries, &splits.queries)] {
            let Inputs::Embeddings(rows) = inputs else { unreachable!() };
            assert!(rows.iter().zip(&set.positions).all(|(row, &p)| row == [2.0 * p as f32, 2.0 * p as f32 + 1.0]));
        }
        // A code per label: 3 and 0, 12 and 0, 0 and 3.
        let mut writer = npy::NpyWriter::u8(&folder.join("16/documents.npy"), 2).unwrap();
        let code = |i: usize| [[3, 0], [12, 0], [0, 3]][i % 3];
        writer.rows_u8(&(0..30).flat_map(code).collect::<Vec<u8>>()).unwrap();
        writer.finish().unwrap();
        let (built, codes) = EncodedSplits::codes(dir.path(), Path::new("mine"), &corpus, 16, &splits).unwrap();
        let figures = crate::measure::codes(&built, &codes, &splits, &engine::NoProgress).unwrap();
        assert_eq!((figures.precision[0], figures.bytes.0), (100.0, 2));
        let wrong = EncodedSplits::codes(dir.path(), Path::new("mine"), &corpus, 32, &splits).err().unwrap();
        assert!(wrong.to_string().contains("32"), "{wrong}");
        let short = Splits { documents: Dataset { seen: 31, ..splits.documents.clone() }, ..splits };
        let wrong = EncodedSplits::vectors(dir.path(), Path::new("mine"), &corpus, &short).err().unwrap().to_string();
        assert!(wrong.contains("30 rows") && wrong.contains("31 texts"), "{wrong}");
    }
}
