//! What people have already, and what they want back: FAISS indexes, BEIR folders and TREC files, files of vectors,
//! tables.
//!
//! Each module reads and writes one family of files and knows nothing of the others. Corpora of documents come in through
//! [`crate::corpus`]; here are the things that are not documents, and everything that goes out.

pub mod beir;
pub mod faiss;
pub mod npz;
pub mod table;
pub mod trec;
pub mod vectors;
