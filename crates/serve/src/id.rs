//! Document ids in requests and answers.

use std::fmt;

use engine::corpus::DocId;
use serde::de::{Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::whole::whole;

/// Maximum size of an id in bytes, as in the index.
const MAX_ID_BYTES: usize = 1024;

/// A document id: a whole number or a string. `5` and `"5"` are the same.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Id(pub DocId);

described!(Id, {
    "description": "A whole number or a string. `5` and `\"5\"` are the same.",
    "oneOf": [
        { "type": "integer", "minimum": 0, "maximum": u64::MAX },
        { "type": "string", "minLength": 1, "maxLength": MAX_ID_BYTES },
    ],
});

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = Id;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                write!(f, "an id: a whole number, 0 or more, or a string of 1 to {MAX_ID_BYTES} bytes")
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Id, E> {
                Ok(Id(DocId::Int(number)))
            }

            fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Id, E> {
                let number = whole(number).ok_or_else(|| E::invalid_value(Unexpected::Float(number), &self))?;
                Ok(Id(DocId::Int(number)))
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Id, E> {
                if name.is_empty() || name.len() > MAX_ID_BYTES {
                    return Err(E::invalid_length(name.len(), &self));
                }
                // As in CSV and on the command line: "5" is 5.
                let Ok(id) = name.parse();
                Ok(Id(id))
            }
        }
        deserializer.deserialize_any(Either)
    }
}
