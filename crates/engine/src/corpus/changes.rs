//! The files of a folder as they are now, and the attributes of documents by which a later look finds what changed.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use super::CorpusConfig;
use super::extract::{Extract, Kind};
use super::folder::Walk;
use crate::{Error, Result};

/// Attribute of a document: a hash of the path of the folder that its file is below.
pub const FOLDER: &str = "folder";
/// Attribute of a document: the file it was read from, below the folder.
pub const FILE: &str = "file";
/// Attribute of a document: a hash of that file's content, and of the command that extracted its text.
pub const FILE_HASH: &str = "file_hash";

/// A folder as in the attribute [`FOLDER`]. A hash, because whoever searches need not know where files are.
pub fn folder_hash(root: &Path) -> Result<String> {
    let path = fs::canonicalize(root).map_err(Error::io(root))?;
    Ok(hex::encode(&Sha256::digest(path.as_os_str().as_encoded_bytes())[..8]))
}

/// A file below a folder, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderFile {
    pub path: PathBuf,
    /// Its path below the folder, as in the attribute [`FILE`].
    pub name: String,
    /// As in the attribute [`FILE_HASH`].
    pub hash: String,
}

/// Hashes of files that were computed before. A file with the same size and time of change is not read again.
#[derive(Clone, Debug, Default)]
pub struct FileHashes {
    known: HashMap<PathBuf, (Stamp, String)>,
    read: usize,
}

/// Size and time of the last change.
type Stamp = (u64, SystemTime);

/// The clock of a file system may be this coarse: a file that is younger can change without a new time.
const COARSE: Duration = Duration::from_secs(2);

impl FileHashes {
    /// Number of files that were read.
    pub fn read(&self) -> usize {
        self.read
    }

    fn of(&mut self, path: &Path, metadata: &fs::Metadata, commands: &[Extract]) -> Result<String> {
        let stamp = metadata.modified().ok().map(|changed| (metadata.len(), changed));
        if let (Some(stamp), Some((known, hash))) = (stamp, self.known.get(path))
            && *known == stamp
        {
            return Ok(hash.clone());
        }
        self.known.remove(path);
        let began = SystemTime::now();
        let hash = content_hash(path, commands)?;
        self.read += 1;
        if let Some(stamp) = stamp.filter(|(_, changed)| began.duration_since(*changed).is_ok_and(|age| age > COARSE)) {
            self.known.insert(path.to_path_buf(), (stamp, hash.clone()));
        }
        Ok(hash)
    }
}

/// The files below a folder in the order of their names, and those that cannot be read, with the reason.
pub fn files_below(
    root: &Path,
    config: &CorpusConfig,
    hashes: &mut FileHashes,
) -> Result<(Vec<FolderFile>, Vec<String>)> {
    let (mut files, mut unread) = (Vec::new(), Vec::new());
    for (path, metadata) in Walk::new(root)? {
        let below = path.strip_prefix(root).unwrap_or(&path);
        let parts: Option<Vec<&str>> = below.iter().map(|part| part.to_str()).collect();
        let hash = metadata.map_err(Error::io(&path)).and_then(|about| hashes.of(&path, &about, &config.extract));
        match (parts, hash) {
            (Some(parts), Ok(hash)) => {
                let name = parts.join("/");
                files.push(FolderFile { path, name, hash });
            }
            (None, _) => unread.push(format!("{}: the name is not UTF-8; rename the file", path.display())),
            (_, Err(error)) => unread.push(error.to_string()),
        }
    }
    Ok((files, unread))
}

/// A hash of a file's content, and of the command that would extract its text.
pub(super) fn content_hash(path: &Path, commands: &[Extract]) -> Result<String> {
    let mut file = fs::File::open(path).map_err(Error::io(path))?;
    let mut hash = Sha256::new();
    if let Kind::Command(command) = Kind::of(path, commands) {
        hash.update(command.to_string());
    }
    let mut buffer = vec![0; 128 << 10];
    loop {
        match io::Read::read(&mut file, &mut buffer).map_err(Error::io(path))? {
            0 => return Ok(hex::encode(&hash.finalize()[..16])),
            count => hash.update(&buffer[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_again_only_if_its_size_or_time_changed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.md");
        let write = |text: &str, age: u64| {
            fs::write(&path, text).unwrap();
            let file = fs::File::options().write(true).open(&path).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
        };
        let mut hashes = FileHashes::default();
        let mut look = || {
            let (files, unread) = files_below(dir.path(), &CorpusConfig::default(), &mut hashes).unwrap();
            assert!(unread.is_empty() && files.len() == 1, "{unread:?}");
            (files[0].hash.clone(), hashes.read())
        };
        write("one", 100);
        let (one, read) = look();
        assert_eq!((read, look()), (1, (one.clone(), 1)));
        // The same size at another time.
        write("two", 50);
        let (two, read) = look();
        assert_ne!(one, two);
        assert_eq!((read, look().1), (2, 2));
        // Too young to be trusted: it is read at every look.
        write("six", 0);
        assert_eq!((look().1, look().1), (3, 4));
    }
}
