//! The index on disk in `make bench-search`: built, opened, searched with and without filters, added to and deleted
//! from on request. One JSON request a line, one JSON answer.
//!
//! - `{"do": "build", "dir": D, "index": I}` makes an index of the codes in `D` (see `contestant.rs` for its files), with
//!   an attribute `share` by which filters leave a half, a tenth, a hundredth or a ten-thousandth;
//! - `{"do": "open", "dir": D, "index": I, "times": N}` opens it so often, and takes queries from `D`;
//! - `{"do": "search", "batch": B, "queries": Q, "k": K, "filter": F}` answers with the seconds a query took;
//! - `{"do": "first", "k": K, "filter": F}` opens the index anew and answers with the seconds of one query without a filter,
//!   of the first with a filter, and, with other filters asked before, of the first with this one;
//! - `{"do": "add", "count": N, "commits": C}`, `{"do": "delete", "count": N}`, `{"do": "compact"}`, `{"do": "verify"}`
//!   and `{"do": "snapshot", "to": P}` answer with the seconds they took.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use micpq::corpus::{DocId, Document, Value};
use micpq::index::{CopyConfig, Index, IndexConfig, SearchConfig, snapshot, verify};
use micpq::model::{CodeShape, Codebooks, Dense, Distance, Model, ModelConfig, Refine, Table};
use micpq::{Error, Result, Silent, npy};
use serde_json::{Value as Json, json};

const WORDS: usize = 16;

/// A model that has codebooks and nothing to encode with.
fn model(dir: &Path) -> Result<Model> {
    let words = npy::read_f32(&dir.join("codebooks.npy"))?;
    let shape = CodeShape::new(words.rows() / WORDS, WORDS, words.cols())?;
    let refine = Refine::new(vec![Dense::new(1, vec![0.0; shape.width()], vec![0.0; shape.width()])?])?;
    let config = ModelConfig {
        format: micpq::model::FORMAT,
        method: "micpq".into(),
        shape,
        distance: Distance::Squared,
        features: None,
        training: Json::Null,
    };
    Model::new(config, refine, Codebooks::new(shape, words.as_slice().to_vec())?)
}

/// Document `i`: every share is spread evenly over the ids.
fn document(i: u64) -> Document {
    let shares = [(2, "half"), (10, "tenth"), (100, "hundredth"), (10_000, "tenthousandth")];
    // Multiplied by an odd number the ids are in no order that the codes could share.
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
    writer.commit(&Silent)?;
    let seconds = start.elapsed().as_secs_f64();
    let start = Instant::now();
    writer.compact(&Silent)?;
    let compact = start.elapsed().as_secs_f64();
    writer.close(&Silent)?;
    let info = index.info()?;
    Ok(json!({ "documents": info.documents, "seconds": seconds, "compact": compact, "bytes": info.bytes,
        "total": info.bytes.total() }))
}

struct Kept {
    place: PathBuf,
    index: Index,
    queries: Vec<Table>,
    codes: Vec<u8>,
    next: u64,
    gone: u64,
}

impl Kept {
    fn open(dir: &Path, place: &Path, times: usize) -> Result<(Kept, Json)> {
        let mut seconds = Vec::new();
        for _ in 0..times {
            let start = Instant::now();
            let index = Index::open(place, &Silent)?;
            seconds.push(start.elapsed().as_secs_f64());
            drop(index);
        }
        let index = Index::open(place, &Silent)?;
        let queries = npy::read_f32(&dir.join("queries.npy"))?;
        let queries: Vec<Table> =
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
        Ok((Kept { place: place.to_path_buf(), index, queries, codes, next, gone: 0 }, told))
    }

    fn search(&self, batch: usize, queries: usize, k: usize, filter: Option<String>) -> Result<Json> {
        let config = SearchConfig { k, filter, documents: false, ..SearchConfig::default() };
        let start = Instant::now();
        for tables in self.queries[..queries].chunks(batch.max(1)) {
            std::hint::black_box(self.index.search(tables, &config)?);
        }
        Ok(json!({ "seconds": start.elapsed().as_secs_f64() / queries as f64 }))
    }

    /// Nothing is kept of a filter in an index just opened.
    fn first(&self, k: usize, filter: &str) -> Result<Json> {
        let ask = |index: &Index, filter: Option<&str>| -> Result<f64> {
            let config =
                SearchConfig { k, filter: filter.map(str::to_owned), documents: false, ..SearchConfig::default() };
            let start = Instant::now();
            std::hint::black_box(index.search(&self.queries[..1], &config)?);
            Ok(start.elapsed().as_secs_f64())
        };
        let index = Index::open(&self.place, &Silent)?;
        // The very first search looks at every byte of the codes.
        ask(&index, None)?;
        let none = ask(&index, None)?;
        let opened = ask(&index, Some(filter))?;
        let index = Index::open(&self.place, &Silent)?;
        ask(&index, None)?;
        for other in ["half", "tenth", "hundredth", "tenthousandth"].map(|share| format!("share:{share}")) {
            if other != filter {
                ask(&index, Some(&other))?;
            }
        }
        Ok(json!({ "none": none, "opened": opened, "later": ask(&index, Some(filter))? }))
    }

    /// Adds documents in so many commits; the writer's opening and closing are told apart.
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
            writer.commit(&Silent)?;
        }
        let seconds = start.elapsed().as_secs_f64();
        let start = Instant::now();
        writer.close(&Silent)?;
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
        writer.commit(&Silent)?;
        let seconds = start.elapsed().as_secs_f64();
        writer.close(&Silent)?;
        self.gone += count;
        Ok(json!({ "deleted": count, "seconds": seconds }))
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut kept: Option<Kept> = None;
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
                let (opened, told) = Kept::open(&text("dir")?, &text("index")?, number("times")?)?;
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
                kept.as_ref().ok_or_else(nothing)?.index.writer()?.compact(&Silent)?;
                json!({ "seconds": start.elapsed().as_secs_f64() })
            }
            Some("verify") => {
                let problems = verify(kept.as_ref().ok_or_else(nothing)?.index.dir(), &Silent)?;
                json!({ "seconds": start.elapsed().as_secs_f64(), "problems": problems.len() })
            }
            Some("snapshot") => {
                let index = &kept.as_ref().ok_or_else(nothing)?.index;
                let copied = snapshot(index.dir(), &text("to")?, CopyConfig::default(), &Silent)?;
                json!({ "seconds": start.elapsed().as_secs_f64(), "files": copied.files, "linked": copied.linked })
            }
            _ => {
                let known = "build, open, search, first, add, delete, compact, verify, snapshot";
                return Err(format!("{request}: \"do\" is one of {known}").into());
            }
        };
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}
