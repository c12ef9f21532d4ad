//! A map as bytes, for a page: `docs/map.md` has them.

use super::DocumentMap;

pub const MAGIC: [u8; 8] = *b"MICPQMAP";
pub const VERSION: u32 = 1;

impl DocumentMap {
    /// The magic, the version and the number of points as `u32`, the fingerprint as `u64`, then all `x`, all `y` and all topics
    /// as `u16`; little-endian.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(24 + 6 * self.len());
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(self.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&self.fingerprint.to_le_bytes());
        [&self.x, &self.y, &self.topic].into_iter().flatten().for_each(|v| bytes.extend_from_slice(&v.to_le_bytes()));
        bytes
    }
}
