//! The bytes of `search.bin`, read in order. All numbers are little-endian; every part begins at a multiple of four bytes.

/// A problem, for the page to show.
#[derive(Debug)]
pub struct Problem(pub String);

/// The first bytes of the file.
pub const MAGIC: &[u8; 8] = b"micpqweb";
pub const VERSION: u32 = 1;

pub struct Reader<'a> {
    rest: &'a [u8],
    read: usize,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes, read: 0 }
    }

    pub fn take(&mut self, bytes: usize) -> Result<&'a [u8], Problem> {
        if bytes > self.rest.len() {
            let (have, need) = (self.read + self.rest.len(), self.read + bytes);
            return Err(Problem(format!("search.bin ends at {have} bytes, {need} are needed: it was cut")));
        }
        let (taken, rest) = self.rest.split_at(bytes);
        let padding = (4 - (self.read + bytes) % 4) % 4;
        self.read += bytes + padding;
        self.rest = &rest[padding.min(rest.len())..];
        Ok(taken)
    }

    pub fn number(&mut self) -> Result<usize, Problem> {
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes(bytes.try_into().expect("four bytes")) as usize)
    }

    pub fn floats(&mut self, count: usize) -> Result<Vec<f32>, Problem> {
        let bytes = count.checked_mul(4).ok_or_else(|| Problem("search.bin names a part that is too large".into()))?;
        let values: Vec<f32> =
            self.take(bytes)?.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect();
        match values.iter().all(|value| value.is_finite()) {
            true => Ok(values),
            false => Err(Problem("search.bin holds a value that is not a finite number: it is damaged".into())),
        }
    }

    /// Refuses bytes that no part claims.
    pub fn end(self) -> Result<(), Problem> {
        match self.rest.len() {
            0 => Ok(()),
            more => Err(Problem(format!("search.bin has {more} bytes too many: it belongs to another version"))),
        }
    }
}
