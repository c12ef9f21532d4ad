//! The files of the page.

/// Name and content of every file that is the same in all exports. `make wasm` makes the WebAssembly from this crate.
pub const PAGE: [(&str, &[u8]); 5] = [
    ("index.html", include_bytes!("../page/index.html")),
    ("style.css", include_bytes!("../page/style.css")),
    ("app.js", include_bytes!("../page/app.js")),
    ("micpq.js", include_bytes!("../page/micpq.js")),
    ("micpq.wasm", include_bytes!("../page/micpq.wasm")),
];
