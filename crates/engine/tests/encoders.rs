//! Encoders of every architecture give the vectors of transformers, sentence-transformers and model2vec.
//!
//! `encoders/` has small random encoders, made with their golden embeddings by `encoders/make.py` in double precision. With
//! `MICPQ_ENCODER_GOLDENS` another folder is compared, such as one made with the packages of today (`make encoder-goldens`).

use std::path::{Path, PathBuf};

use engine::encoder::{Dropout, Embedder, EmbedderConfig, Encoder, Pooling, Precision, Role};
use engine::{Matrix, NoProgress};
use serde_json::Value;

const KINDS: [&str; 9] =
    ["bert", "bert-instructed", "roberta", "xlm-roberta", "mpnet", "distilbert", "modernbert", "static", "model2vec"];

fn folder() -> PathBuf {
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/encoders");
    std::env::var_os("MICPQ_ENCODER_GOLDENS").map_or_else(own, PathBuf::from)
}

struct Golden {
    name: &'static str,
    texts: Vec<String>,
    json: Value,
}

impl Golden {
    fn read(name: &'static str) -> Golden {
        let text = std::fs::read_to_string(folder().join(name).join("golden.json")).unwrap();
        let json: Value = serde_json::from_str(&text).unwrap();
        let texts = json["texts"].as_array().unwrap().iter().map(|t| t.as_str().unwrap().to_owned()).collect();
        Golden { name, texts, json }
    }

    fn config(&self) -> EmbedderConfig {
        let encoder = folder().join(self.name).to_string_lossy().into_owned();
        EmbedderConfig { encoder, precision: Precision::F32, ..EmbedderConfig::default() }
    }

    fn rows(&self, what: &str) -> Vec<Vec<f32>> {
        let row = |row: &Value| row.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect();
        self.json[what].as_array().unwrap().iter().map(row).collect()
    }

    /// The largest distance of a vector to its golden one, relative to the length of the golden one.
    fn error(&self, what: &str, found: &Matrix) -> f64 {
        self.errors(what, found).into_iter().fold(0.0, f64::max)
    }

    fn errors(&self, what: &str, found: &Matrix) -> Vec<f64> {
        let rows = self.rows(what);
        assert_eq!((found.rows(), found.cols()), (rows.len(), rows[0].len()), "{} {what}", self.name);
        let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
        let error = |(a, b): (&[f32], &Vec<f32>)| {
            let apart = norm(&mut a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b)));
            apart / norm(&mut b.iter().map(|b| f64::from(*b))).max(1e-9)
        };
        found.iter().zip(&rows).map(error).collect()
    }
}

#[test]
fn every_architecture_agrees_with_its_reference_to_1e_5() {
    for name in KINDS {
        let golden = Golden::read(name);
        let embedder = Embedder::load_local(&golden.config()).unwrap();
        for (role, what) in [(Role::Document, "documents"), (Role::Query, "queries")] {
            let found = embedder.encode_as(role, &golden.texts, &NoProgress).unwrap();
            let error = golden.error(what, &found);
            println!("{name}, {what}: {error:.1e}");
            assert!(error < 1e-5, "{name}, {what}: {error}");
        }
        if let Some(dimensions) = golden.json["dimensions"].as_u64() {
            let config = EmbedderConfig { dimensions: Some(dimensions as usize), ..golden.config() };
            let found = Embedder::load_local(&config).unwrap().encode(&golden.texts, &NoProgress).unwrap();
            assert!(golden.error("truncated", &found) < 1e-5, "{name}");
        }
    }
}

#[test]
fn rounded_products_stay_near_and_rows_do_not_depend_on_their_batch() {
    for name in KINDS {
        let golden = Golden::read(name);
        // The median: random weights of three small layers enlarge the rounding of a single text to anything. A wrong layer would
        // be off by about 1 in all of them.
        for (precision, limit) in [(Precision::F32, 1e-5), (Precision::Bf16, 0.05), (Precision::Int8, 0.4)] {
            let embedder = Embedder::load_local(&EmbedderConfig { precision, ..golden.config() }).unwrap();
            let together = embedder.encode(&golden.texts, &NoProgress).unwrap();
            let mut errors = golden.errors("documents", &together);
            errors.sort_by(f64::total_cmp);
            let error = errors[errors.len() / 2];
            println!("{name} in {precision}: {error:.1e}");
            assert!(error < limit, "{name} in {precision}: {error}");
            for (i, text) in golden.texts.iter().enumerate() {
                let alone = embedder.encode(&[text], &NoProgress).unwrap();
                assert_eq!(alone.row(0), together.row(i), "{name} in {precision}, text {i}");
            }
        }
    }
}

#[test]
fn dropout_gives_views_that_only_their_numbers_decide() {
    for name in KINDS {
        let golden = Golden::read(name);
        for precision in [Precision::F32, Precision::Int8] {
            let embedder = Embedder::load_local(&EmbedderConfig { precision, ..golden.config() }).unwrap();
            let tokens = embedder.tokens(&golden.texts).unwrap();
            let numbers: Vec<u64> = (0..tokens.len() as u64).collect();
            let view = |seed, number| Some(Dropout::new(0.3, seed, number, &numbers));
            let encode = |views: &[Option<Dropout>]| embedder.encode_views(&tokens, views, &NoProgress).unwrap();
            let views = encode(&[view(1, 1), view(1, 2), None, view(1, 1)]);
            assert_eq!(views[0], views[3], "{name}");
            assert_ne!(views[0], views[1], "{name}");
            assert_ne!(views[0], views[2], "{name}");
            assert_eq!(views[1], encode(&[view(1, 2)])[0], "{name}");
            assert!(views[0].as_slice().iter().all(|v| v.is_finite()), "{name}");
            let clean = encode(&[None]);
            assert_eq!(views[2], clean[0], "{name}");
        }
    }
}

#[test]
fn a_named_pooling_gives_raw_states_whatever_the_directory_says() {
    let golden = Golden::read("bert");
    let raw = EmbedderConfig { pooling: Pooling::Mean.into(), ..golden.config() };
    let embedder = Embedder::load_local(&raw).unwrap();
    let config = embedder.config();
    assert!(!config.unit_length && config.query_prompt.is_none() && config.document_prompt.is_none());
    let encoder = Encoder::load(&folder().join("bert")).unwrap();
    let ids = encoder.tokenizer().encode(&golden.texts, encoder.default_length()).unwrap();
    let expected = encoder.encode(&ids, Pooling::Mean, None, &NoProgress).unwrap();
    assert_eq!(embedder.encode(&golden.texts, &NoProgress).unwrap(), expected);
    // Prompts of the user come first in any case.
    let own =
        EmbedderConfig { document_prompt: Some(String::new()), query_prompt: Some("q: ".into()), ..golden.config() };
    let config = Embedder::load_local(&own).unwrap().config().clone();
    assert_eq!((config.document_prompt, config.query_prompt), (None, Some("q: ".into())));
}

/// A copy of an encoder that a test changes.
struct Copy(tempfile::TempDir);

impl Copy {
    fn of(name: &str) -> Copy {
        fn copy(from: &Path, to: &Path) {
            std::fs::create_dir_all(to).unwrap();
            for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
                let target = to.join(entry.file_name());
                if entry.path().is_dir() {
                    copy(&entry.path(), &target);
                } else {
                    std::fs::copy(entry.path(), target).unwrap();
                }
            }
        }
        let dir = tempfile::tempdir().unwrap();
        copy(&folder().join(name), dir.path());
        Copy(dir)
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    fn json(&self, file: &str, change: impl FnOnce(&mut Value)) {
        let text = std::fs::read_to_string(self.path(file)).unwrap();
        let mut json = serde_json::from_str(&text).unwrap();
        change(&mut json);
        std::fs::write(self.path(file), json.to_string()).unwrap();
    }

    fn load(&self) -> engine::Result<Embedder> {
        Embedder::load_local(&EmbedderConfig {
            encoder: self.0.path().to_string_lossy().into_owned(),
            precision: Precision::F32,
            ..EmbedderConfig::default()
        })
    }

    fn refused(&self, parts: &[&str]) {
        let message = self.load().err().expect("it is refused").to_string();
        assert!(parts.iter().all(|part| message.contains(part)), "{message}, expected {parts:?}");
    }
}

#[test]
fn what_is_not_understood_is_refused_by_name() {
    let module = |kind: &str| {
        let copy = Copy::of("bert");
        copy.json("modules.json", |modules| modules[2]["type"] = kind.into());
        copy
    };
    module("sentence_transformers.models.LSTM").refused(&[
        "modules.json",
        "module 2",
        "models.LSTM",
        "known: Transformer",
    ]);
    module("custom_st.Normalize").refused(&["custom_st.Normalize", "not read"]);
    module("sentence_transformers.models.Pooling").refused(&["not read at this place"]);

    let pooling = |mode: Value| {
        let copy = Copy::of("bert");
        copy.json("1_Pooling/config.json", |config| config["pooling_mode"] = mode);
        copy
    };
    pooling("weightedmean".into()).refused(&["1_Pooling/config.json", "weightedmean", "lasttoken"]);
    pooling(serde_json::json!(["cls", "max"])).refused(&["cls with max"]);

    let copy = Copy::of("distilbert");
    copy.json("2_Dense/config.json", |config| {
        config["activation_function"] = "torch.nn.modules.activation.Mish".into();
    });
    copy.refused(&["2_Dense/config.json", "activation.Mish", "Tanh"]);
    let copy = Copy::of("distilbert");
    copy.json("3_Dense/config.json", |config| config["module_input_name"] = "token_embeddings".into());
    copy.refused(&["3_Dense/config.json", "token_embeddings"]);

    let copy = Copy::of("modernbert");
    copy.json("config.json", |config| config["rope_scaling"] = serde_json::json!({"factor": 2}));
    copy.refused(&["config.json", "rope_scaling"]);
    let copy = Copy::of("bert");
    copy.json("config.json", |config| config["model_type"] = "t5".into());
    copy.refused(&["config.json", "model_type is t5", "modernbert"]);
}

#[test]
fn missing_and_foreign_files_are_named() {
    for (name, file, parts) in [
        ("bert", "1_Pooling/config.json", &["1_Pooling/config.json", "is missing", "fetch the encoder again"][..]),
        ("bert", "model.safetensors", &["has no model.safetensors"]),
        ("bert", "tokenizer.json", &["neither tokenizer.json nor vocab.txt"]),
        ("bert", "config.json", &["no config.json"]),
        ("distilbert", "2_Dense/model.safetensors", &["2_Dense", "has no model.safetensors"]),
        ("static", "model.safetensors", &["has no model.safetensors"]),
    ] {
        let copy = Copy::of(name);
        std::fs::remove_file(copy.path(file)).unwrap();
        copy.refused(parts);
    }
    // The tokenizer of an encoder with another vocabulary, whose ids go beyond the table.
    let copy = Copy::of("bert");
    std::fs::copy(folder().join("roberta/tokenizer.json"), copy.path("tokenizer.json")).unwrap();
    copy.refused(&["its tokenizer has token", "different encoders", "fetch it again"]);
    // The weights of another architecture.
    let copy = Copy::of("bert");
    std::fs::copy(folder().join("mpnet/model.safetensors"), copy.path("model.safetensors")).unwrap();
    copy.refused(&["model.safetensors", "has no tensor"]);
    let copy = Copy::of("static");
    std::fs::write(copy.path("modules.json"), "[").unwrap();
    copy.refused(&["modules.json", "is not valid JSON"]);
    // More dimensions than there are.
    let config = EmbedderConfig { dimensions: Some(33), ..Golden::read("bert").config() };
    let message = Embedder::load_local(&config).err().unwrap().to_string();
    assert!(message.contains("32 values") && message.contains("33"), "{message}");
}

#[test]
fn a_model_keeps_what_it_was_trained_with() {
    let copy = Copy::of("distilbert");
    let golden = Golden::read("distilbert");
    let recorded = copy.load().unwrap().config().clone();
    let text = serde_json::to_string(&recorded).unwrap();
    let read: engine::encoder::EmbeddingConfig = serde_json::from_str(&text).unwrap();
    assert_eq!(read, recorded);
    let found = Embedder::of_model(&read).unwrap().encode(&golden.texts, &NoProgress).unwrap();
    assert!(golden.error("documents", &found) < 1e-5);
    // The directory changes: the model still asks for its own layers, or refuses.
    copy.json("1_Pooling/config.json", |config| config["pooling_mode"] = "mean".into());
    let found = Embedder::of_model(&read).unwrap().encode(&golden.texts, &NoProgress).unwrap();
    assert!(golden.error("documents", &found) < 1e-5);
    let weights = copy.path("2_Dense/model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    let message = Embedder::of_model(&read).err().expect("other weights").to_string();
    assert!(message.contains("2_Dense") && message.contains("the model was trained with"), "{message}");

    // What decides vectors decides the name of cached ones.
    let bert = Golden::read("bert");
    let keys: Vec<String> = [
        bert.config(),
        EmbedderConfig { dimensions: Some(8), ..bert.config() },
        EmbedderConfig { pooling: Pooling::Cls.into(), ..bert.config() },
        EmbedderConfig { pooling: Pooling::Max.into(), ..bert.config() },
        Golden::read("bert-instructed").config(),
        golden.config(),
    ]
    .iter()
    .map(|config| Embedder::load_local(config).unwrap().config().vectors_of_tokens())
    .collect();
    for (i, key) in keys.iter().enumerate() {
        assert!(!keys[..i].contains(key), "{key}");
    }
}

#[test]
fn weights_in_parts_equal_weights_in_one_file() {
    use safetensors::tensor::SafeTensors;
    let copy = Copy::of("bert");
    let expected = copy.load().unwrap().encode(&["oil prices"], &NoProgress).unwrap();
    let bytes = std::fs::read(copy.path("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut map = serde_json::Map::new();
    for part in 0..2usize {
        let name = format!("model-0000{}-of-00002.safetensors", part + 1);
        let own =
            file.iter().enumerate().filter(|(i, _)| i % 2 == part).map(|(_, (tensor, view))| (tensor.to_owned(), view));
        let own: Vec<_> = own.collect();
        own.iter().for_each(|(tensor, _)| drop(map.insert(tensor.clone(), name.clone().into())));
        std::fs::write(copy.path(&name), safetensors::serialize(own, None).unwrap()).unwrap();
    }
    std::fs::remove_file(copy.path("model.safetensors")).unwrap();
    let index = serde_json::json!({"metadata": {}, "weight_map": map});
    std::fs::write(copy.path("model.safetensors.index.json"), index.to_string()).unwrap();
    assert_eq!(copy.load().unwrap().encode(&["oil prices"], &NoProgress).unwrap(), expected);
    std::fs::remove_file(copy.path("model-00002-of-00002.safetensors")).unwrap();
    copy.refused(&["model-00002-of-00002.safetensors"]);
}

#[test]
fn e5_encoders_have_their_prompts() {
    let copy = Copy::of("bert");
    for (name, e5) in [("intfloat--e5-small-v2", true), ("multilingual-e5-base", true), ("e5-mistral", false)] {
        let dir = copy.path(name);
        std::fs::create_dir(&dir).unwrap();
        for file in ["config.json", "model.safetensors", "tokenizer.json"] {
            std::fs::copy(copy.path(file), dir.join(file)).unwrap();
        }
        let config = EmbedderConfig { encoder: dir.to_string_lossy().into_owned(), ..EmbedderConfig::default() };
        let recorded = Embedder::load_local(&config).unwrap().config().clone();
        assert_eq!(recorded.query_prompt.as_deref(), e5.then_some("query: "), "{name}");
        assert_eq!(recorded.document_prompt.as_deref(), e5.then_some("passage: "), "{name}");
    }
}
