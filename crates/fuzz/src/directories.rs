//! Directories of a model and of an encoder, of which one file is hostile.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use engine::encoder::Encoder;
use engine::model::Model;

/// A copy of a sound directory.
struct Sound {
    folder: tempfile::TempDir,
    source: PathBuf,
}

impl Sound {
    fn new(source: PathBuf) -> Mutex<Sound> {
        let folder = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(&source).unwrap().map(|entry| entry.unwrap()) {
            std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
        }
        Mutex::new(Sound { folder, source })
    }

    /// Calls `read` on the directory while its file `name` has these bytes.
    fn with(&self, name: &str, bytes: &[u8], read: impl FnOnce(&Path)) {
        let path = self.folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        read(self.folder.path());
        // A file that is not part of the sound directory goes.
        match std::fs::read(self.source.join(name)) {
            Ok(sound) => std::fs::write(&path, sound).unwrap(),
            Err(_) => std::fs::remove_file(&path).unwrap(),
        }
        // The checksums of the weights are remembered there by size and time.
        let _ = std::fs::remove_file(self.folder.path().join(".hashes.json"));
    }
}

pub fn sound(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("sound").join(name)
}

/// The first byte chooses the file.
pub fn model(input: &[u8]) {
    static SOUND: OnceLock<Mutex<Sound>> = OnceLock::new();
    let Some((first, rest)) = input.split_first() else { return };
    let name = ["model.safetensors", "config.json"][usize::from(*first) % 2];
    let sound = SOUND.get_or_init(|| Sound::new(sound("model"))).lock().unwrap();
    sound.with(name, rest, |dir| drop(Model::load(dir)));
}

/// The first byte chooses the file.
pub fn encoder(input: &[u8]) {
    static SOUND: OnceLock<Mutex<Sound>> = OnceLock::new();
    let Some((first, rest)) = input.split_first() else { return };
    let name = ["model.safetensors", "config.json", "vocab.txt", "tokenizer.json"][usize::from(*first) % 4];
    let sound = SOUND.get_or_init(|| Sound::new(sound("encoder"))).lock().unwrap();
    sound.with(name, rest, |dir| {
        if let Ok(encoder) = Encoder::load(dir) {
            let _ = encoder.tokenizer().encode(&["oil and wheat", "", "\u{1F600}\u{0301}"], 16);
        }
    });
}
