//! All methods by name. A new method is its file and its line here.

use std::sync::{Arc, LazyLock};

use engine::{Error, Result};
use parking_lot::RwLock;

use crate::method::{Method, MethodHandle};
use crate::{aepq, ammi, bmsh, corrsh, csh, dhim, distilled, lopq, nash, opq, pq, two_stage, variants, vdsh, wish};

fn built_in() -> Vec<Arc<dyn Method>> {
    // In the order of the paper's tables; what is newer comes last.
    vec![
        Arc::new(vdsh::METHOD),
        Arc::new(nash::METHOD),
        Arc::new(wish::METHOD),
        Arc::new(bmsh::METHOD),
        Arc::new(corrsh::METHOD),
        Arc::new(ammi::METHOD),
        Arc::new(dhim::METHOD),
        Arc::new(pq::METHOD),
        Arc::new(opq::METHOD),
        Arc::new(lopq::METHOD),
        Arc::new(two_stage::METHOD),
        Arc::new(aepq::METHOD),
        Arc::new(csh::METHOD),
        Arc::new(variants::MICPQ_EH),
        Arc::new(variants::MICPQ_EA),
        Arc::new(variants::SOFTMAX),
        Arc::new(variants::CL),
        Arc::new(variants::MICPQ),
        Arc::new(distilled::METHOD),
    ]
}

static BUILT_IN: LazyLock<Vec<MethodHandle>> =
    LazyLock::new(|| built_in().into_iter().map(MethodHandle::new).collect());
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

#[cfg(test)]
mod tests {
    use engine::model::Distance;
    use train::TrainConfig;

    use super::*;
    use crate::embedding::EmbeddingMethod;

    #[test]
    fn every_method_is_found_by_its_name() {
        let all = registry();
        assert!(all.len() >= 19);
        for method in &all[..19] {
            assert_eq!(method.name().parse::<MethodHandle>().unwrap(), *method);
        }
        assert!("pqo".parse::<MethodHandle>().unwrap_err().to_string().contains("two-stage"));
    }

    #[test]
    fn variants_change_the_options_of_micpq() {
        let vary = |name: &str| {
            let mut config = TrainConfig::new(32);
            find(name).unwrap().variant().unwrap().vary(&mut config);
            config
        };
        let config = vary("micpq-eh");
        assert_eq!((config.shape().unwrap().num_codebooks(), config.distance), (32, Distance::Hamming));
        let config = vary("cl");
        assert_eq!(config.objective.prob_weight, 0.0);
        config.validate().unwrap();
        assert!(find("opq").unwrap().variant().is_none());
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
