//! Kills, failing I/O calls, power cuts and concurrent clients of the real program, judged against a model.
//!
//! Every test has a short form, which runs by default, and a long form: `make test-crash` sets the variables that `rounds` reads.

mod disks;
mod faults;
mod histories;
mod kills;
mod served;
mod shim;
mod world;

use std::time::{SystemTime, UNIX_EPOCH};

/// How often to do something: the variable's value, or that of the short form.
fn rounds(variable: &str, short: u64) -> u64 {
    match std::env::var(variable) {
        Ok(value) => value.parse().unwrap_or_else(|_| panic!("{variable}={value}: write a number")),
        Err(_) => short,
    }
}

/// Random numbers of a run. The seed is printed, and `MICPQ_SEED` gives it again.
struct Draws(u64);

impl Draws {
    fn new() -> Draws {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let seed = rounds("MICPQ_SEED", now);
        eprintln!("MICPQ_SEED={seed}");
        Draws(seed | 1)
    }

    /// 0 to n - 1.
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}
