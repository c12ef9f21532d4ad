//! Embeddings of a service with OpenAI's `POST /v1/embeddings`: another server, or micpq itself.
//!
//! The tokens of a text are its bytes here, so that everything that works on tokens (caches, training, queries) works on texts of a
//! service too. Its vectors are cached by model and text in the user's cache directory: a service costs time and money.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
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
use super::pull;
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
/// A service that answered once.
pub struct Service {
    address: String,
    config: ServiceConfig,
    key: Option<String>,
    agent: Agent,
    width: usize,
    cache: Mutex<Cache>,
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
        };
        if service.width == 0 {
            let row = service.request(&["width"], progress)?.remove(0);
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
        tokens: &[impl AsRef<[u32]> + Sync],
        views: &[Option<Dropout>],
        progress: &dyn Progress,
    ) -> Result<Vec<Matrix>> {
        let clean = self.encode(tokens, progress)?;
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

    fn encode(&self, tokens: &[impl AsRef<[u32]> + Sync], progress: &dyn Progress) -> Result<Matrix> {
        let texts: Vec<String> = tokens.iter().map(|ids| from_tokens(ids.as_ref())).collect();
        let keys: Vec<Key> = texts.iter().map(|text| key(text)).collect();
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
            let rows = self.request(&batch.iter().map(|&i| &*texts[i]).collect::<Vec<_>>(), progress)?;
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
    fn request(&self, texts: &[&str], progress: &dyn Progress) -> Result<Vec<Vec<f32>>> {
        // A service refuses empty texts.
        let texts: Vec<&str> = texts.iter().map(|text| if text.is_empty() { " " } else { text }).collect();
        let mut body = serde_json::json!({ "model": self.config.model, "input": texts, "encoding_format": "float" });
        if let Some(dimensions) = self.config.dimensions {
            body["dimensions"] = dimensions.into();
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

/// Half of the SHA-256 of a text.
type Key = [u8; 16];

fn key(text: &str) -> Key {
    let hash = Sha256::digest(text);
    hash[..16].try_into().expect("a SHA-256 has 32 bytes")
}

fn cache_file(address: &str, config: &ServiceConfig) -> Result<PathBuf> {
    let models = pull::models_dir()?;
    let folder = models.parent().map_or_else(|| PathBuf::from("cache"), Path::to_path_buf).join("services");
    let name = hex::encode(&Sha256::digest(format!("{address}|{}", config.sha256()))[..8]);
    Ok(folder.join(format!("{name}.vectors")))
}

/// Vectors that a service gave. The file has the width (8 bytes), then a key and a vector each, little-endian. What a killed
/// process left behind the last whole vector is cut off.
struct Cache {
    path: PathBuf,
    width: usize,
    rows: HashMap<Key, Vec<f32>>,
}

impl Cache {
    fn open(path: &Path) -> Result<Self> {
        let mut cache = Cache { path: path.to_path_buf(), width: 0, rows: HashMap::new() };
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(cache),
            Err(e) => return Err(Error::io(path)(e)),
        };
        let Some((width, records)) = bytes.split_first_chunk::<8>() else { return Ok(cache) };
        let width = u64::from_le_bytes(*width);
        if !(1..=1 << 20).contains(&width) {
            return Err(Error::format(path, "is not a cache of vectors; remove it"));
        }
        cache.width = width as usize;
        for record in records.chunks_exact(16 + 4 * cache.width) {
            let (key, values) = record.split_first_chunk::<16>().expect("a record begins with its key");
            let row = values.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
            cache.rows.insert(*key, row);
        }
        let whole = 8 + records.len() / (16 + 4 * cache.width) * (16 + 4 * cache.width);
        if whole < bytes.len() {
            let file = OpenOptions::new().write(true).open(path).map_err(Error::io(path))?;
            file.set_len(whole as u64).map_err(Error::io(path))?;
        }
        Ok(cache)
    }

    fn begin(&mut self, width: usize) -> Result<()> {
        let folder = self.path.parent().expect("it is in a folder");
        std::fs::create_dir_all(folder).map_err(Error::io(folder))?;
        let mut file = File::create(&self.path).map_err(Error::io(&self.path))?;
        file.write_all(&(width as u64).to_le_bytes()).map_err(Error::io(&self.path))?;
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
        // One write: two processes append whole records.
        let mut file = OpenOptions::new().append(true).open(&self.path).map_err(Error::io(&self.path))?;
        file.write_all(&bytes).map_err(Error::io(&self.path))
    }
}
