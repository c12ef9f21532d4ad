//! Every option of the server, each default once, and the three places it may come from.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use micpq::{Error, Result};
use serde::{Deserialize, Serialize};

/// How the server runs. A TOML file holds these names; the environment holds them as `MICPQ_SERVE_NAME`; flags win over
/// the environment, and the environment over the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServeConfig {
    /// Address and port; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Indexes by name.
    pub indexes: BTreeMap<String, PathBuf>,
    /// Where indexes and snapshots made over HTTP lie; indexes found here are served too. Without it none can be made.
    pub data: Option<PathBuf>,
    /// Who may do what. Without keys everybody who reaches the address may do everything.
    pub keys: Vec<KeyConfig>,
    /// Listens without keys on an address others can reach.
    pub open: bool,
    /// PEM file with the certificate chain; with `tls_key` the server speaks TLS.
    pub tls_certificate: Option<PathBuf>,
    /// PEM file with the private key.
    pub tls_key: Option<PathBuf>,
    /// Origins whose pages may call from a browser; `*` is all. None unless said.
    pub cors_origins: Vec<String>,
    /// Names in the Host header that are answered beside those of `listen`; `*` is any. Without keys a page elsewhere
    /// could otherwise reach a local server under a name of its own.
    pub hosts: Vec<String>,

    /// Most bytes of a JSON body.
    pub max_body_bytes: usize,
    /// Most bytes of one document's or query's text, and of one line of a stream.
    pub max_text_bytes: usize,
    /// Most documents of one JSON upsert.
    pub max_documents: usize,
    /// Most queries of one batch, and texts of one embedding request.
    pub max_queries: usize,
    /// Requests that may wait for an index; the next one gets 429.
    pub queue: usize,
    /// Connections served at once; more wait to be accepted.
    pub max_connections: usize,
    /// Streams of documents read at once; the next one gets 429.
    pub max_streams: usize,
    /// Seconds a request may take, and a stream may be silent.
    pub timeout_seconds: f64,
    /// Seconds a stop waits for what was accepted.
    pub shutdown_seconds: f64,

    /// Queries answered in one encoder pass and one scan, at most.
    pub batch: usize,
    /// Milliseconds a batch waits for queries that have arrived but are not read yet. A query alone never waits.
    pub batch_window_ms: f64,
    /// Documents of one commit, at most: a commit takes what is waiting.
    pub commit_documents: usize,
    /// Seconds without a write after which the writer's lock is given back, so that other programs can write.
    pub writer_idle_seconds: f64,
    /// Seconds between looks for commits of other programs.
    pub reload_seconds: f64,

    /// `text` for people, `json` for programs.
    pub log_format: LogFormat,
    /// What is logged, in the syntax of tracing: `info`, `warn,serve=debug`.
    pub log: String,
    /// OTLP/HTTP address of an OpenTelemetry collector that gets a trace of every request, like
    /// `http://127.0.0.1:4318/v1/traces`. None unless said.
    pub telemetry: Option<String>,
    /// Where vectors and checkpoints of training are kept; under the user's cache unless said.
    pub cache: Option<PathBuf>,
}

impl Default for ServeConfig {
    fn default() -> Self {
        ServeConfig {
            listen: SocketAddr::from(([127, 0, 0, 1], 6380)),
            indexes: BTreeMap::new(),
            data: None,
            keys: Vec::new(),
            open: false,
            tls_certificate: None,
            tls_key: None,
            cors_origins: Vec::new(),
            hosts: Vec::new(),
            max_body_bytes: 32 << 20,
            max_text_bytes: 1 << 20,
            max_documents: 10_000,
            max_queries: 1000,
            queue: 1024,
            max_connections: 1024,
            max_streams: 8,
            timeout_seconds: 30.0,
            shutdown_seconds: 30.0,
            batch: 64,
            batch_window_ms: 2.0,
            commit_documents: 4096,
            writer_idle_seconds: 10.0,
            reload_seconds: 1.0,
            log_format: LogFormat::Text,
            log: "info".into(),
            telemetry: None,
            cache: None,
        }
    }
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// A line for people.
    #[default]
    Text,
    /// A JSON object a line.
    Json,
}

/// One API key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyConfig {
    /// Who it was given to, for the log.
    pub name: String,
    /// SHA-256 of the key in hex; the key itself is nowhere kept.
    pub sha256: String,
    /// What it may do.
    pub role: Role,
}

/// What a key may do; each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Search and look.
    Read,
    /// Add and delete documents.
    Write,
    /// Make and drop indexes, snapshots, training.
    Admin,
}

impl std::str::FromStr for Role {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "read" => Ok(Role::Read),
            "write" => Ok(Role::Write),
            "admin" => Ok(Role::Admin),
            _ => Err(Error::config(format!("unknown role '{name}'; known: read, write, admin"))),
        }
    }
}

/// What the environment names options by.
pub const ENVIRONMENT: &str = "MICPQ_SERVE_";

impl ServeConfig {
    /// Joins a file, the environment and flags, the later winning, and checks the whole.
    pub fn load(
        file: Option<&Path>,
        environment: impl Iterator<Item = (String, String)>,
        flags: toml::Table,
    ) -> Result<ServeConfig> {
        let mut table = match file {
            None => toml::Table::new(),
            Some(path) => {
                let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
                text.parse().map_err(|e: toml::de::Error| Error::config(format!("{}: {e}", path.display())))?
            }
        };
        for (name, value) in environment {
            let Some(name) = name.strip_prefix(ENVIRONMENT) else { continue };
            table.insert(name.to_ascii_lowercase(), value_of(&value));
        }
        for (name, value) in flags {
            match (table.get_mut(&name), value) {
                // Indexes named by flags stand beside those of the file.
                (Some(toml::Value::Table(old)), toml::Value::Table(new)) => old.extend(new),
                (_, value) => drop(table.insert(name, value)),
            }
        }
        let config: ServeConfig = toml::Value::Table(table).try_into().map_err(|e: toml::de::Error| {
            let from = file.map_or(String::new(), |path| format!(" (file {})", path.display()));
            Error::config(format!("options of the server{from}: {}", e.to_string().trim_end()))
        })?;
        config.validate()?;
        Ok(config)
    }

    /// Refuses what cannot be honoured.
    pub fn validate(&self) -> Result<()> {
        let refuse = |problem: String| Err(Error::Config(problem));
        for name in self.indexes.keys() {
            check_name(name)?;
        }
        if !self.listen.ip().is_loopback() && self.keys.is_empty() && !self.open {
            return refuse(format!(
                "{} can be reached from elsewhere and there are no keys; add some (micpq serve --new-key admin), listen on 127.0.0.1, or allow everybody with open = true",
                self.listen
            ));
        }
        if self.tls_certificate.is_some() != self.tls_key.is_some() {
            return refuse("TLS needs both tls_certificate and tls_key".into());
        }
        if let Some(address) =
            self.telemetry.as_deref().filter(|a| !a.starts_with("http://") && !a.starts_with("https://"))
        {
            return refuse(format!(
                "telemetry = {address:?} is no address of a collector; write it like http://127.0.0.1:4318/v1/traces"
            ));
        }
        let mut names = BTreeSet::new();
        for key in &self.keys {
            if key.sha256.len() != 64 || !key.sha256.bytes().all(|b| b.is_ascii_hexdigit()) {
                return refuse(format!(
                    "key \"{}\": sha256 is not 64 hex digits; it is the hash of the key, which --new-key prints",
                    key.name
                ));
            }
            if !names.insert(&key.name) {
                return refuse(format!("two keys are named \"{}\"; a name tells them apart in the log", key.name));
            }
        }
        for (name, value) in [
            ("max_body_bytes", self.max_body_bytes),
            ("max_text_bytes", self.max_text_bytes),
            ("max_documents", self.max_documents),
            ("max_queries", self.max_queries),
            ("queue", self.queue),
            ("max_connections", self.max_connections),
            ("max_streams", self.max_streams),
            ("batch", self.batch),
            ("commit_documents", self.commit_documents),
        ] {
            if value == 0 {
                return refuse(format!("{name} is 0; it must be at least 1"));
            }
        }
        for (name, value, least, most) in [
            ("timeout_seconds", self.timeout_seconds, 0.001, 86_400.0),
            ("shutdown_seconds", self.shutdown_seconds, 0.0, 86_400.0),
            ("batch_window_ms", self.batch_window_ms, 0.0, 1000.0),
            ("writer_idle_seconds", self.writer_idle_seconds, 0.0, 1e9),
            ("reload_seconds", self.reload_seconds, 0.01, 1e9),
        ] {
            if !(least..=most).contains(&value) {
                return refuse(format!("{name} is {value}; it must lie between {least} and {most}"));
            }
        }
        Ok(())
    }

    /// How long a request may take.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.timeout_seconds)
    }
}

/// The value an environment variable or a `--set` flag holds: TOML where it is that, a string otherwise.
pub fn value_of(text: &str) -> toml::Value {
    match format!("value = {text}").parse::<toml::Table>() {
        Ok(mut table) if table.len() == 1 => table.remove("value").expect("the only name"),
        _ => toml::Value::String(text.to_owned()),
    }
}

/// Most characters of an index's name.
pub const LONGEST_NAME: usize = 64;

/// Refuses a name that could not be part of an address and of a path.
pub fn check_name(name: &str) -> Result<()> {
    let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    let begins = name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    if !begins || name.len() > LONGEST_NAME || !name.bytes().all(good) {
        return Err(Error::config(format!(
            "\"{}\" cannot name an index; a name has 1 to {LONGEST_NAME} letters, digits, '_', '-' and '.', and begins with a letter or digit",
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
    fn flags_win_over_the_environment_and_that_over_the_file() {
        let file = "queue = 5\nbatch = 7\nlog = \"warn\"\n[indexes]\na = \"/a\"\n";
        let environment = [("MICPQ_SERVE_BATCH", "8"), ("MICPQ_SERVE_LISTEN", "127.0.0.1:0"), ("HOME", "/root")];
        let config = load(file, &environment, "batch = 9\n[indexes]\nb = \"/b\"").unwrap();
        assert_eq!((config.queue, config.batch, config.log.as_str()), (5, 9, "warn"));
        assert_eq!(config.listen, "127.0.0.1:0".parse().unwrap());
        assert_eq!(config.indexes.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(load(file, &environment[..1], "").unwrap().batch, 8);
        assert_eq!(load("", &[], "").unwrap(), ServeConfig::default());
    }

    #[test]
    fn what_cannot_be_honoured_is_named() {
        let hash = "0".repeat(64);
        for (file, word) in [
            ("quue = 5".into(), "quue"),
            ("queue = 0".into(), "queue is 0"),
            ("queue = \"many\"".into(), "invalid type"),
            ("listen = \"0.0.0.0:80\"".into(), "--new-key"),
            ("tls_key = \"k.pem\"".into(), "tls_certificate"),
            ("timeout_seconds = nan".into(), "timeout_seconds"),
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
            assert!(matches!(error, Error::Config(_)) && error.to_string().contains(word), "{file}: {error}");
        }
        load("listen = \"0.0.0.0:80\"\nopen = true", &[], "").unwrap();
    }

    #[test]
    fn values_of_the_environment_have_types() {
        assert_eq!(value_of("5"), toml::Value::Integer(5));
        assert_eq!(value_of("true"), toml::Value::Boolean(true));
        assert_eq!(value_of("/a/b"), toml::Value::String("/a/b".into()));
        assert_eq!(value_of("1\nqueue = 2"), toml::Value::String("1\nqueue = 2".into()));
        assert!(value_of("[\"a\"]").is_array());
    }
}
