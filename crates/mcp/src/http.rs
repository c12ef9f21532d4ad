//! The tools over streamable HTTP, for programs of this machine.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::IntoResponse;
use engine::{Error, Result};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::tools::Tools;

/// Where the protocol is on the server.
pub const PATH: &str = "/mcp";

/// Bytes of a request. A query text is the longest part of one.
const MAX_BODY_BYTES: usize = 1 << 20;

/// What callers may hold.
#[derive(Clone, Copy)]
struct Limits {
    /// Connections at once; others wait. An assistant needs a few.
    connections: usize,
    /// Until when the head of a request is there. It also ends idle connections.
    head: Duration,
    /// Until when a call is read and answered. The first one may load an encoder.
    call: Duration,
}

const LIMITS: Limits = Limits { connections: 64, head: Duration::from_secs(30), call: Duration::from_secs(300) };

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
    run(listener, router, LIMITS, stop).await;
    Ok(())
}

async fn run(listener: TcpListener, router: axum::Router, limits: Limits, stop: impl Future<Output = ()>) {
    let limit_time = move |request: Request, next: Next| async move {
        let response = timeout(limits.call, next.run(request)).await;
        response.unwrap_or_else(|_| StatusCode::GATEWAY_TIMEOUT.into_response())
    };
    let router = router.layer(axum::middleware::from_fn(limit_time));
    let permits = Arc::new(Semaphore::new(limits.connections));
    let graceful = GracefulShutdown::new();
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.head);
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = async {
            let permit = permits.clone().acquire_owned().await.expect("it is never closed");
            (listener.accept().await, permit)
        };
        let (stream, permit): (TcpStream, _) = tokio::select! {
            (accepted, permit) = accepted => match accepted {
                Ok((stream, _)) => (stream, permit),
                Err(_) => {
                    // No descriptor was left, or the client is gone. Later connections may succeed.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = &mut stop => break,
        };
        let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router.clone()));
        let watched = graceful.watch(connection);
        tokio::spawn(async move {
            let _permit = permit;
            let _ = watched.await;
        });
    }
    drop(listener);
    let _ = timeout(GRACE, graceful.shutdown()).await;
}

#[cfg(test)]
mod tests {
    use axum::routing::{get, post};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut reply = String::new();
        let _ = stream.read_to_string(&mut reply).await;
        reply
    }

    #[tokio::test]
    async fn idle_connections_and_slow_bodies_end_and_others_are_served() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = axum::Router::new().route("/", get(|| async { "here" })).route("/", post(|_: String| async {}));
        let limits = Limits { connections: 2, head: Duration::from_millis(600), call: Duration::from_millis(300) };
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serving = tokio::spawn(run(listener, router, limits, async move { drop(stopped.await) }));
        let request = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        assert!(ask(address, request).await.ends_with("here"));
        // Two that send no head take both places.
        let idle = [TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap()];
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(timeout(Duration::from_millis(200), ask(address, request)).await.is_err());
        assert!(timeout(Duration::from_secs(5), ask(address, request)).await.unwrap().ends_with("here"));
        drop(idle);
        let slow = ask(address, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf");
        assert!(timeout(Duration::from_secs(5), slow).await.unwrap().starts_with("HTTP/1.1 504"));
        drop(stop);
        timeout(Duration::from_secs(10), serving).await.unwrap().unwrap();
    }
}
