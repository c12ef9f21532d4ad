//! Serves indexes over HTTP.
//!
//! [`listen`] accepts a request, [`keys`] checks its key, [`extract`] parses it and one of the `routes` handles it. A query
//! joins the queue [`queries`] of its index, a write the queue [`writes`]. Both queues are short: a full queue refuses a
//! request instead of delaying it. Requests that wait together are executed together. Every failure is a [`problem`] with a
//! stable code.
//!
//! Invariants: an acknowledged write is on disk. A request succeeds completely or changes nothing. No input of a caller
//! leads to status 500.
//!
//! This program serves until it has been asked once:
//!
//! ```
//! use std::io::{Read, Write};
//! use std::net::TcpStream;
//! use std::sync::atomic::{AtomicBool, Ordering};
//!
//! use engine::Progress;
//! use serve::ServeConfig;
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
//! // Port 0 is any free one. `indexes` names the directories that are served; here there are none.
//! let config = ServeConfig { listen: ([127, 0, 0, 1], 0).into(), ..ServeConfig::default() };
//! let stop = &Stop::default();
//! std::thread::scope(|scope| {
//!     serve::run(config, stop, |address| {
//!         let ask = move || -> std::io::Result<String> {
//!             let mut stream = TcpStream::connect(address)?;
//!             write!(stream, "GET /healthz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
//!             let mut answer = String::new();
//!             stream.read_to_string(&mut answer)?;
//!             Ok(answer)
//!         };
//!         scope.spawn(move || {
//!             let answer = ask();
//!             stop.0.store(true, Ordering::Relaxed);
//!             assert!(answer.unwrap().starts_with("HTTP/1.1 200"));
//!         });
//!     })
//! })?;
//! # Ok::<(), engine::Error>(())
//! ```

pub mod config;
pub mod problem;
#[macro_use]
mod schema;
mod id;
mod whole;

mod listen;
mod audit;
mod log;
mod telemetry;
mod keys;
mod limits;
mod bounds;
mod extract;
mod routes;

mod mapped;
mod settings;
mod server;
mod hosted;
mod queries;
mod writes;
mod scope;
mod jobs;
mod retrain;

mod metrics;

#[cfg(test)]
mod tests;

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::{Error, Progress, Result};
use tokio::net::TcpListener;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

pub use config::ServeConfig;
pub use keys::new_key;
use server::{Phase, Server};
pub use settings::RELOAD;
use telemetry::Telemetry;

/// The OpenAPI 3.1 description of the API, as JSON.
pub fn openapi() -> String {
    routes::openapi().to_pretty_json().expect("the description has a JSON form")
}

/// Writes the log and sends traces until it is dropped.
pub struct Observation {
    _telemetry: Option<Telemetry>,
}

/// Starts the log on standard error, and traces to a collector if one is configured. Only the first call has an effect.
pub fn observe(config: &ServeConfig) -> Result<Observation> {
    // Colours only on a terminal, never in files.
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let (log, filter) = log::layers(config, std::io::stderr, colours)?;
    let telemetry = config.telemetry.as_deref().map(Telemetry::start).transpose()?;
    // The log filter does not apply to traces: a quiet log does not empty them.
    let traces = telemetry.as_ref().map(|telemetry| {
        let ours = Targets::new().with_target(module_path!(), tracing::Level::INFO);
        tracing_opentelemetry::layer().with_tracer(telemetry.tracer()).with_filter(ours)
    });
    if tracing_subscriber::registry().with(log).with(traces).try_init().is_ok() {
        filter.keep();
    }
    Ok(Observation { _telemetry: telemetry })
}

/// The routes of a server without a listener, with its indexes open: for fuzzing.
#[doc(hidden)]
pub fn router(config: ServeConfig) -> Result<axum::Router> {
    config.validate()?;
    let server = Arc::new(Server::new(config));
    server.open()?;
    server.set_phase(Phase::Serving);
    Ok(routes::router(server))
}

/// Serves until `progress` is interrupted. `on_bound` gets the bound address when the indexes are open. Health is answered before.
///
/// A stop first lets `/readyz` answer 503 for `drain_seconds`. Then it closes the listener, answers accepted requests,
/// commits waiting writes, and cancels jobs.
pub fn run(config: ServeConfig, progress: &dyn Progress, on_bound: impl FnOnce(SocketAddr)) -> Result<()> {
    config.validate()?;
    let tls = listen::Tls::new(&config)?;
    let server = Arc::new(Server::new(config));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::config(format!("cannot start threads: {e}")))?;
    let result = runtime.block_on(async {
        let address = server.config.listen;
        let busy = |e: std::io::Error| {
            Error::Busy(format!("cannot listen on {address}: {e}; choose another address (option listen)"))
        };
        let listener = TcpListener::bind(address).await.map_err(busy)?;
        let bound = listener.local_addr().map_err(busy)?;
        let opening = server.clone();
        let opened = tokio::task::spawn_blocking(move || opening.open());
        let max_connections = listen::max_connections(&server.config, server.expected_indexes());
        let (has_tls, app) = (tls.is_some(), routes::router(server.clone()));
        let (opens, is_open) = tokio::sync::oneshot::channel();
        let serving = listen::run(listener, tls, app, &server.config, max_connections, server.metrics.clone(), async {
            // A server that cannot open its indexes ends with their error.
            if is_open.await.is_err() {
                return std::future::pending().await;
            }
            while !progress.interrupted() {
                tokio::time::sleep(Duration::from_millis(25)).await;
            }
            server.set_phase(Phase::Stopping);
            let drain = server.settings.config().drain_seconds;
            if drain > 0.0 {
                tracing::info!(drain_seconds = drain, "draining: /readyz answers 503, requests are still accepted");
                tokio::time::sleep(Duration::from_secs_f64(drain)).await;
            }
            tracing::info!("stopping: accepted requests are finished first");
        });
        let mut serving = std::pin::pin!(serving);
        // Health is answered while the indexes are opened.
        let opened = tokio::select! {
            opened = opened => opened,
            _ = &mut serving => unreachable!("it serves until the indexes were opened"),
        };
        opened.map_err(|e| Error::config(format!("cannot open the indexes: {e}")))??;
        server.set_phase(Phase::Serving);
        on_bound(bound);
        tracing::info!(%bound, tls = has_tls, keys = server.config.keys.len(), "listening");
        let following = tokio::spawn(follow(server.clone()));
        let _ = opens.send(());
        let finished = serving.await;
        following.abort();
        if !finished {
            tracing::warn!("some requests were not finished within shutdown_seconds");
        }
        Ok(())
    });
    server.jobs.stop();
    // The runtime stops first. Dropping the last owner of the server then makes the queues commit what waits.
    runtime.shutdown_timeout(Duration::from_secs(1));
    drop(server);
    tracing::info!("stopped");
    result
}

/// Returns when somebody asks to read the config file again.
async fn asked() {
    while !RELOAD.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Follows the config file and commits of other programs, and retries unavailable indexes.
async fn follow(server: Arc<Server>) {
    let mut ticks = tokio::time::interval(Duration::from_secs_f64(server.config.reload_seconds));
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = asked() => {}
        }
        let own = server.clone();
        let _ = tokio::task::spawn_blocking(move || {
            own.settings.follow();
            own.indexes().iter().for_each(|hosted| hosted.follow(&own.encoders));
            own.retry_unavailable();
        })
        .await;
    }
}
