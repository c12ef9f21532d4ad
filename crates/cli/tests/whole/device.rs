//! `--device` on machines whose GPU is missing, old or broken. Fake drivers stand in for NVIDIA's.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::bench::{Bench, TINY, text};

/// Source of a fake driver. `start` is the result of `cuInit`: 0 success, 100 no device, 999 unknown error.
fn driver(version: i32, start: i32, count: i32) -> String {
    format!(
        "#[unsafe(no_mangle)] pub unsafe extern \"C\" fn cuDriverGetVersion(v: *mut i32) -> i32 {{ unsafe {{ *v = {version} }}; 0 }}
         #[unsafe(no_mangle)] pub extern \"C\" fn cuInit(_: u32) -> i32 {{ {start} }}
         #[unsafe(no_mangle)] pub unsafe extern \"C\" fn cuDeviceGetCount(n: *mut i32) -> i32 {{ unsafe {{ *n = {count} }}; 0 }}
         #[unsafe(no_mangle)] pub extern \"C\" fn cuGetErrorName(_: i32, _: *mut *const u8) -> i32 {{ 1 }}
         #[unsafe(no_mangle)] pub extern \"C\" fn cuGetErrorString(_: i32, _: *mut *const u8) -> i32 {{ 1 }}\n"
    )
}

/// Compiles a fake driver into its own folder. `None` if there is no compiler.
fn library(bench: &Bench, name: &str, source: &str) -> Option<PathBuf> {
    let dir = bench.path(name);
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("driver.rs"), source).unwrap();
    let compiler = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let compiled = Command::new(compiler)
        .args(["--edition", "2024", "--crate-type", "cdylib", "-C", "panic=abort", "-o", "libcuda.so.1", "driver.rs"])
        .current_dir(&dir)
        .output()
        .ok()?;
    assert!(compiled.status.success(), "{}", text(&compiled.stderr));
    Some(dir)
}

fn run(bench: &Bench, line: &str, libraries: &Path) -> Output {
    bench.command(line).env("LD_LIBRARY_PATH", libraries).output().unwrap()
}

#[test]
fn an_unusable_gpu_is_explained_and_auto_uses_the_cpu() {
    if cfg!(not(target_os = "linux")) {
        return;
    }
    let bench = Bench::new();
    let cases = [
        ("old", driver(11_040, 0, 1), "driver is for CUDA 11.4, but at least 12.0 is needed", true),
        ("none", driver(13_000, 100, 0), "GPU 0 does not exist: this machine has 0", false),
        ("hidden", driver(13_000, 0, 0), "GPU 0 does not exist: this machine has 0", false),
        ("broken", driver(13_000, 999, 1), "check that nvidia-smi does", true),
        // A library of that name without the functions that micpq needs.
        ("foreign", "pub fn nothing() {}\n".into(), "update the NVIDIA driver", true),
        // A driver without the functions that describe a device.
        ("half", driver(13_000, 0, 1), "update the NVIDIA driver", true),
    ];
    let line = "encode news.jsonl --encoder tiny -o embeddings.npy";
    bench.ok(line);
    let expected = bench.bytes("embeddings.npy");
    for (name, source, reason, warns) in cases {
        let Some(dir) = library(&bench, name, &source) else {
            println!("skipped: no compiler");
            return;
        };
        let output = run(&bench, &format!("{line} --device cuda"), &dir);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{name}: {stderr}");
        assert!(
            stderr.contains("device cuda:0: ") && stderr.contains(reason) && stderr.contains("CPU"),
            "{name}: {stderr}"
        );
        // Without --device the CPU gives the same bytes, and a warning tells of a broken driver.
        std::fs::remove_file(bench.path("embeddings.npy")).unwrap();
        let output = run(&bench, line, &dir);
        let stderr = text(&output.stderr);
        assert!(output.status.success(), "{name}: {stderr}");
        assert_eq!(stderr.contains("encoding on the CPU"), warns, "{name}: {stderr}");
        assert_eq!(bench.bytes("embeddings.npy"), expected, "{name}");
    }
}

#[test]
fn every_command_that_encodes_takes_a_device() {
    let bench = Bench::new();
    bench.ok(&format!("build news.jsonl {TINY} --epochs 1 --views noise:4 --device cpu -o i"));
    bench.ok("search i 'crude oil' --device cpu");
    for line in [
        "search i 'crude oil' --device gpu",
        "eval --model i/model --database news.jsonl --queries news.jsonl --device cuda:x",
        "index add i news.jsonl --device 0",
    ] {
        let stderr = bench.fails(line, 2);
        assert!(stderr.contains("cuda:N"), "{line}: {stderr}");
    }
    // No driver: the loader searches an empty folder.
    let empty = bench.path("empty");
    std::fs::create_dir_all(&empty).unwrap();
    for line in ["search i 'crude oil'", "index add i news.jsonl", "train news.jsonl --encoder tiny -o m"] {
        let output = run(&bench, &format!("{line} --device cuda"), &empty);
        let stderr = text(&output.stderr);
        if output.status.success() {
            println!("skipped: this machine has a GPU");
            return;
        }
        assert!(stderr.contains("libcuda.so.1") || stderr.contains("GPU"), "{stderr}");
    }
}
