//! GPU memory, pinned host memory, streams and events, released when dropped.

use std::ffi::c_void;

use cudarc::driver::{DriverError, result, sys};

use crate::driver::device::{Device, driver_result};
use crate::{Error, Result};

/// Bytes on the GPU.
pub(crate) struct Buffer {
    device: Device,
    at: sys::CUdeviceptr,
    bytes: usize,
}

// SAFETY: an address and a length; the driver's calls on them may come from any thread that has bound the device.
unsafe impl Send for Buffer {}
// SAFETY: as above; a shared reference only reads the address.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `what` names the allocation in the error when memory is short.
    pub fn new(device: &Device, bytes: usize, what: &str) -> Result<Self> {
        device.bind()?;
        let bytes = bytes.max(16);
        // SAFETY: a plain allocation; nothing reads it before it is written.
        match unsafe { result::malloc_sync(bytes) } {
            Ok(at) => Ok(Buffer { device: device.clone(), at, bytes }),
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                let (free, total) = device.memory()?;
                Err(Error::Memory { what: what.into(), needed: bytes >> 20, free: free >> 20, total: total >> 20 })
            }
            Err(other) => driver_result("allocating GPU memory", Err(other)),
        }
    }

    /// A copy of `values`, complete on return.
    pub fn filled<T: Copy>(device: &Device, values: &[T], what: &str) -> Result<Self> {
        let buffer = Buffer::new(device, size_of_val(values), what)?;
        // SAFETY: the buffer has room for all bytes of the slice, and the call returns when they are there.
        driver_result("copying to the GPU", unsafe { result::memcpy_htod_sync(buffer.at, values) })?;
        Ok(buffer)
    }

    /// Grows to at least `bytes`; the content is lost when it grows. No queued work may use the buffer.
    pub fn grow(&mut self, bytes: usize, what: &str) -> Result<()> {
        if bytes > self.bytes {
            // A quarter more: the next requests differ little.
            *self = Buffer::new(&self.device, bytes / 4 * 5 + 16, what)?;
        }
        Ok(())
    }

    /// Device address.
    pub fn at(&self) -> u64 {
        self.at
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: allocated by `new`, freed once. A failure means that the context is gone, and the memory with it.
            let _ = unsafe { result::free_sync(self.at) };
        }
    }
}

/// Pinned host memory: copies from and to it run in parallel with kernels.
pub(crate) struct Pinned<T> {
    device: Device,
    at: *mut T,
    len: usize,
}

// SAFETY: plain memory with a single owner.
unsafe impl<T: Send> Send for Pinned<T> {}

impl<T: Copy + Default> Pinned<T> {
    pub fn new(device: &Device, len: usize) -> Result<Self> {
        device.bind()?;
        let bytes = len.max(1) * size_of::<T>();
        // SAFETY: the driver gives page-aligned memory of that size, and every element is written before it is read.
        let at = unsafe {
            let at = match result::malloc_host(bytes, 0) {
                Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                    let needed = bytes >> 20;
                    let what = "pinned host memory".into();
                    return Err(Error::Memory { what, needed, free: 0, total: 0 });
                }
                other => driver_result("allocating pinned memory", other)?.cast::<T>(),
            };
            for i in 0..len {
                at.add(i).write(T::default());
            }
            at
        };
        Ok(Pinned { device: device.clone(), at, len })
    }

    pub fn as_slice(&self) -> &[T] {
        // SAFETY: `len` initialised elements, owned by `self`.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }

    pub fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: from `malloc_host`, freed once.
            let _ = unsafe { result::free_host(self.at.cast::<c_void>()) };
        }
    }
}

/// A queue of work on the GPU.
pub(crate) struct Stream {
    device: Device,
    handle: sys::CUstream,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Stream {}

impl Stream {
    pub fn new(device: &Device) -> Result<Self> {
        device.bind()?;
        let handle =
            driver_result("creating a stream", result::stream::create(result::stream::StreamKind::NonBlocking))?;
        Ok(Stream { device: device.clone(), handle })
    }

    pub fn handle(&self) -> sys::CUstream {
        self.handle
    }

    /// Queues a copy to the GPU; `from` must not change until an event recorded afterwards has passed.
    pub fn upload<T>(&self, to: u64, from: &[T]) -> Result<()> {
        // SAFETY: callers pass buffers with room for the slice and wait for the event before they touch it again.
        driver_result("copying to the GPU", unsafe { result::memcpy_htod_async(to, from, self.handle) })
    }

    /// Queues a copy from the GPU; `to` is complete once an event recorded afterwards has passed.
    pub fn download<T>(&self, to: &mut [T], from: u64) -> Result<()> {
        // SAFETY: as above.
        driver_result("copying from the GPU", unsafe { result::memcpy_dtoh_async(to, from, self.handle) })
    }

    pub fn wait(&self) -> Result<()> {
        // SAFETY: a live handle.
        driver_result("waiting for the GPU", unsafe { result::stream::synchronize(self.handle) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: a live handle, destroyed once; queued work ends first.
            unsafe {
                let _ = result::stream::synchronize(self.handle);
                let _ = result::stream::destroy(self.handle);
            }
        }
    }
}

/// A point in a stream.
pub(crate) struct Event {
    device: Device,
    handle: sys::CUevent,
}

// SAFETY: as for streams.
unsafe impl Send for Event {}

impl Event {
    pub fn new(device: &Device) -> Result<Self> {
        device.bind()?;
        // A thread that waits for it sleeps.
        let (untimed, sleeping) =
            (sys::CUevent_flags::CU_EVENT_DISABLE_TIMING, sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC);
        let mut handle = std::ptr::null_mut();
        // SAFETY: the driver writes one handle.
        let created = unsafe { sys::cuEventCreate(&raw mut handle, untimed as u32 | sleeping as u32) };
        driver_result("creating an event", created.result())?;
        Ok(Event { device: device.clone(), handle })
    }

    /// An event for [`Event::micros_since`].
    pub fn timed(device: &Device) -> Result<Self> {
        device.bind()?;
        let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
        Ok(Event { device: device.clone(), handle: driver_result("creating an event", result::event::create(flags))? })
    }

    /// Microseconds from `earlier` to this event; both are timed and have passed.
    pub fn micros_since(&self, earlier: &Event) -> Result<f64> {
        // SAFETY: live handles of one context.
        let taken = driver_result("timing a stream", unsafe { result::event::elapsed(earlier.handle, self.handle) })?;
        Ok(1000.0 * f64::from(taken))
    }

    pub fn record(&self, stream: &Stream) -> Result<()> {
        // SAFETY: live handles of one context.
        driver_result("marking a stream", unsafe { result::event::record(self.handle, stream.handle) })
    }

    /// Returns when all work queued before the event is done; at once where it was never recorded.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: a live handle.
        driver_result("waiting for the GPU", unsafe { result::event::synchronize(self.handle) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: a live handle, destroyed once.
            let _ = unsafe { result::event::destroy(self.handle) };
        }
    }
}
