//! NumPy's `.npy` files (version 1.0, little-endian, C order), used to export and import embeddings and codes.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use crate::{Error, Matrix, Result, disk};

const MAGIC: &[u8] = b"\x93NUMPY\x01\x00";
/// Bytes of the whole header. The length is fixed, so that the row count can be filled in after the last row.
const HEADER: usize = 128;

/// The header of an array of `shape`.
pub(crate) fn header(dtype: &str, shape: &[usize]) -> Vec<u8> {
    let shape = match shape {
        [n] => format!("{n},"),
        _ => shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    };
    let dict = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({shape}), }}");
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&((HEADER - 10) as u16).to_le_bytes());
    out.extend_from_slice(dict.as_bytes());
    out.resize(HEADER - 1, b' ');
    out.push(b'\n');
    out
}

/// Writes a `.npy` file in blocks of rows. The file appears under its name only when finished.
pub struct NpyWriter {
    path: PathBuf,
    staged: disk::StagedFile,
    out: BufWriter<File>,
    dtype: &'static str,
    size: usize,
    cols: usize,
    bytes: usize,
}

impl NpyWriter {
    fn create(path: &Path, dtype: &'static str, size: usize, cols: usize) -> Result<Self> {
        let staged = disk::StagedFile::create(path)?;
        let mut out = BufWriter::with_capacity(1 << 20, staged.file()?);
        out.write_all(&header(dtype, &[0, cols])).map_err(Error::io(path))?;
        Ok(NpyWriter { path: path.to_path_buf(), staged, out, dtype, size, cols, bytes: 0 })
    }

    /// A file of `f32` rows.
    pub fn f32(path: &Path, cols: usize) -> Result<Self> {
        Self::create(path, "<f4", 4, cols)
    }

    /// A file of `u8` rows.
    pub fn u8(path: &Path, cols: usize) -> Result<Self> {
        Self::create(path, "|u1", 1, cols)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes += bytes.len();
        self.out.write_all(bytes).map_err(Error::io(&self.path))
    }

    pub fn rows_f32(&mut self, rows: &Matrix) -> Result<()> {
        assert_eq!((self.dtype, self.cols), ("<f4", rows.cols()));
        let bytes: Vec<u8> = rows.as_slice().iter().flat_map(|x| x.to_le_bytes()).collect();
        self.write(&bytes)
    }

    pub fn rows_u8(&mut self, rows: &[u8]) -> Result<()> {
        assert_eq!(self.dtype, "|u1");
        assert!(rows.len().is_multiple_of(self.cols));
        self.write(rows)
    }

    /// Fills in the row count, syncs and renames the file to its final path. Returns the number of rows.
    pub fn finish(mut self) -> Result<usize> {
        use std::io::Seek;
        let rows = self.bytes / (self.size * self.cols);
        let fail = || Error::io(&self.path);
        self.out.seek(std::io::SeekFrom::Start(0)).map_err(fail())?;
        self.out.write_all(&header(self.dtype, &[rows, self.cols])).map_err(fail())?;
        self.out.flush().map_err(fail())?;
        self.staged.finish()?;
        Ok(rows)
    }
}

/// Reads a two-dimensional `f32` file.
pub fn read_f32(path: &Path) -> Result<Matrix> {
    let (_, cols, bytes) = read(path, &["<f4"], load(path)?)?;
    let data = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    Ok(Matrix::from_vec(cols, data))
}

/// Reads a two-dimensional `u8` file as (columns, bytes).
pub fn read_u8(path: &Path) -> Result<(usize, Vec<u8>)> {
    let (_, cols, bytes) = read(path, &["|u1"], load(path)?)?;
    Ok((cols, bytes))
}

/// Reads user vectors: one, or several as rows, in half, single or double precision. `-` is standard input.
pub fn read_vectors(path: &Path) -> Result<Matrix> {
    let bytes = if path == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin().lock().read_to_end(&mut bytes).map_err(Error::io("standard input"))?;
        bytes
    } else {
        load(path)?
    };
    let (dtype, cols, bytes) = read(path, &["<f4", "<f2", "<f8"], bytes)?;
    let data = match dtype {
        "<f2" => bytes.as_chunks::<2>().0.iter().map(|b| half::f16::from_le_bytes(*b).to_f32()).collect(),
        "<f8" => bytes.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b) as f32).collect(),
        _ => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
    };
    Ok(Matrix::from_vec(cols, data))
}

fn load(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    disk::open_to_end(path)?.read_to_end(&mut bytes).map_err(Error::io(path))?;
    Ok(bytes)
}

/// The header of a file.
pub(crate) struct Header {
    /// NumPy's name of the type: `<f4`.
    pub dtype: String,
    pub shape: Vec<usize>,
    /// Offset of the values in bytes.
    pub start: usize,
}

impl Header {
    /// Reads the header of a file.
    pub(crate) fn read(path: &Path, file: &mut impl Read) -> Result<Header> {
        let bad = |what: &str| Error::format(path, format!("not a readable .npy file: {what}"));
        let mut fixed = [0; 10];
        file.read_exact(&mut fixed).map_err(|_| bad("it is shorter than a header"))?;
        if &fixed[..6] != b"\x93NUMPY" {
            return Err(bad("it does not begin with NumPy's magic"));
        }
        let mut length = u16::from_le_bytes([fixed[8], fixed[9]]) as usize;
        let mut start = 10 + length;
        if matches!(fixed[6], 2 | 3) {
            let mut high = [0; 2];
            file.read_exact(&mut high).map_err(|_| bad("its header is cut short"))?;
            length |= (u16::from_le_bytes(high) as usize) << 16;
            start = 12 + length;
        } else if fixed[6] != 1 {
            return Err(bad(&format!("version {} of the format is not known", fixed[6])));
        }
        let mut dict = Vec::new();
        file.take(length as u64).read_to_end(&mut dict).map_err(Error::io(path))?;
        let dict = String::from_utf8(dict).ok().filter(|d| d.len() == length);
        let dict = dict.ok_or_else(|| bad("its header is cut short"))?;
        let said = || bad(&format!("its header says {}", dict.trim()));
        if dict.contains("'fortran_order': True") {
            return Err(bad("it is in Fortran order; save it with numpy.ascontiguousarray"));
        }
        let after = |name: &str| dict.split_once(name).map(|(_, rest)| rest.trim_start());
        let dtype = after("'descr':").and_then(|rest| rest.strip_prefix('\'')).and_then(|rest| rest.split_once('\''));
        let (dtype, _) = dtype.ok_or_else(said)?;
        let inside = after("'shape':").and_then(|rest| rest.strip_prefix('(')).and_then(|rest| rest.split_once(')'));
        let (inside, _) = inside.ok_or_else(said)?;
        let parts = inside.split(',').map(str::trim).filter(|n| !n.is_empty());
        let shape = parts.map(|n| n.parse().map_err(|_| said())).collect::<Result<_>>()?;
        Ok(Header { dtype: dtype.to_owned(), shape, start })
    }
}

/// Type, columns and values of a file's bytes. An array of one dimension is one row.
fn read<'a>(path: &Path, dtypes: &[&'a str], mut bytes: Vec<u8>) -> Result<(&'a str, usize, Vec<u8>)> {
    let header = Header::read(path, &mut bytes.as_slice())?;
    let bad = |what: String| {
        Error::format(path, format!("not a two-dimensional .npy file of {}: {what}", dtypes.join(" or ")))
    };
    let found = || bad(format!("it is of {} and of shape {:?}", header.dtype, header.shape));
    let dtype = *dtypes.iter().find(|&&dtype| dtype == header.dtype).ok_or_else(found)?;
    let (rows, cols) = match header.shape[..] {
        [cols] => (1, cols),
        [rows, cols] => (rows, cols),
        _ => return Err(found()),
    };
    let body = bytes.split_off(header.start);
    let size = if dtype == "|u1" { 1 } else { usize::from(dtype.as_bytes()[2] - b'0') };
    let needed = rows.checked_mul(cols).and_then(|n| n.checked_mul(size));
    if cols == 0 || Some(body.len()) != needed {
        let needed = needed.map_or_else(|| "more than any".to_owned(), |n| n.to_string());
        return Err(bad(format!("shape ({rows}, {cols}) needs {needed} bytes, the file holds {}", body.len())));
    }
    Ok((dtype, cols, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_rows_round_trip() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.npy");
        let rows = Matrix::from_vec(3, vec![1.0, -2.5, 3.0, f32::MIN_POSITIVE, 0.0, 7.0]);
        let mut w = NpyWriter::f32(&path, 3).unwrap();
        w.rows_f32(&rows).unwrap();
        assert!(!path.exists(), "the name appears only when the file is whole");
        assert_eq!(w.finish().unwrap(), 2);
        assert_eq!(read_f32(&path).unwrap(), rows);
        assert!(read_u8(&path).unwrap_err().to_string().contains("<f4"));
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert!(read_f32(&path).unwrap_err().to_string().contains("needs 24 bytes, the file holds 23"));
    }

    #[cfg(unix)]
    #[test]
    fn a_device_is_refused() {
        let said = read_vectors(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(said.contains("/dev/zero: is a device and may never end"), "{said}");
    }

    #[test]
    fn vectors_are_read_in_any_precision_and_as_a_single_row() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v.npy");
        let file = |dtype: &str, shape: &str, body: Vec<u8>| {
            let dict = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n");
            let mut bytes = MAGIC.to_vec();
            bytes.extend_from_slice(&(dict.len() as u16).to_le_bytes());
            bytes.extend_from_slice(dict.as_bytes());
            bytes.extend(body);
            std::fs::write(&path, bytes).unwrap();
            read_vectors(&path)
        };
        let rows = Matrix::from_vec(2, vec![0.5, -2.0]);
        let values = [0.5f32, -2.0];
        assert_eq!(
            file("<f8", "(1, 2)", values.iter().flat_map(|&x| f64::from(x).to_le_bytes()).collect()).unwrap(),
            rows
        );
        let halves = values.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect();
        assert_eq!(file("<f2", "(2,)", halves).unwrap(), rows);
        assert!(file("<i4", "(2,)", vec![0; 8]).unwrap_err().to_string().contains("<f4 or <f2 or <f8"));
        assert!(file("<f4", "()", vec![0; 4]).is_err());
    }
}
