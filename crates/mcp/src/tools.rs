//! What an assistant sees: the tools, their schemas, and their calls.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::{Error, Progress, Result};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, JsonObject, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
};
use rmcp::schemars::JsonSchema;
use rmcp::schemars::generate::SchemaSettings;
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::indexes::Indexes;
use crate::{catalog, documents, search, subjects};

/// Calls that run at the same time. Each of them uses all cores where it can.
const MAX_CALLS: usize = 4;

type Call = dyn Fn(&Indexes, Value, &dyn Progress) -> Result<Value> + Send + Sync;

/// A tool and what it does.
struct Entry {
    tool: Tool,
    call: Box<Call>,
}

/// The server of one or many clients.
#[derive(Clone)]
pub struct Tools {
    shared: Arc<Shared>,
}

struct Shared {
    indexes: Indexes,
    entries: Vec<Entry>,
    turns: Semaphore,
    /// Set when the program ends.
    stop: Arc<AtomicBool>,
}

impl Tools {
    pub fn new(indexes: Indexes, stop: Arc<AtomicBool>) -> Tools {
        let shared = Shared { indexes, entries: entries(), turns: Semaphore::new(MAX_CALLS), stop };
        Tools { shared: Arc::new(shared) }
    }
}

fn entries() -> Vec<Entry> {
    vec![
        entry(
            "search",
            "Search documents",
            "Finds documents of an index by what they are about. Hits have an id, a title, a snippet and attributes; `fetch` \
             gives the whole text.",
            search::search,
        ),
        entry(
            "fetch",
            "Read a document",
            "Returns the text, labels and attributes of a document by its id. A long text comes in parts.",
            |indexes, asked, _| documents::fetch(indexes, asked),
        ),
        entry(
            "similar",
            "Find similar documents",
            "Finds documents of an index that are about the same as one of its documents.",
            search::similar,
        ),
        entry(
            "topics",
            "Show topics",
            "Says what the documents of an index are about: clusters with their terms, sizes and typical documents. It reads \
             the whole index, which takes seconds for a million documents.",
            subjects::topics,
        ),
        entry(
            "indexes",
            "List indexes",
            "Lists the indexes and the attributes that filters can use; for one index also their most frequent values.",
            |indexes, asked, _| catalog::indexes(indexes, asked),
        ),
    ]
}

fn entry<A, R>(
    name: &'static str,
    title: &str,
    description: &'static str,
    run: fn(&Indexes, A, &dyn Progress) -> Result<R>,
) -> Entry
where
    A: DeserializeOwned + JsonSchema + Any,
    R: Serialize + JsonSchema + Any,
{
    let call = move |indexes: &Indexes, arguments: Value, progress: &dyn Progress| {
        let asked = serde_path_to_error::deserialize(arguments).map_err(|e| wrong(name, &e))?;
        let answer = run(indexes, asked, progress)?;
        serde_json::to_value(answer).map_err(|e| Error::input("the answer", format!("has no JSON form: {e}")))
    };
    let hints = ToolAnnotations::new().read_only(true).idempotent(true).open_world(false);
    let tool = Tool::new(name, description, Arc::default())
        .with_title(title)
        .with_annotations(hints)
        .with_input_schema::<A>()
        .with_raw_output_schema(answer_schema::<R>());
    Entry { tool, call: Box::new(call) }
}

/// The schema of an answer as it is written: what is left out when it is empty is not required.
fn answer_schema<R: JsonSchema>() -> Arc<JsonObject> {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    match generator.into_root_schema_for::<R>().to_value() {
        Value::Object(mut schema) => {
            // The name of a Rust type says nothing to an assistant.
            schema.remove("title");
            Arc::new(schema)
        }
        _ => Arc::default(),
    }
}

fn wrong(tool: &str, error: &serde_path_to_error::Error<serde_json::Error>) -> Error {
    let path = error.path().to_string();
    let place = if path == "." { String::new() } else { format!("{path}: ") };
    Error::config(format!("arguments of {tool}: {place}{}; the schema of the tool says what it takes", error.inner()))
}

/// Interrupts the work of a call that nobody waits for any more.
struct Patience<F: Fn() -> bool + Sync>(F);

impl<F: Fn() -> bool + Sync> Progress for Patience<F> {
    fn interrupted(&self) -> bool {
        (self.0)()
    }
}

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        let instructions = format!(
            "Search in collections of documents on this machine. Indexes: {}. Start with `search`; `fetch` reads a hit, \
             `similar` finds more like it, `indexes` shows what a filter can use, `topics` gives an overview.",
            catalog::summary(&self.shared.indexes)
        );
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("micpq", env!("CARGO_PKG_VERSION")).with_title("micpq"))
            .with_instructions(instructions)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> std::result::Result<ListToolsResult, ErrorData> {
        let tools = self.shared.entries.iter().map(|entry| entry.tool.clone());
        Ok(ListToolsResult::with_all_items(tools.collect()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.shared.entries.iter().find(|entry| entry.tool.name == name).map(|entry| entry.tool.clone())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> std::result::Result<CallToolResponse, ErrorData> {
        let shared = self.shared.clone();
        let Some(place) = shared.entries.iter().position(|entry| entry.tool.name == request.name) else {
            let names: Vec<&str> = shared.entries.iter().map(|entry| &*entry.tool.name).collect();
            let text = format!("there is no tool \"{}\"; known: {}", request.name, names.join(", "));
            return Err(ErrorData::invalid_params(text, None));
        };
        let arguments = Value::Object(request.arguments.unwrap_or_default());
        let _turn = self.shared.turns.acquire().await;
        let called = tokio::task::spawn_blocking(move || {
            let patience = Patience(|| context.ct.is_cancelled() || shared.stop.load(Ordering::SeqCst));
            (shared.entries[place].call)(&shared.indexes, arguments, &patience)
        });
        let result = match called.await {
            Ok(Ok(answer)) => CallToolResult::structured(answer),
            Ok(Err(error)) => CallToolResult::error(vec![ContentBlock::text(error.to_string())]),
            Err(_) => {
                let text = "the program failed on this call; its standard error says why. Other calls still work";
                CallToolResult::error(vec![ContentBlock::text(text)])
            }
        };
        Ok(result.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_is_read_only_and_describes_every_argument() {
        for Entry { tool, .. } in entries() {
            let name = &tool.name;
            assert!(tool.annotations.as_ref().is_some_and(|hints| hints.read_only_hint == Some(true)), "{name}");
            let schema = Value::Object(tool.input_schema.as_ref().clone());
            assert_eq!(schema["additionalProperties"], false, "{name}");
            for (argument, schema) in schema["properties"].as_object().unwrap() {
                assert!(schema["description"].is_string(), "{name}: {argument}: {schema}");
            }
            let output = Value::Object(tool.output_schema.unwrap().as_ref().clone());
            assert_eq!(output["type"], "object", "{name}");
        }
    }

    #[test]
    fn the_schema_has_the_limits_that_a_call_checks() {
        let entries = entries();
        let schema = |name: &str| {
            let entry = entries.iter().find(|entry| entry.tool.name == name).unwrap();
            Value::Object(entry.tool.input_schema.as_ref().clone())
        };
        let search = schema("search");
        assert_eq!(search["required"], serde_json::json!(["query"]));
        assert_eq!(search["properties"]["k"]["maximum"], search::MAX_HITS);
        assert_eq!(search["properties"]["k"]["default"], 10);
        assert_eq!(search["properties"]["hybrid"]["maximum"], 1.0);
        assert_eq!(schema("fetch")["properties"]["bytes"]["maximum"], documents::MAX_BYTES);
        assert_eq!(schema("topics")["properties"]["topics"]["maximum"], subjects::MAX_TOPICS);
    }
}
