//! The options of a key.

use std::collections::BTreeSet;

use chrono::NaiveDate;
use engine::error::Remedy;
use engine::index::check_filter;
use engine::{Error, Result};
use serde::{Deserialize, Serialize};
use strum::{EnumString, VariantNames};

use super::check_name;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyConfig {
    /// Shown in the log.
    pub name: String,
    /// SHA-256 of the key in hex. The key itself is never stored.
    pub sha256: String,
    pub role: Role,
    /// The only indexes that the key reaches, whatever its role; the others do not exist for it. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub indexes: Option<BTreeSet<String>>,
    /// Filter of the documents that exist for the key; it can write no others. What tells of a whole index, such as
    /// training, is refused. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// First day on which the key is refused, as 2027-01-31 (UTC). Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    /// Requests per minute that the key may send; further ones get 429. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_minute: Option<u32>,
    /// Queries per day (UTC) that the key may ask, each of a batch counted, and each text of an embedding request; further
    /// ones get 429. The count begins anew when the server starts. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queries_per_day: Option<u64>,
    /// Documents that may exist for the key, in all indexes that it reaches; a write that would add more gets 403. Default:
    /// no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_documents: Option<u64>,
    /// Size on disk of all indexes that the key reaches, in bytes; a write beyond gets 403. Not for a key with a filter: a
    /// part of an index has no size. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
}

impl KeyConfig {
    fn validate(&self) -> Result<()> {
        let refuse = |problem: String| Err(Error::config(format!("key \"{}\": {problem}", self.name)));
        if self.sha256.len() != 64 || !self.sha256.bytes().all(|b| b.is_ascii_hexdigit()) {
            return refuse("sha256 is not 64 hex digits; it is the hash of the key, which comes with a new key".into())
                .map_err(|error: Error| error.remedied(Remedy::MakeKey));
        }
        self.expiry()?;
        let limits = [
            ("requests_per_minute", self.requests_per_minute.map(u64::from)),
            ("queries_per_day", self.queries_per_day),
            ("max_documents", self.max_documents),
            ("max_bytes", self.max_bytes),
        ];
        for (name, limit) in limits {
            if limit == Some(0) {
                return refuse(format!("{name} is 0; give at least 1, or leave it out for no limit"));
            }
        }
        if let Some(filter) = &self.filter {
            check_filter(filter).or_else(|error| refuse(error.to_string()))?;
            if self.max_bytes.is_some() {
                return refuse(
                    "max_bytes counts whole indexes, and the key has a filter; limit max_documents instead".into(),
                );
            }
        }
        self.indexes.iter().flatten().try_for_each(|name| check_name(name))
    }

    /// The first day on which the key is refused.
    pub fn expiry(&self) -> Result<Option<NaiveDate>> {
        let Some(day) = &self.expires else { return Ok(None) };
        NaiveDate::parse_from_str(day, "%Y-%m-%d").map(Some).map_err(|_| {
            Error::config(format!(
                "key \"{}\": expires = \"{day}\" is not a day; write it like \"2027-01-31\"",
                self.name
            ))
        })
    }
}

/// Refuses keys that are not usable, and two of one name.
pub fn check_keys(keys: &[KeyConfig]) -> Result<()> {
    let mut names = BTreeSet::new();
    for key in keys {
        key.validate()?;
        if !names.insert(&key.name) {
            return Err(Error::config(format!("two keys are named \"{}\"; give each key its own name", key.name)));
        }
    }
    Ok(())
}

/// The permissions of a key. Each role includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, EnumString, VariantNames)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", parse_err_ty = Error, parse_err_fn = unknown_role)]
pub enum Role {
    Read,
    /// Add and delete documents.
    Write,
    /// Create and drop indexes, back up, train.
    Admin,
}

fn unknown_role(name: &str) -> Error {
    Error::unknown("role", name, Role::VARIANTS)
}
