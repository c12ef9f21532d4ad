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
        for precision in [Precision::F32, Precision::Bf16, Precision::Int8] {
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

/// The architectures that have layers.
fn transformers() -> impl Iterator<Item = &'static str> {
    KINDS.into_iter().filter(|name| !["static", "model2vec"].contains(name))
}

/// All of them in every precision: what it is called, its encoder, and the tokens of its texts.
fn each_transformer(check: impl Fn(&str, &Encoder, &[Vec<u32>])) {
    for name in transformers() {
        let golden = Golden::read(name);
        for precision in [Precision::F32, Precision::Bf16, Precision::Int8] {
            let encoder = Encoder::load_in(&folder().join(name), precision).unwrap();
            let ids = encoder.tokenizer().encode(&golden.texts, encoder.default_length()).unwrap();
            check(&format!("{name} in {precision}"), &encoder, &ids);
        }
    }
}

#[test]
fn dropout_of_the_last_layers_shares_the_lower_ones_in_every_architecture() {
    each_transformer(|name, encoder, ids| {
        let numbers: Vec<u64> = (0..ids.len() as u64).collect();
        let layers = encoder.config().num_hidden_layers;
        let view = |number, last| Some(Dropout::new(0.3, 1, number, &numbers).in_last(last));
        for pooling in [Pooling::Cls, Pooling::Mean] {
            let encode = |views: &[_]| encoder.encode_views(ids, pooling, views, &NoProgress).unwrap();
            for last in 0..=layers {
                let together = encode(&[view(1, last), view(2, last), None]);
                for (i, own) in [view(1, last), view(2, last), None].into_iter().enumerate() {
                    assert_eq!(together[i], encode(&[own])[0], "{name}, view {i}, last {last}");
                }
                assert_eq!(together[0] == together[1], last == 0, "{name}, last {last}");
                assert_eq!(together[0] == together[2], last == 0, "{name}, last {last}");
            }
        }
    });
}

#[test]
fn the_shortcut_of_cls_pooling_gives_the_first_state_in_every_architecture() {
    each_transformer(|name, encoder, ids| {
        let numbers: Vec<u64> = (0..ids.len() as u64).collect();
        let view = Dropout::new(0.3, 1, 2, &numbers);
        for dropout in [None, Some(view), Some(view.in_last(1))] {
            let expected = encoder.encode(ids, Pooling::Cls, dropout, &NoProgress).unwrap();
            let mut found = Matrix::zeros(ids.len(), encoder.width());
            let rows = found.as_mut_slice().chunks_exact_mut(encoder.width()).collect();
            let take = |states: &[f32], row: &mut [f32]| row.copy_from_slice(&states[..row.len()]);
            encoder.reduce(ids, dropout, rows, take, &NoProgress).unwrap();
            assert_eq!(found, expected, "{name}");
        }
    });
}

/// How much wider than the small encoders those are on which rounding is measured.
const WIDER: usize = 8;

/// An encoder like that of `name`, with more values in every layer and random weights of the usual size: rounding errors of many
/// values average out, as they do in encoders that people use.
fn wider(name: &str) -> Copy {
    use safetensors::tensor::{Dtype, SafeTensors, TensorView};
    let copy = Copy::of(name);
    let _ = std::fs::remove_file(copy.path("modules.json"));
    let widths = ["hidden_size", "intermediate_size", "dim", "hidden_dim"];
    copy.json("config.json", |config| {
        for width in widths {
            if let Some(size) = config[width].as_u64() {
                config[width] = (size * WIDER as u64).into();
            }
        }
        for heads in ["num_attention_heads", "n_heads"] {
            if config[heads].is_u64() {
                config[heads] = 8.into();
            }
        }
    });
    let bytes = std::fs::read(copy.path("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut state = 7u64;
    // Nearly normal: the sum of four uniform values.
    let mut random = || {
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        };
        (0..4).map(|_| uniform()).sum::<f32>() * 1.73
    };
    let mut tensors = Vec::new();
    for tensor in file.names() {
        // The small encoders have 32 values in a state and 48 in between, or twice and three times as many side by side.
        let widened = |size: &usize| if [32, 48, 96].contains(size) { size * WIDER } else { *size };
        let shape: Vec<usize> = match file.tensor(tensor).unwrap().shape() {
            // Buckets of distances by heads.
            [buckets, _] if tensor.contains("relative_attention_bias") => vec![*buckets, 8],
            shape => shape.iter().map(widened).collect(),
        };
        let is_norm = shape.len() == 1 && tensor.ends_with("weight");
        let scale = match shape[..] {
            [_, inputs] if !tensor.contains("embeddings") => 1.0 / (inputs as f32).sqrt(),
            [_, _] => 0.5,
            _ => 0.1,
        };
        let values = (0..shape.iter().product()).map(|_| f32::from(is_norm) + scale * random());
        tensors.push((tensor.to_owned(), shape, values.flat_map(f32::to_le_bytes).collect::<Vec<u8>>()));
    }
    let views = tensors.iter().map(|(n, s, b)| (n, TensorView::new(Dtype::F32, s.clone(), b).unwrap()));
    std::fs::write(copy.path("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    copy
}

#[test]
fn rounded_products_of_wide_encoders_stay_near() {
    for name in transformers().filter(|name| *name != "bert-instructed") {
        let copy = wider(name);
        let texts = Golden::read(name).texts;
        let load = |precision| Encoder::load_in(copy.0.path(), precision).unwrap();
        let exact = load(Precision::F32);
        let ids = exact.tokenizer().encode(&texts, exact.default_length()).unwrap();
        let expected = exact.encode(&ids, Pooling::Mean, None, &NoProgress).unwrap();
        for (precision, limit) in [(Precision::Bf16, 0.02), (Precision::Int8, 0.1)] {
            let found = load(precision).encode(&ids, Pooling::Mean, None, &NoProgress).unwrap();
            let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|v| v * v).sum::<f32>().sqrt();
            let error = |(a, b): (&[f32], &[f32])| {
                norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied())
            };
            let worst = found.iter().zip(expected.iter()).map(error).fold(0.0, f32::max);
            println!("{name} in {precision}: {worst:.1e}");
            assert!(worst < limit, "{name} in {precision}: {worst}");
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
fn networks_that_are_no_encoders_of_texts_are_refused_by_name() {
    // Without modules, its class alone tells a cross-encoder from an encoder.
    for (class, parts) in [
        ("BertForSequenceClassification", &["config.json", "BertForSequenceClassification", "cross-encoder"][..]),
        ("HF_ColBERT", &["architectures is HF_ColBERT", "modules.json"]),
    ] {
        let copy = Copy::of("bert");
        copy.json("config.json", |config| config["architectures"] = serde_json::json!([class]));
        copy.load().unwrap();
        std::fs::remove_file(copy.path("modules.json")).unwrap();
        copy.refused(parts);
    }
    for class in ["BertModel", "BertForMaskedLM", "BertForPreTraining"] {
        let copy = Copy::of("bert");
        copy.json("config.json", |config| config["architectures"] = serde_json::json!([class]));
        std::fs::remove_file(copy.path("modules.json")).unwrap();
        copy.load().unwrap();
    }
    let copy = Copy::of("bert");
    copy.json("config.json", |config| {
        config["auto_map"] = serde_json::json!({ "AutoModel": "org/code--modeling_own.OwnModel" });
    });
    copy.refused(&["config.json", "auto_map", "org/code--modeling_own.OwnModel"]);

    let described = |key: &str, value: &str| {
        let copy = Copy::of("mpnet");
        copy.json("config_sentence_transformers.json", |config| config[key] = value.into());
        copy
    };
    described("model_type", "SparseEncoder").refused(&["model_type is SparseEncoder", "SentenceTransformer"]);
    described("similarity_fn_name", "manhattan").refused(&["similarity_fn_name", "manhattan", "cosine, dot"]);
    for name in ["dot", "euclidean", "cosine"] {
        described("similarity_fn_name", name).load().unwrap();
    }
    // Vectors of different lengths.
    let copy = Copy::of("bert-instructed");
    copy.json("config_sentence_transformers.json", |config| config["similarity_fn_name"] = "euclidean".into());
    copy.refused(&["similarity_fn_name", "euclidean"]);
}

/// Collects what a person is told.
#[derive(Default)]
struct Told(std::sync::Mutex<Vec<String>>);

impl engine::Progress for Told {
    fn note(&self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
}

#[test]
fn the_recipe_of_an_encoder_is_told_and_a_missing_one_too() {
    let told = |copy: &Copy, pooling: engine::encoder::PoolingChoice| {
        let told = Told::default();
        let encoder = copy.0.path().to_string_lossy().into_owned();
        Embedder::load(&EmbedderConfig { encoder, pooling, ..EmbedderConfig::default() }, &told).unwrap();
        told.0.into_inner().unwrap().join("\n")
    };
    let auto = EmbedderConfig::default().pooling;
    let copy = Copy::of("bert");
    let said = told(&copy, auto);
    assert!(said.contains("cls of token states") && said.contains("queries begin with \"search: \""), "{said}");
    assert!(!said.contains("modules.json"), "{said}");
    copy.json("config_sentence_transformers.json", |config| config["similarity_fn_name"] = "dot".into());
    assert!(!told(&copy, auto).contains("dot products"), "its vectors have unit length");
    std::fs::remove_file(copy.path("modules.json")).unwrap();
    let said = told(&copy, auto);
    assert!(said.contains("has no modules.json") && said.contains("mean of token states"), "{said}");
    assert!(said.contains("dot products"), "{said}");
    // Who names a pooling has decided.
    assert!(!told(&copy, Pooling::Cls.into()).contains("modules.json"));
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

/// An encoder in the folder `name` below a copy of another.
fn below(copy: &Copy, name: &str) -> PathBuf {
    let dir = copy.path(name);
    std::fs::create_dir_all(&dir).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(copy.path(file), dir.join(file)).unwrap();
    }
    dir
}

fn prompts(dir: &Path) -> (Option<String>, Option<String>) {
    let config = EmbedderConfig { encoder: dir.to_string_lossy().into_owned(), ..EmbedderConfig::default() };
    let recorded = Embedder::load_local(&config).unwrap().config().clone();
    (recorded.query_prompt, recorded.document_prompt)
}

#[test]
fn e5_encoders_have_their_prompts() {
    let copy = Copy::of("bert");
    let both = || (Some("query: ".to_owned()), Some("passage: ".to_owned()));
    for (name, e5) in [
        ("intfloat--e5-small-v2", true),
        ("multilingual-e5-base", true),
        ("e5-mistral", false),
        ("multilingual-e5-large-instruct", false),
        ("hub/models--intfloat--e5-base-v2/snapshots/0123456789abcdef", true),
        ("hub/models--org--other/snapshots/0123456789abcdef", false),
    ] {
        let dir = below(&copy, name);
        assert_eq!(prompts(&dir), if e5 { both() } else { (None, None) }, "{name}");
        // Newer programs write that there are none.
        for none in [r#"{"prompts": {}}"#, r#"{"prompts": {"query": "", "document": ""}}"#] {
            std::fs::write(dir.join("config_sentence_transformers.json"), none).unwrap();
            assert_eq!(prompts(&dir), if e5 { both() } else { (None, None) }, "{name}: {none}");
        }
        let own = r#"{"prompts": {"query": "q: ", "document": ""}}"#;
        std::fs::write(dir.join("config_sentence_transformers.json"), own).unwrap();
        assert_eq!(prompts(&dir), (Some("q: ".into()), None), "{name}: prompts of its makers come first");
    }
    // A directory that was renamed.
    copy.json("config.json", |config| config["_name_or_path"] = "intfloat/multilingual-e5-small".into());
    assert_eq!(prompts(&below(&copy, "my-encoder")), both());
}
