//! Memory that this process may still take.

use std::path::{Path, PathBuf};

/// Bytes that the system gives a new program, or that the limit of the process's control group leaves, if that is less. `None`
/// where neither is known.
pub fn available() -> Option<u64> {
    available_in(Path::new("/proc"), Path::new("/sys/fs/cgroup"))
}

fn available_in(proc: &Path, groups: &Path) -> Option<u64> {
    let system = of_system(proc);
    let group = of_groups(proc, groups);
    system.into_iter().chain(group).min()
}

fn of_system(proc: &Path) -> Option<u64> {
    let table = std::fs::read_to_string(proc.join("meminfo")).ok()?;
    let line = table.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// The least that the control group of the process and those above it leave, of both versions of control groups.
fn of_groups(proc: &Path, groups: &Path) -> Option<u64> {
    let table = std::fs::read_to_string(proc.join("self/cgroup")).ok()?;
    let mut least = None;
    for line in table.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, names) = match controllers {
            "" => (groups.to_path_buf(), ["memory.max", "memory.current", "inactive_file"]),
            _ if controllers.split(',').any(|name| name == "memory") => {
                let names = ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"];
                (groups.join("memory"), names)
            }
            _ => continue,
        };
        // In a container the path may be of the machine outside: its root is the group of the container then.
        let own: PathBuf = root.join(path.trim_start_matches('/'));
        for folder in own.ancestors().take_while(|folder| folder.starts_with(&root)) {
            least = least.into_iter().chain(left(folder, names)).min();
        }
    }
    least
}

/// What the limit of a group leaves. Cached files that nobody reads are given back when memory is needed.
fn left(folder: &Path, [limit, used, cached]: [&str; 3]) -> Option<u64> {
    let number = |name: &str| std::fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    let limit = number(limit)?;
    let stat = std::fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let cached = stat.lines().find_map(|line| line.strip_prefix(cached)?.trim().parse::<u64>().ok()).unwrap_or(0);
    Some(limit.saturating_sub(number(used)?.saturating_sub(cached)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Option<u64>) {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let found = available_in(&dir.path().join("proc"), &dir.path().join("sys"));
        (dir, found)
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    4000 kB\n");

    #[test]
    fn the_least_of_the_system_and_all_groups_is_available() {
        let of = |files: &[(&str, &str)]| machine(files).1;
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[MEMINFO]), Some(4000 << 10));
        let group = ("proc/self/cgroup", "0::/system.slice/micpq.service\n");
        let [max, current, stat] =
            ["memory.max", "memory.current", "memory.stat"].map(|n| format!("sys/system.slice/micpq.service/{n}"));
        let limited = [
            MEMINFO,
            group,
            (max.as_str(), "1000000\n"),
            (&current, "600000\n"),
            (&stat, "anon 1\ninactive_file 100000\n"),
        ];
        assert_eq!(of(&limited), Some(500_000));
        // Without /proc/meminfo, as a service that may see only its processes.
        assert_eq!(of(&limited[1..]), Some(500_000));
        let mut above = limited.to_vec();
        above.extend([("sys/system.slice/memory.max", "300000"), ("sys/system.slice/memory.current", "299000")]);
        assert_eq!(of(&above), Some(1000));
        assert_eq!(of(&[MEMINFO, group, (&max, "max\n"), (&current, "600000\n")]), Some(4000 << 10));
        // In a container, whose group is the root; and the first version of control groups.
        let root =
            [MEMINFO, ("proc/self/cgroup", "0::/\n"), ("sys/memory.max", "5000"), ("sys/memory.current", "9000")];
        assert_eq!(of(&root), Some(0));
        let first = [
            MEMINFO,
            ("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/docker/abc\n"),
            ("sys/memory/memory.limit_in_bytes", "800000"),
            ("sys/memory/memory.usage_in_bytes", "300000"),
        ];
        assert_eq!(of(&first), Some(500_000));
    }
}
