//! What the caller of a write may change.

use crate::hosted::Hosted;
use crate::keys::Access;
use crate::problem::Answer;
use crate::server::Server;
use crate::writes::scope::{Scope, used};

/// The scope of a caller that is bounded. Measures the other indexes that count for its limits.
pub fn scope_of(server: &Server, access: &Access, hosted: &Hosted) -> Answer<Scope> {
    let limits = access.limits.clone().filter(|l| l.max_documents.is_some() || l.max_bytes.is_some());
    let mut elsewhere = (0, 0);
    if limits.is_some() {
        let others = server.indexes().into_iter();
        for other in others.filter(|other| access.reaches(other.name()) && other.name() != hosted.name()) {
            let (documents, bytes) = used(&other.index(), access.filter(), true)?;
            elsewhere = (elsewhere.0 + documents, elsewhere.1 + bytes);
        }
    }
    Ok(Scope { filter: access.filter().map(str::to_owned), limits, elsewhere })
}
