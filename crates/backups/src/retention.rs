//! Removes old backups, and files that no backup lists.

use std::collections::HashSet;

use chrono::{TimeDelta, Utc};
use engine::{Progress, Result};

use crate::manifest;
use crate::place::Place;

/// A file without a manifest may belong to a backup that is being made. One that is older was left by a backup that ended
/// early.
const ABANDONED: TimeDelta = TimeDelta::days(7);

/// Leaves the newest `keep` backups of an index, and returns the names of those that it removed. Backups of other indexes stay.
pub async fn keep(place: &Place, index: &str, keep: usize, progress: &dyn Progress) -> Result<Vec<String>> {
    // A manifest that cannot be read ends this: its files would look like nobody's.
    let (own, others): (Vec<_>, Vec<_>) =
        manifest::all(place).await?.into_iter().partition(|manifest| manifest.index == index);
    let (old, kept) = own.split_at(own.len().saturating_sub(keep));
    let hashes = |manifests: &[manifest::Manifest]| -> HashSet<String> {
        manifests.iter().flat_map(|manifest| manifest.files.iter().map(|file| file.sha256.clone())).collect()
    };
    let (removed, mut needed) = (hashes(old), hashes(kept));
    needed.extend(hashes(&others));
    for manifest in old {
        place.remove(&place.manifest(&manifest.name)).await?;
    }
    let files = place.objects(&place.files()).await?;
    progress.stage("removing old files", Some(files.len() as u64));
    let now = Utc::now();
    for object in files {
        let name = object.location.filename().unwrap_or_default();
        let nobodys = removed.contains(name) || now - object.last_modified > ABANDONED;
        if !needed.contains(name) && nobodys {
            place.remove(&object.location).await?;
        }
        progress.advance(1);
    }
    place.remove_unfinished((now - ABANDONED).into())?;
    Ok(old.iter().map(|manifest| manifest.name.clone()).collect())
}
