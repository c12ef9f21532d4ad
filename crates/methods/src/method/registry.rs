//! All methods by name. A new method is its file and its line in `lib.rs`.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::sync::{Arc, LazyLock};

use engine::{Error, Result};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use super::Method;

static BUILT_IN: LazyLock<Vec<MethodHandle>> =
    LazyLock::new(|| crate::built_in().into_iter().map(MethodHandle::new).collect());
static REGISTERED: RwLock<Vec<MethodHandle>> = RwLock::new(Vec::new());

/// All methods: the built-in ones in the order of the paper's tables, then those of users in the order of their registration.
pub fn registry() -> Vec<MethodHandle> {
    let registered = REGISTERED.read();
    BUILT_IN.iter().chain(registered.iter()).cloned().collect()
}

pub fn find(name: &str) -> Result<MethodHandle> {
    let all = registry();
    all.iter().find(|m| m.name() == name).cloned().ok_or_else(|| {
        let known: Vec<&str> = all.iter().map(|m| m.name()).collect();
        Error::config(format!("unknown method '{name}'; known: {}", known.join(", ")))
    })
}

/// Adds a method of the user for the life of the process. A method registered earlier under the same name is replaced; the
/// name of a built-in method is refused.
pub fn register(method: Arc<dyn Method>) -> Result<()> {
    let name = method.name();
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || !name.chars().all(plain) {
        return Err(Error::config(format!(
            "method name '{name}': use lower-case letters, digits, '-', '_' and '.', at least one"
        )));
    }
    if BUILT_IN.iter().any(|m| m.name() == name) {
        return Err(Error::config(format!("{name} is a built-in method; register yours under another name")));
    }
    let method = MethodHandle::new(method);
    let mut registered = REGISTERED.write();
    match registered.iter_mut().find(|m| **m == method) {
        Some(earlier) => *earlier = method,
        None => registered.push(method),
    }
    Ok(())
}

/// A registered method. Parsed from, compared by and serialized as its name.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MethodHandle(Arc<dyn Method>);

impl MethodHandle {
    pub(crate) fn new(method: Arc<dyn Method>) -> Self {
        MethodHandle(method)
    }

    /// Names of the options that count, beside method, bits, seed and input.
    pub(crate) fn option_names(&self) -> Vec<&str> {
        let reads = self.reads();
        let views: &[&str] = if reads.views { &["contrast_temperature", "views", "clean_first_epoch"] } else { &[] };
        let epochs: &[&str] =
            if reads.validation { &["epochs", "patience", "batch", "learning_rate", "held_out"] } else { &[] };
        [self.options(), views, epochs].concat()
    }
}

impl Deref for MethodHandle {
    type Target = dyn Method;

    fn deref(&self) -> &Self::Target {
        self.0.as_ref()
    }
}

impl fmt::Display for MethodHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for MethodHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl PartialEq for MethodHandle {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for MethodHandle {}

impl FromStr for MethodHandle {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        find(name)
    }
}

impl TryFrom<String> for MethodHandle {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        find(&name)
    }
}

impl From<MethodHandle> for String {
    fn from(method: MethodHandle) -> String {
        method.name().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedding::EmbeddingMethod;

    #[test]
    fn every_method_is_found_by_its_name() {
        let all = BUILT_IN.iter();
        let names: std::collections::BTreeSet<&str> = all.clone().map(|method| method.name()).collect();
        assert_eq!(names.len(), all.len(), "two methods have one name");
        for method in all {
            assert_eq!(method.name().parse::<MethodHandle>().unwrap(), *method);
        }
        assert!("pqo".parse::<MethodHandle>().unwrap_err().to_string().contains("two-stage"));
    }

    #[test]
    fn users_add_methods_and_replace_their_own_but_no_built_in_one() {
        let method = |name: &str, problem: &'static str| -> Arc<dyn Method> {
            Arc::new(EmbeddingMethod::new(name, move |_, _| Err(Error::config(problem))))
        };
        register(method("mine", "first")).unwrap();
        register(method("mine", "second")).unwrap();
        assert_eq!(registry().iter().filter(|m| m.name() == "mine").count(), 1);
        assert!(find("none").unwrap_err().to_string().contains("mine"));
        assert!(register(method("opq", "")).unwrap_err().to_string().contains("built-in"));
        for wrong in ["", "My method"] {
            assert!(register(method(wrong, "")).unwrap_err().to_string().contains("lower-case"));
        }
    }
}
