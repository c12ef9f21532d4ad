//! An index as a folder for a static file server: a page that searches in the browser. `docs/format.md` has its files.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::{Value, json};

use crate::disk::{Replaces, StagedDirectory};
use crate::error::Remedy;
use crate::index::{Index, Record};
use crate::model::{Distance, FastEncoder};
use crate::text::Clean;
use crate::{Error, Progress, Result};

/// The result of a web export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebExport {
    pub documents: u64,
    /// Bytes that the page reads before the first query.
    pub search_bytes: u64,
    /// Bytes of the documents, of which a page reads its hits.
    pub document_bytes: u64,
}

/// Writes the page, the codes and the documents of an index into a new folder. `title` is the heading of the page.
pub fn write(index: &Index, to: &Path, title: &str, progress: &dyn Progress) -> Result<WebExport> {
    index.expect_one_code_per_document("a web export")?;
    let fast = FastEncoder::load(&index.model_dir(), index.model())?.ok_or_else(|| {
        Error::config(format!(
            "{} has no fast query encoder, which the page needs to read queries; distil one first",
            index.dir().display()
        ))
        .remedied(Remedy::Distil)
    })?;
    let tokenizer = tokenizer(&fast)?;
    let staged = StagedDirectory::begin(to, Replaces::Nothing)?;
    let folder = staged.path();
    std::fs::create_dir(&folder).map_err(Error::io(&folder))?;
    let put =
        |name: &str, bytes: &[u8]| crate::disk::write_synced(&folder.join(name), bytes).map(|()| bytes.len() as u64);
    let mut export = WebExport { documents: 0, search_bytes: 0, document_bytes: 0 };
    let (codes, lengths) = documents(index, &folder.join("documents.jsonl"), progress)?;
    export.documents = lengths.len() as u64;
    export.document_bytes = lengths.iter().map(|length| u64::from(*length)).sum();
    let about = json!({
        "title": title, "documents": lengths.len(), "model": index.model().fingerprint(),
        "bits": index.model().shape().bits(), "tokenizer": tokenizer,
    });
    let tokens = fast.tokenizer().tokens(fast.parts().scales.len());
    if let Some(token) = tokens.iter().find(|token| token.contains('\n')) {
        return Err(Error::config(format!("token {token:?} has a line end; the page cannot read this tokenizer")));
    }
    let lengths: Vec<u8> = lengths.iter().flat_map(|length| length.to_le_bytes()).collect();
    export.search_bytes += put("search.bin", &search(index, &fast, &codes))?;
    export.search_bytes += put("lengths.bin", &lengths)?;
    export.search_bytes += put("tokens.txt", tokens.join("\n").as_bytes())?;
    export.search_bytes += put("about.json", (about.to_string() + "\n").as_bytes())?;
    for (name, bytes) in ::web::PAGE {
        export.search_bytes += put(name, bytes)?;
    }
    staged.finish()?;
    Ok(export)
}

/// Writes a line of JSON per document, in the order of insertion. Returns the packed codes, and the length of every line.
fn documents(index: &Index, path: &Path, progress: &dyn Progress) -> Result<(Vec<u8>, Vec<u32>)> {
    let records = index.records(true)?;
    progress.stage("writing documents", Some(records.len() as u64));
    let mut file = BufWriter::new(File::create(path).map_err(Error::io(path))?);
    let (mut codes, mut lengths) = (Vec::new(), Vec::with_capacity(records.len()));
    for record in records {
        let record = record?;
        codes.extend_from_slice(&record.code);
        let line = line(&record);
        file.write_all(line.as_bytes()).map_err(Error::io(path))?;
        let length = u32::try_from(line.len());
        lengths.push(length.map_err(|_| Error::input(format!("document {}", record.id), "has more than 4 GiB"))?);
        progress.advance(1);
        if progress.interrupted() {
            return Err(Error::Interrupted);
        }
    }
    file.flush().map_err(Error::io(path))?;
    Ok((codes, lengths))
}

fn line(record: &Record) -> String {
    let mut object = json!({ "id": record.id });
    if let Some(text) = &record.text {
        object["text"] = json!(text);
    }
    if !record.labels.is_empty() {
        object["labels"] = json!(record.labels);
    }
    let attributes: serde_json::Map<String, Value> =
        record.attributes.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    if !attributes.is_empty() {
        object["attributes"] = attributes.into();
    }
    object.to_string() + "\n"
}

/// The bytes of `search.bin`.
fn search(index: &Index, fast: &FastEncoder, codes: &[u8]) -> Vec<u8> {
    let (model, parts) = (index.model(), fast.parts());
    // The values of a row that the projected vector needs; the rest is for re-ranking.
    let width = parts.projected.inputs();
    let shape = model.shape();
    let distance = match model.config.distance {
        Distance::Norm => 0,
        Distance::Squared => 1,
        Distance::Hamming => 2,
    };
    let documents = codes.len() / shape.code_bytes();
    let mut out = ::web::MAGIC.to_vec();
    let sizes =
        [shape.num_codebooks(), shape.codebook_size(), shape.dim(), distance, documents, parts.scales.len(), width];
    let numbers = std::iter::once(::web::VERSION).chain(sizes.map(|size| size as u32));
    numbers.for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
    let floats = [&parts.scales[..], parts.projected.weight(), parts.projected.bias(), model.codebooks().values()];
    floats.into_iter().flatten().for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
    let rows = parts.table.chunks_exact(fast.width()).flat_map(|row| &row[..width]);
    let table: Vec<u8> = rows.map(|value| value.cast_unsigned()).collect();
    for bytes in [&table[..], codes] {
        out.extend_from_slice(bytes);
        out.resize(out.len().next_multiple_of(4), 0);
    }
    out
}

/// The tokenizer, for the page. It has the word pieces of BERT and nothing else.
fn tokenizer(fast: &FastEncoder) -> Result<Value> {
    let config = fast.config();
    if config.clean != Clean::None {
        return Err(Error::config(format!(
            "texts of this model are cleaned by {} before they are tokenised, which the page cannot do; train with clean none",
            config.clean
        )));
    }
    let json: Value = serde_json::from_str(&fast.tokenizer().to_json()?).expect("a tokenizer writes JSON");
    let (model, normalizer) = (&json["model"], &json["normalizer"]);
    let kinds = [&model["type"], &normalizer["type"], &json["pre_tokenizer"]["type"]];
    if kinds.map(|kind| kind.as_str().unwrap_or("none")) != ["WordPiece", "BertNormalizer", "BertPreTokenizer"] {
        return Err(Error::config(format!(
            "the tokenizer of encoder {} is {} with {} and {}; the page reads WordPiece with BertNormalizer and BertPreTokenizer",
            config.encoder, kinds[0], kinds[1], kinds[2]
        )));
    }
    let lowercase = normalizer["lowercase"] == true;
    let added = json["added_tokens"].as_array().into_iter().flatten();
    let added: serde_json::Map<String, Value> =
        added.filter_map(|token| Some((token["content"].as_str()?.to_owned(), token["id"].clone()))).collect();
    let unknown = fast.tokenizer().dropped().map_or(json!(-1), |id| json!(id));
    Ok(json!({
        "clean_text": normalizer["clean_text"] == true,
        "handle_chinese_chars": normalizer["handle_chinese_chars"] == true,
        // Without a value of its own it follows the case.
        "strip_accents": normalizer["strip_accents"].as_bool().unwrap_or(lowercase),
        "lowercase": lowercase,
        "lowercase_first": config.lowercase,
        "prefix": model["continuing_subword_prefix"].as_str().unwrap_or("##"),
        "max_characters": model["max_input_chars_per_word"].as_u64().unwrap_or(100),
        "max_tokens": config.max_tokens,
        "unknown": unknown,
        "added": added,
    }))
}
