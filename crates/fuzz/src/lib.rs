//! Functions that take bytes as a hostile file or request brings them. They may refuse the bytes; they must not panic, hang,
//! or allocate more than [`MAX_BYTES`].
//!
//! `fuzz/` runs them under libFuzzer (`make fuzz`), the test of this crate on mutations of `seeds/`, which
//! `cargo run -p micpq-fuzz --example seeds` writes. `sound/` has a model and an encoder of which inputs replace one file.

mod directories;
mod files;
mod requests;

/// Bound on memory while one input of at most 64 KiB is read. The largest legitimate use is the projection of a FAISS file, a
/// square matrix of 64 MiB, and a copy of it.
pub const MAX_BYTES: usize = 192 << 20;

/// A function that is fuzzed.
pub type Target = fn(&[u8]);

/// Every target, by the name of its folder of seeds.
pub const TARGETS: [(&str, Target); 10] = [
    ("filter", requests::filter),
    ("cursor", requests::cursor),
    ("corpus", files::corpus),
    ("npy", files::npy),
    ("vectors", files::vectors),
    ("faiss", files::faiss),
    ("blocks", files::blocks),
    ("model", directories::model),
    ("encoder", directories::encoder),
    ("http", requests::http),
];

/// The target of this name, for the programs of `fuzz/`.
pub fn target(name: &str) -> Target {
    TARGETS.iter().find(|(found, _)| *found == name).expect("a name of TARGETS").1
}
