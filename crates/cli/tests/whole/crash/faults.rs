//! Every I/O call of a command fails once: full disk, broken disk, no descriptors, a write that writes half, a sync that fails.

use std::process::Stdio;

use super::shim::{Action, Shim};
use super::world::{OPERATIONS, Operation, World};
use super::{Draws, rounds};

const EIO: i32 = 5;
const EMFILE: i32 = 24;
const ENOSPC: i32 = 28;

/// Kinds of calls, and how they fail.
pub const FAULTS: [(&str, &str, Action); 8] = [
    ("no space to write", "w", Action::Fail(ENOSPC)),
    ("no space for a name", "n", Action::Fail(ENOSPC)),
    ("a write that fails", "w", Action::Fail(EIO)),
    ("a write of half the bytes", "w", Action::ShortWrite),
    ("a sync that fails", "s", Action::Fail(EIO)),
    ("a rename, link or removal that fails", "n", Action::Fail(EIO)),
    ("no descriptor", "o", Action::Fail(EMFILE)),
    ("a read or map that fails", "rm", Action::Fail(EIO)),
];

#[test]
fn a_command_whose_io_fails_reports_it_and_can_be_repeated() {
    let Some(shim) = Shim::new() else { return };
    let (mut world, mut draws) = (World::new(), Draws::new());
    // The short form takes some of the calls of each kind, the long form each of them.
    let per_fault = rounds("MICPQ_FAULTS", 1);
    let (mut faults, mut hidden) = (0, 0);
    for operation in OPERATIONS {
        for (name, calls, action) in FAULTS {
            let step = world.step(operation, "", &mut draws);
            shim.order(calls, Action::Count, 0);
            run(&shim, &world, &step.line);
            let seen = shim.seen();
            world.judge(&step, "", true).unwrap_or_else(|e| panic!("{}\n{e}", step.line));
            let every = (seen / per_fault).max(1);
            for nth in (1..=seen).filter(|nth| nth % every == seen % every) {
                let step = world.step(operation, "", &mut draws);
                shim.order(calls, action, nth);
                let (succeeded, stderr) = run(&shim, &world, &step.line);
                let what = format!("{name}, call {nth} of {seen}: {}\n{stderr}", step.line);
                faults += 1;
                hidden += u64::from(succeeded);
                if action == Action::ShortWrite {
                    assert!(succeeded, "the rest of the bytes can be written\n{what}");
                }
                world.judge(&step, "", succeeded).unwrap_or_else(|e| panic!("{what}\n{e}"));
                shim.rest();
                world.repeat(&step, "").unwrap_or_else(|e| panic!("{what}\n{e}"));
            }
        }
    }
    eprintln!(
        "{faults} failed calls, {hidden} of them without consequence; the model was right after each and each retry"
    );
}

#[test]
fn a_commit_whose_last_rename_fails_reports_it_and_can_be_repeated() {
    let Some(shim) = Shim::new() else { return };
    let (mut world, mut draws) = (World::new(), Draws::new());
    for error in [EIO, ENOSPC] {
        let step = world.step(Operation::Add, "", &mut draws);
        shim.order_at("*/store/meta.json", "n", Action::Fail(error), 1);
        let (succeeded, stderr) = run(&shim, &world, &step.line);
        assert!(!succeeded && shim.seen() > 0, "{} renames, {succeeded}: {stderr}", shim.seen());
        world.judge(&step, "", false).unwrap_or_else(|e| panic!("{}\n{e}", step.line));
        shim.rest();
        world.repeat(&step, "").unwrap_or_else(|e| panic!("{}\n{e}", step.line));
    }
}

/// Whether the command succeeded, and its standard error. It ends with 0 or 1 and never panics.
fn run(shim: &Shim, world: &World, line: &str) -> (bool, String) {
    let mut command = world.bench.command(line);
    shim.watch(&mut command, world.bench.dir.path());
    let output = command.stdout(Stdio::null()).output().unwrap();
    let stderr = crate::bench::text(&output.stderr);
    let code = output.status.code();
    assert!(matches!(code, Some(0 | 1)) && !stderr.contains("panicked"), "{line}: {code:?}\n{stderr}");
    assert!(code == Some(0) || !stderr.trim().is_empty(), "{line}: no message");
    (code == Some(0), stderr)
}
