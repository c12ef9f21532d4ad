//! The engine's errors as the package's exception classes.

use engine::Error;
use pyo3::prelude::*;

/// An exception of class `name` in `micpq.errors`.
pub fn exception(name: &str, message: String) -> PyErr {
    Python::attach(|py| {
        let created = py.import("micpq.errors").and_then(|m| m.getattr(name)).and_then(|class| class.call1((message,)));
        created.map_or_else(|problem| problem, PyErr::from_value)
    })
}

/// The exception for an error of the engine.
pub fn raise(error: Error) -> PyErr {
    let name = match &error {
        Error::Config { .. } | Error::TooLarge(_) => "ConfigError",
        Error::FilterSyntax { .. } => "FilterError",
        Error::Input { .. } => "InputError",
        Error::Format { .. } => "FormatError",
        Error::Busy(_) => "BusyError",
        Error::Io { .. } => "StorageError",
        Error::Device(_) => "DeviceError",
        Error::Interrupted => "StoppedError",
    };
    let raised = exception(name, error.to_string());
    if let Error::Config { option: Some(option), .. } = error {
        // The class has the attribute; an exception of another class would only lack it.
        Python::attach(|py| raised.value(py).setattr("option", option).ok());
    }
    raised
}
