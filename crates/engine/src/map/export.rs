//! A map as one file that a browser opens without a server.

use std::io::Write;
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{DocumentMap, MapConfig, make};
use crate::index::Index;
use crate::topics;
use crate::{Error, Progress, Result};

/// Points whose documents are read at a time.
const CHUNK: usize = 4096;

/// What a map in one file has.
#[derive(Clone, Debug, PartialEq)]
pub struct HtmlMapConfig {
    pub map: MapConfig,
    /// Heading of the page.
    pub title: String,
    /// Points that have the id and title of their document; they are an even sample of all.
    pub titles: usize,
    /// Attributes to colour by.
    pub attributes: Vec<String>,
}

impl Default for HtmlMapConfig {
    fn default() -> Self {
        HtmlMapConfig { map: MapConfig::default(), title: "Map".into(), titles: 20_000, attributes: Vec::new() }
    }
}

/// Values of an attribute that are told apart in a file.
const VALUES: usize = 250;

/// The result of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HtmlMap {
    pub documents: u64,
    pub titles: u64,
    pub bytes: u64,
}

/// Makes a map of an index and writes it as a file of HTML.
pub fn write_html(index: &Index, to: &Path, config: &HtmlMapConfig, progress: &dyn Progress) -> Result<HtmlMap> {
    config.map.validate()?;
    let known = index.attributes()?;
    if let Some(name) = config.attributes.iter().find(|name| *name != "labels" && !known.contains(name)) {
        return Err(Error::config(format!("no document has an attribute \"{name}\"; known: {}", known.join(", "))));
    }
    let map = make(index, &config.map, progress)?;
    let titles = titles(index, &map, config.titles, progress)?;
    progress.stage("writing the map", None);
    let packed = pack(&payload(index, &map, &titles, &config.attributes, progress)?)?;
    let page = page(&config.title, &packed);
    crate::disk::replace(to, page.as_bytes())?;
    Ok(HtmlMap { documents: map.len() as u64, titles: titles.len() as u64, bytes: page.len() as u64 })
}

/// The ids and titles of the first points.
fn titles(index: &Index, map: &DocumentMap, most: usize, progress: &dyn Progress) -> Result<Vec<serde_json::Value>> {
    let points: Vec<u32> = (0..map.len().min(most) as u32).collect();
    progress.stage("reading titles", Some(points.len() as u64));
    let mut titles = Vec::with_capacity(points.len());
    for part in points.chunks(CHUNK) {
        if progress.interrupted() {
            return Err(Error::Interrupted);
        }
        for record in map.documents(index, part, progress)? {
            titles.push(match record {
                Some(record) => {
                    let title = topics::title(&record).unwrap_or_else(|| format!("document {}", record.id));
                    json!([record.id, title])
                }
                None => json!([null, "deleted"]),
            });
        }
        progress.advance(part.len() as u64);
    }
    Ok(titles)
}

/// The length of the JSON and that of the map as `u32`, the map, the values of each attribute as `u16`, the JSON.
fn payload(
    index: &Index,
    map: &DocumentMap,
    titles: &[serde_json::Value],
    attributes: &[String],
    progress: &dyn Progress,
) -> Result<Vec<u8>> {
    let (mut named, mut values) = (Vec::new(), Vec::new());
    for name in attributes {
        let found = map.values(index, name, VALUES, progress)?;
        named.push(json!({ "name": name, "names": found.names }));
        found.values.iter().for_each(|value| values.extend_from_slice(&value.to_le_bytes()));
    }
    let about = json!({
        "topics": map.topics, "labels": map.labels, "attributes": named, "documents": titles,
    });
    let (about, points) = (about.to_string(), map.to_bytes());
    let length = |bytes: usize| {
        u32::try_from(bytes).map_err(|_| Error::config("the map has more than 4 GiB; give fewer titles"))
    };
    let mut payload = length(about.len())?.to_le_bytes().to_vec();
    payload.extend(length(points.len())?.to_le_bytes());
    payload.extend(points);
    payload.extend(values);
    payload.extend(about.into_bytes());
    Ok(payload)
}

fn pack(payload: &[u8]) -> Result<String> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::default());
    let packed = packer.write_all(payload).and_then(|()| packer.finish());
    Ok(BASE64_STANDARD.encode(packed.map_err(Error::io("a map in memory"))?))
}

/// The page with its scripts, styles and data.
fn page(title: &str, data: &str) -> String {
    let script: String = web::MAP_SCRIPTS.iter().map(|(_, source)| without_modules(source)).collect();
    let hash = format!("sha256-{}", BASE64_STANDARD.encode(Sha256::digest(script.as_bytes())));
    let parts = [
        ("{{style}}", web::MAP_STYLE.to_owned()),
        ("{{script-hash}}", hash),
        ("{{script}}", script),
        ("{{title}}", escaped(title)),
        ("{{data}}", data.to_owned()),
    ];
    parts.into_iter().fold(web::MAP_FILE.to_owned(), |page, (name, text)| page.replace(name, &text))
}

/// A module as a part of one script: nothing is imported or exported.
fn without_modules(source: &str) -> String {
    let lines = source.lines().filter(|line| !line.starts_with("import "));
    lines.map(|line| format!("{}\n", line.strip_prefix("export ").unwrap_or(line))).collect()
}

/// Text that is no markup, and no part of the page's own.
fn escaped(text: &str) -> String {
    let escape = |c: char| match c {
        '<' | '>' | '&' | '"' | '\'' | '{' | '}' => format!("&#{};", u32::from(c)),
        c => c.to_string(),
    };
    text.chars().map(escape).collect()
}
