//! Memory that begins where a line of it begins.
//!
//! A large `Vec` lies 16 bytes behind the start of a page, and every register of 64 bytes read from it takes two lines. AMX
//! pays most: 28 ns for a product of tiles instead of 9 (a Xeon, 384 inputs, rows and weights in the second-level cache).

use std::ops::{Deref, DerefMut};

/// Bytes of a line.
const LINE: usize = 64;

/// Values, the first of them at the start of a line.
#[derive(Debug, Default)]
pub struct Aligned<T> {
    // As many more as a line holds, and where the values begin. What a `Vec` points at stays where it is when it is moved.
    space: Vec<T>,
    start: usize,
    len: usize,
}

impl<T: Copy + Default> Aligned<T> {
    /// So many values, all zero.
    pub fn new(len: usize) -> Self {
        let space = vec![T::default(); len + LINE / size_of::<T>().max(1)];
        // Where the start cannot be said (only while constants are computed), any will do: nothing but speed hangs on it.
        let start = space.as_ptr().align_offset(LINE).min(space.len() - len);
        Aligned { space, start, len }
    }

    /// Makes it so many values, of which is not said what they are: space that is there is used again.
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
    fn begins_at_a_line_and_keeps_what_is_put_in() {
        for len in [0, 1, 15, 1000, 100_000] {
            let mut values = Aligned::<f32>::new(len);
            assert_eq!((values.len(), values.as_ptr() as usize % LINE), (len, 0));
            values.iter_mut().enumerate().for_each(|(i, v)| *v = i as f32);
            let other = values.clone();
            assert_eq!(other.as_ptr() as usize % LINE, 0);
            assert_eq!(other[..], values[..]);
        }
        let mut bytes = Aligned::<u8>::default();
        assert!(bytes.is_empty());
        let first = bytes.space(100).as_ptr();
        assert_eq!(first as usize % LINE, 0);
        assert_eq!((bytes.space(50).as_ptr(), bytes.len()), (first, 50));
        assert_eq!((bytes.space(100).as_ptr(), bytes.len()), (first, 100));
    }
}
