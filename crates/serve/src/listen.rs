//! Accepts connections up to a limit, adds TLS if configured, and finishes requests before the server stops.
//!
//! An idle connection costs only a descriptor. At the limit, a new connection closes the one that has been idle longest. A
//! connection with a request is never closed for another.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::body::{Body, HttpBody};
use engine::{Error, Result};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use crate::config::ServeConfig;
use crate::metrics::Metrics;

/// Time limit of the TLS handshake, of the head of a request, and of an idle connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);

/// A connection is not closed for another within this time: its request may be in transit.
const MIN_IDLE: Duration = Duration::from_millis(100);

/// Maximum size of a connection's own buffer for answers.
const MAX_BUFFER_BYTES: usize = 128 << 10;

/// Descriptors reserved for writers and per open index, so that connections cannot take those that a commit needs.
const RESERVED_DESCRIPTORS: usize = 256;
const RESERVED_PER_INDEX: usize = 32;

/// The number of connections that may be open: the configured one, or fewer if the process has too few descriptors for its
/// indexes and connections. Raises the descriptor limit of the process as far as allowed.
pub fn max_connections(config: &ServeConfig, indexes: usize) -> usize {
    let Some(limit) = raise_descriptor_limit() else { return config.max_connections };
    let used = std::fs::read_dir("/proc/self/fd").map_or(64, Iterator::count);
    let room = descriptors_for_connections(limit, used, indexes);
    if room >= config.max_connections {
        return config.max_connections;
    }
    tracing::warn!(
        limit,
        max_connections = room,
        configured = config.max_connections,
        "max_connections is lowered: the limit of open files (ulimit -n) is too small"
    );
    room
}

/// The number of descriptors for connections, without the reserved ones; at least 1.
fn descriptors_for_connections(limit: usize, used: usize, indexes: usize) -> usize {
    let reserved = (RESERVED_DESCRIPTORS + RESERVED_PER_INDEX * indexes).min(limit / 2);
    limit.saturating_sub(used + reserved).max(1)
}

#[cfg(unix)]
fn raise_descriptor_limit() -> Option<usize> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // If the system refuses, the current limit stays.
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let current = if setrlimit(Resource::Nofile, raised).is_ok() { limit.maximum } else { limit.current };
    current.map(|n| usize::try_from(n).unwrap_or(usize::MAX))
}

#[cfg(not(unix))]
fn raise_descriptor_limit() -> Option<usize> {
    None
}

/// A certificate and its key. They are read again when their files change.
pub struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    state: Mutex<TlsState>,
}

struct TlsState {
    acceptor: TlsAcceptor,
    stamp: Stamp,
    checked: Instant,
}

/// Modification times and sizes of both files.
type Stamp = [Option<(SystemTime, u64)>; 2];

/// Time between two checks of the files.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

impl Tls {
    /// Reads the certificate and key; `None` if TLS is not configured.
    pub fn new(config: &ServeConfig) -> Result<Option<Tls>> {
        let (Some(certificate), Some(key)) = (&config.tls_certificate, &config.tls_key) else { return Ok(None) };
        let stamp = stamp(certificate, key);
        let state = TlsState { acceptor: acceptor(certificate, key)?, stamp, checked: Instant::now() };
        Ok(Some(Tls { certificate: certificate.clone(), key: key.clone(), state: Mutex::new(state) }))
    }

    /// Uses the current certificate. An unusable new one is logged once, and the old one stays in use.
    fn acceptor(&self) -> TlsAcceptor {
        let mut state = self.state.lock();
        if state.checked.elapsed() >= CHECK_INTERVAL {
            state.checked = Instant::now();
            let stamp = stamp(&self.certificate, &self.key);
            if stamp != state.stamp {
                state.stamp = stamp;
                match acceptor(&self.certificate, &self.key) {
                    Ok(acceptor) => {
                        state.acceptor = acceptor;
                        tracing::info!(certificate = %self.certificate.display(), "using the new certificate");
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the new certificate cannot be used; the old one stays in use");
                    }
                }
            }
        }
        state.acceptor.clone()
    }
}

fn stamp(certificate: &Path, key: &Path) -> Stamp {
    [certificate, key].map(|path| {
        let data = std::fs::metadata(path).ok()?;
        Some((data.modified().ok()?, data.len()))
    })
}

fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor> {
    let bad = |path: &Path, problem: String| Error::format(path, format!("{problem}; give a PEM file"));
    let chain: Vec<CertificateDer> = CertificateDer::pem_file_iter(certificate)
        .and_then(std::iter::Iterator::collect)
        .map_err(|e| bad(certificate, format!("has no readable certificate: {e}")))?;
    if chain.is_empty() {
        return Err(bad(certificate, "has no certificate".into()));
    }
    let private =
        PrivateKeyDer::from_pem_file(key).map_err(|e| bad(key, format!("has no readable private key: {e}")))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut server = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private))
        .map_err(|e| bad(certificate, format!("cannot be used with {}: {e}", key.display())))?;
    server.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(server)))
}

/// Serves until `stop`, then closes the listener and waits for running requests, at most `shutdown_seconds`. Returns
/// whether all of them finished.
pub async fn run(
    listener: TcpListener,
    tls: Option<Tls>,
    app: Router,
    config: &ServeConfig,
    max_connections: usize,
    metrics: Arc<Metrics>,
    stop: impl Future<Output = ()>,
) -> bool {
    let permits = Arc::new(Semaphore::new(max_connections));
    let connections = Arc::new(Connections::default());
    let graceful = GracefulShutdown::new();
    let write_timeout = Duration::from_secs_f64(config.answer_timeout_seconds);
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = async {
            let stream = listener.accept().await;
            // A connection over the limit waits here.
            let permit = loop {
                match permits.clone().try_acquire_owned() {
                    Ok(permit) => break permit,
                    Err(_) => {
                        connections.close_longest_idle();
                        let next = tokio::time::timeout(MIN_IDLE, permits.clone().acquire_owned()).await;
                        if let Ok(Ok(permit)) = next {
                            break permit;
                        }
                    }
                }
            };
            (stream, permit)
        };
        let (stream, permit) = tokio::select! {
            (accepted, permit) = accepted => match accepted {
                Ok((stream, _)) => (stream, permit),
                Err(error) => {
                    // No descriptor was left, or the client disconnected early. Later connections may succeed.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = &mut stop => break,
        };
        let _ = stream.set_nodelay(true);
        let stream = WriteTimeout::new(stream, write_timeout);
        let tls = tls.as_ref().map(Tls::acceptor);
        let (app, metrics, watcher) = (app.clone(), metrics.clone(), graceful.watcher());
        let open = connections.add();
        tokio::spawn(async move {
            let _permit = permit;
            let _counted = Counted::new(metrics);
            let closed = open.connection.close.notified();
            tokio::select! {
                served = serve_connection(stream, tls, app, watcher, open.connection.clone()) => if let Err(error) = served {
                    tracing::debug!(%error, "a connection ended early");
                },
                () = closed => tracing::debug!("an idle connection is closed for another"),
            }
        });
    }
    drop(listener);
    tokio::time::timeout(Duration::from_secs_f64(config.shutdown_seconds), graceful.shutdown()).await.is_ok()
}

async fn serve_connection(
    stream: WriteTimeout<TcpStream>,
    tls: Option<TlsAcceptor>,
    app: Router,
    watcher: Watcher,
    connection: Arc<Connection>,
) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(MAX_BUFFER_BYTES);
    let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
        let (app, busy) = (app.clone(), connection.begin_request());
        async move {
            let busy = busy.ok_or_else(|| io::Error::from(io::ErrorKind::ConnectionAborted))?;
            let Ok(response) = app.oneshot(request).await;
            Ok::<_, io::Error>(response.map(|body| Body::new(BusyBody { body, _busy: busy })))
        }
    });
    match tls {
        None => watcher.watch(builder.serve_connection(TokioIo::new(stream), service)).await?,
        Some(acceptor) => {
            let stream = tokio::time::timeout(HEAD_TIMEOUT, acceptor.accept(stream)).await??;
            watcher.watch(builder.serve_connection(TokioIo::new(stream), service)).await?;
        }
    }
    Ok(())
}

/// The open connections by number.
#[derive(Default)]
struct Connections {
    next: Mutex<u64>,
    open: Mutex<BTreeMap<u64, Arc<Connection>>>,
}

/// An entry of [`Connections`] that lives as long as its connection.
struct OpenConnection {
    connection: Arc<Connection>,
    number: u64,
    all: Arc<Connections>,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.all.open.lock().remove(&self.number);
    }
}

impl Connections {
    fn add(self: &Arc<Self>) -> OpenConnection {
        let mut next = self.next.lock();
        *next += 1;
        let connection = Arc::new(Connection { state: Mutex::new(State::Idle(Instant::now())), close: Notify::new() });
        self.open.lock().insert(*next, connection.clone());
        OpenConnection { connection, number: *next, all: self.clone() }
    }

    /// Closes the connection that has been idle longest.
    fn close_longest_idle(&self) {
        let open = self.open.lock();
        let idle = |connection: &Arc<Connection>| match *connection.state.lock() {
            State::Idle(since) if since.elapsed() >= MIN_IDLE => Some((since, connection.clone())),
            _ => None,
        };
        let Some((since, connection)) = open.values().filter_map(idle).min_by_key(|(since, _)| *since) else { return };
        let mut state = connection.state.lock();
        // A request may have started in between.
        if matches!(*state, State::Idle(still) if still == since) {
            *state = State::Closed;
            connection.close.notify_one();
        }
    }
}

/// The state of a connection, and how others close it.
struct Connection {
    state: Mutex<State>,
    close: Notify,
}

enum State {
    Idle(Instant),
    Busy,
    Closed,
}

impl Connection {
    /// Marks the connection as busy. `None` if it is being closed.
    fn begin_request(self: &Arc<Self>) -> Option<Busy> {
        let mut state = self.state.lock();
        if matches!(*state, State::Closed) {
            return None;
        }
        *state = State::Busy;
        Some(Busy(self.clone()))
    }
}

/// A running request, from its head to the end of its answer.
struct Busy(Arc<Connection>);

impl Drop for Busy {
    fn drop(&mut self) {
        *self.0.state.lock() = State::Idle(Instant::now());
    }
}

/// The body of an answer. Its connection is not idle while it is sent.
struct BusyBody {
    body: Body,
    _busy: Busy,
}

impl HttpBody for BusyBody {
    type Data = bytes::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Bytes per second that a client reads at least, if writes wait for it.
const LEAST_BYTES_PER_SECOND: f64 = (32 << 10) as f64;

/// A stream whose writes fail if the client reads too slowly. Writes may wait for `timeout` in all, and for longer only as it
/// reads: each byte that it takes gives back the time that it needs at [`LEAST_BYTES_PER_SECOND`]. So a client that reads a
/// little now and then does not hold its answer for long.
struct WriteTimeout<S> {
    inner: S,
    timeout: Duration,
    /// Time that writes may still wait.
    left: Duration,
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl<S: Unpin> WriteTimeout<S> {
    fn new(inner: S, timeout: Duration) -> Self {
        WriteTimeout { inner, timeout, left: timeout, waiting: None }
    }

    /// Passes on the result of a write of `bytes`. A pending write fails when no time is left.
    fn with_deadline<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
        bytes: impl FnOnce(&T) -> usize,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(result) = &written {
            if let Some((since, _)) = self.waiting.take() {
                self.left = self.left.saturating_sub(since.elapsed());
            }
            let read = result.as_ref().map_or(0, bytes) as f64;
            self.left = (self.left + Duration::from_secs_f64(read / LEAST_BYTES_PER_SECOND)).min(self.timeout);
            return written;
        }
        let left = self.left;
        let new = || (Instant::now(), Box::pin(tokio::time::sleep(left)));
        let (_, deadline) = self.waiting.get_or_insert_with(new);
        if deadline.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its answer, or too slowly")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.with_deadline(cx, written, |bytes| *bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, bytes);
        self.with_deadline(cx, written, |bytes| *bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Only writes show that the client reads.
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.with_deadline(cx, ended, |()| 0)
    }
}

/// Counts an open connection in the metrics.
struct Counted(Arc<Metrics>);

impl Counted {
    fn new(metrics: Arc<Metrics>) -> Counted {
        metrics.connections.inc();
        Counted(metrics)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_client_that_reads_a_little_now_and_then_is_not_served_for_long() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let answer = async |bytes: usize, bytes_at_once: usize, pause: Duration| {
            let (server, mut client) = tokio::io::duplex(16 << 10);
            let mut stream = WriteTimeout::new(server, Duration::from_millis(500));
            let begun = Instant::now();
            let reader = tokio::spawn(async move {
                let mut buffer = vec![0; bytes_at_once];
                while client.read(&mut buffer).await.is_ok_and(|n| n > 0) {
                    tokio::time::sleep(pause).await;
                }
            });
            let written = stream.write_all(&vec![7; bytes]).await;
            let time = begun.elapsed();
            drop(stream);
            reader.abort();
            (written.is_ok(), time)
        };
        // Each pause is shorter than the time limit.
        for at_once in [1, 4 << 10] {
            let (whole, time) = answer(8 << 20, at_once, Duration::from_millis(400)).await;
            assert!(!whole && time < Duration::from_secs(4), "{at_once}: {whole}, {time:?}");
        }
        // A slow line takes longer than that in all.
        let (whole, time) = answer(128 << 10, 8 << 10, Duration::from_millis(100)).await;
        assert!(whole && time > Duration::from_secs(1), "{whole}, {time:?}");
    }

    #[test]
    fn descriptors_are_reserved_for_writers_and_indexes() {
        assert_eq!(descriptors_for_connections(1024, 40, 1), 1024 - 40 - 288);
        assert_eq!(descriptors_for_connections(100, 30, 3), 20);
        assert_eq!(descriptors_for_connections(64, 60, 1), 1);
        assert!(descriptors_for_connections(1 << 20, 100, 10) > 1_000_000);
    }
}
