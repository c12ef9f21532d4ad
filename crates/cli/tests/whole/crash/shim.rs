//! The library that makes the n-th I/O call of a program fail (`shim.c`), and the orders to it.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Kinds of I/O calls, as letters of an order.
pub const ALL: &str = "orwsnm";
pub const CHANGES: &str = "owsn";

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    Count,
    KillBefore,
    KillAfter,
    ShortWrite,
    /// The call fails with this number of an error.
    Fail(i32),
}

pub struct Shim {
    folder: tempfile::TempDir,
    library: PathBuf,
    orders: Cell<u64>,
}

impl Shim {
    /// Compiles the library. `None` without a C compiler, with a line that says so.
    pub fn new() -> Option<Shim> {
        if !cfg!(target_os = "linux") {
            eprintln!("skipped: calls are made to fail on Linux only");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("shim.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/whole/crash/shim.c");
        let mut compile = Command::new("cc");
        compile.args(["-shared", "-fPIC", "-O2", "-o"]).arg(&library).arg(source).args(["-ldl", "-lpthread"]);
        match compile.status() {
            Ok(status) if status.success() => Some(Shim { folder, library, orders: Cell::new(0) }),
            status => {
                eprintln!("skipped: no C compiler ({status:?}), so no call is made to fail");
                None
            }
        }
    }

    /// Makes a command obey orders for the files below `under`.
    pub fn watch(&self, command: &mut Command, under: &Path) {
        command.env("LD_PRELOAD", &self.library).env("FAULTS_UNDER", under.canonicalize().unwrap());
        command.env("FAULTS_ORDER", self.folder.path().join("order"));
        command.env("FAULTS_SEEN", self.folder.path().join("seen"));
    }

    /// Orders `action` at the `nth` call from now on, or at every call with 0.
    pub fn order(&self, calls: &str, action: Action, nth: u64) {
        self.order_at("*", calls, action, nth);
    }

    /// The same for calls on paths that match a pattern.
    pub fn order_at(&self, pattern: &str, calls: &str, action: Action, nth: u64) {
        self.orders.set(self.orders.get() + 1);
        let action = match action {
            Action::Count => "count".to_owned(),
            Action::KillBefore => "kill".to_owned(),
            Action::KillAfter => "killed".to_owned(),
            Action::ShortWrite => "short".to_owned(),
            Action::Fail(error) => error.to_string(),
        };
        let _ = std::fs::remove_file(self.folder.path().join("seen"));
        self.put(&format!("{} {calls} {action} {nth} {pattern}", self.orders.get()));
    }

    pub fn rest(&self) {
        self.put("");
    }

    /// Calls since the last order.
    pub fn seen(&self) -> u64 {
        std::fs::read_to_string(self.folder.path().join("seen")).map_or(0, |text| text.parse().unwrap_or(0))
    }

    /// The running program reads the order at every call, so it appears whole.
    fn put(&self, order: &str) {
        let new = self.folder.path().join("new");
        std::fs::write(&new, order).unwrap();
        std::fs::rename(new, self.folder.path().join("order")).unwrap();
    }
}
