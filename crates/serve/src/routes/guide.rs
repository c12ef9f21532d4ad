//! The API description: OpenAPI 3.1 for programs, and a self-contained page for people.

use std::fmt::Write;
use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use serde_json::Value;

use super::page::POLICY;
use crate::server::Server;

static JSON: LazyLock<String> =
    LazyLock::new(|| super::openapi().to_pretty_json().expect("the description has a JSON form"));
static PAGE: LazyLock<String> = LazyLock::new(|| page(&serde_json::from_str(&JSON).expect("the description is JSON")));

/// `/openapi.json` and `/docs`.
pub fn router() -> Router<Arc<Server>> {
    let json = || async { ([(header::CONTENT_TYPE, "application/json")], JSON.as_str()).into_response() };
    let html = || async {
        let headers = [(header::CONTENT_TYPE, "text/html; charset=utf-8"), (header::CONTENT_SECURITY_POLICY, POLICY)];
        (headers, PAGE.as_str()).into_response()
    };
    Router::new().route("/openapi.json", get(json)).route("/docs", get(html))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Escaped text, with backquoted parts as code.
fn prose(text: &str) -> String {
    let parts = escaped(text);
    let mut out = String::new();
    for (i, part) in parts.split('`').enumerate() {
        if i % 2 == 1 {
            let _ = write!(out, "<code>{part}</code>");
        } else {
            out.push_str(part);
        }
    }
    out
}

fn page(api: &Value) -> String {
    let mut out = String::new();
    let info = &api["info"];
    let _ = write!(
        out,
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>micpq over HTTP</title><style>{STYLE}</style><main><h1>micpq over HTTP <small>{}</small></h1><p>{}</p>\
         <p>For programs: <a href=\"/openapi.json\">openapi.json</a> (OpenAPI {}).</p>",
        escaped(text(&info["version"])),
        prose(text(&info["description"])),
        escaped(text(&api["openapi"])),
    );
    let tags: Vec<&Value> = api["tags"].as_array().map_or(Vec::new(), |tags| tags.iter().collect());
    out.push_str("<nav aria-label=\"Groups\">");
    for tag in &tags {
        let name = escaped(text(&tag["name"]));
        let _ = write!(out, "<a href=\"#{name}\">{name}</a> ");
    }
    out.push_str("<a href=\"#schemas\">schemas</a></nav>");
    for tag in &tags {
        let name = text(&tag["name"]);
        let _ = write!(out, "<h2 id=\"{0}\">{0}</h2><p>{1}</p>", escaped(name), prose(text(&tag["description"])));
        for (path, item) in api["paths"].as_object().into_iter().flatten() {
            for (method, operation) in item.as_object().into_iter().flatten() {
                if operation["tags"].as_array().is_some_and(|tags| tags.iter().any(|t| t == name)) {
                    write_operation(&mut out, method, path, operation);
                }
            }
        }
    }
    out.push_str("<h2 id=\"schemas\">schemas</h2>");
    for (name, schema) in api["components"]["schemas"].as_object().into_iter().flatten() {
        write_schema(&mut out, name, schema);
    }
    out.push_str("</main></html>");
    out
}

fn write_operation(out: &mut String, method: &str, path: &str, operation: &Value) {
    let _ = write!(
        out,
        "<details><summary><b>{}</b> <code>{}</code> {}</summary><p>{}</p>",
        method.to_uppercase(),
        escaped(path),
        prose(text(&operation["summary"])),
        prose(text(&operation["description"]))
    );
    let parameters: Vec<&Value> = operation["parameters"].as_array().map_or(Vec::new(), |p| p.iter().collect());
    if !parameters.is_empty() {
        out.push_str("<table><tr><th>parameter<th>in<th>type<th>");
        for parameter in parameters {
            let _ = write!(
                out,
                "<tr><td><code>{}</code><td>{}<td>{}<td>{}",
                escaped(text(&parameter["name"])),
                escaped(text(&parameter["in"])),
                kind(&parameter["schema"]),
                prose(text(&parameter["description"]))
            );
        }
        out.push_str("</table>");
    }
    for (media, content) in operation["requestBody"]["content"].as_object().into_iter().flatten() {
        let _ = write!(out, "<p>Body: {} as <code>{}</code></p>", kind(&content["schema"]), escaped(media));
    }
    out.push_str("<table><tr><th>status<th>body<th>");
    for (status, response) in operation["responses"].as_object().into_iter().flatten() {
        let body = response["content"].as_object().and_then(|all| all.values().next());
        let body = body.map_or_else(String::new, |content| kind(&content["schema"]));
        let _ = write!(out, "<tr><td>{}<td>{body}<td>{}", escaped(status), prose(text(&response["description"])));
    }
    out.push_str("</table></details>");
}

fn write_schema(out: &mut String, name: &str, schema: &Value) {
    let _ = write!(
        out,
        "<details id=\"schema-{0}\"><summary><code>{0}</code> {1}</summary>",
        escaped(name),
        prose(text(&schema["description"]))
    );
    match schema["properties"].as_object() {
        Some(properties) => {
            let required: Vec<&str> =
                schema["required"].as_array().map_or(Vec::new(), |all| all.iter().map(text).collect());
            out.push_str("<table><tr><th>field<th>type<th>");
            for (field, schema) in properties {
                let need = if required.contains(&field.as_str()) { " <em>required</em>" } else { "" };
                let _ = write!(
                    out,
                    "<tr><td><code>{}</code>{need}<td>{}{}<td>{}",
                    escaped(field),
                    kind(schema),
                    limits(schema),
                    prose(text(&schema["description"]))
                );
            }
            out.push_str("</table>");
        }
        None => {
            let _ = write!(out, "<p>{}</p>", kind(schema));
        }
    }
    out.push_str("</details>");
}

/// A type as text, with links to named types.
fn kind(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|r| r.rsplit('/').next()) {
        return format!("<a href=\"#schema-{0}\">{0}</a>", escaped(name));
    }
    for choice in ["oneOf", "anyOf", "allOf"] {
        if let Some(all) = schema[choice].as_array() {
            return all.iter().map(kind).collect::<Vec<_>>().join(" or ");
        }
    }
    if let Some(values) = schema["enum"].as_array() {
        return values
            .iter()
            .map(|v| format!("<code>{}</code>", escaped(&v.to_string())))
            .collect::<Vec<_>>()
            .join(", ");
    }
    if schema["items"].is_object() {
        return format!("list of {}", kind(&schema["items"]));
    }
    match &schema["type"] {
        Value::String(name) => escaped(name),
        Value::Array(names) => names.iter().map(|n| escaped(text(n))).collect::<Vec<_>>().join(" or "),
        _ => "anything".into(),
    }
}

fn limits(schema: &Value) -> String {
    let mut out = String::new();
    for (name, word) in [("minimum", "from"), ("exclusiveMinimum", "above"), ("maximum", "to"), ("default", "default")]
    {
        if let Some(value) = schema.get(name).filter(|v| !v.is_null()) {
            let _ = write!(out, ", {word} {}", escaped(&value.to_string()));
        }
    }
    out
}

const STYLE: &str = "\
:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;margin:0}main{max-width:60rem;margin:0 auto;padding:1rem}\
nav a{margin-right:.6rem}details{border:1px solid #8886;border-radius:6px;margin:.4rem 0;padding:.3rem .7rem}\
summary{cursor:pointer}summary b{display:inline-block;min-width:4.2rem}table{border-collapse:collapse;margin:.5rem 0;width:100%}\
td,th{border-top:1px solid #8884;padding:.2rem .5rem;text-align:left;vertical-align:top}code{font-size:.92em}\
em{font-size:.8em;opacity:.75}small{font-weight:normal;opacity:.7}";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_operation_and_loads_nothing_else() {
        let api: Value = serde_json::from_str(&JSON).unwrap();
        assert!(text(&api["openapi"]).starts_with("3.1"));
        let mut operations = 0;
        for (path, item) in api["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                operations += 1;
                assert!(
                    PAGE.contains(&format!("<b>{}</b> <code>{path}</code>", method.to_uppercase())),
                    "{method} {path}"
                );
                assert!(
                    !text(&operation["summary"]).is_empty() && !text(&operation["operationId"]).is_empty(),
                    "{path}"
                );
                assert!(operation["responses"]["400"].is_object(), "{method} {path}");
            }
        }
        assert!(operations > 20);
        for outside in ["http://", "https://", "<script", "@import"] {
            assert!(!PAGE.contains(outside), "{outside}");
        }
        // Every referenced type has a schema.
        let schemas = api["components"]["schemas"].as_object().unwrap();
        for part in JSON.split("#/components/schemas/").skip(1) {
            let name = part.split('"').next().unwrap();
            assert!(schemas.contains_key(name), "{name}");
        }
    }
}
