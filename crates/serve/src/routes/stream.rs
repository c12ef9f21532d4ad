//! Documents by the million: lines of JSON, read as fast as they are written to disk and no faster.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use futures_util::StreamExt;
use micpq::corpus::{Corpus, CorpusConfig, Document, Format, OnError};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use utoipa::{IntoParams, ToSchema};

use super::Refusals;
use crate::extract::{Ask, MayWrite, Of};
use crate::hosted::Hosted;
use crate::problem::{Answer, Code, Problem};
use crate::server::Server;
use crate::writes::{Change, Done};

/// Documents of one write, and bytes of text: enough to keep the encoder busy, little enough to be told of soon.
const CHUNK: usize = 512;
const CHUNK_BYTES: usize = 1 << 20;
/// Writes under way for one stream: one is encoded and committed while the next is read.
const UNDER_WAY: usize = 2;
/// Pieces of the body that wait to be parsed.
const PIECES: usize = 16;

/// How the lines are read.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Options {
    /// What a line that cannot be kept does: end the stream, or be counted and passed over.
    #[serde(default)]
    #[param(inline)]
    on_error: Treatment,
    /// Field that holds the id, which every line must have.
    #[param(default = "id", min_length = 1)]
    id_field: Option<String>,
    /// Field that holds the text; `text`, `body` or `content` unless said.
    #[param(min_length = 1)]
    text_field: Option<String>,
    /// Field that holds the label or labels; `label` or `labels` unless said.
    #[param(min_length = 1)]
    label_field: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Treatment {
    #[default]
    Stop,
    Skip,
}

/// What became of a stream. What is counted here is on disk.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Streamed {
    /// Documents added or replaced.
    changed: u64,
    /// Lines passed over.
    skipped: u64,
    /// Why, for the first ten of them.
    reasons: Vec<String>,
    /// Documents in the index now.
    documents: u64,
}

/// Add or replace documents from a stream
///
/// A JSON object a line (NDJSON), packed with gzip or zstd or not. A line has an id, a text and whatever else, which
/// becomes attributes. The server reads as fast as it writes, so a client that sends faster is held back. Documents are
/// committed every few hundred; where a line ends the stream, the answer tells how many were, and those stay.
#[utoipa::path(post, path = "/v1/indexes/{index}/documents/stream", tag = "documents", operation_id = "streamDocuments",
    params(("index" = String, Path, description = "Name of the index"), Options),
    request_body(content = String, content_type = "application/x-ndjson", description = "A JSON object a line"),
    responses((status = 200, description = "They are kept", body = Streamed), Refusals))]
pub async fn stream(
    _: MayWrite,
    State(server): State<Arc<Server>>,
    Of(hosted): Of,
    Ask(options): Ask<Options>,
    request: Request,
) -> Answer<Json<Streamed>> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if !matches!(
        kind.as_str(),
        "application/x-ndjson" | "application/ndjson" | "application/jsonl" | "application/x-jsonlines"
    ) {
        return Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Code::WrongMediaType,
            "a stream is a JSON object a line; send it with \"Content-Type: application/x-ndjson\"",
        ));
    }
    let config = CorpusConfig {
        format: Some(Format::Jsonl),
        on_error: if options.on_error == Treatment::Skip { OnError::Skip } else { OnError::Stop },
        id_field: Some(options.id_field.unwrap_or_else(|| "id".into())),
        text_fields: options.text_field.into_iter().collect(),
        label_field: options.label_field,
        max_row_bytes: server.config.max_text_bytes,
        unique_ids: false,
        ..CorpusConfig::default()
    };
    let names = config.id_field.iter().chain(&config.text_fields).chain(&config.label_field);
    if names.into_iter().any(String::is_empty) {
        return Err(Problem::bad_request("a field's name is empty; leave the option out, or name the field"));
    }
    config.validate().map_err(Problem::of(Code::BadQuery))?;
    let Ok(_room) = server.streams.clone().try_acquire_owned() else {
        server.metrics.rejected("stream");
        return Err(Problem::overloaded("too many streams are being read"));
    };
    let (sender, receiver) = sync_channel::<io::Result<Bytes>>(PIECES);
    let (ended, end) = oneshot::channel();
    std::thread::Builder::new()
        .name("stream".into())
        .spawn(move || drop(ended.send(write_all(receiver, &config, &hosted))))
        .map_err(|e| Problem::internal(format!("a thread cannot be started: {e}")))?;
    let fed = feed(request.into_body(), sender, server.config.timeout());
    tokio::pin!(fed, end);
    // The writer may end first, by a line it cannot keep: then nothing more is read.
    let result = tokio::select! {
        biased;
        result = &mut end => result,
        () = &mut fed => end.await,
    };
    match result {
        Ok(result) => result.map(Json),
        Err(_) => Err(Problem::internal("the stream was lost on its way; the server's log says why")),
    }
}

/// Hands the body over piece by piece, waiting while the writer is behind.
async fn feed(body: Body, sender: SyncSender<io::Result<Bytes>>, silence: std::time::Duration) {
    let mut pieces = body.into_data_stream();
    loop {
        let piece = match tokio::time::timeout(silence, pieces.next()).await {
            Ok(None) => return,
            Ok(Some(Ok(piece))) => Ok(piece),
            Ok(Some(Err(error))) => Err(io::Error::new(io::ErrorKind::ConnectionAborted, error.to_string())),
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "nothing came for too long")),
        };
        let last = piece.is_err();
        let mut piece = Some(piece);
        // A full channel is asked again after a moment: a thread that waited in it would be one of the few there are.
        while let Some(next) = piece.take() {
            match sender.try_send(next) {
                Ok(()) => {}
                Err(std::sync::mpsc::TrySendError::Full(back)) => {
                    piece = Some(back);
                    tokio::time::sleep(std::time::Duration::from_millis(2)).await;
                }
                Err(std::sync::mpsc::TrySendError::Disconnected(_)) => return,
            }
        }
        if last {
            return;
        }
    }
}

/// The body as a reader.
struct Pieces {
    receiver: Receiver<io::Result<Bytes>>,
    rest: Bytes,
}

impl Read for Pieces {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.receiver.recv() {
                Ok(piece) => self.rest = piece?,
                Err(_) => return Ok(0),
            }
        }
        let n = out.len().min(self.rest.len());
        out[..n].copy_from_slice(&self.rest.split_to(n));
        Ok(n)
    }
}

fn write_all(receiver: Receiver<io::Result<Bytes>>, config: &CorpusConfig, hosted: &Hosted) -> Answer<Streamed> {
    let mut under_way = VecDeque::new();
    let mut total = Done::default();
    let read = read_all(receiver, config, hosted, &mut under_way, &mut total);
    // Whatever ended the reading, what was handed over is waited for and counted.
    let mut failure = read.as_ref().err().cloned();
    for done in under_way {
        if let Err(problem) = settle(done, &mut total) {
            failure.get_or_insert(problem);
        }
    }
    match (failure, read) {
        (None, Ok(skipped)) => Ok(Streamed {
            changed: total.changed as u64,
            skipped: skipped.0,
            reasons: skipped.1,
            documents: hosted.index().len() as u64,
        }),
        (Some(mut problem), _) | (None, Err(mut problem)) => {
            problem.details.committed = Some(total.changed as u64);
            Err(problem)
        }
    }
}

type UnderWay = VecDeque<oneshot::Receiver<micpq::Result<Done>>>;

/// Hands documents over chunk by chunk. Returns the lines passed over, and why the first of them were.
fn read_all(
    receiver: Receiver<io::Result<Bytes>>,
    config: &CorpusConfig,
    hosted: &Hosted,
    under_way: &mut UnderWay,
    total: &mut Done,
) -> Answer<(u64, Vec<String>)> {
    let refuse = |error: micpq::Error| match error {
        micpq::Error::Io { ref source, .. } if source.kind() == io::ErrorKind::TimedOut => Problem::new(
            StatusCode::GATEWAY_TIMEOUT,
            Code::Timeout,
            "the stream was silent for too long; send the rest again",
        ),
        micpq::Error::Io { .. } => Problem::bad_request(format!("the stream broke off: {error}; send the rest again")),
        _ => {
            let mut problem = Problem::refused(Code::BadDocument, error.to_string());
            if let micpq::Error::Input { place, .. } = &error {
                problem.details.line = place.rsplit_once(':').and_then(|(_, line)| line.parse().ok());
            }
            problem
        }
    };
    let pieces = Pieces { receiver, rest: Bytes::new() };
    let mut corpus = Corpus::from_reader("stream", pieces, config).map_err(refuse)?;
    loop {
        let (mut chunk, mut bytes): (Vec<Document>, usize) = (Vec::new(), 0);
        let mut end = true;
        let mut failed = None;
        for document in corpus.by_ref() {
            match document {
                Ok(document) => {
                    bytes += document.text.len();
                    chunk.push(document);
                }
                Err(error) => {
                    failed = Some(refuse(error));
                    break;
                }
            }
            if chunk.len() >= CHUNK || bytes >= CHUNK_BYTES {
                end = false;
                break;
            }
        }
        if !chunk.is_empty() {
            if under_way.len() >= UNDER_WAY {
                settle(under_way.pop_front().expect("not empty"), total)?;
            }
            let change = Change::Upsert(chunk.into_iter().map(|document| (document, None)).collect());
            under_way.push_back(hosted.writes.push(change)?);
        }
        if let Some(problem) = failed {
            return Err(problem);
        }
        if end {
            return Ok((corpus.skipped().count(), corpus.skipped().reasons().to_vec()));
        }
    }
}

/// Waits for a write.
fn settle(done: oneshot::Receiver<micpq::Result<Done>>, total: &mut Done) -> Answer<()> {
    match done.blocking_recv() {
        Ok(Ok(done)) => {
            total.changed += done.changed;
            Ok(())
        }
        Ok(Err(error)) => Err(Problem::of(Code::BadDocument)(error)),
        Err(_) => Err(Problem::internal("a write was lost on its way; the server's log says why")),
    }
}
