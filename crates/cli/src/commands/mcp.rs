//! `micpq mcp`: indexes as tools of an assistant.

use std::io::IsTerminal;
use std::net::SocketAddr;

use anyhow::Result;
use clap::Args;
use engine::Progress;
use engine::encoder::QueryEncoder;
use mcp::McpConfig;

use super::serve::named_indexes;
use crate::output;
use crate::progress::TerminalProgress;

#[derive(Args)]
#[command(after_help = "\
An assistant starts this command itself; its config file names it. For most clients:
  { \"mcpServers\": { \"news\": { \"command\": \"micpq\", \"args\": [\"mcp\", \"/data/news.micpq\"] } } }

Tools: search, fetch, similar, topics, indexes. None of them writes.

Examples:
  micpq mcp news.micpq
  micpq mcp news.micpq mail=/data/mail.micpq --query-encoder fast
  micpq mcp news.micpq --listen 127.0.0.1:6381           streamable HTTP at http://127.0.0.1:6381/mcp")]
pub struct Mcp {
    /// Index directories or folders of shards, each as PATH (named by its file name) or NAME=PATH
    #[arg(required = true)]
    pub indexes: Vec<String>,
    /// Encoder that reads the query texts: full (that of the documents), or fast (a copy in microseconds that "micpq distill"
    /// or "micpq build --query-encoder fast" made)
    #[arg(long, value_name = "full|fast", default_value_t = QueryEncoder::default())]
    pub query_encoder: QueryEncoder,
    /// Serve streamable HTTP at this address of this machine, without keys; port 0 chooses a free one. Default: standard input
    /// and output
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
}

pub fn run(args: Mcp, json: bool, progress: &TerminalProgress) -> Result<()> {
    let indexes = named_indexes(&args.indexes)?;
    let config = McpConfig { indexes, query_encoder: args.query_encoder, listen: args.listen };
    if config.listen.is_none() && std::io::stdin().is_terminal() {
        progress
            .note("waits for an assistant on standard input; \"micpq mcp --help\" says how one starts it. Ctrl-D ends");
    }
    mcp::run(&config, progress, |address| {
        let url = format!("http://{address}{}", mcp::PATH);
        // A closed standard output does not stop the server.
        let _ = if json {
            output::json(&serde_json::json!({ "address": address.to_string(), "url": url }))
        } else {
            output::line(format!("listening on {url}"))
        };
    })?;
    Ok(())
}
