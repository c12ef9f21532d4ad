//! Our side of `make bench-search`: codes in memory, searched on request. One JSON request a line, one JSON answer.
//!
//! - `{"do": "load", "dir": D}` reads `codes.npy` `[n, code_bytes]`, `codebooks.npy` `[books * 16, dim]` and
//!   `queries.npy` `[queries, books * dim]`, all of 16 words a book;
//! - `{"do": "search", "batch": B, "threads": T, "queries": Q, "k": K}` searches the first `Q` queries, `B` a call, and
//!   answers with the seconds a query took;
//! - `{"do": "answers", "queries": Q, "k": K}` answers with what is found.
//!
//! Timed is the way from query vectors to hits: tables are made inside, as other libraries make theirs.

use std::io::{BufRead, Write};
use std::path::Path;
use std::time::Instant;

use micpq::model::{CodeShape, Codebooks, Distance, Table};
use micpq::search::{Flat, Hit};
use micpq::{Error, Matrix, Result, npy};
use serde_json::{Value, json};

const WORDS: usize = 16;

struct Data {
    codebooks: Codebooks,
    queries: Matrix,
    flat: Flat,
}

impl Data {
    fn load(dir: &Path) -> Result<Data> {
        let words = npy::read_f32(&dir.join("codebooks.npy"))?;
        let shape = CodeShape::new(words.rows() / WORDS, WORDS, words.cols())?;
        let (bytes, codes) = npy::read_u8(&dir.join("codes.npy"))?;
        let queries = npy::read_f32(&dir.join("queries.npy"))?;
        if bytes != shape.code_bytes() || queries.cols() != shape.width() {
            return Err(Error::config(format!(
                "{}: codes of {bytes} bytes and queries of {} values do not fit codebooks of {shape:?}",
                dir.display(),
                queries.cols()
            )));
        }
        Ok(Data {
            codebooks: Codebooks::new(shape, words.as_slice().to_vec())?,
            queries,
            flat: Flat::new(shape, codes)?,
        })
    }

    fn tables(&self, queries: std::ops::Range<usize>) -> Vec<Table> {
        queries.map(|q| self.codebooks.table(self.queries.row(q), Distance::Squared)).collect()
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut data: Option<Data> = None;
    // One pool for each number of threads, kept so that no search waits for threads to start.
    let mut pools: Vec<rayon::ThreadPool> = Vec::new();
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line?)?;
        let number = |name: &str| {
            request[name].as_u64().map(|n| n as usize).ok_or_else(|| format!("{request}: a number {name:?} is needed"))
        };
        let loaded = || data.as_ref().ok_or("load something first");
        let answer = match request["do"].as_str() {
            Some("load") => {
                // The one before goes first: both together are not what is weighed.
                data.take();
                let dir = request["dir"].as_str().ok_or("a folder \"dir\" is needed")?;
                let start = Instant::now();
                let documents = data.insert(Data::load(Path::new(dir))?).flat.len();
                json!({
                    "documents": documents,
                    "seconds": start.elapsed().as_secs_f64(),
                    "version": format!("micpq {}, {}", env!("CARGO_PKG_VERSION"), kernels::Backend::active().name()),
                })
            }
            Some("search") => {
                let (data, threads) = (loaded()?, number("threads")?);
                let pool = match pools.iter().position(|p| p.current_num_threads() == threads) {
                    Some(i) => &pools[i],
                    None => {
                        pools.push(rayon::ThreadPoolBuilder::new().num_threads(threads).build()?);
                        pools.last().expect("just pushed")
                    }
                };
                search(data, pool, number("batch")?, number("queries")?, number("k")?)?
            }
            Some("answers") => {
                let data = loaded()?;
                let found = data.flat.search(&data.tables(0..number("queries")?), number("k")?)?;
                let each = |of: &dyn Fn(&Hit) -> Value| -> Vec<Vec<Value>> {
                    found.iter().map(|hits| hits.iter().map(of).collect()).collect()
                };
                json!({ "rows": each(&|h| h.row.into()), "distances": each(&|h| h.distance.into()) })
            }
            _ => return Err(format!("{request}: \"do\" is one of load, search, answers").into()),
        };
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}

/// Seconds a query took, and those of them that its table took.
fn search(data: &Data, pool: &rayon::ThreadPool, batch: usize, queries: usize, k: usize) -> Result<Value> {
    let (mut all, mut tables) = (0.0, 0.0);
    // On the pool's own thread, once a request: handing over the work is not what is measured.
    pool.install(|| -> Result<()> {
        for from in (0..queries).step_by(batch.max(1)) {
            let start = Instant::now();
            let made = data.tables(from..(from + batch).min(queries));
            tables += start.elapsed().as_secs_f64();
            let found = data.flat.search(&made, k)?;
            all += start.elapsed().as_secs_f64();
            std::hint::black_box(found);
        }
        Ok(())
    })?;
    Ok(json!({ "seconds": all / queries as f64, "tables": tables / queries as f64 }))
}
