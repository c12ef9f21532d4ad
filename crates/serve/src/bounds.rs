//! Limits over all requests: bytes in memory and concurrent work. Work stops when its caller disconnects.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::http::StatusCode;
use bytes::Bytes;
use engine::Progress;
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::problem::{Answer, Code, Problem};

/// A byte budget that all requests share.
#[derive(Clone)]
pub struct Budget {
    permits: Arc<Semaphore>,
}

/// Bytes per permit: a semaphore counts its permits in 32 bits.
const BYTES_PER_PERMIT: usize = 1024;

impl Budget {
    pub fn new(bytes: usize) -> Budget {
        Budget { permits: Arc::new(Semaphore::new(permits(bytes).min(Semaphore::MAX_PERMITS))) }
    }

    fn take(&self, permits: usize) -> Option<OwnedSemaphorePermit> {
        self.permits.clone().try_acquire_many_owned(u32::try_from(permits).ok()?).ok()
    }
}

fn permits(bytes: usize) -> usize {
    bytes.div_ceil(BYTES_PER_PERMIT)
}

/// Counts the bytes of a request's body, from their arrival until the request is answered.
#[derive(Clone)]
pub struct BodyBytes {
    budget: Budget,
    held: Arc<Mutex<Held>>,
}

/// What a request holds of the budget.
#[derive(Default)]
struct Held {
    bytes: usize,
    // One for all frames: a body in frames of a byte each must not cost more than its bytes.
    permit: Option<OwnedSemaphorePermit>,
}

impl BodyBytes {
    pub fn of(budget: &Budget) -> BodyBytes {
        BodyBytes { budget: budget.clone(), held: Arc::default() }
    }

    /// Counts more bytes. Fails if the budget has no room for them.
    pub fn add(&self, bytes: usize) -> Answer<()> {
        let mut held = self.held.lock();
        let more = permits(held.bytes.saturating_add(bytes)) - permits(held.bytes);
        if more > 0 {
            let permit =
                self.budget.take(more).ok_or_else(|| Problem::overloaded("too many large bodies are being read"))?;
            match &mut held.permit {
                Some(all) => all.merge(permit),
                none => *none = Some(permit),
            }
        }
        held.bytes += bytes;
        Ok(())
    }
}

/// Bytes in memory per token of a JSON body: the largest value that each becomes.
const OBJECT_BYTES: usize = 320;
const LIST_BYTES: usize = 48;
const ITEM_BYTES: usize = 16;
/// Half of a string.
const QUOTE_BYTES: usize = 20;

/// Bytes that the values of a JSON body take in memory, beside the bytes of its texts. An estimate from above, by its tokens: a
/// body of empty objects becomes a hundred times as large.
pub fn parsed_bytes(json: &[u8]) -> usize {
    let (mut bytes, mut in_text, mut escaped) = (0usize, false, false);
    for byte in json {
        if escaped {
            escaped = false;
            continue;
        }
        match byte {
            b'"' => {
                in_text = !in_text;
                bytes += QUOTE_BYTES;
            }
            b'\\' if in_text => escaped = true,
            b'{' if !in_text => bytes += OBJECT_BYTES,
            b'[' if !in_text => bytes += LIST_BYTES,
            b',' if !in_text => bytes += ITEM_BYTES,
            _ => {}
        }
    }
    bytes
}

/// Smaller answers are not counted: every connection has at most one, and connections are limited.
const MIN_COUNTED_BYTES: u64 = 64 << 10;

/// Bytes of an answer that a connection gets at a time. It asks for more when the client has read most of them.
const FRAME_BYTES: usize = 32 << 10;

/// Counts an answer until it is sent. Refuses an answer of more than `max_bytes`, and one that the budget has no room for.
pub async fn counted(answer: Body, max_bytes: usize, budget: &Budget) -> Answer<Body> {
    let Some(size) =
        HttpBody::size_hint(&answer).exact().filter(|size| *size > MIN_COUNTED_BYTES.min(max_bytes as u64))
    else {
        return Ok(answer);
    };
    if size > max_bytes as u64 {
        return Err(too_long(max_bytes));
    }
    let room = budget.take(permits(size as usize));
    let room = room.ok_or_else(|| Problem::overloaded("too many large answers are waiting to be read"))?;
    let whole =
        answer.collect().await.map_err(|_| Problem::internal("the answer was lost; the server's log says why"))?;
    Ok(Body::new(Paced { rest: whole.to_bytes(), _room: room }))
}

pub fn too_long(max_bytes: usize) -> Problem {
    Problem::new(
        StatusCode::UNPROCESSABLE_ENTITY,
        Code::AnswerTooLarge,
        format!(
            "the answer is longer than {max_bytes} bytes; ask for fewer hits or documents, or for hits without documents"
        ),
    )
}

/// An answer in frames. It stays counted until the client has read it.
struct Paced {
    rest: Bytes,
    _room: OwnedSemaphorePermit,
}

impl HttpBody for Paced {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let length = self.rest.len().min(FRAME_BYTES);
        Poll::Ready((length > 0).then(|| Ok(Frame::data(self.rest.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

/// Limits how much work of a kind runs at once. A waiting request costs no memory, and leaves when its caller disconnects.
pub struct Turns {
    what: &'static str,
    permits: Arc<Semaphore>,
    waiting: AtomicUsize,
    max_waiting: usize,
}

impl Turns {
    /// `max_running` run at once, `max_waiting` may wait. `what` names them in the refusal.
    pub fn new(what: &'static str, max_running: usize, max_waiting: usize) -> Turns {
        Turns { what, permits: Arc::new(Semaphore::new(max_running)), waiting: AtomicUsize::new(0), max_waiting }
    }

    /// Waits for a turn. Refuses immediately if too many wait.
    pub async fn take(&self) -> Answer<OwnedSemaphorePermit> {
        if let Ok(turn) = self.permits.clone().try_acquire_owned() {
            return Ok(turn);
        }
        struct Waiting<'a>(&'a AtomicUsize);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        let before = self.waiting.fetch_add(1, Ordering::SeqCst);
        let _waiting = Waiting(&self.waiting);
        if before >= self.max_waiting {
            return Err(Problem::overloaded(&format!("too many {} are waiting", self.what)));
        }
        self.permits.clone().acquire_owned().await.map_err(|_| Problem::stopping())
    }
}

/// Tells work that its caller has disconnected.
pub struct Cancel(Arc<AtomicBool>);

/// Held by the caller's future. Dropping it cancels the work.
pub struct Caller(Arc<AtomicBool>);

impl Caller {
    pub fn new() -> (Caller, Cancel) {
        let disconnected = Arc::new(AtomicBool::new(false));
        (Caller(disconnected.clone()), Cancel(disconnected))
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Progress for Cancel {
    fn interrupted(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Limits of a slice of texts that is encoded at a time. Slices are small, so that queries get the cores in between, and
/// encoding stops soon after the caller disconnects.
const SLICE_TEXTS_PER_CORE: usize = 16;
const SLICE_BYTES_PER_CORE: usize = 32 << 10;
static CORES: LazyLock<usize> = LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));

/// Cuts texts into slices to encode one after the other.
pub fn slices<T: AsRef<str>>(texts: &[T]) -> impl Iterator<Item = &[T]> {
    let mut rest = texts;
    let (max_texts, max_bytes) = (*CORES * SLICE_TEXTS_PER_CORE, *CORES * SLICE_BYTES_PER_CORE);
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |text: &&T| {
            bytes += text.as_ref().len();
            bytes <= max_bytes
        };
        let count = rest.iter().take(max_texts).take_while(fits).count().max(1).min(rest.len());
        let (slice, after) = rest.split_at(count);
        rest = after;
        (count > 0).then_some(slice)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_bytes_are_counted_until_the_request_ends() {
        let budget = Budget::new(10 * BYTES_PER_PERMIT);
        let one = BodyBytes::of(&budget);
        // A single byte does not take a whole permit.
        (0..5 * BYTES_PER_PERMIT).for_each(|_| one.add(1).unwrap());
        let two = BodyBytes::of(&budget);
        two.add(5 * BYTES_PER_PERMIT).unwrap();
        assert_eq!(two.add(1).unwrap_err().status, 429);
        drop(one);
        two.add(1).unwrap();
        // Frames cost nothing beside their bytes.
        let three = BodyBytes::of(&budget);
        (0..1000).for_each(|_| three.add(0).unwrap());
        assert!(three.held.lock().permit.is_none());
    }

    #[test]
    fn the_values_of_a_json_body_are_estimated_from_its_tokens() {
        assert_eq!(parsed_bytes(b"\"a text with , { [ and \\\" in it\""), 2 * QUOTE_BYTES);
        assert_eq!(parsed_bytes(b"[1,2,3]"), LIST_BYTES + 2 * ITEM_BYTES);
        assert_eq!(parsed_bytes(b"{\"a\":{}}"), 2 * OBJECT_BYTES + 2 * QUOTE_BYTES);
        let empty_documents = format!("{{\"documents\":[{}{{}}]}}", "{},".repeat(1_000_000));
        assert!(parsed_bytes(empty_documents.as_bytes()) > 100 * empty_documents.len());
        let vector = format!("[{}0.123]", "0.12345678,".repeat(1_000_000));
        assert!(parsed_bytes(vector.as_bytes()) < 2 * vector.len());
    }

    #[test]
    fn slices_respect_both_limits_and_cover_all_texts() {
        let (max_texts, max_bytes) = (*CORES * SLICE_TEXTS_PER_CORE, *CORES * SLICE_BYTES_PER_CORE);
        let texts: Vec<String> =
            (0..200 * *CORES).map(|i| "a".repeat(if i == 70 { 3 * max_bytes } else { i % 200 * 20 })).collect();
        let cut: Vec<&[String]> = slices(&texts).collect();
        assert_eq!(cut.concat(), texts);
        for slice in cut {
            let bytes: usize = slice.iter().map(String::len).sum();
            assert!(slice.len() == 1 || slice.len() <= max_texts && bytes <= max_bytes);
        }
        assert_eq!(slices::<&str>(&[]).count(), 0);
    }

    #[tokio::test]
    async fn answers_are_counted_until_they_are_sent() {
        let budget = Budget::new(300 << 10);
        let body = || Body::from(vec![7; 200 << 10]);
        let mut first = counted(body(), 1 << 20, &budget).await.unwrap();
        assert_eq!(counted(body(), 1 << 20, &budget).await.unwrap_err().status, 429);
        assert_eq!(counted(body(), 100 << 10, &budget).await.unwrap_err().details.code, Code::AnswerTooLarge);
        let _ = counted(Body::from(vec![7; 1 << 10]), 1 << 20, &budget).await.unwrap();
        assert_eq!(HttpBody::size_hint(&first).exact(), Some(200 << 10));
        let mut length = 0;
        while let Some(frame) = first.frame().await {
            let frame = frame.unwrap().into_data().unwrap();
            assert!(frame.len() <= FRAME_BYTES);
            length += frame.len();
        }
        assert_eq!(length, 200 << 10);
        drop(first);
        let _ = counted(body(), 1 << 20, &budget).await.unwrap();
    }

    #[tokio::test]
    async fn turns_queue_up_to_the_limit_and_free_abandoned_places() {
        let turns = Arc::new(Turns::new("embeddings", 1, 1));
        let first = turns.take().await.unwrap();
        let own = turns.clone();
        let second = tokio::spawn(async move { own.take().await.map(drop) });
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        assert_eq!(turns.take().await.unwrap_err().status, 429);
        second.abort();
        let _ = second.await;
        let own = turns.clone();
        let third = tokio::spawn(async move { own.take().await.map(drop) });
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        drop(first);
        third.await.unwrap().unwrap();
    }
}
