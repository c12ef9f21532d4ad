//! The command line of micpq: encodes documents as codes of 16 to 128 bits and searches them exactly.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage.

mod program;

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
    let args = program::Args::parse();
    if let Some(threads) = args.threads
        && let Err(error) = commands::set_threads(threads)
    {
        return report(&error);
    }
    progress::catch_interrupts();
    match program::run(args) {
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
    let own = error.downcast_ref::<engine::Error>();
    let text = own.and_then(program::in_flags).unwrap_or_else(|| format!("{error:#}"));
    eprintln!("micpq: {text}");
    if let Some(command) = own.and_then(engine::Error::remedy).map(program::command_for) {
        eprintln!("try: {command}");
    }
    match own {
        Some(engine::Error::Config { .. } | engine::Error::FilterSyntax { .. }) => ExitCode::from(2),
        _ => ExitCode::from(1),
    }
}
