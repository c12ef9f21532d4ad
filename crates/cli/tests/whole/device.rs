//! `--device` on machines whose GPU is missing, old or broken: drivers made for the occasion stand in for NVIDIA's.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::bench::{Bench, TINY, text};

/// What a driver answers: its version, and what starting it gives (0 done, 100 no device, 999 unknown).
fn driver(version: i32, start: i32, count: i32) -> String {
    format!(
        "#[unsafe(no_mangle)] pub unsafe extern \"C\" fn cuDriverGetVersion(v: *mut i32) -> i32 {{ unsafe {{ *v = {version} }}; 0 }}
         #[unsafe(no_mangle)] pub extern \"C\" fn cuInit(_: u32) -> i32 {{ {start} }}
         #[unsafe(no_mangle)] pub unsafe extern \"C\" fn cuDeviceGetCount(n: *mut i32) -> i32 {{ unsafe {{ *n = {count} }}; 0 }}
         #[unsafe(no_mangle)] pub extern \"C\" fn cuGetErrorName(_: i32, _: *mut *const u8) -> i32 {{ 1 }}
         #[unsafe(no_mangle)] pub extern \"C\" fn cuGetErrorString(_: i32, _: *mut *const u8) -> i32 {{ 1 }}\n"
    )
}

/// Compiles a stand-in for the driver into its own folder; none where there is no compiler beside the tests.
fn library(bench: &Bench, name: &str, source: &str) -> Option<PathBuf> {
    let dir = bench.path(name);
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("driver.rs"), source).unwrap();
    let compiler = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let made = Command::new(compiler)
        .args(["--edition", "2024", "--crate-type", "cdylib", "-C", "panic=abort", "-o", "libcuda.so.1", "driver.rs"])
        .current_dir(&dir)
        .output()
        .ok()?;
    assert!(made.status.success(), "{}", text(&made.stderr));
    Some(dir)
}

fn run(bench: &Bench, line: &str, libraries: &Path) -> Output {
    bench.command(line).env("LD_LIBRARY_PATH", libraries).output().unwrap()
}

#[test]
fn a_gpu_that_cannot_be_used_is_explained_and_auto_goes_on_without() {
    if cfg!(not(target_os = "linux")) {
        return;
    }
    let bench = Bench::new();
    let cases = [
        ("old", driver(11_040, 0, 1), "driver is for CUDA 11.4, at least 12.0 is needed", true),
        ("none", driver(13_000, 100, 0), "GPU 0 does not exist: this machine shows 0", false),
        ("hidden", driver(13_000, 0, 0), "GPU 0 does not exist: this machine shows 0", false),
        ("broken", driver(13_000, 999, 1), "see whether nvidia-smi does", true),
        // A library of that name without a function that is needed.
        ("foreign", "pub fn nothing() {}\n".into(), "update the NVIDIA driver", true),
        // A device that cannot be described: its functions are missing.
        ("half", driver(13_000, 0, 1), "update the NVIDIA driver", true),
    ];
    let line = "encode news.jsonl --encoder tiny -o features.npy";
    bench.ok(line);
    let expected = bench.bytes("features.npy");
    for (name, source, words, told) in cases {
        let Some(dir) = library(&bench, name, &source) else {
            println!("skipped: no compiler beside the tests");
            return;
        };
        let output = run(&bench, &format!("{line} --device cuda"), &dir);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{name}: {said}");
        assert!(said.contains("--device cuda:0") && said.contains(words) && said.contains("CPU"), "{name}: {said}");
        // The same machine without asking for the GPU: the CPU's own bytes, and a word where something is broken.
        std::fs::remove_file(bench.path("features.npy")).unwrap();
        let output = run(&bench, line, &dir);
        let said = text(&output.stderr);
        assert!(output.status.success(), "{name}: {said}");
        assert_eq!(said.contains("encoding on the CPU"), told, "{name}: {said}");
        assert_eq!(bench.bytes("features.npy"), expected, "{name}");
    }
}

#[test]
fn the_device_is_an_option_of_every_command_that_encodes() {
    let bench = Bench::new();
    bench.ok(&format!("build news.jsonl {TINY} --epochs 1 --views noise:4 --device cpu -o i"));
    bench.ok("search i 'crude oil' --device cpu");
    for line in [
        "search i 'crude oil' --device gpu",
        "eval --model i/model --database news.jsonl --queries news.jsonl --device cuda:x",
        "index add i news.jsonl --device 0",
    ] {
        let said = bench.fails(line, 2);
        assert!(said.contains("cuda:N"), "{line}: {said}");
    }
    // No driver at all, where the loader looks nowhere it could be.
    let empty = bench.path("empty");
    std::fs::create_dir_all(&empty).unwrap();
    for line in ["search i 'crude oil'", "index add i news.jsonl", "train news.jsonl --encoder tiny -o m"] {
        let output = run(&bench, &format!("{line} --device cuda"), &empty);
        let said = text(&output.stderr);
        if output.status.success() {
            println!("skipped: this machine has a GPU");
            return;
        }
        assert!(said.contains("libcuda.so.1") || said.contains("GPU"), "{said}");
    }
}
