//! Files of vectors, read in ranges of rows.
//!
//! | ending | format |
//! |---|---|
//! | `.npy` | NumPy, two dimensions, `f2`, `f4`, `f8`, `i1` or `u1`, C order |
//! | `.fbin`, `.u8bin`, `.i8bin` | big-ann-benchmarks: u32 rows, u32 columns, the values |
//! | `.fvecs`, `.bvecs` | TEXMEX: every row begins with its length as i32 |
//! | `.hdf5`, `.h5` | ann-benchmarks: a dataset of two dimensions, `train` by default |

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::npy::Header;
use crate::{Error, Matrix, Result};
use parking_lot::Mutex;

/// The type of a stored value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Element {
    F16,
    F32,
    F64,
    I8,
    U8,
}

impl Element {
    fn size(self) -> usize {
        match self {
            Element::F16 => 2,
            Element::F32 => 4,
            Element::F64 => 8,
            Element::I8 | Element::U8 => 1,
        }
    }

    fn decode(self, bytes: &[u8], out: &mut Vec<f32>) {
        match self {
            Element::F16 => out.extend(bytes.as_chunks().0.iter().map(|b| half::f16::from_le_bytes(*b).to_f32())),
            Element::F32 => out.extend(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b))),
            Element::F64 => out.extend(bytes.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b) as f32)),
            Element::I8 => out.extend(bytes.iter().map(|b| f32::from(b.cast_signed()))),
            Element::U8 => out.extend(bytes.iter().map(|b| f32::from(*b))),
        }
    }
}

enum Source {
    /// Rows of equal length one after the other, each after `skip` bytes of its own.
    Plain { file: Mutex<File>, element: Element, start: u64, skip: usize },
    #[cfg(feature = "hdf5")]
    Hdf5 { dataset: Box<hdf5_pure::Dataset>, element: Element },
}

pub struct VectorFile {
    path: PathBuf,
    rows: usize,
    width: usize,
    source: Source,
}

/// File name endings of the supported formats.
pub const ENDINGS: [&str; 8] = ["npy", "fbin", "u8bin", "i8bin", "fvecs", "bvecs", "hdf5", "h5"];

fn ending(path: &Path) -> String {
    path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase()).unwrap_or_default()
}

/// Whether the file name has an ending of a supported format.
pub fn is_vectors(path: &Path) -> bool {
    ENDINGS.contains(&ending(path).as_str())
}

impl VectorFile {
    /// Opens a file and checks its size against its header. `dataset` names the dataset of an HDF5 file.
    pub fn open(path: &Path, dataset: Option<&str>) -> Result<VectorFile> {
        let ending = ending(path);
        if matches!(ending.as_str(), "hdf5" | "h5") {
            return open_hdf5(path, dataset.unwrap_or("train"));
        }
        if let Some(name) = dataset {
            return Err(Error::config(format!("dataset {name}: only HDF5 files have datasets, not .{ending}")));
        }
        let mut file = File::open(path).map_err(Error::io(path))?;
        let size = file.metadata().map_err(Error::io(path))?.len();
        let bad = |problem: String| Error::format(path, problem);
        let short = |e: std::io::Error| bad(format!("ends before its header does ({e})"));
        let (rows, width, element, start, skip) = match ending.as_str() {
            "npy" => {
                let header = Header::read(path, &mut file)?;
                let element = match header.dtype.as_str() {
                    "<f2" => Element::F16,
                    "<f4" => Element::F32,
                    "<f8" => Element::F64,
                    "|i1" => Element::I8,
                    "|u1" => Element::U8,
                    other => return Err(bad(format!("holds {other}; vectors are of f2, f4, f8, i1 or u1"))),
                };
                let [rows, width] = header.shape[..] else {
                    return Err(bad(format!("has shape {:?}; vectors have two dimensions", header.shape)));
                };
                (rows, width, element, header.start as u64, 0)
            }
            "fbin" | "u8bin" | "i8bin" => {
                let element = match ending.as_str() {
                    "fbin" => Element::F32,
                    "u8bin" => Element::U8,
                    _ => Element::I8,
                };
                let mut head = [0; 8];
                file.read_exact(&mut head).map_err(short)?;
                let [rows, width] =
                    [&head[..4], &head[4..]].map(|b| u32::from_le_bytes(b.try_into().expect("four")) as usize);
                (rows, width, element, 8, 0)
            }
            "fvecs" | "bvecs" => {
                let element = if ending == "fvecs" { Element::F32 } else { Element::U8 };
                let mut head = [0; 4];
                file.read_exact(&mut head).map_err(short)?;
                let width = usize::try_from(i32::from_le_bytes(head)).unwrap_or(0);
                let row = 4 + width as u64 * element.size() as u64;
                if width == 0 || !size.is_multiple_of(row) {
                    return Err(bad(format!(
                        "its first row says {width} values, but {size} bytes are no whole rows of that"
                    )));
                }
                ((size / row) as usize, width, element, 0, 4)
            }
            _ => {
                return Err(Error::config(format!(
                    "{}: not a file of vectors; known endings: {}",
                    path.display(),
                    ENDINGS.join(", ")
                )));
            }
        };
        let needed = (rows as u64)
            .checked_mul((skip as u64).saturating_add((width as u64).saturating_mul(element.size() as u64)))
            .and_then(|n| n.checked_add(start));
        if width == 0 || needed != Some(size) {
            return Err(bad(format!(
                "says {rows} rows of {width} values, which is not what its {size} bytes hold; it is cut short or of another kind"
            )));
        }
        Ok(VectorFile {
            path: path.to_path_buf(),
            rows,
            width,
            source: Source::Plain { file: Mutex::new(file), element, start, skip },
        })
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values per vector.
    pub fn width(&self) -> usize {
        self.width
    }

    /// A range of the vectors. A value that is not finite is refused with its row.
    pub fn read(&self, rows: Range<usize>) -> Result<Matrix> {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "{rows:?} of {} rows", self.rows);
        let mut values = Vec::with_capacity(rows.len() * self.width);
        match &self.source {
            Source::Plain { file, element, start, skip } => {
                let row = skip + self.width * element.size();
                let mut bytes = vec![0; rows.len() * row];
                let mut file = file.lock();
                file.seek(SeekFrom::Start(start + (rows.start * row) as u64))
                    .and_then(|_| file.read_exact(&mut bytes))
                    .map_err(Error::io(&self.path))?;
                for (i, row) in bytes.chunks_exact(row).enumerate() {
                    if *skip > 0 && row[..*skip] != (self.width as i32).to_le_bytes() {
                        let at = rows.start + i;
                        return Err(Error::format(&self.path, format!("row {at} has another length than the first")));
                    }
                    element.decode(&row[*skip..], &mut values);
                }
            }
            #[cfg(feature = "hdf5")]
            Source::Hdf5 { dataset, element } => {
                let (start, count) = (rows.start as u64, rows.len() as u64);
                let read = match element {
                    Element::F64 => dataset.read_f64_rows(start, count).map(|v| v.iter().map(|x| *x as f32).collect()),
                    _ => dataset.read_f32_rows(start, count),
                };
                values = read.map_err(|e| Error::format(&self.path, format!("rows {rows:?} cannot be read: {e}")))?;
            }
        }
        if values.len() != rows.len() * self.width {
            return Err(Error::format(&self.path, format!("rows {rows:?} gave {} values", values.len())));
        }
        let matrix = Matrix::from_vec(self.width, values);
        let odd = matrix.iter().position(|row| !row.iter().all(|v| v.is_finite()));
        match odd {
            None => Ok(matrix),
            Some(i) => Err(Error::input(
                format!("{}, row {}", self.path.display(), rows.start + i),
                "holds a value that is not a finite number; leave the row out or encode it again",
            )),
        }
    }
}

#[cfg(not(feature = "hdf5"))]
fn open_hdf5(path: &Path, _: &str) -> Result<VectorFile> {
    Err(Error::format(
        path,
        "is HDF5, and this program was built without the feature \"hdf5\"; build with it, or write .npy",
    ))
}

#[cfg(feature = "hdf5")]
fn open_hdf5(path: &Path, name: &str) -> Result<VectorFile> {
    // Gives the file system's own error if there is no such file.
    File::open(path).map_err(Error::io(path))?;
    let bad = |problem: String| Error::format(path, problem);
    let file = hdf5_pure::File::open_streaming(path).map_err(|e| bad(format!("is not a readable HDF5 file: {e}")))?;
    let dataset = file.dataset(name).map_err(|e| {
        let known = file.root().datasets().unwrap_or_default().join(", ");
        bad(format!("has no readable dataset \"{name}\" ({e}); it holds: {known}"))
    })?;
    let shape = dataset.shape().map_err(|e| bad(e.to_string()))?;
    let [rows, width] = shape[..] else {
        return Err(bad(format!("dataset \"{name}\" has shape {shape:?}; vectors have two dimensions")));
    };
    let element = match dataset.dtype().map_err(|e| bad(e.to_string()))? {
        hdf5_pure::DType::F32 => Element::F32,
        hdf5_pure::DType::F64 => Element::F64,
        other => return Err(bad(format!("dataset \"{name}\" holds {other:?}; vectors are of f32 or f64"))),
    };
    let (Ok(rows), Ok(width)) = (usize::try_from(rows), usize::try_from(width)) else {
        return Err(bad(format!("dataset \"{name}\" says {rows} rows of {width} values")));
    };
    if width == 0 {
        return Err(bad(format!("dataset \"{name}\" has vectors of no values")));
    }
    Ok(VectorFile {
        path: path.to_path_buf(),
        rows,
        width,
        source: Source::Hdf5 { dataset: Box::new(dataset), element },
    })
}

/// Writes vectors as `.fbin`.
pub fn write_fbin(path: &Path, vectors: &Matrix) -> Result<()> {
    let (Ok(rows), Ok(width)) = (u32::try_from(vectors.rows()), u32::try_from(vectors.cols())) else {
        return Err(Error::config("an .fbin file holds fewer than 2^32 rows; write .npy"));
    };
    let mut bytes = [rows.to_le_bytes(), width.to_le_bytes()].concat();
    bytes.extend(vectors.as_slice().iter().flat_map(|v| v.to_le_bytes()));
    crate::disk::replace(path, &bytes)
}

#[cfg(test)]
mod tests {
    use super::super::npy::{self, NpyWriter};
    use super::*;

    fn values() -> Matrix {
        Matrix::from_vec(3, (0..30).map(|i| i as f32 - 7.0).collect())
    }

    fn check(path: &Path) {
        let file = VectorFile::open(path, None).unwrap();
        assert_eq!((file.rows(), file.width()), (10, 3), "{}", path.display());
        assert_eq!(file.read(0..10).unwrap(), values());
        assert_eq!(file.read(4..6).unwrap().row(1), values().row(5));
        assert_eq!(file.read(10..10).unwrap().rows(), 0);
    }

    #[test]
    fn every_format_is_read_and_a_truncated_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        write_fbin(&at("v.fbin"), &values()).unwrap();
        let mut npy = NpyWriter::f32(&at("v.npy"), 3).unwrap();
        npy.rows_f32(&values()).unwrap();
        npy.finish().unwrap();
        let fvecs: Vec<u8> = values()
            .iter()
            .flat_map(|row| {
                [3i32.to_le_bytes()]
                    .into_iter()
                    .chain(row.iter().map(|v| v.to_le_bytes()))
                    .flatten()
                    .collect::<Vec<_>>()
            })
            .collect();
        std::fs::write(at("v.fvecs"), fvecs).unwrap();
        let signed: Vec<u8> = values().as_slice().iter().map(|v| (*v as i8).cast_unsigned()).collect();
        std::fs::write(at("v.i8bin"), [[10, 0, 0, 0, 3, 0, 0, 0].as_slice(), &signed].concat()).unwrap();
        let wide: Vec<u8> = values().as_slice().iter().flat_map(|v| f64::from(*v).to_le_bytes()).collect();
        std::fs::write(at("w.npy"), [npy::header("<f8", &[10, 3]), wide].concat()).unwrap();
        let half: Vec<u8> = values().as_slice().iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect();
        std::fs::write(at("h.npy"), [npy::header("<f2", &[10, 3]), half].concat()).unwrap();
        let mut hdf5 = hdf5_pure::FileBuilder::new();
        hdf5.create_dataset("train").with_f32_data(values().as_slice()).with_shape(&[10, 3]);
        hdf5.create_dataset("test").with_f64_data(&[1.0, 2.0]).with_shape(&[1, 2]);
        hdf5.write(at("v.hdf5")).unwrap();
        for name in ["v.fbin", "v.npy", "v.fvecs", "v.i8bin", "w.npy", "h.npy", "v.hdf5"] {
            check(&at(name));
            let whole = std::fs::read(at(name)).unwrap();
            // HDF5 may end in padding, so a byte less is no damage; half of the file is.
            let left = if name == "v.hdf5" { whole.len() / 2 } else { whole.len() - 1 };
            std::fs::write(at(name), &whole[..left]).unwrap();
            assert!(VectorFile::open(&at(name), None).and_then(|f| f.read(0..f.rows())).is_err(), "{name} cut");
            std::fs::write(at(name), &whole).unwrap();
        }
        let test = VectorFile::open(&at("v.hdf5"), Some("test")).unwrap();
        assert_eq!(test.read(0..1).unwrap().row(0), [1.0, 2.0]);
        let message = VectorFile::open(&at("v.hdf5"), Some("queries")).err().unwrap().to_string();
        assert!(message.contains("train"), "{message}");
        assert!(VectorFile::open(&at("v.npy"), Some("train")).is_err());
        std::fs::write(at("v.csv"), "1,2,3").unwrap();
        let message = VectorFile::open(&at("v.csv"), None).err().unwrap().to_string();
        assert!(message.contains("fbin"), "{message}");
    }

    #[test]
    fn values_that_are_not_finite_are_refused_with_their_row() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("v.fbin");
        let mut vectors = values();
        vectors.row_mut(6)[1] = f32::NAN;
        write_fbin(&path, &vectors).unwrap();
        let message = VectorFile::open(&path, None).unwrap().read(5..8).unwrap_err().to_string();
        assert!(message.contains("row 6"), "{message}");
    }
}
