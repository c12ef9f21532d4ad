//! The nesting depth of a filter, checked before tantivy parses it.
//!
//! The parser, and all code that walks or drops its tree, recurses once per parenthesis and per `NOT`. Without a limit,
//! a filter of a few kilobytes overflows the stack, and no error handling survives that. Nothing else in the language
//! nests: `+`, `-` and `^` stand once before or after an operand, and ranges and sets hold only terms.

/// Max bytes of a filter: enough for a set of about 5,000 ids of 12 characters.
pub const MAX_FILTER_BYTES: usize = 64 << 10;

/// Max parentheses, field groups and `NOT`s around one term. A level takes up to 8 KB of stack, so the deepest filter
/// fits the 2 MiB of a thread and leaves room for the search around it.
pub const MAX_FILTER_DEPTH: usize = 32;

/// The parser that will read the filter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Grammar {
    /// A double quote opens a phrase.
    Strict,
    /// tantivy's lenient parser takes some double quotes for letters.
    Lenient,
}

/// The position, in characters, at which a filter nests deeper than [`MAX_FILTER_DEPTH`].
///
/// Whether a single quote or a slash opens something depends on the text before it (`>it's`, `a/b`). Both readings are
/// followed, and the deeper one counts.
pub(super) fn too_deep(text: &str, grammar: Grammar) -> Option<usize> {
    let mut plain = Some(Depth::default());
    let (mut phrase, mut quoted, mut regex) = (None, None, None);
    let mut characters = text.char_indices().enumerate().peekable();
    let mut last = ' ';
    while let Some((place, (at, character))) = characters.next() {
        match character {
            '\\' => drop(characters.next()),
            '"' => {
                let read = plain.clone();
                if grammar == Grammar::Strict {
                    plain = None;
                }
                join(&mut plain, phrase.take());
                phrase = read;
            }
            '\'' => {
                let read = plain.clone();
                join(&mut plain, quoted.take());
                quoted = read;
            }
            '/' => {
                let read = plain.clone();
                join(&mut plain, regex.clone());
                join(&mut regex, read);
            }
            _ => {}
        }
        if let Some(depth) = &mut plain {
            match character {
                '(' => depth.open(),
                ')' => depth.close(),
                space if space.is_whitespace() && text[..at].ends_with("NOT") => depth.negations += 1,
                // The operand ends here, and so do the NOTs before it, unless it is a field name before its colon.
                space if space.is_whitespace() && !last.is_whitespace() && last != ':' => {
                    let rest = text[at..].trim_start();
                    if !rest.starts_with(':') {
                        depth.negations = 0;
                    }
                }
                _ => {}
            }
            if depth.levels() > MAX_FILTER_DEPTH {
                return Some(place);
            }
        }
        last = character;
    }
    None
}

/// The levels around one position of a filter.
#[derive(Clone, Default)]
struct Depth {
    // Levels inside each open parenthesis, rising.
    groups: Vec<usize>,
    // NOTs before the next operand.
    negations: usize,
}

impl Depth {
    fn levels(&self) -> usize {
        self.groups.last().unwrap_or(&0) + self.negations
    }

    fn open(&mut self) {
        self.groups.push(self.levels() + 1);
        self.negations = 0;
    }

    fn close(&mut self) {
        self.groups.pop();
        self.negations = 0;
    }
}

/// Merges two readings into one that is at least as deep as either.
fn join(one: &mut Option<Depth>, other: Option<Depth>) {
    let Some(mut other) = other else { return };
    let Some(depth) = one else {
        *one = Some(other);
        return;
    };
    if other.groups.len() > depth.groups.len() {
        std::mem::swap(&mut other, depth);
    }
    for (level, other) in depth.groups.iter_mut().zip(other.groups) {
        *level = other.max(*level);
    }
    depth.negations = depth.negations.max(other.negations);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deep(text: &str) -> bool {
        too_deep(text, Grammar::Strict).is_some()
    }

    fn wrap(open: &str, times: usize, close: &str) -> String {
        format!("{}a{}", open.repeat(times), close.repeat(times))
    }

    #[test]
    fn every_form_of_nesting_counts_towards_the_depth() {
        let max = MAX_FILTER_DEPTH;
        for (open, close) in [
            ("(", ")"),
            ("NOT ", ""),
            ("NOT\t", ""),
            ("text:(", ")"),
            ("text : (", ")"),
            ("-(", ")"),
            ("+( ", " )"),
            ("(b OR ", ")^2"),
            ("(\")\" AND ", ")"),
            ("(')' AND ", ")"),
            ("(/)/ AND ", ")"),
            ("(\\) AND ", ")"),
        ] {
            assert!(!deep(&wrap(open, max, close)), "{open}");
            assert!(deep(&wrap(open, max + 1, close)), "{open}");
        }
        for open in ["NOT (", "NOT text:(", "NOT text : ("] {
            assert!(!deep(&wrap(open, max / 2, ")")), "{open}");
            assert!(deep(&wrap(open, max / 2 + 1, ")")), "{open}");
        }
        // A quote or a slash that opens nothing hides no parentheses.
        for before in ["year:>it's ", "path:a/b ", "/\"/ "] {
            assert!(deep(&format!("{before}{}", wrap("(", max + 1, ")"))), "{before}");
        }
        assert_eq!(too_deep(&format!("é {}", "(".repeat(max + 1)), Grammar::Strict), Some(2 + max));
    }

    #[test]
    fn operands_side_by_side_do_not_add_depth() {
        let many = |part: &str| vec![part; 1000].join(" AND ");
        for part in ["(a)", "NOT a", "NOT text:a", "NOT (a)", "(NOT a)", "text:(a b)", "text:\"((\"", "text:\\(", "b/c"]
        {
            assert!(!deep(&many(part)), "{part}");
        }
        assert!(!deep(&format!("text:\"{}\"", "(".repeat(1000))));
        assert!(!deep(&format!("text:\"\\\"{}\"", "(".repeat(1000))));
        assert!(too_deep(&format!("a\"{}\"", "(".repeat(1000)), Grammar::Lenient).is_some());
    }
}
