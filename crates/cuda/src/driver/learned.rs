//! Learned parameters on a GPU, and Adam's update of them.

use crate::driver::compile::{Kernel, arguments};
use crate::driver::device::Device;
use crate::driver::memory::{Buffer, Stream};
use crate::{Result, TrainingAdam};

/// Parameters, their gradient and Adam's two moments.
pub(crate) struct Learned {
    pub values: Buffer,
    pub gradient: Buffer,
    pub first: Buffer,
    pub second: Buffer,
    pub count: usize,
}

impl Learned {
    /// Initial values; gradient and moments are zero.
    pub fn new(device: &Device, values: &[f32]) -> Result<Self> {
        let zeros = vec![0.0f32; values.len()];
        let empty = || Buffer::filled(device, &zeros, "training");
        Ok(Learned {
            values: Buffer::filled(device, values, "training")?,
            gradient: empty()?,
            first: empty()?,
            second: empty()?,
            count: values.len(),
        })
    }

    /// Queues an update by the gradient; `adam` is the kernel `adam`.
    pub fn update(&self, adam: &Kernel, stream: &Stream, by: TrainingAdam) -> Result<()> {
        let (x, g, m, v) = (self.values.at(), self.gradient.at(), self.first.at(), self.second.at());
        let count = self.count;
        // SAFETY: four buffers of `count` values.
        unsafe { adam.launch(stream, count.div_ceil(256), 256, arguments![x, g, m, v, count as u64, by]) }
    }

    /// The values after all queued work.
    pub fn read(&self, stream: &Stream) -> Result<Vec<f32>> {
        self.download(&self.values, stream)
    }

    /// The gradient after all queued work.
    pub fn read_gradient(&self, stream: &Stream) -> Result<Vec<f32>> {
        self.download(&self.gradient, stream)
    }

    fn download(&self, from: &Buffer, stream: &Stream) -> Result<Vec<f32>> {
        let mut values = vec![0.0f32; self.count];
        stream.download(&mut values, from.at())?;
        stream.wait()?;
        Ok(values)
    }
}
