//! A compact set of the ids seen so far.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hasher};

use roaring::RoaringBitmap;

use super::document::DocId;

/// A set of ids. Numbers below 2^32 are in a bitmap (a bit per id where they are dense), all other ids as 128 bits of hash:
/// among a billion ids the chance that two collide is below 10^-20.
#[derive(Default)]
pub(super) struct Seen {
    numbers: RoaringBitmap,
    names: HashSet<u128>,
}

impl Seen {
    /// Adds an id; `false` if it was there. `7` and `"7"` are the same id: they print alike.
    pub(super) fn insert(&mut self, id: &DocId) -> bool {
        match (id.as_number(), id) {
            (Some(number), _) => match u32::try_from(number) {
                Ok(number) => self.numbers.insert(number),
                Err(_) => self.names.insert(hash(&number.to_le_bytes(), true)),
            },
            (None, DocId::Str(name)) => self.names.insert(hash(name.as_bytes(), false)),
            (None, DocId::Int(_)) => unreachable!("an Int is a number"),
        }
    }
}

fn hash(bytes: &[u8], number: bool) -> u128 {
    let half = |seed: u8| {
        let mut hasher = DefaultHasher::new();
        hasher.write_u8(seed * 2 + u8::from(number));
        hasher.write(bytes);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_id_is_inserted_once() {
        let mut seen = Seen::default();
        let name = |s: &str| DocId::Str(s.into());
        let ids = [
            DocId::Int(7),
            DocId::Int(u64::from(u32::MAX)),
            DocId::Int(1 << 32),
            DocId::Int(u64::MAX),
            name("a"),
            name("07"),
            name("-7"),
            // The bytes of the number 2^32: strings and numbers are hashed differently.
            name("\0\0\0\0\u{1}\0\0\0"),
        ];
        for id in &ids {
            assert!(seen.insert(id), "{id:?}");
        }
        for id in &ids {
            assert!(!seen.insert(id), "{id:?}");
        }
        assert!(!seen.insert(&name("7")));
        assert!(!seen.insert(&name("18446744073709551615")));
    }
}
