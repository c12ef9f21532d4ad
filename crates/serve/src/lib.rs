//! Indexes over HTTP.
