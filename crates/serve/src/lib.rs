//! Indexes over HTTP.
//!
//! A request comes through [`listen`], passes the [`keys`], is read by [`extract`] and lands in one of the `routes`. There a
//! query joins the [`queries`] that wait for the same index and a write its [`writes`]: both queues are short, so that a
//! caller is told to come again rather than kept waiting, and what waits together is done together. Whatever goes wrong
//! is a [`problem`] with a code that never changes.
//!
//! Invariants: an acknowledged write is on disk. A request is met whole or not at all. Nothing a caller sends ends in a
//! status of 500.

pub mod config;
pub mod problem;

mod extract;
mod hosted;
mod insight;
mod jobs;
mod keys;
mod listen;
mod metrics;
mod queries;
mod retrain;
mod routes;
mod server;
#[cfg(test)]
mod tests;
mod writes;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use micpq::{Error, Result, Watch};
use tokio::net::TcpListener;

use config::LogFormat;
pub use config::ServeConfig;
pub use keys::new_key;
use server::Server;

/// The description of the interface as OpenAPI 3.1, in JSON.
pub fn openapi() -> String {
    routes::openapi().to_pretty_json().expect("the description has a JSON form")
}

/// Writes the log to standard error from now on. The first call counts.
pub fn start_log(config: &ServeConfig) -> Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_new(&config.log)
        .map_err(|e| Error::config(format!("log = {:?}: {e}; write it like info or warn,serve=debug", config.log)))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let _ = match config.log_format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    Ok(())
}

/// Serves until `watch` is interrupted; `tell` gets the address once it is bound.
///
/// A stop closes the listener, answers what was accepted, writes what was acknowledged or waits to be, and cancels jobs.
pub fn run(config: ServeConfig, watch: &dyn Watch, tell: impl FnOnce(SocketAddr)) -> Result<()> {
    config.validate()?;
    let tls = listen::tls(&config)?;
    let server = Arc::new(Server::new(config));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::config(format!("threads cannot be started: {e}")))?;
    let result = runtime.block_on(async {
        let address = server.config.listen;
        let busy = |e: std::io::Error| {
            Error::Busy(format!("{address} cannot be listened on: {e}; choose another with --listen"))
        };
        let listener = TcpListener::bind(address).await.map_err(busy)?;
        let bound = listener.local_addr().map_err(busy)?;
        let opening = server.clone();
        let opened = tokio::task::spawn_blocking(move || opening.open());
        opened.await.map_err(|e| Error::config(format!("the indexes cannot be opened: {e}")))??;
        server.set_ready(true);
        tell(bound);
        tracing::info!(%bound, tls = tls.is_some(), keys = server.config.keys.len(), "listening");
        let following = tokio::spawn(follow(server.clone()));
        let app = routes::router(server.clone());
        let finished = listen::run(listener, tls, app, &server.config, server.metrics.clone(), async {
            while !watch.interrupted() {
                tokio::time::sleep(Duration::from_millis(25)).await;
            }
            server.set_ready(false);
            tracing::info!("stopping: what was accepted is finished first");
        })
        .await;
        following.abort();
        if !finished {
            tracing::warn!("some requests were still under way when the time to stop was up");
        }
        Ok(())
    });
    server.jobs.stop();
    // The runtime goes first, then the last owner of the server: the queues write what they hold.
    runtime.shutdown_timeout(Duration::from_secs(1));
    drop(server);
    tracing::info!("stopped");
    result
}

/// Turns to commits of other programs.
async fn follow(server: Arc<Server>) {
    let mut ticks = tokio::time::interval(Duration::from_secs_f64(server.config.reload_seconds));
    loop {
        ticks.tick().await;
        let own = server.clone();
        let _ = tokio::task::spawn_blocking(move || own.indexes().iter().for_each(|hosted| hosted.follow())).await;
    }
}
