//! The short form of fuzzing: mutations of the seeds, the same ones in every run. `make fuzz` searches on with libFuzzer.

use std::path::Path;

use fuzzed::{MAX_BYTES, TARGETS, Target};
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

struct Draws(u64);

impl Draws {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n.max(1)
    }
}

/// Sizes and offsets that overflow, and the ends of ranges.
const NUMBERS: [u64; 12] = [
    0,
    1,
    0x7f,
    0xff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    1 << 40,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

/// Texts that mean something to a parser.
const WORDS: [&str; 14] = [
    "NOT ",
    "(",
    "[* TO *]",
    "\"",
    "text:(",
    "/a*/",
    "{",
    "null",
    "1e999",
    "-1",
    "99999999999999999999",
    "[[[[",
    "\\ud800",
    "\n",
];

fn mutated(seed: &[u8], other: &[u8], draws: &mut Draws) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..1 + draws.below(4) {
        let at = draws.below(bytes.len() + 1);
        let end = (at + 1 + draws.below(16)).min(bytes.len());
        match draws.below(9) {
            0 if at < bytes.len() => bytes[at] ^= 1 << draws.below(8),
            1 if at < bytes.len() => bytes[at] = draws.below(256) as u8,
            2 | 3 => {
                let number = NUMBERS[draws.below(NUMBERS.len())].to_le_bytes();
                let width = [1, 2, 4, 8][draws.below(4)].min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&number[..width]);
            }
            4 => drop(bytes.drain(at..end.max(at))),
            5 => {
                let part = bytes[at..end.max(at)].to_vec();
                let times = 1 + draws.below(64);
                bytes.splice(at..at, part.repeat(times));
            }
            6 => drop(bytes.splice(at..at, WORDS[draws.below(WORDS.len())].bytes().collect::<Vec<_>>())),
            7 => bytes.truncate(at),
            _ => {
                let from = draws.below(other.len());
                let tail = other[from..].to_vec();
                bytes.truncate(at);
                bytes.extend(tail);
            }
        }
    }
    bytes.truncate(64 << 10);
    bytes
}

/// The seeds of a target, with their names.
fn seeds(name: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(name);
    let mut seeds: Vec<(String, Vec<u8>)> = std::fs::read_dir(&folder)
        .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
        .collect();
    seeds.sort();
    assert!(!seeds.is_empty(), "{name}");
    seeds
}

/// Runs one input. Memory beyond the bound and panics name the input, which is left in a file.
fn run(name: &str, target: Target, input: &[u8]) {
    let before = ALLOCATOR.current_usage();
    ALLOCATOR.reset_peak_usage();
    let ended = std::panic::catch_unwind(|| target(input));
    let used = ALLOCATOR.peak_usage().saturating_sub(before);
    if ended.is_err() || used > MAX_BYTES {
        let path = std::env::temp_dir().join(format!("micpq-fuzz-{name}"));
        std::fs::write(&path, input).unwrap();
        panic!("{name}: {} bytes of memory, panicked {}; the input is {}", used, ended.is_err(), path.display());
    }
}

// One test: the peak of memory is the process's.
#[test]
fn no_mutation_of_a_seed_panics_or_takes_more_memory_than_the_bound() {
    let rounds = std::env::var("MICPQ_FUZZ").map_or(400, |value| value.parse().expect("MICPQ_FUZZ is a number"));
    for (name, target) in TARGETS {
        let seeds = seeds(name);
        for (_, seed) in &seeds {
            run(name, target, seed);
        }
        let mut draws = Draws(0x9E37_79B9_7F4A_7C15);
        for _ in 0..rounds {
            let (at, other) = (draws.below(seeds.len()), draws.below(seeds.len()));
            run(name, target, &mutated(&seeds[at].1, &seeds[other].1, &mut draws));
        }
        eprintln!("{name}: {} seeds, {rounds} mutations", seeds.len());
    }
}
