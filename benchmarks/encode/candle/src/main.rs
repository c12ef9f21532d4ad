//! candle as a peer of `make bench-encode`: tasks and answers are those of the example `encoding`.
//!
//!     candle-peer ENCODER_DIR SEQUENCES.json
//!
//! Sequences are sorted by length and padded to the longest of their batch, as the other peers do; of batches of 8 and 32 the
//! faster one counts. Threads are rayon's.

use std::error::Error;
use std::io::BufRead;
use std::path::Path;
use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::{BertModel, Config};

fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or(f64::NAN);
    (ticks(11) + ticks(12)) / 100.0
}

struct Encoder {
    model: BertModel,
    batch: usize,
}

impl Encoder {
    /// Mean-pooled vectors of sequences of one batch.
    fn run(&self, rows: &[&Vec<u32>]) -> candle_core::Result<Vec<Vec<f32>>> {
        let longest = rows.iter().map(|r| r.len()).max().unwrap_or(0);
        let (mut ids, mut mask) = (vec![0u32; rows.len() * longest], vec![0f32; rows.len() * longest]);
        for (i, row) in rows.iter().enumerate() {
            ids[i * longest..i * longest + row.len()].copy_from_slice(row);
            mask[i * longest..i * longest + row.len()].fill(1.0);
        }
        let shape = (rows.len(), longest);
        let ids = Tensor::from_vec(ids, shape, &Device::Cpu)?;
        let mask = Tensor::from_vec(mask, shape, &Device::Cpu)?;
        let states = self.model.forward(&ids, &ids.zeros_like()?, Some(&mask))?;
        let weight = mask.unsqueeze(2)?;
        states.broadcast_mul(&weight)?.sum(1)?.broadcast_div(&weight.sum(1)?)?.to_vec2()
    }

    fn encode(&self, sequences: &[Vec<u32>]) -> candle_core::Result<Vec<Vec<f32>>> {
        let mut order: Vec<usize> = (0..sequences.len()).collect();
        order.sort_by_key(|&i| sequences[i].len());
        let mut out = vec![Vec::new(); sequences.len()];
        for part in order.chunks(self.batch) {
            let rows: Vec<&Vec<u32>> = part.iter().map(|&i| &sequences[i]).collect();
            for (&i, vector) in part.iter().zip(self.run(&rows)?) {
                out[i] = vector;
            }
        }
        Ok(out)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [dir, sequences] = &arguments[..] else { return Err("usage: candle-peer ENCODER_DIR SEQUENCES.json".into()) };
    let config: Config = serde_json::from_str(&std::fs::read_to_string(Path::new(dir).join("config.json"))?)?;
    // SAFETY: the file is not changed while it is mapped.
    let weights = unsafe {
        VarBuilder::from_mmaped_safetensors(&[Path::new(dir).join("model.safetensors")], DType::F32, &Device::Cpu)?
    };
    let mut encoder = Encoder { model: BertModel::load(weights, &config)?, batch: 8 };
    let sequences: Vec<Vec<u32>> = serde_json::from_str(&std::fs::read_to_string(sequences)?)?;
    let mut best = (f64::INFINITY, 8);
    for batch in [8, 32] {
        encoder.batch = batch;
        encoder.encode(&sequences[..batch.min(sequences.len())])?;
        let begun = processor_seconds();
        encoder.encode(&sequences[..64.min(sequences.len())])?;
        let took = processor_seconds() - begun;
        if took < best.0 {
            best = (took, batch);
        }
    }
    encoder.batch = best.1;
    println!("{}", serde_json::json!({ "version": "0.10", "batch": encoder.batch }));
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |i: usize| words.get(i).and_then(|w| w.parse::<usize>().ok()).unwrap_or(0);
        let (spent, begun) = (processor_seconds(), Instant::now());
        let mut answer = serde_json::json!({});
        match words.first().copied() {
            Some("clean") => drop(encoder.encode(&sequences[number(1)..number(2)])?),
            Some("query") => {
                let query = sequences[0][..number(1)].to_vec();
                let mut times = Vec::new();
                for _ in 0..220 {
                    let begun = Instant::now();
                    encoder.run(&[&query])?;
                    times.push(begun.elapsed().as_secs_f64());
                }
                times.drain(..20);
                times.sort_by(f64::total_cmp);
                answer = serde_json::json!({ "median": times[100], "least": times[0] });
            }
            Some("vectors") => {
                answer = serde_json::json!({ "vectors": encoder.encode(&sequences[number(1)..number(2)])? });
            }
            _ => return Err(format!("unknown task: {line}").into()),
        }
        answer["seconds"] = begun.elapsed().as_secs_f64().into();
        answer["processor"] = (processor_seconds() - spent).into();
        println!("{answer}");
    }
    Ok(())
}
