//! The engine's errors as the package's exception classes.

use micpq::Error;
use pyo3::prelude::*;

/// An exception of class `name` in `micpq.errors`.
pub fn exception(name: &str, message: String) -> PyErr {
    Python::attach(|py| {
        let made = py.import("micpq.errors").and_then(|m| m.getattr(name)).and_then(|class| class.call1((message,)));
        made.map_or_else(|problem| problem, PyErr::from_value)
    })
}

/// What Python is told of an error.
pub fn raise(error: Error) -> PyErr {
    let name = match &error {
        Error::Config(_) => "ConfigError",
        Error::Input { .. } => "InputError",
        Error::Format { .. } => "FormatError",
        Error::Busy(_) => "BusyError",
        Error::Io { .. } => "StorageError",
        Error::Device(_) => "DeviceError",
        Error::Interrupted => "StoppedError",
    };
    exception(name, error.to_string())
}
