//! The program is killed before or after any of its I/O calls. Between two of them nothing on disk changes, so these are all
//! the moments there are; most of them are around commits.

use std::collections::HashMap;
use std::process::Stdio;

use super::shim::{ALL, Action, CHANGES, Shim};
use super::world::{OPERATIONS, World};
use super::{Draws, rounds};

#[test]
fn a_killed_command_leaves_a_state_it_passed_through() {
    let Some(shim) = Shim::new() else { return };
    let (mut world, mut draws) = (World::new(), Draws::new());
    let wanted = rounds("MICPQ_KILLS", 40);
    // I/O calls of an operation, as its last complete run had them.
    let mut calls = HashMap::new();
    let (mut kills, mut unacknowledged, mut runs) = (0, 0, 0);
    while kills < wanted {
        let operation = OPERATIONS[runs % OPERATIONS.len()];
        runs += 1;
        let step = world.step(operation, "", &mut draws);
        // Calls that change something are aimed at more often than the many that read.
        let kind = if draws.below(4) == 0 { ALL } else { CHANGES };
        match calls.get(&(operation, kind)) {
            None => shim.order(kind, Action::Count, 0),
            Some(calls) => {
                let action = if draws.below(2) == 0 { Action::KillBefore } else { Action::KillAfter };
                shim.order(kind, action, 1 + draws.below(*calls));
            }
        }
        let mut command = world.bench.command(&step.line);
        shim.watch(&mut command, world.bench.dir.path());
        let output = command.stdout(Stdio::null()).output().unwrap();
        let killed = output.status.code().is_none();
        let aim = format!("run {runs}, killed at call {} of kind {kind}: {}", shim.seen(), step.line);
        if killed {
            kills += 1;
        } else {
            assert!(output.status.success(), "{aim}\n{}", crate::bench::text(&output.stderr));
            calls.insert((operation, kind), shim.seen().max(1));
        }
        world.judge(&step, "", !killed).unwrap_or_else(|e| panic!("{aim}\n{e}"));
        unacknowledged += u64::from(killed && Some(&world.index) == step.index.last());
        if killed && draws.below(2) == 0 {
            world.repeat(&step, "").unwrap_or_else(|e| panic!("{aim}\n{e}"));
        }
    }
    // What killed commands left behind is removed by the next ones.
    for operation in OPERATIONS {
        let step = world.step(operation, "", &mut draws);
        world.repeat(&step, "").unwrap_or_else(|e| panic!("{}\n{e}", step.line));
    }
    let left =
        std::fs::read_dir(world.bench.dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let left: Vec<String> = left.filter(|name| name.contains(".micpq")).collect();
    assert!(left.is_empty(), "{left:?}");
    eprintln!("{kills} kills in {runs} runs, {unacknowledged} behind the last change; 0 lost, 0 ghosts, 0 unreadable");
}
