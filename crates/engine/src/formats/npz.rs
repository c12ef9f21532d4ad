//! NumPy's `.npz`: several arrays in one file, a ZIP archive of uncompressed `.npy` members.
//!
//! A ZIP archive without compression has three records per member, so this module writes them itself: the ZIP crates add many
//! dependencies.

use std::path::Path;

use super::npy;
use crate::model::Projection;
use crate::{Error, Result, disk};

/// Writes the layers of a projection as `weight0 [outputs, inputs]`, `bias0 [outputs]`, `weight1`, ... A FAISS user needs them
/// to turn embeddings into query vectors of an exported index. There is a ReLU between layers:
///
/// ```python
/// r = numpy.load("projection.npz")
/// for i in range(len(r.files) // 2):
///     x = x @ r[f"weight{i}"].T + r[f"bias{i}"]
///     if f"weight{i + 1}" in r: x = numpy.maximum(x, 0)
/// ```
pub fn write_projection(path: &Path, projection: &Projection) -> Result<()> {
    let mut arrays: Vec<(String, Vec<usize>, &[f32])> = Vec::new();
    for (i, layer) in projection.layers().iter().enumerate() {
        arrays.push((format!("weight{i}"), vec![layer.outputs(), layer.inputs()], layer.weight()));
        arrays.push((format!("bias{i}"), vec![layer.outputs()], layer.bias()));
    }
    write(path, &arrays)
}

/// The fields of a member, which both of its records repeat.
struct Member {
    name: String,
    crc: u32,
    size: u32,
    start: u32,
}

impl Member {
    /// Version 2.0, no flags, no compression, the first of January 1980; then checksum, both sizes, and the lengths of name and
    /// extra field.
    fn fields(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for short in [20u16, 0, 0, 0, 0x21] {
            out.extend_from_slice(&short.to_le_bytes());
        }
        for long in [self.crc, self.size, self.size] {
            out.extend_from_slice(&long.to_le_bytes());
        }
        out.extend_from_slice(&(self.name.len() as u16).to_le_bytes());
        out.extend_from_slice(&[0, 0]);
        out
    }
}

/// Writes arrays of `f32` under their names. The write is atomic.
pub fn write(path: &Path, arrays: &[(String, Vec<usize>, &[f32])]) -> Result<()> {
    let mut out: Vec<u8> = Vec::new();
    let mut members: Vec<Member> = Vec::new();
    for (name, shape, values) in arrays {
        let mut data = npy::header("<f4", shape);
        data.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        let place = |n: usize| {
            u32::try_from(n).map_err(|_| Error::config(format!("{}: more than 4 GiB of arrays", path.display())))
        };
        let (size, start) = (place(data.len())?, place(out.len())?);
        let member = Member { name: format!("{name}.npy"), crc: crc32fast::hash(&data), size, start };
        out.extend_from_slice(b"PK\x03\x04");
        out.extend_from_slice(&member.fields());
        out.extend_from_slice(member.name.as_bytes());
        out.extend_from_slice(&data);
        members.push(member);
    }
    let directory = out.len() as u32;
    for member in &members {
        out.extend_from_slice(b"PK\x01\x02\x14\x00");
        out.extend_from_slice(&member.fields());
        // No comment, first disk, no attributes.
        out.extend_from_slice(&[0; 10]);
        out.extend_from_slice(&member.start.to_le_bytes());
        out.extend_from_slice(member.name.as_bytes());
    }
    let (count, length) = (members.len() as u16, out.len() as u32 - directory);
    out.extend_from_slice(b"PK\x05\x06\0\0\0\0");
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&directory.to_le_bytes());
    out.extend_from_slice(&[0, 0]);
    disk::replace(path, &out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_at_the_offsets_in_the_directory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npz");
        let values = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
        write(&path, &[("a".into(), vec![2, 3], &values), ("bb".into(), vec![2], &values[..2])]).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let long = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        let end = bytes.len() - 22;
        assert_eq!(&bytes[end..end + 4], b"PK\x05\x06");
        let second = long(end + 16) + 46 + "a.npy".len();
        assert_eq!(&bytes[second..second + 4], b"PK\x01\x02");
        let start = long(second + 42);
        assert_eq!(&bytes[start..start + 4], b"PK\x03\x04");
        let data = start + 30 + "bb.npy".len();
        assert_eq!(&bytes[data..data + 6], b"\x93NUMPY");
        assert_eq!(long(start + 14) as u32, crc32fast::hash(&bytes[data..data + long(start + 18)]));
        assert_eq!(&bytes[data + 128..data + 132], 1f32.to_le_bytes());
    }
}
