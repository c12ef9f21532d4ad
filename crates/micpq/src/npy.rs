//! NumPy's `.npy` files (version 1.0, little-endian, C order): how features and codes leave and enter.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use crate::{Error, Matrix, Result, disk};

const MAGIC: &[u8] = b"\x93NUMPY\x01\x00";
/// The header's whole length. Fixed, so that the row count can be filled in when the last row is known.
const HEADER: usize = 128;

fn header(dtype: &str, rows: usize, cols: usize) -> Vec<u8> {
    let dict = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({rows}, {cols}), }}");
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&((HEADER - 10) as u16).to_le_bytes());
    out.extend_from_slice(dict.as_bytes());
    out.resize(HEADER - 1, b' ');
    out.push(b'\n');
    out
}

/// Writes a `.npy` file row block by row block; it appears under its name only when finished.
pub struct NpyWriter {
    path: PathBuf,
    temporary: PathBuf,
    out: BufWriter<File>,
    dtype: &'static str,
    size: usize,
    cols: usize,
    bytes: usize,
}

impl NpyWriter {
    fn create(path: &Path, dtype: &'static str, size: usize, cols: usize) -> Result<Self> {
        let temporary = disk::beside(path, ".partial");
        let file = File::create(&temporary).map_err(Error::io(&temporary))?;
        let mut out = BufWriter::with_capacity(1 << 20, file);
        out.write_all(&header(dtype, 0, cols)).map_err(Error::io(&temporary))?;
        Ok(NpyWriter { path: path.to_path_buf(), temporary, out, dtype, size, cols, bytes: 0 })
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
        self.out.write_all(bytes).map_err(Error::io(&self.temporary))
    }

    /// Appends rows.
    pub fn rows_f32(&mut self, rows: &Matrix) -> Result<()> {
        assert_eq!((self.dtype, self.cols), ("<f4", rows.cols()));
        let bytes: Vec<u8> = rows.as_slice().iter().flat_map(|x| x.to_le_bytes()).collect();
        self.write(&bytes)
    }

    /// Appends rows of bytes.
    pub fn rows_u8(&mut self, rows: &[u8]) -> Result<()> {
        assert_eq!(self.dtype, "|u1");
        assert!(rows.len().is_multiple_of(self.cols));
        self.write(rows)
    }

    /// Fills in the row count, syncs and gives the file its name. Returns the number of rows.
    pub fn finish(mut self) -> Result<usize> {
        use std::io::Seek;
        let rows = self.bytes / (self.size * self.cols);
        let temporary = self.temporary.clone();
        let fail = || Error::io(&temporary);
        self.out.seek(std::io::SeekFrom::Start(0)).map_err(fail())?;
        self.out.write_all(&header(self.dtype, rows, self.cols)).map_err(fail())?;
        let file = self.out.into_inner().map_err(|e| fail()(e.into_error()))?;
        file.sync_all().map_err(fail())?;
        std::fs::rename(&self.temporary, &self.path).map_err(Error::io(&self.path))?;
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

/// Reads vectors that a user brings: one, or several as rows, in half, single or double precision; `-` is standard
/// input.
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
    std::fs::read(path).map_err(Error::io(path))
}

/// The type found, columns and values of a file's bytes. One dimension is one row.
fn read<'a>(path: &Path, dtypes: &[&'a str], mut bytes: Vec<u8>) -> Result<(&'a str, usize, Vec<u8>)> {
    let bad =
        |what: &str| Error::format(path, format!("not a two-dimensional .npy file of {}: {what}", dtypes.join(" or ")));
    if bytes.len() < 10 || &bytes[..6] != b"\x93NUMPY" {
        return Err(bad("it does not begin with NumPy's magic"));
    }
    let (start, length) = match bytes[6] {
        1 => (10, u16::from_le_bytes([bytes[8], bytes[9]]) as usize),
        2 | 3 if bytes.len() >= 12 => (12, u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) as usize),
        v => return Err(bad(&format!("version {v} of the format is not known"))),
    };
    let dict = bytes
        .get(start..start + length)
        .and_then(|b| std::str::from_utf8(b).ok())
        .ok_or_else(|| bad("its header is cut short"))?;
    let Some(dtype) = dtypes.iter().copied().find(|dtype| dict.contains(&format!("'{dtype}'"))) else {
        return Err(bad(&format!("its header says {}", dict.trim())));
    };
    let size: usize = dtype[2..].parse().expect("a type ends in its size");
    if dict.contains("'fortran_order': True") {
        return Err(bad("it is in Fortran order; save it with numpy.ascontiguousarray"));
    }
    let shape: Vec<usize> = dict
        .split_once("'shape': (")
        .and_then(|(_, rest)| rest.split_once(')'))
        .map(|(inside, _)| inside.split(',').filter_map(|n| n.trim().parse().ok()).collect())
        .unwrap_or_default();
    let (rows, cols) = match shape[..] {
        [cols] => (1, cols),
        [rows, cols] => (rows, cols),
        _ => return Err(bad(&format!("its header says {}", dict.trim()))),
    };
    let body = bytes.split_off(start + length);
    if cols == 0 || Some(body.len()) != rows.checked_mul(cols).and_then(|n| n.checked_mul(size)) {
        return Err(bad(&format!(
            "shape ({rows}, {cols}) needs {} bytes, the file holds {}",
            rows * cols * size,
            body.len()
        )));
    }
    Ok((dtype, cols, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back() {
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

    #[test]
    fn vectors_come_in_any_precision_and_one_alone() {
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
