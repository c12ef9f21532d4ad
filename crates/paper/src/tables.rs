//! Gathers finished cells into the tables of the report.

use std::collections::BTreeMap;
use std::sync::Arc;

use rayon::prelude::*;

use crate::cell::{Cell, Task};
use crate::comparison::{Comparison, Runs, Samples, Verdict, probability};
use crate::plan::{Kind, MethodPlan, Plan, Selection};
use crate::published;
use crate::run::{Missing, Results};
use methods::Input;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// Mean over seeds.
    pub mean: Option<f64>,
    /// Standard deviation over seeds; none for a single seed.
    pub spread: Option<f64>,
    pub seeds: usize,
    pub published: Option<f64>,
    /// Whether it is the best of its column.
    pub best: bool,
    /// Whether it does not differ from the best of its column.
    pub tied: bool,
    /// Against MICPQ in the same column; `None` for MICPQ itself and where no test is possible.
    pub verdict: Option<Verdict>,
    /// Whether an earlier implementation gave it.
    pub older: bool,
    /// Shown in place of a number.
    pub text: Option<String>,
}

#[derive(Clone, Debug)]
pub struct Table {
    /// Short name for files and anchors.
    pub name: &'static str,
    pub title: String,
    /// A paragraph before the table.
    pub note: String,
    /// Names of all columns but the first.
    pub columns: Vec<String>,
    /// Name and entries of each row.
    pub rows: Vec<(String, Vec<Entry>)>,
}

fn text(value: impl Into<String>) -> Entry {
    Entry { text: Some(value.into()), ..Entry::default() }
}

/// Entry with the mean and the sample standard deviation.
fn gather(values: &[f64]) -> Entry {
    if values.is_empty() {
        return Entry::default();
    }
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let spread =
        (values.len() > 1).then(|| (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt());
    Entry { mean: Some(mean), spread, seeds: values.len(), ..Entry::default() }
}

/// Marks the largest number of every column among the rows for which `counts` holds.
fn mark(table: &mut Table, counts: impl Fn(&str) -> bool) {
    for column in 0..table.columns.len() {
        let rows = table.rows.iter_mut().filter(|(name, _)| counts(name));
        let best = rows
            .filter_map(|(_, entries)| entries[column].mean.is_some().then(|| &mut entries[column]))
            .max_by(|a, b| a.mean.partial_cmp(&b.mean).expect("figures are numbers"));
        if let Some(best) = best {
            best.best = true;
        }
    }
}

/// Corpus, row and bits.
type Key = (String, String, usize);

/// The row that the others are compared with.
const REFERENCE: &str = "micpq";

/// Finished cells, grouped for the tables.
pub struct Report<'a> {
    plan: &'a Plan,
    /// One cell per seed.
    cells: BTreeMap<Key, Vec<&'a Cell>>,
    /// The same, for tests.
    runs: BTreeMap<Key, Runs>,
    results: &'a Results,
}

/// A column of the main table, our figure and the published one.
type Figure = (String, f64, f64);
/// P@100 of every seed, by corpus.
type ByCorpus = BTreeMap<String, Vec<f64>>;

impl<'a> Report<'a> {
    pub fn new(plan: &'a Plan, results: &'a Results) -> Self {
        let mut cells: BTreeMap<Key, Vec<&Cell>> = BTreeMap::new();
        let mut samples: BTreeMap<usize, Arc<Samples>> = BTreeMap::new();
        for cell in &results.cells {
            if let Task::Row { corpus, row, bits, .. } = &cell.task {
                cells.entry((corpus.clone(), row.clone(), *bits)).or_default().push(cell);
                let queries = cell.figures.hits.len();
                samples.entry(queries).or_insert_with(|| Arc::new(Samples::new(queries)));
            }
        }
        let of = |cells: &[&Cell]| Runs::new(cells.iter().map(|c| &c.figures), |queries| samples[&queries].clone());
        let runs = cells.par_iter().map(|(key, cells)| (key.clone(), of(cells))).collect();
        Report { plan, cells, runs, results }
    }

    /// P@100 of row `a` minus that of row `b`, where both have runs that can be tested.
    pub fn compare(&self, corpus: &str, bits: usize, a: &str, b: &str) -> Option<Comparison> {
        // Exact search has one cell for all lengths.
        let of = |row: &str| {
            let key = |bits| (corpus.to_owned(), row.to_owned(), bits);
            self.runs.get(&key(bits)).or_else(|| self.runs.get(&key(0)))
        };
        of(a)?.minus(of(b)?)
    }

    /// For every row, the columns that have a figure of ours and a published one: column, ours, published.
    pub fn main_rows(&self) -> Vec<(String, Vec<Figure>)> {
        let table = self.precision("main", "", "", &self.rows(|_| true));
        let of = |entries: Vec<Entry>| {
            let known = table.columns.iter().zip(entries);
            known.filter_map(|(column, e)| Some((column.clone(), e.mean?, e.published?))).collect()
        };
        table.rows.iter().map(|(label, entries)| (label.clone(), of(entries.clone()))).collect()
    }

    /// Cells of one entry, one per seed.
    pub fn of(&self, corpus: &str, row: &str, bits: usize) -> &[&'a Cell] {
        self.cells.get(&(corpus.to_owned(), row.to_owned(), bits)).map_or(&[], Vec::as_slice)
    }

    /// Clustering and sensitivity cells.
    pub fn others(&self) -> impl Iterator<Item = &'a Cell> {
        self.results.cells.iter().filter(|c| !matches!(c.task, Task::Row { .. }))
    }

    fn published(&self, row: &MethodPlan, corpus: usize, bits: usize) -> Option<f64> {
        let column = self.plan.corpus[corpus].published.as_deref()?;
        published::precision(&row.method, row.input, row.pooling(self.plan), column, bits)
    }

    /// P@100 of some rows, one column per corpus and code length.
    fn precision(&self, name: &'static str, title: &str, note: &str, rows: &[&MethodPlan]) -> Table {
        let mut columns = Vec::new();
        for corpus in &self.plan.corpus {
            columns.extend(self.plan.bits.iter().map(|bits| format!("{} {bits}", corpus.name)));
        }
        let rows = rows.iter().map(|row| {
            let label = row.label(self.plan);
            let mut entries = Vec::new();
            for (number, corpus) in self.plan.corpus.iter().enumerate() {
                for &bits in &self.plan.bits {
                    let cells = self.of(&corpus.name, &label, row.cell_bits(bits));
                    let values: Vec<f64> = cells.iter().map(|c| c.figures.precision[2]).collect();
                    let verdict = self.compare(&corpus.name, bits, &label, REFERENCE).map(|c| c.verdict());
                    entries.push(Entry {
                        published: self.published(row, number, bits),
                        verdict: verdict.filter(|_| label != REFERENCE),
                        older: cells.iter().any(|c| c.older),
                        ..gather(&values)
                    });
                }
            }
            (label, entries)
        });
        let mut table = Table { name, title: title.into(), note: note.into(), columns, rows: rows.collect() };
        mark(&mut table, |name| !name.starts_with("exact float"));
        self.mark_ties(&mut table);
        table
    }

    /// Marks the entries of a table of [`Report::precision`] that do not differ from the best of their column.
    fn mark_ties(&self, table: &mut Table) {
        let places = self.plan.corpus.iter().flat_map(|c| self.plan.bits.iter().map(|b| (c.name.as_str(), *b)));
        for (column, (corpus, bits)) in places.enumerate() {
            let Some(best) = table.rows.iter().find(|(_, e)| e[column].best).map(|(label, _)| label.clone()) else {
                continue;
            };
            for (label, entries) in table.rows.iter_mut().filter(|(label, _)| !label.starts_with("exact float")) {
                let found = self.compare(corpus, bits, &best, label);
                entries[column].tied = !entries[column].best && found.is_some_and(|c| c.verdict() == Verdict::Tie);
            }
        }
    }

    /// Every comparison the report makes, with its test: pairs of rows, the first minus the second.
    fn comparisons(&self) -> Option<Table> {
        let labels: Vec<String> = self.plan.row.iter().map(|row| row.label(self.plan)).collect();
        let has = |label: &str| labels.iter().any(|l| l == label);
        let mut pairs: Vec<(String, String)> = Vec::new();
        if has(REFERENCE) {
            pairs.extend(labels.iter().filter(|l| *l != REFERENCE).map(|l| (REFERENCE.to_owned(), l.clone())));
        }
        pairs.push(("micpq-eh".into(), "csh".into()));
        pairs.push(("micpq-ea".into(), "micpq-eh".into()));
        pairs.extend(
            self.selected_without_labels().map(|(own, labelled)| (own.label(self.plan), labelled.label(self.plan))),
        );
        pairs.retain(|(a, b)| has(a) && has(b));
        let mut seen = Vec::new();
        pairs.retain(|pair| {
            !seen.contains(pair) && {
                seen.push(pair.clone());
                true
            }
        });
        let entry = |corpus: &str, bits: usize, (a, b): &(String, String)| {
            let Some(found) = self.compare(corpus, bits, a, b) else { return Entry::default() };
            let ([low, high], verdict) = (found.interval, found.verdict());
            text(format!("{:+.2} ({low:+.2} to {high:+.2}), p {}: {verdict}", found.difference, probability(found.p)))
        };
        let places: Vec<(&str, usize)> =
            self.plan.corpus.iter().flat_map(|c| self.plan.bits.iter().map(|b| (c.name.as_str(), *b))).collect();
        let rows: Vec<(String, Vec<Entry>)> = pairs
            .iter()
            .map(|pair| {
                let entries = places.iter().map(|(corpus, bits)| entry(corpus, *bits, pair)).collect();
                (format!("{} - {}", pair.0, pair.1), entries)
            })
            .filter(|(_, entries): &(String, Vec<Entry>)| entries.iter().any(|e| e.text.is_some()))
            .collect();
        (!rows.is_empty()).then(|| Table {
            name: "comparisons",
            title: "Which differences are real".into(),
            note: "P@100 of the first row minus the second: the difference in points, its interval of 95 %, and the two-sided \
                   probability p by a bootstrap over queries and seeds (2,000 samples, paired by query). p of 0.05 and more is a \
                   tie. Rows of one seed show the variation of queries alone. Where cells kept no queries (format 1), it is Welch's \
                   test over seeds, and empty if a row has one seed. No correction is made for the number of comparisons."
                .into(),
            columns: places.iter().map(|(corpus, bits)| format!("{corpus} {bits}")).collect(),
            rows,
        })
    }

    /// Rows that choose their epoch without labels, each with the same row that chooses by labels.
    fn selected_without_labels(&self) -> impl Iterator<Item = (&'a MethodPlan, &'a MethodPlan)> + '_ {
        self.plan.row.iter().filter(|row| row.selection == Selection::NoLabels).filter_map(|own| {
            let same = |row: &&MethodPlan| {
                row.selection == Selection::Labels
                    && (&row.method, row.input, row.source(self.plan), &row.set)
                        == (&own.method, own.input, own.source(self.plan), &own.set)
            };
            Some((own, self.plan.row.iter().find(same)?))
        })
    }

    fn rows(&self, wanted: impl Fn(&MethodPlan) -> bool) -> Vec<&MethodPlan> {
        self.plan.row.iter().filter(|s| wanted(s)).collect()
    }

    /// All tables that have rows.
    pub fn tables(&self) -> Vec<Table> {
        let is = |s: &MethodPlan, wanted: &[&str]| wanted.contains(&s.method.as_str());
        let main = self.precision(
            "main",
            "P@100 of every method",
            "Share of the first hundred results that have the query's label, in percent; mean and standard deviation over seeds. \
             Below it the published figure and the difference. The published search splits are larger or other samples. Bold: the \
             best of the column, and every row that does not differ from it (p of 0.05 and more). * differs from micpq, = is a tie \
             with it; neither: no test was possible.",
            &self.rows(|_| true),
        );
        let ablation = self.precision(
            "ablation",
            "What each part of MICPQ gives",
            "cl: without mutual information; softmax: without Gumbel noise.",
            &self.rows(|s| is(s, &["micpq", "cl", "softmax"]) && s.pooling.is_none()),
        );
        let binary = self.precision(
            "binary",
            "Codebooks of two codewords",
            "micpq-eh compares codes by Hamming distance, micpq-ea compares the query's projected embedding with the codewords; the number of bits is the same.",
            &self.rows(|s| is(s, &["micpq-eh", "micpq-ea", "csh", "micpq"]) && s.pooling.is_none()),
        );
        let pooled: Vec<&str> = self.rows(|s| s.pooling.is_some()).iter().map(|s| s.method.as_str()).collect();
        let pooling = self.precision(
            "pooling",
            "CLS against the mean of all tokens",
            "",
            &self.rows(|s| s.input == Input::Encoder && pooled.contains(&s.method.as_str())),
        );
        let mut main = main;
        for row in &self.plan.row {
            if let Some(note) = &row.note {
                main.note += &format!(" {}: {note}.", row.label(self.plan));
            }
        }
        if main.rows.iter().any(|(_, entries)| entries.iter().any(|e| e.older)) {
            main.note += " \u{2020}: figures of an earlier implementation of the method, until the cell has run again.";
        }
        let paired: Vec<&MethodPlan> =
            self.selected_without_labels().flat_map(|(own, labelled)| [labelled, own]).collect();
        let selection = self.precision(
            "selection",
            "The best epoch chosen without labels",
            "The same training; the best epoch by labelled validation queries, and by documents held out of training, of which no \
             label is read. An index is built the second way.",
            &paired,
        );
        let mut all = vec![main];
        all.extend(self.comparisons());
        all.extend([ablation, binary].into_iter().filter(|t| t.rows.len() > 1));
        all.extend((!pooled.is_empty()).then_some(pooling));
        all.extend((!paired.is_empty()).then_some(selection));
        all.push(self.recall());
        all.extend(self.clustering());
        all.extend(self.sensitivity());
        all.push(self.costs());
        all
    }

    fn recall(&self) -> Table {
        let mut table = self.precision(
            "recall",
            "Recall 10@100 of float search",
            "Share of the ten nearest documents by float cosine that are among the first hundred by code, in percent. It matters to a person who looks for one particular document.",
            &self.rows(|s| matches!(s.kind(), Ok(Kind::Method(_))) && s.input == Input::Encoder),
        );
        for (label, entries) in &mut table.rows {
            let mut at = 0;
            for corpus in &self.plan.corpus {
                for &bits in &self.plan.bits {
                    let values: Vec<f64> =
                        self.of(&corpus.name, label, bits).iter().filter_map(|c| c.figures.recall).collect();
                    entries[at] = gather(&values);
                    at += 1;
                }
            }
        }
        mark(&mut table, |_| true);
        table
    }

    fn clustering(&self) -> Option<Table> {
        let mut table = Table {
            name: "clustering",
            title: "Clusters by codebook against K-means".into(),
            note: "Accuracy in percent under the best matching of clusters and classes, over the codebooks; K-means runs on the slices of the same projected vectors.".into(),
            columns: ["codebooks, mean", "codebooks, best", "K-means, mean", "K-means, best"].map(str::to_owned).to_vec(),
            rows: Vec::new(),
        };
        if let Some(plan) = &self.plan.clustering {
            let end =
                plan.patience.map_or_else(String::new, |p| format!(", until the loss has not fallen for {p} epochs"));
            table.note += &format!(
                " {} codebooks, as many codewords as classes, tau {}, at most {} epochs{end}; mean and deviation over seeds.",
                plan.codebooks, plan.tau, plan.epochs
            );
        }
        for corpus in &self.plan.corpus {
            let cells: Vec<&Cell> = self
                .others()
                .filter(|c| matches!(&c.task, Task::Clustering { corpus: own, .. } if *own == corpus.name))
                .collect();
            let known = published::CLUSTERING.iter().find(|(name, _, _)| Some(*name) == corpus.published.as_deref());
            let published = known.map(|(_, b, k)| [b[0], b[1], k[0], k[1]]);
            for (i, split) in ["documents", "queries"].iter().enumerate() {
                let runs: Vec<[f64; 4]> = cells
                    .iter()
                    .filter_map(|c| c.figures.clustering.get(i))
                    .map(|(codebooks, means)| [codebooks.mean, codebooks.best, means.mean, means.best])
                    .collect();
                if runs.is_empty() {
                    continue;
                }
                let entries = (0..4).map(|i| {
                    let values: Vec<f64> = runs.iter().map(|run| run[i]).collect();
                    Entry { published: published.map(|p| p[i]), ..gather(&values) }
                });
                table.rows.push((format!("{}, {split}", corpus.name), entries.collect()));
            }
        }
        (!table.rows.is_empty()).then_some(table)
    }

    fn sensitivity(&self) -> Option<Table> {
        let mut rows: BTreeMap<(String, u64), (String, ByCorpus)> = BTreeMap::new();
        for cell in self.others() {
            let Task::Sensitivity { corpus, option, value, bits, .. } = &cell.task else { continue };
            let row = rows.entry((option.clone(), value.to_bits())).or_default();
            row.0 = format!("{option} = {value}, {bits} bits");
            row.1.entry(corpus.clone()).or_default().push(cell.figures.precision[2]);
        }
        if rows.is_empty() {
            return None;
        }
        let columns: Vec<String> = self.plan.corpus.iter().map(|c| c.name.clone()).collect();
        let rows = rows.into_values().map(|(label, figures)| {
            let entries = columns.iter().map(|c| figures.get(c).map_or_else(Entry::default, |v| gather(v)));
            (label, entries.collect())
        });
        Some(Table {
            name: "sensitivity",
            title: "MICPQ with one option changed".into(),
            note: "P@100; everything else as published.".into(),
            rows: rows.collect(),
            columns,
        })
    }

    fn costs(&self) -> Table {
        let bits = self.plan.bits.iter().copied().max().unwrap_or(0);
        let columns = ["training, s", "epochs", "bytes per document", "model, kB", "encoding, us", "us per query"];
        let mut table = Table {
            name: "costs",
            title: format!("Time and memory at {bits} bits"),
            note: "Wall time of this run, with other cells beside it: an order of magnitude. Encoding starts from the embedding or the terms; a query searches the whole corpus.".into(),
            columns: columns.map(str::to_owned).to_vec(),
            rows: Vec::new(),
        };
        for corpus in &self.plan.corpus {
            for row in &self.plan.row {
                let label = row.label(self.plan);
                let own = row.cell_bits(bits);
                let Some(cell) = self.of(&corpus.name, &label, own).first() else { continue };
                let f = &cell.figures;
                let figures = vec![
                    text(if own == 0 { "-".into() } else { format!("{:.0}", f.training_seconds) }),
                    text(if f.epochs.0 == 0 { "-".into() } else { format!("{} (best {})", f.epochs.0, f.epochs.1) }),
                    text(f.bytes.0.to_string()),
                    text(if own == 0 { "-".into() } else { format!("{:.0}", f.bytes.1 as f64 / 1e3) }),
                    text(if own == 0 { "-".into() } else { format!("{:.0}", f.microseconds.0) }),
                    text(format!("{:.0}", f.microseconds.1)),
                ];
                table.rows.push((format!("{}, {label}", corpus.name), figures));
            }
        }
        table
    }

    /// Corpora without a finished cell.
    pub fn empty(&self) -> Vec<&str> {
        let names = self.plan.corpus.iter().map(|c| c.name.as_str());
        names.filter(|name| !self.cells.keys().any(|(corpus, _, _)| corpus == name)).collect()
    }

    pub fn plan(&self) -> &'a Plan {
        self.plan
    }

    /// Unfinished cells with the reason.
    pub fn missing(&self) -> &'a [(Task, Missing)] {
        &self.results.missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(value: f64) -> Entry {
        gather(&[value])
    }

    #[test]
    fn gather_gives_mean_and_sample_deviation() {
        let entry = gather(&[1.0, 2.0, 3.0]);
        assert_eq!((entry.mean, entry.spread, entry.seeds), (Some(2.0), Some(1.0), 3));
        assert_eq!(gather(&[5.0]).spread, None);
        assert_eq!(gather(&[]), Entry::default());
    }

    #[test]
    fn best_of_a_column_is_marked_once_and_exact_search_does_not_count() {
        let mut table = Table {
            name: "t",
            title: String::new(),
            note: String::new(),
            columns: vec!["a".into()],
            rows: vec![
                ("exact float".into(), vec![number(99.0)]),
                ("x".into(), vec![number(2.0)]),
                ("y".into(), vec![number(3.0)]),
                ("z".into(), vec![Entry::default()]),
            ],
        };
        mark(&mut table, |name| !name.starts_with("exact float"));
        let best: Vec<bool> = table.rows.iter().map(|r| r.1[0].best).collect();
        assert_eq!(best, [false, false, true, false]);
    }
}
