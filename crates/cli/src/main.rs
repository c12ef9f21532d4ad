//! The command line of micpq.
fn main() {}
