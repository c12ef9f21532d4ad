//! Runs the binary as a user does, on a tiny encoder.

mod bench;
mod device;
mod faults;
mod flow;
mod formats;
mod methods;
mod pull;
mod replace;
mod search;
mod serve;
mod several;
mod upkeep;
mod usage;
