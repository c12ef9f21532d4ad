//! `micpq index create|add|delete|info|stats|recall|verify|compact|backup|backups|restore|migrate`.

use std::path::Path;

use anyhow::Result;
use engine::corpus::{Corpus, DocId};
use engine::index::{Copied, Index, IndexConfig, MigrateConfig, Stats, backup, migrate, restore, upgrade, verify};
use engine::language::LanguageChoice;
use engine::model::Model;
use engine::query::{RecallConfig, RecallReport, Searcher};
use engine::search::Memory;
use engine::shards::{self, ShardManifest};
use engine::{Error, Progress};
use micpq::pipeline::{Embeddings, FillConfig, Filled, fill, report_skipped};

use super::{embedder_of, stored};
use crate::args;
use crate::output;
use crate::progress::TerminalProgress;

/// Documents per commit when an index is created with a corpus.
const DOCUMENTS_PER_COMMIT: usize = 20_000;

pub fn run(command: args::Index, json: bool, progress: &TerminalProgress) -> Result<()> {
    match command {
        args::Index::Create { index, corpus, model, store, rerank_vectors, texts, force, source, computing } => {
            let metrics = metrics_of(&model)?;
            let model = Model::load(&model)?;
            let chunk = match texts.chunk {
                None => None,
                Some(chunk) => Some(chunk.sizes(&embedder_of(&model, computing, progress)?)?),
            };
            // An empty index has no texts to detect a language from.
            let head = corpus.as_deref().map_or(Ok(Vec::new()), |corpus| head(corpus, &source))?;
            let language = texts.language.of(head.iter().map(String::as_str));
            let config = IndexConfig { store, rerank_vectors, language, chunk, replace: force, metrics };
            let created = Index::create(&index, &model, config)?;
            if let Some(corpus) = corpus {
                let filling = FillConfig { commit_every: DOCUMENTS_PER_COMMIT, ..FillConfig::default() };
                add(&created, &corpus, &source, computing, filling, progress)?;
            }
            created.reload(progress)?;
            print_info(&created, json)
        }
        args::Index::Add { index, corpus, commit_every, duplicates, source, computing } => {
            if commit_every == 0 {
                return Err(Error::config("--commit-every is 0; give 1 or more").into());
            }
            let opened = Index::open(&index, progress)?;
            let filling = FillConfig { commit_every, duplicates: duplicates.policy(), ..FillConfig::default() };
            let added = add(&opened, &corpus, &source, computing, filling, progress)?;
            opened.reload(progress)?;
            if json {
                let Filled { documents, repeats, .. } = added;
                let all = opened.len();
                return output::json(
                    &serde_json::json!({ "added": documents, "documents": all, "duplicates": repeats }),
                );
            }
            output::line(format!("{} documents added; {} in the index", added.documents, opened.len()))
        }
        args::Index::Delete { index, ids, filter } => delete(&index, &ids, filter.as_deref(), json, progress),
        args::Index::Info { index } => print_info(&Index::open(&index, progress)?, json),
        args::Index::Verify { index } => verify_index(&index, json, progress),
        args::Index::Compact { index } => {
            let opened = Index::open(&index, progress)?;
            opened.writer()?.compact(progress)?;
            opened.reload(progress)?;
            print_info(&opened, json)
        }
        args::Index::Stats { index } => {
            let opened = Index::open(&index, progress)?;
            let stats = opened.stats(progress)?;
            opened.warnings().iter().for_each(|warning| progress.note(warning));
            progress.finish();
            if json {
                return output::json(&stats);
            }
            print_info(&opened, false)?;
            print_stats(&stats)
        }
        args::Index::Recall { index, queries, k, windows, rerank } => {
            let searcher = Searcher::open(&index, progress)?;
            let report = searcher.recall(&RecallConfig { queries, k, windows, rerank }, progress)?;
            progress.finish();
            if json { output::json(&report) } else { print_recall(&report) }
        }
        args::Index::Backup { index, to, keep, copy } => match url_of(&to) {
            Some(url) => stored::backup(&index, url, keep, &copy, json, progress),
            None if keep.is_some() => {
                Err(Error::config("--keep counts the backups of an object store; a directory holds one").into())
            }
            None => print_copied(&to, "backup", backup(&index, &to, copy.config(), progress)?, json, progress),
        },
        args::Index::Backups { from } => stored::list(&from, json),
        args::Index::Restore { backup, index, name, copy } => {
            let copied = match url_of(&backup) {
                Some(url) => stored::restore(url, name.as_deref(), &index, &copy, progress)?,
                None if name.is_some() => {
                    return Err(
                        Error::config("--name chooses a backup of an object store; a directory holds one").into()
                    );
                }
                None => restore(&backup, &index, copy.config(), progress)?,
            };
            print_copied(&index, "restored", copied, json, progress)
        }
        args::Index::Migrate { index, model: Some(model), commit_every } => {
            migrate_index(&index, &model, commit_every, json, progress)
        }
        args::Index::Migrate { index, model: None, .. } => upgrade_index(&index, json, progress),
    }
}

fn delete(index: &Path, ids: &[String], filter: Option<&str>, json: bool, progress: &TerminalProgress) -> Result<()> {
    if ids.is_empty() && filter.is_none() {
        return Err(Error::config("nothing to delete; name ids or a --filter").into());
    }
    let opened = Index::open(index, progress)?;
    let mut writer = opened.writer()?;
    let mut deleted = 0;
    for id in ids {
        deleted += usize::from(writer.delete(&id.parse::<DocId>()?)?);
    }
    if let Some(filter) = filter {
        deleted += writer.delete_where(filter)?;
    }
    writer.commit(progress)?;
    opened.reload(progress)?;
    if json {
        return output::json(&serde_json::json!({ "deleted": deleted, "documents": opened.len() }));
    }
    output::line(format!("{deleted} documents deleted; {} left", opened.len()))
}

fn verify_index(index: &Path, json: bool, progress: &TerminalProgress) -> Result<()> {
    let problems = match ShardManifest::is_at(index) {
        true => shards::verify(index, progress)?,
        false => verify(index, progress)?,
    };
    let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
    progress.finish();
    if json {
        output::json(&serde_json::json!({ "sound": problems.is_empty(), "problems": problems }))?;
    }
    if problems.is_empty() {
        return if json { Ok(()) } else { output::line(format!("{}: sound", index.display())) };
    }
    Err(Error::format(index, format!("{} problems\n{}", problems.len(), problems.join("\n"))).into())
}

fn migrate_index(
    index: &Path,
    model: &Path,
    commit_every: usize,
    json: bool,
    progress: &TerminalProgress,
) -> Result<()> {
    let config = MigrateConfig { metrics: metrics_of(model)?, commit_every };
    let model = Model::load(model)?;
    // A wrong path fails here, before an encoder is downloaded or loaded.
    Index::open(index, progress)?;
    let embedder = embedder_of(&model, args::ComputingArgs::default(), progress)?;
    let mut encode = |texts: &[&str]| embedder.encode(texts, progress);
    let migrated = migrate(index, &model, &mut encode, &config, progress).map_err(|error| match error {
        Error::Interrupted => anyhow::Error::new(Error::Interrupted)
            .context("the old index is unchanged; run the same command to continue the migration"),
        other => other.into(),
    })?;
    progress.finish();
    if json {
        return output::json(&migrated);
    }
    output::line(format!(
        "{}: {} documents of model {} ({} of them from an interrupted run)",
        index.display(),
        migrated.documents,
        model.fingerprint(),
        migrated.resumed
    ))
}

fn upgrade_index(index: &Path, json: bool, progress: &TerminalProgress) -> Result<()> {
    let upgraded = upgrade(index, progress)?;
    progress.finish();
    if json {
        return output::json(&upgraded);
    }
    output::line(format!(
        "{}: {} documents, format {} instead of {}",
        index.display(),
        upgraded.documents,
        upgraded.to,
        upgraded.from
    ))
}

/// The URL that a path of the command line is.
fn url_of(path: &Path) -> Option<&str> {
    path.to_str().filter(|text| text.contains("://"))
}

fn print_copied(path: &Path, what: &str, copied: Copied, json: bool, progress: &TerminalProgress) -> Result<()> {
    progress.finish();
    if json {
        return output::json(&copied);
    }
    output::line(format!(
        "{}: {what}, {} documents, {} in {} files, {} of them shared by hard links",
        path.display(),
        copied.documents,
        output::bytes(copied.bytes),
        copied.files,
        copied.linked
    ))
}

fn print_recall(report: &RecallReport) -> Result<()> {
    output::line(format!(
        "recall@{} is {:.3} (standard error {:.3}) with {} candidates re-ranked: {} documents, {} queries",
        report.k, report.recall, report.standard_error, report.rerank, report.documents, report.queries
    ))?;
    let rows = |values: Vec<(String, f64)>| -> Vec<Vec<String>> {
        values.into_iter().map(|(name, recall)| vec![name, format!("{recall:.3}")]).collect()
    };
    let depths = report.depths.iter().map(|depth| (format!("  {}", depth.rerank), depth.recall)).collect();
    output::table(&["  re-ranked", "recall"], &rows(depths))?;
    let windows = report.windows.iter().map(|window| {
        let last = window.first + window.documents - 1;
        (format!("  {} to {last}", window.first), window.recall)
    });
    output::table(&["  documents by insertion", "recall"], &rows(windows.collect()))?;
    output::line(&report.advice)
}

/// The part of `stats` that `info` does not have.
fn print_stats(stats: &Stats) -> Result<()> {
    let (spread, max_entropy) = (&stats.spread, (stats.info.shape.codebook_size() as f64).log2());
    let total_entropy: f64 = spread.codebooks.iter().map(|b| b.entropy).sum();
    output::line(format!(
        "  segments     {}\n  codes        {} distinct; the most frequent has {} documents ({}); {:.1} of {} bits of entropy over all codebooks",
        stats.parts.iter().map(|p| p.documents.to_string()).collect::<Vec<_>>().join(" "),
        spread.distinct,
        spread.largest,
        if spread.largest > 0 { spread.largest_code.as_str() } else { "none" },
        total_entropy,
        stats.info.shape.bits(),
    ))?;
    let rows: Vec<Vec<String>> = spread
        .codebooks
        .iter()
        .enumerate()
        .map(|(m, b)| {
            vec![
                format!("    {m}"),
                format!("{:.2} of {max_entropy:.0}", b.entropy),
                format!("{} of {}", b.used, stats.info.shape.codebook_size()),
                format!("{:.1} %", 100.0 * b.top),
            ]
        })
        .collect();
    output::table(&["    codebook", "entropy, bits", "codewords used", "most frequent codeword"], &rows)?;
    if stats.info.store == engine::index::Store::Codes {
        return Ok(());
    }
    output::line(format!("  labels       {} distinct", stats.labels))?;
    let rows: Vec<Vec<String>> = stats
        .attributes
        .iter()
        .map(|a| {
            let types: Vec<&str> = a.types.iter().copied().collect();
            vec![format!("    {}", a.name), types.join("|"), a.documents.to_string(), a.distinct.to_string()]
        })
        .collect();
    if rows.is_empty() {
        return output::line("  attributes   none");
    }
    output::table(&["    attribute", "type", "documents", "distinct"], &rows)
}

fn print_info(index: &Index, json: bool) -> Result<()> {
    let info = index.info()?;
    if json {
        return output::json(&info);
    }
    let (shape, bytes) = (info.shape, &info.bytes);
    let chunks = info.chunks.zip(info.chunk);
    let chunks = chunks.map_or_else(String::new, |(chunks, sizes)| format!(" in {chunks} chunks of {sizes} tokens"));
    let size =
        |n: u64| format!("{:>10}  {:.1} per document", output::bytes(n), n as f64 / info.documents.max(1) as f64);
    output::line(format!(
        "{}\n  documents    {}{chunks} ({} deleted, {} segments), store: {}, rerank vectors: {}, language: {}\n  codes        {} bits, {} bytes in memory for searches\n  model        {} ({}), {}{}\n  on disk      {}",
        index.dir().display(),
        info.documents,
        info.deleted,
        info.segments,
        info.store,
        info.rerank_vectors,
        info.language,
        shape.bits(),
        info.chunks.unwrap_or(info.documents) * shape.code_bytes(),
        info.model,
        index.model().config.embedding.as_ref().map_or("user vectors", |e| e.encoder.as_str()),
        index.model().config.method,
        if info.kinds { ", knows kinds" } else { "" },
        output::bytes(bytes.total()),
    ))?;
    for (name, n) in [
        ("codes", bytes.codes),
        ("rerank vectors", bytes.rerank_vectors),
        ("columns", bytes.columns),
        ("documents", bytes.documents),
        ("terms", bytes.terms),
        ("model", bytes.model),
        ("other", bytes.other),
    ] {
        output::line(format!("    {name:<10} {}", size(n)))?;
    }
    let memory = &info.memory;
    output::line("  searches     read, and of it in this process's memory")?;
    let parts = |of: &Memory| [of.codes, of.ranks, of.tables, of.filters];
    let resident = info.resident.as_ref().map(parts);
    for (i, (name, n)) in ["codes", "ranks", "tables", "filters"].into_iter().zip(parts(memory)).enumerate() {
        let resident = resident.map_or_else(String::new, |parts| format!(", {}", output::bytes(parts[i] as u64)));
        output::line(format!("    {name:<10} {}{resident}", size(n as u64)))?;
    }
    Ok(())
}

/// The training metrics of a model directory. An index stores them with the model.
pub fn metrics_of(model: &Path) -> Result<serde_json::Value> {
    let path = model.join("metrics.json");
    match std::fs::read(&path) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).unwrap_or_default()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(serde_json::Value::Null),
        Err(e) => Err(Error::io(&path)(e).into()),
    }
}

/// The first texts of a corpus, to detect their language. Standard input can be read only once, so it has none.
fn head(corpus: &Path, source: &args::CorpusArgs) -> Result<Vec<String>> {
    if !corpus.is_file() && !corpus.is_dir() {
        return Ok(Vec::new());
    }
    let texts = Corpus::open(corpus, &source.config())?.map(|document| document.map(|document| document.text));
    Ok(texts.take(LanguageChoice::SAMPLE).collect::<engine::Result<_>>()?)
}

fn add(
    index: &Index,
    corpus: &Path,
    source: &args::CorpusArgs,
    computing: args::ComputingArgs,
    filling: FillConfig,
    progress: &TerminalProgress,
) -> Result<Filled> {
    let embedder = embedder_of(index.model(), computing, progress)?;
    let mut corpus = Corpus::open(corpus, &source.config())?;
    progress.stage("indexing", None);
    let filled = fill(index, corpus.by_ref(), &Embeddings::Encode(&embedder), filling, progress)?;
    report_skipped(&corpus, progress);
    filled.report_cut(index, progress);
    filled.report_repeats(progress);
    progress.finish();
    if filled.interrupted {
        let problem = format!("{} documents are committed; run the same command to add the rest", filled.documents);
        return Err(anyhow::Error::new(Error::Interrupted).context(problem));
    }
    Ok(filled)
}
