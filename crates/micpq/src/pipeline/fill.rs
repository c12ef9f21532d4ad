//! Documents and their embeddings into an index, commit by commit.

use engine::corpus::Document;
use engine::encoder::Embedder;
use engine::index::Index;
use engine::{Error, Matrix, Progress, Result};

/// Documents embedded and added at a time: enough to keep every core busy, small beside any memory.
pub const CHUNK: usize = 4096;

/// Where the embeddings of documents come from.
pub enum Embeddings<'a> {
    /// The encoder gives them.
    Encode(&'a Embedder),
    /// The encoder gives those of documents that training did not see; `rows` holds the others, by position.
    Trained { embedder: &'a Embedder, positions: &'a [usize], rows: &'a Matrix },
    /// The user gives one per document, in order.
    Given(&'a Matrix),
}

impl Embeddings<'_> {
    /// Embeddings of the documents at `start` and after.
    fn of(&self, start: usize, documents: &[Document], progress: &dyn Progress) -> Result<Matrix> {
        let text = |document: &Document| document.text.clone();
        match self {
            Embeddings::Encode(embedder) => embedder.encode(&documents.iter().map(text).collect::<Vec<_>>(), progress),
            Embeddings::Given(rows) => {
                if start + documents.len() > rows.rows() {
                    return Err(Error::input(
                        "vectors",
                        format!("there are {} rows for more documents; give one for each", rows.rows()),
                    ));
                }
                Ok(rows.select(&(start..start + documents.len()).collect::<Vec<_>>()))
            }
            Embeddings::Trained { embedder, positions, rows } => {
                let known = |i: usize| positions.binary_search(&(start + i)).ok();
                let new = documents.iter().enumerate().filter(|(i, _)| known(*i).is_none());
                let new: Vec<String> = new.map(|(_, document)| text(document)).collect();
                let encoded = if new.is_empty() { Matrix::default() } else { embedder.encode(&new, progress)? };
                progress.advance((documents.len() - new.len()) as u64);
                let mut encoded = encoded.iter();
                let mut all = Matrix::zeros(documents.len(), rows.cols());
                for i in 0..documents.len() {
                    let row = match known(i) {
                        Some(row) => rows.row(row),
                        None => encoded.next().expect("an embedding for every new document"),
                    };
                    all.row_mut(i).copy_from_slice(row);
                }
                Ok(all)
            }
        }
    }
}

/// What [`fill`] did.
pub struct Filled {
    /// Documents added and committed.
    pub documents: usize,
    pub interrupted: bool,
}

/// Adds documents and commits every `commit_every` of them and at the end. Interrupted, it commits what it has.
pub fn fill(
    index: &Index,
    documents: impl Iterator<Item = Result<Document>>,
    embeddings: &Embeddings,
    commit_every: usize,
    progress: &dyn Progress,
) -> Result<Filled> {
    let mut documents = documents;
    let mut writer = index.writer()?;
    let (mut added, mut pending) = (0, 0);
    loop {
        // A chunk never exceeds what belongs to one commit.
        let chunk: Vec<Document> = documents.by_ref().take(CHUNK.min(commit_every - pending)).collect::<Result<_>>()?;
        if chunk.is_empty() {
            break;
        }
        // User vectors pass no encoder, which would check.
        let rows = match progress.interrupted() {
            true => Err(Error::Interrupted),
            false => embeddings.of(added, &chunk, progress),
        };
        let rows = match rows {
            Err(Error::Interrupted) => {
                writer.commit(progress)?;
                return Ok(Filled { documents: added, interrupted: true });
            }
            other => other?,
        };
        writer.add_embeddings(&chunk, &rows)?;
        added += chunk.len();
        pending += chunk.len();
        if pending >= commit_every {
            writer.commit(progress)?;
            pending = 0;
        }
    }
    if let Embeddings::Given(rows) = embeddings
        && rows.rows() != added
    {
        return Err(Error::input(
            "vectors",
            format!("there are {} rows for {added} documents; give one for each", rows.rows()),
        ));
    }
    writer.commit(progress)?;
    // Merges under way are waited for, so that the first search finds their codes packed.
    writer.close(progress)?;
    Ok(Filled { documents: added, interrupted: false })
}
