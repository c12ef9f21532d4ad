//! The options of the server, their defaults, and their three sources: file, environment, flags.

mod keys;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use engine::error::Remedy;
use engine::{Error, Result};
use serde::{Deserialize, Serialize};

pub use keys::{KeyConfig, Role, check_keys};

/// The options of the server. A TOML file has these names, the environment has `MICPQ_SERVE_NAME`. Flags override the
/// environment, and the environment overrides the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServeConfig {
    /// Address and port. Port 0 chooses a free one. Default: 127.0.0.1:6380.
    pub listen: SocketAddr,
    /// Paths of indexes by name.
    pub indexes: BTreeMap<String, PathBuf>,
    /// Directory of indexes and backups created over HTTP. Indexes in it are served too. Without it none can be created.
    pub data: Option<PathBuf>,
    /// API keys. Without keys everybody who reaches the address may do everything.
    pub keys: Vec<KeyConfig>,
    /// The file that the options came from. It is read again when it changes.
    #[serde(skip)]
    pub file: Option<PathBuf>,
    /// What overrides the file, also when it is read again.
    #[serde(skip)]
    pub overrides: Overrides,
    /// Allows an address that other machines can reach without keys. Default: false.
    pub open: bool,
    /// PEM file with the certificate chain. With `tls_key` it enables TLS.
    pub tls_certificate: Option<PathBuf>,
    /// PEM file with the private key.
    pub tls_key: Option<PathBuf>,
    /// Origins whose pages may call the server from a browser; `*` is all. Default: none.
    pub cors_origins: Vec<String>,
    /// Accepted names in the Host header beside those of `listen`; `*` is any. The check stops DNS rebinding: without keys
    /// a foreign page could reach a local server under a name of its own.
    pub hosts: Vec<String>,

    /// Maximum size of a JSON body, in bytes. Default: 32 MiB.
    pub max_body_bytes: usize,
    /// Maximum size of all bodies in memory, in bytes; further requests get 429. The same limit holds for the waiting
    /// writes of an index. Default: 256 MiB.
    pub max_bodies_bytes: usize,
    /// Maximum size of an answer, in bytes; a longer answer is refused. Default: 64 MiB.
    pub max_answer_bytes: usize,
    /// Maximum size of all answers that wait to be read, in bytes; further requests get 429. Default: 256 MiB.
    pub max_answers_bytes: usize,
    /// Maximum size of the text of a document or query, and of a line of a stream, in bytes. Default: 1 MiB.
    pub max_text_bytes: usize,
    /// Maximum number of documents in a JSON upsert. Default: 10000.
    pub max_documents: usize,
    /// Maximum number of queries in a batch, and of texts in an embedding request. Default: 1000.
    pub max_queries: usize,
    /// Maximum number of requests that wait for an index; further requests get 429. Default: 1024.
    pub queue: usize,
    /// Maximum number of open connections. The limit of open files may lower it. A new connection closes the one that has
    /// been idle longest; if none is idle, it waits. Default: 1024.
    pub max_connections: usize,
    /// Embedding requests encoded at once; up to `queue` others wait. Default: 2.
    pub max_embeddings: usize,
    /// Streams of documents read at once; further streams get 429. Default: 8.
    pub max_streams: usize,
    /// Time limit of a request, and of silence in a stream, in seconds. Default: 30.
    pub timeout_seconds: f64,
    /// Time that an answer waits in all for a client that reads less than 32 KiB per second, in seconds; then the server closes
    /// the connection. Default: 30.
    pub answer_timeout_seconds: f64,
    /// Time that a stop waits for accepted requests, in seconds. Default: 30.
    pub shutdown_seconds: f64,
    /// Time before that in which new requests are still accepted while `/readyz` answers 503, in seconds, so that a load
    /// balancer sends them elsewhere first. Default: 0.
    pub drain_seconds: f64,

    /// Maximum number of queries in one encoder pass and one scan. Default: 64.
    pub batch: usize,
    /// Time that a batch waits for requests whose body is still being read, in milliseconds. A single query never waits.
    /// Default: 2.
    pub batch_window_ms: f64,
    /// Maximum number of documents in a commit. A commit takes what is waiting. Default: 4096.
    pub commit_documents: usize,
    /// Time without a write until the server releases the writer lock for other programs, in seconds. Default: 10.
    pub writer_idle_seconds: f64,
    /// Time between two checks for commits of other programs, in seconds. Default: 1.
    pub reload_seconds: f64,
    /// Whether `/readyz` answers 503 while an index cannot be opened. Default: false, `/readyz` names the index and answers
    /// 200, so that the other indexes stay reachable behind a load balancer.
    pub ready_needs_all: bool,

    /// `text` for people, `json` for programs. Default: `text`.
    pub log_format: LogFormat,
    /// Log filter in the syntax of tracing: `info`, `warn,serve=debug`. Default: `info`.
    pub log: String,
    /// Whether the log has a line for every request. Requests that fail with status 500 or above are always logged. Default:
    /// false.
    pub access_log: bool,
    /// OTLP/HTTP address of an OpenTelemetry collector for traces, such as `http://127.0.0.1:4318/v1/traces`. Default: none.
    pub telemetry: Option<String>,
    /// Directory that caches vectors and checkpoints of training. Default: below the user's cache directory.
    pub cache: Option<PathBuf>,
}

impl Default for ServeConfig {
    fn default() -> Self {
        ServeConfig {
            listen: SocketAddr::from(([127, 0, 0, 1], 6380)),
            indexes: BTreeMap::new(),
            data: None,
            keys: Vec::new(),
            file: None,
            overrides: Overrides::default(),
            open: false,
            tls_certificate: None,
            tls_key: None,
            cors_origins: Vec::new(),
            hosts: Vec::new(),
            max_body_bytes: 32 << 20,
            max_bodies_bytes: 256 << 20,
            max_answer_bytes: 64 << 20,
            max_answers_bytes: 256 << 20,
            max_text_bytes: 1 << 20,
            max_documents: 10_000,
            max_queries: 1000,
            queue: 1024,
            max_connections: 1024,
            max_embeddings: 2,
            max_streams: 8,
            timeout_seconds: 30.0,
            answer_timeout_seconds: 30.0,
            shutdown_seconds: 30.0,
            drain_seconds: 0.0,
            batch: 64,
            batch_window_ms: 2.0,
            commit_documents: 4096,
            writer_idle_seconds: 10.0,
            reload_seconds: 1.0,
            ready_needs_all: false,
            log_format: LogFormat::Text,
            log: "info".into(),
            access_log: false,
            telemetry: None,
            cache: None,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Options that override those of the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    environment: toml::Table,
    /// They override the environment too.
    flags: toml::Table,
}

/// Prefix of the options in the environment.
pub const ENVIRONMENT: &str = "MICPQ_SERVE_";

impl ServeConfig {
    /// Merges the file, the environment and the flags, and validates the result. Flags override the environment, and the
    /// environment overrides the file.
    pub fn load(
        file: Option<&Path>,
        environment: impl Iterator<Item = (String, String)>,
        flags: toml::Table,
    ) -> Result<ServeConfig> {
        let named = environment
            .filter_map(|(name, value)| Some((name.strip_prefix(ENVIRONMENT)?.to_ascii_lowercase(), value_of(&value))));
        Self::read(file, Overrides { environment: named.collect(), flags })
    }

    /// The options that the file gives now, under the same overrides. `None` without a file.
    pub fn read_again(&self) -> Option<Result<ServeConfig>> {
        self.file.as_deref().map(|file| Self::read(Some(file), self.overrides.clone()))
    }

    fn read(file: Option<&Path>, overrides: Overrides) -> Result<ServeConfig> {
        let mut table = match file {
            None => toml::Table::new(),
            Some(path) => {
                let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
                text.parse().map_err(|e: toml::de::Error| Error::config(format!("{}: {e}", path.display())))?
            }
        };
        table.extend(overrides.environment.clone());
        for (name, value) in overrides.flags.clone() {
            match (table.get_mut(&name), value) {
                // Indexes of flags are added to those of the file.
                (Some(toml::Value::Table(old)), toml::Value::Table(new)) => old.extend(new),
                (_, value) => drop(table.insert(name, value)),
            }
        }
        let mut config: ServeConfig = toml::Value::Table(table).try_into().map_err(|e: toml::de::Error| {
            let from = file.map_or(String::new(), |path| format!(" (file {})", path.display()));
            Error::config(format!("options of the server{from}: {}", e.to_string().trim_end()))
        })?;
        (config.file, config.overrides) = (file.map(Path::to_owned), overrides);
        config.validate()?;
        Ok(config)
    }

    /// Refuses options that are out of range or contradict each other.
    pub fn validate(&self) -> Result<()> {
        for name in self.indexes.keys() {
            check_name(name)?;
        }
        if !self.listen.ip().is_loopback() && self.keys.is_empty() && !self.open {
            return Err(Error::config(format!(
                "other machines can reach {} and there are no keys; add a key, listen on 127.0.0.1, or allow everybody with open = true",
                self.listen
            ))
            .remedied(Remedy::MakeKey));
        }
        if self.tls_certificate.is_some() != self.tls_key.is_some() {
            return Err(Error::config("TLS needs both tls_certificate and tls_key"));
        }
        if let Some(address) =
            self.telemetry.as_deref().filter(|a| !a.starts_with("http://") && !a.starts_with("https://"))
        {
            return Err(Error::option(
                "telemetry",
                format!(
                    "is {address:?}, not the address of a collector; write it like http://127.0.0.1:4318/v1/traces"
                ),
            ));
        }
        check_keys(&self.keys)?;
        for (name, value) in [
            ("max_body_bytes", self.max_body_bytes),
            ("max_bodies_bytes", self.max_bodies_bytes),
            ("max_answer_bytes", self.max_answer_bytes),
            ("max_answers_bytes", self.max_answers_bytes),
            ("max_text_bytes", self.max_text_bytes),
            ("max_documents", self.max_documents),
            ("max_queries", self.max_queries),
            ("queue", self.queue),
            ("max_connections", self.max_connections),
            ("max_embeddings", self.max_embeddings),
            ("max_streams", self.max_streams),
            ("batch", self.batch),
            ("commit_documents", self.commit_documents),
        ] {
            if value == 0 {
                return Err(Error::option(name, "is 0; it must be at least 1"));
            }
        }
        for (total_name, total, name, value) in [
            ("max_bodies_bytes", self.max_bodies_bytes, "max_body_bytes", self.max_body_bytes),
            ("max_answers_bytes", self.max_answers_bytes, "max_answer_bytes", self.max_answer_bytes),
        ] {
            if total < value {
                return Err(Error::option(
                    total_name,
                    format!("is {total}, less than {name}, which is {value}; raise {total_name} or lower {name}"),
                ));
            }
        }
        for (name, value, min, max) in [
            ("timeout_seconds", self.timeout_seconds, 0.001, 86_400.0),
            ("answer_timeout_seconds", self.answer_timeout_seconds, 0.001, 86_400.0),
            ("shutdown_seconds", self.shutdown_seconds, 0.0, 86_400.0),
            ("drain_seconds", self.drain_seconds, 0.0, 86_400.0),
            ("batch_window_ms", self.batch_window_ms, 0.0, 1000.0),
            ("writer_idle_seconds", self.writer_idle_seconds, 0.0, 1e9),
            ("reload_seconds", self.reload_seconds, 0.01, 1e9),
        ] {
            if !(min..=max).contains(&value) {
                return Err(Error::option(name, format!("is {value}; it must be between {min} and {max}")));
            }
        }
        Ok(())
    }

    pub fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.timeout_seconds)
    }
}

/// The value of an environment variable or `--set` flag. What is not TOML is a string.
pub fn value_of(text: &str) -> toml::Value {
    match format!("value = {text}").parse::<toml::Table>() {
        Ok(mut table) if table.len() == 1 => table.remove("value").expect("the only name"),
        _ => toml::Value::String(text.to_owned()),
    }
}

/// Maximum length of an index name, in characters.
pub const MAX_NAME_CHARS: usize = 64;

/// Refuses a name that is not safe in a URL and in a file path.
pub fn check_name(name: &str) -> Result<()> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    let begins_well = name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    if !begins_well || name.len() > MAX_NAME_CHARS || !name.bytes().all(allowed) {
        return Err(Error::config(format!(
            "\"{}\" cannot name an index; use 1 to {MAX_NAME_CHARS} letters, digits, '_', '-' and '.', beginning with a letter or digit",
            name.chars().take(80).collect::<String>()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(file: &str, environment: &[(&str, &str)], flags: &str) -> Result<ServeConfig> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("serve.toml");
        std::fs::write(&path, file).unwrap();
        let environment = environment.iter().map(|(n, v)| (n.to_string(), v.to_string()));
        ServeConfig::load(Some(&path), environment, flags.parse().unwrap())
    }

    #[test]
    fn flags_override_the_environment_and_it_overrides_the_file() {
        let file = "queue = 5\nbatch = 7\nlog = \"warn\"\n[indexes]\na = \"/a\"\n";
        let environment = [("MICPQ_SERVE_BATCH", "8"), ("MICPQ_SERVE_LISTEN", "127.0.0.1:0"), ("HOME", "/root")];
        let config = load(file, &environment, "batch = 9\n[indexes]\nb = \"/b\"").unwrap();
        assert_eq!((config.queue, config.batch, config.log.as_str()), (5, 9, "warn"));
        assert_eq!(config.listen, "127.0.0.1:0".parse().unwrap());
        assert_eq!(config.indexes.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(load(file, &environment[..1], "").unwrap().batch, 8);
        let empty = load("", &[], "").unwrap();
        assert!(empty.file.as_ref().is_some_and(|file| file.ends_with("serve.toml")));
        assert_eq!(ServeConfig { file: None, ..empty }, ServeConfig::default());
    }

    #[test]
    fn wrong_options_are_refused_by_name() {
        let hash = "0".repeat(64);
        for (file, word) in [
            ("quue = 5".into(), "quue"),
            ("queue = 0".into(), "queue is 0"),
            ("queue = \"many\"".into(), "invalid type"),
            ("listen = \"0.0.0.0:80\"".into(), "add a key"),
            ("tls_key = \"k.pem\"".into(), "tls_certificate"),
            ("timeout_seconds = nan".into(), "timeout_seconds"),
            ("max_bodies_bytes = 1000".into(), "max_body_bytes"),
            ("max_answers_bytes = 1000".into(), "max_answer_bytes"),
            ("telemetry = \"localhost:4317\"".into(), "4318/v1/traces"),
            ("[indexes]\n\"../a\" = \"/a\"".into(), "cannot name an index"),
            ("[[keys]]\nname = \"a\"\nsha256 = \"12\"\nrole = \"read\"".into(), "64 hex digits"),
            ("[[keys]]\nname = \"a\"\nsha256 = \"12\"\nrole = \"king\"".into(), "king"),
            (
                format!("{0}{0}", format_args!("[[keys]]\nname = \"a\"\nsha256 = \"{hash}\"\nrole = \"read\"\n")),
                "two keys",
            ),
        ] {
            let error = load(&file, &[], "").unwrap_err();
            assert!(matches!(error, Error::Config { .. }) && error.to_string().contains(word), "{file}: {error}");
        }
        load("listen = \"0.0.0.0:80\"\nopen = true", &[], "").unwrap();
    }

    #[test]
    fn environment_values_are_toml_or_strings() {
        assert_eq!(value_of("5"), toml::Value::Integer(5));
        assert_eq!(value_of("true"), toml::Value::Boolean(true));
        assert_eq!(value_of("/a/b"), toml::Value::String("/a/b".into()));
        assert_eq!(value_of("1\nqueue = 2"), toml::Value::String("1\nqueue = 2".into()));
        assert!(value_of("[\"a\"]").is_array());
    }
}
