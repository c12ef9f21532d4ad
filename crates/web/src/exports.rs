//! The functions that the page calls. It writes into memory that this module names, and reads from it: no pointer is followed here.

use std::cell::RefCell;

use crate::{Problem, Search};

#[derive(Default)]
struct State {
    // What the page writes: `search.bin`, then the tokens of a query.
    input: Vec<u8>,
    search: Option<Search>,
    // What the page reads: document numbers and distances of the last query, or a message.
    rows: Vec<u32>,
    distances: Vec<f32>,
    message: String,
}

thread_local! {
    static STATE: RefCell<State> = RefCell::default();
}

fn with<T>(work: impl FnOnce(&mut State) -> T) -> T {
    STATE.with(|state| work(&mut state.borrow_mut()))
}

/// Makes room for so many bytes of input and says where they go.
#[unsafe(no_mangle)]
pub extern "C" fn input(bytes: usize) -> *mut u8 {
    with(|state| {
        state.input = vec![0; bytes];
        state.input.as_mut_ptr()
    })
}

/// Opens the input as `search.bin`. Returns the number of documents, or -1 with a message.
#[unsafe(no_mangle)]
pub extern "C" fn open() -> i32 {
    with(|state| match Search::open(&std::mem::take(&mut state.input)) {
        Ok(search) => {
            let documents = search.documents();
            state.search = Some(search);
            i32::try_from(documents).unwrap_or(i32::MAX)
        }
        Err(problem) => fail(state, &problem),
    })
}

/// Searches for the input, little-endian token numbers. Returns the number of hits, or -1 with a message.
#[unsafe(no_mangle)]
pub extern "C" fn search(k: usize) -> i32 {
    with(|state| {
        let tokens: Vec<u32> = state.input.as_chunks::<4>().0.iter().map(|id| u32::from_le_bytes(*id)).collect();
        let found = match &state.search {
            Some(search) => search.nearest(&tokens, k),
            None => Err(Problem("nothing is open yet".into())),
        };
        match found {
            Ok(found) => {
                (state.rows, state.distances) = found.iter().map(|hit| (hit.key, hit.distance)).unzip();
                found.len() as i32
            }
            Err(problem) => fail(state, &problem),
        }
    })
}

fn fail(state: &mut State, problem: &Problem) -> i32 {
    state.message = problem.0.clone();
    -1
}

/// Document numbers of the last query.
#[unsafe(no_mangle)]
pub extern "C" fn rows() -> *const u32 {
    with(|state| state.rows.as_ptr())
}

/// Distances of the last query.
#[unsafe(no_mangle)]
pub extern "C" fn distances() -> *const f32 {
    with(|state| state.distances.as_ptr())
}

/// The message of the last failure, in UTF-8.
#[unsafe(no_mangle)]
pub extern "C" fn message() -> *const u8 {
    with(|state| state.message.as_ptr())
}

#[unsafe(no_mangle)]
pub extern "C" fn message_bytes() -> usize {
    with(|state| state.message.len())
}
