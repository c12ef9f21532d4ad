//! API keys, their roles, and the indexes they reach.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use axum::http::{HeaderMap, StatusCode, header};
use engine::{Error, Result};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use crate::config::{KeyConfig, Role, ServeConfig};
use crate::problem::{Code, Problem};

#[derive(Debug, Default)]
pub struct Keys {
    keys: Vec<Key>,
}

#[derive(Debug)]
struct Key {
    hash: [u8; 32],
    config: KeyConfig,
    /// `None`: as many requests as it likes.
    allowance: Option<Allowance>,
}

/// How many requests a key may send now. It grows evenly, up to those of a minute.
#[derive(Debug)]
struct Allowance {
    per_minute: f64,
    /// What was left at a time.
    left: Mutex<(f64, Instant)>,
}

impl Allowance {
    fn new(per_minute: u32, now: Instant) -> Allowance {
        Allowance { per_minute: per_minute.into(), left: Mutex::new((per_minute.into(), now)) }
    }

    /// Whether one more request is allowed now.
    fn take(&self, now: Instant) -> bool {
        let mut left = self.left.lock();
        let grown = now.saturating_duration_since(left.1).as_secs_f64() * self.per_minute / 60.0;
        let requests = (left.0 + grown).min(self.per_minute);
        let allowed = requests >= 1.0;
        *left = (if allowed { requests - 1.0 } else { requests }, now);
        allowed
    }
}

/// The permissions of a request, by its key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Access {
    /// Name of the key; `None` on a server without keys.
    pub name: Option<String>,
    /// `None`: all.
    indexes: Option<BTreeSet<String>>,
}

impl Access {
    /// Whether this index exists for the caller.
    pub fn reaches(&self, index: &str) -> bool {
        self.indexes.as_ref().is_none_or(|indexes| indexes.contains(index))
    }

    /// Refuses a caller who does not reach every index, for what tells of all of them.
    pub fn expect_all(&self) -> std::result::Result<(), Problem> {
        match &self.indexes {
            None => Ok(()),
            Some(_) => Err(Problem::new(
                StatusCode::FORBIDDEN,
                Code::NotAllowed,
                "this tells of all indexes, and your key reaches only some; use a key without indexes",
            )),
        }
    }
}

/// The keys in use, and the state of the file they came from.
pub struct CurrentKeys {
    keys: Mutex<Arc<Keys>>,
    stamp: Mutex<Option<(SystemTime, u64)>>,
}

fn stamp(file: &Path) -> Option<(SystemTime, u64)> {
    let about = std::fs::metadata(file).ok()?;
    Some((about.modified().ok()?, about.len()))
}

impl CurrentKeys {
    pub fn new(config: &ServeConfig) -> CurrentKeys {
        CurrentKeys {
            keys: Mutex::new(Arc::new(Keys::new(&config.keys))),
            stamp: Mutex::new(config.file.as_deref().and_then(stamp)),
        }
    }

    pub fn get(&self) -> Arc<Keys> {
        self.keys.lock().clone()
    }

    /// Uses the keys that the file has now. Keys that cannot be used are logged once, and the old ones stay in use. The last
    /// key cannot be taken away: without keys the server would be open to everybody.
    pub fn follow(&self, file: &Path) {
        let now = stamp(file);
        let mut known = self.stamp.lock();
        if now.is_none() || *known == now {
            return;
        }
        *known = now;
        match ServeConfig::keys_of(file) {
            Ok(keys) if keys.is_empty() != self.get().keys.is_empty() => {
                tracing::warn!("the config file has its first key, or none any more; restart the server for that");
            }
            Ok(keys) => {
                *self.keys.lock() = Arc::new(Keys::new(&keys));
                tracing::info!(keys = keys.len(), "using the keys that the config file has now");
            }
            Err(error) => tracing::warn!(%error, "the new keys cannot be used; the old ones stay in use"),
        }
    }
}

impl Keys {
    /// `keys` are validated: a hash has 64 hex digits.
    pub fn new(keys: &[KeyConfig]) -> Keys {
        let bytes = |hex: &str| std::array::from_fn(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap_or(0));
        let key = |config: &KeyConfig| Key {
            hash: bytes(&config.sha256),
            config: config.clone(),
            allowance: config.requests_per_minute.map(|limit| Allowance::new(limit, Instant::now())),
        };
        Keys { keys: keys.iter().map(key).collect() }
    }

    /// Checks that a request may do `role`. Returns what its key reaches.
    pub fn check(&self, headers: &HeaderMap, role: Role) -> std::result::Result<Access, Problem> {
        if self.keys.is_empty() {
            return Ok(Access::default());
        }
        let unauthorized = |code, text: &str| Problem::new(StatusCode::UNAUTHORIZED, code, text);
        let Some(given) = given(headers) else {
            return Err(unauthorized(
                Code::NoKey,
                "this server needs a key; send it as \"Authorization: Bearer KEY\" or \"api-key: KEY\"",
            ));
        };
        let hash: [u8; 32] = Sha256::digest(given).into();
        // Compares with every key in constant time: the duration reveals nothing.
        let mut found = u32::MAX;
        for (number, key) in self.keys.iter().enumerate() {
            let same: Choice = key.hash.ct_eq(&hash);
            found = u32::conditional_select(&found, &(number as u32), same);
        }
        let Some(Key { config: key, allowance, .. }) = self.keys.get(found as usize) else {
            return Err(unauthorized(Code::UnknownKey, "the server does not know this key; ask its owner for one"));
        };
        // Days compare as text.
        if key.expires.as_ref().is_some_and(|day| *day <= chrono::Utc::now().format("%Y-%m-%d").to_string()) {
            return Err(unauthorized(Code::UnknownKey, "this key has expired; ask the server's owner for a new one"));
        }
        if allowance.as_ref().is_some_and(|allowance| !allowance.take(Instant::now())) {
            let limit = key.requests_per_minute.unwrap_or_default();
            return Err(Problem::overloaded(&format!(
                "your key may send {limit} requests per minute, and this is one more"
            )));
        }
        if key.role < role {
            return Err(Problem::new(
                StatusCode::FORBIDDEN,
                Code::NotAllowed,
                format!("this needs a key with the role {role:?}, yours has {:?}", key.role).to_lowercase(),
            ));
        }
        Ok(Access { name: Some(key.name.clone()), indexes: key.indexes.clone() })
    }
}

fn given(headers: &HeaderMap) -> Option<&[u8]> {
    if let Some(value) = headers.get("api-key") {
        return Some(value.as_bytes());
    }
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, key) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
}

/// A new key, and its lines for the config file.
pub fn new_key(role: Role) -> Result<(String, String)> {
    let mut bytes = [0; 24];
    getrandom::fill(&mut bytes).map_err(|e| Error::config(format!("the system has no random numbers: {e}")))?;
    let key = format!("micpq-{}", hex::encode(bytes));
    let sha256 = hex::encode(Sha256::digest(key.as_bytes()));
    let role = format!("{role:?}").to_lowercase();
    let lines = format!("[[keys]]\nname = \"{role}-{}\"\nsha256 = \"{sha256}\"\nrole = \"{role}\"\n", &sha256[..8]);
    Ok((key, lines))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ServeConfig;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        headers
    }

    #[test]
    fn an_allowance_grows_evenly_up_to_that_of_a_minute() {
        use std::time::Duration;
        let begin = Instant::now();
        let allowance = Allowance::new(60, begin);
        let taken = |seconds| (0..100).filter(|_| allowance.take(begin + Duration::from_secs(seconds))).count();
        assert_eq!([taken(0), taken(0), taken(5), taken(3600)], [60, 0, 5, 60]);
    }

    #[test]
    fn a_key_allows_its_role_and_less() {
        let (reader, lines) = new_key(Role::Read).unwrap();
        let (admin, more) = new_key(Role::Admin).unwrap();
        assert!(!lines.contains(&reader));
        let config = ServeConfig::load(None, std::iter::empty(), format!("{lines}{more}").parse().unwrap()).unwrap();
        let keys = Keys::new(&config.keys);
        let check = |name, value: &str, role| keys.check(&headers(name, value), role).map(|access| access.name);
        assert!(check("api-key", &reader, Role::Read).unwrap().unwrap().starts_with("read-"));
        assert_eq!(check("api-key", &reader, Role::Write).unwrap_err().status, 403);
        assert!(check("authorization", &format!("Bearer {admin}"), Role::Admin).is_ok());
        assert!(check("authorization", &format!("bearer {reader}"), Role::Read).is_ok());
        for (name, value) in [
            ("authorization", &admin),
            ("authorization", &"Bearer x".into()),
            ("api-key", &lines[..9].trim().to_owned()),
        ] {
            assert_eq!(check(name, value, Role::Read).unwrap_err().status, 401);
        }
        assert_eq!(keys.check(&HeaderMap::new(), Role::Read).unwrap_err().details.code, Code::NoKey);
        assert!(Keys::default().check(&HeaderMap::new(), Role::Admin).is_ok());
    }
}
