//! Routes of background jobs: train, list, show, cancel.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use engine::Error;
use micpq::{BuildConfig, Training};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Refusals;
use super::documents::expect_texts;
use crate::extract::{MayAdmin, MayRead, NoBody, OptionalBody, PathPart, WholeIndex};
use crate::hosted::Hosted;
use crate::jobs::{Job, JobView};
use crate::keys::Access;
use crate::problem::{Answer, Code, Problem};
use crate::retrain;
use crate::server::Server;
use crate::whole::{some_seed, some_whole};

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Train {
    /// Bits of a code: 16, 32, 64 or 128. Default: those of the current model.
    bits: Option<super::indexes::Bits>,
    /// Method, as `micpq train --method` names it. It must read embeddings. Default: that of a build.
    method: Option<String>,
    /// Maximum number of epochs.
    #[schema(minimum = 1, maximum = 1000000)]
    #[serde(deserialize_with = "some_whole")]
    epochs: Option<usize>,
    /// Documents per training step.
    #[schema(minimum = 2, maximum = 65536)]
    #[serde(deserialize_with = "some_whole")]
    batch: Option<usize>,
    #[schema(maximum = 1000000000)]
    #[serde(deserialize_with = "some_seed")]
    seed: Option<u64>,
    /// Maximum number of training documents; a larger index is sampled evenly.
    #[schema(minimum = 2, maximum = 1000000000, default = 200000)]
    #[serde(deserialize_with = "some_whole")]
    sample: Option<usize>,
}

impl Train {
    /// Converts into the config of a build, which has every default.
    fn config(&self, bits: usize, cache: Option<PathBuf>) -> engine::Result<BuildConfig> {
        let method = self.method.as_deref().unwrap_or(BuildConfig::METHOD);
        let mut training = Training::named(method, self.bits.map_or(bits, usize::from))?;
        let numbers =
            [("epochs", self.epochs.map(|n| n as u64)), ("batch", self.batch.map(|n| n as u64)), ("seed", self.seed)];
        for (name, value) in numbers {
            if let Some(value) = value {
                training = training.with_option(name, value.into())?;
            }
        }
        training.validate()?;
        let mut config = BuildConfig { cache, ..BuildConfig::new(training) };
        config.sample = self.sample.unwrap_or(config.sample);
        if config.sample < 2 {
            let problem = format!("is {}; training compares documents, give at least 2", config.sample);
            return Err(Error::option("sample", problem));
        }
        config.validate()?;
        Ok(config)
    }
}

/// Train an index
///
/// Trains a new model on the texts of the index, in the background. Searches and writes continue meanwhile. At the end every
/// document has a code of the new model, also those written meanwhile, and the new index replaces the old one in one step.
///
/// Texts are encoded again, also those of documents that were added with a text and a vector. A document without text keeps
/// its stored rerank vector. An index that has such documents and stores no rerank vectors is refused.
#[utoipa::path(post, path = "/v1/indexes/{index}/train", tag = "jobs", operation_id = "trainIndex",
    params(("index" = String, Path, description = "Name of the index")),
    request_body = Option<Train>, responses((status = 202, description = "The job is started", body = JobView), Refusals))]
pub async fn train(
    _: MayAdmin,
    State(server): State<Arc<Server>>,
    WholeIndex(hosted): WholeIndex,
    OptionalBody(body): OptionalBody<Train>,
) -> Answer<Started> {
    expect_texts(&hosted)?;
    let bits = hosted.index().model().shape().bits();
    let bits = if [16, 32, 64, 128].contains(&bits) { bits } else { 64 };
    let cache = server.config.cache.clone();
    let config = body.config(bits, cache).map_err(bad_option)?;
    let checked = hosted.clone();
    super::blocking(move || retrain::check(&checked)).await?.map_err(|error| match error {
        Error::Config { .. } => Problem::conflict(Code::Unsupported, error.to_string()),
        error => Problem::of(Code::BadQuery)(error),
    })?;
    start("train", server, hosted, move |server, hosted, job| retrain::run(server, hosted, config, job))
}

/// The answer to a request that starts a job.
pub type Started = (StatusCode, Json<JobView>);

/// Starts work on an index in the background.
pub fn start(
    kind: &str,
    server: Arc<Server>,
    hosted: Arc<Hosted>,
    work: impl FnOnce(&Arc<Server>, &Arc<Hosted>, &Job) -> engine::Result<serde_json::Value> + Send + 'static,
) -> Answer<Started> {
    let (own, name) = (server.clone(), hosted.name().to_owned());
    let job = server.jobs.start(kind, &name, move |job| work(&own, &hosted, job))?;
    Ok((StatusCode::ACCEPTED, Json(job)))
}

/// An option of a job is out of its documented range.
pub fn bad_option(error: Error) -> Problem {
    Problem::bad_option(&error)
}

/// The jobs since the server started.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct JobList {
    /// Jobs, newest first.
    jobs: Vec<JobView>,
}

/// List jobs
#[utoipa::path(get, path = "/v1/jobs", tag = "jobs", operation_id = "listJobs",
    responses((status = 200, description = "The jobs since the server started", body = JobList), Refusals))]
pub async fn list(_: MayRead, access: Access, State(server): State<Arc<Server>>) -> Answer<Json<JobList>> {
    // Results of jobs tell of all documents.
    access.expect_whole()?;
    Ok(Json(JobList { jobs: server.jobs.list().into_iter().filter(|job| access.reaches(&job.index)).collect() }))
}

#[derive(Deserialize)]
pub struct JobPath {
    job: u64,
}

/// Get a job
#[utoipa::path(get, path = "/v1/jobs/{job}", tag = "jobs", operation_id = "getJob",
    params(("job" = u64, Path, description = "Number of the job", maximum = 1000000000)),
    responses((status = 200, description = "The job", body = JobView), Refusals))]
pub async fn show(
    _: MayRead,
    access: Access,
    State(server): State<Arc<Server>>,
    PathPart(JobPath { job }): PathPart<JobPath>,
) -> Answer<Json<JobView>> {
    Ok(Json(server.jobs.get_for(&access, job)?.view()))
}

/// Cancel a job
///
/// The job stops at the next safe point. A finished job does not change.
#[utoipa::path(delete, path = "/v1/jobs/{job}", tag = "jobs", operation_id = "cancelJob",
    params(("job" = u64, Path, description = "Number of the job", maximum = 1000000000)),
    responses((status = 202, description = "The job is asked to stop", body = JobView), Refusals))]
pub async fn cancel(
    _: MayAdmin,
    access: Access,
    _: NoBody,
    State(server): State<Arc<Server>>,
    PathPart(JobPath { job }): PathPart<JobPath>,
) -> Answer<Started> {
    let job = server.jobs.get_for(&access, job)?;
    job.cancel();
    Ok((StatusCode::ACCEPTED, Json(job.view())))
}
