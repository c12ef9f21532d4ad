//! Metrics of the server, for Prometheus.

use std::time::Duration;

use prometheus::{
    Encoder, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

pub struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    seconds: HistogramVec,
    stages: HistogramVec,
    batch: Histogram,
    commits: HistogramVec,
    committed: IntCounterVec,
    rejected: IntCounterVec,
    queue: IntGaugeVec,
    documents: IntGaugeVec,
    deleted: IntGaugeVec,
    segments: IntGaugeVec,
    bytes: GaugeVec,
    parts: IntGaugeVec,
    resident: IntGaugeVec,
    recall: GaugeVec,
    memory: IntGauge,
    pub connections: IntGauge,
}

/// Histogram buckets, from the scan of a small index (0.1 ms) to the default time limit of a request (30 s).
const SECONDS: [f64; 17] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// Windows of a measurement of recall, at most.
const MAX_WINDOWS: usize = 1000;

impl Default for Metrics {
    fn default() -> Self {
        Metrics::new()
    }
}

impl Metrics {
    pub fn new() -> Metrics {
        let registry = Registry::new();
        fn registered<C: prometheus::core::Collector + Clone + 'static>(
            registry: &Registry,
            created: prometheus::Result<C>,
        ) -> C {
            let collector = created.expect("names are well formed");
            registry.register(Box::new(collector.clone())).expect("names are distinct");
            collector
        }
        let opts = |name: &str, help: &str| Opts::new(format!("micpq_{name}"), help);
        let times = |name: &str, help: &str| HistogramOpts::from(opts(name, help)).buckets(SECONDS.to_vec());
        let r = &registry;
        Metrics {
            requests: registered(
                r,
                IntCounterVec::new(opts("http_requests_total", "Requests answered."), &["method", "route", "status"]),
            ),
            seconds: registered(r, HistogramVec::new(times("http_request_seconds", "Time of a request."), &["route"])),
            stages: registered(
                r,
                HistogramVec::new(
                    times("stage_seconds", "Time of a stage, per batch of queries (wait: of a query in the queue)."),
                    &["index", "stage"],
                ),
            ),
            batch: registered(
                r,
                Histogram::with_opts(
                    HistogramOpts::from(opts("batch_queries", "Queries per batch."))
                        .buckets(vec![1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0]),
                ),
            ),
            commits: registered(
                r,
                HistogramVec::new(times("commit_seconds", "Time of a commit, encoding included."), &["index"]),
            ),
            committed: registered(
                r,
                IntCounterVec::new(opts("committed_documents_total", "Documents added or deleted."), &["index"]),
            ),
            rejected: registered(
                r,
                IntCounterVec::new(opts("rejected_total", "Requests refused because a queue was full."), &["queue"]),
            ),
            queue: registered(r, IntGaugeVec::new(opts("queue_depth", "Requests waiting."), &["index", "queue"])),
            documents: registered(
                r,
                IntGaugeVec::new(opts("index_documents", "Documents, without deleted ones."), &["index"]),
            ),
            deleted: registered(
                r,
                IntGaugeVec::new(opts("index_deleted", "Deleted documents still on disk."), &["index"]),
            ),
            segments: registered(r, IntGaugeVec::new(opts("index_segments", "Segments."), &["index"])),
            bytes: registered(r, GaugeVec::new(opts("index_bytes", "Bytes on disk by part."), &["index", "part"])),
            parts: registered(
                r,
                IntGaugeVec::new(opts("index_memory_bytes", "Bytes that searches read, by part."), &["index", "part"]),
            ),
            resident: registered(
                r,
                IntGaugeVec::new(
                    opts("index_resident_bytes", "Those of index_memory_bytes in the memory of the process."),
                    &["index", "part"],
                ),
            ),
            recall: registered(
                r,
                GaugeVec::new(
                    opts(
                        "index_recall",
                        "Recall against exact float search, by window of insertion; all: of the index.",
                    ),
                    &["index", "window"],
                ),
            ),
            memory: registered(r, IntGauge::with_opts(Opts::new("process_resident_memory_bytes", "Resident memory."))),
            connections: registered(r, IntGauge::with_opts(opts("connections", "Open connections."))),
            registry,
        }
    }

    /// Counts an answered request.
    pub fn request(&self, method: &str, route: &str, status: u16, time: Duration) {
        self.requests.with_label_values(&[method, route, &status.to_string()]).inc();
        self.seconds.with_label_values(&[route]).observe(time.as_secs_f64());
    }

    pub fn stage(&self, index: &str, stage: &str, time: Duration) {
        self.stages.with_label_values(&[index, stage]).observe(time.as_secs_f64());
    }

    pub fn batch(&self, queries: usize) {
        self.batch.observe(queries as f64);
    }

    pub fn commit(&self, index: &str, changes: usize, time: Duration) {
        self.commits.with_label_values(&[index]).observe(time.as_secs_f64());
        self.committed.with_label_values(&[index]).inc_by(changes as u64);
    }

    /// Counts a request that a full queue refused.
    pub fn rejected(&self, queue: &str) {
        self.rejected.with_label_values(&[queue]).inc();
    }

    pub fn depth(&self, index: &str, queue: &str, depth: usize) {
        self.queue.with_label_values(&[index, queue]).set(depth as i64);
    }

    pub fn sizes(&self, index: &str, info: &engine::index::Info) {
        let set = |gauge: &IntGaugeVec, value: usize| gauge.with_label_values(&[index]).set(value as i64);
        set(&self.documents, info.documents);
        set(&self.deleted, info.deleted);
        set(&self.segments, info.segments);
        let bytes = &info.bytes;
        for (part, value) in [
            ("codes", bytes.codes),
            ("rerank_vectors", bytes.rerank_vectors),
            ("columns", bytes.columns),
            ("documents", bytes.documents),
            ("terms", bytes.terms),
            ("model", bytes.model),
            ("other", bytes.other),
        ] {
            self.bytes.with_label_values(&[index, part]).set(value as f64);
        }
        for (gauges, memory) in [(&self.parts, Some(&info.memory)), (&self.resident, info.resident.as_ref())] {
            let Some(memory) = memory else { continue };
            for (part, value) in [
                ("codes", memory.codes),
                ("ranks", memory.ranks),
                ("tables", memory.tables),
                ("filters", memory.filters),
            ] {
                gauges.with_label_values(&[index, part]).set(value as i64);
            }
        }
    }

    /// Shows a measurement of recall in place of the one before.
    pub fn recall(&self, index: &str, report: &engine::query::RecallReport) {
        self.forget_recall(index);
        self.recall.with_label_values(&[index, "all"]).set(report.recall);
        for (number, window) in report.windows.iter().enumerate() {
            self.recall.with_label_values(&[index, &number.to_string()]).set(window.recall);
        }
    }

    /// Removes recall of an index: another model answers now, or none.
    pub fn forget_recall(&self, index: &str) {
        let _ = self.recall.remove_label_values(&[index, "all"]);
        for number in 0..MAX_WINDOWS {
            if self.recall.remove_label_values(&[index, &number.to_string()]).is_err() {
                break;
            }
        }
    }

    /// Removes the metrics of a dropped index.
    pub fn forget(&self, index: &str) {
        self.forget_recall(index);
        for gauge in [&self.documents, &self.deleted, &self.segments] {
            let _ = gauge.remove_label_values(&[index]);
        }
        for part in ["codes", "rerank_vectors", "columns", "documents", "terms", "model", "other"] {
            let _ = self.bytes.remove_label_values(&[index, part]);
        }
        for part in ["codes", "ranks", "tables", "filters"] {
            let _ = self.parts.remove_label_values(&[index, part]);
            let _ = self.resident.remove_label_values(&[index, part]);
        }
        for queue in ["query", "write"] {
            let _ = self.queue.remove_label_values(&[index, queue]);
        }
    }

    /// All metrics in the text format of Prometheus.
    pub fn text(&self) -> String {
        if let Some(bytes) = resident_bytes() {
            self.memory.set(bytes as i64);
        }
        let mut out = Vec::new();
        let encoded = TextEncoder::new().encode(&self.registry.gather(), &mut out);
        encoded.expect("writing to memory");
        String::from_utf8(out).expect("the format is text")
    }
}

/// Resident memory in bytes, on Linux.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every metric that a text asks for.
    fn asked(text: &str) -> std::collections::BTreeSet<&str> {
        let names = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let own = names.filter(|name| name.starts_with("micpq_") || name.starts_with("process_"));
        own.map(|name| ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name))
            .collect()
    }

    #[test]
    fn dashboard_and_alerts_ask_for_metrics_that_there_are() {
        let metrics = Metrics::new();
        // A registry refuses a name that it has.
        let known = |name: &str| {
            metrics.registry.register(Box::new(IntGauge::new(name, "other").expect("a name is well formed"))).is_err()
        };
        assert!(known("micpq_connections") && !known("micpq_nothing"));
        for file in ["grafana.json", "alerts.yml"] {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../operations").join(file);
            let text = std::fs::read_to_string(path).expect("the file is in the tree");
            let asked = asked(&text);
            assert!(asked.len() >= 5, "{asked:?}");
            let unknown: Vec<_> = asked.into_iter().filter(|name| !known(name)).collect();
            assert!(unknown.is_empty(), "{file} asks for {unknown:?}, which are not metrics");
        }
    }

    /// Prometheus' own check. Debian's package prometheus has it.
    #[test]
    fn promtool_accepts_the_alert_rules() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../operations/alerts.yml");
        let program = std::env::var_os("MICPQ_PROMTOOL").unwrap_or_else(|| "promtool".into());
        match std::process::Command::new(program).args(["check", "rules"]).arg(path).output() {
            Ok(done) => {
                let said = String::from_utf8_lossy(&done.stdout);
                assert!(done.status.success() && said.contains("6 rules found"), "{done:?}");
            }
            Err(error) => {
                eprintln!("skipped: promtool is not installed ({error}), so the alert rules were not checked by it");
            }
        }
    }

    #[test]
    fn the_text_has_counts_times_and_depths() {
        let metrics = Metrics::new();
        metrics.request("GET", "/v1/indexes", 200, Duration::from_millis(3));
        metrics.stage("news", "encode", Duration::from_millis(7));
        metrics.depth("news", "query", 4);
        let text = metrics.text();
        for line in [
            "micpq_http_requests_total{method=\"GET\",route=\"/v1/indexes\",status=\"200\"} 1",
            "micpq_stage_seconds_bucket{index=\"news\",stage=\"encode\",le=\"0.01\"} 1",
            "micpq_stage_seconds_bucket{index=\"news\",stage=\"encode\",le=\"0.005\"} 0",
            "micpq_queue_depth{index=\"news\",queue=\"query\"} 4",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        metrics.forget("news");
        assert!(!metrics.text().contains("micpq_queue_depth{index=\"news\""));
    }
}
