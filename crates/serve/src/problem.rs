//! The answer to a request that fails: a status, a stable code, and a message.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine::Error;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Reason of a failure. Programs use `code`, people the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The body is not JSON.
    NotJson,
    /// The body, the path or the query string does not have the documented form.
    BadRequest,
    /// The body or a text in it is larger than the server accepts.
    TooLarge,
    /// The answer would be larger than the server sends.
    AnswerTooLarge,
    /// The media type is not the documented one.
    WrongMediaType,
    /// The Host header names another server.
    WrongHost,
    /// The request comes from a page of another site.
    CrossSite,
    /// The request has no key.
    NoKey,
    /// The server does not know the key.
    UnknownKey,
    /// The key's role, indexes or filter do not allow this.
    NotAllowed,
    /// No index has this name.
    UnknownIndex,
    /// The index exists but cannot be opened; the message says why.
    IndexUnavailable,
    /// No document has this id.
    UnknownDocument,
    /// No saved query has this name.
    UnknownSavedQuery,
    /// No job has this number.
    UnknownJob,
    /// The server does not have this path.
    UnknownPath,
    /// The path does not have this method.
    WrongMethod,
    /// The filter does not parse, or names an unknown attribute; `position` is the place.
    BadFilter,
    /// A vector has the wrong width or a value that is not a finite number.
    BadVector,
    /// This index cannot answer the query.
    BadQuery,
    /// A document cannot be stored; `line` and `committed` are the progress of a stream.
    BadDocument,
    /// The server does not have this model.
    UnknownModel,
    /// An index of this name exists.
    IndexExists,
    /// Another writer or job is using the index.
    IndexBusy,
    /// The index or the server is not configured for this.
    Unsupported,
    /// The key has used what it may: queries of a day, documents, or bytes.
    QuotaExceeded,
    /// Too many requests are waiting, or the key sends too many.
    Overloaded,
    /// The request took too long.
    Timeout,
    /// The server is about to stop.
    Stopping,
    /// The disk or the index failed; the log says why.
    Storage,
    /// The server failed; the log says why.
    Internal,
}

/// The body of every failure.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Refusal {
    pub error: Details,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Details {
    /// Stable name of the reason.
    pub code: Code,
    /// What is wrong, and what to do.
    pub message: String,
    /// Error type for OpenAI's clients.
    #[serde(rename = "type")]
    #[schema(example = "invalid_request_error")]
    pub kind: String,
    /// Position of the first wrong character of the filter, from 0.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub position: Option<u64>,
    /// Name of the option that is wrong, if it is one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub option: Option<String>,
    /// Line of the stream that cannot be stored, from 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub line: Option<u64>,
    /// Documents of the stream that are committed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub committed: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct Problem {
    pub status: StatusCode,
    pub details: Box<Details>,
    /// Seconds until the same request may succeed. `None`: as long as is usual for the code.
    pub retry_after: Option<u64>,
}

/// Result of a handler.
pub type Answer<T> = Result<T, Problem>;

impl Problem {
    pub fn new(status: StatusCode, code: Code, message: impl Into<String>) -> Problem {
        let kind = match status.as_u16() {
            401 | 403 => "authentication_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        };
        let details = Details {
            code,
            message: message.into(),
            kind: kind.into(),
            position: None,
            option: None,
            line: None,
            committed: None,
        };
        Problem { status, details: Box::new(details), retry_after: None }
    }

    /// The same with the seconds of its Retry-After.
    pub fn retry_after(self, seconds: u64) -> Problem {
        Problem { retry_after: Some(seconds), ..self }
    }

    /// 400: the request does not have the documented form.
    pub fn bad_request(message: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, Code::BadRequest, message)
    }

    /// 400: an option is out of its documented range.
    pub fn bad_option(error: &Error) -> Problem {
        let mut problem = Problem::bad_request(error.to_string());
        if let Error::Config { option, .. } = error {
            problem.details.option = option.clone();
        }
        problem
    }

    /// 400: a list of a request has more entries than it may have.
    pub fn bounded<T>(list: &[T], name: &str, max: usize) -> Answer<()> {
        match list.len() {
            count if count > max => {
                Err(Problem::bad_request(format!("{name} has {count} entries; give at most {max}")))
            }
            _ => Ok(()),
        }
    }

    /// 422: the request has the documented form, but this index cannot execute it.
    pub fn refused(code: Code, message: impl Into<String>) -> Problem {
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, code, message)
    }

    pub fn not_found(code: Code, message: impl Into<String>) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, code, message)
    }

    pub fn conflict(code: Code, message: impl Into<String>) -> Problem {
        Problem::new(StatusCode::CONFLICT, code, message)
    }

    /// 429. `what` says what is full.
    pub fn overloaded(what: &str) -> Problem {
        Problem::new(
            StatusCode::TOO_MANY_REQUESTS,
            Code::Overloaded,
            format!("{what}; try again after the seconds in Retry-After"),
        )
    }

    /// 503 while the server stops.
    pub fn stopping() -> Problem {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, Code::Stopping, "the server is stopping; try again later")
    }

    /// 503 while the server opens its indexes.
    pub fn opening() -> Problem {
        let text = "the server is opening its indexes; GET /readyz answers 200 when it has, try again then";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, Code::IndexUnavailable, text)
    }

    /// 500 for a fault of the server.
    pub fn internal(message: impl Into<String>) -> Problem {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, Code::Internal, message)
    }

    /// Converts an error of the engine. `code` is for errors of the caller; other errors have their own codes.
    pub fn of(code: Code) -> impl Fn(Error) -> Problem {
        move |error| match error {
            Error::FilterSyntax { position, problem } => {
                let mut refused = Problem::refused(Code::BadFilter, problem);
                refused.details.position = position.map(|position| position as u64);
                refused
            }
            Error::Config { ref option, .. } => {
                let mut refused = Problem::refused(code, error.to_string());
                refused.details.option = option.clone();
                refused
            }
            Error::Input { .. } => Problem::refused(code, error.to_string()),
            Error::TooLarge(_) => Problem::refused(Code::AnswerTooLarge, error.to_string()),
            Error::Busy(_) => Problem::conflict(Code::IndexBusy, error.to_string()),
            Error::Interrupted => Problem::stopping(),
            Error::Device(_) => {
                tracing::error!(%error, "the encoder's device failed");
                let text = "the encoder's device failed; the server's log says why";
                Problem::new(StatusCode::INTERNAL_SERVER_ERROR, Code::Internal, text)
            }
            ref error if error.is_out_of_descriptors() => {
                tracing::error!(%error, "no file descriptor is left");
                Problem::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    Code::Overloaded,
                    "the server has no file descriptor left; nothing was changed, try again after the seconds in Retry-After",
                )
            }
            Error::Format { .. } | Error::Io { .. } => {
                tracing::error!(%error, "storage failed");
                // The message has no paths of the server: they are only for its log.
                let text =
                    "cannot read or write the index; the server's log says why, and verifying the index finds damage";
                Problem::new(StatusCode::INTERNAL_SERVER_ERROR, Code::Storage, text)
            }
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let seconds = self.retry_after.or(match self.details.code {
            Code::Overloaded | Code::IndexBusy => Some(1),
            Code::Stopping => Some(5),
            Code::IndexUnavailable => Some(10),
            _ => None,
        });
        let mut response = (self.status, axum::Json(Refusal { error: *self.details })).into_response();
        if let Some(seconds) = seconds {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
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
    fn a_filter_error_has_its_code_and_position() {
        let text = "the filter \"a:[\" cannot be understood: syntax error at character 3; write it like places:japan";
        let problem = Problem::of(Code::BadQuery)(Error::filter(Some(3), text));
        assert_eq!(
            (problem.status.as_u16(), problem.details.code, problem.details.position),
            (422, Code::BadFilter, Some(3))
        );
        assert_eq!(problem.details.message, text);
        // The variant decides, not the text.
        for error in [Error::option("k", "is 0"), Error::config("the filter is wrong at character 3")] {
            let problem = Problem::of(Code::BadQuery)(error);
            assert_eq!((problem.details.code, problem.details.position), (Code::BadQuery, None));
        }
    }

    #[test]
    fn an_error_of_an_option_names_it() {
        for problem in [
            Problem::of(Code::BadQuery)(Error::option("k", "is 0; give at least 1")),
            Problem::bad_option(&Error::option("k", "is 0; give at least 1")),
        ] {
            assert_eq!(problem.details.option.as_deref(), Some("k"));
            assert_eq!(problem.details.message, "k is 0; give at least 1");
        }
        assert_eq!(Problem::of(Code::BadQuery)(Error::config("the query is empty")).details.option, None);
    }

    #[test]
    fn missing_descriptors_are_an_overload_and_not_damage() {
        let error = || std::io::Error::from_raw_os_error(24);
        let problem = Problem::of(Code::BadDocument)(Error::io("/index")(error()));
        assert_eq!((problem.status.as_u16(), problem.details.code), (503, Code::Overloaded));
        // The number decides, not the text.
        let damaged = Problem::of(Code::BadDocument)(Error::format("/index", error().to_string()));
        assert_eq!(damaged.details.code, Code::Storage);
        let full = Error::io("/index")(std::io::Error::from_raw_os_error(28));
        assert_eq!(Problem::of(Code::BadDocument)(full).details.code, Code::Storage);
    }

    #[test]
    fn messages_have_no_paths_of_the_server() {
        let problem = Problem::of(Code::BadQuery)(Error::format("/secret/place", "is damaged"));
        assert_eq!(problem.status.as_u16(), 500);
        assert!(!problem.details.message.contains("secret"));
    }
}
