//! Names of topics: c-TF-IDF over the terms of the index (Grootendorst 2022, BERTopic). A term stands for a topic if it is
//! frequent there and rare elsewhere: its share of the topic's words times `ln(1 + A / f)`, with `f` its occurrences in all
//! topics and `A` the mean number of words per topic.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};

use super::hierarchy::Merge;
use crate::index::Walk;
use crate::language::Language;
use crate::{Error, Progress, Result};
use rayon::prelude::*;

/// A stem of fewer documents names no topic.
const MIN_DOCUMENTS: u64 = 5;
/// A term names a topic if it is at least so many times as frequent there as in all texts. Function words of any language
/// are not ("his" is up to 1.8 times as frequent in sports news).
const MIN_LIFT: f64 = 2.0;
/// In a large topic no term is that much more frequent: a term that is nowhere else has the inverse of the topic's share of all
/// words. This part of it is enough.
const LARGE_LIFT: f64 = 0.6;
/// Documents whose words show how a stem is written.
const SAMPLE: usize = 10_000;

/// A term with its c-TF-IDF weight.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct TopicTerm {
    pub term: String,
    pub weight: f32,
}

/// The best `most` terms of every topic, then of every merge. Empty lists if the index stores no texts.
pub(super) fn terms(
    walk: &Walk,
    classes: &[Option<u16>],
    count: usize,
    merges: &[Merge],
    most: usize,
    progress: &dyn Progress,
) -> Result<Vec<Vec<TopicTerm>>> {
    // The terms of every segment are read twice.
    progress.stage("naming topics", Some(2 * walk.num_terms()?));
    // Occurrences in a merge are those in its children.
    let with_merges = |counts: &[u64]| {
        let mut all = counts.to_vec();
        merges.iter().for_each(|merge| all.push(merge.children.iter().map(|&c| all[c]).sum()));
        all
    };
    let nodes = count + merges.len();
    let mut words = vec![0u64; nodes];
    let add = |_: &str, counts: &[u64]| words.iter_mut().zip(with_merges(counts)).for_each(|(w, c)| *w += c);
    walk.count_stems(classes, count, MIN_DOCUMENTS, add, progress)?;
    let total: u64 = words[..count].iter().sum();

    // More stems than terms are asked for: stop words drop out when they are written out.
    let mut best: Vec<Best> = (0..nodes).map(|_| Best::new(2 * most + 20)).collect();
    let weigh = |stem: &str, counts: &[u64]| {
        let everywhere: u64 = counts.iter().sum();
        if everywhere == 0 || !may_name(stem) {
            return;
        }
        let idf = (1.0 + total as f64 / count as f64 / everywhere as f64).ln();
        for ((best, inside), &words) in best.iter_mut().zip(with_merges(counts)).zip(&words) {
            let share = inside as f64 / words.max(1) as f64;
            let lift = share * total as f64 / everywhere as f64;
            let enough = (LARGE_LIFT * total as f64 / words.max(1) as f64).clamp(1.1, MIN_LIFT);
            if inside > 0 && lift >= enough {
                best.push((share * idf) as f32, stem);
            }
        }
    };
    walk.count_stems(classes, count, MIN_DOCUMENTS, weigh, progress)?;
    let best: Vec<Vec<(f32, String)>> = best.into_iter().map(Best::into_sorted).collect();
    let written = written(walk, best.iter().flatten().map(|(_, stem)| stem.as_str()).collect(), progress)?;
    let terms = |stems: Vec<(f32, String)>| {
        let known = stems.into_iter().filter_map(|(weight, stem)| Some((weight, written.get(&stem)?.clone())));
        known.map(|(weight, term)| TopicTerm { term, weight }).take(most).collect()
    };
    Ok(best.into_iter().map(terms).collect())
}

/// The stems of greatest weight. Equal weights go by the alphabet.
struct Best {
    most: usize,
    // The bits of positive floats sort like the floats.
    heap: BinaryHeap<Reverse<(u32, Reverse<String>)>>,
}

impl Best {
    fn new(most: usize) -> Best {
        Best { most, heap: BinaryHeap::new() }
    }

    fn push(&mut self, weight: f32, stem: &str) {
        let worst = self.heap.peek().map_or(0, |worst| worst.0.0);
        if self.heap.len() == self.most && weight.to_bits() < worst {
            return;
        }
        self.heap.push(Reverse((weight.to_bits(), Reverse(stem.to_owned()))));
        if self.heap.len() > self.most {
            self.heap.pop();
        }
    }

    fn into_sorted(self) -> Vec<(f32, String)> {
        self.heap
            .into_sorted_vec()
            .into_iter()
            .map(|Reverse((bits, Reverse(stem)))| (f32::from_bits(bits), stem))
            .collect()
    }
}

/// How stems are written: the most frequent word of each in a sample of the texts. Stop words, and stems that the sample does
/// not have, are left out.
fn written(walk: &Walk, stems: HashSet<&str>, progress: &dyn Progress) -> Result<HashMap<String, String>> {
    let count = walk.len().min(SAMPLE);
    let places: Vec<usize> = (0..count).map(|i| i * walk.len() / count).collect();
    let texts = places.par_iter().map(|&place| Ok(walk.get(place)?.text.unwrap_or_default()));
    let texts = texts.collect::<Result<Vec<String>>>()?;
    if progress.interrupted() {
        return Err(Error::Interrupted);
    }
    let language = walk.language();
    let mut analyzer = language.analyzer(false);
    let mut forms: HashMap<&str, BTreeMap<String, u32>> = HashMap::new();
    for text in &texts {
        let mut tokens = analyzer.token_stream(text);
        while tokens.advance() {
            let token = tokens.token();
            if let Some(stem) = stems.get(token.text.as_str()) {
                let word = text[token.offset_from..token.offset_to].to_lowercase();
                *forms.entry(stem).or_default().entry(word).or_default() += 1;
            }
        }
    }
    Ok(forms.into_iter().filter_map(|(stem, forms)| Some((stem.to_owned(), most_frequent(forms, language)?))).collect())
}

/// The stems of a text that may name something, each with its first word. Stop words are left out.
pub(super) fn stems(text: &str, language: Language) -> BTreeMap<String, String> {
    let mut analyzer = language.analyzer(true);
    let mut tokens = analyzer.token_stream(text);
    let mut stems = BTreeMap::new();
    while tokens.advance() {
        let token = tokens.token();
        if may_name(&token.text) && !stems.contains_key(&token.text) {
            stems.insert(token.text.clone(), text[token.offset_from..token.offset_to].to_lowercase());
        }
    }
    stems
}

/// The first of equally frequent words: the alphabet decides. `None` for a stop word.
fn most_frequent(forms: BTreeMap<String, u32>, language: Language) -> Option<String> {
    let (word, _) = forms.into_iter().rev().max_by_key(|(_, count)| *count)?;
    let counts = language.analyzer(true).token_stream(&word).advance();
    counts.then_some(word)
}

/// Whether a stem is a word of some length without digits. Two characters are a word in Chinese, Japanese and Korean.
fn may_name(stem: &str) -> bool {
    let is_of_word = |c: char| c.is_alphabetic() || !c.is_ascii() && !c.is_numeric();
    let least = if stem.chars().all(|c| c >= '\u{2e80}') { 2 } else { 3 };
    stem.chars().count() >= least && stem.chars().all(is_of_word) && stem.chars().any(char::is_alphabetic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_name_topics_and_numbers_and_scraps_do_not() {
        for word in ["oil", "größe", "文件", "検索", "은행", "ไทย", "книга"] {
            assert!(may_name(word), "{word}");
        }
        for scrap in ["", "of", "um", "的", "1987", "b2b", "m2", "ст"] {
            assert!(!may_name(scrap), "{scrap}");
        }
    }

    #[test]
    fn stop_words_are_those_of_the_language() {
        let forms = |word: &str| BTreeMap::from([(word.to_owned(), 3)]);
        let german: Language = "de".parse().unwrap();
        assert_eq!(most_frequent(forms("nicht"), german), None);
        assert_eq!(most_frequent(forms("nicht"), Language::ENGLISH).as_deref(), Some("nicht"));
        assert_eq!(most_frequent(forms("have"), german).as_deref(), Some("have"));
        assert_eq!(most_frequent(forms("文件"), "zh".parse().unwrap()).as_deref(), Some("文件"));
    }
}
