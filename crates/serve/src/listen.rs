//! Connections: accepted up to a limit, wrapped in TLS where asked for, and finished before the server stops.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use micpq::{Error, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use crate::config::ServeConfig;
use crate::metrics::Metrics;

/// Time to shake hands, and to send the head of a request. An idle connection is closed after it too.
const PATIENCE: Duration = Duration::from_secs(60);

/// What TLS needs, where it is asked for.
pub fn tls(config: &ServeConfig) -> Result<Option<TlsAcceptor>> {
    let (Some(certificate), Some(key)) = (&config.tls_certificate, &config.tls_key) else { return Ok(None) };
    let bad = |path: &Path, problem: String| Error::format(path, format!("{problem}; it must be a PEM file"));
    let chain: Vec<CertificateDer> = CertificateDer::pem_file_iter(certificate)
        .and_then(|all| all.collect())
        .map_err(|e| bad(certificate, format!("holds no readable certificate: {e}")))?;
    if chain.is_empty() {
        return Err(bad(certificate, "holds no certificate".into()));
    }
    let private =
        PrivateKeyDer::from_pem_file(key).map_err(|e| bad(key, format!("holds no readable private key: {e}")))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut server = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private))
        .map_err(|e| bad(certificate, format!("cannot be used with {}: {e}", key.display())))?;
    server.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Some(TlsAcceptor::from(Arc::new(server))))
}

/// Serves until `stop`, then closes the listener and waits for the requests under way, at most as long as configured.
/// Returns whether all of them were finished.
pub async fn run(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    app: Router,
    config: &ServeConfig,
    metrics: Arc<Metrics>,
    stop: impl Future<Output = ()>,
) -> bool {
    let room = Arc::new(Semaphore::new(config.max_connections));
    let graceful = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = async {
            let permit = room.clone().acquire_owned().await.expect("never closed");
            (listener.accept().await, permit)
        };
        let (stream, permit) = tokio::select! {
            (accepted, permit) = accepted => match accepted {
                Ok((stream, _)) => (stream, permit),
                Err(error) => {
                    // Out of descriptors, or a connection gone before it was taken: others may still come.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = &mut stop => break,
        };
        let _ = stream.set_nodelay(true);
        let (app, tls, metrics, watcher) = (app.clone(), tls.clone(), metrics.clone(), graceful.watcher());
        tokio::spawn(async move {
            let _permit = permit;
            let _counted = Counted::new(metrics);
            if let Err(error) = connection(stream, tls, app, watcher).await {
                tracing::debug!(%error, "a connection ended early");
            }
        });
    }
    drop(listener);
    tokio::time::timeout(Duration::from_secs_f64(config.shutdown_seconds), graceful.shutdown()).await.is_ok()
}

async fn connection(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    app: Router,
    watcher: hyper_util::server::graceful::Watcher,
) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    let service = TowerToHyperService::new(app);
    match tls {
        None => watcher.watch(builder.serve_connection(TokioIo::new(stream), service)).await?,
        Some(acceptor) => {
            let stream = tokio::time::timeout(PATIENCE, acceptor.accept(stream)).await??;
            watcher.watch(builder.serve_connection(TokioIo::new(stream), service)).await?;
        }
    }
    Ok(())
}

/// Counts a connection as long as it lives.
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
