//! Routes of recall: measure how much of exact float search an index finds, and show the last measurement.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use engine::Error;
use engine::query::{RecallConfig, RecallReport};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Refusals;
use super::jobs::{Started, bad_option, start};
use crate::extract::{MayAdmin, MayRead, OptionalBody, WholeIndex};
use crate::jobs::JobView;
use crate::problem::Answer;
use crate::server::Server;
use crate::whole::some_whole;

/// Options of a measurement.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MeasureRecall {
    /// Documents that are queries, over all windows together.
    #[schema(minimum = 1, maximum = 100000, default = 400)]
    #[serde(deserialize_with = "some_whole")]
    queries: Option<usize>,
    /// Neighbours that should be found.
    #[schema(minimum = 1, maximum = 1000, default = 10)]
    #[serde(deserialize_with = "some_whole")]
    k: Option<usize>,
    /// Parts of the index, in the order of insertion, that are measured apart.
    #[schema(minimum = 1, maximum = 1000, default = 4)]
    #[serde(deserialize_with = "some_whole")]
    windows: Option<usize>,
    /// Candidates that a search re-ranks.
    #[schema(minimum = 1, maximum = 10000, default = 1000)]
    #[serde(deserialize_with = "some_whole")]
    rerank: Option<usize>,
}

impl MeasureRecall {
    fn config(&self) -> engine::Result<RecallConfig> {
        let own = RecallConfig::default();
        let config = RecallConfig {
            queries: self.queries.unwrap_or(own.queries),
            k: self.k.unwrap_or(own.k),
            windows: self.windows.unwrap_or(own.windows),
            rerank: self.rerank.unwrap_or(own.rerank),
        };
        config.validate()?;
        Ok(config)
    }
}

/// Measure recall
///
/// Compares searches with exact float search over the stored rerank vectors, in the background, on documents of the index.
/// The windows follow the order of insertion, so that a model that is older than the documents shows. The result of the job
/// is the report; `GET` on this path and the metric `micpq_index_recall` show the last one.
#[utoipa::path(post, path = "/v1/indexes/{index}/recall", tag = "jobs", operation_id = "measureRecall",
    params(("index" = String, Path, description = "Name of the index")),
    request_body = Option<MeasureRecall>, responses((status = 202, description = "The job is started", body = JobView), Refusals))]
pub async fn measure(
    _: MayAdmin,
    State(server): State<Arc<Server>>,
    WholeIndex(hosted): WholeIndex,
    OptionalBody(body): OptionalBody<MeasureRecall>,
) -> Answer<Started> {
    let config = body.config().map_err(bad_option)?;
    start("recall", server, hosted, move |server, hosted, job| {
        let report = hosted.searcher().recall(&config, job)?;
        server.metrics.recall(hosted.name(), &report);
        let result = serde_json::to_value(&report).map_err(|error| Error::config(error.to_string()))?;
        *hosted.recall.lock() = Some(Arc::new(report));
        Ok(result)
    })
}

/// The last measurement of recall.
#[derive(Debug, Serialize, ToSchema)]
pub struct RecallView {
    /// The report; `null` if recall was not measured since the server started.
    #[schema(value_type = Option<Object>)]
    report: Option<RecallReport>,
}

/// Get the recall of an index
#[utoipa::path(get, path = "/v1/indexes/{index}/recall", tag = "insight", operation_id = "getRecall",
    params(("index" = String, Path, description = "Name of the index")),
    responses((status = 200, description = "The last measurement", body = RecallView), Refusals))]
pub async fn show(_: MayRead, WholeIndex(hosted): WholeIndex) -> Json<RecallView> {
    Json(RecallView { report: hosted.recall.lock().as_deref().cloned() })
}
