//! Routes that create, show, copy and drop indexes.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use engine::NoProgress;
use engine::chunk::{ChunkConfig, ChunkSizes};
use engine::encoder::{Embedder, EmbedderConfig, pull};
use engine::index::{Bytes, CopyConfig, IndexConfig, RerankVectors, Store, backup as backup_of};
use engine::language::Language;
use engine::model::Model;
use micpq::BuildConfig;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Refusals;
use crate::bounds::Cancel;
use crate::config::check_name;
use crate::extract::{Body, MayAdmin, MayRead, NamedIndex, NoBody, PathPart, WholeIndex};
use crate::hosted::Hosted;
use crate::keys::Access;
use crate::problem::{Answer, Code, Problem};
use crate::schema;
use crate::server::{BACKUPS, Server, unknown_index};
use crate::whole::Whole;

#[derive(Debug, Serialize, ToSchema)]
pub struct IndexView {
    name: String,
    /// Always `open`.
    status: String,
    /// Number of documents, without deleted ones; for a key with a filter, of those that match it.
    documents: usize,
    /// Number of chunks, in an index with chunks. Not for a key with a filter.
    #[serde(skip_serializing_if = "Option::is_none")]
    chunks: Option<usize>,
    /// How texts are split, in an index with chunks.
    #[serde(skip_serializing_if = "Option::is_none")]
    chunk: Option<ChunkSizesView>,
    /// Language of keyword search.
    language: String,
    /// Number of deleted documents that are still on disk. Not for a key with a filter.
    #[serde(skip_serializing_if = "Option::is_none")]
    deleted: Option<usize>,
    /// Not for a key with a filter.
    #[serde(skip_serializing_if = "Option::is_none")]
    segments: Option<usize>,
    /// Bits of a code.
    bits: usize,
    num_codebooks: usize,
    /// Number of codewords per codebook.
    codebook_size: usize,
    /// Number of values of an embedding.
    width: usize,
    /// What the index stores of a document.
    #[schema(value_type = schema::Store)]
    store: Store,
    /// How the index stores embeddings for re-ranking.
    #[schema(value_type = schema::RerankVectors)]
    rerank_vectors: RerankVectors,
    /// Fingerprint of the model.
    model: String,
    /// Method that trained the model.
    method: String,
    /// Whether a query can weigh the kind: the model has tables by kind.
    kinds: bool,
    /// Encoder; `null` for an index of user vectors.
    encoder: Option<String>,
    /// Whether texts can be searched and added: the server has the encoder.
    texts: bool,
    /// Version of the directory format.
    format: u32,
    /// Bytes on disk by part. Not for a key with a filter.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Sizes>)]
    bytes: Option<Bytes>,
    /// Number of waiting queries.
    queries_waiting: usize,
    /// Number of waiting writes.
    writes_waiting: usize,
    /// Whether a job is using it.
    job_running: bool,
    /// Whether it was created over HTTP, and can be dropped over HTTP.
    droppable: bool,
}

impl IndexView {
    /// The index as far as the caller may know it.
    fn of(server: &Server, access: &Access, hosted: &Hosted) -> Answer<IndexView> {
        let failed = Problem::of(Code::BadQuery);
        let searcher = hosted.searcher();
        let index = searcher.index();
        let info = index.info().map_err(&failed)?;
        let model = index.model();
        // Sizes are of all documents together.
        let whole = access.filter().is_none();
        let documents = access.filter().map_or(Ok(info.documents), |filter| index.count(filter)).map_err(&failed)?;
        Ok(IndexView {
            name: hosted.name().to_owned(),
            status: "open".into(),
            documents,
            chunks: info.chunks.filter(|_| whole),
            chunk: info.chunk.map(|chunk| ChunkSizesView { tokens: chunk.tokens, overlap: chunk.overlap }),
            language: info.language.to_string(),
            deleted: whole.then_some(info.deleted),
            segments: whole.then_some(info.segments),
            bits: info.shape.bits(),
            num_codebooks: info.shape.num_codebooks(),
            codebook_size: info.shape.codebook_size(),
            width: model.inputs(),
            store: info.store,
            rerank_vectors: info.rerank_vectors,
            model: info.model,
            method: model.config.method.clone(),
            kinds: info.kinds,
            encoder: model.config.embedding.as_ref().map(|e| e.encoder.clone()),
            texts: server.encoders.of(model, &NoProgress).is_ok_and(|embedder| embedder.is_some()),
            format: info.format,
            bytes: whole.then_some(info.bytes),
            queries_waiting: hosted.queries.depth(),
            writes_waiting: hosted.writes.depth(),
            job_running: server.jobs.running(hosted.name()),
            droppable: hosted.ours,
        })
    }
}

/// How texts are split.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
pub struct ChunkSizesView {
    /// Tokens of a chunk at most.
    tokens: usize,
    /// Tokens that a chunk repeats of the one before.
    overlap: usize,
}

/// How long texts are split into chunks.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ChunkOption {
    /// Tokens of a chunk at most. Default: as many as the encoder takes.
    #[schema(minimum = 8, maximum = 100000)]
    #[serde(deserialize_with = "crate::whole::some_whole")]
    tokens: Option<usize>,
    /// Tokens that a chunk repeats of the one before, at most half of `tokens`. Default: an eighth of them.
    #[schema(minimum = 0, maximum = 50000)]
    #[serde(deserialize_with = "crate::whole::some_whole")]
    overlap: Option<usize>,
}

/// An index that cannot be opened.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct UnavailableIndex {
    name: String,
    /// Always `unavailable`.
    status: String,
    /// Error message. The server retries every few seconds.
    reason: String,
    /// Whether it was created over HTTP, and can be dropped over HTTP.
    droppable: bool,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct IndexList {
    /// Open indexes, ordered by name.
    indexes: Vec<IndexView>,
    /// Indexes that cannot be opened.
    unavailable: Vec<UnavailableIndex>,
}

/// List indexes
#[utoipa::path(get, path = "/v1/indexes", tag = "indexes", operation_id = "listIndexes",
    responses((status = 200, description = "All indexes", body = IndexList), Refusals))]
pub async fn list(_: MayRead, access: Access, State(server): State<Arc<Server>>) -> Answer<Json<IndexList>> {
    let listed = super::blocking(move || {
        let unavailable = |name: &str, reason: String, droppable| UnavailableIndex {
            name: name.to_owned(),
            status: "unavailable".into(),
            reason,
            droppable,
        };
        let closed = server.unavailable().into_iter().filter(|broken| access.reaches(&broken.name));
        let mut list = IndexList {
            indexes: Vec::new(),
            unavailable: closed.map(|broken| unavailable(&broken.name, broken.reason, broken.ours)).collect(),
        };
        for hosted in server.indexes().into_iter().filter(|hosted| access.reaches(hosted.name())) {
            // An index with missing files does not hide the others.
            match IndexView::of(&server, &access, &hosted) {
                Ok(view) => list.indexes.push(view),
                Err(problem) => list.unavailable.push(unavailable(hosted.name(), problem.details.message, hosted.ours)),
            }
        }
        list
    });
    Ok(Json(listed.await?))
}

/// Get an index
#[utoipa::path(get, path = "/v1/indexes/{index}", tag = "indexes", operation_id = "getIndex",
    params(("index" = String, Path, description = "Name of the index")),
    responses((status = 200, description = "The index", body = IndexView), Refusals))]
pub async fn show(
    _: MayRead,
    access: Access,
    State(server): State<Arc<Server>>,
    NamedIndex(hosted): NamedIndex,
) -> Answer<Json<IndexView>> {
    super::blocking(move || IndexView::of(&server, &access, &hosted)).await?.map(Json)
}

/// A new index, with the model of another index (`like`), or with an encoder and untrained codes (`encoder`, `bits`). An
/// untrained index can be trained later on its own documents.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Create {
    /// Name of an index whose model is used.
    like: Option<String>,
    /// Name of an encoder on the server. Default: all-MiniLM-L6-v2.
    #[schema(example = "all-MiniLM-L6-v2", min_length = 1, max_length = 200)]
    encoder: Option<String>,
    /// Bits of a code, without `like`: 16, 32, 64 or 128. Untrained codes need many bits. Default: 128.
    #[schema(example = 128)]
    bits: Option<Bits>,
    /// What the index stores of a document.
    #[schema(value_type = schema::Store)]
    store: Store,
    /// How the index stores embeddings for re-ranking. Default: `int8`.
    #[schema(value_type = schema::RerankVectors)]
    rerank_vectors: RerankVectors,
    /// Splits texts that are longer than the encoder takes into chunks, and searches all of them; hits are documents.
    /// Default: only the beginning of such a text is searched.
    chunk: Option<ChunkOption>,
    /// Language of keyword search: a code such as `de`, `ja` or `any`. Default: `en`.
    #[schema(example = "en", min_length = 2, max_length = 3)]
    language: Option<String>,
}

impl Default for Create {
    fn default() -> Self {
        Create {
            like: None,
            encoder: None,
            bits: None,
            store: Store::default(),
            rerank_vectors: BuildConfig::RERANK_VECTORS,
            chunk: None,
            language: None,
        }
    }
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
            _ => Err(format!("a code has 16, 32, 64 or 128 bits, not {bits}")),
        }
    }
}

impl From<Bits> for usize {
    fn from(bits: Bits) -> usize {
        bits.0
    }
}

impl ChunkOption {
    fn sizes(self, server: &Server, model: &Model) -> Answer<ChunkSizes> {
        let embedder = server.encoders.of(model, &NoProgress).map_err(Problem::of(Code::UnknownModel))?;
        let embedder = embedder.ok_or_else(|| {
            Problem::refused(
                Code::BadQuery,
                "chunk needs an encoder, and this model takes user vectors; leave chunk out",
            )
        })?;
        let config = ChunkConfig { tokens: self.tokens, overlap: self.overlap };
        config.sizes(&embedder).map_err(Problem::of(Code::BadQuery))
    }
}

impl Create {
    fn model(&self, server: &Server, access: &Access) -> Answer<(Model, serde_json::Value)> {
        if let Some(name) = &self.like {
            if self.encoder.is_some() || self.bits.is_some() {
                return Err(Problem::refused(
                    Code::BadQuery,
                    "the model of another index has its own encoder and bits; leave encoder and bits out",
                ));
            }
            let index = server.index(name)?.index();
            let metrics = std::fs::read(index.dir().join("model").join("metrics.json")).unwrap_or_default();
            return Ok((index.model().clone(), serde_json::from_slice(&metrics).unwrap_or_default()));
        }
        let name = self.encoder.as_deref().unwrap_or(pull::DEFAULT);
        // Only names, no paths: callers must not read the server's disk.
        if name.contains("..") || name.starts_with(['/', '.', '~']) || name.contains('\\') {
            return Err(Problem::refused(
                Code::UnknownModel,
                "the encoder is a path; give the name of an encoder on the server",
            ));
        }
        // Of foreign indexes not even the encoders are told.
        let known = server
            .indexes()
            .iter()
            .filter(|hosted| access.reaches(hosted.name()))
            .any(|h| h.index().model().config.embedding.as_ref().is_some_and(|e| e.encoder == name));
        if !known && !pull::is_pulled(name) {
            return Err(Problem::refused(
                Code::UnknownModel,
                format!("encoder \"{name}\" is not on this server; download it there first"),
            ));
        }
        let embedder = Embedder::load_local(&EmbedderConfig {
            encoder: name.to_owned(),
            unit_length: true,
            ..EmbedderConfig::default()
        })
        .map_err(Problem::of(Code::UnknownModel))?;
        let model = micpq::pipeline::untrained_model(embedder.config(), self.bits.map_or(128, usize::from));
        Ok((model.map_err(Problem::of(Code::BadQuery))?, serde_json::Value::Null))
    }
}

#[derive(Deserialize)]
pub struct IndexPath {
    index: String,
}

/// Create an index
///
/// Creates an empty index in the server's data directory. Add documents, then train it on them for better and shorter codes.
#[utoipa::path(put, path = "/v1/indexes/{index}", tag = "indexes", operation_id = "createIndex",
    params(("index" = String, Path, description = "Name of the index", min_length = 1, max_length = 64, pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]*$")),
    request_body = Create, responses((status = 201, description = "The index is created", body = IndexView), Refusals))]
pub async fn create(
    _: MayAdmin,
    access: Access,
    State(server): State<Arc<Server>>,
    PathPart(IndexPath { index }): PathPart<IndexPath>,
    Body(body): Body<Create>,
) -> Answer<(StatusCode, Json<IndexView>)> {
    check_name(&index).map_err(|e| Problem::bad_request(e.to_string()))?;
    if !access.reaches(&index) {
        return Err(Problem::new(
            StatusCode::FORBIDDEN,
            Code::NotAllowed,
            format!("your key may not create \"{index}\"; use one of the names that it lists"),
        ));
    }
    access.expect_whole()?;
    if let Some(like) = &body.like {
        server.index_for(&access, like)?;
    }
    server.data()?;
    let created = super::blocking(move || {
        let (model, metrics) = body.model(&server, &access)?;
        let (store, rerank_vectors) = (body.store, body.rerank_vectors);
        let language = body.language.as_deref().map_or(Ok(Language::default()), str::parse);
        let language = language.map_err(Problem::of(Code::BadQuery))?;
        let chunk = body.chunk.map(|chunk| chunk.sizes(&server, &model)).transpose()?;
        let config = IndexConfig { store, rerank_vectors, language, chunk, replace: false, metrics };
        let hosted = server.create(&index, &model, config)?;
        IndexView::of(&server, &access, &hosted)
    });
    Ok((StatusCode::CREATED, Json(created.await??)))
}

/// Drop an index
///
/// Removes the index with all its documents. Only for an index that was created over HTTP.
#[utoipa::path(delete, path = "/v1/indexes/{index}", tag = "indexes", operation_id = "dropIndex",
    params(("index" = String, Path, description = "Name of the index")),
    responses((status = 204, description = "The index is removed"), Refusals))]
pub async fn drop_index(
    _: MayAdmin,
    access: Access,
    _: NoBody,
    State(server): State<Arc<Server>>,
    PathPart(IndexPath { index }): PathPart<IndexPath>,
) -> Answer<StatusCode> {
    if !access.reaches(&index) {
        return Err(unknown_index(&index));
    }
    access.expect_whole()?;
    super::blocking(move || server.drop_index(&index)).await??;
    Ok(StatusCode::NO_CONTENT)
}

/// A backup of an index on the server's disk.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Backup {
    /// Name in the folder `backups` of the data directory.
    name: String,
    documents: usize,
}

/// Back up an index
///
/// Copies the last commit to the folder `backups` of the data directory. `micpq index restore` creates an index from it.
#[utoipa::path(post, path = "/v1/indexes/{index}/backups", tag = "indexes", operation_id = "createBackup",
    params(("index" = String, Path, description = "Name of the index")),
    responses((status = 201, description = "The backup is on disk", body = Backup), Refusals))]
pub async fn backup(
    _: MayAdmin,
    _: NoBody,
    State(server): State<Arc<Server>>,
    WholeIndex(hosted): WholeIndex,
) -> Answer<(StatusCode, Json<Backup>)> {
    let folder = server.data()?.join(BACKUPS);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let name = format!("{}-{}", hosted.name(), now.as_millis());
    let path = folder.join(&name);
    let work = move |cancel: &Cancel| backup_of(hosted.dir(), &path, CopyConfig::default(), cancel);
    let copied = super::reading(&server, work).await?;
    let documents = copied.map_err(Problem::of(Code::Storage))?.documents as usize;
    Ok((StatusCode::CREATED, Json(Backup { name, documents })))
}

/// Backups of an index.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct BackupList {
    /// Names, oldest first.
    backups: Vec<String>,
}

/// List the backups of an index
#[utoipa::path(get, path = "/v1/indexes/{index}/backups", tag = "indexes", operation_id = "listBackups",
    params(("index" = String, Path, description = "Name of the index")),
    responses((status = 200, description = "The names of the backups", body = BackupList), Refusals))]
pub async fn backups(
    _: MayRead,
    State(server): State<Arc<Server>>,
    WholeIndex(hosted): WholeIndex,
) -> Answer<Json<BackupList>> {
    let folder = match &server.config.data {
        Some(data) => data.join(BACKUPS),
        None => return Ok(Json(BackupList { backups: Vec::new() })),
    };
    let mut backups: Vec<String> = std::fs::read_dir(folder)
        .map(|entries| entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    let own = |name: &String| {
        name.rsplit_once('-').is_some_and(|(index, time)| {
            index == hosted.name() && !time.is_empty() && time.bytes().all(|b| b.is_ascii_digit())
        })
    };
    backups.retain(own);
    backups.sort();
    Ok(Json(BackupList { backups }))
}
