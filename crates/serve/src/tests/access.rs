//! Keys, hosts and origins.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn keys_allow_what_their_role_allows() {
    let keys: Vec<(String, String)> =
        [Role::Read, Role::Write, Role::Admin].into_iter().map(|r| crate::new_key(r).unwrap()).collect();
    let lines: String = keys.iter().map(|(_, lines)| lines.as_str()).collect();
    let bench = Bench::new(|config| {
        config.keys = ServeConfig::load(None, std::iter::empty(), lines.parse().unwrap()).unwrap().keys;
    });
    let ask = |key: Option<usize>, method: &'static str, path: &'static str, body: Value| {
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let request = match key {
            Some(i) => request.header("authorization", format!("Bearer {}", keys[i].0)),
            None => request,
        };
        bench.send(request.body(Body::from(body.to_string())).unwrap())
    };
    let new = json!({ "documents": [document(1)] });
    for (method, path, body, min_key) in [
        ("GET", "/v1/indexes", json!({}), 0),
        ("GET", "/metrics", json!({}), 0),
        ("POST", "/v1/indexes/news/query", json!({ "vector": vector(1) }), 0),
        ("PUT", "/v1/indexes/news/documents", new.clone(), 1),
        ("POST", "/v1/indexes/news/documents/delete", json!({ "ids": [] }), 1),
        ("PUT", "/v1/indexes/copy", json!({ "like": "news" }), 2),
        ("DELETE", "/v1/indexes/copy", json!({}), 2),
    ] {
        assert_eq!(ask(None, method, path, body.clone()).await.status, 401, "{method} {path}");
        for (i, _) in keys.iter().enumerate() {
            let reply = ask(Some(i), method, path, body.clone()).await;
            assert_eq!(reply.status == 403, i < min_key, "key {i}: {method} {path}: {}", reply.text);
            assert!(i < min_key || reply.status < 300, "key {i}: {method} {path}: {}", reply.text);
        }
    }
    for path in ["/healthz", "/readyz", "/v1/version", "/openapi.json", "/docs", "/"] {
        assert_eq!(ask(None, "GET", path, json!({})).await.status, 200, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_hosts_and_origins_are_refused() {
    let bench = Bench::new(|config| config.hosts = vec!["search.example".into()]);
    for (host, status) in [
        ("localhost", 200),
        ("127.0.0.1:6380", 200),
        ("[::1]:6380", 200),
        ("search.example:80", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
    ] {
        let request =
            Request::builder().uri("/v1/indexes").header("host", host).header("origin", "http://evil.example");
        let reply = bench.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(reply.status, status, "{host}");
        assert!(!reply.headers.contains_key("access-control-allow-origin"));
    }
    let bench = Bench::new(|config| config.cors_origins = vec!["https://page.example".into()]);
    let request =
        Request::builder().uri("/v1/indexes").header("host", "localhost").header("origin", "https://page.example");
    let reply = bench.send(request.body(Body::empty()).unwrap()).await;
    assert_eq!(reply.headers["access-control-allow-origin"], "https://page.example");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_other_sites_are_refused() {
    let bench = Bench::new(|config| config.cors_origins = vec!["https://page.example".into()]);
    bench.fill(3).await;
    let routes = described();
    assert!(routes.len() > 25, "{routes:?}");
    let ask = |method: &str, path: &str, headers: &[(&str, &str)]| {
        let mut request = Request::builder().method(method).uri(path).header("host", "localhost:6380");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        bench.send(request.body(Body::empty()).unwrap())
    };
    let foreign: [&[(&str, &str)]; 10] = [
        &[("origin", "http://evil.example")],
        &[("origin", "null")],
        &[("origin", "http://localhost")],
        &[("origin", "http://localhost:6381")],
        &[("origin", "http://localhost:6380.evil.example")],
        &[("origin", "ftp://localhost:6380")],
        &[("origin", "https://page.example.evil.example")],
        &[("origin", "http://evil.example"), ("sec-fetch-site", "same-origin")],
        &[("sec-fetch-site", "cross-site")],
        &[("sec-fetch-site", "same-site")],
    ];
    let own: [&[(&str, &str)]; 5] = [
        &[("origin", "http://localhost:6380"), ("sec-fetch-site", "same-origin")],
        &[("origin", "http://LOCALHOST:6380")],
        &[("origin", "https://page.example"), ("sec-fetch-site", "cross-site")],
        &[("sec-fetch-site", "none")],
        &[],
    ];
    for (method, path) in &routes {
        let open = method == "GET" && !path.starts_with("/v1/indexes/") && path != "/metrics";
        for headers in foreign {
            let reply = ask(method, path, headers).await;
            if open {
                assert_ne!(reply.status, 403, "{method} {path} {headers:?}: {}", reply.text);
            } else {
                assert_eq!((reply.status, reply.code()), (403, "cross_site"), "{method} {path} {headers:?}");
            }
        }
    }
    assert_eq!(bench.ok("POST", "/v1/indexes/news/count", json!({})).await["count"], 3, "nothing was changed");
    assert_eq!(bench.get("/v1/jobs").await.body["jobs"], json!([]), "no job was started");
    for headers in own {
        for (method, path) in routes.iter().filter(|(method, _)| method != "DELETE") {
            let reply = ask(method, path, headers).await;
            assert_ne!(reply.status, 403, "{method} {path} {headers:?}: {}", reply.text);
        }
    }
    // A link of another site leads to the page.
    let link = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
    for path in ["/", "/page/app.js", "/docs", "/openapi.json"] {
        assert_eq!(ask("GET", path, &link).await.status, 200, "{path}");
    }
    let preflight = [("origin", "http://evil.example"), ("access-control-request-method", "POST")];
    let reply = ask("OPTIONS", "/v1/indexes/news/query", &preflight).await;
    assert!(!reply.headers.contains_key("access-control-allow-origin"), "{:?}", reply.headers);
}
