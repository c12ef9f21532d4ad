//! The binary as a user runs it, on an encoder made for the occasion.

mod bench;
mod faults;
mod flow;
mod formats;
mod upkeep;
mod usage;
