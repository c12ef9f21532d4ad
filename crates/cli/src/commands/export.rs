//! `micpq export`: writes an index in formats of other programs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, ValueEnum};
use engine::corpus::{Corpus, DocId, Document};
use engine::formats::beir::{Beir, BeirWriter};
use engine::formats::faiss::{Layout, ProductIndex};
use engine::formats::npy::NpyWriter;
use engine::formats::npz;
use engine::formats::table::{self, TableFormat};
use engine::formats::trec::{Qrels, Run};
use engine::formats::web;
use engine::index::Index;
use engine::map::{self, HtmlMap, HtmlMapConfig};
use engine::query::{Query, SearchConfig, Searcher};
use engine::{Error, NoProgress, Progress, internal};

use crate::args::CorpusArgs;
use crate::output;
use crate::progress::TerminalProgress;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Target {
    /// FAISS's IndexPQ in an IndexIDMap2, with the projection in OUT.projection.npz
    Faiss,
    /// FAISS's IndexPQFastScan in an IndexIDMap2: faster, with rounded distances
    FaissFastscan,
    /// A Parquet table of the documents
    Parquet,
    /// An Arrow (Feather) table of the documents
    Arrow,
    /// One JSON object per document
    Jsonl,
    /// A BEIR folder; with --queries of a labelled corpus also queries and relevance judgements
    Beir,
    /// A TREC run of the answers to --queries
    Trec,
    /// Codes as .npy, with the ids in OUT.ids.jsonl
    Codes,
    /// A folder for a web server: a page that searches in the browser, with the fast query encoder
    Web,
    /// A map of the documents as one file, which a browser opens without a server
    HtmlMap,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  micpq export news.micpq --to faiss -o news.faiss         then faiss.read_index(\"news.faiss\") in Python
  micpq export news.micpq --to parquet -o news.parquet
  micpq export scifact.micpq --to trec --queries scifact -k 1000 -o scifact.run
  micpq score scifact.run scifact/qrels/test.tsv
  micpq export news.micpq --to web -o site             then: cd site && python3 -m http.server
  micpq export news.micpq --to html-map -o map.html --attribute year")]
pub struct Export {
    /// Index directory
    pub index: PathBuf,
    /// Export format
    #[arg(long, value_name = "FORMAT")]
    pub to: Target,
    /// File or folder to write
    #[arg(long, short)]
    pub output: PathBuf,
    /// Queries: a corpus, or a BEIR folder
    #[arg(long, value_name = "FILE|FOLDER")]
    pub queries: Option<PathBuf>,
    /// Documents per query in a run
    #[arg(short, default_value_t = 1000)]
    pub k: usize,
    /// Name of the run in its last column
    #[arg(long, default_value = "micpq")]
    pub tag: String,
    /// Heading of the page of a web export or a map. Default: the name of the index
    #[arg(long, value_name = "TEXT")]
    pub title: Option<String>,
    /// Points of a map that have the id and title of their document
    #[arg(long, value_name = "N")]
    pub titles: Option<usize>,
    /// Attribute that a map can be coloured by; repeatable
    #[arg(long = "attribute", value_name = "NAME")]
    pub attributes: Vec<String>,
    /// Add the codes to a table
    #[arg(long)]
    pub codes: bool,
    #[command(flatten)]
    pub source: CorpusArgs,
}

pub fn run(args: Export, json: bool, progress: &TerminalProgress) -> Result<()> {
    let index = Index::open(&args.index, progress)?;
    if args.queries.is_some() && !matches!(args.to, Target::Trec | Target::Beir) {
        return Err(Error::config("--queries works only with --to trec and --to beir; leave it out").into());
    }
    if args.title.is_some() && !matches!(args.to, Target::Web | Target::HtmlMap) {
        return Err(Error::config("--title works only with --to web and --to html-map; leave it out").into());
    }
    if (args.titles.is_some() || !args.attributes.is_empty()) && args.to != Target::HtmlMap {
        return Err(Error::config("--titles and --attribute work only with --to html-map; leave them out").into());
    }
    match args.to {
        Target::Web => return web(&index, &args, json, progress),
        Target::HtmlMap => return html_map(&index, args, json, progress),
        _ => (),
    }
    let count = match args.to {
        Target::Faiss => faiss(&index, &args.output, Layout::Plain, progress)?,
        Target::FaissFastscan => faiss(&index, &args.output, Layout::FastScan, progress)?,
        Target::Parquet => table::write_index(&index, &args.output, TableFormat::Parquet, args.codes, progress)?,
        Target::Arrow => table::write_index(&index, &args.output, TableFormat::Arrow, args.codes, progress)?,
        Target::Jsonl => table::write_index(&index, &args.output, TableFormat::Jsonl, args.codes, progress)?,
        Target::Beir => beir(&index, &args, progress)?,
        Target::Trec => trec(&index, &args, progress)?,
        Target::Codes => codes(&index, &args.output, progress)?,
        Target::Web | Target::HtmlMap => unreachable!("written above"),
    };
    progress.finish();
    let what = if args.to == Target::Trec { "queries" } else { "documents" };
    if json {
        return output::json(&serde_json::json!({ "path": args.output, what: count }));
    }
    output::line(format!("{}: {count} {what}", args.output.display()))
}

fn web(index: &Index, args: &Export, json: bool, progress: &TerminalProgress) -> Result<()> {
    let title = heading(args, "Search");
    let written = web::write(index, &args.output, &title, progress)?;
    progress.finish();
    let web::WebExport { documents, search_bytes, document_bytes } = written;
    if json {
        return output::json(&serde_json::json!({
            "path": args.output, "documents": documents, "search_bytes": search_bytes, "document_bytes": document_bytes,
        }));
    }
    output::line(format!(
        "{}: {documents} documents; the page reads {} before the first query, and its hits from {}\nserve it with: cd {} && python3 -m http.server",
        args.output.display(),
        output::bytes(search_bytes),
        output::bytes(document_bytes),
        args.output.display()
    ))
}

/// `--title`, or the name of the index.
fn heading(args: &Export, otherwise: &str) -> String {
    let name = || args.index.file_stem().map_or_else(|| otherwise.into(), |name| name.to_string_lossy().into_owned());
    args.title.clone().unwrap_or_else(name)
}

fn html_map(index: &Index, args: Export, json: bool, progress: &TerminalProgress) -> Result<()> {
    let defaults = HtmlMapConfig::default();
    let config = HtmlMapConfig {
        title: heading(&args, "Map"),
        titles: args.titles.unwrap_or(defaults.titles),
        attributes: args.attributes,
        ..defaults
    };
    let HtmlMap { documents, titles, bytes } = map::write_html(index, &args.output, &config, progress)?;
    progress.finish();
    if json {
        return output::json(&serde_json::json!({
            "path": args.output, "documents": documents, "titles": titles, "bytes": bytes,
        }));
    }
    output::line(format!(
        "{}: {documents} documents, {titles} of them with their titles, {}",
        args.output.display(),
        output::bytes(bytes)
    ))
}

/// Ids and packed codes of all documents, in the order of insertion.
fn ids_and_codes(index: &Index, progress: &dyn Progress) -> Result<(Vec<DocId>, Vec<u8>)> {
    index.expect_one_code_per_document("an export of codes")?;
    let records = index.records(false)?;
    let (mut ids, mut codes) = (Vec::with_capacity(records.len()), Vec::new());
    progress.stage("reading codes", Some(records.len() as u64));
    for record in records {
        let record = record?;
        ids.push(record.id);
        codes.extend_from_slice(&record.code);
        progress.advance(1);
        if progress.interrupted() {
            return Err(Error::Interrupted.into());
        }
    }
    Ok((ids, codes))
}

/// Writes one id per line, as JSON: an id may contain line breaks.
fn write_ids(path: &Path, ids: &[DocId]) -> Result<()> {
    let text: String = ids.iter().map(|id| format!("{}\n", serde_json::json!(id))).collect();
    Ok(internal::replace(path, text.as_bytes())?)
}

fn faiss(index: &Index, path: &Path, layout: Layout, progress: &TerminalProgress) -> Result<u64> {
    let (ids, codes) = ids_and_codes(index, progress)?;
    let numbers: Option<Vec<i64>> = ids
        .iter()
        .map(|id| match id {
            DocId::Int(n) => i64::try_from(*n).ok(),
            DocId::Str(_) => None,
        })
        .collect();
    let beside = internal::beside(path, ".ids.jsonl");
    if numbers.is_none() {
        // FAISS ids are numbers. Row numbers stand in for other ids, and a file beside maps them back.
        write_ids(&beside, &ids)?;
        progress.note(&format!(
            "not all ids are numbers: FAISS returns row numbers, and {} has the id of each row",
            beside.display()
        ));
    }
    let numbers = numbers.unwrap_or_else(|| (0..ids.len() as i64).collect());
    let exported = ProductIndex { codebooks: index.model().codebooks().clone(), codes, ids: Some(numbers) };
    exported.write(path, layout)?;
    npz::write_projection(&internal::beside(path, ".projection.npz"), index.model().projection())?;
    Ok(exported.len() as u64)
}

fn codes(index: &Index, path: &Path, progress: &TerminalProgress) -> Result<u64> {
    let (ids, codes) = ids_and_codes(index, progress)?;
    let mut writer = NpyWriter::u8(path, index.model().shape().code_bytes())?;
    writer.rows_u8(&codes)?;
    let rows = writer.finish()?;
    write_ids(&internal::beside(path, ".ids.jsonl"), &ids)?;
    Ok(rows as u64)
}

/// The queries of `--queries`: a corpus or a BEIR folder.
fn queries(args: &Export) -> Result<Vec<Document>> {
    let path =
        args.queries.as_deref().ok_or_else(|| Error::config("a TREC run needs queries; name them with --queries"))?;
    if path.is_dir() && Beir::is(path) {
        return Ok(Beir::open(path)?.queries()?);
    }
    Ok(Corpus::open(path, &args.source.config())?.collect::<engine::Result<_>>()?)
}

/// Queries searched at a time.
const QUERIES_PER_BATCH: usize = 256;

fn trec(index: &Index, args: &Export, progress: &TerminalProgress) -> Result<u64> {
    let config = SearchConfig { k: args.k, documents: false, ..SearchConfig::default() };
    config.validate()?;
    let queries = queries(args)?;
    let searcher = Searcher::new(index.clone(), None)?;
    progress.stage("searching", Some(queries.len() as u64));
    let mut run = Run(BTreeMap::new());
    for batch in queries.chunks(QUERIES_PER_BATCH) {
        let texts: Vec<Query> = batch.iter().map(|q| Query::text(&q.text)).collect();
        for (query, answer) in batch.iter().zip(searcher.search(&texts, &config, &NoProgress)?) {
            let scores = answer.hits.iter().map(|hit| (hit.id.to_string(), f64::from(hit.score))).collect();
            run.0.insert(query.id.to_string(), scores);
        }
        progress.advance(batch.len() as u64);
        if progress.interrupted() {
            return Err(Error::Interrupted.into());
        }
    }
    run.write(&args.output, &args.tag)?;
    Ok(queries.len() as u64)
}

fn beir(index: &Index, args: &Export, progress: &TerminalProgress) -> Result<u64> {
    let queries = if args.queries.is_some() { queries(args)? } else { Vec::new() };
    let mut writer = BeirWriter::create(&args.output)?;
    let mut by_label: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let records = index.records(true)?;
    progress.stage("writing", Some(records.len() as u64));
    let mut count = 0;
    for record in records {
        let record = record?;
        if record.text.is_none() {
            return Err(Error::config(
                "this index stores only codes; a BEIR corpus needs texts, build the index with --store all",
            )
            .into());
        }
        writer.document(&record)?;
        if !queries.is_empty() {
            record.labels.iter().for_each(|l| by_label.entry(l.clone()).or_default().push(record.id.to_string()));
        }
        count += 1;
        progress.advance(1);
        if progress.interrupted() {
            return Err(Error::Interrupted.into());
        }
    }
    // A document is relevant when it shares a label with the query.
    let mut qrels = Qrels::default();
    for query in &queries {
        let relevant = query.labels.iter().filter_map(|label| by_label.get(label)).flatten();
        let judged: BTreeMap<String, i64> = relevant.map(|id| (id.clone(), 1)).collect();
        if !judged.is_empty() {
            qrels.0.insert(query.id.to_string(), judged);
        }
    }
    writer.finish(&queries, &qrels, "test")?;
    Ok(count)
}
