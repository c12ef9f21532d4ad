//! The bytes of a corpus, decompressed: from a file, standard input or any reader.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::config::Format;
use crate::{Error, Result, disk};

/// Large enough that a read costs little compared with parsing, small enough for the cache.
const CHUNK: usize = 128 << 10;

/// A row over the limit is skipped. A row of more bytes than this is an error, because it is no row.
pub(super) const MAX_SKIPPED_BYTES: usize = 512 << 20;

/// Compression of a source. The first bytes decide, because names may be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub(super) enum Packing {
    Plain,
    Gzip,
    Zstd,
}

impl Packing {
    fn of_content(head: &[u8]) -> Packing {
        match head {
            [0x1f, 0x8b, ..] => Packing::Gzip,
            // The magic number of a frame, or of a skippable frame, with which the seekable variants begin.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Packing::Zstd,
            _ => Packing::Plain,
        }
    }
}

/// A decompressed stream that names its source in errors.
pub(super) struct Source {
    path: PathBuf,
    packing: Packing,
    reader: Box<dyn BufRead + Send>,
    format: Option<Format>,
    read: Arc<AtomicU64>,
    before: u64,
}

impl Source {
    /// Opens a file. The bytes read from it, before decompression, are added to `read`.
    pub(super) fn open(path: &Path, read: Arc<AtomicU64>) -> Result<Source> {
        Source::new(path, disk::open_to_end(path)?, read)
    }

    /// Reads from any reader. `path` is its name in messages.
    pub(super) fn new(path: &Path, reader: impl Read + Send + 'static, read: Arc<AtomicU64>) -> Result<Source> {
        let before = read.load(Ordering::Relaxed);
        let counted = Counted { inner: reader, read: read.clone() };
        let buffered: Box<dyn BufRead + Send> = Box::new(BufReader::with_capacity(CHUNK, counted));
        // The longest magic number has four bytes.
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

    /// Looks at the decompressed beginning: detects the format and skips a byte order mark.
    fn look(&mut self) -> Result<()> {
        let reader = std::mem::replace(&mut self.reader, Box::new(io::empty()));
        // Two characters that are not white space decide; so does a full chunk of white space.
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

    /// The decompressed bytes.
    pub(super) fn into_reader(self) -> Box<dyn BufRead + Send> {
        self.reader
    }

    /// The name shown in messages.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The format that the first bytes imply.
    pub(super) fn format(&self) -> Option<Format> {
        self.format
    }

    pub(super) fn packing(&self) -> Packing {
        self.packing
    }

    /// Value of the counter of read bytes before this source added to it.
    pub(super) fn read_before(&self) -> u64 {
        self.before
    }

    /// Buffered bytes. Empty only at the end of the stream.
    pub(super) fn fill(&mut self) -> Result<&[u8]> {
        while let Err(error) = self.reader.fill_buf() {
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(self.damage(error));
            }
        }
        // A second call, because a borrow cannot leave the loop. It returns the buffered bytes at once.
        self.reader.fill_buf().map_err(Error::io(&self.path))
    }

    /// Marks bytes of the last [`Source::fill`] as read.
    pub(super) fn consume(&mut self, count: usize) {
        self.reader.consume(count);
    }

    /// Appends a line with its break to `buffer`, at most `limit` bytes. Returns whether the line ended within them.
    pub(super) fn line(&mut self, buffer: &mut Vec<u8>, limit: usize) -> Result<bool> {
        let read = (&mut self.reader).take(limit as u64).read_until(b'\n', buffer);
        let count = read.map_err(|error| self.damage(error))?;
        Ok(count < limit || buffer.last() == Some(&b'\n'))
    }

    /// Skips the rest of a line and returns its length in bytes.
    pub(super) fn skip_line(&mut self) -> Result<usize> {
        let skipped = (&mut self.reader).take(MAX_SKIPPED_BYTES as u64).skip_until(b'\n');
        match skipped.map_err(|error| self.damage(error))? {
            MAX_SKIPPED_BYTES => Err(self.endless()),
            count => Ok(count),
        }
    }

    /// Error for a skipped row that does not end.
    pub(super) fn endless(&self) -> Error {
        Error::format(
            &self.path,
            format!("holds a row of more than {MAX_SKIPPED_BYTES} bytes, which is no row; is it of this format?"),
        )
    }

    /// Reads the rest, at most `limit` bytes.
    pub(super) fn read_up_to(&mut self, limit: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = (&mut self.reader).take(limit as u64).read_to_end(&mut bytes);
        read.map_err(|error| self.damage(error))?;
        Ok(bytes)
    }

    /// Decompresses the rest, at most `limit` bytes, into an unnamed temporary file.
    pub(super) fn spool(&mut self, limit: u64) -> Result<File> {
        let mut file = tempfile::tempfile().map_err(Error::io(std::env::temp_dir()))?;
        let mut left = limit;
        loop {
            let chunk = self.fill()?;
            if chunk.is_empty() {
                return Ok(file);
            }
            let count = chunk.len();
            let Some(rest) = left.checked_sub(count as u64) else {
                return Err(Error::format(
                    &self.path,
                    format!(
                        "has more than {limit} bytes unpacked, and this format cannot be read from a stream; unpack it to a plain file, or raise max_unpacked_bytes"
                    ),
                ));
            };
            left = rest;
            io::Write::write_all(&mut file, chunk).map_err(Error::io(std::env::temp_dir()))?;
            self.consume(count);
        }
    }

    /// Error of a failed read: of the operating system, or of a damaged archive.
    fn damage(&self, source: io::Error) -> Error {
        let archive = match self.packing {
            _ if source.raw_os_error().is_some() => return Error::Io { path: self.path.clone(), source },
            Packing::Plain => return Error::Io { path: self.path.clone(), source },
            packed => packed,
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

/// Number of line breaks in a piece of a source.
pub(super) fn line_breaks(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|b| **b == b'\n').count() as u64
}

/// Whether the first bytes suffice to detect the format, or more bytes would not help.
fn decisive(head: &[u8]) -> bool {
    head.iter().filter(|b| !b.is_ascii_whitespace()).nth(1).is_some()
}

/// Reads until `enough` holds or the stream ends, and returns those bytes and a reader that repeats them. A pipe may give
/// single bytes, so one look into the buffer is not enough.
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

/// Counts the bytes that are read.
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
