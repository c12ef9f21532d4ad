//! NumPy's `.npz`: several arrays in one file, a ZIP archive of `.npy` members.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::model::Refine;
use crate::{Error, Result, disk, npy};

/// Writes the layers of a refinement as `weight0 [outputs, inputs]`, `bias0 [outputs]`, `weight1`, ...: what a FAISS user
/// needs to turn vectors into those an exported index is asked with. Between layers stands a ReLU:
///
/// ```python
/// r = numpy.load("refine.npz")
/// for i in range(len(r.files) // 2):
///     x = x @ r[f"weight{i}"].T + r[f"bias{i}"]
///     if f"weight{i + 1}" in r: x = numpy.maximum(x, 0)
/// ```
pub fn write_refine(path: &Path, refine: &Refine) -> Result<()> {
    let mut arrays: Vec<(String, Vec<usize>, &[f32])> = Vec::new();
    for (i, layer) in refine.layers().iter().enumerate() {
        arrays.push((format!("weight{i}"), vec![layer.outputs(), layer.inputs()], layer.weight()));
        arrays.push((format!("bias{i}"), vec![layer.outputs()], layer.bias()));
    }
    write(path, &arrays)
}

/// Writes arrays of `f32` under their names, uncompressed, so that NumPy can map them. The file appears whole or not at all.
pub fn write(path: &Path, arrays: &[(String, Vec<usize>, &[f32])]) -> Result<()> {
    let temporary = disk::temporary_name(path);
    let file = File::create(&temporary).map_err(Error::io(&temporary))?;
    let mut archive = ZipWriter::new(BufWriter::new(file));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored).large_file(true);
    let fail = |e: std::io::Error| Error::io(&temporary)(e);
    for (name, shape, values) in arrays {
        archive.start_file(format!("{name}.npy"), options).map_err(|e| fail(e.into()))?;
        archive.write_all(&npy::header("<f4", shape)).map_err(fail)?;
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        archive.write_all(&bytes).map_err(fail)?;
    }
    let out = archive.finish().map_err(|e| fail(e.into()))?;
    out.into_inner().map_err(|e| fail(e.into_error()))?.sync_all().map_err(fail)?;
    std::fs::rename(&temporary, path).map_err(Error::io(path))
}
