//! The index on disk in `make bench-search`: builds, opens, searches with and without filters, adds to and deletes from an
//! index on request. One JSON request per line, one JSON answer.
//!
//! - `{"do": "build", "dir": D, "index": I}` builds an index of the codes in `D` (see `contestant.rs` for its files), with
//!   an attribute `share` whose filters select a half, a tenth, a hundredth or a ten-thousandth;
//! - `{"do": "open", "dir": D, "index": I, "times": N}` opens it `N` times, and reads queries from `D`;
//! - `{"do": "search", "batch": B, "queries": Q, "k": K, "filter": F}` answers with the seconds per query;
//! - `{"do": "first", "k": K, "filter": F}` opens the index again and answers with the seconds of one query without a filter,
//!   of the first with a filter, and, after queries with other filters, of the first with this one;
//! - `{"do": "add", "count": N, "commits": C}`, `{"do": "delete", "count": N}`, `{"do": "compact"}`, `{"do": "verify"}`
//!   and `{"do": "backup", "to": P}` answer with the seconds they took.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use engine::corpus::{DocId, Document, Value};
use engine::formats::npy;
use engine::index::{CopyConfig, Index, IndexConfig, backup, verify};
use engine::model::{CodeShape, Codebooks, Dense, Distance, DistanceTable, Model, ModelConfig, Projection};
use engine::query::SearchConfig;
use engine::{Error, NoProgress, Result};
use serde_json::{Value as Json, json};

const WORDS: usize = 16;

/// A model that has codebooks and no encoder.
fn model(dir: &Path) -> Result<Model> {
    let words = npy::read_f32(&dir.join("codebooks.npy"))?;
    let shape = CodeShape::new(words.rows() / WORDS, WORDS, words.cols())?;
    let projection = Projection::new(vec![Dense::new(1, vec![0.0; shape.width()], vec![0.0; shape.width()])?])?;
    let config = ModelConfig {
        format: engine::model::FORMAT,
        method: "micpq".into(),
        shape,
        distance: Distance::Squared,
        embedding: None,
        training: Json::Null,
    };
    Model::new(config, projection, Codebooks::new(shape, words.as_slice().to_vec())?)
}

/// Document `i`. Every share is spread evenly over the ids.
fn document(i: u64) -> Document {
    let shares = [(2, "half"), (10, "tenth"), (100, "hundredth"), (10_000, "tenthousandth")];
    // Multiplication by an odd number gives an order of ids that is independent of the codes.
    let drawn = i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    let shares = shares.iter().filter(|(n, _)| drawn.is_multiple_of(*n)).map(|(_, name)| (*name).to_owned()).collect();
    let attributes = vec![("share".to_owned(), Value::Texts(shares))];
    Document { id: DocId::Int(i), text: String::new(), labels: Vec::new(), attributes }
}

fn build(dir: &Path, place: &Path) -> Result<Json> {
    let model = model(dir)?;
    let (width, codes) = npy::read_u8(&dir.join("codes.npy"))?;
    let index = Index::create(place, &model, IndexConfig::default())?;
    let start = Instant::now();
    let mut writer = index.writer()?;
    for (i, code) in codes.chunks_exact(width).enumerate() {
        writer.add(&document(i as u64), code)?;
    }
    writer.commit(&NoProgress)?;
    let seconds = start.elapsed().as_secs_f64();
    let start = Instant::now();
    writer.compact(&NoProgress)?;
    let compact = start.elapsed().as_secs_f64();
    writer.close(&NoProgress)?;
    let info = index.info()?;
    Ok(json!({ "documents": info.documents, "seconds": seconds, "compact": compact, "bytes": info.bytes,
        "total": info.bytes.total() }))
}

struct RerankColumn {
    place: PathBuf,
    index: Index,
    queries: Vec<DistanceTable>,
    codes: Vec<u8>,
    next: u64,
    gone: u64,
}

impl RerankColumn {
    fn open(dir: &Path, place: &Path, times: usize) -> Result<(RerankColumn, Json)> {
        let mut seconds = Vec::new();
        for _ in 0..times {
            let start = Instant::now();
            let index = Index::open(place, &NoProgress)?;
            seconds.push(start.elapsed().as_secs_f64());
            drop(index);
        }
        let index = Index::open(place, &NoProgress)?;
        let queries = npy::read_f32(&dir.join("queries.npy"))?;
        let queries: Vec<DistanceTable> =
            queries.iter().map(|row| index.model().codebooks().table(row, Distance::Squared)).collect();
        let start = Instant::now();
        index.search(&queries[..1], &SearchConfig { k: 100, documents: false, ..SearchConfig::default() })?;
        let first = start.elapsed().as_secs_f64();
        let (_, mut codes) = npy::read_u8(&dir.join("codes.npy"))?;
        // Enough to add from.
        codes.truncate(100_000 * index.model().shape().code_bytes());
        let told = json!({
            "seconds": seconds,
            "first_search": first,
            "segments": index.info()?.segments,
            "version": format!("micpq {}, {}", env!("CARGO_PKG_VERSION"), kernels::Backend::active().name()),
        });
        let next = index.len() as u64;
        Ok((RerankColumn { place: place.to_path_buf(), index, queries, codes, next, gone: 0 }, told))
    }

    fn search(&self, batch: usize, queries: usize, k: usize, filter: Option<String>) -> Result<Json> {
        let config = SearchConfig { k, filter, documents: false, ..SearchConfig::default() };
        let start = Instant::now();
        for tables in self.queries[..queries].chunks(batch.max(1)) {
            std::hint::black_box(self.index.search(tables, &config)?);
        }
        Ok(json!({ "seconds": start.elapsed().as_secs_f64() / queries as f64 }))
    }

    /// A freshly opened index has nothing cached for a filter.
    fn first(&self, k: usize, filter: &str) -> Result<Json> {
        let ask = |index: &Index, filter: Option<&str>| -> Result<f64> {
            let config =
                SearchConfig { k, filter: filter.map(str::to_owned), documents: false, ..SearchConfig::default() };
            let start = Instant::now();
            std::hint::black_box(index.search(&self.queries[..1], &config)?);
            Ok(start.elapsed().as_secs_f64())
        };
        let index = Index::open(&self.place, &NoProgress)?;
        // The very first search reads every byte of the codes.
        ask(&index, None)?;
        let none = ask(&index, None)?;
        let opened = ask(&index, Some(filter))?;
        let index = Index::open(&self.place, &NoProgress)?;
        ask(&index, None)?;
        for other in ["half", "tenth", "hundredth", "tenthousandth"].map(|share| format!("share:{share}")) {
            if other != filter {
                ask(&index, Some(&other))?;
            }
        }
        Ok(json!({ "none": none, "opened": opened, "later": ask(&index, Some(filter))? }))
    }

    /// Adds documents in `commits` commits. The opening and closing of the writer are reported separately.
    fn add(&mut self, count: usize, commits: usize) -> Result<Json> {
        let width = self.index.model().shape().code_bytes();
        let begun = Instant::now();
        let mut writer = self.index.writer()?;
        let opened = begun.elapsed().as_secs_f64();
        let start = Instant::now();
        for _ in 0..commits {
            for _ in 0..count.div_ceil(commits) {
                let at = self.next as usize * width % self.codes.len();
                writer.add(&document(self.next), &self.codes[at..at + width])?;
                self.next += 1;
            }
            writer.commit(&NoProgress)?;
        }
        let seconds = start.elapsed().as_secs_f64();
        let start = Instant::now();
        writer.close(&NoProgress)?;
        let closing = start.elapsed().as_secs_f64();
        Ok(json!({ "added": count, "commits": commits, "seconds": seconds, "opening": opened, "closing": closing,
            "segments": self.index.info()?.segments }))
    }

    fn delete(&mut self, count: u64) -> Result<Json> {
        let mut writer = self.index.writer()?;
        let start = Instant::now();
        for i in self.gone..self.gone + count {
            writer.delete(&DocId::Int(i))?;
        }
        writer.commit(&NoProgress)?;
        let seconds = start.elapsed().as_secs_f64();
        writer.close(&NoProgress)?;
        self.gone += count;
        Ok(json!({ "deleted": count, "seconds": seconds }))
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut kept: Option<RerankColumn> = None;
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let request: Json = serde_json::from_str(&line?)?;
        let text = |name: &str| {
            request[name].as_str().map(PathBuf::from).ok_or_else(|| format!("{request}: a path {name:?} is needed"))
        };
        let number = |name: &str| {
            request[name].as_u64().map(|n| n as usize).ok_or_else(|| format!("{request}: a number {name:?} is needed"))
        };
        let nothing = || Error::config("open an index first");
        let start = Instant::now();
        let answer = match request["do"].as_str() {
            Some("build") => build(&text("dir")?, &text("index")?)?,
            Some("open") => {
                let (opened, told) = RerankColumn::open(&text("dir")?, &text("index")?, number("times")?)?;
                kept = Some(opened);
                told
            }
            Some("search") => {
                let filter = request["filter"].as_str().map(str::to_owned);
                let kept = kept.as_ref().ok_or_else(nothing)?;
                kept.search(number("batch")?, number("queries")?, number("k")?, filter)?
            }
            Some("first") => {
                let filter = request["filter"].as_str().ok_or_else(|| format!("{request}: a \"filter\" is needed"))?;
                kept.as_ref().ok_or_else(nothing)?.first(number("k")?, filter)?
            }
            Some("add") => kept.as_mut().ok_or_else(nothing)?.add(number("count")?, number("commits")?.max(1))?,
            Some("delete") => kept.as_mut().ok_or_else(nothing)?.delete(number("count")? as u64)?,
            Some("compact") => {
                kept.as_ref().ok_or_else(nothing)?.index.writer()?.compact(&NoProgress)?;
                json!({ "seconds": start.elapsed().as_secs_f64() })
            }
            Some("verify") => {
                let problems = verify(kept.as_ref().ok_or_else(nothing)?.index.dir(), &NoProgress)?;
                json!({ "seconds": start.elapsed().as_secs_f64(), "problems": problems.len() })
            }
            Some("backup") => {
                let index = &kept.as_ref().ok_or_else(nothing)?.index;
                let copied = backup(index.dir(), &text("to")?, CopyConfig::default(), &NoProgress)?;
                json!({ "seconds": start.elapsed().as_secs_f64(), "files": copied.files, "linked": copied.linked })
            }
            _ => {
                let known = "build, open, search, first, add, delete, compact, verify, backup";
                return Err(format!("{request}: \"do\" is one of {known}").into());
            }
        };
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}
