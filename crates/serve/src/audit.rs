//! The audit log: every admin action with its outcome, also a refused one, at any log level.

use std::sync::Arc;

use axum::http::{Method, StatusCode};
use parking_lot::Mutex;

/// Target of the lines.
pub const TARGET: &str = "audit";

/// A line of the audit log, which is written when the request ends: with its status, or without one if its caller left.
#[derive(Clone)]
pub struct AuditEntry(Arc<Line>);

struct Line {
    method: Method,
    path: String,
    request: String,
    /// `None`: the request is no admin action. Then the name of the key; `None` on a server without keys, or without a known
    /// key.
    key: Mutex<Option<Option<String>>>,
    status: Mutex<Option<StatusCode>>,
}

impl AuditEntry {
    pub fn new(method: Method, path: &str, request: &str) -> AuditEntry {
        let (key, status) = (Mutex::new(None), Mutex::new(None));
        AuditEntry(Arc::new(Line { method, path: path.to_owned(), request: request.to_owned(), key, status }))
    }

    /// Marks the request as an admin action.
    pub fn open(&self, key: Option<&str>) {
        *self.0.key.lock() = Some(key.map(str::to_owned));
    }

    /// Records the outcome.
    pub fn answered(&self, status: StatusCode) {
        *self.0.status.lock() = Some(status);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let Some(key) = self.key.get_mut() else { return };
        let (key, path, request) = (key.as_deref().unwrap_or("none"), &self.path, &self.request);
        match *self.status.get_mut() {
            Some(status) => {
                let status = status.as_u16();
                tracing::info!(target: TARGET, key, method = %self.method, path, request, status, "admin action");
            }
            None => {
                tracing::info!(target: TARGET, key, method = %self.method, path, request, "admin action, its caller left");
            }
        }
    }
}
