//! TREC's run and qrels files, and the measures that `trec_eval` computes from them.
//!
//! ```text
//! run    query Q0 document rank score tag
//! qrels  query 0 document relevance            (TREC)
//!        query-id <tab> corpus-id <tab> score   (BEIR, with this header)
//! ```

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use crate::{Error, Result, disk};

/// Judged relevance of documents, by query. Above 0 is relevant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Qrels(pub BTreeMap<String, BTreeMap<String, i64>>);

/// Documents found and their scores, by query. A higher score is better. Lists are ordered by score; ties are ordered as in
/// `trec_eval`: the greater name first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run(pub BTreeMap<String, Vec<(String, f64)>>);

/// Means over queries, each from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Measures {
    /// Normalised discounted cumulative gain of the first ten.
    #[serde(rename = "ndcg@10")]
    pub ndcg_10: f64,
    /// Share of the relevant documents that are among the first hundred.
    #[serde(rename = "recall@100")]
    pub recall_100: f64,
    /// Mean average precision over all documents found.
    pub map: f64,
    /// Share of relevant documents among the first ten.
    #[serde(rename = "p@10")]
    pub p_10: f64,
    /// Reciprocal rank of the first relevant document.
    pub mrr: f64,
}

#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Scored {
    /// Means over the queries that are both judged and answered, as in `trec_eval`.
    #[serde(flatten)]
    pub mean: Measures,
    /// Number of queries in the means.
    pub queries: usize,
    /// Judged queries that the run does not answer. They do not count in the means.
    pub unanswered: usize,
    /// Answered queries without judgements. They do not count in the means.
    pub unjudged: usize,
    /// Measures of each query.
    #[serde(skip)]
    pub each: BTreeMap<String, Measures>,
}

fn lines(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|source| match source.kind() {
        std::io::ErrorKind::InvalidData => Error::format(path, "is not UTF-8 text; unpack it or convert it"),
        _ => Error::io(path)(source),
    })
}

impl Qrels {
    /// Reads a file of either layout.
    pub fn read(path: &Path) -> Result<Qrels> {
        let text = lines(path)?;
        let mut qrels = Qrels::default();
        for (number, line) in text.lines().enumerate() {
            let fields: Vec<&str> = if line.contains('\t') {
                line.split('\t').map(str::trim).collect()
            } else {
                line.split_whitespace().collect()
            };
            let (query, document, relevance) = match fields[..] {
                [] | [""] => continue,
                [query, _, document, relevance] => (query, document, relevance),
                // BEIR's header, whatever the names of its columns.
                [_, _, relevance] if number == 0 && relevance.parse::<i64>().is_err() => continue,
                [query, document, relevance] => (query, document, relevance),
                _ => {
                    let place = format!("{}, line {}", path.display(), number + 1);
                    return Err(Error::input(
                        place,
                        format!("has {} fields; qrels have 4 (TREC) or 3 (BEIR)", fields.len()),
                    ));
                }
            };
            let place = || format!("{}, line {}", path.display(), number + 1);
            let relevance: i64 = relevance
                .parse()
                .map_err(|_| Error::input(place(), format!("relevance \"{relevance}\" is not a whole number")))?;
            let judged = qrels.0.entry(query.to_owned()).or_default();
            if judged.insert(document.to_owned(), relevance).is_some() {
                return Err(Error::input(place(), format!("judges {document} for query {query} a second time")));
            }
        }
        Ok(qrels)
    }

    /// Writes TREC's layout.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut text = String::new();
        for (query, judged) in &self.0 {
            for (document, relevance) in judged {
                checked(query)?;
                checked(document)?;
                let _ = writeln!(text, "{query} 0 {document} {relevance}");
            }
        }
        disk::replace(path, text.as_bytes())
    }

    /// Writes BEIR's layout.
    pub fn write_beir(&self, path: &Path) -> Result<()> {
        let mut text = "query-id\tcorpus-id\tscore\n".to_owned();
        for (query, judged) in &self.0 {
            for (document, relevance) in judged {
                for name in [query, document] {
                    if name.contains(['\t', '\n', '\r']) {
                        return Err(Error::input(name, "holds a tab or a line break, which a BEIR file cannot carry"));
                    }
                }
                let _ = writeln!(text, "{query}\t{document}\t{relevance}");
            }
        }
        disk::write_synced(path, text.as_bytes())
    }
}

/// Refuses a name with blanks: they end a field in TREC's files.
fn checked(name: &str) -> Result<&str> {
    if name.is_empty() || name.chars().any(char::is_whitespace) {
        return Err(Error::input(
            format!("id \"{name}\""),
            "is empty or holds a blank, which a TREC file cannot carry; give documents and queries other ids",
        ));
    }
    Ok(name)
}

impl Run {
    pub fn read(path: &Path) -> Result<Run> {
        let text = lines(path)?;
        let mut run = Run::default();
        let mut seen = std::collections::HashSet::new();
        for (number, line) in text.lines().enumerate() {
            let place = || format!("{}, line {}", path.display(), number + 1);
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (query, document, score) = match fields[..] {
                [] => continue,
                [query, _, document, _, score, _] => (query, document, score),
                _ => {
                    return Err(Error::input(
                        place(),
                        format!("has {} fields; a run has 6: query Q0 document rank score tag", fields.len()),
                    ));
                }
            };
            let score: f64 = score
                .parse()
                .ok()
                .filter(|s: &f64| s.is_finite())
                .ok_or_else(|| Error::input(place(), format!("score \"{score}\" is not a finite number")))?;
            if !seen.insert((query, document)) {
                return Err(Error::input(place(), format!("{document} was found for query {query} before")));
            }
            run.0.entry(query.to_owned()).or_default().push((document.to_owned(), score));
        }
        Ok(run)
    }

    /// Writes a run under `tag`. Each list keeps its order.
    pub fn write(&self, path: &Path, tag: &str) -> Result<()> {
        let mut text = String::new();
        checked(tag)?;
        for (query, found) in &self.0 {
            checked(query)?;
            for (rank, (document, score)) in found.iter().enumerate() {
                let _ = writeln!(text, "{query} Q0 {} {} {score} {tag}", checked(document)?, rank + 1);
            }
        }
        disk::replace(path, text.as_bytes())
    }

    /// Scores the run against judgements, as `trec_eval` does.
    pub fn score(&self, qrels: &Qrels) -> Scored {
        let mut scored = Scored::default();
        for (query, found) in &self.0 {
            match qrels.0.get(query) {
                None => scored.unjudged += 1,
                Some(judged) => {
                    scored.each.insert(query.clone(), measures(found, judged));
                }
            }
        }
        scored.queries = scored.each.len();
        scored.unanswered = qrels.0.keys().filter(|query| !self.0.contains_key(*query)).count();
        let n = scored.queries.max(1) as f64;
        let mean = |of: fn(&Measures) -> f64| scored.each.values().map(of).sum::<f64>() / n;
        scored.mean = Measures {
            ndcg_10: mean(|m| m.ndcg_10),
            recall_100: mean(|m| m.recall_100),
            map: mean(|m| m.map),
            p_10: mean(|m| m.p_10),
            mrr: mean(|m| m.mrr),
        };
        scored
    }
}

fn measures(found: &[(String, f64)], judged: &BTreeMap<String, i64>) -> Measures {
    let mut order: Vec<(&str, f64)> = found.iter().map(|(document, score)| (document.as_str(), *score)).collect();
    // trec_eval stores scores as f32, which creates ties.
    order.sort_by(|a, b| (b.1 as f32).total_cmp(&(a.1 as f32)).then(b.0.cmp(a.0)));
    let relevance = |document: &str| judged.get(document).copied().unwrap_or(0).max(0);
    let mut ideal: Vec<i64> = judged.values().copied().filter(|r| *r > 0).collect();
    ideal.sort_unstable_by(|a, b| b.cmp(a));
    if ideal.is_empty() {
        return Measures::default();
    }
    let gain = |rank: usize, relevance: i64| relevance as f64 / ((rank + 2) as f64).log2();
    let ideal_gain: f64 = ideal.iter().take(10).enumerate().map(|(rank, r)| gain(rank, *r)).sum();
    let (mut own_gain, mut relevant, mut hundred, mut ten, mut precision, mut first) = (0.0, 0, 0, 0, 0.0, 0.0);
    for (rank, (document, _)) in order.iter().enumerate() {
        let r = relevance(document);
        if r == 0 {
            continue;
        }
        relevant += 1;
        precision += f64::from(relevant) / (rank + 1) as f64;
        if relevant == 1 {
            first = 1.0 / (rank + 1) as f64;
        }
        if rank < 100 {
            hundred += 1;
        }
        if rank < 10 {
            ten += 1;
            own_gain += gain(rank, r);
        }
    }
    let all = ideal.len() as f64;
    Measures {
        ndcg_10: own_gain / ideal_gain,
        recall_100: f64::from(hundred) / all,
        map: precision / all,
        p_10: f64::from(ten) / 10.0,
        mrr: first,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, text).unwrap();
        (folder, path)
    }

    #[test]
    fn both_layouts_of_qrels_are_read() {
        let (_f, trec) = write("q1 0 d1 2\nq1 0 d2 0\nq2 0 d1 1\n\n");
        let (_g, beir) = write("query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\nq2\td1\t1\n");
        let read = Qrels::read(&trec).unwrap();
        assert_eq!(read, Qrels::read(&beir).unwrap());
        assert_eq!(read.0["q1"]["d1"], 2);
        read.write(&trec).unwrap();
        assert_eq!(Qrels::read(&trec).unwrap(), read);
        read.write_beir(&beir).unwrap();
        assert_eq!(Qrels::read(&beir).unwrap(), read);
    }

    #[test]
    fn measures_equal_a_hand_computation() {
        let run = Run(BTreeMap::from([("q".into(), vec![("a".into(), 3.0), ("b".into(), 2.0), ("c".into(), 1.0)])]));
        let qrels = Qrels(BTreeMap::from([
            ("q".into(), BTreeMap::from([("b".into(), 2), ("c".into(), 1), ("z".into(), 1), ("a".into(), -1)])),
            ("r".into(), BTreeMap::from([("a".into(), 1)])),
        ]));
        let scored = run.score(&qrels);
        assert_eq!((scored.queries, scored.unanswered, scored.unjudged), (1, 1, 0));
        let dcg = 2.0 / 3f64.log2() + 1.0 / 2.0;
        let ideal = 2.0 + 1.0 / 3f64.log2() + 1.0 / 2.0;
        assert!((scored.mean.ndcg_10 - dcg / ideal).abs() < 1e-12);
        assert!((scored.mean.map - (1.0 / 2.0 + 2.0 / 3.0) / 3.0).abs() < 1e-12);
        assert!((scored.mean.recall_100 - 2.0 / 3.0).abs() < 1e-12);
        assert_eq!((scored.mean.mrr, scored.mean.p_10), (0.5, 0.2));
    }

    #[test]
    fn equal_scores_are_ordered_by_descending_name() {
        let list = |names: &[&str]| names.iter().map(|n| ((*n).to_owned(), 1.0)).collect::<Vec<_>>();
        let judged = BTreeMap::from([("b".to_owned(), 1)]);
        assert_eq!(measures(&list(&["a", "b", "c"]), &judged).mrr, 0.5);
        assert_eq!(measures(&list(&["b", "a"]), &judged).mrr, 1.0);
    }

    #[test]
    fn bad_lines_are_reported_by_number() {
        for (text, expected) in
            [("q Q0 d 1 2", "5 fields"), ("q Q0 d 1 high t", "\"high\""), ("q Q0 d 1 2 t\nq Q0 d 2 1 t", "before")]
        {
            let (_f, path) = write(text);
            let message = Run::read(&path).unwrap_err().to_string();
            assert!(message.contains(expected) && message.contains("line"), "{message}");
        }
        for (text, expected) in [("q d", "2 fields"), ("q 0 d much", "\"much\""), ("q 0 d 1\nq 0 d 2", "second time")] {
            let (_f, path) = write(text);
            let message = Qrels::read(&path).unwrap_err().to_string();
            assert!(message.contains(expected) && message.contains("line"), "{message}");
        }
        let run = Run(BTreeMap::from([("q 1".into(), vec![])]));
        assert!(run.write(Path::new("nowhere"), "t").unwrap_err().to_string().contains("blank"));
    }
}
