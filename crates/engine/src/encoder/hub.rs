//! Files of the Hugging Face hub, through its shared cache.
//!
//! Written by hand, because the crate hf-hub neither resumes a file, nor tells a missing file from a failing server, nor checks
//! what it got. The layout of the cache is that of huggingface_hub, so Python programs and this one share every file:
//!
//! ```text
//! models--org--name/refs/main                  the commit that a revision is
//! models--org--name/blobs/ETAG                 a file's bytes
//! models--org--name/snapshots/COMMIT/FILE      a link to them
//! .locks/models--org--name/ETAG.lock           locked while the bytes are fetched
//! ```

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sha1::Sha1;
use sha2::{Digest, Sha256};
use ureq::http::Response;
use ureq::{Agent, Body};

use super::agent::agent_config;
use super::cache::{cache_dir, is_offline, link, make_parent, token, variable};
use crate::progress::Progress;
use crate::{Error, Result, disk};

#[cfg(test)]
#[path = "hub_tests.rs"]
mod tests;

const ENDPOINT: &str = "https://huggingface.co";
/// Maximum time without data from a server.
const TIMEOUT: Duration = Duration::from_secs(30);
/// A failing server or a cut connection is tried again so often, after waits that double.
const TRIES: u32 = 5;
const FIRST_WAIT: Duration = Duration::from_millis(200);
/// A hub that says how long to wait is obeyed up to this time.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// How often a wait looks for an interrupt.
const LOOK: Duration = Duration::from_millis(100);
/// Redirects of a request.
const MAX_REDIRECTS: usize = 5;
/// Bytes between two checks for an interrupt.
const STEP: usize = 64 << 10;

/// A repository of the hub at a revision.
pub struct Hub<'a> {
    endpoint: String,
    /// `org/name`.
    name: String,
    revision: String,
    // models--org--name
    cache: PathBuf,
    offline: bool,
    token: Option<String>,
    agent: Agent,
    progress: &'a dyn Progress,
}

/// The hub's record of a file.
struct Meta {
    commit: String,
    etag: String,
    bytes: Option<u64>,
    /// Where its bytes are.
    address: String,
}

/// What the answers to one question say about a file, the last one first.
#[derive(Default)]
struct Said {
    commit: Option<String>,
    linked_etag: Option<String>,
    etag: Option<String>,
    bytes: Option<u64>,
}

impl Said {
    fn hear(&mut self, response: &Response<Body>) {
        let put = |place: &mut Option<String>, name: &str| {
            *place = header(response, name).or_else(|| place.take());
        };
        put(&mut self.commit, "x-repo-commit");
        put(&mut self.linked_etag, "x-linked-etag");
        put(&mut self.etag, "etag");
        // The length of a redirect is that of its own text.
        let length = || header(response, "content-length").filter(|_| response.status().as_u16() == 200);
        let bytes = header(response, "x-linked-size").or_else(length).and_then(|size| size.parse().ok());
        self.bytes = bytes.or(self.bytes);
    }
}

/// Why a request gave no file.
enum Failure {
    /// There is no such file; other files may be there.
    NoFile,
    /// Trying again may help, after the time that the server asks for.
    Passing(String, Option<Duration>),
    Final(Error),
}

impl Failure {
    fn passing(problem: impl Into<String>) -> Self {
        Failure::Passing(problem.into(), None)
    }
}

/// Splits `org/name@revision`; the revision is `main` by default. None if it is not a name of the hub.
pub fn parse_name(name: &str) -> Option<(&str, &str)> {
    let (repository, revision) = name.split_once('@').unwrap_or((name, "main"));
    let (org, own) = repository.split_once('/')?;
    let good = |part: &str| {
        let plain = part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
        plain && !part.is_empty() && !part.starts_with(['.', '-']) && !part.contains("..")
    };
    (good(org) && good(own) && !revision.is_empty() && revision.split('/').all(good)).then_some((repository, revision))
}

impl<'a> Hub<'a> {
    /// The repository `org/name@revision`. Settings are those of huggingface_hub: `HF_ENDPOINT`, `HF_TOKEN` or the token file,
    /// `HF_HUB_CACHE` or `HF_HOME`, and `HF_HUB_OFFLINE`.
    pub fn open(name: &str, progress: &'a dyn Progress) -> Result<Self> {
        let (repository, revision) = parse_name(name).ok_or_else(|| {
            Error::config(format!("\"{name}\" is not a name of the hub; expected org/name or org/name@revision"))
        })?;
        // Redirects are followed by hand: a token must not go to another host.
        let config = agent_config(TIMEOUT)?.max_redirects(0).http_status_as_error(false);
        Ok(Hub {
            endpoint: variable("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.into()).trim_end_matches('/').to_owned(),
            name: repository.to_owned(),
            revision: revision.to_owned(),
            cache: cache_dir()?.join(format!("models--{}", repository.replace('/', "--"))),
            offline: is_offline(),
            token: token(),
            agent: Agent::new_with_config(config.build()),
            progress,
        })
    }

    fn failed(&self, problem: impl std::fmt::Display) -> Error {
        Error::input(format!("encoder {}", self.name), problem.to_string())
    }

    /// The path of a file in the cache, fetched if it is not there. `None` if the repository has no such file.
    pub fn file(&self, file: &str) -> Result<Option<PathBuf>> {
        if self.offline {
            return self.cached(file);
        }
        let mut wait = FIRST_WAIT;
        for attempt in 1.. {
            if self.progress.interrupted() {
                return Err(Error::Interrupted);
            }
            match self.ask(file).and_then(|meta| self.take(file, &meta)) {
                Ok(path) => return Ok(Some(path)),
                Err(Failure::NoFile) => return Ok(None),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Passing(problem, _)) if attempt == TRIES => {
                    return Err(self.failed(format!(
                        "{file} could not be fetched from the hub ({}): {problem}; check the connection and pull again, what has arrived is kept",
                        self.endpoint
                    )));
                }
                Err(Failure::Passing(problem, asked)) => {
                    let time = waiting_time(wait, asked);
                    let again = match asked {
                        Some(_) => format!("trying again in {} s", time.as_secs_f64().ceil()),
                        None => "trying again".to_owned(),
                    };
                    self.progress.note(&format!("{file}: {problem}; {again}"));
                    self.sleep(time)?;
                    wait *= 2;
                }
            }
        }
        unreachable!("the last attempt returns")
    }

    fn sleep(&self, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        loop {
            if self.progress.interrupted() {
                return Err(Error::Interrupted);
            }
            match until.saturating_duration_since(Instant::now()) {
                Duration::ZERO => return Ok(()),
                left => std::thread::sleep(left.min(LOOK)),
            }
        }
    }

    /// The path of a file that an earlier download left.
    fn cached(&self, file: &str) -> Result<Option<PathBuf>> {
        let reference = self.cache.join("refs").join(&self.revision);
        let commit =
            std::fs::read_to_string(&reference).map_or_else(|_| self.revision.clone(), |c| c.trim().to_owned());
        let snapshot = self.cache.join("snapshots").join(commit);
        if !snapshot.is_dir() {
            return Err(self.failed(format!(
                "is not in the cache ({}), and HF_HUB_OFFLINE forbids to fetch it; unset it, or copy the encoder here",
                self.cache.display()
            )));
        }
        Ok(Some(snapshot.join(file)).filter(|path| path.exists()))
    }

    /// Asks for a file's commit, checksum and address. Redirects on the same host are the hub's own: to the new name of a
    /// repository, or to where it has its small files. What an answer on the way says about the file counts where the last one
    /// is silent.
    fn ask(&self, file: &str) -> std::result::Result<Meta, Failure> {
        let mut address = format!("{}/{}/resolve/{}/{file}", self.endpoint, self.name, self.revision);
        let mut said = Said::default();
        for _ in 0..MAX_REDIRECTS {
            let mut request = self.agent.head(&address).header("Accept-Encoding", "identity");
            if let Some(token) = &self.token {
                request = request.header("Authorization", format!("Bearer {token}"));
            }
            let response = request.call().map_err(|e| Failure::passing(e.to_string()))?;
            let status = response.status().as_u16();
            said.hear(&response);
            match (status, header(&response, "location")) {
                (301..=308, Some(to)) => {
                    let to =
                        joined(&address, &to).ok_or_else(|| Failure::passing(format!("the hub redirects to {to}")))?;
                    if !same_host(&to, &address) {
                        return self.meta(said, to);
                    }
                    address = to;
                }
                (200, _) => return self.meta(said, address),
                _ => return Err(self.refusal(file, &response)),
            }
        }
        Err(Failure::Final(self.failed(format!("{file}: more than {MAX_REDIRECTS} redirects; check HF_ENDPOINT"))))
    }

    fn meta(&self, said: Said, address: String) -> std::result::Result<Meta, Failure> {
        let broken =
            |what: &str| Failure::Final(self.failed(format!("the hub's answer has no {what}; check HF_ENDPOINT")));
        let etag = said.linked_etag.or(said.etag).ok_or_else(|| broken("ETag"))?;
        let etag = etag.trim_start_matches("W/").trim_matches('"').to_owned();
        let commit = said.commit.ok_or_else(|| broken("X-Repo-Commit"))?;
        // They become names of files.
        if [&etag, &commit]
            .iter()
            .any(|name| name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'))
        {
            return Err(broken("usable ETag and X-Repo-Commit"));
        }
        Ok(Meta { commit, etag, bytes: said.bytes, address })
    }

    fn refusal(&self, file: &str, response: &Response<Body>) -> Failure {
        let (status, code) = (response.status().as_u16(), header(response, "x-error-code"));
        let gated = || {
            let advice = match &self.token {
                None => "set HF_TOKEN to a token that may read it, or write one to the token file (\"hf auth login\")",
                Some(_) => {
                    "the token of HF_TOKEN or of the token file may not read it: accept its terms on its page, or use another"
                }
            };
            Failure::Final(self.failed(format!(
                "the hub refuses {file} ({status}): the encoder is private, gated, or does not exist; {advice}. Its page: {}/{}",
                self.endpoint, self.name
            )))
        };
        match (status, code.as_deref()) {
            (404, Some("EntryNotFound") | None) => Failure::NoFile,
            (404, Some("RevisionNotFound")) => {
                Failure::Final(self.failed(format!("has no revision {}; look at its page", self.revision)))
            }
            (401 | 403, _) | (404, Some("RepoNotFound" | "GatedRepo")) => gated(),
            (404, Some(code)) => Failure::Final(self.failed(format!("{file}: the hub answers 404, {code}"))),
            (408 | 429 | 500.., _) => Failure::Passing(format!("the hub answers {status}"), retry_after(response)),
            _ => {
                Failure::Final(self.failed(format!("{file}: the hub answers {status}; check the name and HF_ENDPOINT")))
            }
        }
    }

    /// Brings a file into the cache and returns its path in the snapshot.
    fn take(&self, file: &str, meta: &Meta) -> std::result::Result<PathBuf, Failure> {
        let blob = self.cache.join("blobs").join(&meta.etag);
        let own = |error: Error| Failure::Final(error);
        if !blob.exists() {
            make_parent(&blob).map_err(own)?;
            let _locked = self.lock(file, &meta.etag).map_err(own)?;
            // Another process may have fetched it meanwhile.
            if !blob.exists() {
                self.download(file, meta, &blob)?;
            }
        }
        let place = self.cache.join("snapshots").join(&meta.commit).join(file);
        // Relative, so that the cache can be moved as a whole.
        let up = "../".repeat(2 + file.matches('/').count());
        link(&blob, Path::new(&format!("{up}blobs/{}", meta.etag)), &place).map_err(own)?;
        // A commit is its own name, as huggingface_hub has it.
        if self.revision != meta.commit {
            let reference = self.cache.join("refs").join(&self.revision);
            make_parent(&reference).map_err(own)?;
            disk::replace(&reference, meta.commit.as_bytes()).map_err(own)?;
        }
        Ok(place)
    }

    /// Waits until no other process fetches these bytes. The lock is that of Python programs too.
    fn lock(&self, file: &str, etag: &str) -> Result<File> {
        let (cache, name) = (self.cache.parent(), self.cache.file_name());
        let locks = cache.zip(name).map(|(cache, name)| cache.join(".locks").join(name)).expect("it is in the cache");
        let path = locks.join(format!("{etag}.lock"));
        make_parent(&path)?;
        let lock = OpenOptions::new().create(true).append(true).open(&path).map_err(Error::io(&path))?;
        let mut told = false;
        loop {
            match lock.try_lock() {
                // A file system without locks: the checksum still tells damage.
                Ok(()) | Err(TryLockError::Error(_)) => return Ok(lock),
                Err(TryLockError::WouldBlock) => {
                    if !told {
                        self.progress.note(&format!("{file}: another program fetches it; waiting"));
                        told = true;
                    }
                    self.sleep(LOOK)?;
                }
            }
        }
    }

    /// Downloads a file, from where an earlier attempt stopped.
    fn download(&self, file: &str, meta: &Meta, blob: &Path) -> std::result::Result<(), Failure> {
        let part = disk::beside(blob, ".incomplete");
        let io = |e: std::io::Error| Failure::Final(Error::io(&part)(e));
        let mut have = std::fs::metadata(&part).map_or(0, |m| m.len());
        if meta.bytes.is_some_and(|bytes| have > bytes) {
            std::fs::remove_file(&part).map_err(io)?;
            have = 0;
        }
        if have == 0 || meta.bytes != Some(have) {
            self.append(file, meta, &part, have)?;
        }
        let found = std::fs::metadata(&part).map_err(io)?.len();
        if let Some(bytes) = meta.bytes.filter(|bytes| *bytes != found) {
            return Err(Failure::passing(format!("{found} of {bytes} bytes have arrived")));
        }
        let bytes = crate::mmap::Map::open(&part).map_err(Failure::Final)?;
        if let Some((kind, hash)) = checksum(&meta.etag, &bytes).filter(|(_, hash)| *hash != meta.etag) {
            std::fs::remove_file(&part).map_err(io)?;
            return Err(Failure::passing(format!("has {kind} {hash}, expected {}: damaged on the way", meta.etag)));
        }
        std::fs::rename(&part, blob).map_err(io)
    }

    /// Appends the bytes from `have` on to `part`.
    fn append(&self, file: &str, meta: &Meta, part: &Path, have: u64) -> std::result::Result<(), Failure> {
        let io = |e: std::io::Error| Failure::Final(Error::io(part)(e));
        let mut address = meta.address.clone();
        let mut redirects = 0;
        let response = loop {
            let mut request = self.agent.get(&address).header("Accept-Encoding", "identity");
            if have > 0 {
                request = request.header("Range", format!("bytes={have}-"));
            }
            if let Some(token) = self.token.as_ref().filter(|_| same_host(&address, &self.endpoint)) {
                request = request.header("Authorization", format!("Bearer {token}"));
            }
            let response = request.call().map_err(|e| Failure::passing(e.to_string()))?;
            match (response.status().as_u16(), header(&response, "location")) {
                (301..=308, Some(to)) if redirects < MAX_REDIRECTS => {
                    redirects += 1;
                    address = joined(&address, &to).ok_or_else(|| Failure::passing(format!("redirects to {to}")))?;
                }
                _ => break response,
            }
        };
        let (mut out, mut have) = match response.status().as_u16() {
            206 => (OpenOptions::new().create(true).append(true).open(part).map_err(io)?, have),
            // The server does not continue: from the start.
            200 => (File::create(part).map_err(io)?, 0),
            416 => {
                std::fs::remove_file(part).map_err(io)?;
                return Err(Failure::passing("the server does not continue the file"));
            }
            401 | 403 => return Err(self.refusal(file, &response)),
            status @ (408 | 429 | 500..) => {
                return Err(Failure::Passing(format!("the server answers {status}"), retry_after(&response)));
            }
            status => {
                return Err(Failure::Final(self.failed(format!("{file}: the server of its bytes answers {status}"))));
            }
        };
        self.progress.stage(&format!("fetching {file}"), meta.bytes);
        self.progress.advance(have);
        let mut body = response.into_body().into_reader();
        let mut step = vec![0; STEP];
        loop {
            if self.progress.interrupted() {
                return Err(Failure::Final(Error::Interrupted));
            }
            let count = match body.read(&mut step) {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                other => {
                    other.map_err(|e| Failure::passing(format!("the connection broke after {have} bytes: {e}")))?
                }
            };
            if count == 0 {
                break;
            }
            have += count as u64;
            if meta.bytes.is_some_and(|bytes| have > bytes) {
                drop(out);
                std::fs::remove_file(part).map_err(io)?;
                return Err(Failure::passing("is longer than the hub says"));
            }
            out.write_all(&step[..count]).map_err(io)?;
            self.progress.advance(count as u64);
        }
        out.sync_all().map_err(io)
    }
}

fn header(response: &Response<Body>, name: &str) -> Option<String> {
    Some(response.headers().get(name)?.to_str().ok()?.to_owned())
}

/// The time that a busy server asks to wait, in seconds. A date is left aside.
fn retry_after(response: &Response<Body>) -> Option<Duration> {
    header(response, "retry-after")?.trim().parse().ok().map(Duration::from_secs)
}

/// How long to wait: `own`, or what a server asks for within bounds.
fn waiting_time(own: Duration, asked: Option<Duration>) -> Duration {
    asked.map_or(own, |asked| asked.min(MAX_WAIT).max(own))
}

/// The checksum that an ETag is, of `bytes`: SHA-256 of large files, git's name of small ones.
fn checksum(etag: &str, bytes: &[u8]) -> Option<(&'static str, String)> {
    match etag.len() {
        64 => Some(("SHA-256", hex::encode(Sha256::digest(bytes)))),
        40 => {
            let hash = Sha1::new().chain_update(format!("blob {}\0", bytes.len())).chain_update(bytes);
            Some(("git's SHA-1", hex::encode(hash.finalize())))
        }
        _ => None,
    }
}

fn joined(base: &str, to: &str) -> Option<String> {
    url::Url::parse(base).ok()?.join(to).ok().map(Into::into)
}

fn same_host(a: &str, b: &str) -> bool {
    let host = |address: &str| {
        let address = url::Url::parse(address).ok()?;
        Some((address.scheme().to_owned(), address.host_str()?.to_owned(), address.port_or_known_default()))
    };
    host(a).is_some() && host(a) == host(b)
}
