//! The engine's only `unsafe`: read-only memory maps.

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use crate::{Error, Result};

/// A read-only map of a whole file.
///
/// A mapped file is written under a temporary name, synced, renamed to its final name and never changed afterwards
/// (`docs/format.md`). That makes the map sound. If another program truncates a mapped file, the process gets SIGBUS, as
/// does every program that maps files.
pub struct Map(memmap2::Mmap);

impl Map {
    /// Maps `path`. An empty file gives an empty slice.
    pub fn open(path: &Path) -> Result<Map> {
        let file = File::open(path).map_err(Error::io(path))?;
        // SAFETY: see the type: files are immutable once they have their final name.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(Error::io(path))?;
        Ok(Map(map))
    }

    /// Takes the whole pages of `range` out of this process's memory; of large pages, their neighbours too. Their next use reads
    /// them from the file, or from the system's cache of it.
    ///
    /// # Panics
    /// When the range lies beyond the file.
    pub fn release(&self, range: Range<usize>) {
        let bytes = &self.0[range];
        #[cfg(unix)]
        if let Some(size) = page_size() {
            let (from, to) = (bytes.as_ptr().addr(), bytes.as_ptr().addr() + bytes.len());
            let (from, to) = (from.next_multiple_of(size), to / size * size);
            if from < to {
                // SAFETY: whole pages of this read-only map of a file: they come back with the same bytes.
                unsafe { libc::madvise(from as *mut libc::c_void, to - from, libc::MADV_DONTNEED) };
            }
        }
        #[cfg(not(unix))]
        let _ = bytes;
    }

    /// Bytes of `range` in this process's memory, in whole pages; `None` where the system does not tell.
    ///
    /// # Panics
    /// When the range lies beyond the file.
    pub fn resident(&self, range: Range<usize>) -> Option<usize> {
        resident(&self.0[range])
    }
}

impl std::ops::Deref for Map {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(unix)]
fn page_size() -> Option<usize> {
    // SAFETY: it takes a number and gives a number.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).ok().filter(|size| size.is_power_of_two())
}

/// Linux lists the pages of a process, eight bytes each; the highest bit says whether a page is in memory.
#[cfg(target_os = "linux")]
fn resident(bytes: &[u8]) -> Option<usize> {
    use std::io::{Read, Seek, SeekFrom};

    let size = page_size()?;
    let (from, to) = (bytes.as_ptr().addr(), bytes.as_ptr().addr() + bytes.len());
    let pages = from / size..to.div_ceil(size);
    let mut map = File::open("/proc/self/pagemap").ok()?;
    map.seek(SeekFrom::Start(8 * pages.start as u64)).ok()?;
    let mut entries = vec![0; 8 * pages.len()];
    map.read_exact(&mut entries).ok()?;
    let present = |(page, entry): (usize, &[u8; 8])| {
        // The first and the last page may belong to neighbours too.
        let own = ((page + 1) * size).min(to) - (page * size).max(from);
        if u64::from_le_bytes(*entry) >> 63 == 1 { own } else { 0 }
    };
    Some(pages.zip(entries.as_chunks::<8>().0).map(present).sum())
}

#[cfg(not(target_os = "linux"))]
fn resident(_bytes: &[u8]) -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn released_pages_leave_memory_and_come_back_with_the_same_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let bytes: Vec<u8> = (0..3 << 20).map(|i: u32| (i ^ i >> 9) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let map = Map::open(&path).unwrap();
        assert!(map.to_vec() == bytes);
        let (half, end) = (map.len() / 2 + 100, map.len());
        // Where /proc has no list of pages, nothing is known.
        let Some(all) = map.resident(0..end) else { return };
        assert_eq!(all, end, "every page was read");
        map.release(half..end);
        assert!(map.resident(half..end).unwrap() < 1 << 16, "{:?}", map.resident(half..end));
        assert!(map.to_vec() == bytes);
        assert_eq!(map.resident(0..end), Some(end));
        map.release(5..6);
        map.release(0..0);
    }
}
