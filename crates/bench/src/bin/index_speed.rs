//! Speed of filling and searching an index: `cargo run --release -p micpq-bench --bin index_speed [documents]`.
//!
//! Codes of 64 bits in clusters, only ids and codes; then the same search over codes in memory.

use std::time::Instant;

use engine::corpus::{DocId, Document};
use engine::index::{Index, IndexConfig, Store};
use engine::model::{CodeShape, Codebooks, Dense, Distance, DistanceTable, Model, ModelConfig, Projection};
use engine::query::SearchConfig;
use engine::search::Flat;
use engine::{NoProgress, Result};
use kernels::dropout::mix;

fn main() -> Result<()> {
    let n: u64 = std::env::args().nth(1).map_or(1_000_000, |n| n.parse().expect("a number of documents"));
    let model = model()?;
    let shape = model.shape();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let config = IndexConfig { store: Store::Codes, ..IndexConfig::default() };
    let index = Index::create(&dir.path().join("index"), &model, config)?;
    let codes: Vec<u8> = (0..n).flat_map(|i| code(shape, i)).collect();

    let start = Instant::now();
    let mut writer = index.writer()?;
    for (i, code) in codes.chunks_exact(shape.code_bytes()).enumerate() {
        let id = DocId::Int(i as u64);
        writer.add(&Document { id, text: String::new(), labels: Vec::new(), attributes: Vec::new() }, code)?;
    }
    writer.commit(&NoProgress)?;
    println!("{n} documents added and committed in {:.2} s", start.elapsed().as_secs_f64());
    let start = Instant::now();
    writer.compact(&NoProgress)?;
    println!("compacted in {:.2} s: {:?}", start.elapsed().as_secs_f64(), index.info()?.bytes);
    let start = Instant::now();
    Index::open(index.dir(), &NoProgress)?;
    println!("opened in {:.1} ms", start.elapsed().as_secs_f64() * 1e3);

    let tables: Vec<DistanceTable> =
        (0..64).map(|q| model.codebooks().symmetric_table(&code(shape, q * 31), Distance::Norm)).collect();
    let flat = Flat::new(shape, &codes)?;
    let wanted = SearchConfig { k: 100, documents: false, ..SearchConfig::default() };
    let found = index.search(&tables, &wanted)?;
    for (hits, row) in found.iter().zip(flat.search(&tables, 100)?) {
        let rows: Vec<DocId> = row.iter().map(|h| DocId::Int(h.row as u64)).collect();
        assert_eq!(hits.iter().map(|h| h.id.clone()).collect::<Vec<_>>(), rows);
    }
    for batch in [1, 64] {
        let each = |name: &str, run: &dyn Fn(&[DistanceTable])| {
            let best = (0..20).map(|i| {
                let from = i * 7 % (65 - batch);
                let start = Instant::now();
                run(&tables[from..from + batch]);
                start.elapsed().as_secs_f64()
            });
            let seconds = best.fold(f64::INFINITY, f64::min) / batch as f64;
            println!(
                "{name}, batch {batch}: {:.1} us per query, {:.1} G codes/s",
                seconds * 1e6,
                n as f64 / seconds / 1e9
            );
        };
        each("index", &|t| drop(index.search(t, &wanted).expect("searchable")));
        each("codes in memory", &|t| drop(flat.search(t, 100).expect("searchable")));
    }
    Ok(())
}

fn code(shape: CodeShape, i: u64) -> Vec<u8> {
    let own = mix(1, i);
    let mut code = vec![0; shape.code_bytes()];
    for m in 0..shape.num_codebooks() {
        let noise = mix(own, m as u64);
        let word = if noise.is_multiple_of(4) { noise >> 20 } else { mix(own % 1000, m as u64) };
        shape.set_codeword(&mut code, m, (word & 15) as usize);
    }
    code
}

fn model() -> Result<Model> {
    let shape = CodeShape::micpq(64)?;
    let noise =
        |n: usize, salt: u64| (0..n as u64).map(|i| (mix(salt, i) >> 40) as f32 / (1 << 23) as f32 - 1.0).collect();
    let projection = Projection::new(vec![Dense::new(8, noise(8 * shape.width(), 1), noise(shape.width(), 2))?])?;
    let codebooks = Codebooks::new(shape, noise(shape.width() * 16, 3))?;
    let config = ModelConfig {
        format: 1,
        method: "micpq".into(),
        shape,
        distance: Distance::Norm,
        embedding: None,
        training: serde_json::Value::Null,
    };
    Model::new(config, projection, codebooks)
}
