//! Checks the GPU against goldens and the CPU, and times it.
//!
//!     check FOLDER [--batch TOKENS]... [--quick] [--time] [--profile] [--turns] [--plain]
//!
//! FOLDER has `config.json` and `model.safetensors` of a BERT-family encoder, `goldens.json` and `goldens.safetensors` computed
//! by Hugging Face transformers in float64, and `tokens.safetensors` (`ids`, `starts`: i32). Exits with 1 when a comparison
//! fails. `--profile` times the stages of a pass. `--turns` reads lines `mean|cls clean|0.3` and prints the tokens per second
//! of one pass for each, so that another program can be timed in between.

mod reference;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Instant;

use cuda::{Activation, Bert, Device, Dropout, Pooling, Precision, Shape};
use reference::Reference;
use safetensors::{Dtype, SafeTensors};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Largest error of a text's embedding relative to its norm. f16 weights and states give BERT-base an error of 0.8e-3 (the median
/// of CLS vectors of news; transformers in f16 1.2e-3), MiniLM at most 1.0e-3.
const TOLERANCE: [(Precision, f64); 2] = [(Precision::F16, 3e-3), (Precision::Bf16, 2.4e-2)];
/// Tolerance factor of sequences that are not texts (the empty one, and slices that begin and end anywhere). They drive
/// BERT-base into states that amplify rounding errors: in f32 the empty text is three times as far from its golden as others.
const OTHERS_FACTOR: f64 = 4.0;
/// A sequence of fewer tokens does not count as a text.
const MIN_TEXT_TOKENS: usize = 4;
/// Dense 16-bit rate of an H100 or H200 by its datasheet, operations per second.
const PEAK_FLOPS: f64 = 989e12;

struct Options {
    folder: PathBuf,
    batches: Vec<usize>,
    quick: bool,
    /// Only times, without comparisons.
    time: bool,
    profile: bool,
    turns: bool,
    /// Uses only cuBLASLt's products.
    plain: bool,
}

fn main() -> Outcome<()> {
    let options = options()?;
    for info in cuda::devices()? {
        println!("{info:?}");
    }
    let device = Device::open(0)?;
    let tokens = Tokens::read(&options.folder.join("tokens.safetensors"))?;
    let mut table = Vec::new();
    let name = options.folder.file_name().map_or("encoder".into(), |n| n.to_string_lossy().into_owned());
    let encoder = Encoder::read(&options.folder)?;
    println!("\n{name}: {:?}", encoder.shape);
    if options.turns {
        return turns(&device, &encoder, &tokens, &options);
    }
    let (free, _) = device.memory()?;
    if options.profile {
        for &batch in &options.batches {
            profile(&device, &encoder, &tokens, batch)?;
        }
    }
    let failed = !options.time && !compare(&device, &encoder, &tokens, &options)?;
    for &batch in &options.batches {
        table.extend(time(&device, &encoder, &tokens, &name, batch, options.quick, free)?);
    }
    println!(
        "\n{:<18} {:>6} {:<5} {:<5} {:>12} {:>10} {:>8} {:>8} {:>8}",
        "encoder", "batch", "pool", "view", "tokens/s", "docs/s", "TFLOP/s", "of peak", "MiB"
    );
    for line in table {
        println!("{line}");
    }
    if failed {
        return Err("a comparison failed: see (!) above".into());
    }
    println!("all agree");
    Ok(())
}

fn options() -> Outcome<Options> {
    let usage = "usage: check FOLDER [--batch TOKENS]... [--quick] [--time] [--profile] [--turns] [--plain]";
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or(usage)?.into();
    let mut options =
        Options { folder, batches: vec![], quick: false, time: false, profile: false, turns: false, plain: false };
    while let Some(flag) = arguments.next() {
        match flag.as_str() {
            "--batch" => options.batches.push(arguments.next().ok_or(usage)?.parse()?),
            "--quick" => options.quick = true,
            "--time" => options.time = true,
            "--profile" => options.profile = true,
            "--turns" => options.turns = true,
            "--plain" => options.plain = true,
            _ => return Err(usage.into()),
        }
    }
    if options.batches.is_empty() {
        options.batches.push(16 * 1024);
    }
    Ok(options)
}

/// Returns a tensor by name.
type Tensors = Box<dyn Fn(&str) -> Vec<f32> + Sync>;

struct Encoder {
    shape: Shape,
    read: Tensors,
    goldens: Goldens,
}

struct Goldens {
    ids: Vec<Vec<u32>>,
    cls: Vec<f32>,
    mean: Vec<f32>,
}

impl Encoder {
    fn read(folder: &Path) -> Outcome<Self> {
        let config: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(folder.join("config.json"))?)?;
        let number = |field: &str| config[field].as_u64().map(|v| v as usize).ok_or(format!("config.json: no {field}"));
        let shape = Shape {
            hidden: number("hidden_size")?,
            heads: number("num_attention_heads")?,
            layers: number("num_hidden_layers")?,
            intermediate: number("intermediate_size")?,
            vocab: number("vocab_size")?,
            positions: number("max_position_embeddings")?,
            epsilon: config["layer_norm_eps"].as_f64().unwrap_or(1e-12) as f32,
            activation: match config["hidden_act"].as_str() {
                Some("gelu_new") => Activation::GeluTanh,
                Some("relu") => Activation::Relu,
                _ => Activation::Gelu,
            },
        };
        let weights = std::fs::read(folder.join("model.safetensors"))?;
        SafeTensors::deserialize(&weights)?;
        let read = move |name: &str| {
            let file = SafeTensors::deserialize(&weights).expect("read once before");
            let tensor = file.tensor(name).or_else(|_| file.tensor(&format!("bert.{name}"))).expect(name);
            decode(tensor.dtype(), tensor.data())
        };
        let bytes = std::fs::read(folder.join("goldens.safetensors"))?;
        let file = SafeTensors::deserialize(&bytes)?;
        let texts: Vec<serde_json::Value> =
            serde_json::from_str(&std::fs::read_to_string(folder.join("goldens.json"))?)?;
        let mut goldens = Goldens { ids: vec![], cls: vec![], mean: vec![] };
        for (i, text) in texts.iter().enumerate() {
            let ids = text["ids"].as_array().ok_or("goldens.json: no ids")?;
            goldens.ids.push(ids.iter().filter_map(serde_json::Value::as_u64).map(|v| v as u32).collect());
            goldens.cls.extend(decode(Dtype::F32, file.tensor(&format!("{i}.cls"))?.data()));
            goldens.mean.extend(decode(Dtype::F32, file.tensor(&format!("{i}.mean"))?.data()));
        }
        Ok(Encoder { shape, read: Box::new(read), goldens })
    }

    fn on(&self, device: &Device, precision: Precision, batch: usize) -> cuda::Result<Bert> {
        Bert::with_batch(device, self.shape, precision, &|name| Ok((self.read)(name)), batch)
    }
}

fn decode(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        Dtype::F32 => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        _ => bytes.as_chunks::<2>().0.iter().map(|b| half::f16::from_le_bytes(*b).to_f32()).collect(),
    }
}

/// Token sequences of real text.
struct Tokens {
    ids: Vec<u32>,
    starts: Vec<usize>,
}

impl Tokens {
    fn read(path: &Path) -> Outcome<Self> {
        let bytes = std::fs::read(path)?;
        let file = SafeTensors::deserialize(&bytes)?;
        let integers = |name: &str| -> Outcome<Vec<u32>> {
            Ok(file.tensor(name)?.data().as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect())
        };
        Ok(Tokens { ids: integers("ids")?, starts: integers("starts")?.into_iter().map(|v| v as usize).collect() })
    }

    fn sequences(&self) -> Vec<&[u32]> {
        self.starts.windows(2).map(|w| &self.ids[w[0]..w[1]]).collect()
    }
}

/// Largest |a - b| / |b| of the rows of texts, which begin with `first`, and of other rows.
fn error(a: &[f32], b: &[f32], sequences: &[&[u32]], first: u32) -> [f64; 2] {
    assert_eq!(a.len(), b.len());
    let width = a.len() / sequences.len();
    let square = |x: f64| x * x;
    let mut worst = [0.0f64; 2];
    for ((x, y), sequence) in a.chunks_exact(width).zip(b.chunks_exact(width)).zip(sequences) {
        let difference: f64 = x.iter().zip(y).map(|(p, q)| square(f64::from(*p) - f64::from(*q))).sum();
        let share = (difference / y.iter().map(|q| square(f64::from(*q))).sum::<f64>()).sqrt();
        let kind = &mut worst[usize::from(sequence.len() < MIN_TEXT_TOKENS || sequence[0] != first)];
        *kind = kind.max(if share.is_nan() { f64::INFINITY } else { share });
    }
    worst
}

fn encode(bert: &Bert, sequences: &[&[u32]], pooling: Pooling, dropout: Option<Dropout>) -> cuda::Result<Vec<f32>> {
    // NaN, so that an unwritten row is noticed.
    let mut out = vec![f32::NAN; sequences.len() * bert.shape().hidden];
    bert.encode(sequences, pooling, dropout, &mut out)?;
    Ok(out)
}

fn compare(device: &Device, encoder: &Encoder, tokens: &Tokens, options: &Options) -> Outcome<bool> {
    let width = encoder.shape.hidden;
    let real = tokens.sequences();
    let first = encoder.goldens.ids[0][0];
    // Real tokens; lengths around every boundary of the attention kernel.
    let lengths = [1, 2, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 200, 257, 511, 512];
    let mut sequences: Vec<&[u32]> =
        lengths.iter().enumerate().map(|(i, &n)| &tokens.ids[i * 600..i * 600 + n]).collect();
    sequences.extend(&real[..64]);
    let numbers: Vec<u64> = (0..tokens.starts.len() as u64).map(|i| 1_000_003 + 7 * i).collect();
    let view = |key, count: usize| Dropout { rate: 0.3, key, documents: &numbers[..count], last: None };
    let given = sequences.len();
    let start = Instant::now();
    let cpu = Reference::new(encoder.shape, &*encoder.read);
    let mut expected = Vec::new();
    for pooling in [Pooling::Cls, Pooling::Mean] {
        for dropout in [None, Some(view(42, given))] {
            expected.push((pooling, dropout, cpu.encode(&sequences, pooling, dropout)));
        }
    }
    println!("CPU reference: {:.1} s", start.elapsed().as_secs_f64());
    let mut good = true;
    for (precision, tolerance) in TOLERANCE {
        let bert = encoder.on(device, precision, options.batches[0])?;
        let mut line = format!("{precision:?}:");
        let mut note = |name: &str, found: [f64; 2], limit: f64| {
            let fits = found[0] <= limit && found[1] <= OTHERS_FACTOR * limit;
            let [texts, others] = found;
            line += &format!(" {name} {texts:.1e}, others {others:.1e}{};", if fits { "" } else { " (!)" });
            good &= fits;
        };
        let goldens = &encoder.goldens;
        let ids: Vec<&[u32]> = goldens.ids.iter().map(Vec::as_slice).collect();
        note("golden cls", error(&encode(&bert, &ids, Pooling::Cls, None)?, &goldens.cls, &ids, first), tolerance);
        note("golden mean", error(&encode(&bert, &ids, Pooling::Mean, None)?, &goldens.mean, &ids, first), tolerance);
        for (pooling, dropout, embeddings) in &expected {
            let name = format!("{}{pooling:?}", if dropout.is_some() { "dropped " } else { "" });
            // Dropout removes three tenths of the sums and scales the rest up, which enlarges rounding errors.
            let limit = if dropout.is_some() { 2.0 * tolerance } else { tolerance };
            note(&name, error(&encode(&bert, &sequences, *pooling, *dropout)?, embeddings, &sequences, first), limit);
        }
        let (_, _, dropped) = &expected[3];
        let other = encode(&bert, &sequences, Pooling::Mean, Some(view(43, given)))?;
        println!("{line}");
        let [apart, _] = error(&other, dropped, &sequences, first);
        println!("{precision:?}: another view is up to {apart:.2} apart");
        good &= apart > 0.05;

        // A row depends only on its own tokens: it has the same bits in batches of another size, in a batch of its own, and
        // among several views.
        let some = &real[..real.len().min(3000)];
        let other_batches = encoder.on(device, precision, 700)?;
        let plain_bert = encoder.on(device, precision, options.batches[0])?.plain();
        for dropout in [None, Some(view(42, some.len()))] {
            let whole = encode(&bert, some, Pooling::Mean, dropout)?;
            let small = encode(&other_batches, some, Pooling::Mean, dropout)?;
            let differ = whole.iter().zip(&small).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
            for pooling in [Pooling::Mean, Pooling::Cls] {
                let (ours, plain) =
                    (encode(&bert, some, pooling, dropout)?, encode(&plain_bert, some, pooling, dropout)?);
                let apart = ours.iter().zip(&plain).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
                println!("{precision:?}: our products and cuBLASLt's, {pooling:?}: {apart} values differ");
                good &= apart == 0;
            }
            let again = encode(&bert, some, Pooling::Mean, dropout)?;
            let (mut a, mut b, mut c) = (whole.clone(), vec![f32::NAN; whole.len()], vec![f32::NAN; whole.len()]);
            let views = [Some(view(9, some.len())), dropout, None];
            bert.encode_views(some, Pooling::Mean, &views, &mut [&mut a, &mut b, &mut c], &|_| true)?;
            let alone = encode(
                &bert,
                &some[5..6],
                Pooling::Mean,
                dropout.map(|d| Dropout { documents: &d.documents[5..6], ..d }),
            )?;
            let same = again == whole && b == whole && alone[..] == whole[5 * width..6 * width];
            println!(
                "{precision:?}: rows alone, again, and among views the same: {same}; in batches of 700 tokens {differ} of {} values differ",
                whole.len()
            );
            good &= same && differ == 0;
        }
    }
    Ok(good)
}

/// Time of each stage of a pass, on one stream.
fn profile(device: &Device, encoder: &Encoder, tokens: &Tokens, batch: usize) -> Outcome<()> {
    let sequences = tokens.sequences();
    let numbers: Vec<u64> = (0..sequences.len() as u64).collect();
    let layers = encoder.shape.layers as f64;
    let (h, i) = (encoder.shape.hidden as f64, encoder.shape.intermediate as f64);
    encoder.on(device, Precision::F16, batch)?.choices().iter().for_each(|line| println!("  {line}"));
    for (name, bert) in [
        ("as it runs", encoder.on(device, Precision::F16, batch)?),
        ("cuBLASLt alone", encoder.on(device, Precision::F16, batch)?.plain()),
    ] {
        for dropout in [None, Some(Dropout { rate: 0.3, key: 1, documents: &numbers, last: None })] {
            bert.profile(&sequences, Pooling::Mean, dropout, 5)?;
            let stages = bert.profile(&sequences, Pooling::Mean, dropout, 40)?;
            let whole: f64 = stages.iter().map(|(_, micros)| micros).sum();
            let view = if dropout.is_some() { "0.3" } else { "clean" };
            println!("profile, {name}, batch {batch}, {view}: {whole:.0} us per pass, microseconds per layer:");
            for (stage, micros) in stages {
                let operations = match stage {
                    "product, attention in" => 6.0 * h * h,
                    "product, attention out" => 2.0 * h * h,
                    "product, feed in" | "product, feed out" => 2.0 * h * i,
                    _ => 0.0,
                };
                let rate = operations * batch as f64 * layers / micros / 1e6;
                println!(
                    "  {stage:<24} {:>7.1} {:>5.1}%  {rate:>5.0} TFLOP/s",
                    micros / layers,
                    100.0 * micros / whole
                );
            }
        }
    }
    Ok(())
}

/// Runs one pass per line of standard input.
fn turns(device: &Device, encoder: &Encoder, tokens: &Tokens, options: &Options) -> Outcome<()> {
    let mut bert = encoder.on(device, Precision::F16, options.batches[0])?;
    if options.plain {
        bert = bert.plain();
    }
    let sequences = tokens.sequences();
    let numbers: Vec<u64> = (0..sequences.len() as u64).collect();
    let mut out = vec![0f32; sequences.len() * encoder.shape.hidden];
    for (key, line) in (0..).zip(std::io::stdin().lines()) {
        let line = line?;
        let pooling = if line.starts_with("cls") { Pooling::Cls } else { Pooling::Mean };
        let dropout = line.ends_with("0.3").then_some(Dropout { rate: 0.3, key, documents: &numbers, last: None });
        let start = Instant::now();
        bert.encode(&sequences, pooling, dropout, &mut out)?;
        println!("{}", tokens.ids.len() as f64 / start.elapsed().as_secs_f64());
    }
    Ok(())
}

fn time(
    device: &Device,
    encoder: &Encoder,
    tokens: &Tokens,
    name: &str,
    batch: usize,
    quick: bool,
    free: usize,
) -> Outcome<Vec<String>> {
    let bert = encoder.on(device, Precision::F16, batch)?;
    let sequences = tokens.sequences();
    let count = tokens.ids.len() as f64;
    let numbers: Vec<u64> = (0..sequences.len() as u64).collect();
    let views: Vec<Option<Dropout>> =
        (0..4).map(|key| Some(Dropout { rate: 0.3, key, documents: &numbers, last: None })).collect();
    let mut outs = vec![vec![0f32; sequences.len() * encoder.shape.hidden]; views.len()];
    let cases = [(Pooling::Mean, false), (Pooling::Mean, true), (Pooling::Cls, false), (Pooling::Cls, true)];
    let rounds = if quick { 3 } else { 9 };
    let mut seconds = vec![Vec::new(); cases.len()];
    // Interleaved; the first round is discarded.
    for round in 0..=rounds {
        for (c, (pooling, drop)) in cases.into_iter().enumerate() {
            let mut slices: Vec<&mut [f32]> = outs.iter_mut().map(Vec::as_mut_slice).collect();
            let clean = [None; 4];
            let views = if drop { &views[..] } else { &clean[..] };
            let start = Instant::now();
            let report = bert.encode_views(&sequences, pooling, views, &mut slices, &|_| true)?;
            if let Some(note) = report.note().filter(|_| round == 0 && c == 0) {
                println!("{note}");
            }
            if round > 0 {
                seconds[c].push(start.elapsed().as_secs_f64() / views.len() as f64);
            }
        }
    }
    let taken = free.saturating_sub(device.memory()?.0) >> 20;
    let mut lines = Vec::new();
    for ((pooling, drop), mut times) in cases.into_iter().zip(seconds) {
        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        let rate = count / median;
        let flops = rate * encoder.shape.operations();
        lines.push(format!(
            "{name:<18} {batch:>6} {:<5} {:<5} {rate:>12.0} {:>10.0} {:>8.0} {:>7.1}% {taken:>8}",
            format!("{pooling:?}"),
            if drop { "0.3" } else { "clean" },
            sequences.len() as f64 / median,
            flops / 1e12,
            100.0 * flops / PEAK_FLOPS
        ));
    }
    Ok(lines)
}
