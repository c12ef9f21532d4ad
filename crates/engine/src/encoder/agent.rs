//! The HTTP client that pulls encoders and asks services for embeddings.

use std::path::PathBuf;
use std::time::Duration;

use ureq::Agent;
use ureq::config::ConfigBuilder;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::typestate::AgentScope;

use super::package::setting;
use crate::{Error, Result};

/// A client that gives up after `timeout` without a connection, an answer or further bytes, and that trusts the certificates
/// of this machine.
pub fn agent_config(timeout: Duration) -> Result<ConfigBuilder<AgentScope>> {
    let config = Agent::config_builder()
        .timeout_connect(Some(timeout))
        .timeout_recv_response(Some(timeout))
        .timeout_per_read(Some(timeout))
        .user_agent("micpq");
    Ok(match certificates()? {
        Some(roots) => config.tls_config(TlsConfig::builder().root_certs(roots).build()),
        None => config,
    })
}

/// The certificates that this machine sets, in pip's settings, or for every program by `SSL_CERT_FILE`.
fn certificates() -> Result<Option<RootCerts>> {
    let named = setting("cert").or_else(|| std::env::var("SSL_CERT_FILE").ok().filter(|path| !path.is_empty()));
    let Some(path) = named.map(PathBuf::from) else { return Ok(None) };
    let pem = std::fs::read(&path).map_err(Error::io(&path))?;
    let certificates: Vec<_> = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        return Err(Error::format(
            &path,
            "holds no certificate in PEM form; correct PIP_CERT, SSL_CERT_FILE or pip.conf",
        ));
    }
    Ok(Some(RootCerts::new_with_certs(&certificates)))
}
