//! The shape of a code: how many books, how many words in each, how wide a word.

use crate::{Error, Result};

/// `books` x `words` x `dim`. Everything else about a code's size is derived from these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CodeShape {
    books: usize,
    words: usize,
    dim: usize,
}

impl CodeShape {
    /// Checks and makes a shape. `words` is 2 to 256: a word number fills 1 bit of two words, 4 of up to 16, 8 of more.
    pub fn new(books: usize, words: usize, dim: usize) -> Result<Self> {
        if !(2..=256).contains(&words) {
            return Err(Error::config(format!("a codebook has 2 to 256 words, not {words}")));
        }
        if books == 0 || books > 1024 || dim == 0 || dim > 65_536 {
            return Err(Error::config(format!(
                "a code has 1 to 1024 books of 1 to 65536 dimensions, not {books} of {dim}"
            )));
        }
        Ok(CodeShape { books, words, dim })
    }

    /// Any number of words, for training that only looks which word is nearest: such a code cannot be packed.
    pub fn unpacked(books: usize, words: usize, dim: usize) -> Result<Self> {
        if books == 0 || !(2..=65_536).contains(&words) || dim == 0 {
            return Err(Error::config(format!("{books} books of {words} words of {dim} dimensions describe nothing")));
        }
        Ok(CodeShape { books, words, dim })
    }

    /// The paper's shape for a code of `bits`: books of 16 words, 24 dimensions each.
    pub fn micpq(bits: usize) -> Result<Self> {
        match bits {
            16 | 32 | 64 | 128 => CodeShape::new(bits / 4, 16, 24),
            _ => Err(Error::config(format!("codes have 16, 32, 64 or 128 bits, not {bits}"))),
        }
    }

    /// Number of codebooks, M.
    pub fn books(self) -> usize {
        self.books
    }

    /// Codewords in a book, K.
    pub fn words(self) -> usize {
        self.words
    }

    /// Dimensions of a codeword.
    pub fn dim(self) -> usize {
        self.dim
    }

    /// Values in a refined vector.
    pub fn width(self) -> usize {
        self.books * self.dim
    }

    /// Bits of a word number.
    pub fn word_bits(self) -> usize {
        match self.words {
            2 => 1,
            ..=16 => 4,
            _ => 8,
        }
    }

    /// Bits of a code.
    pub fn bits(self) -> usize {
        self.books * self.word_bits()
    }

    /// Bytes of a packed code.
    pub fn code_bytes(self) -> usize {
        self.bits().div_ceil(8)
    }

    /// Word number of `book` in a packed code: book `m` begins at bit `m * word_bits`, low bits first, so with 16
    /// words the low nibble is the even book.
    pub fn word(self, code: &[u8], book: usize) -> usize {
        let bit = book * self.word_bits();
        (code[bit / 8] as usize >> (bit % 8)) & ((1 << self.word_bits()) - 1)
    }

    /// Writes the word number of `book` into a packed code whose bits there are still zero.
    pub fn set_word(self, code: &mut [u8], book: usize, word: usize) {
        debug_assert!(word < self.words);
        let bit = book * self.word_bits();
        code[bit / 8] |= (word << (bit % 8)) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_and_low_nibble_is_the_even_book() {
        for (books, words) in [(32, 2), (5, 2), (8, 16), (7, 16), (4, 256), (6, 3), (3, 100)] {
            let shape = CodeShape::new(books, words, 24).unwrap();
            let mut code = vec![0; shape.code_bytes()];
            for m in 0..books {
                shape.set_word(&mut code, m, (m * 7 + 3) % words);
            }
            assert!((0..books).all(|m| shape.word(&code, m) == (m * 7 + 3) % words));
        }
        let shape = CodeShape::micpq(16).unwrap();
        let mut code = [0; 2];
        shape.set_word(&mut code, 0, 0xA);
        shape.set_word(&mut code, 1, 0x5);
        assert_eq!(code, [0x5A, 0]);
    }
}
