//! Flags of `serve`, `encoder` and `cache`.

use std::path::PathBuf;

use clap::{Args as Flags, Subcommand};
use engine::encoder::pull;

#[derive(Flags)]
#[command(after_help = "\
Examples:
  micpq serve news.micpq
  micpq serve news.micpq notes=/data/notes.micpq --data /data/made --listen 127.0.0.1:8080
  micpq serve --config serve.toml --set queue=256
  micpq serve --new-key read                           prints a key and its lines for the config file

Every option has a name in the config file, MICPQ_SERVE_NAME in the environment, and --set NAME=VALUE here.")]
pub struct Serve {
    /// Index directories, each as PATH (named by its file name) or NAME=PATH
    pub indexes: Vec<String>,
    /// Config file in TOML
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address and port; port 0 chooses a free one. Default: 127.0.0.1:6380
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// Directory of indexes and backups created over HTTP
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Any option of the config file. Can be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Print a new API key and its lines for the config file, then exit
    #[arg(long, value_name = "read|write|admin")]
    pub new_key: Option<serve::config::Role>,
    /// Print the API description (OpenAPI 3.1), then exit
    #[arg(long)]
    pub openapi: bool,
}

#[derive(Subcommand)]
pub enum EncoderCommand {
    /// Download an encoder: the default, a name on the hub, or a local directory
    Pull {
        /// Name or directory
        #[arg(default_value = pull::DEFAULT)]
        name: String,
    },
    /// List the downloaded encoders
    List,
    /// Show the dimensions and checksum of an encoder
    Info {
        /// Name or directory
        #[arg(default_value = pull::DEFAULT)]
        name: String,
    },
}

#[derive(Subcommand)]
pub enum CacheCommand {
    /// List the cache entries and their sizes
    List {
        /// Cache directory. Default: below the user's cache directory
        #[arg(long, value_name = "DIR")]
        cache: Option<PathBuf>,
    },
    /// Remove cache entries; the next run computes what it needs again
    Clear {
        /// Cache directory. Default: below the user's cache directory
        #[arg(long, value_name = "DIR")]
        cache: Option<PathBuf>,
        /// Remove only entries that were not written to for this many days. Default: 0, all entries
        #[arg(long, value_name = "DAYS")]
        older_than: Option<f64>,
    },
}
