//! What a key may write to an index: documents that match its filter, up to its limits.

use std::collections::HashSet;
use std::sync::Arc;

use axum::http::StatusCode;
use engine::corpus::DocId;
use engine::index::{Index, Membership, filter_within};

use super::{Change, Done};
use crate::limits::Limits;
use crate::problem::{Answer, Code, Problem};

/// The limits of a write. It is compared with them between two commits, so that no other write comes in between.
#[derive(Clone)]
pub struct Scope {
    pub filter: Option<String>,
    pub limits: Option<Arc<Limits>>,
    /// Documents and bytes of the other indexes that count for the limits.
    pub elsewhere: (u64, u64),
}

impl Scope {
    /// Narrows a change to what it may do, or refuses it whole.
    pub fn apply(&self, index: &Index, change: &mut Change) -> Answer<()> {
        let new_bytes = change.bytes() as u64;
        match (&mut *change, &self.filter) {
            (Change::Upsert(new, _), filter) => {
                let ids: Vec<DocId> = new.iter().map(|(document, _)| document.id.clone()).collect();
                // Without a filter, every document matches.
                let known = index.memberships(&ids, filter.as_deref().unwrap_or("*")).map_err(failed)?;
                if let Some(filter) = filter {
                    if let Some(place) = known.iter().position(|one| *one == Membership::Outside) {
                        return Err(outside(&ids[place], filter));
                    }
                    let documents: Vec<_> = new.iter().map(|(document, _)| document).collect();
                    let matches = index.would_match(&documents, filter).map_err(failed)?;
                    if let Some(place) = matches.iter().position(|matches| !matches) {
                        return Err(outside(&ids[place], filter));
                    }
                }
                let Some(limits) = &self.limits else { return Ok(()) };
                let unknown = ids.iter().zip(&known).filter(|(_, known)| **known == Membership::Unknown);
                let added: HashSet<String> = unknown.map(|(id, _)| id.to_string()).collect();
                let (documents, bytes) = used(index, filter.as_deref(), limits.max_bytes.is_some())?;
                limits.check_documents(self.elsewhere.0 + documents, added.len() as u64)?;
                limits.check_bytes(self.elsewhere.1 + bytes, new_bytes)
            }
            (Change::Delete(ids), Some(filter)) => {
                let known = index.memberships(ids, filter).map_err(failed)?;
                let mut known = known.into_iter();
                ids.retain(|_| known.next() == Some(Membership::Inside));
                Ok(())
            }
            (Change::DeleteWhere(own), Some(filter)) => {
                *own = filter_within(Some(own.as_str()), filter);
                Ok(())
            }
            (Change::Delete(_) | Change::DeleteWhere(_), None) => Ok(()),
        }
    }

    /// The result of a change as far as its caller may know it.
    pub fn tell(&self, index: &Index, done: Done) -> Answer<Done> {
        match &self.filter {
            Some(filter) => Ok(Done { documents: index.count(filter).map_err(failed)?, ..done }),
            None => Ok(done),
        }
    }
}

/// The documents of an index that match a filter, and the bytes of the index on disk.
pub fn used(index: &Index, filter: Option<&str>, bytes: bool) -> Answer<(u64, u64)> {
    let documents = filter.map_or(Ok(index.len()), |filter| index.count(filter)).map_err(failed)?;
    let bytes = if bytes { index.info().map_err(failed)?.bytes.total() } else { 0 };
    Ok((documents as u64, bytes))
}

fn failed(error: engine::Error) -> Problem {
    Problem::of(Code::BadDocument)(error)
}

fn outside(id: &DocId, filter: &str) -> Problem {
    let shown: String = id.to_string().chars().take(80).collect();
    // As the config has it, without what it is joined with.
    let filter = filter.rsplit(char::is_control).next().unwrap_or_default();
    let text = format!(
        "document {shown} cannot be written with your key, which has the filter {filter}; give it what the filter asks for, or \
         another id if this one is taken"
    );
    Problem::new(StatusCode::FORBIDDEN, Code::NotAllowed, text)
}
