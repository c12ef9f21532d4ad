//! micpq's side of `make bench-encode`: encodes token sequences on request, and reports the time.
//!
//!     encoding DIR f32|bf16|int8 SEQUENCES.json
//!
//! `SEQUENCES.json` is an array of arrays of token ids. Each line on standard input is a task, each answer a line of JSON:
//!
//!     clean|dropout FROM TO     encode those sequences, mean pooling; dropout at 0.3
//!     query N                   encode the first N ids of the first sequence alone
//!     vectors FROM TO           the vectors themselves, to compare with other libraries

use std::io::BufRead;
use std::path::Path;
use std::time::{Duration, Instant};

use engine::NoProgress;
use engine::encoder::{Dropout, Encoder, Pooling};

/// Processor time of the whole process in seconds, to the hundredth (Linux counts in ticks of that).
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = text.rsplit(')').next().unwrap_or_default();
    let fields: Vec<&str> = after.split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or(f64::NAN);
    (ticks(11) + ticks(12)) / 100.0
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [dir, precision, sequences] = &arguments[..] else {
        return Err("usage: encoding DIR f32|bf16|int8 SEQUENCES.json".into());
    };
    let begun = Instant::now();
    let encoder = Encoder::load_in(Path::new(dir), precision.parse()?)?;
    let loaded = begun.elapsed().as_secs_f64();
    let sequences: Vec<Vec<u32>> = serde_json::from_str(&std::fs::read_to_string(sequences)?)?;
    println!(
        "{{\"loaded\": {loaded}, \"f32\": \"{}\", \"bf16\": \"{}\", \"int8\": \"{}\"}}",
        kernels::Backend::active().name(),
        kernels::bf16::Unit::of(kernels::Backend::active()).name(),
        kernels::int8::Unit::of(kernels::Backend::active()).name()
    );
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |i: usize| words.get(i).and_then(|w| w.parse::<usize>().ok()).unwrap_or(0);
        let (processor, begun) = (processor_seconds(), Instant::now());
        let mut more = String::new();
        match words.first().copied() {
            Some("clean") => {
                encoder.encode(&sequences[number(1)..number(2)], Pooling::Mean, None, &NoProgress)?;
            }
            Some("dropout") => {
                let numbers: Vec<u64> = (number(1) as u64..number(2) as u64).collect();
                let view = Dropout::new(0.3, 1, 1, &numbers);
                encoder.encode(&sequences[number(1)..number(2)], Pooling::Mean, Some(view), &NoProgress)?;
            }
            Some("query") => {
                let query = [&sequences[0][..number(1)]];
                // Warms up, then takes the median of many runs.
                let mut times: Vec<Duration> = (0..220)
                    .map(|_| {
                        let begun = Instant::now();
                        encoder.encode(&query, Pooling::Mean, None, &NoProgress).map(|_| begun.elapsed())
                    })
                    .collect::<Result<_, _>>()?;
                times.drain(..20);
                times.sort();
                more = format!(", \"median\": {}, \"least\": {}", times[100].as_secs_f64(), times[0].as_secs_f64());
            }
            Some("vectors") => {
                let vectors = encoder.encode(&sequences[number(1)..number(2)], Pooling::Mean, None, &NoProgress)?;
                more = format!(", \"vectors\": {:?}", vectors.iter().collect::<Vec<_>>());
            }
            _ => return Err(format!("unknown task: {line}").into()),
        }
        println!(
            "{{\"seconds\": {}, \"processor\": {:.2}{more}}}",
            begun.elapsed().as_secs_f64(),
            processor_seconds() - processor
        );
    }
    Ok(())
}
