//! Tables as Markdown, CSV and LaTeX.

use std::fmt::Write;

use crate::tables::{Entry, Report};

fn figure(entry: &Entry) -> String {
    match (&entry.text, entry.mean) {
        (Some(text), _) => text.clone(),
        (None, None) => String::new(),
        (None, Some(mean)) => match entry.spread {
            Some(spread) => format!("{mean:.2} ± {spread:.2}"),
            None => format!("{mean:.2}"),
        },
    }
}

/// The whole report as Markdown.
pub fn markdown(all: &Report) -> String {
    let mut out = format!("# {}\n", all.plan().title);
    let _ = writeln!(out, "\n{}", provenance(all));
    for table in all.tables() {
        let _ = write!(out, "\n## {}\n\n", table.title);
        if !table.note.is_empty() {
            let _ = write!(out, "{}\n\n", table.note);
        }
        let _ = writeln!(out, "| | {} |\n|---|{}", table.columns.join(" | "), "---|".repeat(table.columns.len()));
        for (name, entries) in &table.rows {
            let cells = entries.iter().map(|entry| {
                let own = if entry.best { format!("**{}**", figure(entry)) } else { figure(entry) };
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

/// One line per figure: table, row, column, mean, deviation, seeds, published.
pub fn csv(all: &Report) -> String {
    let mut out = String::from("table,row,column,mean,deviation,seeds,published\n");
    for table in all.tables() {
        for (name, entries) in &table.rows {
            for (column, entry) in table.columns.iter().zip(entries) {
                let number = |v: Option<f64>| v.map_or_else(String::new, |v| format!("{v:.4}"));
                let value = entry.text.as_deref().map_or_else(|| number(entry.mean), quoted);
                let _ = writeln!(
                    out,
                    "{},{},{},{value},{},{},{}",
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
    out + "\\bottomrule\n\\end{tabular}\n"
}

fn row(entries: &[Entry]) -> String {
    let cell = |entry: &Entry| match (entry.mean, entry.spread) {
        (None, _) => "--".to_owned(),
        (Some(mean), spread) => {
            let number =
                spread.map_or_else(|| format!("{mean:.2}"), |s| format!("{mean:.2}{{\\scriptsize$\\pm${s:.2}}}"));
            if entry.best { format!("\\textbf{{{number}}}") } else { number }
        }
    };
    entries.iter().map(cell).collect::<Vec<_>>().join(" & ")
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\textbackslash ").replace('_', "\\_").replace('&', "\\&").replace('%', "\\%")
}
