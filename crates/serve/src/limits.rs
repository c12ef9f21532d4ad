//! What a key may use: requests per minute, queries per day, documents and bytes.

use std::sync::Arc;
use std::time::Instant;

use axum::http::StatusCode;
use chrono::{DateTime, NaiveDate, Utc};
use parking_lot::Mutex;

use crate::config::KeyConfig;
use crate::problem::{Answer, Code, Problem};

const ROUNDING: f64 = 1e-6;

/// The limits of a key and what it has used of them.
#[derive(Debug)]
pub struct Limits {
    requests_per_minute: Option<u32>,
    queries_per_day: Option<u64>,
    pub max_documents: Option<u64>,
    pub max_bytes: Option<u64>,
    used: Arc<Used>,
}

/// What a key has used. It outlives a change of the key's options.
#[derive(Debug)]
struct Used {
    /// Requests that are left of those of a minute, at a time. They grow evenly. `None` before the first request.
    requests: Mutex<Option<(f64, Instant)>>,
    /// Queries of a day.
    queries: Mutex<(NaiveDate, u64)>,
}

impl Limits {
    /// Continues with what was used under `earlier` limits of the same key.
    pub fn new(config: &KeyConfig, earlier: Option<&Limits>) -> Limits {
        let fresh = || Arc::new(Used { requests: Mutex::new(None), queries: Mutex::new((NaiveDate::MIN, 0)) });
        Limits {
            requests_per_minute: config.requests_per_minute,
            queries_per_day: config.queries_per_day,
            max_documents: config.max_documents,
            max_bytes: config.max_bytes,
            used: earlier.map_or_else(fresh, |earlier| earlier.used.clone()),
        }
    }

    /// Counts a request, or refuses it.
    pub fn take_request(&self, now: Instant) -> Answer<()> {
        let Some(per_minute) = self.requests_per_minute else { return Ok(()) };
        let limit = f64::from(per_minute);
        let mut left = self.used.requests.lock();
        let (before, since) = left.unwrap_or((limit, now));
        let grown = now.saturating_duration_since(since).as_secs_f64() * limit / 60.0;
        let requests = (before + grown).min(limit);
        // A sum of parts may be a little less than the whole.
        if requests >= 1.0 - ROUNDING {
            *left = Some(((requests - 1.0).max(0.0), now));
            return Ok(());
        }
        *left = Some((requests, now));
        let seconds = ((1.0 - requests) * 60.0 / limit - ROUNDING).ceil();
        let what = format!("your key may send {per_minute} requests per minute, and this is one more");
        Err(Problem::overloaded(&what).retry_after(seconds.max(1.0) as u64))
    }

    /// Counts queries, or refuses all of them.
    pub fn take_queries(&self, queries: u64, now: DateTime<Utc>) -> Answer<()> {
        let Some(limit) = self.queries_per_day else { return Ok(()) };
        let mut used = self.used.queries.lock();
        let today = now.date_naive();
        if used.0 != today {
            *used = (today, 0);
        }
        if used.1.saturating_add(queries) > limit {
            let midnight = today.succ_opt().and_then(|day| day.and_hms_opt(0, 0, 0)).map(|time| time.and_utc());
            let seconds = midnight.map_or(86_400, |midnight| (midnight - now).num_seconds() + 1);
            let text = format!(
                "your key may ask {limit} queries per day, {} are asked, and this request has {queries}; ask fewer, or after \
                 midnight (UTC)",
                used.1
            );
            let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, Code::QuotaExceeded, text);
            return Err(problem.retry_after(seconds.max(1) as u64));
        }
        used.1 += queries;
        Ok(())
    }

    /// Refuses a write after which `documents` would exist for the key.
    pub fn check_documents(&self, documents: u64, new: u64) -> Answer<()> {
        match self.max_documents {
            Some(limit) if new > 0 && documents.saturating_add(new) > limit => Err(exceeded(format!(
                "your key may store {limit} documents, has {documents}, and this write adds {new}; delete some first"
            ))),
            _ => Ok(()),
        }
    }

    /// Refuses a write of `new` bytes to indexes of this size.
    pub fn check_bytes(&self, bytes: u64, new: u64) -> Answer<()> {
        match self.max_bytes {
            Some(limit) if bytes.saturating_add(new) > limit => Err(exceeded(format!(
                "your key may fill {limit} bytes on disk, its indexes have {bytes}, and this write has {new}; delete documents \
                 first"
            ))),
            _ => Ok(()),
        }
    }
}

fn exceeded(text: String) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, Code::QuotaExceeded, text)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::Role;

    fn config() -> KeyConfig {
        KeyConfig {
            name: "a".into(),
            sha256: "0".repeat(64),
            role: Role::Read,
            indexes: None,
            filter: None,
            expires: None,
            requests_per_minute: Some(60),
            queries_per_day: Some(10),
            max_documents: Some(100),
            max_bytes: Some(1000),
        }
    }

    #[test]
    fn an_allowance_grows_evenly_up_to_that_of_a_minute() {
        let begin = Instant::now();
        let limits = Limits::new(&config(), None);
        let taken =
            |seconds| (0..100).filter(|_| limits.take_request(begin + Duration::from_secs(seconds)).is_ok()).count();
        assert_eq!([taken(0), taken(0), taken(5), taken(3600)], [60, 0, 5, 60]);
    }

    #[test]
    fn a_refused_request_is_told_when_the_next_is_allowed() {
        let begin = Instant::now();
        let limits = Limits::new(&KeyConfig { requests_per_minute: Some(2), ..config() }, None);
        let seconds = |at| limits.take_request(begin + Duration::from_secs(at)).map_err(|problem| problem.retry_after);
        assert_eq!([seconds(0), seconds(0), seconds(0), seconds(20)], [Ok(()), Ok(()), Err(Some(30)), Err(Some(10))]);
        assert_eq!(seconds(30), Ok(()));
    }

    #[test]
    fn other_options_of_a_key_give_back_nothing_that_was_used() {
        let begin = Instant::now();
        let first = Limits::new(&config(), None);
        let taken = |limits: &Limits| (0..100).filter(|_| limits.take_request(begin).is_ok()).count();
        let noon = "2027-01-31T12:00:00Z".parse().unwrap();
        assert_eq!(taken(&first), 60);
        first.take_queries(9, noon).unwrap();
        let again = Limits::new(&KeyConfig { requests_per_minute: Some(600), ..config() }, Some(&first));
        assert_eq!(taken(&again), 0);
        assert!(again.take_queries(2, noon).is_err() && again.take_queries(1, noon).is_ok());
    }

    #[test]
    fn queries_are_counted_by_day_and_a_batch_by_its_queries() {
        let limits = Limits::new(&config(), None);
        let at = |time: &str| format!("2027-01-31T{time}Z").parse().unwrap();
        limits.take_queries(8, at("12:00:00")).unwrap();
        let refused = limits.take_queries(3, at("23:59:00")).unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.details.code), (429, Code::QuotaExceeded));
        assert_eq!(refused.retry_after, Some(61), "{}", refused.details.message);
        limits.take_queries(2, at("23:59:00")).unwrap();
        limits.take_queries(10, "2027-02-01T00:00:00Z".parse().unwrap()).unwrap();
    }

    #[test]
    fn documents_and_bytes_beyond_a_limit_are_refused_by_number() {
        let limits = Limits::new(&config(), None);
        limits.check_documents(90, 10).unwrap();
        limits.check_documents(200, 0).unwrap();
        let refused = limits.check_documents(90, 11).unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.details.code), (403, Code::QuotaExceeded));
        assert!(refused.details.message.contains("may store 100 documents, has 90"), "{}", refused.details.message);
        limits.check_bytes(900, 100).unwrap();
        assert!(limits.check_bytes(900, 101).unwrap_err().details.message.contains("900"));
    }
}
