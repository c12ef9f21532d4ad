//! NumPy arrays in and out, without a copy where they lie as the engine wants them.

use micpq::{Error, Matrix, Result};
use numpy::{PyArray2, PyArrayMethods, PyReadonlyArray2};
use pyo3::prelude::*;

use crate::errors::exception;

/// The values of a float array in C order, borrowed.
pub fn floats<'a>(array: &'a PyReadonlyArray2<'_, f32>) -> PyResult<(&'a [f32], usize)> {
    let width = array.as_array().ncols();
    let values = array.as_slice().map_err(|_| {
        exception("InputError", "the array is not contiguous; pass numpy.ascontiguousarray of it".into())
    })?;
    if width == 0 {
        return Err(exception("InputError", "the array has vectors of no values".into()));
    }
    Ok((values, width))
}

/// The values of a byte array in C order, borrowed.
pub fn bytes<'a>(array: &'a PyReadonlyArray2<'_, u8>) -> PyResult<(&'a [u8], usize)> {
    let width = array.as_array().ncols();
    let values = array.as_slice().map_err(|_| {
        exception("InputError", "the array is not contiguous; pass numpy.ascontiguousarray of it".into())
    })?;
    Ok((values, width))
}

/// Rows worked on at a time: the whole array is never copied.
pub const CHUNK: usize = 8192;

/// Calls `work` with the rows of a borrowed array, some thousand at a time, after a look at every value.
pub fn each_chunk(values: &[f32], width: usize, mut work: impl FnMut(&Matrix) -> Result<()>) -> Result<()> {
    for (number, chunk) in values.chunks(CHUNK * width).enumerate() {
        let rows = Matrix::from_vec(width, chunk.to_vec());
        if let Some(row) = rows.iter().position(|row| !row.iter().all(|v| v.is_finite())) {
            return Err(Error::input(
                format!("vectors[{}]", number * CHUNK + row),
                "holds a value that is not a finite number; leave the row out or encode it again",
            ));
        }
        work(&rows)?;
    }
    Ok(())
}

/// Hands values over to Python as an array of rows; nothing is copied.
pub fn rows<'py, T: numpy::Element>(
    py: Python<'py>,
    values: Vec<T>,
    width: usize,
) -> PyResult<Bound<'py, PyArray2<T>>> {
    let count = values.len().checked_div(width).unwrap_or(0);
    numpy::PyArray1::from_vec(py, values).reshape([count, width])
}
