//! Reads and writes other formats: FAISS indexes, BEIR folders, TREC files, NumPy arrays, files of vectors, tables, pages that search in a browser.
//!
//! Each module handles one family of files and does not depend on the others, but for NumPy's `.npy`, which [`npz`] and
//! [`vectors`] contain too. [`crate::corpus`] reads documents; these modules
//! read everything else and write all exports.

pub mod beir;
pub mod faiss;
pub mod npy;
pub mod npz;
#[cfg(feature = "parquet")]
pub mod table;
pub mod trec;
pub mod vectors;
pub mod web;
