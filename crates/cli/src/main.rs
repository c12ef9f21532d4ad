//! The command line of micpq: encodes documents as codes of 16 to 128 bits and searches them exactly.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage.

mod args;
mod commands;
mod output;
mod progress;

use std::process::ExitCode;

use clap::Parser;

// The allocator of musl takes one lock for all threads.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let args = args::Args::parse();
    if let Some(threads) = args.threads
        && let Err(error) = commands::set_threads(threads)
    {
        return report(&error);
    }
    progress::catch_interrupts();
    match commands::run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error),
    }
}

fn report(error: &anyhow::Error) -> ExitCode {
    // A closed pipe (`micpq search ... | head`) is not a failure.
    if let Some(io) = error.downcast_ref::<std::io::Error>()
        && io.kind() == std::io::ErrorKind::BrokenPipe
    {
        return ExitCode::SUCCESS;
    }
    eprintln!("micpq: {error:#}");
    match error.downcast_ref::<engine::Error>() {
        Some(engine::Error::Config(_) | engine::Error::FilterSyntax { .. }) => ExitCode::from(2),
        _ => ExitCode::from(1),
    }
}
