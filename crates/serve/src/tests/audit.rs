//! The audit log, and the drain of a stop.

use std::io::Write;

use parking_lot::Mutex;
use tracing_subscriber::prelude::*;

use super::*;
use crate::config::LogFormat;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn take(&self) -> Vec<Value> {
        let text = String::from_utf8(std::mem::take(&mut *self.0.lock())).unwrap();
        text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["fields"].clone()).collect()
    }
}

// One thread, so that the log of this test is that of everything it does.
#[tokio::test]
async fn admin_actions_are_recorded_with_their_outcome_and_refused_ones_too() {
    let written = Lines::default();
    let own = written.clone();
    let quiet = ServeConfig { log: "off".into(), log_format: LogFormat::Json, ..ServeConfig::default() };
    let (layers, _) = crate::log::layers(&quiet, move || own.clone(), false).unwrap();
    let _log = tracing::subscriber::set_default(tracing_subscriber::registry().with(layers));

    let keys = [Role::Write, Role::Admin].map(|role| crate::new_key(role).unwrap());
    let lines: String = keys.iter().map(|(_, lines)| lines.as_str()).collect();
    let bench = Bench::new(|config| {
        config.keys = ServeConfig::load(None, std::iter::empty(), lines.parse().unwrap()).unwrap().keys;
    });
    let [writer, admin] = [0, 1].map(|i| bench.server.config.keys[i].name.as_str());
    let ask = async |key: &str, method: &str, path: &str, body: Value| {
        let request = Request::builder().method(method).uri(path).header("host", "localhost:6380");
        let request = request.header("content-type", "application/json").header("api-key", key);
        bench.send(request.body(Body::from(body.to_string())).unwrap()).await.status
    };
    let [write, all] = [0, 1].map(|i| keys[i].0.as_str());
    for (key, name, method, path, body, status) in [
        (all, admin, "PUT", "/v1/indexes/copy", json!({ "like": "news" }), 201),
        (all, admin, "PUT", "/v1/indexes/copy", json!({ "like": "news" }), 409),
        (write, writer, "DELETE", "/v1/indexes/copy", json!({}), 403),
        ("micpq-guessed", "none", "DELETE", "/v1/indexes/copy", json!({}), 401),
        (all, admin, "DELETE", "/v1/indexes/copy", json!({}), 204),
        (all, admin, "POST", "/v1/indexes/nobody/train", json!({}), 404),
    ] {
        assert_eq!(ask(key, method, path, body).await, status);
        let seen = written.take();
        assert_eq!(seen.len(), 1, "{seen:?}");
        assert_eq!(
            (&seen[0]["key"], &seen[0]["method"], &seen[0]["path"], &seen[0]["status"]),
            (&json!(name), &json!(method), &json!(path), &json!(status)),
            "{seen:?}"
        );
        assert!(seen[0]["request"].as_str().unwrap().len() > 10, "{seen:?}");
    }
    // What is no admin action is not in it.
    assert_eq!(ask(write, "PUT", "/v1/indexes/news/documents", json!({ "documents": [document(1)] })).await, 200);
    assert_eq!(ask(all, "GET", "/v1/indexes", json!({})).await, 200);
    assert!(written.take().is_empty());
    // A caller who does not wait for the answer: the action is recorded without an outcome.
    let request = Request::builder().method("PUT").uri("/v1/indexes/late").header("host", "localhost:6380");
    let request = request.header("content-type", "application/json").header("api-key", all);
    let request = request.body(Body::from(json!({ "like": "news" }).to_string())).unwrap();
    drop(tokio::time::timeout(Duration::ZERO, bench.send(request)).await);
    let seen = written.take();
    assert!(seen.len() == 1 && seen[0].get("status").is_none() && seen[0]["key"] == *admin, "{seen:?}");
}
