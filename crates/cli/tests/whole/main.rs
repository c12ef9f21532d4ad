//! Runs the binary as a user does, on a tiny encoder.

mod bench;
mod contents;
mod crash;
mod device;
mod doctor;
mod documents;
mod duplicates;
mod faults;
mod flow;
mod formats;
mod hub;
mod mcp;
mod methods;
mod offline;
mod operations;
mod pull;
mod query_encoder;
mod replace;
mod search;
mod serve;
mod service;
mod several;
mod soak;
#[cfg(feature = "object-store")]
mod stored;
mod upkeep;
mod usage;
mod watch;
