//! Tables as Markdown, CSV and LaTeX.

use std::fmt::Write;

use crate::claims::unreproduced;
use crate::comparison::Verdict;
use crate::tables::{Entry, Report};

/// `*`: differs from MICPQ; `=`: a tie with it; a dagger: of an earlier implementation.
pub fn mark(entry: &Entry) -> String {
    let test = match (entry.mean, entry.verdict) {
        (Some(_), Some(Verdict::Tie)) => " =",
        (Some(_), Some(_)) => "*",
        _ => "",
    };
    format!("{test}{}", if entry.older { "\u{2020}" } else { "" })
}

fn figure(entry: &Entry) -> String {
    match (&entry.text, entry.mean) {
        (Some(text), _) => text.clone(),
        (None, None) => String::new(),
        (None, Some(mean)) => match entry.spread {
            Some(spread) => format!("{mean:.2} ± {spread:.2}{}", mark(entry)),
            None => format!("{mean:.2}{}", mark(entry)),
        },
    }
}

/// Heading and first paragraph of the section about claims that do not hold here.
pub const UNREPRODUCED: &str = "What does not reproduce";
pub const UNREPRODUCED_NOTE: &str = "Claims of the paper about two methods, in the cells of this run: a claim holds in a cell if the \
difference is real (p below 0.05, see \u{201c}Which differences are real\u{201d}). Then rows whose figures are more than a point from the \
published ones; the published search sets are larger or other samples.";

/// The whole report as Markdown.
pub fn markdown(all: &Report) -> String {
    let mut out = format!("# {}\n", all.plan().title);
    let _ = writeln!(out, "\n{}", provenance(all));
    let found = unreproduced(all);
    if found.checked > 0 || !found.lines.is_empty() {
        let _ = write!(out, "\n## {UNREPRODUCED}\n\n{UNREPRODUCED_NOTE}\n\n");
        found.lines.iter().for_each(|line| {
            let _ = writeln!(out, "- {line}");
        });
        if found.lines.is_empty() {
            let _ = writeln!(out, "Nothing: all {} claims hold in every cell.", found.checked);
        }
    }
    for table in all.tables() {
        let _ = write!(out, "\n## {}\n\n", table.title);
        if !table.note.is_empty() {
            let _ = write!(out, "{}\n\n", table.note);
        }
        let _ = writeln!(out, "| | {} |\n|---|{}", table.columns.join(" | "), "---|".repeat(table.columns.len()));
        for (name, entries) in &table.rows {
            let cells = entries.iter().map(|entry| {
                let own = if entry.best || entry.tied { format!("**{}**", figure(entry)) } else { figure(entry) };
                match (entry.published, entry.mean) {
                    (Some(p), Some(m)) => format!("{own} ({p:.2}, {:+.2})", m - p),
                    (Some(p), None) => format!("({p:.2})"),
                    _ => own,
                }
            });
            let _ = writeln!(out, "| {name} | {} |", cells.collect::<Vec<_>>().join(" | "));
        }
    }
    let missing = all.missing();
    if !missing.is_empty() {
        let _ = write!(out, "\n## Missing cells\n\n");
        for (task, why) in missing {
            let _ = writeln!(out, "- {task}: {why}");
        }
    }
    out
}

/// Encoder, options and sizes behind the tables, in a paragraph.
pub fn provenance(all: &Report) -> String {
    let plan = all.plan();
    let mut text = format!(
        "Encoder {} ({} pooling by default), views {}, dropout {}, cleaning {}. In brackets: the published figure and the difference.",
        plan.encoder, plan.pooling, plan.views, plan.dropout, plan.clean
    );
    for corpus in &plan.corpus {
        let sizes = plan.row.iter().find_map(|s| {
            let label = s.label(plan);
            [0].iter().chain(&plan.bits).find_map(|&b| all.of(&corpus.name, &label, b).first().map(|c| c.figures.sizes))
        });
        match sizes {
            Some((documents, queries)) => {
                let _ = write!(text, " {}: {documents} documents, {queries} queries.", corpus.name);
            }
            None => {
                let _ = write!(text, " {}: missing, its columns are empty.", corpus.name);
            }
        }
    }
    text
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// One line per figure: table, row, column, mean, deviation, seeds, published, against MICPQ (above, tie or below), and whether it
/// is the best of its column or does not differ from it.
pub fn csv(all: &Report) -> String {
    let mut out = String::from("table,row,column,mean,deviation,seeds,published,against_micpq,best\n");
    for table in all.tables() {
        for (name, entries) in &table.rows {
            for (column, entry) in table.columns.iter().zip(entries) {
                let number = |v: Option<f64>| v.map_or_else(String::new, |v| format!("{v:.4}"));
                let value = entry.text.as_deref().map_or_else(|| number(entry.mean), quoted);
                let verdict = entry.verdict.map_or("", Into::into);
                let best = match (entry.best, entry.tied) {
                    (true, _) => "best",
                    (_, true) => "tie",
                    _ => "",
                };
                let _ = writeln!(
                    out,
                    "{},{},{},{value},{},{},{},{verdict},{best}",
                    table.name,
                    quoted(name),
                    quoted(column),
                    number(entry.spread),
                    entry.seeds,
                    number(entry.published)
                );
            }
        }
    }
    out
}

/// The main table as LaTeX, with booktabs.
pub fn latex(all: &Report) -> String {
    let plan = all.plan();
    let Some(table) = all.tables().into_iter().find(|t| t.name == "main") else { return String::new() };
    let lengths = plan.bits.len();
    let mut out = format!("\\begin{{tabular}}{{l{}}}\n\\toprule\n", "r".repeat(table.columns.len()));
    let heads = plan.corpus.iter().map(|c| format!("\\multicolumn{{{lengths}}}{{c}}{{{}}}", escaped(&c.name)));
    let _ = writeln!(out, " & {} \\\\", heads.collect::<Vec<_>>().join(" & "));
    let bits: Vec<String> = plan.corpus.iter().flat_map(|_| plan.bits.iter().map(ToString::to_string)).collect();
    let _ = writeln!(out, "bits & {} \\\\\n\\midrule", bits.join(" & "));
    for (name, entries) in &table.rows {
        let _ = writeln!(out, "{} & {} \\\\", escaped(name), row(entries));
    }
    out += "\\bottomrule\n\\end{tabular}\n";
    out + "% Bold: the best of its column, or no real difference from it. *: a real difference from micpq. =: a tie with it. Bootstrap \
           over queries and seeds, p < 0.05.\n"
}

fn row(entries: &[Entry]) -> String {
    let cell = |entry: &Entry| match (entry.mean, entry.spread) {
        (None, _) => "--".to_owned(),
        (Some(mean), spread) => {
            let number =
                spread.map_or_else(|| format!("{mean:.2}"), |s| format!("{mean:.2}{{\\scriptsize$\\pm${s:.2}}}"));
            let mark = match entry.verdict {
                Some(Verdict::Tie) => "$^{=}$",
                Some(_) => "$^{*}$",
                None => "",
            };
            let older = if entry.older { "$^{\\dagger}$" } else { "" };
            let number = if entry.best || entry.tied { format!("\\textbf{{{number}}}") } else { number };
            format!("{number}{mark}{older}")
        }
    };
    entries.iter().map(cell).collect::<Vec<_>>().join(" & ")
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\textbackslash ").replace('_', "\\_").replace('&', "\\&").replace('%', "\\%")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latex_has_deviations_and_marks_of_significance() {
        let entry = |mean: f64, verdict: Option<Verdict>| Entry {
            mean: Some(mean),
            spread: Some(0.25),
            seeds: 3,
            verdict,
            ..Entry::default()
        };
        let best = Entry { best: true, ..entry(81.0, None) };
        let tied = Entry { tied: true, ..entry(80.9, Some(Verdict::Tie)) };
        let below = Entry { older: true, ..entry(70.0, Some(Verdict::Below)) };
        let line = row(&[best, tied, below, Entry::default()]);
        assert_eq!(
            line,
            "\\textbf{81.00{\\scriptsize$\\pm$0.25}} & \\textbf{80.90{\\scriptsize$\\pm$0.25}}$^{=}$ & \
             70.00{\\scriptsize$\\pm$0.25}$^{*}$$^{\\dagger}$ & --"
        );
    }
}
