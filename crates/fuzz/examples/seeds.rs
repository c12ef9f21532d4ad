//! Writes the seeds, and the sound directories that targets change one file of.

use std::io::Write;
use std::path::Path;

use engine::Matrix;
use engine::NoProgress;
use engine::corpus::{Corpus, CorpusConfig};
use engine::formats::faiss::{Layout, ProductIndex};
use engine::formats::npy::NpyWriter;
use engine::formats::table::{TableFormat, write_index};
use engine::formats::vectors::write_fbin;
use engine::index::{Index, IndexConfig, RerankVectors};
use engine::model::{CodeShape, Codebooks, Dense, Distance, FORMAT, Model, ModelConfig, Projection};
use engine::query::{Query, SearchConfig, Searcher};
use engine::search::CodeBlocks;
use safetensors::tensor::{Dtype, TensorView};

const ROWS: &str = "{\"id\": 1, \"text\": \"oil rises\", \"label\": \"oil\", \"year\": 1987, \"price\": 1.5, \"places\": [\"usa\", \"iran\"]}
{\"id\": 2, \"text\": \"wheat and corn\", \"labels\": [\"crop\"], \"year\": 1988, \"open\": true}
{\"id\": 3, \"text\": \"\\u00fcber \\ud83d\\ude00\", \"label\": \"x\", \"price\": 2}
";

const FILTERS: [&str; 12] = [
    "places:japan AND year:[1987 TO 1988]",
    "NOT (year:1987 OR open:true)",
    "text:(oil wheat) label:oil",
    "id:IN [1 2 3]",
    "+place:\"west germany\" -year:>1987",
    "price:{1.5 TO *}",
    "text:\"oil rises\"~2",
    "*",
    "place:*",
    "year:/198./",
    "text:oil^2.5 'quoted words'",
    "long:true AND NOT NOT ((((year:1987))))",
];

const BODIES: [(u8, &str); 14] = [
    (0, r#"{"vector": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8], "k": 3, "filter": "year:1987", "explain": true}"#),
    (0, r#"{"like": 1, "k": 10000, "radius": 2.5, "hybrid": 0.5, "keywords": "oil", "snippets": true, "rerank": 50}"#),
    (0, r#"{"text": "oil", "fields": ["id", "score"]}"#),
    (1, r#"{"queries": [{"like": 1}, {"vector": [1, 0, 0, 0, 0, 0, 0, 0]}], "k": 2}"#),
    (
        2,
        r#"{"documents": [{"id": 1, "vector": [1, 0, 0, 0, 0, 0, 0, 0], "text": "oil", "labels": ["l"], "attributes": {"year": 1987}}]}"#,
    ),
    (
        2,
        r#"{"documents": [{"id": "a", "vector": [0, 1, 0, 0, 0, 0, 0, 0], "text": "", "attributes": {"places": ["x", "y"], "open": true}}]}"#,
    ),
    (3, r#"{"ids": [1, "a", 99]}"#),
    (4, r#"{"ids": [2, "b"]}"#),
    (4, r#"{"filter": "year:1987"}"#),
    (5, r#"{"filter": "NOT year:1987"}"#),
    (6, r#"{"model": "news", "input": ["oil", "wheat"], "encoding_format": "base64"}"#),
    (7, r#"{"bits": 16, "epochs": 1}"#),
    (8, "{\"id\": 7, \"vector\": [0, 0, 1, 0, 0, 0, 0, 0], \"text\": \"tea\"}\n{\"id\": 8, \"text\": \"no vector\"}\n"),
    (0, "[[[[[[[[]]]]]]]]"),
];

/// Numbers between -1 and 1, the same ones every time.
fn values(n: usize) -> Vec<f32> {
    let mut state = 7u64;
    let mut draw = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..n).map(|_| draw()).collect()
}

fn put(target: &str, name: &str, choice: Option<u8>, bytes: &[u8]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    std::fs::create_dir_all(&folder).unwrap();
    let input: Vec<u8> = choice.into_iter().chain(bytes.iter().copied()).collect();
    std::fs::write(folder.join(name), input).unwrap();
}

/// A model of vectors of 8 values, codes of 16 bits.
fn model() -> Model {
    let shape = CodeShape::new(4, 16, 2).unwrap();
    let config = ModelConfig {
        format: FORMAT,
        method: "test".into(),
        shape,
        distance: Distance::Norm,
        embedding: None,
        training: serde_json::Value::Null,
    };
    let layer = Dense::new(8, values(64), vec![0.0; 8]).unwrap();
    let codebooks = Codebooks::new(shape, values(4 * 16 * 2)).unwrap();
    Model::new(config, Projection::new(vec![layer]).unwrap(), codebooks).unwrap()
}

fn encoder(dir: &Path) {
    std::fs::create_dir_all(dir).unwrap();
    let words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "oil", "wheat", "and", "##s"];
    std::fs::write(dir.join("vocab.txt"), words.join("\n") + "\n").unwrap();
    let (hidden, inner, positions) = (8usize, 16usize, 16usize);
    let config = serde_json::json!({
        "model_type": "bert", "hidden_size": hidden, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": inner, "vocab_size": words.len(), "max_position_embeddings": positions,
        "type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12
    });
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let mut shapes: Vec<(String, Vec<usize>)> = vec![
        ("embeddings.word_embeddings.weight".into(), vec![words.len(), hidden]),
        ("embeddings.position_embeddings.weight".into(), vec![positions, hidden]),
        ("embeddings.token_type_embeddings.weight".into(), vec![2, hidden]),
    ];
    for (part, outputs, inputs) in [
        ("attention.self.query", hidden, hidden),
        ("attention.self.key", hidden, hidden),
        ("attention.self.value", hidden, hidden),
        ("attention.output.dense", hidden, hidden),
        ("intermediate.dense", inner, hidden),
        ("output.dense", hidden, inner),
    ] {
        shapes.push((format!("encoder.layer.0.{part}.weight"), vec![outputs, inputs]));
        shapes.push((format!("encoder.layer.0.{part}.bias"), vec![outputs]));
    }
    for norm in ["embeddings", "encoder.layer.0.attention.output", "encoder.layer.0.output"] {
        shapes.extend(["weight", "bias"].map(|part| (format!("{norm}.LayerNorm.{part}"), vec![hidden])));
    }
    let bytes: Vec<(String, Vec<usize>, Vec<u8>)> = shapes
        .into_iter()
        .map(|(name, shape)| {
            let bytes = values(shape.iter().product()).iter().flat_map(|v| v.to_le_bytes()).collect();
            (name, shape, bytes)
        })
        .collect();
    let views = bytes.iter().map(|(n, s, b)| (n.clone(), TensorView::new(Dtype::F32, s.clone(), b).unwrap()));
    std::fs::write(dir.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let (at, model) = (folder.path(), model());
    models(&model);
    let index = index(at, &model);
    corpora(at, &index);
    vectors(at);
    products(at, &model);
    packed_codes();
    requests(index);
}

fn read(at: &Path, name: &str) -> Vec<u8> {
    std::fs::read(at.join(name)).unwrap()
}

fn models(model: &Model) {
    let sound = Path::new(env!("CARGO_MANIFEST_DIR")).join("sound");
    std::fs::create_dir_all(sound.join("model")).unwrap();
    model.write_into(&sound.join("model"), &serde_json::Value::Null).unwrap();
    encoder(&sound.join("encoder"));
    for (choice, name) in [(0, "model.safetensors"), (1, "config.json")] {
        put("model", name, Some(choice), &std::fs::read(sound.join("model").join(name)).unwrap());
    }
    for (choice, name) in [(0, "model.safetensors"), (1, "config.json"), (2, "vocab.txt")] {
        put("encoder", name, Some(choice), &std::fs::read(sound.join("encoder").join(name)).unwrap());
    }
    let tokenizer = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": { "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true },
        "pre_tokenizer": { "type": "BertPreTokenizer" },
        "post_processor": { "type": "TemplateProcessing",
            "single": [{ "SpecialToken": { "id": "[CLS]", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }, { "SpecialToken": { "id": "[SEP]", "type_id": 0 } }],
            "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 1 } }],
            "special_tokens": { "[CLS]": { "id": "[CLS]", "ids": [2], "tokens": ["[CLS]"] }, "[SEP]": { "id": "[SEP]", "ids": [3], "tokens": ["[SEP]"] } } },
        "decoder": { "type": "WordPiece", "prefix": "##", "cleanup": true },
        "model": { "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
            "vocab": { "[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "oil": 4, "wheat": 5, "and": 6, "##s": 7 } }
    });
    let modern = serde_json::json!({
        "model_type": "modernbert", "hidden_size": 8, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 16,
        "vocab_size": 8, "max_position_embeddings": 64, "hidden_activation": "gelu", "norm_eps": 1e-5,
        "global_attn_every_n_layers": 3, "local_attention": 16, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0
    });
    put("encoder", "modernbert.json", Some(1), modern.to_string().as_bytes());
    put("encoder", "tokenizer.json", Some(3), tokenizer.to_string().as_bytes());
}

fn index(at: &Path, model: &Model) -> Index {
    let config = IndexConfig { rerank_vectors: RerankVectors::Int8, ..IndexConfig::default() };
    let index = Index::create(&at.join("i"), model, config).unwrap();
    let documents: Vec<_> = Corpus::from_reader("rows", ROWS.as_bytes(), &CorpusConfig::default())
        .unwrap()
        .collect::<engine::Result<_>>()
        .unwrap();
    let mut writer = index.writer().unwrap();
    writer.add_embeddings(&documents, &Matrix::from_vec(8, values(24))).unwrap();
    writer.commit(&NoProgress).unwrap();
    writer.close(&NoProgress).unwrap();
    index
}

fn corpora(at: &Path, index: &Index) {
    // The first byte is the place of the format in `Format::ALL`; 255 lets the bytes decide.
    for (choice, name, format) in [(4, "t.parquet", TableFormat::Parquet), (5, "t.arrow", TableFormat::Arrow)] {
        write_index(index, &at.join(name), format, true, &NoProgress).unwrap();
        put("corpus", name, Some(choice), &read(at, name));
        put("corpus", &format!("{name}.any"), Some(255), &read(at, name));
    }
    put("corpus", "rows.jsonl", Some(0), ROWS.as_bytes());
    put("corpus", "rows.json", Some(1), format!("[{}]", ROWS.trim().replace('\n', ", ")).as_bytes());
    put("corpus", "rows.csv", Some(2), b"id,text,label,year\n1,\"oil, \"\"crude\"\"\",oil,1987\n2,wheat,crop,\n");
    put("corpus", "rows.tsv", Some(3), b"id\ttext\tlabel\n1\toil\toil\n2\twheat \"x\tcrop\n");
    put(
        "corpus",
        "corpus.beir",
        Some(6),
        b"{\"_id\": \"a\", \"title\": \"Oil\", \"text\": \"rises\", \"metadata\": {\"x\": 1}}\n",
    );
    put("corpus", "lines.txt", Some(7), b"oil rises\n\nwheat\r\n\xef\xbb\xbf end");
    put("corpus", "rows.jsonl.gz", Some(255), &gzip(ROWS.as_bytes()));
    put("corpus", "rows.jsonl.zst", Some(255), &zstd::encode_all(ROWS.as_bytes(), 3).unwrap());
    put("corpus", "rows.csv.gz", Some(2), &gzip(b"id,text\n1,oil\n2,wheat\n"));
}

fn vectors(at: &Path) {
    let vectors = Matrix::from_vec(8, values(40));
    let mut npy = NpyWriter::f32(&at.join("v.npy"), 8).unwrap();
    npy.rows_f32(&vectors).unwrap();
    npy.finish().unwrap();
    let mut codes = NpyWriter::u8(&at.join("c.npy"), 2).unwrap();
    codes.rows_u8(&[1, 2, 3, 4, 5, 6]).unwrap();
    codes.finish().unwrap();
    write_fbin(&at.join("v.fbin"), &vectors).unwrap();
    let mut hdf5 = hdf5_pure::FileBuilder::new();
    hdf5.create_dataset("train").with_f32_data(vectors.as_slice()).with_shape(&[5, 8]);
    hdf5.create_dataset("test").with_f64_data(&[1.0, 2.0]).with_shape(&[1, 2]);
    hdf5.write(at.join("v.hdf5")).unwrap();
    let fvecs: Vec<u8> = vectors
        .iter()
        .flat_map(|row| {
            8i32.to_le_bytes().into_iter().chain(row.iter().flat_map(|v| v.to_le_bytes())).collect::<Vec<_>>()
        })
        .collect();
    ["v.npy", "c.npy"].iter().for_each(|name| put("npy", name, None, &read(at, name)));
    for (choice, name) in [(0, "v.hdf5"), (1, "v.npy"), (2, "v.fbin"), (7, "v.hdf5")] {
        put("vectors", &format!("{choice}-{name}"), Some(choice), &read(at, name));
    }
    put("vectors", "5-v.fvecs", Some(5), &fvecs);
    put("vectors", "3-v.u8bin", Some(3), &[&[2, 0, 0, 0, 3, 0, 0, 0][..], &[1, 2, 3, 4, 5, 6]].concat());
    put("vectors", "6-v.bvecs", Some(6), &[3, 0, 0, 0, 1, 2, 3, 3, 0, 0, 0, 4, 5, 6]);
}

fn products(at: &Path, model: &Model) {
    let codes = values(2 * 40).iter().map(|v| (v * 127.0) as i8 as u8).collect::<Vec<_>>();
    let ids = Some((0..40).collect());
    let with_ids = ProductIndex { codebooks: model.codebooks().clone(), codes: codes.clone(), ids };
    let plain = ProductIndex { ids: None, ..with_ids.clone() };
    for (name, index, layout) in [
        ("plain", &plain, Layout::Plain),
        ("ids", &with_ids, Layout::Plain),
        ("fast", &plain, Layout::FastScan),
        ("fast-ids", &with_ids, Layout::FastScan),
    ] {
        index.write(&at.join(name), layout).unwrap();
        put("faiss", name, None, &read(at, name));
    }
}

fn packed_codes() {
    for (choice, bits) in [(0, 16), (1, 32), (2, 64), (3, 128)] {
        let shape = CodeShape::micpq(bits).unwrap();
        let codes: Vec<u8> = values(40 * bits / 8).iter().map(|v| (v * 127.0) as i8 as u8).collect();
        let numbers: Vec<u32> = (0..40).map(|i| (i * 7) % 40).collect();
        let blocks = CodeBlocks::build(shape, [0; 16], &codes, (choice % 2 == 0).then_some(&numbers));
        put("blocks", &format!("{bits}"), Some(choice), blocks.as_bytes());
    }
}

fn requests(index: Index) {
    FILTERS.iter().enumerate().for_each(|(i, text)| put("filter", &format!("{i:02}"), None, text.as_bytes()));
    BODIES
        .iter()
        .enumerate()
        .for_each(|(i, (choice, text))| put("http", &format!("{i:02}"), Some(*choice), text.as_bytes()));

    let searcher = Searcher::new(index, None).unwrap();
    for (name, rerank) in [("code", "off"), ("list", "3")] {
        let config = SearchConfig { k: 1, rerank: rerank.parse().unwrap(), ..SearchConfig::default() };
        let answers = searcher.search(&[Query::vector(vec![0.5; 8])], &config, &NoProgress).unwrap();
        put("cursor", name, None, answers[0].next.expect("a second page").to_string().as_bytes());
    }
}
