//! Indexes: whether they open, can be written to, fit into memory, and have their encoder.

use std::path::Path;

use engine::NoProgress;
use engine::encoder::pull;
use engine::index::{Index, Info};
use engine::model::Model;
use engine::query::Searcher;

use super::Finding;
use super::places::{free_space, writable};
use crate::output::bytes;

pub fn findings(path: &Path) -> Vec<Finding> {
    let check = path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
    let searcher = match Searcher::open(path, &NoProgress) {
        Ok(searcher) => searcher,
        Err(error) => {
            let advice = "give an index directory, or restore it from a backup: micpq index restore";
            return vec![Finding::failure(check, error.to_string(), advice)];
        }
    };
    let mut findings = vec![encoder(&check, searcher.index().model())];
    for index in searcher.indexes() {
        match index.info() {
            Ok(info) => findings.extend([memory(&check, &info), disk(&check, index, &info)]),
            Err(error) => {
                findings.push(Finding::failure(&check, error.to_string(), "run \"micpq index verify\" on it"));
            }
        }
    }
    findings
}

/// Whether the encoder of its model is here for queries in text.
fn encoder(check: &str, model: &Model) -> Finding {
    let Some(config) = &model.config.embedding else {
        return Finding::good(check, "takes vectors, no encoder is needed");
    };
    if config.terms.is_some() || config.service.is_some() {
        return Finding::good(check, "needs no encoder of this machine");
    }
    match pull::locate(&config.encoder) {
        Ok(dir) => Finding::good(check, format!("its encoder is {}", dir.display())),
        // A name of the hub is downloaded by the first query in text; a directory that is gone is not.
        Err(error) if Path::new(&config.encoder).is_absolute() => {
            Finding::failure(check, error.to_string(), "queries in text need this encoder; put it back")
        }
        Err(error) => Finding::warning(check, error.to_string(), "the first query in text downloads it"),
    }
}

fn memory(check: &str, info: &Info) -> Finding {
    let needed = info.bytes.codes;
    let found = format!("{} documents, {} of codes that a search reads", info.documents, bytes(needed));
    match engine::memory::available() {
        Some(free) if free < needed => {
            let found = format!("{found}, {} of memory available", bytes(free));
            Finding::warning(
                check,
                found,
                "every search will read from the disk; use fewer bits, shards or more memory",
            )
        }
        _ => Finding::good(check, found),
    }
}

fn disk(check: &str, index: &Index, info: &Info) -> Finding {
    let size = info.bytes.total();
    for dir in [index.dir().to_path_buf(), index.dir().join("store")] {
        if let Err(problem) = writable(&dir) {
            let found = format!("{} cannot be written to: {problem}", dir.display());
            return Finding::warning(check, found, "it can be searched; to change it, change its permissions or owner");
        }
    }
    let found = format!("format {}, {} on disk", info.format, bytes(size));
    match free_space(index.dir()) {
        Some(free) if free < size => Finding::warning(
            check,
            format!("{found}, {} free", bytes(free)),
            "compact and migrate write a second copy; make space before",
        ),
        _ => Finding::good(check, found),
    }
}
