//! `micpq index create|add|delete|info|stats|verify|compact|snapshot|restore|migrate`.

use std::collections::HashMap;
use std::path::Path;

use anyhow::Result;
use micpq::corpus::{Corpus, DocId, Document};
use micpq::encoder::Features;
use micpq::index::{Copied, Index, IndexConfig, MigrateConfig, Stats, migrate, restore, snapshot, verify};
use micpq::model::Model;
use micpq::{Error, Matrix, Watch};

use super::{chunks, features_of};
use crate::args;
use crate::output;
use crate::progress::Progress;

pub fn run(command: args::Index, json: bool, progress: &Progress) -> Result<()> {
    match command {
        args::Index::Create { index, corpus, model, store, keep, force, source, computing } => {
            let metrics = metrics_of(&model)?;
            let model = Model::load(&model)?;
            let made = Index::create(&index, &model, IndexConfig { store, keep, replace: force, metrics })?;
            if let Some(corpus) = corpus {
                add(&made, &corpus, &source, computing, 20_000, progress)?;
            }
            made.reload(progress)?;
            told(&made, json)
        }
        args::Index::Add { index, corpus, commit_every, source, computing } => {
            let opened = Index::open(&index, progress)?;
            let added = add(&opened, &corpus, &source, computing, commit_every, progress)?;
            opened.reload(progress)?;
            if json {
                return output::json(&serde_json::json!({ "added": added, "documents": opened.len() }));
            }
            output::line(format!("{added} documents added; {} in the index", opened.len()))
        }
        args::Index::Delete { index, ids, filter } => {
            if ids.is_empty() && filter.is_none() {
                return Err(Error::config("name ids or a --filter of what to delete").into());
            }
            let opened = Index::open(&index, progress)?;
            let mut writer = opened.writer()?;
            let mut deleted = 0;
            for id in &ids {
                deleted += usize::from(writer.delete(&id.parse::<DocId>()?)?);
            }
            if let Some(filter) = &filter {
                deleted += writer.delete_where(filter)?;
            }
            writer.commit(progress)?;
            opened.reload(progress)?;
            if json {
                return output::json(&serde_json::json!({ "deleted": deleted, "documents": opened.len() }));
            }
            output::line(format!("{deleted} documents deleted; {} left", opened.len()))
        }
        args::Index::Info { index } => told(&Index::open(&index, progress)?, json),
        args::Index::Verify { index } => {
            let problems: Vec<String> = verify(&index, progress)?.iter().map(ToString::to_string).collect();
            progress.finish();
            if json {
                output::json(&serde_json::json!({ "sound": problems.is_empty(), "problems": problems }))?;
            }
            if problems.is_empty() {
                return if json { Ok(()) } else { output::line(format!("{}: sound", index.display())) };
            }
            Err(Error::format(&index, format!("{} problems\n{}", problems.len(), problems.join("\n"))).into())
        }
        args::Index::Compact { index } => {
            let opened = Index::open(&index, progress)?;
            opened.writer()?.compact(progress)?;
            opened.reload(progress)?;
            told(&opened, json)
        }
        args::Index::Stats { index } => {
            let opened = Index::open(&index, progress)?;
            let stats = opened.stats(progress)?;
            opened.warnings().iter().for_each(|warning| progress.note(warning));
            progress.finish();
            if json {
                return output::json(&stats);
            }
            told(&opened, false)?;
            spread(&stats)
        }
        args::Index::Snapshot { index, to, copy } => {
            copied(&to, "snapshot", snapshot(&index, &to, copy.config(), progress)?, json, progress)
        }
        args::Index::Restore { snapshot, index, copy } => {
            copied(&index, "restored", restore(&snapshot, &index, copy.config(), progress)?, json, progress)
        }
        args::Index::Migrate { index, model, commit_every } => {
            let config = MigrateConfig { metrics: metrics_of(&model)?, commit_every };
            let model = Model::load(&model)?;
            // Refused before an encoder is fetched or loaded.
            Index::open(&index, progress)?;
            let features = features_of(&model, args::ComputingArgs::default(), progress)?;
            let mut encode = |texts: &[&str]| features.encode(texts, progress);
            let made = migrate(&index, &model, &mut encode, &config, progress).map_err(|problem| match problem {
                Error::Interrupted => anyhow::Error::new(Error::Interrupted)
                    .context("the old index is in place; the same command goes on where this one stopped"),
                other => other.into(),
            })?;
            progress.finish();
            if json {
                return output::json(&made);
            }
            output::line(format!(
                "{}: {} documents of model {} ({} of them from an interrupted run)",
                index.display(),
                made.documents,
                model.fingerprint(),
                made.resumed
            ))
        }
    }
}

fn copied(place: &Path, what: &str, copied: Copied, json: bool, progress: &Progress) -> Result<()> {
    progress.finish();
    if json {
        return output::json(&copied);
    }
    output::line(format!(
        "{}: {what}, {} documents, {} in {} files, {} of them shared by hard links",
        place.display(),
        copied.documents,
        output::bytes(copied.bytes),
        copied.files,
        copied.linked
    ))
}

/// What `stats` tells beyond `info`.
fn spread(stats: &Stats) -> Result<()> {
    let (spread, most) = (&stats.spread, (stats.info.shape.words() as f64).log2());
    let total: f64 = spread.books.iter().map(|b| b.entropy).sum();
    output::line(format!(
        "  segments     {}\n  codes        {} distinct; the most frequent has {} documents ({}); {:.1} of {} bits of entropy book by book",
        stats.parts.iter().map(|p| p.documents.to_string()).collect::<Vec<_>>().join(" "),
        spread.distinct,
        spread.largest,
        if spread.largest > 0 { spread.largest_code.as_str() } else { "none" },
        total,
        stats.info.shape.bits(),
    ))?;
    let rows: Vec<Vec<String>> = spread
        .books
        .iter()
        .enumerate()
        .map(|(m, b)| {
            vec![
                format!("    {m}"),
                format!("{:.2} of {most:.0}", b.entropy),
                format!("{} of {}", b.used, stats.info.shape.words()),
                format!("{:.1} %", 100.0 * b.top),
            ]
        })
        .collect();
    output::table(&["    book", "entropy, bits", "words used", "most frequent word"], &rows)?;
    if stats.info.store == micpq::index::Store::Codes {
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

fn told(index: &Index, json: bool) -> Result<()> {
    let info = index.info()?;
    if json {
        return output::json(&info);
    }
    let (shape, bytes) = (info.shape, &info.bytes);
    let each = |n: u64| format!("{:>10}  {:.1} a document", output::bytes(n), n as f64 / info.documents.max(1) as f64);
    output::line(format!(
        "{}\n  documents    {} ({} deleted, {} segments), store: {}, features kept: {}\n  codes        {} bits, {} bytes in memory while searched\n  model        {} ({})\n  on disk      {}",
        index.dir().display(),
        info.documents,
        info.deleted,
        info.segments,
        info.store,
        info.keep,
        shape.bits(),
        info.documents * shape.code_bytes(),
        info.model,
        index.model().config.features.as_ref().map_or("vectors brought by the user", |f| f.encoder.as_str()),
        output::bytes(bytes.total()),
    ))?;
    for (name, n) in [
        ("codes", bytes.codes),
        ("features", bytes.features),
        ("columns", bytes.columns),
        ("documents", bytes.documents),
        ("terms", bytes.terms),
        ("model", bytes.model),
        ("other", bytes.other),
    ] {
        output::line(format!("    {name:<10} {}", each(n)))?;
    }
    Ok(())
}

/// What a model directory says of its training, to travel with the model into an index.
pub fn metrics_of(model: &Path) -> Result<serde_json::Value> {
    let path = model.join("metrics.json");
    match std::fs::read(&path) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).unwrap_or_default()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(serde_json::Value::Null),
        Err(e) => Err(Error::io(&path)(e).into()),
    }
}

fn add(
    index: &Index,
    corpus: &Path,
    source: &args::CorpusArgs,
    computing: args::ComputingArgs,
    commit_every: usize,
    progress: &Progress,
) -> Result<u64> {
    let features = features_of(index.model(), computing, progress)?;
    let mut corpus = Corpus::open(corpus, &source.config())?;
    progress.stage("indexing", None);
    let added = add_all(index, &features, &mut corpus, &Known::default(), commit_every, progress)?;
    super::tell_skipped(&corpus, progress);
    progress.finish();
    Ok(added)
}

/// Clean vectors that are known already, by the token sequence they belong to.
#[derive(Default)]
pub struct Known {
    rows: HashMap<Vec<u32>, usize>,
    vectors: Matrix,
}

impl Known {
    /// The vectors a training run has left.
    pub fn new(tokens: &[Vec<u32>], vectors: Matrix) -> Self {
        Known { rows: tokens.iter().cloned().zip(0..).collect(), vectors }
    }

    /// Vectors of some texts, encoding only those that are new.
    fn encode(&self, features: &Features, texts: &[&str], watch: &dyn Watch) -> Result<Matrix> {
        let tokens = features.tokens(texts)?;
        let new: Vec<&Vec<u32>> = tokens.iter().filter(|t| !self.rows.contains_key(*t)).collect();
        let encoded = features.encode_tokens(&new, None, watch)?;
        let mut fresh = encoded.iter();
        let mut out = Matrix::zeros(tokens.len(), features.width());
        let mut reused = 0;
        for (i, sequence) in tokens.iter().enumerate() {
            let row = match self.rows.get(sequence) {
                Some(&row) => {
                    reused += 1;
                    self.vectors.row(row)
                }
                None => fresh.next().expect("a vector for every new sequence"),
            };
            out.row_mut(i).copy_from_slice(row);
        }
        watch.advance(reused);
        Ok(out)
    }
}

/// Encodes and adds a corpus, committing every so many documents and at the end. Interrupted, it commits what it has.
pub fn add_all(
    index: &Index,
    features: &Features,
    corpus: &mut Corpus,
    known: &Known,
    commit_every: usize,
    watch: &dyn Watch,
) -> Result<u64> {
    let mut writer = index.writer()?;
    let (mut added, mut pending) = (0u64, 0usize);
    for chunk in chunks(corpus) {
        let documents: Vec<Document> = chunk?;
        let texts: Vec<&str> = documents.iter().map(|d| d.text.as_str()).collect();
        let vectors = match known.encode(features, &texts, watch) {
            Err(error) if matches!(error.downcast_ref(), Some(Error::Interrupted)) => {
                writer.commit(watch)?;
                return Err(error.context(format!("{added} documents are committed; run it again to add the rest")));
            }
            other => other?,
        };
        writer.add_features(&documents, &vectors)?;
        added += documents.len() as u64;
        pending += documents.len();
        if pending >= commit_every {
            writer.commit(watch)?;
            pending = 0;
        }
    }
    writer.commit(watch)?;
    // Merges under way are waited for, so that the first search finds their codes packed.
    writer.close(watch)?;
    Ok(added)
}
