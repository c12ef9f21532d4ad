//! Memory aligned to cache lines.
//!
//! A large `Vec` begins 16 bytes after the start of a page, so every 64-byte load from it touches two cache lines. AMX suffers
//! most: 28 ns per product of tiles instead of 9 (a Xeon, 384 inputs, rows and weights in the second-level cache).

use std::ops::{Deref, DerefMut};

const CACHE_LINE_BYTES: usize = 64;

/// Values that begin at the start of a cache line.
#[derive(Debug, Default)]
pub struct Aligned<T> {
    // One cache line longer than the values, which begin at `start`. Moving a `Vec` does not move its memory, so the alignment
    // holds.
    space: Vec<T>,
    start: usize,
    len: usize,
}

impl<T: Copy + Default> Aligned<T> {
    /// `len` default values.
    pub fn new(len: usize) -> Self {
        let space = vec![T::default(); len + CACHE_LINE_BYTES / size_of::<T>().max(1)];
        // `align_offset` may fail only in constant evaluation. Any start is correct then: the alignment is only for speed.
        let start = space.as_ptr().align_offset(CACHE_LINE_BYTES).min(space.len() - len);
        Aligned { space, start, len }
    }

    /// Sets the length to `len` and returns values of unspecified content. Existing memory is reused where it suffices.
    pub fn space(&mut self, len: usize) -> &mut [T] {
        if self.space.len() < self.start + len {
            *self = Aligned::new(len);
        }
        self.len = len;
        self
    }
}

impl<T> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.space[self.start..self.start + self.len]
    }
}

impl<T> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.space[self.start..self.start + self.len]
    }
}

impl<T: Copy + Default> Clone for Aligned<T> {
    fn clone(&self) -> Self {
        let mut other = Aligned::new(self.len);
        other.copy_from_slice(self);
        other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_aligned_and_survive_clones_and_reuse() {
        for len in [0, 1, 15, 1000, 100_000] {
            let mut values = Aligned::<f32>::new(len);
            assert_eq!((values.len(), values.as_ptr() as usize % CACHE_LINE_BYTES), (len, 0));
            values.iter_mut().enumerate().for_each(|(i, v)| *v = i as f32);
            let other = values.clone();
            assert_eq!(other.as_ptr() as usize % CACHE_LINE_BYTES, 0);
            assert_eq!(other[..], values[..]);
        }
        let mut bytes = Aligned::<u8>::default();
        assert!(bytes.is_empty());
        let first = bytes.space(100).as_ptr();
        assert_eq!(first as usize % CACHE_LINE_BYTES, 0);
        assert_eq!((bytes.space(50).as_ptr(), bytes.len()), (first, 50));
        assert_eq!((bytes.space(100).as_ptr(), bytes.len()), (first, 100));
    }
}
