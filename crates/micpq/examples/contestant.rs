//! Our side of `make bench-search`: codes in memory, searched on request. One JSON request a line, one JSON answer.
//!
//! - `{"do": "load", "dir": D}` reads `codes.npy` `[n, code_bytes]`, `codebooks.npy` `[books * 16, dim]` and
//!   `queries.npy` `[queries, books * dim]`, all of 16 words a book;
//! - `{"do": "search", "batch": B, "threads": T, "queries": Q, "k": K}` searches the first `Q` queries, `B` a call, and
//!   answers with the seconds a query took;
//! - `{"do": "answers", "queries": Q, "k": K}` answers with what is found;
//! - `{"do": "verify", "queries": Q, "k": K}` compares it with brute force in `f32`, a code at a time, and answers with
//!   the queries whose list differs in a row or in a bit of a distance;
//! - `{"do": "explain", "queries": Q, "k": K}` answers with what was done for each query.
//!
//! `search`, `answers`, `verify` and `explain` take `"filter": S` too: only a share `S` of the rows, drawn by their
//! number, may be found; and `"within": R`, a greatest distance.
//!
//! Timed is the way from query vectors to hits: tables are made inside, as other libraries make theirs.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use micpq::model::{CodeShape, Codebooks, Distance, Table};
use micpq::search::{Flat, Hit, Plan, Want};
use micpq::{Error, Matrix, Result, npy};
use serde_json::{Value, json};

const WORDS: usize = 16;

struct Data {
    dir: PathBuf,
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
            dir: dir.to_path_buf(),
            codebooks: Codebooks::new(shape, words.as_slice().to_vec())?,
            queries,
            flat: Flat::new(shape, codes)?,
        })
    }

    fn tables(&self, queries: std::ops::Range<usize>) -> Vec<Table> {
        queries.map(|q| self.codebooks.table(self.queries.row(q), Distance::Squared)).collect()
    }

    /// Queries whose answer is not that of brute force. The codes are read again: only the answer needs them twice.
    fn differing(&self, asked: &Asked, queries: usize) -> Result<Vec<usize>> {
        let (width, codes) = npy::read_u8(&self.dir.join("codes.npy"))?;
        let found = asked.search(&self.flat, &self.tables(0..queries))?;
        let mut differing = Vec::new();
        for (q, ((hits, _), table)) in found.iter().zip(self.tables(0..queries)).enumerate() {
            let mut all: Vec<Hit> = codes
                .chunks_exact(width)
                .enumerate()
                .filter(|(row, _)| asked.lets_pass(*row))
                .map(|(row, code)| Hit { distance: table.distance(code), row })
                .filter(|hit| asked.want.within.is_none_or(|r| hit.distance <= r))
                .collect();
            all.sort_by(|a, b| a.distance.total_cmp(&b.distance).then(a.row.cmp(&b.row)));
            all.truncate(asked.want.k);
            let same = |(a, b): (&Hit, &Hit)| a.row == b.row && a.distance.to_bits() == b.distance.to_bits();
            if all.len() != hits.len() || !all.iter().zip(hits).all(same) {
                differing.push(q);
            }
        }
        Ok(differing)
    }
}

/// What a request asks of every query.
struct Asked {
    want: Want,
    filter: Option<Vec<u64>>,
}

impl Asked {
    fn new(request: &Value, k: usize, documents: usize) -> Asked {
        let filter = request["filter"].as_f64().map(|share| {
            let mut bits = vec![0u64; documents.div_ceil(64)];
            let below = (share * u32::MAX as f64) as u64;
            let drawn = |row: &usize| kernels::dropout::mix(1, *row as u64) >> 32 < below;
            (0..documents).filter(drawn).for_each(|row| bits[row / 64] |= 1 << (row % 64));
            bits
        });
        Asked { want: Want { within: request["within"].as_f64().map(|r| r as f32), ..Want::from(k) }, filter }
    }

    fn lets_pass(&self, row: usize) -> bool {
        self.filter.as_ref().is_none_or(|bits| bits[row / 64] >> (row % 64) & 1 == 1)
    }

    fn search(&self, flat: &Flat, tables: &[Table]) -> Result<Vec<(Vec<Hit>, Plan)>> {
        flat.explained(tables, &self.want, self.filter.as_deref())
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
        let asked = |data: &Data| Ok::<_, String>(Asked::new(&request, number("k")?, data.flat.len()));
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
                search(data, pool, number("batch")?, number("queries")?, &asked(data)?)?
            }
            Some("answers") => {
                let data = loaded()?;
                let found = asked(data)?.search(&data.flat, &data.tables(0..number("queries")?))?;
                let each = |of: &dyn Fn(&Hit) -> Value| -> Vec<Vec<Value>> {
                    found.iter().map(|(hits, _)| hits.iter().map(of).collect()).collect()
                };
                json!({ "rows": each(&|h| h.row.into()), "distances": each(&|h| h.distance.into()) })
            }
            Some("verify") => {
                let data = loaded()?;
                json!({ "differing": data.differing(&asked(data)?, number("queries")?)? })
            }
            Some("explain") => {
                let data = loaded()?;
                let found = asked(data)?.search(&data.flat, &data.tables(0..number("queries")?))?;
                json!({ "plans": found.iter().map(|(_, plan)| plan.to_string()).collect::<Vec<_>>() })
            }
            _ => return Err(format!("{request}: \"do\" is one of load, search, answers, verify, explain").into()),
        };
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}

/// Seconds a query took, and those of them that its table took.
fn search(data: &Data, pool: &rayon::ThreadPool, batch: usize, queries: usize, asked: &Asked) -> Result<Value> {
    let (mut all, mut tables) = (0.0, 0.0);
    // On the pool's own thread, once a request: handing over the work is not what is measured.
    pool.install(|| -> Result<()> {
        for from in (0..queries).step_by(batch.max(1)) {
            let start = Instant::now();
            let made = data.tables(from..(from + batch).min(queries));
            tables += start.elapsed().as_secs_f64();
            let found = asked.search(&data.flat, &made)?;
            all += start.elapsed().as_secs_f64();
            std::hint::black_box(found);
        }
        Ok(())
    })?;
    Ok(json!({ "seconds": all / queries as f64, "tables": tables / queries as f64 }))
}
