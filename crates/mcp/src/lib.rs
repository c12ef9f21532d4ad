//! Indexes as tools of an assistant, over the Model Context Protocol.
//!
//! An assistant starts the program and talks to it over standard input and output, or reaches it over HTTP on the same machine.
//! It can search the indexes and read their documents; nothing here writes. [`tools`] is what an assistant sees, [`indexes`]
//! what is behind it. An answer has a bounded size, because an assistant pays for every word: the whole text of a document
//! comes in parts.
//!
//! Invariants: a call that fails is an answer with a text that says what to change. Standard output has only messages of the
//! protocol.
//!
//! This program serves an index over HTTP until it has been asked once. An assistant that starts a program talks to it over
//! standard input and output instead: leave `listen` out.
//!
//! ```
//! use std::io::{Read, Write};
//! use std::net::TcpStream;
//! use std::sync::atomic::{AtomicBool, Ordering};
//!
//! use engine::index::{Index, IndexConfig};
//! use engine::model::Model;
//! use engine::{NoProgress, Progress};
//! use mcp::{McpConfig, PATH};
//!
//! /// Stops the server when it is set.
//! #[derive(Default)]
//! struct Stop(AtomicBool);
//!
//! impl Progress for Stop {
//!     fn interrupted(&self) -> bool {
//!         self.0.load(Ordering::Relaxed)
//!     }
//! }
//!
//! let dir = tempfile::tempdir()?;
//! let index = dir.path().join("news.micpq");
//! let model = Model::load("../engine/tests/data/index-3/model".as_ref())?;
//! Index::create(&index, &model, IndexConfig::default())?;
//!
//! let config = McpConfig {
//!     indexes: vec![("news".into(), index)],
//!     listen: Some(([127, 0, 0, 1], 0).into()),
//!     ..McpConfig::default()
//! };
//! let hello = r#"{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18",
//!     "capabilities": {}, "clientInfo": {"name": "example", "version": "1"}}}"#;
//! let stop = &Stop::default();
//! std::thread::scope(|scope| {
//!     mcp::run(&config, stop, |address| {
//!         let ask = move || -> std::io::Result<String> {
//!             let mut stream = TcpStream::connect(address)?;
//!             write!(
//!                 stream,
//!                 "POST {PATH} HTTP/1.1\r\nHost: {address}\r\nAccept: application/json, text/event-stream\r\n\
//!                  Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{hello}",
//!                 hello.len()
//!             )?;
//!             let mut answer = String::new();
//!             stream.read_to_string(&mut answer)?;
//!             Ok(answer)
//!         };
//!         scope.spawn(move || {
//!             let answer = ask();
//!             stop.0.store(true, Ordering::Relaxed);
//!             assert!(answer.unwrap().contains("serverInfo"));
//!         });
//!     })
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod brief;
mod catalog;
mod documents;
mod http;
mod indexes;
mod search;
mod subjects;
mod tools;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use engine::encoder::QueryEncoder;
use engine::{Error, Progress, Result};
use rmcp::service::ServerInitializeError;
use rmcp::transport::stdio;

pub use http::PATH;
use indexes::Indexes;
use tools::Tools;

/// The options of the server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct McpConfig {
    /// Index directories, or folders of shards, with the names that an assistant uses.
    pub indexes: Vec<(String, PathBuf)>,
    /// Which encoder reads the texts of queries.
    pub query_encoder: QueryEncoder,
    /// Address of streamable HTTP, on this machine. `None`: standard input and output.
    pub listen: Option<SocketAddr>,
}

impl McpConfig {
    pub fn validate(&self) -> Result<()> {
        if self.indexes.is_empty() {
            return Err(Error::config("no index is given; name at least one"));
        }
        for (i, (name, _)) in self.indexes.iter().enumerate() {
            if self.indexes[..i].iter().any(|(other, _)| other == name) {
                return Err(Error::config(format!(
                    "two indexes are named \"{name}\"; rename one of them with NAME=PATH"
                )));
            }
        }
        // There is no key, so only programs of this machine may connect.
        if let Some(address) = self.listen.filter(|address| !address.ip().is_loopback()) {
            return Err(Error::option(
                "listen",
                format!(
                    "is {address}, which other machines reach, and this server has no keys; give an address such as 127.0.0.1:{}, \
                 and let a proxy with keys forward to it",
                    address.port()
                ),
            ));
        }
        Ok(())
    }
}

/// Opens the indexes and serves until the client is gone or `progress` is interrupted. `on_bound` gets the address of HTTP.
pub fn run(config: &McpConfig, progress: &dyn Progress, on_bound: impl FnOnce(SocketAddr)) -> Result<()> {
    config.validate()?;
    let stop = Arc::new(AtomicBool::new(false));
    let indexes = Indexes::open(&config.indexes, config.query_encoder, progress)?;
    let tools = Tools::new(indexes, stop.clone());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::config(format!("cannot start threads: {e}")))?;
    let interrupted = async {
        while !progress.interrupted() {
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        stop.store(true, Ordering::SeqCst);
    };
    let result = runtime.block_on(async {
        match config.listen {
            Some(address) => http::serve(tools, address, interrupted, on_bound).await,
            None => tokio::select! {
                result = over_stdio(tools) => result,
                () = interrupted => Ok(()),
            },
        }
    });
    stop.store(true, Ordering::SeqCst);
    // A thread may be blocked in a read of standard input, which nothing ends.
    runtime.shutdown_background();
    result
}

async fn over_stdio(tools: Tools) -> Result<()> {
    let failed = |e: &dyn std::fmt::Display| Error::input("standard input", e.to_string());
    let service = match rmcp::serve_server(tools, stdio()).await {
        Ok(service) => service,
        // The client left before it began.
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(failed(&error)),
    };
    service.waiting().await.map(drop).map_err(|e| failed(&e))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(names: &[&str], listen: Option<&str>) -> McpConfig {
        McpConfig {
            indexes: names.iter().map(|name| ((*name).to_owned(), PathBuf::from(name))).collect(),
            listen: listen.map(|address| address.parse().unwrap()),
            ..McpConfig::default()
        }
    }

    #[test]
    fn options_that_cannot_work_are_refused() {
        assert!(config(&["news"], Some("127.0.0.1:0")).validate().is_ok());
        assert!(config(&["news"], Some("[::1]:80")).validate().is_ok());
        for (config, word) in [
            (config(&[], None), "no index"),
            (config(&["news", "notes", "news"], None), "\"news\""),
            (config(&["news"], Some("0.0.0.0:8000")), "127.0.0.1:8000"),
        ] {
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
