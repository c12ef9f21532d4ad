//! Errors and panics of tantivy as errors that tell what to do.

use std::path::Path;

use crate::error::Remedy;
use crate::{Error, Result};

/// Turns a tantivy error into one that tells the user what to do.
pub(crate) fn tantivy_error(path: &Path, error: tantivy::TantivyError) -> Error {
    use tantivy::TantivyError;
    use tantivy::directory::error::{LockError, OpenReadError, OpenWriteError};
    if let Some(ours) = our_error(&error) {
        return ours;
    }
    match error {
        TantivyError::LockFailure(LockError::LockBusy, _) => Error::Busy(format!(
            "{}: another writer has this index open; wait for it to finish, or stop it (readers need not stop)",
            path.display()
        )),
        TantivyError::LockFailure(LockError::IoError(e), _) | TantivyError::IoError(e) => Error::io(path)(copy_of(&e)),
        TantivyError::OpenReadError(OpenReadError::IoError { io_error: e, .. })
        | TantivyError::OpenWriteError(OpenWriteError::IoError { io_error: e, .. })
            if e.raw_os_error().is_some() =>
        {
            Error::io(path)(copy_of(&e))
        }
        TantivyError::OpenReadError(OpenReadError::FileDoesNotExist(file)) => {
            Error::format(path.join(file), "is missing; restore the index from a copy or build it again")
        }
        other => system_error(path, &other.to_string()).unwrap_or_else(|| {
            Error::format(path, format!("{other}; verify the index to see what is damaged"))
                .remedied(Remedy::VerifyIndex)
        }),
    }
}

/// An error of the system, as far as it can be copied.
fn copy_of(error: &std::io::Error) -> std::io::Error {
    match error.raw_os_error().or_else(|| number_in(&error.to_string())) {
        Some(number) => std::io::Error::from_raw_os_error(number),
        None => std::io::Error::new(error.kind(), error.to_string()),
    }
}

/// The number of an error of the system in a text: tantivy keeps no more of what fails in one of its threads.
fn number_in(text: &str) -> Option<i32> {
    text.split_once("(os error ")?.1.split_once(')')?.0.parse().ok()
}

fn system_error(path: &Path, text: &str) -> Option<Error> {
    Some(Error::io(path)(std::io::Error::from_raw_os_error(number_in(text)?)))
}

/// Unwraps an error of [`StoreDirectory`] that tantivy has wrapped.
fn our_error(error: &tantivy::TantivyError) -> Option<Error> {
    use tantivy::TantivyError;
    use tantivy::directory::error::{OpenReadError, OpenWriteError};
    let (TantivyError::OpenReadError(OpenReadError::IoError { io_error, .. })
    | TantivyError::OpenWriteError(OpenWriteError::IoError { io_error, .. })
    | TantivyError::IoError(io_error)) = error
    else {
        return None;
    };
    match io_error.get_ref()?.downcast_ref()? {
        Error::Format { path, problem, remedy } => {
            Some(Error::Format { path: path.clone(), problem: problem.clone(), remedy: remedy.clone() })
        }
        Error::Io { path, source } => Some(Error::io(path)(copy_of(source))),
        _ => None,
    }
}

/// Runs tantivy code. tantivy panics on some damaged files; the panic becomes an error that tells what to do.
pub(super) fn guarded<T>(path: &Path, work: impl FnOnce() -> tantivy::Result<T>) -> Result<T> {
    guarded_ours(path, || work().map_err(|e| tantivy_error(path, e)))
}

pub(super) fn guarded_ours<T>(path: &Path, work: impl FnOnce() -> Result<T>) -> Result<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let reason = panic.downcast_ref::<String>().map(String::as_str);
        let reason = reason.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
        Err(system_error(path, reason).unwrap_or_else(|| {
            Error::format(path, format!("cannot be read ({reason}); verify the index to see what is damaged"))
                .remedied(Remedy::VerifyIndex)
        }))
    })
}

#[cfg(all(test, unix))]
mod tests {
    use std::io;
    use std::sync::Arc;

    use tantivy::TantivyError;
    use tantivy::directory::error::OpenReadError;

    use super::*;

    #[test]
    fn an_error_of_the_system_keeps_its_number_through_tantivy() {
        let path = Path::new("/index/store");
        let lost = || io::Error::from_raw_os_error(24);
        let reading = OpenReadError::IoError { io_error: Arc::new(lost()), filepath: path.into() };
        for error in [
            TantivyError::IoError(Arc::new(lost())),
            TantivyError::IoError(Arc::new(io::Error::other(lost().to_string()))),
            TantivyError::OpenReadError(reading),
            TantivyError::ErrorInThread(lost().to_string()),
        ] {
            let text = error.to_string();
            let found = tantivy_error(path, error);
            assert!(found.is_out_of_descriptors(), "{text}: {found}");
        }
        let panicked: Result<()> = guarded_ours(path, || panic!("{}", lost()));
        assert!(panicked.unwrap_err().is_out_of_descriptors());
        let full = tantivy_error(path, TantivyError::IoError(Arc::new(io::Error::from_raw_os_error(28))));
        assert!(matches!(full, Error::Io { .. }) && !full.is_out_of_descriptors());
        let damaged = tantivy_error(path, TantivyError::InternalError("a block is cut".into()));
        assert!(matches!(damaged, Error::Format { .. }));
        assert_eq!(damaged.remedy(), Some(&Remedy::VerifyIndex));
    }
}
