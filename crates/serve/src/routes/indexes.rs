//! Indexes as a whole.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use micpq::Silent;
use micpq::encoder::{Features, Pooling, Precision, pull};
use micpq::index::{Bytes, CopyConfig, IndexConfig, snapshot as snapshot_of};
use micpq::model::Model;
use micpq::text::Clean;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Refusals;
use crate::config::check_name;
use crate::extract::{At, Body, MayAdmin, MayRead, Of, Whole};
use crate::hosted::Hosted;
use crate::problem::{Answer, Code, Problem};
use crate::server::{SNAPSHOTS, Server};

/// What is kept of a document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Store {
    /// Id, code, text, labels and attributes, with the words of texts.
    #[default]
    All,
    /// Id and code.
    Codes,
}

/// How features are kept for the second stage of a search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Keep {
    /// Not at all.
    None,
    /// A byte a value.
    #[default]
    Int8,
    /// Two bytes a value.
    F16,
}

/// Bytes on disk by part.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
pub struct Sizes {
    /// Ids, codes and attributes as columns.
    columns: u64,
    /// Texts, labels and attributes as they came.
    documents: u64,
    /// The inverted index.
    terms: u64,
    /// Packed codes.
    codes: u64,
    /// Kept features.
    features: u64,
    /// The model.
    model: u64,
    /// Everything else.
    other: u64,
}

impl From<Bytes> for Sizes {
    fn from(b: Bytes) -> Sizes {
        Sizes {
            columns: b.columns,
            documents: b.documents,
            terms: b.terms,
            codes: b.codes,
            features: b.features,
            model: b.model,
            other: b.other,
        }
    }
}

/// An index and how it does.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct IndexView {
    /// Its name.
    name: String,
    /// Documents that can be found.
    documents: usize,
    /// Deleted documents whose place is not yet taken back.
    deleted: usize,
    /// Segments.
    segments: usize,
    /// Bits of a code.
    bits: usize,
    /// Books of a code.
    books: usize,
    /// Words of a book.
    words: usize,
    /// Values of a feature vector.
    width: usize,
    /// What is kept of a document.
    store: Store,
    /// How features are kept.
    keep: Keep,
    /// Fingerprint of the model.
    model: String,
    /// The system the model was trained by.
    method: String,
    /// The encoder; `null` where callers bring vectors.
    encoder: Option<String>,
    /// Whether texts can be searched and added: the encoder is here.
    texts: bool,
    /// Version of the directory.
    format: u32,
    /// Bytes on disk by part.
    bytes: Sizes,
    /// Queries waiting.
    queries_waiting: usize,
    /// Writes waiting.
    writes_waiting: usize,
    /// Whether a job works on it.
    job_running: bool,
    /// Whether it was made over HTTP, and can be dropped so.
    droppable: bool,
}

impl IndexView {
    fn of(server: &Server, hosted: &Hosted) -> Answer<IndexView> {
        let searcher = hosted.searcher();
        let index = searcher.index();
        let info = index.info().map_err(Problem::of(Code::BadQuery))?;
        let model = index.model();
        Ok(IndexView {
            name: hosted.name().to_owned(),
            documents: info.documents,
            deleted: info.deleted,
            segments: info.segments,
            bits: info.shape.bits(),
            books: info.shape.books(),
            words: info.shape.words(),
            width: model.inputs(),
            store: match info.store {
                micpq::index::Store::All => Store::All,
                micpq::index::Store::Codes => Store::Codes,
            },
            keep: match info.keep {
                micpq::index::Keep::None => Keep::None,
                micpq::index::Keep::Int8 => Keep::Int8,
                micpq::index::Keep::F16 => Keep::F16,
            },
            model: info.model,
            method: model.config.method.clone(),
            encoder: model.config.features.as_ref().map(|f| f.encoder.clone()),
            texts: server.encoders.of(model, &Silent).is_ok_and(|features| features.is_some()),
            format: info.format,
            bytes: info.bytes.into(),
            queries_waiting: hosted.queries.depth(),
            writes_waiting: hosted.writes.depth(),
            job_running: server.jobs.running(hosted.name()),
            droppable: hosted.ours,
        })
    }
}

/// All indexes.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct IndexList {
    /// In the order of their names.
    indexes: Vec<IndexView>,
}

/// List indexes
#[utoipa::path(get, path = "/v1/indexes", tag = "indexes", operation_id = "listIndexes",
    responses((status = 200, description = "All indexes", body = IndexList), Refusals))]
pub async fn list(_: MayRead, State(server): State<Arc<Server>>) -> Answer<Json<IndexList>> {
    let listed = super::blocking(move || -> Answer<Vec<IndexView>> {
        server.indexes().iter().map(|hosted| IndexView::of(&server, hosted)).collect()
    });
    Ok(Json(IndexList { indexes: listed.await?? }))
}

/// Look at an index
#[utoipa::path(get, path = "/v1/indexes/{index}", tag = "indexes", operation_id = "getIndex",
    params(("index" = String, Path, description = "Name of the index")),
    responses((status = 200, description = "The index", body = IndexView), Refusals))]
pub async fn show(_: MayRead, State(server): State<Arc<Server>>, Of(hosted): Of) -> Answer<Json<IndexView>> {
    super::blocking(move || IndexView::of(&server, &hosted)).await?.map(Json)
}

/// How a new index turns texts into codes: the model of another index (`like`), or an encoder with codes that need no
/// training (`encoder`, `bits`); train it later with its own documents.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Create {
    /// Name of an index whose model is taken.
    like: Option<String>,
    /// Encoder that turns texts into vectors, one that is on the server; all-MiniLM-L6-v2 unless said.
    #[schema(example = "all-MiniLM-L6-v2", min_length = 1, max_length = 200)]
    encoder: Option<String>,
    /// Bits of a code, without `like`: 16, 32, 64 or 128; 128 unless said. Untrained codes need many.
    #[schema(example = 128)]
    bits: Option<Bits>,
    /// What is kept of a document.
    store: Store,
    /// How features are kept for the second stage of a search.
    keep: Keep,
}

/// Bits of a code.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(try_from = "Whole")]
pub struct Bits(usize);

described!(Bits, { "description": "Bits of a code.", "type": "integer", "enum": [16, 32, 64, 128] });

impl TryFrom<Whole> for Bits {
    type Error = String;

    fn try_from(Whole(bits): Whole) -> Result<Bits, String> {
        match bits {
            16 | 32 | 64 | 128 => Ok(Bits(bits as usize)),
            _ => Err(format!("codes have 16, 32, 64 or 128 bits, not {bits}")),
        }
    }
}

impl From<Bits> for usize {
    fn from(bits: Bits) -> usize {
        bits.0
    }
}

impl Create {
    fn model(&self, server: &Server) -> Answer<(Model, serde_json::Value)> {
        if let Some(name) = &self.like {
            if self.encoder.is_some() || self.bits.is_some() {
                return Err(Problem::refused(
                    Code::BadQuery,
                    "a model taken from another index has its own encoder and bits; leave them out",
                ));
            }
            let index = server.index(name)?.index();
            let metrics = std::fs::read(index.dir().join("model").join("metrics.json")).unwrap_or_default();
            return Ok((index.model().clone(), serde_json::from_slice(&metrics).unwrap_or_default()));
        }
        let name = self.encoder.as_deref().unwrap_or(pull::DEFAULT);
        // A name of a pulled encoder and not a path: callers do not read the server's disk.
        if name.contains("..") || name.starts_with(['/', '.', '~']) || name.contains('\\') {
            return Err(Problem::refused(Code::UnknownModel, "an encoder is named, not given by a path"));
        }
        let known = server
            .indexes()
            .iter()
            .any(|h| h.index().model().config.features.as_ref().is_some_and(|f| f.encoder == name));
        let pulled = pull::models_dir().is_ok_and(|dir| dir.join(name).join("config.json").is_file());
        if !known && !pulled {
            return Err(Problem::refused(
                Code::UnknownModel,
                format!("encoder \"{name}\" is not on this server; fetch it there with \"micpq encoder pull\""),
            ));
        }
        let features = Features::new(name, Pooling::Mean, None, Clean::None, true, Precision::default())
            .map_err(Problem::of(Code::UnknownModel))?;
        let model = train::untrained::model(features.config(), self.bits.map_or(128, usize::from));
        Ok((model.map_err(Problem::of(Code::BadQuery))?, serde_json::Value::Null))
    }
}

#[derive(Deserialize)]
pub struct Named {
    index: String,
}

/// Make an index
///
/// Empty, in the server's data directory. Fill it, then train it with its own documents for better and shorter codes.
#[utoipa::path(put, path = "/v1/indexes/{index}", tag = "indexes", operation_id = "createIndex",
    params(("index" = String, Path, description = "Name of the index", min_length = 1, max_length = 64, pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]*$")),
    request_body = Create, responses((status = 201, description = "It is there", body = IndexView), Refusals))]
pub async fn create(
    _: MayAdmin,
    State(server): State<Arc<Server>>,
    At(Named { index }): At<Named>,
    Body(body): Body<Create>,
) -> Answer<(StatusCode, Json<IndexView>)> {
    check_name(&index).map_err(|e| Problem::bad_request(e.to_string()))?;
    server.data()?;
    let made = super::blocking(move || {
        let (model, metrics) = body.model(&server)?;
        let config = IndexConfig {
            store: match body.store {
                Store::All => micpq::index::Store::All,
                Store::Codes => micpq::index::Store::Codes,
            },
            keep: match body.keep {
                Keep::None => micpq::index::Keep::None,
                Keep::Int8 => micpq::index::Keep::Int8,
                Keep::F16 => micpq::index::Keep::F16,
            },
            metrics,
            ..IndexConfig::default()
        };
        let hosted = server.create(&index, &model, config)?;
        IndexView::of(&server, &hosted)
    });
    Ok((StatusCode::CREATED, Json(made.await??)))
}

/// Drop an index
///
/// With everything in it. Only one that was made over HTTP.
#[utoipa::path(delete, path = "/v1/indexes/{index}", tag = "indexes", operation_id = "dropIndex",
    params(("index" = String, Path, description = "Name of the index")),
    responses((status = 204, description = "It is gone"), Refusals))]
pub async fn drop_index(
    _: MayAdmin,
    State(server): State<Arc<Server>>,
    At(Named { index }): At<Named>,
) -> Answer<StatusCode> {
    super::blocking(move || server.drop_index(&index)).await??;
    Ok(StatusCode::NO_CONTENT)
}

/// A copy of an index on the server's disk.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// Its name in the data directory's folder `snapshots`.
    name: String,
    /// Documents in it.
    documents: usize,
}

/// Copy an index
///
/// A consistent copy of the last commit, in the data directory's folder `snapshots`; `micpq index restore` brings it back.
#[utoipa::path(post, path = "/v1/indexes/{index}/snapshots", tag = "indexes", operation_id = "createSnapshot",
    params(("index" = String, Path, description = "Name of the index")),
    responses((status = 201, description = "The copy is on disk", body = Snapshot), Refusals))]
pub async fn snapshot(
    _: MayAdmin,
    State(server): State<Arc<Server>>,
    Of(hosted): Of,
) -> Answer<(StatusCode, Json<Snapshot>)> {
    let folder = server.data()?.join(SNAPSHOTS);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let name = format!("{}-{}", hosted.name(), now.as_millis());
    let place = folder.join(&name);
    let copied = super::blocking(move || snapshot_of(hosted.dir(), &place, CopyConfig::default(), &Silent)).await?;
    let documents = copied.map_err(Problem::of(Code::Storage))?.documents as usize;
    Ok((StatusCode::CREATED, Json(Snapshot { name, documents })))
}

/// Copies of an index.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct SnapshotList {
    /// Their names, the oldest first.
    snapshots: Vec<String>,
}

/// List the copies of an index
#[utoipa::path(get, path = "/v1/indexes/{index}/snapshots", tag = "indexes", operation_id = "listSnapshots",
    params(("index" = String, Path, description = "Name of the index")),
    responses((status = 200, description = "Their names", body = SnapshotList), Refusals))]
pub async fn snapshots(_: MayRead, State(server): State<Arc<Server>>, Of(hosted): Of) -> Answer<Json<SnapshotList>> {
    let folder = match &server.config.data {
        Some(data) => data.join(SNAPSHOTS),
        None => return Ok(Json(SnapshotList { snapshots: Vec::new() })),
    };
    let mut snapshots: Vec<String> = std::fs::read_dir(folder)
        .map(|entries| entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    let own = |name: &String| {
        name.rsplit_once('-').is_some_and(|(index, time)| {
            index == hosted.name() && !time.is_empty() && time.bytes().all(|b| b.is_ascii_digit())
        })
    };
    snapshots.retain(own);
    snapshots.sort();
    Ok(Json(SnapshotList { snapshots }))
}
