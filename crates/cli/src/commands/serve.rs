//! `micpq serve`: serves indexes over HTTP.

use std::path::{Path, PathBuf};

use anyhow::Result;
use engine::Error;
use serve::ServeConfig;
use serve::config::value_of;

use crate::args::Serve;
use crate::output;
use crate::progress::TerminalProgress;

pub fn run(args: Serve, json: bool, progress: &TerminalProgress) -> Result<()> {
    if let Some(role) = args.new_key {
        let (key, lines) = serve::new_key(role)?;
        if json {
            return output::json(&serde_json::json!({ "key": key, "config": lines }));
        }
        return output::line(format!("key (shown once): {key}\n\n{}", lines.trim_end()));
    }
    if args.openapi {
        return output::line(serve::openapi());
    }
    let config = ServeConfig::load(args.config.as_deref(), std::env::vars(), flags(&args)?)?;
    if config.indexes.is_empty() && config.data.is_none() {
        return Err(Error::config("nothing to serve; name an index, or a --data directory for new indexes").into());
    }
    let _observation = serve::observe(&config)?;
    // Without a file there is nothing to read again, and a terminal that closes ends its server.
    #[cfg(unix)]
    if config.file.is_some() {
        crate::progress::on_hangup(serve::RELOAD.clone());
    }
    let scheme = if config.tls_certificate.is_some() { "https" } else { "http" };
    serve::run(config, progress, |address| {
        // A closed standard output does not stop the server.
        let _ = if json {
            output::json(&serde_json::json!({ "address": address.to_string(), "url": format!("{scheme}://{address}") }))
        } else {
            output::line(format!("listening on {scheme}://{address}"))
        };
    })?;
    Ok(())
}

/// The flags as the TOML table of a config file.
fn flags(args: &Serve) -> Result<toml::Table> {
    let mut table = toml::Table::new();
    for pair in &args.set {
        let (name, value) =
            pair.split_once('=').ok_or_else(|| Error::config(format!("--set {pair}: write it as NAME=VALUE")))?;
        table.insert(name.to_owned(), value_of(value));
    }
    if let Some(listen) = &args.listen {
        table.insert("listen".into(), listen.clone().into());
    }
    if let Some(data) = &args.data {
        table.insert("data".into(), data.display().to_string().into());
    }
    let mut indexes = toml::Table::new();
    for (name, path) in named_indexes(&args.indexes)? {
        indexes.insert(name, path.display().to_string().into());
    }
    if !indexes.is_empty() {
        table.insert("indexes".into(), indexes.into());
    }
    Ok(table)
}

/// Names and directories of indexes, each given as PATH or NAME=PATH.
pub fn named_indexes(given: &[String]) -> Result<Vec<(String, PathBuf)>> {
    let mut named: Vec<(String, PathBuf)> = Vec::new();
    for given in given {
        let (name, path) = match given.split_once('=') {
            Some((name, path)) => (name.to_owned(), path),
            None => (name_of(Path::new(given))?, given.as_str()),
        };
        if named.iter().any(|(other, _)| *other == name) {
            return Err(
                Error::config(format!("two indexes are named \"{name}\"; rename one of them with NAME=PATH")).into()
            );
        }
        named.push((name, path.into()));
    }
    Ok(named)
}

/// The index name of a path: `news` for `/data/news.micpq`.
fn name_of(path: &Path) -> Result<String> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = name.ok_or_else(|| Error::config(format!("{} has no file name; write NAME=PATH", path.display())))?;
    Ok(name.strip_suffix(".micpq").unwrap_or(&name).to_owned())
}
