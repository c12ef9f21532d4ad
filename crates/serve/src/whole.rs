//! Whole numbers in JSON, which has one number type.

use serde::de::{Error as _, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// A whole number, 0 or more. JSON has one number type, so `10.0` is 10.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Whole(pub u64);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = Whole;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a whole number, 0 or more")
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Whole, E> {
                Ok(Whole(number))
            }

            fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Whole, E> {
                whole(number).map(Whole).ok_or_else(|| E::invalid_value(Unexpected::Float(number), &self))
            }
        }
        deserializer.deserialize_any(Number)
    }
}

/// The float as a whole number from 0 to 2^64 - 1; `None` for every other float.
pub fn whole(number: f64) -> Option<u64> {
    (number.fract() == 0.0 && (0.0..18_446_744_073_709_551_616.0).contains(&number)).then_some(number as u64)
}

/// A whole number of any integer type, or null.
pub fn some_whole<'de, D: Deserializer<'de>, T: TryFrom<u64>>(deserializer: D) -> Result<Option<T>, D::Error> {
    let refuse = |number| D::Error::custom(format!("{number} is too large for this field"));
    let number = Option::<Whole>::deserialize(deserializer)?;
    number.map(|Whole(number)| T::try_from(number).map_err(|_| refuse(number))).transpose()
}

/// The largest seed, so that it is one number in every language.
const MAX_SEED: u64 = 1_000_000_000;

/// A seed, or null.
pub fn some_seed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    match some_whole(deserializer)? {
        Some(seed) if seed > MAX_SEED => Err(D::Error::custom(format!("the seed is {seed}; give at most {MAX_SEED}"))),
        seed => Ok(seed),
    }
}
