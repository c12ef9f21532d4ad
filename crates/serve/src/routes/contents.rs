//! Routes that look at what an index holds, in the background: duplicates and topics.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use engine::duplicates::{self, Duplicates, DuplicatesConfig, Measure};
use engine::index::Index;
use engine::topics::{self, TopicsConfig};
use engine::{Error, NoProgress, Result};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Refusals;
use super::jobs::{Started, bad_option, start};
use crate::extract::{MayAdmin, MayRead, OptionalBody, WholeIndex};
use crate::hosted::Hosted;
use crate::jobs::{Job, JobView};
use crate::problem::{Answer, Problem};
use crate::schema;
use crate::server::Server;
use crate::whole::{some_seed, some_whole};

/// Groups in the result of a job.
pub const GROUPS: usize = 1000;

/// Options of finding duplicates.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Dedup {
    /// What decides. Default: `words`, or `vectors` in an index without texts.
    #[schema(value_type = Option<schema::DuplicatesBy>)]
    by: Option<Measure>,
    /// Least similarity of two duplicates. Default: 0.4 by words, 0.9 by vectors.
    #[schema(minimum = 0.01, maximum = 1.0)]
    threshold: Option<f32>,
    /// Nearest documents by code that each document is compared with.
    #[schema(minimum = 1, maximum = 1000, default = 100)]
    #[serde(deserialize_with = "some_whole")]
    neighbours: Option<usize>,
    /// Delete the duplicates; the first document of each group stays.
    delete: bool,
    /// Give each duplicate this attribute, with the id of the document it repeats.
    mark: Option<String>,
    /// Maximum number of groups in the result of the job.
    #[schema(minimum = 0, maximum = 100000, default = 1000)]
    #[serde(deserialize_with = "some_whole")]
    groups: Option<usize>,
}

/// Find duplicates
///
/// Finds equal and nearly equal documents, in the background. Codes give the candidates; words or stored vectors
/// decide. The result of the job has the number of duplicates and the groups: their
/// representative, the document that was added first, and its duplicates. `delete` and `mark` change the index in one commit,
/// between two writes of other clients; a duplicate that was changed meanwhile stays.
#[utoipa::path(post, path = "/v1/indexes/{index}/dedup", tag = "jobs", operation_id = "findDuplicates",
    params(("index" = String, Path, description = "Name of the index")),
    request_body = Option<Dedup>, responses((status = 202, description = "The job is started", body = JobView), Refusals))]
pub async fn dedup(
    _: MayAdmin,
    State(server): State<Arc<Server>>,
    WholeIndex(hosted): WholeIndex,
    OptionalBody(body): OptionalBody<Dedup>,
) -> Answer<Started> {
    let defaults = DuplicatesConfig::default();
    let config = DuplicatesConfig {
        by: body.by,
        threshold: body.threshold,
        neighbours: body.neighbours.unwrap_or(defaults.neighbours),
    };
    config.validate().map_err(bad_option)?;
    if body.delete && body.mark.is_some() {
        return Err(Problem::bad_request("give either delete or mark: a deleted document cannot be marked"));
    }
    start("dedup", server, hosted, move |_, hosted, job| find_duplicates(hosted, &config, body, job))
}

fn find_duplicates(hosted: &Hosted, config: &DuplicatesConfig, options: Dedup, job: &Job) -> Result<serde_json::Value> {
    let mut found = duplicates::find(&hosted.index(), config, job)?;
    let mut result = serde_json::json!({});
    if options.delete {
        let (done, unchanged) =
            change(hosted, found, |index, found| duplicates::delete(index, found, &NoProgress), job)?;
        (result["deleted"], found) = (serde_json::to_value(done).expect("plain data has a JSON form"), unchanged);
    }
    if let Some(name) = options.mark {
        let mark = move |index: &Index, found: &Duplicates| duplicates::mark(index, found, &name, &NoProgress);
        let (marked, unchanged) = change(hosted, found, mark, job)?;
        (result["marked"], found) = (marked.into(), unchanged);
    }
    result["total_groups"] = found.groups.len().into();
    found.groups.truncate(options.groups.unwrap_or(GROUPS));
    Ok(with(result, &found))
}

/// Changes the index on its writer thread, between two writes. `what` opens the writer of the index itself.
fn change<F: Send + 'static, T: Send + 'static>(
    hosted: &Hosted,
    found: F,
    what: impl FnOnce(&Index, &F) -> Result<T> + Send + 'static,
    job: &Job,
) -> Result<(T, F)> {
    use engine::Progress;
    if job.interrupted() {
        return Err(Error::Interrupted);
    }
    let work = hosted.writes.run_exclusive_blocking(move |writer| {
        writer.release();
        what(&writer.index(), &found).map(|done| (done, found))
    });
    work.map_err(|_| Error::Interrupted)?
}

/// The fields of an object and of `found`.
fn with(mut object: serde_json::Value, found: &impl Serialize) -> serde_json::Value {
    let serde_json::Value::Object(fields) = serde_json::to_value(found).expect("plain data has a JSON form") else {
        unreachable!("duplicates and topics are objects");
    };
    object.as_object_mut().expect("an object is given").extend(fields);
    object
}

/// Options of finding topics.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FindTopics {
    /// Number of topics. Default: chosen by how well the clusters are told apart.
    #[schema(minimum = 1, maximum = 1000)]
    #[serde(deserialize_with = "some_whole")]
    topics: Option<usize>,
    /// Seed of the first centres. The same seed gives the same topics.
    #[schema(maximum = 1000000000, default = 1)]
    #[serde(deserialize_with = "some_seed")]
    seed: Option<u64>,
    /// Terms of a topic.
    #[schema(minimum = 1, maximum = 100, default = 10)]
    #[serde(deserialize_with = "some_whole")]
    terms: Option<usize>,
    /// Typical documents of a topic.
    #[schema(minimum = 1, maximum = 100, default = 3)]
    #[serde(deserialize_with = "some_whole")]
    typical: Option<usize>,
    /// Attribute with dates, for the trend. Default: the first one that has dates, if any.
    over: Option<String>,
    /// Give each document this attribute, with the number of its topic; outliers have none.
    mark: Option<String>,
    /// Give documents that were added later the number of the nearest topic, in this attribute that `mark` wrote before. No
    /// topics are found anew: the result has the numbers of documents.
    extend: Option<String>,
    /// Whether documents that are added later get their topic as they are added, in the attribute of `mark` or `extend`. `false`
    /// ends it. Default: as before.
    follow: Option<bool>,
}

impl FindTopics {
    fn config(&self) -> Result<TopicsConfig> {
        let defaults = TopicsConfig::default();
        let config = TopicsConfig {
            topics: self.topics,
            seed: self.seed.unwrap_or(defaults.seed),
            terms: self.terms.unwrap_or(defaults.terms),
            typical: self.typical.unwrap_or(defaults.typical),
            over: self.over.clone(),
        };
        config.validate()?;
        Ok(config)
    }

    /// Refuses options of finding topics beside `extend`, which would change nothing.
    fn expect_only_extend(&self) -> Answer<()> {
        let given = [
            ("topics", self.topics.is_some()),
            ("seed", self.seed.is_some()),
            ("terms", self.terms.is_some()),
            ("typical", self.typical.is_some()),
            ("over", self.over.is_some()),
            ("mark", self.mark.is_some()),
        ];
        match given.into_iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((name, _)) => Err(Problem::bad_request(format!("extend finds no topics; leave {name} out"))),
        }
    }
}

/// Find topics
///
/// Clusters the codes of the documents, in the background. The result of the job has the topics, largest first, each with its
/// name, terms, typical documents, share and trend, and the hierarchy of their merges. `mark` writes the number of its topic
/// into an attribute of every document, in one commit, so that filters can use it.
#[utoipa::path(post, path = "/v1/indexes/{index}/topics", tag = "jobs", operation_id = "findTopics",
    params(("index" = String, Path, description = "Name of the index")),
    request_body = Option<FindTopics>, responses((status = 202, description = "The job is started", body = JobView), Refusals))]
pub async fn topics(
    _: MayAdmin,
    State(server): State<Arc<Server>>,
    WholeIndex(hosted): WholeIndex,
    OptionalBody(body): OptionalBody<FindTopics>,
) -> Answer<Started> {
    let follow = body.follow;
    if follow == Some(true) && body.mark.is_none() && body.extend.is_none() {
        return Err(Problem::bad_request("follow needs an attribute; give mark or extend"));
    }
    if let Some(name) = body.extend.clone() {
        body.expect_only_extend()?;
        return start("topics", server, hosted, move |_, hosted, job| extend_topics(hosted, name, follow, job));
    }
    let config = body.config().map_err(bad_option)?;
    let mark = body.mark;
    start("topics", server, hosted, move |_, hosted, job| {
        let mut found = topics::find(&hosted.index(), &config, job)?;
        let mut result = serde_json::json!({});
        if let Some(name) = mark {
            let attribute = name.clone();
            let write = move |index: &Index, found: &topics::Topics| {
                let marked = topics::mark(index, found, &name, &NoProgress)?;
                set_follow(index, &name, follow).map(|()| marked)
            };
            let (marked, unchanged) = change(hosted, found, write, job)?;
            (result["marked"], found) = (marked.into(), unchanged);
            result["attribute"] = attribute.into();
        }
        let result = with(result, &found);
        *hosted.topics.lock() = Some(Arc::new(result.clone()));
        Ok(result)
    })
}

/// The last topics.
#[derive(Debug, Serialize, ToSchema)]
pub struct TopicsView {
    /// The result of the last job that found topics, with the `attribute` that it wrote; `null` if none did since the server
    /// started, or since the last training.
    #[schema(value_type = Option<Object>)]
    report: Option<serde_json::Value>,
}

/// Get the topics of an index
#[utoipa::path(get, path = "/v1/indexes/{index}/topics", tag = "insight", operation_id = "getTopics",
    params(("index" = String, Path, description = "Name of the index")),
    responses((status = 200, description = "The topics that were found last", body = TopicsView), Refusals))]
pub async fn last_topics(_: MayRead, WholeIndex(hosted): WholeIndex) -> Json<TopicsView> {
    let report = hosted.topics.lock().clone();
    Json(TopicsView { report: report.as_deref().cloned() })
}

/// Runs on the writer thread, whose writer opens again afterwards.
fn set_follow(index: &Index, attribute: &str, follow: Option<bool>) -> Result<()> {
    match follow {
        None => Ok(()),
        Some(true) => topics::follow(index, attribute, &NoProgress),
        Some(false) => topics::unfollow(index).map(drop),
    }
}

fn extend_topics(hosted: &Hosted, name: String, follow: Option<bool>, job: &Job) -> Result<serde_json::Value> {
    let later = topics::find_later(&hosted.index(), &name, job)?;
    let write = move |index: &Index, later: &topics::Later| {
        let marked = topics::mark_later(index, later, &name, &NoProgress)?;
        set_follow(index, &name, follow).map(|()| marked)
    };
    let (marked, later) = change(hosted, later, write, job)?;
    Ok(with(serde_json::json!({ "marked": marked }), &later))
}
