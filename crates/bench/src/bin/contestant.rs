//! micpq's side of `make bench-search`: searches codes in memory on request. One JSON request per line, one JSON answer.
//!
//! - `{"do": "load", "dir": D}` reads `codes.npy` `[n, code_bytes]`, `codebooks.npy` `[codebooks * 16, dim]` and
//!   `queries.npy` `[queries, codebooks * dim]`, all with codebooks of 16 codewords;
//! - `{"do": "search", "batch": B, "threads": T, "queries": Q, "k": K}` searches the first `Q` queries, `B` per call, and
//!   answers with the seconds per query;
//! - `{"do": "answers", "queries": Q, "k": K}` answers with the hits;
//! - `{"do": "verify", "queries": Q, "k": K}` compares the hits with brute force in `f32`, one code at a time, and answers
//!   with the queries whose hits differ in a row or in a bit of a distance;
//! - `{"do": "explain", "queries": Q, "k": K}` answers with the work done for each query.
//!
//! `search`, `answers`, `verify` and `explain` also take `"filter": S`, which allows only a share `S` of the rows, drawn by
//! row number, and `"radius": R`, the greatest distance.
//!
//! The time is from query vectors to hits. It includes the distance tables, as it does for other libraries.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use engine::formats::npy;
use engine::model::{CodeShape, Codebooks, Distance, DistanceTable};
use engine::search::{Flat, Hit, Plan, TopKRequest};
use engine::{Error, Matrix, Result};
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

    fn tables(&self, queries: std::ops::Range<usize>) -> Vec<DistanceTable> {
        queries.map(|q| self.codebooks.table(self.queries.row(q), Distance::Squared)).collect()
    }

    /// Queries whose hits differ from brute force. The codes are read from disk again: only this check needs
    /// a second copy.
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
                .filter(|hit| asked.request.radius.is_none_or(|r| hit.distance <= r))
                .collect();
            all.sort_by(|a, b| a.distance.total_cmp(&b.distance).then(a.row.cmp(&b.row)));
            all.truncate(asked.request.k);
            let same = |(a, b): (&Hit, &Hit)| a.row == b.row && a.distance.to_bits() == b.distance.to_bits();
            if all.len() != hits.len() || !all.iter().zip(hits).all(same) {
                differing.push(q);
            }
        }
        Ok(differing)
    }
}

/// The options of a request, for every query.
struct Asked {
    request: TopKRequest,
    filter: Option<Vec<u64>>,
}

impl Asked {
    fn new(request: &Value, k: usize, documents: usize) -> Asked {
        let filter = request["filter"].as_f64().map(|share| {
            let mut bits = vec![0u64; documents.div_ceil(64)];
            let below = (share * f64::from(u32::MAX)) as u64;
            let drawn = |row: &usize| kernels::dropout::mix(1, *row as u64) >> 32 < below;
            (0..documents).filter(drawn).for_each(|row| bits[row / 64] |= 1 << (row % 64));
            bits
        });
        Asked {
            request: TopKRequest { radius: request["radius"].as_f64().map(|r| r as f32), ..TopKRequest::from(k) },
            filter,
        }
    }

    fn lets_pass(&self, row: usize) -> bool {
        self.filter.as_ref().is_none_or(|bits| bits[row / 64] >> (row % 64) & 1 == 1)
    }

    fn search(&self, flat: &Flat, tables: &[DistanceTable]) -> Result<Vec<(Vec<Hit>, Plan)>> {
        flat.explained(tables, &self.request, self.filter.as_deref())
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut data: Option<Data> = None;
    // One pool per number of threads, reused so that no search waits for threads to start.
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
                // Drops the previous data first: memory is measured, and both together must not count.
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

/// Seconds per query, and the part of them for its distance table.
fn search(data: &Data, pool: &rayon::ThreadPool, batch: usize, queries: usize, asked: &Asked) -> Result<Value> {
    let (mut all, mut tables) = (0.0, 0.0);
    // Runs on the pool's own thread, once per request: the handover of work is not measured.
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
