//! Goldens from Hugging Face transformers in float64, and errors of damaged encoders.

use std::path::PathBuf;

use half::{bf16, f16};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::*;
use crate::progress::NoProgress;

/// `$MICPQ_SHARED`, or `shared` beside the checkout.
fn shared() -> Option<PathBuf> {
    let beside = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let dir = std::env::var_os("MICPQ_SHARED").map_or_else(beside, PathBuf::from);
    dir.join("goldens").is_dir().then_some(dir)
}

fn f32s(file: &SafeTensors, name: &str) -> Vec<f32> {
    file.tensor(name).unwrap().data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// |a - b| / |b|
fn error(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let square = |x: f64| x * x;
    let difference: f64 = a.iter().zip(b).map(|(x, y)| square(f64::from(*x) - f64::from(*y))).sum();
    (difference / b.iter().map(|y| square(f64::from(*y))).sum::<f64>()).sqrt()
}

fn goldens(name: &str) {
    let (Some(shared), Ok(dir)) = (shared(), pull::locate(name)) else {
        println!("skipped: goldens or weights of {name} are not on this machine");
        return;
    };
    let encoder = Encoder::load(&dir).unwrap();
    let texts = std::fs::read_to_string(shared.join(format!("goldens/{name}.json"))).unwrap();
    let texts: Vec<serde_json::Value> = serde_json::from_str(&texts).unwrap();
    let bytes = std::fs::read(shared.join(format!("goldens/{name}.safetensors"))).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();

    let inputs: Vec<&str> = texts.iter().map(|t| t["text"].as_str().unwrap()).collect();
    let ids = encoder.tokenizer().encode(&inputs, 51).unwrap();
    for (t, found) in texts.iter().zip(&ids) {
        let expected: Vec<u32> = t["ids"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect();
        assert_eq!(*found, expected, "ids of {:?}", t["text"]);
    }
    let cls = encoder.encode(&ids, Pooling::Cls, None, &NoProgress).unwrap();
    let mean = encoder.encode(&ids, Pooling::Mean, None, &NoProgress).unwrap();
    let mut worst = 0.0f64;
    for (i, sequence) in ids.iter().enumerate() {
        worst = worst.max(error(cls.row(i), &f32s(&file, &format!("{i}.cls"))));
        worst = worst.max(error(mean.row(i), &f32s(&file, &format!("{i}.mean"))));
        let expected = f32s(&file, &format!("{i}.layer_cls"));
        encoder.transformer().forward(
            &[sequence],
            None,
            &mut forward::Scratch::default(),
            &Team::alone(),
            |layer, states| {
                let width = encoder.width();
                worst = worst.max(error(&states[..width], &expected[layer * width..(layer + 1) * width]));
            },
        );
    }
    println!("{name}: largest error {worst:.1e} of the vector's norm");
    assert!(worst < 1e-4, "{worst}");

    // Errors of rounded weights and states; a wrong layer would be off by about 1. The text without words, only [CLS] [SEP], is
    // left out: BERT-base's vector of it depends on single values of over a hundred, and int8 changes it by 0.3 of its length.
    for (precision, max_error) in [(Precision::Bf16, 0.02), (Precision::Int8, 0.15)] {
        let rounded =
            Encoder::load_in(&dir, precision).unwrap().encode(&ids, Pooling::Mean, None, &NoProgress).unwrap();
        let with_words = (0..ids.len()).filter(|&i| ids[i].len() > 2);
        let worst = with_words.map(|i| error(rounded.row(i), mean.row(i))).fold(0.0, f64::max);
        println!("{name} in {precision}: largest error {worst:.4}");
        assert!(worst < max_error, "{precision}: {worst}");
    }
}

#[test]
fn minilm_agrees_with_its_goldens() {
    goldens("all-MiniLM-L6-v2");
}

#[test]
fn bert_base_agrees_with_its_goldens() {
    goldens("bert-base-uncased");
}

/// Compares the engine's GPU path with the same goldens, and its views with the CPU's.
///
/// `tolerance` is for texts, `empty` for the text without a word. f16 weights and states cost BERT-base 0.8e-3 on news (the
/// median of CLS vectors; transformers in f16 1.2e-3) and MiniLM 1.0e-3 at most. An empty text is only [CLS] and [SEP], and
/// BERT-base amplifies any rounding there: f32 is three times as far from the golden as for other texts, f16 weights alone
/// 4.4e-3, and which of two f16 programs is closer is chance.
fn goldens_on_a_gpu(name: &str, tolerance: f64, empty: f64) {
    let (Some(shared), Ok(dir)) = (shared(), pull::locate(name)) else {
        println!("skipped: goldens or weights of {name} are not on this machine");
        return;
    };
    if !cuda::devices().is_ok_and(|found| !found.is_empty()) {
        println!("skipped: no GPU on this machine");
        return;
    }
    let cpu = Encoder::load(&dir).unwrap();
    let gpu = Encoder::load(&dir).unwrap().on(Device::Cuda(0), &NoProgress).unwrap();
    assert_eq!((cpu.arithmetic(), gpu.arithmetic()), ("f32", "cuda-f16"));
    let texts = std::fs::read_to_string(shared.join(format!("goldens/{name}.json"))).unwrap();
    let texts: Vec<serde_json::Value> = serde_json::from_str(&texts).unwrap();
    let bytes = std::fs::read(shared.join(format!("goldens/{name}.safetensors"))).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let inputs: Vec<&str> = texts.iter().map(|t| t["text"].as_str().unwrap()).collect();
    let ids = gpu.tokenizer().encode(&inputs, 51).unwrap();
    let numbers: Vec<u64> = (0..ids.len() as u64).map(|i| 3 * i + 1).collect();
    let views = [None, Some(Dropout::new(0.3, 1, 1, &numbers)), Some(Dropout::new(0.3, 1, 2, &numbers).in_last(2))];
    for (pooling, part) in [(Pooling::Cls, "cls"), (Pooling::Mean, "mean")] {
        let found = gpu.encode_views(&ids, pooling, &views, &NoProgress).unwrap();
        let expected = cpu.encode_views(&ids, pooling, &views, &NoProgress).unwrap();
        // Largest error of the texts, and of the empty one: against the goldens, and of views against the CPU's.
        let mut worst = [[0.0f64; 2]; 2];
        for (i, sequence) in ids.iter().enumerate() {
            let [golden, dropped] = &mut worst[usize::from(sequence.len() == 2)];
            *golden = golden.max(error(found[0].row(i), &f32s(&file, &format!("{i}.{part}"))));
            for view in 1..3 {
                *dropped = dropped.max(error(found[view].row(i), expected[view].row(i)));
            }
        }
        let [[golden, dropped], [golden_empty, dropped_empty]] = worst;
        // The mean of the token states must equal mean pooling.
        let mean = |states: &[f32], row: &mut [f32]| {
            let tokens = states.len() / row.len();
            states
                .chunks_exact(row.len())
                .for_each(|s| row.iter_mut().zip(s).for_each(|(r, v)| *r += v / tokens as f32));
        };
        let means = gpu.encode_views(&ids, Pooling::Mean, &views, &NoProgress).unwrap();
        for (view, means) in views.iter().zip(&means) {
            let mut states = Matrix::zeros(ids.len(), gpu.width());
            let rows = states.as_mut_slice().chunks_exact_mut(gpu.width()).collect();
            gpu.reduce(&ids, *view, rows, mean, &NoProgress).unwrap();
            assert!(states.iter().zip(means.iter()).all(|(a, b)| error(a, b) < 1e-3));
        }
        println!(
            "{name}, {part}, f16 on a GPU: {golden:.1e} from the goldens, views {dropped:.1e} from the CPU's; the empty text {golden_empty:.1e} and {dropped_empty:.1e}"
        );
        // Dropout removes three tenths of the sums and scales the rest up, which enlarges rounding errors. Of 64 news texts the
        // worst was 5.4e-3 off on an H200, their median is 1e-3; a wrong mask would be off by 0.1 or more.
        assert!(golden < tolerance && dropped < 2.5 * tolerance, "{worst:?}");
        assert!(golden_empty < empty && dropped_empty < empty, "{worst:?}");
    }
}

#[test]
fn minilm_on_a_gpu_agrees_with_its_goldens() {
    goldens_on_a_gpu("all-MiniLM-L6-v2", 2.4e-3, 2.4e-3);
}

#[test]
fn bert_base_on_a_gpu_agrees_with_its_goldens() {
    goldens_on_a_gpu("bert-base-uncased", 2.4e-3, 9e-3);
}

#[test]
fn a_missing_device_is_an_error_and_auto_falls_back_to_the_cpu() {
    if cuda::devices().is_ok_and(|found| !found.is_empty()) {
        println!("skipped: this machine has a GPU");
        return;
    }
    let tiny = Tiny::new();
    let problem = tiny.load().unwrap().on(Device::Cuda(0), &NoProgress).err().expect("no GPU here");
    assert!(matches!(problem, Error::Device(_)));
    let message = problem.to_string();
    assert!(message.starts_with("device cuda:0: ") && message.contains("CPU"), "{message}");
    assert_eq!(tiny.load().unwrap().on(Device::Auto, &NoProgress).unwrap().arithmetic(), "f32");
    assert_eq!(tiny.load().unwrap().on(Device::Cpu, &NoProgress).unwrap().arithmetic(), "f32");
}

/// A tiny random BertModel, so that everything but the goldens is tested without a download.
struct Tiny {
    dir: tempfile::TempDir,
    tensors: Vec<(String, Vec<usize>, Vec<f32>)>,
}

impl Tiny {
    fn new() -> Self {
        let (hidden, inner, vocab) = (16, 32, 12);
        let mut tensors: Vec<(String, Vec<usize>)> = vec![
            ("embeddings.word_embeddings.weight".into(), vec![vocab, hidden]),
            ("embeddings.position_embeddings.weight".into(), vec![20, hidden]),
            ("embeddings.token_type_embeddings.weight".into(), vec![2, hidden]),
        ];
        let norm = |tensors: &mut Vec<(String, Vec<usize>)>, name: &str| {
            tensors.push((format!("{name}.LayerNorm.weight"), vec![hidden]));
            tensors.push((format!("{name}.LayerNorm.bias"), vec![hidden]));
        };
        norm(&mut tensors, "embeddings");
        for l in 0..2 {
            let at = |part: &str| format!("encoder.layer.{l}.{part}");
            for (part, o, i) in [
                ("attention.self.query", hidden, hidden),
                ("attention.self.key", hidden, hidden),
                ("attention.self.value", hidden, hidden),
                ("attention.output.dense", hidden, hidden),
                ("intermediate.dense", inner, hidden),
                ("output.dense", hidden, inner),
            ] {
                tensors.push((at(&format!("{part}.weight")), vec![o, i]));
                tensors.push((at(&format!("{part}.bias")), vec![o]));
            }
            norm(&mut tensors, &at("attention.output"));
            norm(&mut tensors, &at("output"));
        }
        let tensors = tensors
            .into_iter()
            .enumerate()
            .map(|(t, (name, shape))| {
                let n: usize = shape.iter().product();
                let shift = if name.ends_with("LayerNorm.weight") { 1.0 } else { 0.0 };
                // Multiples of 1/64 below 2: exact in F16 and, with eight bits, in BF16.
                let values = (0..n).map(|i| shift + (((i * 37 + t * 11) % 63) as f32 - 31.0) / 64.0).collect();
                (name, shape, values)
            })
            .collect();
        let tiny = Tiny { dir: tempfile::tempdir().unwrap(), tensors };
        tiny.write_config("hidden_size", 16.into());
        let vocab = "[PAD]\n[UNK]\n[CLS]\n[SEP]\noil\nprice\n##s\nthe\nof\njapan\ntea\n.\n";
        std::fs::write(tiny.dir.path().join("vocab.txt"), vocab).unwrap();
        tiny.write_weights("", Dtype::F32);
        tiny
    }

    fn write_config(&self, field: &str, value: serde_json::Value) {
        let mut config = serde_json::json!({
            "model_type": "bert", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 32, "vocab_size": 12, "max_position_embeddings": 20, "type_vocab_size": 2,
            "hidden_act": "gelu", "layer_norm_eps": 1e-12
        });
        config[field] = value;
        std::fs::write(self.dir.path().join("config.json"), config.to_string()).unwrap();
    }

    fn write_weights(&self, prefix: &str, dtype: Dtype) {
        let data: Vec<(String, Vec<usize>, Vec<u8>)> = self
            .tensors
            .iter()
            .map(|(name, shape, values)| {
                let bytes = match dtype {
                    Dtype::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
                    Dtype::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
                    _ => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
                };
                (format!("{prefix}{name}"), shape.clone(), bytes)
            })
            .collect();
        let views = data.iter().map(|(n, s, b)| (n.clone(), TensorView::new(dtype, s.clone(), b).unwrap()));
        std::fs::write(self.dir.path().join("model.safetensors"), safetensors::serialize(views, None).unwrap())
            .unwrap();
    }

    fn load(&self) -> Result<Encoder> {
        Encoder::load(self.dir.path())
    }

    fn refusal(&self) -> String {
        self.load().err().expect("a damaged encoder is refused").to_string()
    }
}

impl Encoder {
    fn transformer(&self) -> &transformer::Transformer {
        let Network::Transformer(transformer) = &self.network else { panic!("it has layers") };
        transformer
    }
}

const TEXTS: [&str; 4] = ["the price of oil", "Tea.", "", "Japan oil oil oil prices of the tea unknownword"];

#[test]
fn a_row_does_not_depend_on_its_batch_and_each_seed_gives_another_view() {
    for precision in [Precision::F32, Precision::Bf16, Precision::Int8] {
        rows_are_their_own(&Encoder::load_in(Tiny::new().dir.path(), precision).unwrap());
    }
}

fn rows_are_their_own(encoder: &Encoder) {
    let ids = encoder.tokenizer().encode(&TEXTS, 12).unwrap();
    assert_eq!(ids[0], [2, 7, 5, 8, 4, 3]);
    assert_eq!(ids[3].len(), 12, "cut to the limit, [SEP] kept");
    assert_eq!(ids[3][11], 3);
    let numbers = [0, 1, 2, 3];
    let view = |seed, number| Some(Dropout::new(0.3, seed, number, &numbers));
    for (pooling, dropout) in [(Pooling::Mean, None), (Pooling::Cls, view(1, 1)), (Pooling::Mean, view(1, 1))] {
        let together = encoder.encode(&ids, pooling, dropout, &NoProgress).unwrap();
        for i in 0..ids.len() {
            let alone = encoder.encode(&ids[i..=i], pooling, dropout.map(|d| d.part(i..i + 1)), &NoProgress).unwrap();
            assert_eq!(alone.row(0), together.row(i));
        }
    }
    let encode = |dropout| encoder.encode(&ids, Pooling::Mean, dropout, &NoProgress).unwrap();
    assert_eq!(encode(view(1, 1)), encode(view(1, 1)));
    assert_ne!(encode(view(1, 1)), encode(view(1, 2)));
    assert_ne!(encode(view(1, 1)), encode(view(2, 1)));
    assert_ne!(encode(view(1, 1)), encode(None));
    // Equal texts at different positions get different masks.
    let twice =
        encoder.encode(&[&ids[0], &ids[0]], Pooling::Mean, view(1, 1).map(|d| d.part(0..2)), &NoProgress).unwrap();
    assert_ne!(twice.row(0), twice.row(1));
}

#[test]
fn views_of_the_last_layers_share_lower_layers_and_differ_from_each_other() {
    let encoder = Tiny::new().load().unwrap();
    let ids = encoder.tokenizer().encode(&TEXTS, 12).unwrap();
    let numbers: Vec<u64> = (0..ids.len() as u64).collect();
    let layers = encoder.config().num_hidden_layers;
    let view = |number, last| Some(Dropout::new(0.3, 1, number, &numbers).in_last(last));
    let encode = |views: &[Option<Dropout>]| encoder.encode_views(&ids, Pooling::Cls, views, &NoProgress).unwrap();
    for last in 0..=layers {
        let together = encode(&[view(1, last), view(2, last), None]);
        for (i, own) in [view(1, last), view(2, last), None].into_iter().enumerate() {
            assert_eq!(together[i], encode(&[own])[0], "view {i}, the last {last} layers drop");
        }
        assert_eq!(together[0] == together[1], last == 0);
        assert_eq!(together[0] == together[2], last == 0);
    }
    // Only a view of all layers has dropout in the embedding layer.
    assert_ne!(encode(&[view(1, layers)])[0], encode(&[Some(Dropout::new(0.3, 1, 1, &numbers))])[0]);
}

#[test]
fn reduce_gives_the_states_that_pooling_uses() {
    for precision in [Precision::F32, Precision::Bf16, Precision::Int8] {
        let encoder = Encoder::load_in(Tiny::new().dir.path(), precision).unwrap();
        // Several groups. With [CLS] pooling the last layer skips all other tokens; `reduce` must give their states too.
        let ids: Vec<Vec<u32>> = (0..40u32).map(|i| (0..1 + i * 7 % 20).map(|j| (i + j) % 12).collect()).collect();
        let numbers: Vec<u64> = (0..40).collect();
        for dropout in
            [None, Some(Dropout::new(0.3, 1, 2, &numbers)), Some(Dropout::new(0.3, 1, 2, &numbers).in_last(1))]
        {
            let expected = encoder.encode(&ids, Pooling::Cls, dropout, &NoProgress).unwrap();
            let mut found = Matrix::zeros(ids.len(), encoder.width());
            let rows = found.as_mut_slice().chunks_exact_mut(encoder.width()).enumerate().collect();
            let take = |states: &[f32], (i, row): (usize, &mut [f32])| {
                assert_eq!(states.len(), ids[i].len() * encoder.width());
                row.copy_from_slice(&states[..row.len()]);
            };
            encoder.reduce(&ids, dropout, rows, take, &NoProgress).unwrap();
            assert_eq!(found, expected, "{precision}");
        }
    }
}

#[test]
fn grouping_and_shared_products_do_not_change_a_bit() {
    for precision in [Precision::F32, Precision::Bf16, Precision::Int8] {
        let encoder = Encoder::load_in(Tiny::new().dir.path(), precision).unwrap();
        // 40 sequences of 1 to 20 tokens: several groups, and blocks that end inside a sequence.
        let ids: Vec<Vec<u32>> = (0..40u32).map(|i| (0..1 + i * 7 % 20).map(|j| (i + j) % 12).collect()).collect();
        let all: Vec<&[u32]> = ids.iter().map(Vec::as_slice).collect();
        let numbers: Vec<u64> = (0..40).collect();
        for dropout in [None, Some(Dropout::new(0.3, 1, 2, &numbers))] {
            let mut scratch = forward::Scratch::default();
            let together =
                encoder.transformer().forward(&all, dropout, &mut scratch, &Team::alone(), |_, _| {}).to_vec();
            for share in [2, 3, 7] {
                let shared = Team::run(share, |team| {
                    encoder.transformer().forward(&all, dropout, &mut scratch, team, |_, _| {})
                });
                assert_eq!(shared, together, "{precision} shared by {share}");
            }
            let mut alone = Vec::new();
            for (i, sequence) in all.iter().enumerate() {
                let dropout = dropout.map(|d| d.part(i..i + 1));
                alone.extend_from_slice(encoder.transformer().forward(
                    &[sequence],
                    dropout,
                    &mut scratch,
                    &Team::alone(),
                    |_, _| {},
                ));
            }
            assert_eq!(alone, together, "{precision} one by one");
        }
    }
}

#[test]
fn dropout_keeps_the_expected_value_of_the_embeddings() {
    let encoder = Tiny::new().load().unwrap();
    let ids: &[u32] = &[2, 7, 5, 8, 4, 3];
    let mut clean = Vec::new();
    encoder.transformer().forward(&[ids], None, &mut forward::Scratch::default(), &Team::alone(), |l, s| {
        if l == 0 {
            clean = s.to_vec();
        }
    });
    let mut sum = vec![0.0f64; clean.len()];
    let n = 4000;
    for seed in 0..n {
        let dropout = Some(Dropout::new(0.3, seed, 1, &[0]));
        encoder.transformer().forward(
            &[ids],
            dropout,
            &mut forward::Scratch::default(),
            &Team::alone(),
            |l, states| {
                if l == 0 {
                    sum.iter_mut().zip(states).for_each(|(s, v)| *s += f64::from(*v));
                }
            },
        );
    }
    for (s, c) in sum.iter().zip(&clean) {
        // A value that is not dropped is c / 0.7: standard deviation c sqrt(0.3 / 0.7), over 4,000 draws 1 % of c.
        assert!((s / n as f64 - f64::from(*c)).abs() < 0.06 * f64::from(c.abs()) + 1e-6);
    }
}

#[test]
fn weights_of_every_dtype_and_either_prefix_give_the_same_vectors() {
    let tiny = Tiny::new();
    let ids = tiny.load().unwrap().tokenizer().encode(&TEXTS, 12).unwrap();
    let encode = || tiny.load().unwrap().encode(&ids, Pooling::Mean, None, &NoProgress).unwrap();
    let expected = encode();
    for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
        for prefix in ["", "bert."] {
            tiny.write_weights(prefix, dtype);
            assert_eq!(encode(), expected, "{dtype:?} {prefix}");
        }
    }
}

#[test]
fn damaged_encoders_are_refused_and_the_tensor_is_named() {
    let mut tiny = Tiny::new();
    let find = |tiny: &Tiny, name: &str| tiny.tensors.iter().position(|t| t.0.ends_with(name)).unwrap();

    let at = find(&tiny, "layer.1.output.dense.weight");
    let good = tiny.tensors[at].clone();
    tiny.tensors[at].2[5] = f32::NAN;
    tiny.write_weights("", Dtype::F32);
    let text = tiny.refusal();
    assert!(text.contains("layer.1.output.dense.weight") && text.contains("NaN at position 5"), "{text}");

    tiny.tensors[at].1 = vec![32, 16];
    tiny.tensors[at].2[5] = 0.0;
    tiny.write_weights("", Dtype::F32);
    assert!(tiny.refusal().contains("has shape [32, 16], config.json asks for [16, 32]"), "{}", tiny.refusal());

    tiny.tensors.remove(at);
    tiny.write_weights("", Dtype::F32);
    assert!(tiny.refusal().contains("has no tensor \"encoder.layer.1.output.dense.weight\""), "{}", tiny.refusal());
    tiny.tensors.insert(at, good);
    tiny.write_weights("", Dtype::F32);

    let path = tiny.dir.path().join("model.safetensors");
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 100]).unwrap();
    let text = tiny.refusal();
    assert!(text.contains("model.safetensors: is cut short: tensor \"") && text.contains("lacks its last"), "{text}");
    std::fs::write(&path, &whole).unwrap();

    // Large tables are checked row by row when used; small ones are checked when loaded.
    for (name, row) in [("word_embeddings.weight", 4), ("position_embeddings.weight", 3)] {
        let at = find(&tiny, name);
        let good = tiny.tensors[at].clone();
        tiny.tensors[at].2[row * 16 + 2] = f32::INFINITY;
        for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
            tiny.write_weights("", dtype);
            let encode = |ids: [u32; 3]| tiny.load().and_then(|e| e.encode(&[ids], Pooling::Cls, None, &NoProgress));
            let text = encode([2, 4, 3]).unwrap_err().to_string();
            assert!(text.contains(name) && text.contains(&format!("in row {row} at position 2")), "{text}");
            assert_eq!(encode([2, 5, 3]).is_ok(), name.starts_with("word"));
        }
        tiny.tensors[at] = good;
    }
    tiny.write_weights("", Dtype::F32);

    for (field, value, expected) in [
        ("num_attention_heads", serde_json::json!(3), "not a multiple"),
        ("model_type", serde_json::json!("t5"), "model_type is t5, which is not read"),
        ("hidden_act", serde_json::json!("swish"), "hidden_act is swish"),
        ("position_embedding_type", serde_json::json!("relative_key"), "expected absolute"),
        ("vocab_size", serde_json::json!(11), "different encoders"),
    ] {
        tiny.write_config(field, value);
        assert!(tiny.refusal().contains(expected), "{}", tiny.refusal());
    }
    tiny.write_config("hidden_act", "gelu_new".into());
    let encoder = tiny.load().unwrap();
    let long = vec![vec![4u32; 21]];
    let text = encoder.encode(&long, Pooling::Cls, None, &NoProgress).unwrap_err().to_string();
    assert!(text.contains("has 21 tokens, the encoder takes 1 to 20"), "{text}");
    let text = encoder.encode(&[[12u32]], Pooling::Cls, None, &NoProgress).unwrap_err().to_string();
    assert!(text.contains("token 12"), "{text}");
}

#[test]
fn sizes_in_the_config_must_match_the_weights() {
    let tiny = Tiny::new();
    for field in [
        "num_hidden_layers",
        "hidden_size",
        "intermediate_size",
        "vocab_size",
        "max_position_embeddings",
        "type_vocab_size",
    ] {
        for value in [3u64, 1 << 34, 1 << 62] {
            tiny.write_config(field, value.into());
            let message = tiny.refusal();
            let known = ["has no tensor", "different encoders", "not a multiple", "expected at most 1024"];
            assert!(known.iter().any(|part| message.contains(part)), "{field} {value}: {message}");
        }
    }
    tiny.write_config("num_attention_heads", (1u64 << 62).into());
    assert!(tiny.refusal().contains("not a multiple"));
}

#[test]
fn the_number_of_layers_is_bounded_before_anything_is_allocated() {
    // ModernBERT has a list with an entry per layer: this one would take a petabyte.
    let config = |layers: u64| {
        serde_json::json!({
            "model_type": "modernbert", "hidden_size": 8, "num_hidden_layers": layers, "num_attention_heads": 2,
            "intermediate_size": 16, "vocab_size": 8, "max_position_embeddings": 64
        })
    };
    let dir = tempfile::tempdir().unwrap();
    let read = |layers: u64| {
        std::fs::write(dir.path().join("config.json"), config(layers).to_string()).unwrap();
        Encoder::load(dir.path()).err().unwrap().to_string()
    };
    assert!(read(1_000_000_000_000_000).contains("num_hidden_layers is 1000000000000000, expected at most 1024"));
    assert!(!read(1024).contains("num_hidden_layers"), "{}", read(1024));
}

#[test]
fn concurrent_queries_get_the_same_vectors_as_one_thread() {
    let tiny = Tiny::new();
    let encoder = tiny.load().unwrap();
    let ids: Vec<Vec<u32>> = (0..8u32).map(|i| (0..3 + i).map(|j| (i + j) % 12).collect()).collect();
    let expected = encoder.encode(&ids, Pooling::Mean, None, &NoProgress).unwrap();
    std::thread::scope(|scope| {
        for (i, sequence) in ids.iter().enumerate() {
            let (encoder, expected) = (&encoder, &expected);
            scope.spawn(move || {
                for _ in 0..50 {
                    let found = encoder.encode(&[sequence], Pooling::Mean, None, &NoProgress).unwrap();
                    assert_eq!(found.row(0), expected.row(i));
                }
            });
        }
    });
    assert_eq!(encoder.calls.load(Ordering::Relaxed), 0);
}

/// Two workers of this process. They answer out of order, as others may.
struct Here(Embedder);

impl EncodingWorkers for Here {
    fn count(&self) -> usize {
        2
    }

    fn encode(&self, batches: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        assert!(batches.len() <= 4, "no more than the workers take");
        let mut replies: Vec<Vec<u8>> =
            batches.iter().rev().map(|batch| self.0.encode_batch(batch, &NoProgress)).collect::<Result<_>>()?;
        replies.reverse();
        Ok(replies)
    }
}

#[test]
fn workers_give_the_bits_of_the_encoder_itself() {
    let tiny = Tiny::new();
    let config = EmbedderConfig {
        encoder: tiny.dir.path().to_string_lossy().into_owned(),
        unit_length: true,
        ..EmbedderConfig::default()
    };
    let load = || Embedder::load(&config, &NoProgress).unwrap();
    let (local, remote) = (load(), load().by_workers(std::sync::Arc::new(Here(load()))));
    let tokens: Vec<Vec<u32>> = (0..1500u32).map(|i| (0..1 + i * 7 % 20).map(|j| (i + j) % 12).collect()).collect();
    let numbers: Vec<u64> = (0..1500).map(|i| 3 * i).collect();
    let views = [None, Some(Dropout::new(0.3, 1, 1, &numbers)), Some(Dropout::new(0.3, 1, 2, &numbers).in_last(1))];
    let expected = local.encode_views(&tokens, &views, &NoProgress).unwrap();
    assert_eq!(remote.encode_views(&tokens, &views, &NoProgress).unwrap(), expected);
    assert_ne!(expected[1], expected[2]);
    assert!(remote.sequences_at_once() >= 2 * 256);
    assert!(local.encode_batch(b"{}", &NoProgress).unwrap_err().to_string().contains("cannot be read"));
}

#[test]
fn tasks_of_few_texts_are_as_many_as_threads_and_equal() {
    let ids = |lengths: &[usize]| lengths.iter().map(|&n| vec![1u32; n]).collect::<Vec<_>>();
    let sizes = |lengths: &[usize], threads: usize| {
        let ids = ids(lengths);
        let tasks = super::tasks_of(&ids, lengths.iter().sum(), threads, 512);
        assert_eq!(tasks.iter().map(|range| range.len()).sum::<usize>(), lengths.len(), "every text once");
        let tokens = |range: &std::ops::Range<usize>| lengths[range.clone()].iter().sum::<usize>();
        tasks.iter().map(tokens).collect::<Vec<_>>()
    };
    // Sixteen queries of ten tokens: three tasks of 64, 64 and 32 would leave a core alone with the last one.
    assert_eq!(sizes(&[10; 16], 2), [80, 80]);
    assert_eq!(sizes(&[10; 26], 2), [70, 70, 70, 50]);
    assert_eq!(sizes(&[10; 6], 2), [60]);
    assert_eq!(sizes(&[10; 12], 16), [60, 60]);
    assert_eq!(sizes(&[300, 20, 20], 2), [300, 40]);
    // No task is larger than the cache takes, one long text apart.
    for lengths in [vec![64; 33], vec![500; 5], vec![600, 3, 500, 7, 40]] {
        let tasks = sizes(&lengths, 2);
        assert!(tasks.iter().all(|&tokens| tokens <= 600), "{tasks:?}");
    }
}
