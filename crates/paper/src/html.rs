//! The report as one HTML file with tables, plots and the case study. It loads nothing from elsewhere.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::cell::Task;
use crate::claims::unreproduced;
use crate::plan::MethodPlan;
use crate::svg::{Scale, Series, heat, lines, points};
use crate::tables::{Entry, Report, Table};
use crate::text::{UNREPRODUCED, UNREPRODUCED_NOTE, mark, provenance};

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:1150px;padding:0 1rem;color:#1a1a1a;background:#fff}\
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2.4rem;border-bottom:1px solid #ddd}\
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:13px}td,th{padding:3px 8px;text-align:right;white-space:nowrap}\
td:first-child,th:first-child{text-align:left;position:sticky;left:0;background:#fff}tr:nth-child(even) td{background:#f6f7f9}\
.p{display:block;color:#777;font-size:11px}.b{font-weight:700}.w{color:#a33}\
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(430px,1fr));gap:1rem}\
svg{width:100%;height:auto}svg .t{font:600 14px system-ui}svg .n{font:11px system-ui;fill:#444}svg .m{text-anchor:middle}svg .e{text-anchor:end}\
svg .g{stroke:#e4e4e4}nav a{margin-right:1rem}.case td{white-space:normal;text-align:left;vertical-align:top}.case .y{border-left:3px solid #2b8a5b}\
.case .x{border-left:3px solid #c8501e}";

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The whole file.
pub fn page(all: &Report) -> String {
    let tables = all.tables();
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><title>{0}</title><style>{STYLE}</style><h1>{0}</h1><p>{1}</p><nav>",
        escaped(&all.plan().title),
        escaped(&provenance(all))
    );
    for table in &tables {
        let _ = write!(out, "<a href=\"#{}\">{}</a>", table.name, escaped(&table.title));
    }
    out += "<a href=\"#plots\">Plots</a><a href=\"#cases\">Cases</a></nav>";
    for name in all.empty() {
        let _ = write!(out, "<p class=\"w\">{}: missing; its columns are empty.</p>", escaped(name));
    }
    let found = unreproduced(all);
    if found.checked > 0 || !found.lines.is_empty() {
        let _ = write!(out, "<h2 id=\"unreproduced\">{UNREPRODUCED}</h2><p>{}</p>", escaped(UNREPRODUCED_NOTE));
        if found.lines.is_empty() {
            let _ = write!(out, "<p>Nothing: all {} claims hold in every cell.</p>", found.checked);
        }
        let lines: String = found.lines.iter().map(|line| format!("<li>{}</li>", escaped(line))).collect();
        let _ = write!(out, "<ul>{lines}</ul>");
    }
    tables.iter().for_each(|t| out += &html_table(t));
    let _ = write!(out, "<h2 id=\"plots\">Plots</h2><div class=\"plots\">{}</div>", plots(all).join(""));
    out += &cases(all);
    if !all.missing().is_empty() {
        out += "<h2>Missing cells</h2><ul>";
        for (task, why) in all.missing() {
            let _ = write!(out, "<li>{}: {}</li>", escaped(&task.to_string()), escaped(&why.to_string()));
        }
        out += "</ul>";
    }
    out + "</html>\n"
}

fn html_table(table: &Table) -> String {
    let mut out = format!(
        "<h2 id=\"{}\">{}</h2><p>{}</p><div class=\"wide\"><table><tr><th></th>",
        table.name,
        escaped(&table.title),
        escaped(&table.note)
    );
    table.columns.iter().for_each(|column| {
        let _ = write!(out, "<th>{}</th>", escaped(column));
    });
    out += "</tr>";
    for (name, entries) in &table.rows {
        let _ = write!(out, "<tr><td>{}</td>", escaped(name));
        entries.iter().for_each(|entry| out += &cell(entry));
        out += "</tr>";
    }
    out + "</table></div>"
}

fn cell(entry: &Entry) -> String {
    let own = match (&entry.text, entry.mean, entry.spread) {
        (Some(text), _, _) => escaped(text),
        (None, None, _) => String::new(),
        (None, Some(mean), Some(spread)) => format!("{mean:.2} <small>&plusmn; {spread:.2}</small>{}", mark(entry)),
        (None, Some(mean), None) => format!("{mean:.2}{}", mark(entry)),
    };
    let published = match (entry.published, entry.mean) {
        (Some(p), Some(m)) => format!("<span class=\"p\">{p:.2}, {:+.2}</span>", m - p),
        (Some(p), None) => format!("<span class=\"p\">{p:.2}</span>"),
        _ => String::new(),
    };
    format!("<td{}>{own}{published}</td>", if entry.best || entry.tied { " class=\"b\"" } else { "" })
}

/// The rows that plots show, at most eight, MICPQ first.
fn plotted_rows<'p>(all: &Report<'p>) -> Vec<&'p MethodPlan> {
    let wanted = ["micpq", "csh", "opq", "aepq", "exact float", "ammi tfidf", "nash tfidf", "micpq-eh"];
    let plan = all.plan();
    wanted.iter().filter_map(|w| plan.row.iter().find(|s| s.label(plan) == *w)).collect()
}

fn plots(all: &Report) -> Vec<String> {
    let plan = all.plan();
    let mut out = Vec::new();
    for corpus in plan.corpus.iter().map(|c| c.name.as_str()) {
        let series = |of: &dyn Fn(&MethodPlan) -> Vec<(f64, f64)>| -> Vec<Series> {
            let lines = plotted_rows(all).into_iter().map(|s| {
                let name = s.label(plan);
                Series { strong: name == "micpq", points: of(s), name }
            });
            lines.filter(|s| !s.points.is_empty()).collect()
        };
        let over_bits = series(&|s| {
            let points = plan.bits.iter().filter_map(|&bits| {
                let cells = all.of(corpus, &s.label(plan), s.cell_bits(bits));
                let sum: f64 = cells.iter().map(|c| c.figures.precision[2]).sum();
                (!cells.is_empty()).then(|| (bits as f64, sum / cells.len() as f64))
            });
            points.collect()
        });
        out.push(lines(&format!("{corpus}: P@100 over bits"), "bits", "P@100", Scale::Log2, &over_bits));
        let Some(&bits) = plan.bits.get(plan.bits.len() / 2) else { continue };
        let curves = series(&|s| {
            all.of(corpus, &s.label(plan), s.cell_bits(bits)).first().map_or_else(Vec::new, |c| c.figures.curve.clone())
        });
        let title = format!("{corpus}: precision over recall, {bits} bits");
        out.push(lines(&title, "recall, %", "precision, %", Scale::Linear, &curves));
        for method in ["micpq", "cl", "opq"] {
            let Some(cell) = all.of(corpus, method, bits).first() else { continue };
            out.push(heat(
                &format!("{corpus}: codewords used by {method}, {bits} bits"),
                "codeword",
                "codebook",
                &cell.figures.usage,
            ));
        }
        for method in ["micpq", "opq"] {
            let Some(cell) = all.of(corpus, method, bits).first() else { continue };
            let title = format!("{corpus}: codes of {method}, {bits} bits, in the plane");
            out.push(points(&title, &cell.figures.map_points));
        }
    }
    let mut options: BTreeMap<String, BTreeMap<String, Vec<(f64, f64)>>> = BTreeMap::new();
    for cell in all.others() {
        if let Task::Sensitivity { corpus, option, value, .. } = &cell.task {
            let of = options.entry(option.clone()).or_default().entry(corpus.clone()).or_default();
            of.push((*value, cell.figures.precision[2]));
        }
    }
    for (option, corpora) in options {
        let series: Vec<Series> = corpora
            .into_iter()
            .map(|(name, mut points)| {
                points.sort_by(|a, b| a.0.total_cmp(&b.0));
                // One point per value: the mean over seeds.
                let mean = |same: &[(f64, f64)]| (same[0].0, same.iter().map(|p| p.1).sum::<f64>() / same.len() as f64);
                let points = points.chunk_by(|a, b| a.0 == b.0).map(mean).collect();
                Series { name, points, strong: false }
            })
            .collect();
        out.push(lines(&format!("MICPQ: P@100 over {option}"), &option, "P@100", Scale::Linear, &series));
    }
    out.retain(|plot| !plot.is_empty());
    out
}

/// The case study: queries with the first results of each method.
fn cases(all: &Report) -> String {
    let plan = all.plan();
    let bits = plan.bits.get(plan.bits.len() / 2).copied().unwrap_or(0);
    let mut out = String::from("<h2 id=\"cases\">A query and the first results of each method</h2>");
    for corpus in plan.corpus.iter().map(|c| c.name.as_str()) {
        let found: Vec<_> = plan
            .row
            .iter()
            .filter_map(|s| {
                all.of(corpus, &s.label(plan), s.cell_bits(bits)).first().map(|c| (s.label(plan), &c.figures.cases))
            })
            .collect();
        let queries = found.iter().map(|(_, cases)| cases.len()).max().unwrap_or(0);
        for q in 0..queries {
            let Some(query) = found.iter().find_map(|(_, cases)| cases.get(q)) else { continue };
            let _ = write!(
                out,
                "<h3>{}: &ldquo;{}&rdquo;</h3><div class=\"wide\"><table class=\"case\">",
                escaped(corpus),
                escaped(&query.query)
            );
            for (name, cases) in &found {
                let Some(case) = cases.get(q) else { continue };
                let _ = write!(out, "<tr><td>{}</td>", escaped(name));
                for (text, right) in &case.found {
                    let class = if *right { "y" } else { "x" };
                    let _ = write!(out, "<td class=\"{class}\">{}</td>", escaped(text));
                }
                out += "</tr>";
            }
            out += "</table></div>";
        }
    }
    out + "<p>A green edge: the query's class; an orange one: another.</p>"
}
