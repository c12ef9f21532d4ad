//! Sends requests as OpenTelemetry traces to a collector over OTLP, if the option `telemetry` names one.
//!
//! A request is a span that continues the caller's trace (`traceparent`). Its stages are child spans. A thread of its own
//! answers queries in batches, so stages are recorded afterwards, with their measured times.

use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use axum::http::{HeaderMap, StatusCode};
use engine::{Error, Result};
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

/// Instrumentation scope of the spans.
const SCOPE: &str = "micpq";

/// Time limit of a collector. A slow collector loses traces, but never delays requests.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Exports spans to a collector. Dropping it sends the remaining ones.
pub struct Telemetry(SdkTracerProvider);

impl Telemetry {
    /// Starts sending spans to `endpoint`, in batches on its own thread.
    pub fn start(endpoint: &str) -> Result<Telemetry> {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Post(ureq::Agent::new_with_config(
                ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).http_status_as_error(false).build(),
            )))
            .with_endpoint(endpoint)
            .with_timeout(TIMEOUT)
            .build()
            .map_err(|e| Error::config(format!("telemetry = {endpoint:?}: {e}")))?;
        // The builder reads OTEL_RESOURCE_ATTRIBUTES. OTEL_SERVICE_NAME overrides our name.
        let name = std::env::var("OTEL_SERVICE_NAME").unwrap_or_else(|_| SCOPE.to_owned());
        let resource = Resource::builder()
            .with_service_name(name)
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
        global::set_tracer_provider(provider.clone());
        Ok(Telemetry(provider))
    }

    /// Converts spans of `tracing` to OpenTelemetry.
    pub fn tracer(&self) -> SdkTracer {
        self.0.tracer(SCOPE)
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        if let Err(error) = self.0.shutdown_with_timeout(TIMEOUT) {
            tracing::warn!(%error, "cannot send the last traces");
        }
    }
}

/// Makes a request's span part of the caller's trace.
pub fn join(span: &Span, headers: &HeaderMap) {
    let caller = TraceContextPropagator::new().extract(&HeaderExtractor(headers));
    if caller.span().span_context().is_valid() {
        // Fails only without a collector: then there is no trace.
        let _ = span.set_parent(caller);
    }
}

/// Names a request's span by its route and adds the attributes of OpenTelemetry's HTTP conventions.
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

/// Records the stages of an answer as child spans of its request. The request arrived at `since` and waited for `wait`.
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

/// Sends requests with ureq, the HTTP client of micpq. It may block: the exporter has its own thread.
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
