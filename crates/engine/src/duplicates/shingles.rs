//! Word shingles of a text, and the Jaccard similarity of two.

/// Words of a shingle.
const WORDS: usize = 2;
/// Shingles kept per text, those with the smallest hashes. Texts with fewer are compared exactly; the standard error of a
/// longer one is at most sqrt(0.25 / 128) = 0.044.
const MAX_HASHES: usize = 128;

/// The smallest hashes of a text's shingles, rising.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Shingles(Box<[u32]>);

impl Shingles {
    /// Lower case, letters and digits only. A text of one word has that word as its shingle.
    pub fn of(text: &str) -> Shingles {
        let words = words(text);
        let mut hashes: Vec<u32> = windows(&words).map(hash).collect();
        hashes.sort_unstable();
        hashes.dedup();
        hashes.truncate(MAX_HASHES);
        Shingles(hashes.into())
    }

    /// The words of the shingles with the smallest hashes, at most `most` of them.
    pub fn drawn(text: &str, most: usize) -> Vec<String> {
        let words = words(text);
        let mut drawn: Vec<(u32, &[String])> = windows(&words).map(|window| (hash(window), window)).collect();
        drawn.sort_unstable();
        drawn.dedup_by_key(|(hash, _)| *hash);
        drawn.into_iter().take(most).map(|(_, window)| window.join(" ")).collect()
    }

    pub fn smallest(&self, most: usize) -> &[u32] {
        &self.0[..self.0.len().min(most)]
    }

    /// Jaccard similarity by the smallest hashes of both together; 0 if one has no words.
    pub fn jaccard(&self, other: &Shingles) -> f32 {
        let (mut a, mut b) = (self.0.iter().peekable(), other.0.iter().peekable());
        let (mut both, mut seen) = (0, 0);
        // Beyond the smallest MAX_HASHES hashes of the union, a list that was cut says nothing.
        while seen < MAX_HASHES {
            let (Some(x), Some(y)) = (a.peek(), b.peek()) else {
                seen = MAX_HASHES.min(seen + a.count() + b.count());
                break;
            };
            let (least, equal) = (x.min(y).to_owned(), x == y);
            both += usize::from(equal);
            a.next_if_eq(&least);
            b.next_if_eq(&least);
            seen += 1;
        }
        if self.0.is_empty() || other.0.is_empty() { 0.0 } else { both as f32 / seen as f32 }
    }
}

fn words(text: &str) -> Vec<String> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()).map(str::to_lowercase).collect()
}

fn windows(words: &[String]) -> impl Iterator<Item = &[String]> {
    words.windows(WORDS.min(words.len()).max(1))
}

/// FNV-1a of the words, folded to 32 bits: the same on every machine.
fn hash(words: &[String]) -> u32 {
    let bytes = words.iter().flat_map(|word| word.bytes().chain([0xff]));
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    (hash ^ hash >> 32) as u32
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn exact(a: &str, b: &str) -> f32 {
        let set = |text: &str| {
            let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
            words.windows(WORDS).map(<[String]>::to_vec).collect::<BTreeSet<_>>()
        };
        let (a, b) = (set(a), set(b));
        a.intersection(&b).count() as f32 / a.union(&b).count() as f32
    }

    #[test]
    fn short_texts_are_compared_exactly_and_long_ones_closely() {
        let text = |from: usize, to: usize| (from..to).map(|i| format!("w{i}")).collect::<Vec<_>>().join(" ");
        for (a, b) in [((0, 20), (5, 25)), ((0, 60), (0, 50)), ((0, 3), (0, 4)), ((0, 9), (20, 29))] {
            let (a, b) = (text(a.0, a.1), text(b.0, b.1));
            assert_eq!(Shingles::of(&a).jaccard(&Shingles::of(&b)), exact(&a, &b));
        }
        for shift in [0, 100, 300, 500, 900] {
            let (a, b) = (text(0, 1000), text(shift, 1000 + shift));
            let close = (Shingles::of(&a).jaccard(&Shingles::of(&b)) - exact(&a, &b)).abs();
            assert!(close < 0.13, "three standard errors: {close}");
        }
        // One long and one short text.
        let (a, b) = (text(0, 1000), text(0, 30));
        assert!(Shingles::of(&a).jaccard(&Shingles::of(&b)) < 0.15);
    }

    #[test]
    fn case_and_punctuation_do_not_count_and_no_words_are_like_nothing() {
        assert_eq!(Shingles::of("Oil, prices ROSE.").jaccard(&Shingles::of("oil prices rose")), 1.0);
        assert_eq!(Shingles::of("oil").jaccard(&Shingles::of("Oil!")), 1.0);
        assert_eq!(Shingles::of("...").jaccard(&Shingles::of("...")), 0.0);
    }
}
