//! Requests as OpenTelemetry traces, sent to a collector over OTLP when one is named (`telemetry`).
//!
//! A request is a span that continues the caller's trace (`traceparent`); its stages are the spans below it. Queries are
//! answered in batches on a thread of their own, so the stages are written when they are over, with the times they took.

use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use axum::http::{HeaderMap, StatusCode};
use micpq::{Error, Result};
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{Span as _, Status, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{KeyValue, global};
use opentelemetry_http::{Bytes, HeaderExtractor, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The name our spans are known by.
const SCOPE: &str = "micpq";

/// A collector that takes longer is not waited for: traces are dropped, never requests.
const PATIENCE: Duration = Duration::from_secs(5);

/// Spans on their way to a collector; dropped, it sends what it still holds.
pub struct Telemetry(SdkTracerProvider);

impl Telemetry {
    /// Sends spans to `endpoint` from now on, in batches from a thread of its own.
    pub fn start(endpoint: &str) -> Result<Telemetry> {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Post(ureq::Agent::new_with_config(
                ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).http_status_as_error(false).build(),
            )))
            .with_endpoint(endpoint)
            .with_timeout(PATIENCE)
            .build()
            .map_err(|e| Error::config(format!("telemetry = {endpoint:?}: {e}")))?;
        // OTEL_RESOURCE_ATTRIBUTES is read by the builder; the name is ours unless OTEL_SERVICE_NAME gives another.
        let name = std::env::var("OTEL_SERVICE_NAME").unwrap_or_else(|_| SCOPE.to_owned());
        let resource = Resource::builder()
            .with_service_name(name)
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
        global::set_tracer_provider(provider.clone());
        Ok(Telemetry(provider))
    }

    /// What turns spans of `tracing` into ours.
    pub fn tracer(&self) -> SdkTracer {
        self.0.tracer(SCOPE)
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        if let Err(error) = self.0.shutdown_with_timeout(PATIENCE) {
            tracing::warn!(%error, "the last traces could not be sent");
        }
    }
}

/// Joins a request's span to the trace its caller is in.
pub fn join(span: &Span, headers: &HeaderMap) {
    let caller = TraceContextPropagator::new().extract(&HeaderExtractor(headers));
    if caller.span().span_context().is_valid() {
        // Without a collector there is no trace to join.
        let _ = span.set_parent(caller);
    }
}

/// Names a request's span by its route, as the conventions for HTTP have it. In the log these stand on the line already.
pub fn answered(span: &Span, method: &'static str, route: &str, status: StatusCode) {
    let context = span.context();
    let otel = context.span();
    if !otel.is_recording() {
        return;
    }
    otel.update_name(format!("{method} {route}"));
    otel.set_attribute(KeyValue::new("http.request.method", method));
    otel.set_attribute(KeyValue::new("http.route", route.to_owned()));
    otel.set_attribute(KeyValue::new("http.response.status_code", i64::from(status.as_u16())));
    if status.is_server_error() {
        otel.set_status(Status::error(status.to_string()));
    }
}

/// Writes the stages of an answer under the span of the request that asked: `since` it waited, then one after the other.
pub fn stages(request: &Span, since: Instant, wait: Duration, stages: &[(&'static str, Duration)]) {
    let parent = request.context();
    if !parent.span().span_context().is_sampled() {
        return;
    }
    let tracer = global::tracer(SCOPE);
    let mut at = SystemTime::now() - since.elapsed();
    for (name, time) in std::iter::once(&("wait", wait)).chain(stages).filter(|(_, time)| !time.is_zero()) {
        let mut span = tracer.span_builder(*name).with_start_time(at).start_with_context(&tracer, &parent);
        at += *time;
        span.end_with_timestamp(at);
    }
}

/// Posts with the client the rest of micpq fetches with. It blocks, as it may on the exporter's own thread.
#[derive(Debug)]
struct Post(ureq::Agent);

#[async_trait]
impl HttpClient for Post {
    async fn send_bytes(&self, request: Request<Bytes>) -> std::result::Result<Response<Bytes>, HttpError> {
        let (parts, body) = request.into_parts();
        let answer = self.0.run(Request::from_parts(parts, body.to_vec()))?;
        let (parts, mut body) = answer.into_parts();
        Ok(Response::from_parts(parts, Bytes::from(body.read_to_vec()?)))
    }
}
