//! The whole state of a run on disk after every epoch. A killed run resumes from it and ends in the same model.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use engine::{Error, Result};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::metrics::{Scores, Usage};
use crate::parameters::{Moments, Parameters, Sizes};
use crate::step::Losses;

/// Version of the file format. 1: first release.
const FORMAT: u32 = 1;

/// The record of an epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Epoch {
    /// Counted from 1.
    pub epoch: usize,
    /// Means over the epoch's documents.
    #[serde(flatten)]
    pub losses: Losses,
    /// Value of the validation metric.
    pub validation: f64,
    /// Codewords in use, mean over codebooks.
    pub codewords: f64,
    /// Number of distinct codes.
    pub distinct: usize,
    /// Training and validation together.
    pub seconds: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Best {
    pub epoch: usize,
    /// Value of the validation metric.
    pub metric: f64,
    pub scores: Option<Scores>,
    pub usage: Usage,
    pub parameters: Vec<f32>,
}

/// Everything the next epoch depends on, and the record of earlier epochs. Random draws are functions of seed, epoch and
/// update, so there is no generator to save.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct State {
    pub parameters: Parameters<f32>,
    pub moments: Moments<f32>,
    pub epoch: usize,
    /// Epochs since the best epoch.
    pub stale: usize,
    pub best: Option<Best>,
    pub curve: Vec<Epoch>,
    pub training_seconds: f64,
    pub validation_seconds: f64,
}

/// The record of MICPQ's runs beside their values.
#[derive(Serialize, Deserialize)]
struct Record {
    epoch: usize,
    updates: u64,
    stale: usize,
    best_epoch: usize,
    // The bits of the metric: decimal digits need not give the same number back, and a tie must stay a tie.
    #[serde(rename = "best_figure")]
    best_metric: u64,
    best_scores: Option<Scores>,
    best_usage: Usage,
    curve: Vec<Epoch>,
    training_seconds: f64,
    validation_seconds: f64,
}

/// The record in a file: what every run has, and what this kind of run adds.
#[derive(Serialize, Deserialize)]
struct Header<R> {
    format: u32,
    fingerprint: String,
    checksum: u32,
    #[serde(flatten)]
    run: R,
}

/// The checkpoint file of a run, locked while the run lives.
pub(crate) struct Checkpoint {
    path: PathBuf,
    fingerprint: String,
    // The system releases it however the run ends.
    _lock: File,
}

impl Checkpoint {
    /// Locks the checkpoint of the run with this fingerprint. Runs with other options have other files in the directory.
    pub fn open(dir: &Path, fingerprint: String) -> Result<Self> {
        std::fs::create_dir_all(dir).map_err(Error::io(dir))?;
        let name = format!("training-{:08x}", crc32fast::hash(fingerprint.as_bytes()));
        let lock_path = dir.join(format!("{name}.lock"));
        let lock = File::create(&lock_path).map_err(Error::io(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => Ok(Checkpoint { path: dir.join(format!("{name}.safetensors")), fingerprint, _lock: lock }),
            Err(std::fs::TryLockError::WouldBlock) => {
                let dir = dir.display();
                Err(Error::Busy(format!(
                    "{dir}: the same run is already training here; wait for it or use another work directory"
                )))
            }
            Err(std::fs::TryLockError::Error(e)) => Err(Error::io(&lock_path)(e)),
        }
    }

    /// Saves named values and the record of a run. Replaces the file atomically: at every moment the old or the new one exists.
    pub fn write(&self, values: &[(&str, &[f32])], run: &impl Serialize) -> Result<()> {
        let bytes: Vec<(&str, Vec<u8>)> =
            values.iter().map(|(name, v)| (*name, v.iter().flat_map(|x| x.to_le_bytes()).collect())).collect();
        let checksum = checksum(bytes.iter().map(|(_, b)| &b[..]));
        let header = Header { format: FORMAT, fingerprint: self.fingerprint.clone(), checksum, run };
        let header = serde_json::to_string(&header).expect("plain data has a JSON form");
        let tensors = bytes.iter().map(|(name, b)| {
            (*name, TensorView::new(Dtype::F32, vec![b.len() / 4], b).expect("lengths follow from the values"))
        });
        let file = safetensors::serialize(tensors, Some(HashMap::from([("run".to_string(), header)])))
            .map_err(|e| Error::format(&self.path, e.to_string()))?;
        engine::internal::replace(&self.path, &file)
    }

    /// The record and the named values, `length` of each, that an earlier run with the same fingerprint saved.
    pub fn read<R: DeserializeOwned, const N: usize>(
        &self,
        names: [&str; N],
        length: usize,
    ) -> Result<Option<(R, [Vec<f32>; N])>> {
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
        let header = header
            .metadata()
            .as_ref()
            .and_then(|m| m.get("run"))
            .ok_or_else(|| damaged("it has no record of a run".into()))?;
        let format = serde_json::from_str::<serde_json::Value>(header).ok().and_then(|v| v.get("format")?.as_u64());
        if format != Some(u64::from(FORMAT)) {
            return Err(damaged(format!("its format is {format:?}, expected {FORMAT}")));
        }
        let header: Header<R> = serde_json::from_str(header).map_err(|e| damaged(e.to_string()))?;
        if header.fingerprint != self.fingerprint {
            let problem = "belongs to a run with other options, documents, views or validation queries; delete it, or use \
                           another work directory";
            return Err(Error::format(&self.path, problem));
        }
        let file = SafeTensors::deserialize(&bytes).map_err(|e| damaged(e.to_string()))?;
        let mut parts: Vec<Vec<f32>> = Vec::new();
        let mut bytes_read: Vec<&[u8]> = Vec::new();
        for name in names {
            let tensor = file.tensor(name).map_err(|_| damaged(format!("it has no {name}")))?;
            if tensor.dtype() != Dtype::F32 || tensor.shape() != [length] {
                return Err(damaged(format!("{name} has shape {:?}, expected [{length}]", tensor.shape())));
            }
            bytes_read.push(tensor.data());
            parts.push(tensor.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect());
        }
        if checksum(bytes_read.into_iter()) != header.checksum {
            return Err(damaged("its checksum differs".into()));
        }
        Ok(Some((header.run, parts.try_into().expect("one part for each name"))))
    }

    pub fn save(&self, state: &State) -> Result<()> {
        let best = state.best.as_ref();
        let values = [
            ("parameters", &state.parameters.values[..]),
            ("first", &state.moments.first),
            ("second", &state.moments.second),
            ("best", best.map_or(&state.parameters.values, |b| &b.parameters)),
        ];
        let record = Record {
            epoch: state.epoch,
            updates: state.moments.updates,
            stale: state.stale,
            best_epoch: best.map_or(0, |b| b.epoch),
            best_metric: best.map_or(0, |b| b.metric.to_bits()),
            best_scores: best.and_then(|b| b.scores),
            best_usage: best.map(|b| b.usage.clone()).unwrap_or_default(),
            curve: state.curve.clone(),
            training_seconds: state.training_seconds,
            validation_seconds: state.validation_seconds,
        };
        self.write(&values, &record)
    }

    /// The state that an earlier run with the same fingerprint saved.
    pub fn load(&self, sizes: Sizes) -> Result<Option<State>> {
        let names = ["parameters", "first", "second", "best"];
        let Some((record, values)) = self.read::<Record, 4>(names, sizes.len())? else { return Ok(None) };
        let [values, first, second, best] = values;
        Ok(Some(State {
            parameters: Parameters { sizes, values },
            moments: Moments { first, second, updates: record.updates },
            epoch: record.epoch,
            stale: record.stale,
            best: (record.best_epoch > 0).then(|| Best {
                epoch: record.best_epoch,
                metric: f64::from_bits(record.best_metric),
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
