//! The command line of micpq: documents to codes of 16 to 128 bits, and exact search over them.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage.

mod args;
mod commands;
mod output;
mod progress;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let args = args::Args::parse();
    if let Some(threads) = args.threads
        && let Err(problem) = commands::set_threads(threads)
    {
        return report(&problem);
    }
    progress::catch_interrupts();
    match commands::run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => report(&problem),
    }
}

fn report(problem: &anyhow::Error) -> ExitCode {
    // A reader that has seen enough (`micpq search ... | head`) is not a failure worth words.
    if let Some(io) = problem.downcast_ref::<std::io::Error>()
        && io.kind() == std::io::ErrorKind::BrokenPipe
    {
        return ExitCode::SUCCESS;
    }
    eprintln!("micpq: {problem:#}");
    match problem.downcast_ref::<micpq::Error>() {
        Some(micpq::Error::Config(_)) => ExitCode::from(2),
        _ => ExitCode::from(1),
    }
}
