//! Embeddings of a service with OpenAI's `POST /v1/embeddings`: another server, or micpq itself.
//!
//! The tokens of a text are its bytes here, so that everything that works on tokens (caches, training, queries) works on texts of a
//! service too. Its vectors are cached by model and text in the user's cache directory: a service costs time and money.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use kernels::Backend;
use kernels::dropout::{drop_row, mix};
use parking_lot::Mutex;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use ureq::Agent;

use super::address::{MAX_TEXT_BYTES, ServiceConfig};
use super::agent::agent_config;
use super::forward::Dropout;
use super::{Role, pull};
use crate::progress::Progress;
use crate::{Error, Matrix, Result};

/// Texts per request. Services take up to 2,048, micpq 1,000.
const BATCH: usize = 64;
/// Bytes of texts per request at most, one text apart.
const BATCH_BYTES: usize = 256 << 10;
const TIMEOUT: Duration = Duration::from_secs(120);
const TRIES: u32 = 6;
const FIRST_WAIT: Duration = Duration::from_millis(250);
const MAX_ANSWER_BYTES: u64 = 256 << 20;
const MAX_MODELS_BYTES: u64 = 4 << 20;
/// A service that answered once.
pub struct Service {
    address: String,
    config: ServiceConfig,
    key: Option<String>,
    agent: Agent,
    width: usize,
    cache: Mutex<Cache>,
    // Whether it wants to know which texts are queries. Asked before the first query.
    takes_roles: OnceLock<bool>,
}

impl Service {
    /// The address of `base`, with `/v1/embeddings` where it has no path of its own.
    pub fn address(base: &str) -> Result<String> {
        let bad = |problem: &str| Error::config(format!("encoder {base}: {problem}"));
        let url = url::Url::parse(base).map_err(|e| bad(&format!("is not an address: {e}")))?;
        let loopback = match url.host() {
            Some(url::Host::Ipv4(ip)) => ip.is_loopback(),
            Some(url::Host::Ipv6(ip)) => ip.is_loopback(),
            Some(url::Host::Domain(name)) => name == "localhost",
            None => false,
        };
        if url.scheme() == "http" && !loopback {
            return Err(bad("http is for this machine only, texts and keys would be readable on the way; use https"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(bad("an address must not hold a password; set OPENAI_API_KEY"));
        }
        let path = url.path().trim_end_matches('/');
        let path = match path {
            "" => "/v1/embeddings".to_owned(),
            path if path.ends_with("/embeddings") => path.to_owned(),
            path => format!("{path}/embeddings"),
        };
        Ok(url.join(&path).map_err(|e| bad(&e.to_string()))?.into())
    }

    /// Connects to a service, and asks for one vector to learn their width.
    pub fn open(base: &str, config: &ServiceConfig, progress: &dyn Progress) -> Result<Self> {
        let address = Service::address(base)?;
        // No redirects: a key must not go to another host.
        let agent = agent_config(TIMEOUT)?.max_redirects(0).http_status_as_error(false);
        let cache = Cache::open(&cache_file(&address, config)?)?;
        let mut service = Service {
            address,
            config: config.clone(),
            key: std::env::var("OPENAI_API_KEY").ok().filter(|key| !key.is_empty()),
            agent: Agent::new_with_config(agent.build()),
            width: cache.width,
            cache: Mutex::new(cache),
            takes_roles: OnceLock::new(),
        };
        if service.width == 0 {
            let row = service.request(&["width"], Role::Document, progress)?.remove(0);
            service.width = row.len();
            service.cache.get_mut().begin(row.len())?;
        }
        Ok(service)
    }

    pub fn width(&self) -> usize {
        self.width
    }

    /// The bytes of a text as tokens.
    pub fn tokens(&self, text: &str) -> Vec<u32> {
        let mut end = text.len().min(MAX_TEXT_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.as_bytes()[..end].iter().map(|&b| u32::from(b)).collect()
    }

    /// Views of texts, given by their bytes. A service has no dropout: a view has it in the finished vector.
    pub fn encode_views(
        &self,
        role: Role,
        tokens: &[impl AsRef<[u32]> + Sync],
        views: &[Option<Dropout>],
        progress: &dyn Progress,
    ) -> Result<Vec<Matrix>> {
        let clean = self.encode(self.role(role), tokens, progress)?;
        let dropped = |view: &Option<Dropout>| {
            let mut rows = clean.clone();
            for (i, row) in rows.as_mut_slice().chunks_exact_mut(self.width).enumerate() {
                if let Some((rate, key)) = view.as_ref().map(|view| view.of_vector(i)) {
                    drop_row(Backend::active(), row, mix(mix(key, 0), 0), rate);
                }
            }
            rows
        };
        let out = views.iter().map(dropped).collect();
        progress.advance((tokens.len() * views.len()) as u64);
        Ok(out)
    }

    /// The role that the service is told. One that takes no roles gets all texts alike.
    fn role(&self, role: Role) -> Role {
        match role {
            Role::Query if *self.takes_roles.get_or_init(|| self.is_micpq()) => Role::Query,
            _ => Role::Document,
        }
    }

    /// Whether the service is a micpq server, which puts the prompt of its encoder in front of a query if it is told. Others may
    /// refuse what they do not know.
    fn is_micpq(&self) -> bool {
        let Some(base) = self.address.strip_suffix("/embeddings") else { return false };
        let mut request = self.agent.get(format!("{base}/models"));
        if let Some(key) = &self.key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        let Some(mut response) = request.call().ok().filter(|response| response.status() == 200) else { return false };
        let text = response.body_mut().with_config().limit(MAX_MODELS_BYTES).read_to_string();
        let models: Option<serde_json::Value> = text.ok().and_then(|text| serde_json::from_str(&text).ok());
        let models = models.as_ref().and_then(|list| list["data"].as_array());
        models.into_iter().flatten().any(|model| model["id"] == *self.config.model && model["owned_by"] == "micpq")
    }

    fn encode(&self, role: Role, tokens: &[impl AsRef<[u32]> + Sync], progress: &dyn Progress) -> Result<Matrix> {
        let texts: Vec<String> = tokens.iter().map(|ids| from_tokens(ids.as_ref())).collect();
        let keys: Vec<Key> = texts.iter().map(|text| key(role, text)).collect();
        let mut missing: Vec<usize> = {
            let cache = self.cache.lock();
            (0..texts.len()).filter(|&i| !cache.rows.contains_key(&keys[i])).collect()
        };
        // Equal texts are sent once.
        missing.sort_by_key(|&i| (keys[i], i));
        missing.dedup_by_key(|i| keys[*i]);
        missing.sort_unstable();
        let mut rest = &missing[..];
        while let Some(&first) = rest.first() {
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
            let mut bytes = texts[first].len();
            let more = rest[1..].iter().take(BATCH - 1).take_while(|&&i| {
                bytes += texts[i].len();
                bytes <= BATCH_BYTES
            });
            let (batch, after) = rest.split_at(1 + more.count());
            rest = after;
            let rows = self.request(&batch.iter().map(|&i| &*texts[i]).collect::<Vec<_>>(), role, progress)?;
            if let Some(row) = rows.iter().find(|row| row.len() != self.width) {
                return Err(self.failed(format!(
                    "gave a vector of {} values, before it gave {}",
                    row.len(),
                    self.width
                )));
            }
            let mut cache = self.cache.lock();
            cache.add(batch.iter().map(|&i| keys[i]).zip(rows))?;
        }
        let cache = self.cache.lock();
        let rows = keys.iter().flat_map(|key| &cache.rows[key]).copied().collect();
        Ok(if texts.is_empty() { Matrix::zeros(0, self.width) } else { Matrix::from_vec(self.width, rows) })
    }

    fn failed(&self, problem: impl std::fmt::Display) -> Error {
        Error::input(format!("encoder {} ({})", self.address, self.config.model), problem.to_string())
    }

    /// Vectors of texts, in one request that is repeated while the service is busy or out of reach.
    fn request(&self, texts: &[&str], role: Role, progress: &dyn Progress) -> Result<Vec<Vec<f32>>> {
        // A service refuses empty texts.
        let texts: Vec<&str> = texts.iter().map(|text| if text.is_empty() { " " } else { text }).collect();
        let mut body = serde_json::json!({ "model": self.config.model, "input": texts, "encoding_format": "float" });
        if let Some(dimensions) = self.config.dimensions {
            body["dimensions"] = dimensions.into();
        }
        if role == Role::Query {
            body["input_type"] = "query".into();
        }
        let body = body.to_string();
        let mut wait = FIRST_WAIT;
        for attempt in 1.. {
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
            let problem = match self.post(&body) {
                Ok((200, answer)) => return self.rows(&answer, texts.len()),
                Ok((status @ (408 | 429 | 500..), answer)) => format!("answers {status}: {}", shortened(&answer)),
                Ok((status @ (401 | 403), answer)) => {
                    return Err(self.failed(format!(
                        "answers {status}: {}; set OPENAI_API_KEY to a key that may use this model",
                        shortened(&answer)
                    )));
                }
                Ok((status, answer)) => {
                    return Err(self.failed(format!(
                        "answers {status}: {}; check the address and the name of the model",
                        shortened(&answer)
                    )));
                }
                Err(problem) => problem,
            };
            if attempt == TRIES {
                return Err(self
                    .failed(format!("{problem}; what it has answered is kept, the same command goes on from there")));
            }
            progress.note(&format!("encoder {}: {problem}; trying again", self.address));
            std::thread::sleep(wait);
            wait *= 2;
        }
        unreachable!("the last attempt returns")
    }

    fn post(&self, body: &str) -> std::result::Result<(u16, Vec<u8>), String> {
        let mut request = self.agent.post(&self.address).header("Content-Type", "application/json");
        if let Some(key) = &self.key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        let response = request.send(body).map_err(|e| format!("is out of reach: {e}"))?;
        let status = response.status().as_u16();
        let mut answer = Vec::new();
        let body = response.into_body().into_reader();
        body.take(MAX_ANSWER_BYTES).read_to_end(&mut answer).map_err(|e| format!("broke off: {e}"))?;
        Ok((status, answer))
    }

    fn rows(&self, answer: &[u8], count: usize) -> Result<Vec<Vec<f32>>> {
        #[derive(Deserialize)]
        struct Answer {
            data: Vec<Row>,
        }
        #[derive(Deserialize)]
        struct Row {
            index: usize,
            embedding: Vec<f32>,
        }
        let answer: Answer = serde_json::from_slice(answer)
            .map_err(|e| self.failed(format!("its answer is not one of an embeddings service: {e}")))?;
        let mut rows = vec![Vec::new(); count];
        for row in answer.data {
            let place = rows.get_mut(row.index).ok_or_else(|| self.failed("its answer has a vector of no text"))?;
            *place = row.embedding;
        }
        let width = rows.first().map_or(0, Vec::len);
        if width == 0 || rows.iter().any(|row| row.len() != width || row.iter().any(|v| !v.is_finite())) {
            return Err(self.failed(
                "its answer lacks vectors, or has vectors of different lengths or with values that are no numbers",
            ));
        }
        Ok(rows)
    }
}

fn from_tokens(ids: &[u32]) -> String {
    String::from_utf8_lossy(&ids.iter().map(|&id| id as u8).collect::<Vec<u8>>()).into_owned()
}

fn shortened(answer: &[u8]) -> String {
    const MAX_CHARS: usize = 300;
    let message = serde_json::from_slice::<serde_json::Value>(answer).ok();
    let message = message.as_ref().and_then(|json| json["error"]["message"].as_str().or(json["detail"].as_str()));
    message
        .map_or_else(|| String::from_utf8_lossy(answer).trim().to_owned(), str::to_owned)
        .chars()
        .take(MAX_CHARS)
        .collect()
}

/// Half of the SHA-256 of a text, or of a query with a mark in front that no text begins with.
type Key = [u8; 16];

fn key(role: Role, text: &str) -> Key {
    let mark: &[u8] = if role == Role::Query { b"\xffquery" } else { b"" };
    let hash = Sha256::new().chain_update(mark).chain_update(text).finalize();
    hash[..16].try_into().expect("a SHA-256 has 32 bytes")
}

fn cache_file(address: &str, config: &ServiceConfig) -> Result<PathBuf> {
    let models = pull::models_dir()?;
    let folder = models.parent().map_or_else(|| PathBuf::from("cache"), Path::to_path_buf).join("services");
    let name = hex::encode(&Sha256::digest(format!("{address}|{}", config.sha256()))[..8]);
    Ok(folder.join(format!("{name}.vectors")))
}

/// Vectors that a service gave. The file has the width (8 bytes), then a key and a vector each, little-endian. What a killed
/// process left behind the last whole vector is cut off. Whoever changes the file has it locked.
struct Cache {
    path: PathBuf,
    width: usize,
    rows: HashMap<Key, Vec<f32>>,
}

impl Cache {
    fn open(path: &Path) -> Result<Self> {
        let mut cache = Cache { path: path.to_path_buf(), width: 0, rows: HashMap::new() };
        if !path.exists() {
            return Ok(cache);
        }
        let file = cache.locked()?;
        let bytes = std::fs::read(path).map_err(Error::io(path))?;
        let Some((width, records)) = bytes.split_first_chunk::<WIDTH_BYTES>() else { return Ok(cache) };
        cache.width = read_width(*width, path)?;
        for record in records.chunks_exact(record_bytes(cache.width)) {
            let (key, values) = record.split_first_chunk::<16>().expect("a record begins with its key");
            let row = values.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
            cache.rows.insert(*key, row);
        }
        cache.cut_to_whole_records(&file)?;
        Ok(cache)
    }

    /// The file, locked until it is closed.
    fn locked(&self) -> Result<File> {
        let folder = self.path.parent().expect("it is in a folder");
        std::fs::create_dir_all(folder).map_err(Error::io(folder))?;
        let open = OpenOptions::new().read(true).append(true).create(true).open(&self.path);
        let file = open.map_err(Error::io(&self.path))?;
        match file.lock() {
            // A file system without locks: one process at a time can use it, as before.
            Err(e) if e.kind() != std::io::ErrorKind::Unsupported => Err(Error::io(&self.path)(e)),
            _ => Ok(file),
        }
    }

    fn cut_to_whole_records(&self, file: &File) -> Result<()> {
        let bytes = file.metadata().map_err(Error::io(&self.path))?.len();
        let part = bytes.saturating_sub(WIDTH_BYTES as u64) % record_bytes(self.width) as u64;
        if part > 0 { file.set_len(bytes - part).map_err(Error::io(&self.path)) } else { Ok(()) }
    }

    /// Writes the width of the vectors, unless another process has done so.
    fn begin(&mut self, width: usize) -> Result<()> {
        let mut file = self.locked()?;
        let io = Error::io(&self.path);
        if file.metadata().map_err(Error::io(&self.path))?.len() < WIDTH_BYTES as u64 {
            file.set_len(0).and_then(|()| file.write_all(&(width as u64).to_le_bytes())).map_err(io)?;
        } else {
            let mut found = [0; WIDTH_BYTES];
            file.read_exact(&mut found).map_err(io)?;
            let found = read_width(found, &self.path)?;
            if found != width {
                return Err(Error::format(
                    &self.path,
                    format!("is a cache of vectors of {found} values, the service gives {width}; remove it"),
                ));
            }
        }
        self.width = width;
        Ok(())
    }

    fn add(&mut self, rows: impl Iterator<Item = (Key, Vec<f32>)>) -> Result<()> {
        let mut bytes = Vec::new();
        for (key, row) in rows {
            bytes.extend_from_slice(&key);
            bytes.extend(row.iter().flat_map(|v| v.to_le_bytes()));
            self.rows.insert(key, row);
        }
        let mut file = self.locked()?;
        self.cut_to_whole_records(&file)?;
        file.write_all(&bytes).map_err(Error::io(&self.path))
    }
}

const WIDTH_BYTES: usize = 8;

fn read_width(bytes: [u8; WIDTH_BYTES], path: &Path) -> Result<usize> {
    let width = u64::from_le_bytes(bytes);
    if (1..=1 << 20).contains(&width) {
        Ok(width as usize)
    } else {
        Err(Error::format(path, "is not a cache of vectors; remove it"))
    }
}

/// A key and a vector.
fn record_bytes(width: usize) -> usize {
    size_of::<Key>() + 4 * width
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTH: usize = 3;

    fn row(i: usize) -> (Key, Vec<f32>) {
        (key(Role::Document, &i.to_string()), vec![i as f32; WIDTH])
    }

    #[test]
    fn what_a_killed_process_left_does_not_shift_later_vectors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("services/one.vectors");
        let mut first = Cache::open(&path).unwrap();
        first.begin(WIDTH).unwrap();
        first.add([row(1)].into_iter()).unwrap();
        // Another process is killed within a record, while the first one goes on.
        OpenOptions::new().append(true).open(&path).unwrap().write_all(&[7; 9]).unwrap();
        first.add([row(2)].into_iter()).unwrap();
        let read = Cache::open(&path).unwrap();
        assert_eq!(read.rows, HashMap::from([row(1), row(2)]));
    }

    #[test]
    fn processes_that_open_and_append_together_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("services/one.vectors");
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let path = &path;
                scope.spawn(move || {
                    for i in 0..50 {
                        let mut cache = Cache::open(path).unwrap();
                        cache.begin(WIDTH).unwrap();
                        // Several writes of the system: a process that opens meanwhile sees a part of them.
                        cache.add((0..40).map(|j| row(thread * 10_000 + i * 100 + j))).unwrap();
                    }
                });
            }
        });
        assert_eq!(Cache::open(&path).unwrap().rows.len(), 4 * 50 * 40);
    }

    #[test]
    fn a_cache_of_other_vectors_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("one.vectors");
        Cache::open(&path).unwrap().begin(WIDTH).unwrap();
        let message = Cache::open(&path).unwrap().begin(WIDTH + 1).err().unwrap().to_string();
        assert!(message.contains("of 3 values, the service gives 4"), "{message}");
    }
}
