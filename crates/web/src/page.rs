//! The files of the pages.
//!
//! `page/` searches an export in a browser; `map/` is what a server's page and a map in one file have in common.

/// Name and content of every file that is the same in all exports. `make wasm` makes the WebAssembly from this crate.
pub const PAGE: [(&str, &[u8]); 5] = [
    ("index.html", include_bytes!("../page/index.html")),
    ("style.css", include_bytes!("../page/style.css")),
    ("app.js", include_bytes!("../page/app.js")),
    ("micpq.js", include_bytes!("../page/micpq.js")),
    ("micpq.wasm", include_bytes!("../page/micpq.wasm")),
];

/// The modules of a map in the order in which one script can hold them all; the last one starts a map in one file.
pub const MAP_SCRIPTS: [(&str, &str); 3] = [
    ("plane.js", include_str!("../map/plane.js")),
    ("view.js", include_str!("../map/view.js")),
    ("file.js", include_str!("../map/file.js")),
];
pub const MAP_STYLE: &str = include_str!("../map/map.css");
/// A map in one file, with names in double braces where its parts go.
pub const MAP_FILE: &str = include_str!("../map/file.html");
