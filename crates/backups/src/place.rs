//! Where backups lie: an object store and a prefix.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use engine::{Error, Result};
use futures_util::TryStreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Key;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use tokio::runtime::Runtime;
use url::Url;

use crate::connector::Connector;

/// Largest manifest. One of a million files has half of this.
const MAX_MANIFEST_BYTES: u64 = 512 << 20;

pub struct Place {
    url: String,
    pub store: Arc<dyn ObjectStore>,
    prefix: Key,
    /// The folder of a place on this machine.
    folder: Option<PathBuf>,
    runtime: Runtime,
}

impl Place {
    /// Opens `s3://BUCKET/PREFIX` or `file:///FOLDER`. S3 takes keys, region and address from the environment.
    pub fn open(url: &str) -> Result<Place> {
        let wrong =
            |problem: &str| Error::config(format!("{url} {problem}; write s3://BUCKET/PREFIX or file:///FOLDER"));
        let parsed = Url::parse(url).map_err(|e| wrong(&format!("is not a URL ({e})")))?;
        let mut on_disk = None;
        let (store, prefix): (Arc<dyn ObjectStore>, Key) = match parsed.scheme() {
            "s3" => {
                let bucket = parsed.host_str().filter(|bucket| !bucket.is_empty());
                let bucket = bucket.ok_or_else(|| wrong("names no bucket"))?;
                let prefix =
                    Key::from_url_path(parsed.path()).map_err(|e| wrong(&format!("has a bad prefix ({e})")))?;
                let builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_http_connector(Connector);
                (Arc::new(builder.build().map_err(|e| failed(url, e))?), prefix)
            }
            "file" => {
                let folder: PathBuf = parsed.to_file_path().map_err(|()| wrong("names no folder of this machine"))?;
                engine::internal::create_directories(&folder)?;
                let store = LocalFileSystem::new_with_prefix(&folder).map_err(|e| failed(url, e))?;
                on_disk = Some(folder);
                (Arc::new(store.with_fsync(true)), Key::default())
            }
            scheme => return Err(wrong(&format!("has the scheme {scheme}, which is not known"))),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(|e| Error::config(format!("cannot start threads: {e}")))?;
        Ok(Place { url: url.trim_end_matches('/').to_owned(), store, prefix, folder: on_disk, runtime })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn run<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.runtime.block_on(work)
    }

    /// Where files lie.
    pub fn files(&self) -> Key {
        self.prefix.clone().join("files")
    }

    /// The file of these bytes.
    pub fn file(&self, sha256: &str) -> Key {
        self.files().join(sha256)
    }

    /// Where manifests lie.
    pub fn manifests(&self) -> Key {
        self.prefix.clone().join("backups")
    }

    /// The manifest of a backup.
    pub fn manifest(&self, name: &str) -> Key {
        self.manifests().join(format!("{name}.json"))
    }

    /// The URL of an object.
    pub fn name_of(&self, key: &Key) -> String {
        let below = key.prefix_match(&self.prefix);
        let parts: Vec<String> = below.into_iter().flatten().map(|part| part.as_ref().to_owned()).collect();
        format!("{}/{}", self.url, parts.join("/"))
    }

    /// Everything below a key.
    pub async fn objects(&self, below: &Key) -> Result<Vec<ObjectMeta>> {
        self.store.list(Some(below)).try_collect().await.map_err(|e| failed(&self.url, e))
    }

    pub async fn put(&self, key: &Key, bytes: Vec<u8>) -> Result<()> {
        self.store.put(key, bytes.into()).await.map(drop).map_err(|e| failed(&self.name_of(key), e))
    }

    pub async fn get(&self, key: &Key, size: u64) -> Result<Vec<u8>> {
        let name = self.name_of(key);
        if size > MAX_MANIFEST_BYTES {
            return Err(Error::format(&name, format!("has {size} bytes, more than {MAX_MANIFEST_BYTES}; remove it")));
        }
        let result = self.store.get(key).await.map_err(|e| failed(&name, e))?;
        Ok(result.bytes().await.map_err(|e| failed(&name, e))?.to_vec())
    }

    /// Removes files whose upload ended early, before a time. A folder has them beside the others; the store does not list
    /// them. In a bucket they are parts of multipart uploads, which a rule of the bucket removes.
    pub fn remove_unfinished(&self, before: SystemTime) -> Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        for folder in ["files", "backups"].map(|name| folder.join(name)) {
            for entry in std::fs::read_dir(&folder).into_iter().flatten() {
                let entry = entry.map_err(Error::io(&folder))?;
                let name = entry.file_name();
                // As the store names them: the name of the file, and a number.
                let number = name.to_str().and_then(|name| name.rsplit_once('#')).map(|(_, number)| number);
                let unfinished = number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
                let changed = entry.metadata().and_then(|about| about.modified());
                if unfinished && changed.is_ok_and(|changed| changed < before) {
                    std::fs::remove_file(entry.path()).map_err(Error::io(entry.path()))?;
                }
            }
        }
        Ok(())
    }

    pub async fn remove(&self, key: &Key) -> Result<()> {
        match self.store.delete(key).await {
            // Another backup may have removed it.
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(failed(&self.name_of(key), error)),
        }
    }
}

/// What the store says, with what to do.
pub fn failed(place: &str, error: object_store::Error) -> Error {
    use object_store::Error as Problem;
    let advice = match &error {
        Problem::NotFound { .. } => "check the name of the bucket, or make the backup again",
        Problem::Unauthenticated { .. } | Problem::PermissionDenied { .. } => {
            "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and what they permit"
        }
        _ => "check the name of the bucket, the network, AWS_REGION and AWS_ENDPOINT_URL, then run the command again",
    };
    Error::input(place, format!("{error}; {advice}"))
}
