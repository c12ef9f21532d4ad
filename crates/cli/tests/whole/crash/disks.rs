//! Power cuts on real file systems: the program works on a file system in an image, which is copied at a random moment. The copy
//! is what a disk would have at that moment; mounted again, it must hold what was acknowledged.
//!
//! The copy holds what the file system had sent to its device, so this checks the file system's own order of names and bytes.
//! The model in the engine (`power.rs`) also loses what a device may lose and cuts at every sync.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::world::{OPERATIONS, World};
use super::{Draws, rounds};
use crate::bench::Bench;

/// File systems, how to make them, and the size of an image in MiB.
const SYSTEMS: [(&str, &[&str], u64); 3] = [("ext4", &["-q"], 64), ("xfs", &["-q"], 320), ("btrfs", &["-q"], 160)];

fn tool(name: &str, arguments: &[&str], path: &Path) -> bool {
    let mut command = Command::new(name);
    command.args(arguments).arg(path).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// A mounted image. Unmounted when dropped.
struct Mount<'a>(&'a Path);

impl<'a> Mount<'a> {
    fn new(image: &Path, at: &'a Path) -> Option<Mount<'a>> {
        tool("mount", &["-o", "loop", image.to_str().unwrap()], at).then_some(Mount(at))
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        tool("umount", &[], self.0);
    }
}

/// Copies an image when it does not change for the time of two copies: half of a change would be no moment of a disk.
fn copy(image: &Path, to: &Path) {
    let mut last = std::fs::read(image).unwrap();
    loop {
        let now = std::fs::read(image).unwrap();
        if now == last {
            return std::fs::write(to, now).unwrap();
        }
        last = now;
    }
}

#[test]
fn acknowledged_commits_survive_power_cuts_on_real_file_systems() {
    let cuts = rounds("MICPQ_CUTS", 0);
    if cuts == 0 {
        return eprintln!("skipped: power cuts on real file systems need root; make test-crash runs them");
    }
    for (system, options, size) in SYSTEMS {
        let bench = Bench::new();
        let (image, after, disk) = (bench.path("image"), bench.path("after"), bench.path("disk"));
        std::fs::create_dir(&disk).unwrap();
        std::fs::File::create(&image).unwrap().set_len(size << 20).unwrap();
        let mount = if tool(&format!("mkfs.{system}"), options, &image) { Mount::new(&image, &disk) } else { None };
        let Some(mut mount) = mount else {
            eprintln!("skipped: {system} cannot be made or mounted here");
            continue;
        };
        let (mut world, mut draws) = (World::of(bench, "disk/"), Draws::new());
        let mut acknowledged = 0;
        for cut in 0..cuts {
            let operation = OPERATIONS[cut as usize % OPERATIONS.len()];
            let step = world.step(operation, "disk/", &mut draws);
            let mut child =
                world.bench.command(&step.line).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            // Half of the cuts come behind the end, the others anywhere in the command.
            let ended = draws.below(2) == 0;
            if ended {
                assert!(child.wait().unwrap().success(), "{system}: {}", step.line);
            } else {
                std::thread::sleep(Duration::from_millis(draws.below(60)));
                let _ = Command::new("kill").args(["-STOP", &child.id().to_string()]).stderr(Stdio::null()).status();
            }
            acknowledged += u64::from(ended);
            copy(&image, &after);
            let _ = child.kill();
            let _ = child.wait();
            drop(mount);
            std::fs::rename(&after, &image).unwrap();
            mount = Mount::new(&image, &disk).unwrap_or_else(|| panic!("{system} does not mount after cut {cut}"));
            let what = format!("{system}, cut {cut}, ended {ended}: {}", step.line);
            world.judge(&step, "disk/", ended).unwrap_or_else(|e| panic!("{what}\n{e}"));
        }
        drop(mount);
        eprintln!(
            "{system}: {cuts} power cuts, {acknowledged} just behind an acknowledgement; 0 lost, 0 ghosts, 0 unreadable"
        );
    }
}
