//! What a caller is told when a request cannot be met: a status, a code that never changes, and a sentence.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use micpq::Error;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Why a request was not met. Programs go by `code`, people by the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The body is not JSON.
    NotJson,
    /// The body, the path or the address has another form than documented.
    BadRequest,
    /// The body or a text in it is larger than the server takes.
    TooLarge,
    /// The media type is not the documented one.
    WrongMediaType,
    /// The Host header names another server.
    WrongHost,
    /// There is no key in the request.
    NoKey,
    /// The key is not known.
    UnknownKey,
    /// The key may not do this.
    NotAllowed,
    /// No index has this name.
    UnknownIndex,
    /// No document has this id.
    UnknownDocument,
    /// No job has this number.
    UnknownJob,
    /// Nothing is served under this path.
    UnknownPath,
    /// The path does not know this method.
    WrongMethod,
    /// The filter does not parse, or names an unknown attribute; `position` tells where.
    BadFilter,
    /// A vector has the wrong width or a value that is not a finite number.
    BadVector,
    /// The query cannot be answered by this index.
    BadQuery,
    /// A document cannot be kept; `line` and `committed` tell how far a stream came.
    BadDocument,
    /// The model asked for is not there.
    UnknownModel,
    /// An index of this name exists.
    IndexExists,
    /// Another writer or job has the index.
    IndexBusy,
    /// The index or server cannot do this as it is set up.
    Unsupported,
    /// Too much is waiting already.
    Overloaded,
    /// The request took too long.
    Timeout,
    /// The server is about to stop.
    Stopping,
    /// Disk or index failed; the log has more.
    Storage,
    /// A mistake of the server; the log has more.
    Internal,
}

/// The body of every answer that is not a success.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Refusal {
    /// What went wrong.
    pub error: Details,
}

/// What went wrong.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Details {
    /// Stable name of the reason.
    pub code: Code,
    /// What was wrong, and what to do.
    pub message: String,
    /// As OpenAI's clients expect it.
    #[serde(rename = "type")]
    #[schema(example = "invalid_request_error")]
    pub kind: String,
    /// Character of the filter at which it stops making sense, from 0.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub position: Option<u64>,
    /// Line of the stream that was refused, from 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub line: Option<u64>,
    /// Documents of the stream that were committed before it, and stay so.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub committed: Option<u64>,
}

/// A request that was not met.
#[derive(Clone, Debug)]
pub struct Problem {
    /// HTTP status.
    pub status: StatusCode,
    /// The rest.
    pub details: Box<Details>,
}

/// `Result` of a handler.
pub type Answer<T> = Result<T, Problem>;

impl Problem {
    /// A status, a code and a sentence.
    pub fn new(status: StatusCode, code: Code, message: impl Into<String>) -> Problem {
        let kind = match status.as_u16() {
            401 | 403 => "authentication_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        };
        let details =
            Details { code, message: message.into(), kind: kind.into(), position: None, line: None, committed: None };
        Problem { status, details: Box::new(details) }
    }

    /// 400: not of the documented form.
    pub fn bad_request(message: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, Code::BadRequest, message)
    }

    /// 422: of the documented form, but it cannot be done.
    pub fn refused(code: Code, message: impl Into<String>) -> Problem {
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, code, message)
    }

    /// 404.
    pub fn not_found(code: Code, message: impl Into<String>) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, code, message)
    }

    /// 409.
    pub fn conflict(code: Code, message: impl Into<String>) -> Problem {
        Problem::new(StatusCode::CONFLICT, code, message)
    }

    /// 429.
    pub fn overloaded(what: &str) -> Problem {
        Problem::new(
            StatusCode::TOO_MANY_REQUESTS,
            Code::Overloaded,
            format!("{what}; try again after the seconds in Retry-After"),
        )
    }

    /// 503 while the server stops.
    pub fn stopping() -> Problem {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, Code::Stopping, "the server is about to stop; ask again later")
    }

    /// 500 for what must not happen.
    pub fn internal(message: impl Into<String>) -> Problem {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, Code::Internal, message)
    }

    /// What the engine refused while it did `code`'s kind of work: its own faults stay its own.
    pub fn of(code: Code) -> impl Fn(Error) -> Problem {
        move |error| match error {
            Error::Config(ref text) if text.starts_with("the filter") => filter_problem(text),
            Error::Config(_) | Error::Input { .. } => Problem::refused(code, error.to_string()),
            Error::Busy(_) => Problem::conflict(Code::IndexBusy, error.to_string()),
            Error::Interrupted => Problem::stopping(),
            Error::Device(_) => {
                tracing::error!(%error, "the encoder's device failed");
                let text = "the encoder cannot run on its device; the server's log says why";
                Problem::new(StatusCode::INTERNAL_SERVER_ERROR, Code::Internal, text)
            }
            Error::Format { .. } | Error::Io { .. } => {
                tracing::error!(%error, "storage failed");
                // Paths of the server are for its log, not for callers.
                let text = "the index could not be read or written; the server's log says why, \"micpq index verify\" finds damage";
                Problem::new(StatusCode::INTERNAL_SERVER_ERROR, Code::Storage, text)
            }
        }
    }
}

fn filter_problem(text: &str) -> Problem {
    let mut problem = Problem::refused(Code::BadFilter, text);
    let digits = text.rsplit_once("at character ").map(|(_, rest)| rest);
    let digits = digits.map(|d| d.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default());
    problem.details.position = digits.and_then(|d| d.parse().ok());
    problem
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let seconds = match self.details.code {
            Code::Overloaded | Code::IndexBusy => Some("1"),
            Code::Stopping => Some("5"),
            _ => None,
        };
        let mut response = (self.status, axum::Json(Refusal { error: *self.details })).into_response();
        if let Some(seconds) = seconds {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_tells_where_it_stops() {
        let text = "the filter \"a:[\" cannot be understood: syntax error at character 3; write it like places:japan";
        let problem = Problem::of(Code::BadQuery)(Error::config(text));
        assert_eq!(
            (problem.status.as_u16(), problem.details.code, problem.details.position),
            (422, Code::BadFilter, Some(3))
        );
        let plain = Problem::of(Code::BadQuery)(Error::config("k is 0"));
        assert_eq!((plain.details.code, plain.details.position), (Code::BadQuery, None));
    }

    #[test]
    fn paths_stay_in_the_log() {
        let problem = Problem::of(Code::BadQuery)(Error::format("/secret/place", "is damaged"));
        assert_eq!(problem.status.as_u16(), 500);
        assert!(!problem.details.message.contains("secret"));
    }
}
