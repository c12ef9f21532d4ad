//! NumPy arrays in and out. Contiguous arrays of the right type are borrowed, not copied.

use engine::{Error, Matrix, Result};
use numpy::{PyArray2, PyArrayMethods, PyReadonlyArray2};
use pyo3::prelude::*;

use crate::errors::exception;

/// The values of a float array in C order, borrowed, and its width.
pub fn floats<'a>(array: &'a PyReadonlyArray2<'_, f32>) -> PyResult<(&'a [f32], usize)> {
    let width = array.as_array().ncols();
    let values = array.as_slice().map_err(|_| {
        exception("InputError", "the array is not contiguous; pass numpy.ascontiguousarray of it".into())
    })?;
    if width == 0 {
        return Err(exception("InputError", "the array has width 0; a vector needs values".into()));
    }
    Ok((values, width))
}

/// The values of a byte array in C order, borrowed, and its width.
pub fn bytes<'a>(array: &'a PyReadonlyArray2<'_, u8>) -> PyResult<(&'a [u8], usize)> {
    let width = array.as_array().ncols();
    let values = array.as_slice().map_err(|_| {
        exception("InputError", "the array is not contiguous; pass numpy.ascontiguousarray of it".into())
    })?;
    Ok((values, width))
}

/// Rows copied at a time, so that the whole array never is.
const CHUNK_ROWS: usize = 8192;

/// Calls `work` with chunks of rows of a borrowed array. A value that is not finite is an error that names its row.
pub fn each_chunk(values: &[f32], width: usize, mut work: impl FnMut(&Matrix) -> Result<()>) -> Result<()> {
    for (number, chunk) in values.chunks(CHUNK_ROWS * width).enumerate() {
        let rows = Matrix::from_vec(width, chunk.to_vec());
        if let Some(row) = rows.iter().position(|row| !row.iter().all(|v| v.is_finite())) {
            return Err(Error::input(
                format!("vectors[{}]", number * CHUNK_ROWS + row),
                "holds a value that is not a finite number; leave the row out or encode it again",
            ));
        }
        work(&rows)?;
    }
    Ok(())
}

/// Moves values into a NumPy array of rows, without a copy.
pub fn rows<'py, T: numpy::Element>(
    py: Python<'py>,
    values: Vec<T>,
    width: usize,
) -> PyResult<Bound<'py, PyArray2<T>>> {
    let count = values.len().checked_div(width).unwrap_or(0);
    numpy::PyArray1::from_vec(py, values).reshape([count, width])
}
