//! `model.safetensors`, whole or in parts, read and checked.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::tensor::{Dtype, SafeTensors};
use sha2::{Digest, Sha256};

use crate::mmap::Map;
use crate::{Error, Result};

/// The weight file of an encoder, and the list of its parts where it has several.
pub(super) const WEIGHTS: &str = "model.safetensors";
pub(super) const PARTS: &str = "model.safetensors.index.json";

/// Open weight files: `model.safetensors`, or the parts that `model.safetensors.index.json` lists. Tensors are looked up with and
/// without the prefix of their architecture.
pub struct Weights {
    // The file that errors name: the only one, or the list of parts.
    path: PathBuf,
    files: Vec<(PathBuf, Arc<Map>)>,
    tensors: HashMap<String, Tensor>,
    prefix: &'static str,
}

#[derive(Clone)]
struct Tensor {
    file: usize,
    shape: Vec<usize>,
    dtype: Dtype,
    start: usize,
    end: usize,
}

impl Weights {
    /// Maps the files and reads their headers.
    pub fn open(dir: &Path) -> Result<Self> {
        let (single, list) = (dir.join(WEIGHTS), dir.join(PARTS));
        let (path, names) = if single.exists() {
            (single, vec![WEIGHTS.to_owned()])
        } else if list.exists() {
            let names = parts(&list)?;
            (list, names)
        } else {
            return Err(Error::format(
                dir,
                "has no model.safetensors; weights in other formats are not read, and safetensors has a program that converts them",
            ));
        };
        let (mut files, mut tensors) = (Vec::new(), HashMap::new());
        for name in names {
            let path = dir.join(name);
            let map = Arc::new(Map::open(&path)?);
            headers(&path, &map, files.len(), &mut tensors)?;
            files.push((path, map));
        }
        Ok(Weights { path, files, tensors, prefix: "" })
    }

    /// Looks tensors up with `prefix` in front too: that of a model with a task head, such as `bert.`.
    pub fn prefixed(mut self, prefix: &'static str) -> Self {
        self.prefix = prefix;
        self
    }

    /// The shape of a tensor, where there is one.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.get(name).map(|tensor| &tensor.shape[..])
    }

    fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name).or_else(|| self.tensors.get(&format!("{}{name}", self.prefix)))
    }

    /// Refuses a tensor that is missing or has another shape, before memory is allocated for it.
    pub fn expect(&self, name: &str, shape: &[usize]) -> Result<()> {
        self.find(name, shape).map(drop)
    }

    fn find(&self, name: &str, shape: &[usize]) -> Result<&Tensor> {
        let bad = |problem: String| Error::format(&self.path, problem);
        let tensor = self.get(name).ok_or_else(|| {
            bad(format!("has no tensor \"{name}\" (nor \"{}{name}\"); fetch the encoder again", self.prefix))
        })?;
        if tensor.shape != shape {
            return Err(bad(format!(
                "tensor \"{name}\" has shape {:?}, config.json asks for {shape:?}: weights and config belong to different encoders",
                tensor.shape
            )));
        }
        if !matches!(tensor.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16) {
            return Err(bad(format!("tensor \"{name}\" is {:?}, expected F32, F16 or BF16", tensor.dtype)));
        }
        Ok(tensor)
    }

    /// A tensor as `f32`. Values that are not finite are refused.
    pub fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let tensor = self.find(name, shape)?;
        let (path, map) = &self.files[tensor.file];
        let values = decode(&map[tensor.start..tensor.end], tensor.dtype);
        match values.iter().position(|v| !v.is_finite()) {
            None => Ok(values),
            Some(i) => Err(Error::format(
                path,
                format!(
                    "tensor \"{name}\" holds {} at position {i}; the file is damaged, fetch the encoder again",
                    values[i]
                ),
            )),
        }
    }

    /// An embedding table that stays in the file and is read row by row: a query touches a dozen of 30,522 rows. So its values
    /// are not checked here; [`Embedding::check_row`] checks a row before it is used.
    pub fn embedding(&self, name: &str, rows: usize, width: usize) -> Result<Embedding> {
        let tensor = self.find(name, &[rows, width])?.clone();
        let (path, map) = self.files[tensor.file].clone();
        Ok(Embedding { path, name: name.to_owned(), map, dtype: tensor.dtype, start: tensor.start, rows, width })
    }

    /// SHA-256 of the whole file; of the checksums of the parts, where there are several. They are cached with a file's size and
    /// modification time, because a query should not wait for 90 MB to be hashed.
    pub fn sha256(&self) -> Result<String> {
        let hash = |(path, map): &(PathBuf, Arc<Map>)| {
            super::pull::remembered_hash(path, || hex::encode(Sha256::digest(&map[..])))
        };
        let hashes = self.files.iter().map(hash).collect::<Result<Vec<_>>>()?;
        Ok(match &hashes[..] {
            [only] => only.clone(),
            several => hex::encode(Sha256::digest(several.join("\n"))),
        })
    }
}

/// The names of the parts, sorted.
pub(super) fn parts(list: &Path) -> Result<Vec<String>> {
    let bad = |problem: &str| Error::format(list, format!("{problem}; fetch the encoder again"));
    let text = std::fs::read_to_string(list).map_err(Error::io(list))?;
    let json: serde_json::Value = serde_json::from_str(&text).map_err(|e| bad(&format!("is not valid JSON: {e}")))?;
    let map = json["weight_map"].as_object().ok_or_else(|| bad("has no weight_map"))?;
    let names: BTreeSet<&str> = map.values().filter_map(|name| name.as_str()).collect();
    if names.is_empty() || names.iter().any(|name| name.contains(['/', '\\']) || !name.ends_with(".safetensors")) {
        return Err(bad("its weight_map does not name files of this directory"));
    }
    Ok(names.into_iter().map(str::to_owned).collect())
}

/// Adds the tensors of file number `file`.
fn headers(path: &Path, map: &Map, file: usize, tensors: &mut HashMap<String, Tensor>) -> Result<()> {
    let read = SafeTensors::deserialize(map).map_err(|e| {
        let problem = match first_cut(map) {
            Some((tensor, missing)) => {
                format!("is cut short: tensor \"{tensor}\" lacks its last {missing} bytes; fetch the encoder again")
            }
            None => format!("not a whole safetensors file: {e}; it may be cut short, fetch the encoder again"),
        };
        Error::format(path, problem)
    })?;
    let base = map.as_ptr() as usize;
    for (name, view) in read.iter() {
        let start = view.data().as_ptr() as usize - base;
        let end = start + view.data().len();
        tensors.insert(name.to_owned(), Tensor { file, shape: view.shape().to_vec(), dtype: view.dtype(), start, end });
    }
    Ok(())
}

/// The first tensor, in the order of the file, that its header places beyond the end, and the number of missing bytes.
fn first_cut(map: &[u8]) -> Option<(String, u64)> {
    let (length, rest) = map.split_first_chunk::<8>()?;
    let (header, data) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(header).ok()?;
    let ends = header.iter().filter_map(|(name, tensor)| Some((tensor["data_offsets"][1].as_u64()?, name)));
    let (end, name) = ends.filter(|(end, _)| *end > data.len() as u64).min()?;
    Some((name.clone(), end - data.len() as u64))
}

/// Rows of a mapped table.
pub struct Embedding {
    path: PathBuf,
    name: String,
    map: Arc<Map>,
    dtype: Dtype,
    start: usize,
    rows: usize,
    width: usize,
}

impl Embedding {
    /// Refuses row `i` if it holds a value that is not finite.
    ///
    /// # Panics
    /// If there is no such row; the caller has checked its ids.
    pub fn check_row(&self, i: usize) -> Result<()> {
        let row = self.row(i);
        // All ones in the exponent: infinite or NaN.
        let bad = match self.dtype {
            Dtype::F32 => {
                row.as_chunks::<4>().0.iter().position(|b| u32::from_le_bytes(*b) & 0x7f80_0000 == 0x7f80_0000)
            }
            Dtype::F16 => row.as_chunks::<2>().0.iter().position(|b| u16::from_le_bytes(*b) & 0x7c00 == 0x7c00),
            _ => row.as_chunks::<2>().0.iter().position(|b| u16::from_le_bytes(*b) & 0x7f80 == 0x7f80),
        };
        match bad {
            None => Ok(()),
            Some(at) => Err(Error::format(
                &self.path,
                format!(
                    "tensor \"{}\" holds a value that is not a finite number in row {i} at position {at}; the file is damaged, fetch the encoder again",
                    self.name
                ),
            )),
        }
    }

    /// Refuses a table with a value that is not finite in any row.
    pub fn check_all(self) -> Result<Self> {
        (0..self.rows).try_for_each(|i| self.check_row(i))?;
        Ok(self)
    }

    fn row(&self, i: usize) -> &[u8] {
        assert!(i < self.rows);
        let bytes = self.width * size(self.dtype);
        &self.map[self.start + i * bytes..self.start + (i + 1) * bytes]
    }

    /// Adds row `i` to `out`.
    ///
    /// # Panics
    /// If there is no such row; the caller has checked its ids.
    pub fn add_row(&self, i: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.width);
        let row = self.row(i);
        match self.dtype {
            Dtype::F32 => add(row.as_chunks::<4>().0, out, |b| f32::from_le_bytes(*b)),
            Dtype::F16 => add(row.as_chunks::<2>().0, out, |b| half::f16::from_le_bytes(*b).to_f32()),
            _ => add(row.as_chunks::<2>().0, out, |b| half::bf16::from_le_bytes(*b).to_f32()),
        }
    }
}

fn add<B>(row: &[B], out: &mut [f32], value: impl Fn(&B) -> f32) {
    for (o, b) in out.iter_mut().zip(row) {
        *o += value(b);
    }
}

fn size(dtype: Dtype) -> usize {
    if dtype == Dtype::F32 { 4 } else { 2 }
}

fn decode(bytes: &[u8], dtype: Dtype) -> Vec<f32> {
    match dtype {
        Dtype::F32 => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        Dtype::F16 => bytes.as_chunks::<2>().0.iter().map(|b| half::f16::from_le_bytes(*b).to_f32()).collect(),
        _ => bytes.as_chunks::<2>().0.iter().map(|b| half::bf16::from_le_bytes(*b).to_f32()).collect(),
    }
}
