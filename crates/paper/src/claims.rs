//! The paper's claims about two methods, held against our cells; and figures that are not the published ones.

use crate::comparison::{Comparison, Verdict, probability};
use crate::tables::Report;

/// The paper: the first method is above the second in every cell.
struct Claim {
    says: &'static str,
    ahead: &'static str,
    behind: &'static str,
}

const CLAIMS: [Claim; 5] = [
    Claim { says: "MICPQ is above CSH", ahead: "micpq", behind: "csh" },
    Claim { says: "the mutual information helps (micpq above cl)", ahead: "micpq", behind: "cl" },
    Claim { says: "Gumbel noise helps (micpq above softmax)", ahead: "micpq", behind: "softmax" },
    Claim { says: "MICPQ with Hamming codes is above CSH (micpq-eh above csh)", ahead: "micpq-eh", behind: "csh" },
    Claim { says: "learning end to end is above two stages", ahead: "micpq", behind: "two-stage" },
];

/// Points between our figure and the published one that are worth a line.
const FAR: f64 = 1.0;

/// One line for every claim and row that does not reproduce.
pub struct Unreproduced {
    pub lines: Vec<String>,
    /// How many claims could be held against at least one cell.
    pub checked: usize,
}

pub fn unreproduced(all: &Report) -> Unreproduced {
    let plan = all.plan();
    let (mut lines, mut checked) = (Vec::new(), 0);
    for claim in &CLAIMS {
        let (mut above, mut other) = (0, Vec::new());
        for corpus in &plan.corpus {
            for &bits in &plan.bits {
                let Some(found) = all.compare(&corpus.name, bits, claim.ahead, claim.behind) else { continue };
                match found.verdict() {
                    Verdict::Above => above += 1,
                    verdict => other.push(cell(&corpus.name, bits, verdict, &found)),
                }
            }
        }
        let cells = above + other.len();
        checked += usize::from(cells > 0);
        if !other.is_empty() {
            lines.push(format!(
                "\u{201c}{}\u{201d}: holds in {above} of {cells} cells. Not in {}.",
                claim.says,
                other.join("; ")
            ));
        }
    }
    for (row, entries) in all.main_rows() {
        let far: Vec<String> = entries
            .into_iter()
            .filter_map(|(column, mean, published)| {
                let difference = mean - published;
                (difference.abs() > FAR).then(|| format!("{column} {mean:.2} ({difference:+.2})"))
            })
            .collect();
        if !far.is_empty() {
            lines.push(format!("{row}, more than a point from the published figure: {}.", far.join(", ")));
        }
    }
    Unreproduced { lines, checked }
}

fn cell(corpus: &str, bits: usize, verdict: Verdict, found: &Comparison) -> String {
    let word = if verdict == Verdict::Tie { "a tie" } else { "below" };
    format!("{corpus} {bits} ({:+.2}, p {}: {word})", found.difference, probability(found.p))
}
