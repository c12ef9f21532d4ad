//! What is learned on a GPU, and Adam's update of it.

use crate::Result;
use crate::compile::{Kernel, arguments};
use crate::device::Device;
use crate::memory::{Buffer, Stream};

/// The numbers of one Adam update, its bias corrections worked in.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct TrainingAdam {
    /// Share of the old first moment.
    pub keep_first: f32,
    /// Share of the old second moment.
    pub keep_second: f32,
    /// Learning rate over the first moment's correction.
    pub rate: f32,
    /// One over the root of the second moment's correction.
    pub scale: f32,
    /// Added to the root.
    pub epsilon: f32,
}

/// Values, their gradient and Adam's two moments.
pub(crate) struct Learned {
    pub values: Buffer,
    pub gradient: Buffer,
    pub first: Buffer,
    pub second: Buffer,
    pub count: usize,
}

impl Learned {
    /// First values, all else zero.
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

    /// Queues an update by the gradient; `adam` is the kernel of that name.
    pub fn update(&self, adam: &Kernel, stream: &Stream, by: TrainingAdam) -> Result<()> {
        let (x, g, m, v) = (self.values.at(), self.gradient.at(), self.first.at(), self.second.at());
        let count = self.count;
        // SAFETY: four buffers of as many values.
        unsafe { adam.launch(stream, count.div_ceil(256), 256, arguments![x, g, m, v, count as u64, by]) }
    }

    /// The values after all that is queued.
    pub fn read(&self, stream: &Stream) -> Result<Vec<f32>> {
        self.download(&self.values, stream)
    }

    /// The gradient after all that is queued.
    pub fn read_gradient(&self, stream: &Stream) -> Result<Vec<f32>> {
        self.download(&self.gradient, stream)
    }

    fn download(&self, from: &Buffer, stream: &Stream) -> Result<Vec<f32>> {
        let mut found = vec![0.0f32; self.count];
        stream.download(&mut found, from.at())?;
        stream.wait()?;
        Ok(found)
    }
}
