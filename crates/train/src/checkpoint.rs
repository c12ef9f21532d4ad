//! A run's whole state on disk after every epoch, so that a killed run goes on and ends in the same model.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use micpq::{Error, Result};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};

use crate::metrics::{Scores, Usage};
use crate::parameters::{Moments, Parameters, Sizes};
use crate::step::Losses;

/// Version of the file. 1: first release.
const FORMAT: u32 = 1;

/// What is remembered of an epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Epoch {
    /// Counted from 1.
    pub epoch: usize,
    /// Means over the epoch's documents.
    #[serde(flatten)]
    pub losses: Losses,
    /// The validation figure.
    pub validation: f64,
    /// Words in use, mean over books.
    pub codewords: f64,
    /// Different codes.
    pub distinct: usize,
    /// Seconds of training and of validation.
    pub seconds: f64,
}

/// The best model so far.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Best {
    pub epoch: usize,
    pub figure: f64,
    pub scores: Option<Scores>,
    pub usage: Usage,
    pub parameters: Vec<f32>,
}

/// Everything the next epoch depends on, and the record of those before. Random draws are functions of seed, epoch and
/// update, so there is no generator to keep.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct State {
    pub parameters: Parameters<f32>,
    pub moments: Moments<f32>,
    pub epoch: usize,
    /// Epochs since the best.
    pub stale: usize,
    pub best: Option<Best>,
    pub curve: Vec<Epoch>,
    pub training_seconds: f64,
    pub validation_seconds: f64,
}

#[derive(Serialize, Deserialize)]
struct Record {
    format: u32,
    fingerprint: String,
    epoch: usize,
    updates: u64,
    stale: usize,
    best_epoch: usize,
    // The bits: JSON's digits need not come back as the same number, and a tie must stay a tie.
    best_figure: u64,
    best_scores: Option<Scores>,
    best_usage: Usage,
    curve: Vec<Epoch>,
    training_seconds: f64,
    validation_seconds: f64,
    checksum: u32,
}

/// A run's place in a work directory, held while it lives.
pub(crate) struct Checkpoint {
    path: PathBuf,
    fingerprint: String,
    // Held while the run lives; the system lets go of it however the run ends.
    _lock: File,
}

impl Checkpoint {
    /// Takes a place in the directory for the run known by `fingerprint`. Runs with other options have other places.
    pub fn open(dir: &Path, fingerprint: String) -> Result<Self> {
        std::fs::create_dir_all(dir).map_err(Error::io(dir))?;
        let name = format!("training-{:08x}", crc32fast::hash(fingerprint.as_bytes()));
        let lock_path = dir.join(format!("{name}.lock"));
        let lock = File::create(&lock_path).map_err(Error::io(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => Ok(Checkpoint { path: dir.join(format!("{name}.safetensors")), fingerprint, _lock: lock }),
            Err(std::fs::TryLockError::WouldBlock) => {
                let place = dir.display();
                Err(Error::Busy(format!(
                    "{place}: the same run is already training here; wait for it or name another work directory"
                )))
            }
            Err(std::fs::TryLockError::Error(e)) => Err(Error::io(&lock_path)(e)),
        }
    }

    /// Writes the state: the old file or the new is there at every moment.
    pub fn save(&self, state: &State) -> Result<()> {
        let best = state.best.as_ref();
        let values = [
            ("parameters", &state.parameters.values),
            ("first", &state.moments.first),
            ("second", &state.moments.second),
            ("best", best.map_or(&state.parameters.values, |b| &b.parameters)),
        ];
        let bytes: Vec<(&str, Vec<u8>)> =
            values.iter().map(|(name, v)| (*name, v.iter().flat_map(|x| x.to_le_bytes()).collect())).collect();
        let record = Record {
            format: FORMAT,
            fingerprint: self.fingerprint.clone(),
            epoch: state.epoch,
            updates: state.moments.updates,
            stale: state.stale,
            best_epoch: best.map_or(0, |b| b.epoch),
            best_figure: best.map_or(0, |b| b.figure.to_bits()),
            best_scores: best.and_then(|b| b.scores),
            best_usage: best.map(|b| b.usage.clone()).unwrap_or_default(),
            curve: state.curve.clone(),
            training_seconds: state.training_seconds,
            validation_seconds: state.validation_seconds,
            checksum: checksum(bytes.iter().map(|(_, b)| &b[..])),
        };
        let record = serde_json::to_string(&record).expect("plain data has a JSON form");
        let tensors = bytes.iter().map(|(name, b)| {
            (*name, TensorView::new(Dtype::F32, vec![b.len() / 4], b).expect("lengths follow from the values"))
        });
        let file = safetensors::serialize(tensors, Some(HashMap::from([("run".to_string(), record)])))
            .map_err(|e| Error::format(&self.path, e.to_string()))?;
        micpq::disk::replace(&self.path, &file)
    }

    /// The state an earlier run of the same configuration left.
    pub fn load(&self, sizes: Sizes) -> Result<Option<State>> {
        let bytes = match std::fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::io(&self.path)(e)),
        };
        let damaged = |what: String| {
            Error::format(
                &self.path,
                format!("is not a usable checkpoint: {what}; delete it to train from the beginning"),
            )
        };
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| damaged(e.to_string()))?;
        let record =
            header.metadata().as_ref().and_then(|m| m.get("run")).ok_or_else(|| damaged("it names no run".into()))?;
        let format = serde_json::from_str::<serde_json::Value>(record).ok().and_then(|v| v.get("format")?.as_u64());
        if format != Some(u64::from(FORMAT)) {
            return Err(damaged(format!("its format is {format:?}, this program reads {FORMAT}")));
        }
        let record: Record = serde_json::from_str(record).map_err(|e| damaged(e.to_string()))?;
        if record.fingerprint != self.fingerprint {
            let problem = "belongs to a run with other options, documents, views or validation queries; delete it, or name \
                           another work directory";
            return Err(Error::format(&self.path, problem));
        }
        let file = SafeTensors::deserialize(&bytes).map_err(|e| damaged(e.to_string()))?;
        let mut parts: Vec<Vec<f32>> = Vec::new();
        let mut raw: Vec<&[u8]> = Vec::new();
        for name in ["parameters", "first", "second", "best"] {
            let tensor = file.tensor(name).map_err(|_| damaged(format!("it has no {name}")))?;
            if tensor.dtype() != Dtype::F32 || tensor.shape() != [sizes.len()] {
                return Err(damaged(format!("{name} has shape {:?}, expected [{}]", tensor.shape(), sizes.len())));
            }
            raw.push(tensor.data());
            parts.push(tensor.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect());
        }
        if checksum(raw.into_iter()) != record.checksum {
            return Err(damaged("its checksum differs".into()));
        }
        let [values, first, second, best] = <[Vec<f32>; 4]>::try_from(parts).expect("four were read");
        Ok(Some(State {
            parameters: Parameters { sizes, values },
            moments: Moments { first, second, updates: record.updates },
            epoch: record.epoch,
            stale: record.stale,
            best: (record.best_epoch > 0).then(|| Best {
                epoch: record.best_epoch,
                figure: f64::from_bits(record.best_figure),
                scores: record.best_scores,
                usage: record.best_usage,
                parameters: best,
            }),
            curve: record.curve,
            training_seconds: record.training_seconds,
            validation_seconds: record.validation_seconds,
        }))
    }
}

fn checksum<'a>(parts: impl Iterator<Item = &'a [u8]>) -> u32 {
    let mut hash = crc32fast::Hasher::new();
    parts.for_each(|part| hash.update(part));
    hash.finalize()
}
