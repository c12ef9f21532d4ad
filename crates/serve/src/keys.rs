//! API keys, their roles, and the indexes they reach.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use axum::http::{HeaderMap, StatusCode, header};
use chrono::{NaiveDate, Utc};
use engine::index::filter_within;
use engine::{Error, Result};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use crate::config::{KeyConfig, Role};
use crate::limits::Limits;
use crate::problem::{Answer, Code, Problem};

#[derive(Debug, Default)]
pub struct Keys {
    keys: Vec<Key>,
}

#[derive(Debug)]
struct Key {
    hash: [u8; 32],
    config: KeyConfig,
    /// First day on which it is refused.
    expires: Option<NaiveDate>,
    limits: Arc<Limits>,
}

impl Key {
    fn is_expired(&self, today: NaiveDate) -> bool {
        self.expires.is_some_and(|day| day <= today)
    }

    fn access(&self) -> Access {
        Access {
            name: Some(self.config.name.clone()),
            indexes: self.config.indexes.clone(),
            // Joined with nothing: no document may have the attribute yet, and an error would name those of foreign documents.
            filter: self.config.filter.as_deref().map(|filter| filter_within(None, filter).into()),
            limits: Some(self.limits.clone()),
        }
    }
}

/// The permissions of a request, by its key.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Name of the key; `None` on a server without keys.
    pub name: Option<String>,
    /// `None`: all.
    indexes: Option<BTreeSet<String>>,
    /// `None`: all documents.
    filter: Option<Arc<str>>,
    /// `None` on a server without keys.
    pub limits: Option<Arc<Limits>>,
}

impl Access {
    /// Whether this index exists for the caller.
    pub fn reaches(&self, index: &str) -> bool {
        self.indexes.as_ref().is_none_or(|indexes| indexes.contains(index))
    }

    /// Whether the caller may write less than everything to the indexes it reaches.
    pub fn is_bounded(&self) -> bool {
        let bounds = |limits: &Arc<Limits>| limits.max_documents.is_some() || limits.max_bytes.is_some();
        self.filter.is_some() || self.limits.as_ref().is_some_and(bounds)
    }

    /// The filter of the documents that exist for the caller.
    pub fn filter(&self) -> Option<&str> {
        self.filter.as_deref()
    }

    /// The caller's own filter, if any, together with that of the key.
    pub fn narrowed(&self, own: Option<String>) -> Option<String> {
        match &self.filter {
            Some(within) => Some(filter_within(own.as_deref(), within)),
            None => own,
        }
    }

    /// Refuses a caller who does not reach every index, for what tells of all of them.
    pub fn expect_all(&self) -> Answer<()> {
        self.expect_whole()?;
        match &self.indexes {
            None => Ok(()),
            Some(_) => {
                Err(not_allowed("this tells of all indexes, and your key reaches only some; use a key without indexes"))
            }
        }
    }

    /// Refuses a caller for whom only some documents exist, for what tells of all documents of an index or changes them.
    pub fn expect_whole(&self) -> Answer<()> {
        match &self.filter {
            None => Ok(()),
            Some(_) => Err(not_allowed(
                "this is about all documents of an index, and your key has a filter; use a key without one",
            )),
        }
    }

    /// Counts queries, or refuses them.
    pub fn take_queries(&self, queries: usize) -> Answer<()> {
        self.limits.as_ref().map_or(Ok(()), |limits| limits.take_queries(queries as u64, Utc::now()))
    }
}

fn not_allowed(text: &str) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, Code::NotAllowed, text)
}

impl Keys {
    /// `keys` are validated: a hash has 64 hex digits. A key that was there `before` keeps what it has used of its limits.
    pub fn new(keys: &[KeyConfig], before: Option<&Keys>) -> Keys {
        let bytes = |hex: &str| std::array::from_fn(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap_or(0));
        let key = |config: &KeyConfig| {
            let hash: [u8; 32] = bytes(&config.sha256);
            let earlier = before.and_then(|before| before.keys.iter().find(|key| key.hash == hash));
            let limits = Arc::new(Limits::new(config, earlier.map(|key| &*key.limits)));
            // A day that is none was refused; without this, a mistake here would let the key live for ever.
            let expires = config.expiry().unwrap_or(Some(NaiveDate::MIN));
            Key { hash, config: config.clone(), expires, limits }
        };
        Keys { keys: keys.iter().map(key).collect() }
    }

    fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// The key that a request has, expired or not.
    fn find(&self, headers: &HeaderMap) -> Answer<&Key> {
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
        self.keys
            .get(found as usize)
            .ok_or_else(|| unauthorized(Code::UnknownKey, "the server does not know this key; ask its owner for one"))
    }

    /// The name of the key that a request has, for the log.
    pub fn name(&self, headers: &HeaderMap) -> Option<&str> {
        self.find(headers).ok().map(|key| key.config.name.as_str())
    }

    /// What a request may see without counting as one; nothing without a valid key.
    pub fn peek(&self, headers: &HeaderMap) -> Option<Access> {
        if self.is_empty() {
            return Some(Access::default());
        }
        let key = self.find(headers).ok()?;
        (!key.is_expired(Utc::now().date_naive())).then(|| key.access())
    }

    /// Checks that a request may do `role`. Returns what its key reaches.
    pub fn check(&self, headers: &HeaderMap, role: Role) -> Answer<Access> {
        if self.is_empty() {
            return Ok(Access::default());
        }
        let key = self.find(headers)?;
        if key.is_expired(Utc::now().date_naive()) {
            return Err(Problem::new(
                StatusCode::UNAUTHORIZED,
                Code::UnknownKey,
                "this key has expired; ask the server's owner for a new one",
            ));
        }
        key.limits.take_request(Instant::now())?;
        if key.config.role < role {
            let text = format!("this needs a key with the role {role:?}, yours has {:?}", key.config.role);
            return Err(not_allowed(&text.to_lowercase()));
        }
        Ok(key.access())
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
    fn days_are_compared_as_days_and_not_as_text() {
        let (_, lines) = new_key(Role::Read).unwrap();
        let expires = |day: &str| {
            let text = format!("{lines}expires = \"{day}\"\n");
            let config = ServeConfig::load(None, std::iter::empty(), text.parse().unwrap()).unwrap();
            let keys = Keys::new(&config.keys, None);
            move |today: &str| keys.keys[0].is_expired(today.parse().unwrap())
        };
        for day in ["2027-01-31", "2027-1-31"] {
            let is_expired = expires(day);
            assert!(!is_expired("2027-01-30") && is_expired("2027-01-31") && is_expired("2027-09-01"), "{day}");
        }
    }

    #[test]
    fn a_key_allows_its_role_and_less() {
        let (reader, lines) = new_key(Role::Read).unwrap();
        let (admin, more) = new_key(Role::Admin).unwrap();
        assert!(!lines.contains(&reader));
        let config = ServeConfig::load(None, std::iter::empty(), format!("{lines}{more}").parse().unwrap()).unwrap();
        let keys = Keys::new(&config.keys, None);
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
