"""Metrics of one front, for Prometheus, with the names of the server."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

#: As of the server: from a short search to the default time limit of a request.
_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Counts of the requests that this process answered."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "micpq_http_requests", "Requests answered.", ["method", "route", "status"], registry=self.registry
        )
        self.seconds = Histogram("micpq_http_request_seconds", "Time of a request.", ["route"], buckets=_SECONDS, registry=self.registry)
        self.documents = Gauge("micpq_documents", "Documents, without deleted ones.", ["index"], registry=self.registry)
        self.shards = Gauge("micpq_shards", "Shards.", ["index"], registry=self.registry)
        self.missing = Counter("micpq_partial_answers", "Answers without a shard.", registry=self.registry)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Counts a request. ``route`` is the operation, so that paths do not become labels."""
        self.requests.labels(method if method in ("GET", "HEAD", "POST", "PUT", "DELETE") else "other", route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def text(self, index: str, documents: int, shards: int) -> bytes:
        """All metrics in the text format of Prometheus."""
        self.documents.labels(index).set(documents)
        self.shards.labels(index).set(shards)
        return generate_latest(self.registry)
