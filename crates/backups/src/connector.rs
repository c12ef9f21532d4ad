//! Requests of an object store by the HTTP client that downloads encoders too.

use std::time::Duration;

use async_trait::async_trait;
use engine::internal::agent_config;
use http_body_util::BodyExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use ureq::Agent;
use ureq::http::{Method, Request, Response};

/// Without a byte for this long, a request is given up and sent again.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes of an answer. The largest is a part of a file.
const MAX_ANSWER_BYTES: u64 = 1 << 30;

#[derive(Debug)]
pub struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let failed = |e| object_store::Error::Generic { store: "S3", source: Box::new(e) };
        let config = agent_config(TIMEOUT).map_err(failed)?.http_status_as_error(false).build();
        Ok(HttpClient::new(Client(Agent::new_with_config(config))))
    }
}

#[derive(Debug)]
struct Client(Agent);

#[async_trait]
impl HttpService for Client {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let agent = self.0.clone();
        let sent = tokio::task::spawn_blocking(move || send(&agent, Request::from_parts(head, &body[..])));
        sent.await.map_err(|e| HttpError::new(HttpErrorKind::Unknown, e))?.map_err(|e| HttpError::new(kind(&e), e))
    }
}

fn send(agent: &Agent, request: Request<&[u8]>) -> Result<HttpResponse, ureq::Error> {
    let has_no_body = [Method::GET, Method::HEAD, Method::DELETE].contains(request.method());
    let response = if has_no_body { agent.run(request.map(drop))? } else { agent.run(request)? };
    let (head, mut body) = response.into_parts();
    let bytes = body.with_config().limit(MAX_ANSWER_BYTES).read_to_vec()?;
    Ok(Response::from_parts(head, HttpResponseBody::from(bytes)))
}

/// Tells the store which requests it may send again.
fn kind(error: &ureq::Error) -> HttpErrorKind {
    match error {
        ureq::Error::Timeout(_) => HttpErrorKind::Timeout,
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => HttpErrorKind::Connect,
        ureq::Error::Io(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => HttpErrorKind::Connect,
        ureq::Error::Io(_) => HttpErrorKind::Interrupted,
        _ => HttpErrorKind::Unknown,
    }
}
