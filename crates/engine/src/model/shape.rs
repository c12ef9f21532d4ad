//! The shape of a code: number of codebooks, codewords of each, dimensions of a codeword.

use crate::{Error, Result};

/// `num_codebooks` x `codebook_size` x `dim`. Everything else about a code's size is derived from these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CodeShape {
    // Models of format 1 and 2 say `books` and `words`.
    #[serde(alias = "books")]
    num_codebooks: usize,
    #[serde(alias = "words")]
    codebook_size: usize,
    dim: usize,
}

impl CodeShape {
    /// Checks and makes a shape. `codebook_size` is 2 to 256. A codeword number takes 1 bit with two codewords, 4 with up to 16, 8
    /// with more.
    pub fn new(num_codebooks: usize, codebook_size: usize, dim: usize) -> Result<Self> {
        if !(2..=256).contains(&codebook_size) {
            return Err(Error::config(format!("a codebook has 2 to 256 codewords, not {codebook_size}")));
        }
        if num_codebooks == 0 || num_codebooks > 1024 || dim == 0 || dim > 65_536 {
            return Err(Error::config(format!(
                "a code has 1 to 1024 codebooks of 1 to 65536 dimensions, not {num_codebooks} of {dim}"
            )));
        }
        Ok(CodeShape { num_codebooks, codebook_size, dim })
    }

    /// Any codebook size, for training that only needs the nearest codeword: such a code cannot be packed.
    pub fn unpacked(num_codebooks: usize, codebook_size: usize, dim: usize) -> Result<Self> {
        if num_codebooks == 0 || !(2..=65_536).contains(&codebook_size) || dim == 0 {
            return Err(Error::config(format!(
                "{num_codebooks} codebooks of {codebook_size} codewords of {dim} dimensions describe nothing"
            )));
        }
        Ok(CodeShape { num_codebooks, codebook_size, dim })
    }

    /// The paper's shape for a code of `bits`: codebooks of 16 codewords of 24 dimensions.
    pub fn micpq(bits: usize) -> Result<Self> {
        match bits {
            16 | 32 | 64 | 128 => CodeShape::new(bits / 4, 16, 24),
            _ => Err(Error::config(format!("codes have 16, 32, 64 or 128 bits, not {bits}"))),
        }
    }

    /// Number of codebooks, M.
    pub fn num_codebooks(self) -> usize {
        self.num_codebooks
    }

    /// Codewords of a codebook, K.
    pub fn codebook_size(self) -> usize {
        self.codebook_size
    }

    pub fn dim(self) -> usize {
        self.dim
    }

    /// Values in a projected vector.
    pub fn width(self) -> usize {
        self.num_codebooks * self.dim
    }

    /// Bits of a codeword number.
    pub fn codeword_bits(self) -> usize {
        match self.codebook_size {
            2 => 1,
            ..=16 => 4,
            _ => 8,
        }
    }

    pub fn bits(self) -> usize {
        self.num_codebooks * self.codeword_bits()
    }

    pub fn code_bytes(self) -> usize {
        self.bits().div_ceil(8)
    }

    /// Codeword number of `codebook` in a packed code. Codebook `m` begins at bit `m * codeword_bits`, low bits first, so with
    /// 16 codewords the low nibble is the even codebook.
    pub fn codeword(self, code: &[u8], codebook: usize) -> usize {
        let bit = codebook * self.codeword_bits();
        (code[bit / 8] as usize >> (bit % 8)) & ((1 << self.codeword_bits()) - 1)
    }

    /// Writes the codeword number of `codebook` into a packed code whose bits there are still zero.
    pub fn set_codeword(self, code: &mut [u8], codebook: usize, codeword: usize) {
        debug_assert!(codeword < self.codebook_size);
        let bit = codebook * self.codeword_bits();
        code[bit / 8] |= (codeword << (bit % 8)) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codewords_round_trip_and_the_low_nibble_is_the_even_codebook() {
        for (num_codebooks, codebook_size) in [(32, 2), (5, 2), (8, 16), (7, 16), (4, 256), (6, 3), (3, 100)] {
            let shape = CodeShape::new(num_codebooks, codebook_size, 24).unwrap();
            let mut code = vec![0; shape.code_bytes()];
            for m in 0..num_codebooks {
                shape.set_codeword(&mut code, m, (m * 7 + 3) % codebook_size);
            }
            assert!((0..num_codebooks).all(|m| shape.codeword(&code, m) == (m * 7 + 3) % codebook_size));
        }
        let shape = CodeShape::micpq(16).unwrap();
        let mut code = [0; 2];
        shape.set_codeword(&mut code, 0, 0xA);
        shape.set_codeword(&mut code, 1, 0x5);
        assert_eq!(code, [0x5A, 0]);
    }
}
