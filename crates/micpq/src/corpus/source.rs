//! Bytes of a corpus: a file, standard input or any reader, unpacked.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::config::Format;
use crate::{Error, Result};

/// Large enough that a read costs nothing beside the parsing, small enough for the cache.
const CHUNK: usize = 128 << 10;

/// How a source is packed, told by its first bytes: names lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    Plain,
    Gzip,
    Zstd,
}

impl Packing {
    fn of_content(head: &[u8]) -> Packing {
        match head {
            [0x1f, 0x8b, ..] => Packing::Gzip,
            // The frame's magic number, or that of a skippable frame, with which the seekable variants begin.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Packing::Zstd,
            _ => Packing::Plain,
        }
    }
}

/// An unpacked stream that knows its name and explains its failures.
pub(super) struct Source {
    path: PathBuf,
    packing: Packing,
    reader: Box<dyn BufRead + Send>,
    format: Option<Format>,
    read: Arc<AtomicU64>,
    before: u64,
}

impl Source {
    /// Opens a file; the bytes read from it, packed, are added to `read`.
    pub(super) fn open(path: &Path, read: Arc<AtomicU64>) -> Result<Source> {
        let file = File::open(path).map_err(Error::io(path))?;
        Source::new(path, file, read)
    }

    /// Reads from anything; `path` is its name in messages.
    pub(super) fn new(path: &Path, reader: impl Read + Send + 'static, read: Arc<AtomicU64>) -> Result<Source> {
        let before = read.load(Ordering::Relaxed);
        let counted = Counted { inner: reader, read: read.clone() };
        let buffered: Box<dyn BufRead + Send> = Box::new(BufReader::with_capacity(CHUNK, counted));
        // Four bytes are the longest magic number.
        let (head, reader) = peek(buffered, |head| head.len() >= 4).map_err(Error::io(path))?;
        let packing = Packing::of_content(&head);
        let reader: Box<dyn BufRead + Send> = match packing {
            Packing::Plain => reader,
            Packing::Gzip => Box::new(BufReader::with_capacity(CHUNK, flate2::bufread::MultiGzDecoder::new(reader))),
            Packing::Zstd => {
                let decoder = zstd::stream::read::Decoder::with_buffer(reader).map_err(Error::io(path))?;
                Box::new(BufReader::with_capacity(CHUNK, decoder))
            }
        };
        let mut source = Source { path: path.to_path_buf(), packing, reader, format: None, read, before };
        source.look()?;
        Ok(source)
    }

    /// Looks at the unpacked beginning: the format it shows, a byte order mark to pass over.
    fn look(&mut self) -> Result<()> {
        let reader = std::mem::replace(&mut self.reader, Box::new(io::empty()));
        // Two characters that are not white space decide; a page of white space decides too.
        let enough = |head: &[u8]| head.len() >= 6 && decisive(head) || head.len() > CHUNK;
        let (head, reader) = peek(reader, enough).map_err(|error| self.damage(error))?;
        self.reader = reader;
        match head.as_slice() {
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => {
                return Err(Error::format(
                    &self.path,
                    "this is UTF-16; convert it to UTF-8 first, for instance with iconv -f UTF-16 -t UTF-8",
                ));
            }
            [0xef, 0xbb, 0xbf, rest @ ..] => {
                self.format = Format::of_content(rest);
                self.consume(3);
            }
            head => self.format = Format::of_content(head),
        }
        Ok(())
    }

    /// The name in messages.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The format the beginning shows.
    pub(super) fn format(&self) -> Option<Format> {
        self.format
    }

    /// How the bytes are packed.
    pub(super) fn packing(&self) -> Packing {
        self.packing
    }

    /// What the counter of read bytes stood at before this source added to it.
    pub(super) fn read_before(&self) -> u64 {
        self.before
    }

    /// The bytes at hand, at least one unless the stream has ended.
    pub(super) fn fill(&mut self) -> Result<&[u8]> {
        while let Err(error) = self.reader.fill_buf() {
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(self.damage(error));
            }
        }
        // Asked again because a borrow cannot leave the loop; what is buffered is returned at once.
        self.reader.fill_buf().map_err(Error::io(&self.path))
    }

    /// Marks bytes of the last [`Source::fill`] as read.
    pub(super) fn consume(&mut self, count: usize) {
        self.reader.consume(count);
    }

    /// Appends a line with its break to `buffer`, but at most `limit` bytes; returns whether the line ended there.
    pub(super) fn line(&mut self, buffer: &mut Vec<u8>, limit: usize) -> Result<bool> {
        let read = (&mut self.reader).take(limit as u64).read_until(b'\n', buffer);
        let count = read.map_err(|error| self.damage(error))?;
        Ok(count < limit || buffer.last() == Some(&b'\n'))
    }

    /// Passes over the rest of a line; returns its bytes.
    pub(super) fn skip_line(&mut self) -> Result<usize> {
        self.reader.skip_until(b'\n').map_err(|error| self.damage(error))
    }

    /// Reads all that is left, but at most `limit` bytes.
    pub(super) fn read_up_to(&mut self, limit: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = (&mut self.reader).take(limit as u64).read_to_end(&mut bytes);
        read.map_err(|error| self.damage(error))?;
        Ok(bytes)
    }

    /// Unpacks all that is left into a file without a name.
    pub(super) fn spool(&mut self) -> Result<File> {
        let mut file = tempfile::tempfile().map_err(Error::io(std::env::temp_dir()))?;
        loop {
            let chunk = self.fill()?;
            if chunk.is_empty() {
                return Ok(file);
            }
            let count = chunk.len();
            io::Write::write_all(&mut file, chunk).map_err(Error::io(std::env::temp_dir()))?;
            self.consume(count);
        }
    }

    /// Says what a failed read means: the system's word, or an archive that cannot be unpacked.
    fn damage(&self, source: io::Error) -> Error {
        let archive = match self.packing {
            _ if source.raw_os_error().is_some() => return Error::Io { path: self.path.clone(), source },
            Packing::Plain => return Error::Io { path: self.path.clone(), source },
            Packing::Gzip => "gzip",
            Packing::Zstd => "zstd",
        };
        let read = self.read.load(Ordering::Relaxed);
        Error::format(
            &self.path,
            format!(
                "the {archive} archive is damaged or cut short near its byte {read} ({source}); fetch it or pack it again"
            ),
        )
    }
}

/// Line breaks in a piece of a source, to keep count of lines.
pub(super) fn line_breaks(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|b| **b == b'\n').count() as u64
}

/// Whether the beginning tells the format or never will.
fn decisive(head: &[u8]) -> bool {
    head.iter().filter(|b| !b.is_ascii_whitespace()).nth(1).is_some()
}

/// Reads until `enough` is satisfied or the end, and gives what was read back before the rest. A pipe may bring single
/// bytes, so one look into the buffer would not do.
fn peek(
    mut reader: Box<dyn BufRead + Send>,
    enough: impl Fn(&[u8]) -> bool,
) -> io::Result<(Vec<u8>, Box<dyn BufRead + Send>)> {
    let mut head = Vec::new();
    while !enough(&head) {
        let chunk = match reader.fill_buf() {
            Ok(chunk) => chunk,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if chunk.is_empty() {
            break;
        }
        head.extend_from_slice(chunk);
        let count = chunk.len();
        reader.consume(count);
    }
    Ok((head.clone(), Box::new(Cursor::new(head).chain(reader))))
}

/// Counts what passes.
struct Counted<R> {
    inner: R,
    read: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}
