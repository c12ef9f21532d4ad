//! The options in use now: those of the start, and what the config file says since.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use engine::{Error, Result};
use parking_lot::{Mutex, RwLock};

use crate::config::ServeConfig;
use crate::keys::Keys;
use crate::log;

/// Set to have the config file read again at once: a program sets it on SIGHUP.
pub static RELOAD: std::sync::LazyLock<Arc<AtomicBool>> = std::sync::LazyLock::new(Arc::default);

/// Options that are taken from the file while the server runs. All others need a restart.
const TAKEN: [&str; 13] = [
    "keys",
    "log",
    "access_log",
    "cors_origins",
    "hosts",
    "max_body_bytes",
    "max_answer_bytes",
    "max_text_bytes",
    "max_documents",
    "max_queries",
    "timeout_seconds",
    "drain_seconds",
    "ready_needs_all",
];

/// The options and keys in use, and the state of the file they came from.
pub struct Settings {
    config: RwLock<Arc<ServeConfig>>,
    keys: RwLock<Arc<Keys>>,
    stamp: Mutex<Option<(SystemTime, u64)>>,
}

fn stamp(file: &Path) -> Option<(SystemTime, u64)> {
    let about = std::fs::metadata(file).ok()?;
    Some((about.modified().ok()?, about.len()))
}

impl Settings {
    pub fn new(config: &ServeConfig) -> Settings {
        Settings {
            config: RwLock::new(Arc::new(config.clone())),
            keys: RwLock::new(Arc::new(Keys::new(&config.keys, None))),
            stamp: Mutex::new(config.file.as_deref().and_then(stamp)),
        }
    }

    pub fn config(&self) -> Arc<ServeConfig> {
        self.config.read().clone()
    }

    pub fn keys(&self) -> Arc<Keys> {
        self.keys.read().clone()
    }

    /// Reads the file again if it has changed or [`RELOAD`] is set. Options that cannot be used are logged once, and the old
    /// ones stay in use.
    pub fn follow(&self) {
        let now = self.config().file.as_deref().and_then(stamp);
        let asked = RELOAD.swap(false, Ordering::SeqCst);
        {
            let mut known = self.stamp.lock();
            if !asked && (now.is_none() || *known == now) {
                return;
            }
            *known = now;
        }
        match self.reload() {
            Ok(Some(waiting)) if !waiting.is_empty() => {
                tracing::warn!(options = waiting.join(", "), "these options of the config file need a restart");
            }
            Ok(Some(_)) => tracing::info!(keys = self.keys().len(), "using what the config file says now"),
            Ok(None) => tracing::warn!("there is no config file to read again"),
            Err(error) => tracing::warn!(%error, "the config file cannot be used; the old options stay in use"),
        }
    }

    /// Uses what the file says now. Returns the names of options that changed and need a restart; `None` without a file.
    fn reload(&self) -> Result<Option<Vec<String>>> {
        let old = self.config();
        let Some(new) = old.read_again() else { return Ok(None) };
        let new = new?;
        if new.keys.is_empty() && !old.keys.is_empty() && !new.open {
            return Err(Error::config(
                "the file has no key any more, and the server would be open to everybody; give it a key, or open = true",
            ));
        }
        let (mut table, new_table) = (as_table(&old)?, as_table(&new)?);
        let mut waiting = Vec::new();
        let names: std::collections::BTreeSet<&String> = table.keys().chain(new_table.keys()).collect();
        for name in names.into_iter().cloned().collect::<Vec<_>>() {
            let (before, after) = (table.get(&name), new_table.get(&name));
            if before == after {
                continue;
            }
            if !TAKEN.contains(&name.as_str()) {
                waiting.push(name);
                continue;
            }
            match after {
                Some(value) => drop(table.insert(name, value.clone())),
                None => drop(table.remove(&name)),
            }
        }
        let taken: ServeConfig =
            toml::Value::Table(table).try_into().map_err(|e: toml::de::Error| Error::config(e.to_string()))?;
        let taken = ServeConfig { file: old.file.clone(), overrides: old.overrides.clone(), ..taken };
        // Limits that go together may have been changed in options of both kinds.
        taken.validate()?;
        if taken.log != old.log {
            log::set_filter(&taken.log)?;
        }
        let keys = Arc::new(Keys::new(&taken.keys, Some(&self.keys())));
        *self.keys.write() = keys;
        *self.config.write() = Arc::new(taken);
        Ok(Some(waiting))
    }
}

fn as_table(config: &ServeConfig) -> Result<toml::Table> {
    toml::Table::try_from(config).map_err(|error| Error::config(format!("options of the server: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(file: &str, environment: &[(&str, &str)], flags: &str) -> (tempfile::TempDir, Settings) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("serve.toml");
        std::fs::write(&path, file).unwrap();
        let environment = environment.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        let config = ServeConfig::load(Some(&path), environment, flags.parse().unwrap()).unwrap();
        (dir, Settings::new(&config))
    }

    fn key(name: &str) -> String {
        let hash = format!("{:0>64}", hex::encode(name));
        format!("[[keys]]\nname = \"{name}\"\nsha256 = \"{hash}\"\nrole = \"read\"\n")
    }

    fn rewrite(dir: &tempfile::TempDir, text: &str) {
        std::fs::write(dir.path().join("serve.toml"), text).unwrap();
    }

    #[test]
    fn options_of_a_changed_file_are_taken_or_named() {
        let (dir, settings) = settings("max_queries = 10\nqueue = 7\n", &[], "");
        rewrite(
            &dir,
            "max_queries = 20\naccess_log = true\ncors_origins = [\"https://a.example\"]\nqueue = 8\ndata = \"/d\"\n",
        );
        assert_eq!(settings.reload().unwrap().unwrap(), ["data", "queue"]);
        let config = settings.config();
        assert_eq!((config.max_queries, config.access_log, config.queue, &config.data), (20, true, 7, &None));
        assert_eq!(config.cors_origins, ["https://a.example"]);
        // Back to the default, and all or nothing.
        rewrite(&dir, "queue = 7\n");
        assert_eq!(settings.reload().unwrap().unwrap(), [""; 0]);
        assert_eq!(settings.config().max_queries, ServeConfig::default().max_queries);
        for broken in
            ["max_queries = 0", "max_queries = 5\nquue = 1", "max_body_bytes = 1000000000", "[[keys]]\nname = 1"]
        {
            rewrite(&dir, broken);
            assert!(settings.reload().is_err(), "{broken}");
            assert_eq!(settings.config().max_queries, ServeConfig::default().max_queries);
        }
    }

    #[test]
    fn keys_that_flags_or_the_environment_override_stay_overridden() {
        let flags = key("flag");
        let of_environment = format!("[{{ name = \"env\", sha256 = \"{}\", role = \"read\" }}]", "a".repeat(64));
        for (environment, flags, name) in
            [(vec![], flags.as_str(), "flag"), (vec![("MICPQ_SERVE_KEYS", of_environment.as_str())], "", "env")]
        {
            let (dir, settings) = settings(&key("file"), &environment, flags);
            rewrite(&dir, &format!("max_queries = 20\n{}{}", key("file"), key("more")));
            settings.reload().unwrap();
            let config = settings.config();
            assert_eq!(config.keys.iter().map(|key| key.name.as_str()).collect::<Vec<_>>(), [name]);
            assert_eq!((settings.keys().len(), config.max_queries), (1, 20));
        }
    }

    #[test]
    fn the_first_key_is_taken_and_the_last_stays() {
        let (dir, settings) = settings("", &[], "");
        rewrite(&dir, &key("first"));
        settings.reload().unwrap();
        assert_eq!(settings.keys().len(), 1);
        rewrite(&dir, "");
        assert!(settings.reload().unwrap_err().to_string().contains("open = true"));
        assert_eq!(settings.keys().len(), 1);
        rewrite(&dir, &key("second"));
        settings.reload().unwrap();
        assert_eq!(settings.config().keys[0].name, "second");
    }

    #[test]
    fn every_option_that_is_taken_is_one() {
        let known = toml::Table::try_from(ServeConfig { keys: Vec::new(), ..ServeConfig::default() }).unwrap();
        assert!(TAKEN.iter().all(|name| known.contains_key(*name)), "{known:?}");
    }
}
