//! A vector in a request: a list of numbers, base64 or bytes.

use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// An embedding. Base64 and bytes are its values as little-endian `f32`, as the embeddings of OpenAI's API are.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Vector(pub Vec<f32>);

described!(Vector, {
    "description": "An embedding of the index's encoder: a list of numbers, or base64 of its values as little-endian 32-bit floats.",
    "oneOf": [
        { "type": "array", "items": { "type": "number", "format": "float" } },
        { "type": "string", "contentEncoding": "base64", "pattern": "^([A-Za-z0-9+/]{16})*$" },
    ],
});

/// The bytes of a vector as a body.
pub enum VectorBytes {}

described!(VectorBytes, { "type": "string", "format": "binary" });

impl Vector {
    /// The values of little-endian `f32`; the error is the problem in words.
    pub fn of_bytes(bytes: &[u8]) -> Result<Vector, String> {
        match bytes.as_chunks::<4>() {
            (values, []) => Ok(Vector(values.iter().map(|value| f32::from_le_bytes(*value)).collect())),
            _ => Err(format!("{} bytes are not a whole number of 32-bit floats", bytes.len())),
        }
    }
}

impl<'de> Deserialize<'de> for Vector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Values;
        impl<'de> Visitor<'de> for Values {
            type Value = Vector;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a list of numbers, or base64 of little-endian 32-bit floats")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vector, A::Error> {
                // JSON does not say how many follow; most encoders have 384 to 1,024 values.
                let mut values = Vec::with_capacity(list.size_hint().unwrap_or(1024).min(4096));
                while let Some(value) = list.next_element()? {
                    values.push(value);
                }
                Ok(Vector(values))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Vector, E> {
                let bytes = BASE64_STANDARD.decode(text).map_err(|e| E::custom(format!("not base64: {e}")))?;
                Vector::of_bytes(&bytes).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_base64_and_bytes_give_the_same_vector() {
        let values = [0.5f32, -1.25e-7, 3.0e38, 0.0];
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let read = |json: serde_json::Value| serde_json::from_str::<Vector>(&json.to_string());
        let expected = Vector(values.to_vec());
        assert_eq!(read(serde_json::json!(values)).unwrap(), expected);
        assert_eq!(read(BASE64_STANDARD.encode(&bytes).into()).unwrap(), expected);
        assert_eq!(Vector::of_bytes(&bytes).unwrap(), expected);
        assert!(Vector::of_bytes(&bytes[..7]).unwrap_err().contains("7 bytes"));
        for (wrong, word) in [("AAAA", "3 bytes"), ("A*", "not base64")] {
            assert!(read(wrong.into()).unwrap_err().to_string().contains(word), "{wrong}");
        }
        assert!(read(5.into()).unwrap_err().to_string().contains("a list of numbers"));
    }
}
