//! A directory to run the binary in, with a tiny random BERT encoder and a corpus of synthetic news.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;

/// Topics and their words. A document takes most of its words from one topic.
const TOPICS: [(&str, &[&str]); 4] = [
    ("oil", &["oil", "crude", "barrel", "opec", "pipeline", "refinery", "drilling"]),
    ("bank", &["bank", "rate", "loan", "credit", "deposit", "interest", "dollar"]),
    ("crop", &["wheat", "corn", "harvest", "drought", "farm", "grain", "cocoa"]),
    ("ship", &["ship", "port", "strike", "dock", "cargo", "tanker", "union"]),
];
const COMMON: &[&str] = &["the", "of", "and", "said", "year", "new", "price", "market"];

/// Waits until something holds. Two minutes are more than the slowest machine needs.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(120), "waited two minutes: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A temporary directory with an encoder and a corpus in it.
pub struct Bench {
    pub dir: tempfile::TempDir,
}

impl Bench {
    pub fn new() -> Self {
        let bench = Bench { dir: tempfile::tempdir().unwrap() };
        write_encoder(&bench.path("models/tiny"));
        std::fs::write(bench.path("news.jsonl"), corpus(0, 400)).unwrap();
        bench
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Copies a small encoder of the engine's tests into the directory of encoders, under a name of its own.
    pub fn add_encoder(&self, encoder: &str, name: &str) {
        fn copy(from: &Path, to: &Path) {
            std::fs::create_dir_all(to).unwrap();
            for path in std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()) {
                let target = to.join(path.file_name().unwrap());
                if path.is_dir() {
                    copy(&path, &target);
                } else {
                    std::fs::copy(&path, target).unwrap();
                }
            }
        }
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/encoders").join(encoder);
        copy(&from, &self.path("models").join(name));
    }

    /// The binary, with the directory as its working directory.
    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_micpq"));
        command.args(split(line)).current_dir(self.dir.path());
        command.env("MICPQ_MODELS", self.path("models")).env("HOME", self.dir.path()).stdin(Stdio::null());
        command
    }

    pub fn run(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    /// Runs the binary, which must succeed, and returns standard output.
    pub fn ok(&self, line: &str) -> String {
        let output = self.run(line);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{line}\n{out}\n{err}");
        out
    }

    /// Runs the binary with `--json` and parses every line of standard output.
    pub fn json(&self, line: &str) -> Vec<Value> {
        self.ok(&format!("{line} --json")).lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    }

    /// The hits of all pages of a search.
    pub fn pages(&self, line: &str) -> Vec<Value> {
        let mut hits = self.json(line);
        while let Some(next) = hits.last_mut().and_then(|last| last.as_object_mut()?.remove("next")) {
            hits.extend(self.json(&format!("{line} --after {}", next.as_str().unwrap())));
        }
        hits
    }

    /// Runs the binary, which must end with `code`, and returns standard error.
    pub fn fails(&self, line: &str, code: i32) -> String {
        let output = self.run(line);
        assert_eq!(output.status.code(), Some(code), "{line}\n{}", text(&output.stderr));
        assert!(!text(&output.stderr).contains("panicked"), "{line}\n{}", text(&output.stderr));
        text(&output.stderr)
    }

    pub fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }
}

/// Flags of a quick training run that writes only to the test directory.
pub const TINY: &str = "--encoder tiny --precision f32 --bits 16 --hidden 32 --cache cache";

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Splits a command line at blanks. Single quotes group words.
fn split(line: &str) -> Vec<String> {
    let mut parts = Vec::new();
    for (i, piece) in line.split('\'').enumerate() {
        if i % 2 == 1 {
            parts.push(piece.to_owned());
        } else {
            parts.extend(piece.split_whitespace().map(str::to_owned));
        }
    }
    parts
}

/// Documents `from..to` as JSONL, with id, text, label and year.
pub fn corpus(from: usize, to: usize) -> String {
    let mut out = String::new();
    for i in from..to {
        let (label, words) = TOPICS[i % TOPICS.len()];
        let mut state = (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut draw = |n: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 33) as usize % n
        };
        let text: Vec<&str> =
            (0..12).map(|_| if draw(3) == 0 { COMMON[draw(COMMON.len())] } else { words[draw(words.len())] }).collect();
        let row = serde_json::json!({ "id": i, "text": text.join(" "), "label": label, "year": 1987 + i % 3 });
        out.push_str(&format!("{row}\n"));
    }
    out
}

fn write_encoder(dir: &Path) {
    std::fs::create_dir_all(dir).unwrap();
    let mut vocab: Vec<&str> = vec!["[PAD]", "[UNK]", "[CLS]", "[SEP]"];
    vocab.extend(TOPICS.iter().flat_map(|(_, words)| words.iter()));
    vocab.extend(COMMON);
    std::fs::write(dir.join("vocab.txt"), vocab.join("\n") + "\n").unwrap();
    let (hidden, inner, positions) = (32usize, 64usize, 32usize);
    let config = serde_json::json!({
        "model_type": "bert", "hidden_size": hidden, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": inner, "vocab_size": vocab.len(), "max_position_embeddings": positions,
        "type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12
    });
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();

    let mut shapes: Vec<(String, Vec<usize>)> = vec![
        ("embeddings.word_embeddings.weight".into(), vec![vocab.len(), hidden]),
        ("embeddings.position_embeddings.weight".into(), vec![positions, hidden]),
        ("embeddings.token_type_embeddings.weight".into(), vec![2, hidden]),
    ];
    let mut norms = vec!["embeddings".to_owned()];
    for l in 0..2 {
        let at = |part: &str| format!("encoder.layer.{l}.{part}");
        for (part, outputs, inputs) in [
            ("attention.self.query", hidden, hidden),
            ("attention.self.key", hidden, hidden),
            ("attention.self.value", hidden, hidden),
            ("attention.output.dense", hidden, hidden),
            ("intermediate.dense", inner, hidden),
            ("output.dense", hidden, inner),
        ] {
            shapes.push((at(&format!("{part}.weight")), vec![outputs, inputs]));
            shapes.push((at(&format!("{part}.bias")), vec![outputs]));
        }
        norms.extend([at("attention.output"), at("output")]);
    }
    shapes.extend(norms.iter().flat_map(|n| ["weight", "bias"].map(|p| (format!("{n}.LayerNorm.{p}"), vec![hidden]))));
    let mut state = 7u64;
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = shapes
        .into_iter()
        .map(|(name, shape)| {
            let scale = if name.contains("word_embeddings") { 1.0 } else { 0.1 };
            let shift = if name.ends_with("LayerNorm.weight") { 1.0 } else { 0.0 };
            let bytes = (0..shape.iter().product::<usize>())
                .flat_map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let unit = (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
                    (shift + scale * unit).to_le_bytes()
                })
                .collect();
            (name, shape, bytes)
        })
        .collect();
    let views = tensors.iter().map(|(n, s, b)| (n.clone(), TensorView::new(Dtype::F32, s.clone(), b).unwrap()));
    std::fs::write(dir.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
}
