//! The binary as a user runs it, on an encoder made for the occasion.

mod bench;
mod device;
mod faults;
mod flow;
mod formats;
mod search;
mod serve;
mod several;
mod systems;
mod upkeep;
mod usage;
