//! Training in the background, and jobs in general.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use train::TrainConfig;
use utoipa::ToSchema;

use super::Refusals;
use super::documents::expect_texts;
use crate::extract::{At, MayAdmin, MayRead, Of, OptionalBody, some_whole};
use crate::jobs::JobView;
use crate::problem::{Answer, Problem};
use crate::retrain;
use crate::server::Server;

/// How an index is trained anew. What is left out is as the present model has it.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Train {
    /// Bits of a code: 16, 32, 64 or 128.
    bits: Option<super::indexes::Bits>,
    /// Most epochs.
    #[schema(minimum = 1, maximum = 1000000)]
    #[serde(deserialize_with = "some_whole")]
    epochs: Option<usize>,
    /// Documents a step.
    #[schema(minimum = 2, maximum = 65536)]
    #[serde(deserialize_with = "some_whole")]
    batch: Option<usize>,
    /// Seed of everything random.
    #[schema(maximum = 1000000000)]
    #[serde(deserialize_with = "some_whole")]
    seed: Option<u64>,
    /// Most documents to train on; more are sampled evenly.
    #[schema(minimum = 2, maximum = 1000000000, default = 200000)]
    #[serde(deserialize_with = "some_whole")]
    sample: Option<usize>,
}

impl Train {
    fn config(&self, bits: usize) -> Answer<TrainConfig> {
        let mut config = TrainConfig::new(self.bits.map_or(bits, usize::from));
        config.epochs = self.epochs.unwrap_or(config.epochs);
        config.batch = self.batch.unwrap_or(config.batch);
        config.seed = self.seed.unwrap_or(config.seed);
        config.validate().map_err(|e| Problem::bad_request(e.to_string()))?;
        Ok(config)
    }
}

/// Train an index anew
///
/// In the background, on the index's own texts; searches and writes go on meanwhile. At the end every document has a code
/// of the new model, those written meanwhile too, and the new index takes the place of the old one at once.
#[utoipa::path(post, path = "/v1/indexes/{index}/train", tag = "jobs", operation_id = "trainIndex",
    params(("index" = String, Path, description = "Name of the index")),
    request_body = Option<Train>, responses((status = 202, description = "It has begun", body = JobView), Refusals))]
pub async fn train(
    _: MayAdmin,
    State(server): State<Arc<Server>>,
    Of(hosted): Of,
    OptionalBody(body): OptionalBody<Train>,
) -> Answer<(StatusCode, Json<JobView>)> {
    expect_texts(&hosted)?;
    let bits = hosted.index().model().shape().bits();
    let bits = if [16, 32, 64, 128].contains(&bits) { bits } else { 64 };
    let config = body.config(bits)?;
    let sample = body.sample.unwrap_or(200_000);
    if sample < 2 {
        return Err(Problem::bad_request("sample: training compares documents and needs at least 2"));
    }
    let (own, name) = (server.clone(), hosted.name().to_owned());
    let job = server.jobs.start("train", &name, move |job| retrain::run(&own, &hosted, config, sample, job))?;
    Ok((StatusCode::ACCEPTED, Json(job)))
}

/// Jobs since the server began.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct JobList {
    /// The newest first.
    jobs: Vec<JobView>,
}

/// List jobs
#[utoipa::path(get, path = "/v1/jobs", tag = "jobs", operation_id = "listJobs",
    responses((status = 200, description = "Jobs since the server began", body = JobList), Refusals))]
pub async fn list(_: MayRead, State(server): State<Arc<Server>>) -> Json<JobList> {
    Json(JobList { jobs: server.jobs.list() })
}

#[derive(Deserialize)]
pub struct Numbered {
    job: u64,
}

/// Look at a job
#[utoipa::path(get, path = "/v1/jobs/{job}", tag = "jobs", operation_id = "getJob",
    params(("job" = u64, Path, description = "Number of the job", maximum = 1000000000)),
    responses((status = 200, description = "The job", body = JobView), Refusals))]
pub async fn show(
    _: MayRead,
    State(server): State<Arc<Server>>,
    At(Numbered { job }): At<Numbered>,
) -> Answer<Json<JobView>> {
    Ok(Json(server.jobs.get(job)?.view()))
}

/// Cancel a job
///
/// It stops at the next safe place. A job that has ended stays as it is.
#[utoipa::path(delete, path = "/v1/jobs/{job}", tag = "jobs", operation_id = "cancelJob",
    params(("job" = u64, Path, description = "Number of the job", maximum = 1000000000)),
    responses((status = 202, description = "It was asked to stop", body = JobView), Refusals))]
pub async fn cancel(
    _: MayAdmin,
    State(server): State<Arc<Server>>,
    At(Numbered { job }): At<Numbered>,
) -> Answer<(StatusCode, Json<JobView>)> {
    let job = server.jobs.get(job)?;
    job.cancel();
    Ok((StatusCode::ACCEPTED, Json(job.view())))
}
