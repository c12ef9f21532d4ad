//! The route for streams of documents: NDJSON, read no faster than it is committed.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use engine::corpus::{Corpus, CorpusConfig, Document, Format, OnError};
use engine::duplicates::{DuplicatePolicy, Measure, OnDuplicate};
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use utoipa::{IntoParams, ToSchema};

use super::Refusals;
use super::documents::{count_quota, duplicate_policy, scope};
use crate::extract::{MayWrite, NamedIndex, QueryString};
use crate::hosted::Hosted;
use crate::keys::Access;
use crate::problem::{Answer, Code, Problem};
use crate::schema;
use crate::server::Server;
use crate::writes::scope::Scope;
use crate::writes::{Change, Done, Duplicated, Pending};

/// Limits of one write, in documents and bytes of text. Large enough to keep the encoder busy, small enough to fail early.
const CHUNK_DOCUMENTS: usize = 512;
const CHUNK_BYTES: usize = 1 << 20;
/// Pending writes of a stream: one is committed while the next is read.
const MAX_PENDING_WRITES: usize = 2;
/// Pieces of the body that wait to be parsed.
const MAX_PIECES: usize = 16;

/// Options of a stream.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Options {
    /// What to do with a bad line: end the stream, or skip and count it. Default: `auto`, which ends it.
    #[serde(default)]
    #[param(inline, value_type = Option<schema::OnErrorName>)]
    on_error: OnError,
    /// Field that holds the id. Every line must have it.
    #[param(default = "id", min_length = 1)]
    id_field: Option<String>,
    /// Field that holds the text. Default: `text`, `body` or `content`.
    #[param(min_length = 1)]
    text_field: Option<String>,
    /// Field that holds the label or labels. Default: `label` or `labels`.
    #[param(min_length = 1)]
    label_field: Option<String>,
    /// What to do with documents that repeat another. Default: `keep`.
    #[param(inline, value_type = Option<schema::OnDuplicateName>)]
    on_duplicate: Option<OnDuplicate>,
    /// What makes a duplicate. Default: `words`, or `vectors` in an index without texts.
    #[param(inline, value_type = Option<schema::DuplicatesBy>)]
    duplicate_by: Option<Measure>,
    /// Least similarity of two duplicates. Default: 0.4 by words, 0.9 by vectors.
    #[param(minimum = 0.01, maximum = 1.0)]
    duplicate_threshold: Option<f32>,
}

/// The result of a stream. The counted documents are on disk.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Streamed {
    /// Number of documents added or replaced. Skipped duplicates do not count.
    changed: u64,
    /// Number of skipped lines.
    skipped: u64,
    /// Reasons of the first ten skipped lines.
    reasons: Vec<String>,
    /// Number of documents in the index.
    documents: u64,
    /// What became of duplicates, if `on_duplicate` was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    duplicates: Option<Duplicated>,
}

/// Add or replace documents from a stream
///
/// One JSON object per line (NDJSON), optionally compressed with gzip or zstd. A line has an id and a text; its other fields
/// become attributes. The server reads no faster than it writes. It commits every few hundred documents. If a line ends the
/// stream, the answer has the number of committed documents, and they stay.
#[utoipa::path(post, path = "/v1/indexes/{index}/documents/stream", tag = "documents", operation_id = "streamDocuments",
    params(("index" = String, Path, description = "Name of the index"), Options),
    request_body(content = String, content_type = "application/x-ndjson", description = "One JSON object per line"),
    responses((status = 200, description = "The documents are stored", body = Streamed), Refusals))]
pub async fn stream(
    _: MayWrite,
    access: Access,
    State(server): State<Arc<Server>>,
    NamedIndex(hosted): NamedIndex,
    QueryString(options): QueryString<Options>,
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
            "a stream has one JSON object per line; send it with \"Content-Type: application/x-ndjson\"",
        ));
    }
    let config = CorpusConfig {
        format: Some(Format::Jsonl),
        on_error: options.on_error,
        id_field: Some(options.id_field.unwrap_or_else(|| "id".into())),
        text_fields: options.text_field.into_iter().collect(),
        label_field: options.label_field,
        max_row_bytes: server.settings.config().max_text_bytes,
        unique_ids: false,
        ..CorpusConfig::default()
    };
    let names = config.id_field.iter().chain(&config.text_fields).chain(&config.label_field);
    if names.into_iter().any(String::is_empty) {
        return Err(Problem::bad_request("a field name is empty; name the field, or leave the option out"));
    }
    config.validate().map_err(Problem::of(Code::BadQuery))?;
    let policy =
        duplicate_policy(&hosted, &access, options.on_duplicate, options.duplicate_by, options.duplicate_threshold)?;
    let Ok(_permit) = server.streams.clone().try_acquire_owned() else {
        server.metrics.rejected("stream");
        return Err(Problem::overloaded("too many streams are being read"));
    };
    let scope = scope(&server, &access, &hosted).await?;
    let writer = StreamWriter { config, policy, scope, filter: access.filter().map(str::to_owned), hosted };
    let (sender, receiver) = sync_channel::<io::Result<Bytes>>(MAX_PIECES);
    let (finished, finish) = oneshot::channel();
    std::thread::Builder::new()
        .name("stream".into())
        .spawn(move || drop(finished.send(writer.write_all(receiver))))
        .map_err(|e| Problem::internal(format!("cannot start a thread: {e}")))?;
    let fed = feed(request.into_body(), sender, server.settings.config().timeout());
    tokio::pin!(fed, finish);
    // A bad line ends the writer first. Then the rest of the body is not read.
    let result = tokio::select! {
        biased;
        result = &mut finish => result,
        () = &mut fed => finish.await,
    };
    match result {
        Ok(result) => result.map(Json).inspect_err(|problem| count_quota(&server, problem)),
        Err(_) => Err(Problem::internal("the stream was lost; the server's log says why")),
    }
}

/// Sends the pieces of the body to the writer. Waits while the channel is full.
async fn feed(body: Body, sender: SyncSender<io::Result<Bytes>>, silence: std::time::Duration) {
    let mut pieces = body.into_data_stream();
    loop {
        let piece = match tokio::time::timeout(silence, pieces.next()).await {
            Ok(None) => return,
            Ok(Some(Ok(piece))) => Ok(piece),
            Ok(Some(Err(error))) => Err(io::Error::new(io::ErrorKind::ConnectionAborted, error.to_string())),
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the stream was silent for too long")),
        };
        let last = piece.is_err();
        let mut piece = Some(piece);
        // Polls a full channel: a blocking send would occupy one of the few runtime threads.
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

/// What writes the documents of a stream.
struct StreamWriter {
    config: CorpusConfig,
    policy: DuplicatePolicy,
    scope: Option<Scope>,
    /// Filter of the documents that the caller may count.
    filter: Option<String>,
    hosted: Arc<Hosted>,
}

impl StreamWriter {
    fn write_all(&self, receiver: Receiver<io::Result<Bytes>>) -> Answer<Streamed> {
        let mut pending = VecDeque::new();
        let mut total = Done::default();
        let read = self.read_all(receiver, &mut pending, &mut total);
        // However the reading ended, the pending writes are awaited and counted.
        let mut failure = read.as_ref().err().cloned();
        for done in pending {
            if let Err(problem) = settle(&self.hosted, done, &mut total) {
                failure.get_or_insert(problem);
            }
        }
        match (failure, read) {
            (None, Ok(skipped)) => {
                let index = self.hosted.index();
                let documents = self.filter.as_deref().map_or(Ok(index.len()), |filter| index.count(filter));
                Ok(Streamed {
                    changed: total.changed as u64,
                    skipped: skipped.0,
                    reasons: skipped.1,
                    documents: documents.map_err(Problem::of(Code::BadDocument))? as u64,
                    duplicates: total.duplicates,
                })
            }
            (Some(mut problem), _) | (None, Err(mut problem)) => {
                problem.details.committed = Some(total.changed as u64);
                Err(problem)
            }
        }
    }

    /// Parses documents and sends them to the write queue in chunks. Returns the number of skipped lines and the first reasons.
    fn read_all(
        &self,
        receiver: Receiver<io::Result<Bytes>>,
        pending: &mut VecDeque<Pending>,
        total: &mut Done,
    ) -> Answer<(u64, Vec<String>)> {
        let pieces = Pieces { receiver, rest: Bytes::new() };
        let mut corpus = Corpus::from_reader("stream", pieces, &self.config).map_err(refused)?;
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
                        failed = Some(refused(error));
                        break;
                    }
                }
                if chunk.len() >= CHUNK_DOCUMENTS || bytes >= CHUNK_BYTES {
                    end = false;
                    break;
                }
            }
            if !chunk.is_empty() {
                if pending.len() >= MAX_PENDING_WRITES {
                    settle(&self.hosted, pending.pop_front().expect("not empty"), total)?;
                }
                let change = Change::Upsert(chunk.into_iter().map(|document| (document, None)).collect(), self.policy);
                pending.push_back(self.hosted.writes.push(change, self.scope.clone())?);
            }
            if let Some(problem) = failed {
                return Err(problem);
            }
            if end {
                return Ok((corpus.skipped().count(), corpus.skipped().reasons().to_vec()));
            }
        }
    }
}

/// What ended the reading of a stream.
fn refused(error: engine::Error) -> Problem {
    match error {
        engine::Error::Io { ref source, .. } if source.kind() == io::ErrorKind::TimedOut => Problem::new(
            StatusCode::GATEWAY_TIMEOUT,
            Code::Timeout,
            "the stream was silent for too long; send the remaining lines again",
        ),
        engine::Error::Io { .. } => {
            Problem::bad_request(format!("the stream broke off: {error}; send the remaining lines again"))
        }
        _ => {
            let mut problem = Problem::refused(Code::BadDocument, error.to_string());
            if let engine::Error::Input { place, .. } = &error {
                problem.details.line = place.rsplit_once(':').and_then(|(_, line)| line.parse().ok());
            }
            problem
        }
    }
}

/// Waits for a write and counts it.
fn settle(hosted: &Hosted, done: Pending, total: &mut Done) -> Answer<()> {
    let done = hosted.writes.result(done.blocking_recv())?;
    total.changed += done.changed;
    if let Some(later) = done.duplicates {
        total.duplicates.get_or_insert_default().extend(later);
    }
    Ok(())
}
