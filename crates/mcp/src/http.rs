//! The tools over streamable HTTP, for programs of this machine.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use engine::{Error, Result};
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::TcpListener;
use tokio::sync::Notify;

use crate::tools::Tools;

/// Where the protocol is on the server.
pub const PATH: &str = "/mcp";

/// Bytes of a request. A query text is the longest part of one.
const MAX_BODY_BYTES: usize = 1 << 20;

/// How long accepted calls may take after a stop.
const GRACE: Duration = Duration::from_secs(5);

/// Serves until `stop` is ready; accepted calls are answered.
pub async fn serve(
    tools: Tools,
    address: SocketAddr,
    stop: impl Future<Output = ()>,
    on_bound: impl FnOnce(SocketAddr),
) -> Result<()> {
    let busy = |e: std::io::Error| {
        Error::Busy(format!("cannot listen on {address}: {e}; choose another address (option listen)"))
    };
    let listener = TcpListener::bind(address).await.map_err(busy)?;
    on_bound(listener.local_addr().map_err(busy)?);
    // No call needs another one, so there are no sessions. A page of another site must not read the indexes through a browser:
    // only names of this machine are served, and no request that a page sends.
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(MAX_BODY_BYTES)
        .enforce_origin_validation();
    let service =
        StreamableHttpService::new(move || Ok(tools.clone()), Arc::new(NeverSessionManager::default()), config);
    let router = axum::Router::new().route_service(PATH, service);
    let stopping = Arc::new(Notify::new());
    let own = stopping.clone();
    let serving = axum::serve(listener, router).with_graceful_shutdown(async move { own.notified().await });
    let stopped = async {
        stop.await;
        stopping.notify_one();
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        result = serving.into_future() => result.map_err(busy),
        () = stopped => Ok(()),
    }
}
