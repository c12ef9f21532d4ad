//! Sets an attribute of many documents at once.

use std::collections::HashMap;

use super::{Index, Store};
use crate::corpus::{Document, Value};
use crate::{Error, Progress, Result};

/// Names that filters use for other things.
const RESERVED: [&str; 3] = ["id", "labels", "text"];

impl Index {
    /// Gives an attribute to documents by their insertion sequence, and takes it from all others. Codes, vectors, texts and the
    /// order of insertion stay. It is one commit: when it is interrupted, nothing has changed. Returns how many documents
    /// changed.
    pub fn set_attribute(&self, name: &str, values: &HashMap<u64, Value>, progress: &dyn Progress) -> Result<usize> {
        if self.store() != Store::All {
            return Err(Error::config("the index stores no attributes; build it with store all"));
        }
        if RESERVED.contains(&name) {
            return Err(Error::config(format!(
                "an attribute cannot be named \"{name}\": filters use that name already"
            )));
        }
        let mut writer = self.writer()?;
        let walk = self.walk()?;
        // Documents are written anew, with new checksums.
        walk.check_files()?;
        progress.stage("writing attributes", Some(walk.len() as u64));
        let mut changed = 0;
        for i in 0..walk.len() {
            if progress.interrupted() {
                return Err(Error::Interrupted);
            }
            let mut record = walk.get(i)?;
            let (old, new) = (record.attributes.iter().find(|(n, _)| n == name), values.get(&record.sequence));
            if old.map(|(_, value)| value) != new {
                let place = record.attributes.iter().position(|(n, _)| n == name).unwrap_or(record.attributes.len());
                record.attributes.retain(|(n, _)| n != name);
                if let Some(value) = new {
                    record.attributes.insert(place, (name.to_owned(), value.clone()));
                }
                let document = Document {
                    id: record.id,
                    text: record.text.unwrap_or_default(),
                    labels: record.labels,
                    attributes: record.attributes,
                };
                writer.rewrite(&document, walk.chunks(i)?, record.sequence)?;
                changed += 1;
            }
            progress.advance(1);
        }
        writer.commit(progress)?;
        writer.close(progress)?;
        self.reload(progress)?;
        Ok(changed)
    }
}
