//! Parquet and Arrow files.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ::parquet::arrow::ProjectionMask;
use ::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use arrow_ipc::reader::{FileReader, StreamReader};

use super::batches::{BatchRows, Batches, ReadPosition, guarded, kept};
use super::config::CorpusConfig;
use super::fields::Fields;
use super::source::{Packing, Source};
use crate::{Error, Result};

/// Rows decoded at a time: enough to amortize the decoding, few enough that long texts stay in the cache.
const BATCH: usize = 512;

/// The first bytes of an Arrow file. An Arrow stream does not begin with them.
const ARROW_FILE: &[u8; 6] = b"ARROW1";

/// The file itself if it is a plain file, otherwise an unpacked temporary copy.
fn file_of(
    source: &mut Source,
    is_file: bool,
    limit: u64,
    read: Arc<AtomicU64>,
) -> Result<(File, Option<ReadPosition>)> {
    if !is_file || source.packing() != Packing::Plain {
        return Ok((source.spool(limit)?, None));
    }
    let path = source.path();
    let file = File::open(path).map_err(Error::io(path))?;
    let bytes = file.metadata().map_err(Error::io(path))?.len();
    Ok((file, Some(ReadPosition { read, before: source.read_before(), bytes, total: 0 })))
}

/// Rows of the Parquet file that `source` opened.
pub(super) fn open_parquet(
    mut source: Source,
    is_file: bool,
    fields: &Fields,
    config: &CorpusConfig,
    read: Arc<AtomicU64>,
) -> Result<BatchRows> {
    let (file, position) = file_of(&mut source, is_file, config.max_unpacked_bytes, read)?;
    let path = source.path().to_path_buf();
    let damaged = |error: String| Error::format(&path, format!("not a readable Parquet file: {error}"));
    let builder = guarded(|| ParquetRecordBatchReaderBuilder::try_new(file)).map_err(damaged)?;
    let kept = kept(&path, builder.schema(), fields)?;
    let names: Vec<String> = kept.iter().map(|at| builder.schema().field(*at).name().clone()).collect();
    let total = u64::try_from(builder.metadata().file_metadata().num_rows()).unwrap_or(0);
    let mask = ProjectionMask::roots(builder.parquet_schema(), kept);
    let builder = builder.with_projection(mask).with_batch_size(BATCH);
    let reader = guarded(|| builder.build()).map_err(damaged)?;
    let position = position.map(|p| ReadPosition { total, ..p });
    Ok(BatchRows::new(path, Box::new(reader), names, config.max_row_bytes, position))
}

/// Rows of the Arrow file or stream that `source` opened.
pub(super) fn open_arrow(
    mut source: Source,
    is_file: bool,
    fields: &Fields,
    config: &CorpusConfig,
    read: Arc<AtomicU64>,
) -> Result<BatchRows> {
    // Arrow does not store the number of rows of a file, so there is no position within it.
    let (mut file, _) = file_of(&mut source, is_file, config.max_unpacked_bytes, read)?;
    let path = source.path().to_path_buf();
    let mut head = Vec::new();
    file.seek(SeekFrom::Start(0)).map_err(Error::io(&path))?;
    (&mut file).take(6).read_to_end(&mut head).map_err(Error::io(&path))?;
    file.seek(SeekFrom::Start(0)).map_err(Error::io(&path))?;
    let damaged = |error: String| Error::format(&path, format!("not a readable Arrow file: {error}"));
    let file = BufReader::new(file);
    if head == ARROW_FILE {
        let reader = guarded(|| FileReader::try_new(file, None)).map_err(damaged)?;
        let kept = kept(&path, &reader.schema(), fields)?;
        let names = kept.iter().map(|at| reader.schema().field(*at).name().clone()).collect();
        Ok(BatchRows::new(path, projected(Box::new(reader), kept), names, config.max_row_bytes, None))
    } else {
        let reader = guarded(|| StreamReader::try_new(file, None)).map_err(damaged)?;
        let kept = kept(&path, &reader.schema(), fields)?;
        let names = kept.iter().map(|at| reader.schema().field(*at).name().clone()).collect();
        Ok(BatchRows::new(path, projected(Box::new(reader), kept), names, config.max_row_bytes, None))
    }
}

/// Keeps only the columns at the indexes `kept`.
pub(super) fn projected(batches: Batches, kept: Vec<usize>) -> Batches {
    Box::new(batches.map(move |batch| batch.and_then(|batch| batch.project(&kept))))
}
