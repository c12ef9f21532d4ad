//! In place of `stored.rs` in a program without object stores.

use std::path::Path;

use anyhow::Result;
use engine::Error;
use engine::index::Copied;

use crate::args::CopyArgs;
use crate::progress::TerminalProgress;

fn missing<T>() -> Result<T> {
    Err(Error::config("this program was built without object stores; build it with the feature object-store").into())
}

pub fn backup(_: &Path, _: &str, _: Option<usize>, _: &CopyArgs, _: bool, _: &TerminalProgress) -> Result<()> {
    missing()
}

pub fn list(_: &str, _: bool) -> Result<()> {
    missing()
}

pub fn restore(_: &str, _: Option<&str>, _: &Path, _: &CopyArgs, _: &TerminalProgress) -> Result<Copied> {
    missing()
}
