//! Files of the Hugging Face hub, through its shared cache.
//!
//! Written by hand, because the crate hf-hub neither resumes a file, nor tells a missing file from a failing server, nor checks
//! what it got. The layout of the cache is that of huggingface_hub, so Python programs and this one share every file:
//!
//! ```text
//! models--org--name/refs/main                  the commit that a revision is
//! models--org--name/blobs/ETAG                 a file's bytes
//! models--org--name/snapshots/COMMIT/FILE      a link to them
//! ```

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};
use ureq::http::Response;
use ureq::{Agent, Body};

use super::agent::agent_config;
use crate::progress::Progress;
use crate::{Error, Result, disk};

const ENDPOINT: &str = "https://huggingface.co";
/// Maximum time without data from a server.
const TIMEOUT: Duration = Duration::from_secs(30);
/// A failing server or a cut connection is tried again so often, after waits that double.
const TRIES: u32 = 5;
const FIRST_WAIT: Duration = Duration::from_millis(200);
/// Relative redirects of a request: a repository that was renamed.
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

/// Why a request gave no file.
enum Failure {
    /// There is no such file; other files may be there.
    NoFile,
    /// Trying again may help.
    Passing(String),
    Final(Error),
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
            offline: ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"].iter().any(|name| {
                variable(name).is_some_and(|value| matches!(&*value.to_ascii_lowercase(), "1" | "true" | "yes" | "on"))
            }),
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
                Err(Failure::Passing(problem)) if attempt == TRIES => {
                    return Err(self.failed(format!(
                        "{file} could not be fetched from the hub ({}): {problem}; check the connection and pull again, what has arrived is kept",
                        self.endpoint
                    )));
                }
                Err(Failure::Passing(problem)) => {
                    self.progress.note(&format!("{file}: {problem}; trying again"));
                    std::thread::sleep(wait);
                    wait *= 2;
                }
            }
        }
        unreachable!("the last attempt returns")
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

    /// Asks for a file's commit, checksum and address.
    fn ask(&self, file: &str) -> std::result::Result<Meta, Failure> {
        let mut address = format!("{}/{}/resolve/{}/{file}", self.endpoint, self.name, self.revision);
        for _ in 0..MAX_REDIRECTS {
            let mut request = self.agent.head(&address).header("Accept-Encoding", "identity");
            if let Some(token) = &self.token {
                request = request.header("Authorization", format!("Bearer {token}"));
            }
            let response = request.call().map_err(|e| Failure::Passing(e.to_string()))?;
            let location = header(&response, "location");
            match (response.status().as_u16(), &location) {
                // The repository has moved: the hub itself answers there.
                (301..=308, Some(to)) if !to.contains("://") && header(&response, "x-repo-commit").is_none() => {
                    address = joined(&address, to).ok_or_else(|| Failure::Passing(format!("redirects to {to}")))?;
                }
                (200 | 301..=308, _) => return self.meta(&response, &address, location),
                (status, _) => return Err(self.refusal(file, status, &header(&response, "x-error-code"))),
            }
        }
        Err(Failure::Final(self.failed(format!("{file}: more than {MAX_REDIRECTS} redirects; check HF_ENDPOINT"))))
    }

    fn meta(
        &self,
        response: &Response<Body>,
        address: &str,
        location: Option<String>,
    ) -> std::result::Result<Meta, Failure> {
        let broken =
            |what: &str| Failure::Final(self.failed(format!("the hub's answer has no {what}; check HF_ENDPOINT")));
        let etag =
            header(response, "x-linked-etag").or_else(|| header(response, "etag")).ok_or_else(|| broken("ETag"))?;
        let etag = etag.trim_start_matches("W/").trim_matches('"').to_owned();
        let commit = header(response, "x-repo-commit").ok_or_else(|| broken("X-Repo-Commit"))?;
        // They become names of files.
        if [&etag, &commit]
            .iter()
            .any(|name| name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'))
        {
            return Err(broken("usable ETag and X-Repo-Commit"));
        }
        let size = header(response, "x-linked-size").or_else(|| header(response, "content-length"));
        let address = match location {
            Some(to) => joined(address, &to).ok_or_else(|| broken("usable Location"))?,
            None => address.to_owned(),
        };
        Ok(Meta { commit, etag, bytes: size.and_then(|size| size.parse().ok()), address })
    }

    fn refusal(&self, file: &str, status: u16, code: &Option<String>) -> Failure {
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
            (408 | 429 | 500.., _) => Failure::Passing(format!("the hub answers {status}")),
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
            self.download(file, meta, &blob)?;
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
            return Err(Failure::Passing(format!("{found} of {bytes} bytes have arrived")));
        }
        // Large files are named by their SHA-256, small ones by a checksum of git.
        if meta.etag.len() == 64 {
            let hash = hex::encode(Sha256::digest(&crate::mmap::Map::open(&part).map_err(Failure::Final)?[..]));
            if hash != meta.etag {
                std::fs::remove_file(&part).map_err(io)?;
                return Err(Failure::Passing(format!(
                    "has SHA-256 {hash}, expected {}: damaged on the way",
                    meta.etag
                )));
            }
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
            let response = request.call().map_err(|e| Failure::Passing(e.to_string()))?;
            match (response.status().as_u16(), header(&response, "location")) {
                (301..=308, Some(to)) if redirects < MAX_REDIRECTS => {
                    redirects += 1;
                    address = joined(&address, &to).ok_or_else(|| Failure::Passing(format!("redirects to {to}")))?;
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
                return Err(Failure::Passing("the server does not continue the file".into()));
            }
            status @ (401 | 403) => return Err(self.refusal(file, status, &None)),
            status @ (408 | 429 | 500..) => return Err(Failure::Passing(format!("the server answers {status}"))),
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
                    other.map_err(|e| Failure::Passing(format!("the connection broke after {have} bytes: {e}")))?
                }
            };
            if count == 0 {
                break;
            }
            have += count as u64;
            if meta.bytes.is_some_and(|bytes| have > bytes) {
                drop(out);
                std::fs::remove_file(part).map_err(io)?;
                return Err(Failure::Passing("is longer than the hub says".into()));
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

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn home() -> Result<PathBuf> {
    if let Some(home) = variable("HF_HOME") {
        return Ok(PathBuf::from(home));
    }
    let cache = variable("XDG_CACHE_HOME").map(PathBuf::from);
    let own =
        || Some(PathBuf::from(std::env::var_os("HOME").or_else(|| std::env::var_os("USERPROFILE"))?).join(".cache"));
    let cache = cache.or_else(own).ok_or_else(|| {
        Error::config("neither HF_HOME nor HOME is set; set HF_HOME to the directory for files of the hub")
    })?;
    Ok(cache.join("huggingface"))
}

/// The cache of the hub that all programs of this user share.
fn cache_dir() -> Result<PathBuf> {
    let named = variable("HF_HUB_CACHE").or_else(|| variable("HUGGINGFACE_HUB_CACHE"));
    named.map_or_else(|| Ok(home()?.join("hub")), |dir| Ok(PathBuf::from(dir)))
}

fn token() -> Option<String> {
    let given = variable("HF_TOKEN").or_else(|| variable("HUGGING_FACE_HUB_TOKEN"));
    let file = || variable("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| Some(home().ok()?.join("token")));
    let token = given.or_else(|| std::fs::read_to_string(file()?).ok())?;
    Some(token.trim().to_owned()).filter(|token| !token.is_empty())
}

fn make_parent(path: &Path) -> Result<()> {
    let parent = path.parent().expect("it is below the cache");
    std::fs::create_dir_all(parent).map_err(Error::io(parent))
}

/// Makes `place` a link to `file`, with the text `to`; a second name or a copy where there are no links.
pub fn link(file: &Path, to: &Path, place: &Path) -> Result<()> {
    make_parent(place)?;
    if place.exists() {
        return Ok(());
    }
    // A link whose file is gone.
    let _ = std::fs::remove_file(place);
    #[cfg(unix)]
    let linked = std::os::unix::fs::symlink(to, place);
    #[cfg(not(unix))]
    let linked = std::io::Result::Err(std::io::ErrorKind::Unsupported.into());
    linked
        .or_else(|_: std::io::Error| std::fs::hard_link(file, place))
        .or_else(|_| std::fs::copy(file, place).map(drop))
        .map_err(Error::io(place))
}
