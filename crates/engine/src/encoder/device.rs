//! The device of the encoder: the CPU, or an NVIDIA GPU found at run time.
//!
//! A GPU computes in f16 with f32 sums. Its vectors differ from the CPU's by a few thousandths of their length, so they are
//! not the same bits. Cached embeddings and views therefore carry [`ARITHMETIC`] in their name, and a resumed run uses the
//! kind of device it began with. Dropout masks are the CPU's, bit for bit.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use cuda::{Activation, Precision, Shape};

use super::config::EncoderConfig;
use super::weights::Weights;
use super::{Dropout, Pool, Pooling, gpu_tensors};
use crate::progress::Progress;
use crate::{Error, Matrix, Result};

/// Arithmetic of a GPU, part of the names of cached embeddings.
pub(super) const ARITHMETIC: &str = "cuda-f16";

/// Sequences per call that keep a GPU busy: ten batches of 16,384 tokens if texts have forty tokens.
pub(super) const AT_ONCE: usize = 4096;

/// The device that the user chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// A GPU if one works, the CPU otherwise.
    #[default]
    Auto,
    Cpu,
    /// The GPU of this number, or an error that says what is missing.
    Cuda(usize),
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Device::Auto => f.write_str("auto"),
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

impl std::str::FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let number = match text {
            "auto" => return Ok(Device::Auto),
            "cpu" => return Ok(Device::Cpu),
            "cuda" => Some(0),
            _ => text.strip_prefix("cuda:").and_then(|n| n.parse().ok()),
        };
        number
            .map(Device::Cuda)
            .ok_or_else(|| Error::config(format!("unknown device '{text}'; known: auto, cpu, cuda, cuda:N")))
    }
}

/// The pooling of a GPU; `None` if it has no such pooling.
pub(super) fn pooling(pool: Pool) -> Option<cuda::Pooling> {
    match (pool.pooling, pool.skip) {
        (Pooling::Cls, 0) => Some(cuda::Pooling::Cls),
        (Pooling::Mean, 0) => Some(cuda::Pooling::Mean),
        _ => None,
    }
}

/// The forward pass of a GPU, or of a stand-in for it in tests.
trait Forward: Send + Sync {
    fn views(
        &self,
        sequences: &[&[u32]],
        pooling: cuda::Pooling,
        views: &[Option<cuda::Dropout>],
        outs: &mut [&mut [f32]],
        progress: &dyn Fn(usize) -> bool,
    ) -> cuda::Result<cuda::Report>;

    fn states(
        &self,
        sequences: &[&[u32]],
        dropout: Option<cuda::Dropout>,
        out: &mut [f32],
        progress: &dyn Fn(usize) -> bool,
    ) -> cuda::Result<()>;
}

impl Forward for cuda::Bert {
    fn views(
        &self,
        sequences: &[&[u32]],
        pooling: cuda::Pooling,
        views: &[Option<cuda::Dropout>],
        outs: &mut [&mut [f32]],
        progress: &dyn Fn(usize) -> bool,
    ) -> cuda::Result<cuda::Report> {
        self.encode_views(sequences, pooling, views, outs, progress)
    }

    fn states(
        &self,
        sequences: &[&[u32]],
        dropout: Option<cuda::Dropout>,
        out: &mut [f32],
        progress: &dyn Fn(usize) -> bool,
    ) -> cuda::Result<()> {
        cuda::Bert::states(self, sequences, dropout, out, progress)
    }
}

/// An encoder whose weights are on a GPU.
pub(super) struct Gpu {
    bert: Box<dyn Forward>,
    device: Option<cuda::Device>,
    name: String,
    /// Whether the warning about short memory was reported.
    reported: AtomicBool,
}

impl Gpu {
    /// Opens `device` and copies the weights to it. `None` if the CPU is to be used.
    pub fn open(device: Device, dir: &Path, config: &EncoderConfig, progress: &dyn Progress) -> Result<Option<Self>> {
        let number = match device {
            Device::Cpu => return Ok(None),
            Device::Cuda(number) => number,
            Device::Auto => match cuda::devices() {
                Ok(found) if !found.is_empty() => 0,
                // A machine without a GPU needs no warning.
                Ok(_) | Err(cuda::Error::Missing { .. }) => return Ok(None),
                Err(problem) => {
                    progress.note(&format!("encoding on the CPU: {problem}"));
                    return Ok(None);
                }
            },
        };
        match Self::cuda(number, dir, config, progress) {
            Ok(gpu) => Ok(Some(gpu)),
            // Errors of the encoder's own files would occur on the CPU too, so they are returned.
            Err(problem @ Error::Device(_)) if device == Device::Auto => {
                progress.note(&format!("encoding on the CPU: {problem}"));
                Ok(None)
            }
            Err(Error::Device(problem)) => Err(Error::device(format!("device {device}: {problem}"))),
            Err(other) => Err(other),
        }
    }

    fn cuda(number: usize, dir: &Path, config: &EncoderConfig, progress: &dyn Progress) -> Result<Self> {
        progress.stage("preparing the GPU", None);
        let device = cuda::Device::open(number).map_err(failure)?;
        let weights = Weights::open(dir)?.prefixed(gpu_tensors::prefix(config.architecture));
        let read = |name: &str| -> std::result::Result<Vec<f32>, Box<dyn std::error::Error + Send + Sync>> {
            Ok(gpu_tensors::read(config, &weights, name)?)
        };
        let bert = cuda::Bert::new(&device, shape(config), Precision::F16, &read).map_err(failure)?;
        let info = device.info();
        let opened = Some(device.clone());
        progress.note(&format!(
            "encoding on {} (GPU {number}, {:.0} GiB) in f16",
            info.name,
            info.memory as f64 / (1u64 << 30) as f64
        ));
        Ok(Gpu { bert: Box::new(bert), device: opened, name: info.name.clone(), reported: AtomicBool::new(false) })
    }

    /// The CUDA device; `None` for a stand-in in tests.
    pub fn device(&self) -> Option<&cuda::Device> {
        self.device.as_ref()
    }

    /// Raw pooled vectors of every view.
    pub fn encode(
        &self,
        sequences: &[impl AsRef<[u32]>],
        pooling: cuda::Pooling,
        views: &[Option<Dropout>],
        width: usize,
        progress: &dyn Progress,
    ) -> Result<Vec<Matrix>> {
        let sequences: Vec<&[u32]> = sequences.iter().map(AsRef::as_ref).collect();
        let mut out: Vec<Matrix> = views.iter().map(|_| Matrix::zeros(sequences.len(), width)).collect();
        if sequences.is_empty() {
            return Ok(out);
        }
        let mut slices: Vec<&mut [f32]> = out.iter_mut().map(Matrix::as_mut_slice).collect();
        let views: Vec<Option<cuda::Dropout>> = views.iter().map(|view| view.map(|v| v.on_gpu())).collect();
        let step = |rows: usize| {
            progress.advance(rows as u64);
            !progress.interrupted()
        };
        let report = self.bert.views(&sequences, pooling, &views, &mut slices, &step).map_err(|e| self.failed(e))?;
        if let Some(note) = report.note()
            && !self.reported.swap(true, Ordering::Relaxed)
        {
            progress.note(&note);
        }
        Ok(out)
    }
}

impl Gpu {
    /// States of every token, `[tokens of all, width]`.
    pub fn states(
        &self,
        sequences: &[&[u32]],
        dropout: Option<Dropout>,
        width: usize,
        progress: &dyn Progress,
    ) -> Result<Vec<f32>> {
        let tokens: usize = sequences.iter().map(|s| s.len()).sum();
        let mut out = vec![0.0; tokens * width];
        let dropout = dropout.map(|d| d.on_gpu());
        self.bert.states(sequences, dropout, &mut out, &|_| !progress.interrupted()).map_err(|e| self.failed(e))?;
        Ok(out)
    }

    fn failed(&self, error: cuda::Error) -> Error {
        match error {
            cuda::Error::Interrupted => Error::Interrupted,
            cuda::Error::Range { precision, .. } => Error::device(format!(
                "{}: the encoder's states leave the range of {precision}; use the device cpu with this encoder",
                self.name
            )),
            other => Error::device(format!(
                "{}: {other}. What is finished is kept: the same command goes on from there",
                self.name
            )),
        }
    }
}

/// An error before the first batch: the error of the weight file if it came from there, otherwise an error of the GPU.
fn failure(error: cuda::Error) -> Error {
    match error {
        cuda::Error::Weights { name, source } => match source.downcast::<Error>() {
            Ok(own) => *own,
            Err(other) => Error::device(format!("tensor {name}: {other}")),
        },
        other => Error::device(other.to_string()),
    }
}

fn shape(config: &EncoderConfig) -> Shape {
    Shape {
        hidden: config.hidden_size,
        heads: config.num_attention_heads,
        layers: config.num_hidden_layers,
        intermediate: config.intermediate_size,
        vocab: config.vocab_size,
        positions: config.max_tokens(),
        epsilon: config.layer_norm_eps,
        activation: match config.hidden_act.as_str() {
            "gelu_new" => Activation::GeluTanh,
            "relu" => Activation::Relu,
            _ => Activation::Gelu,
        },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::NoProgress;

    #[test]
    fn device_names_round_trip() {
        for (text, device) in [
            ("auto", Device::Auto),
            ("cpu", Device::Cpu),
            ("cuda", Device::Cuda(0)),
            ("cuda:0", Device::Cuda(0)),
            ("cuda:3", Device::Cuda(3)),
        ] {
            assert_eq!(text.parse::<Device>().unwrap(), device);
            assert_eq!(device.to_string().parse::<Device>().unwrap(), device);
        }
        for text in ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "CUDA"] {
            assert!(text.parse::<Device>().unwrap_err().to_string().contains("cuda:N"), "{text}");
        }
    }

    /// Stands in for a GPU. Every value is the sequence's first token plus the view's key. It fails on request.
    struct Stand {
        calls: AtomicUsize,
        fail_at: usize,
        error: fn() -> cuda::Error,
        halved: u32,
    }

    impl Forward for Stand {
        fn views(
            &self,
            sequences: &[&[u32]],
            _: cuda::Pooling,
            views: &[Option<cuda::Dropout>],
            outs: &mut [&mut [f32]],
            progress: &dyn Fn(usize) -> bool,
        ) -> cuda::Result<cuda::Report> {
            if self.calls.fetch_add(1, Ordering::Relaxed) == self.fail_at {
                return Err((self.error)());
            }
            for (view, out) in views.iter().zip(outs) {
                let shift = view.map_or(0.0, |v| (v.key % 97) as f32 + 1.0);
                for (row, ids) in out.chunks_exact_mut(4).zip(sequences) {
                    row.fill(ids[0] as f32 + shift);
                }
                if !progress(sequences.len()) {
                    return Err(cuda::Error::Interrupted);
                }
            }
            Ok(cuda::Report { tokens: 0, batches: 1, batch_tokens: 4096, halved: self.halved })
        }

        fn states(
            &self,
            sequences: &[&[u32]],
            _: Option<cuda::Dropout>,
            out: &mut [f32],
            _: &dyn Fn(usize) -> bool,
        ) -> cuda::Result<()> {
            if self.calls.fetch_add(1, Ordering::Relaxed) == self.fail_at {
                return Err((self.error)());
            }
            let ids = sequences.iter().flat_map(|s| s.iter());
            out.chunks_exact_mut(4).zip(ids).for_each(|(row, &id)| row.fill(id as f32));
            Ok(())
        }
    }

    fn stand(fail_at: usize, error: fn() -> cuda::Error, halved: u32) -> Gpu {
        let bert = Box::new(Stand { calls: AtomicUsize::new(0), fail_at, error, halved });
        Gpu { bert, device: None, name: "Test GPU".into(), reported: AtomicBool::new(false) }
    }

    fn gone() -> cuda::Error {
        cuda::Error::Failed {
            doing: "waiting for the GPU".into(),
            said: "CUDA_ERROR_DEVICE_UNAVAILABLE".into(),
            advice: "start it again",
        }
    }

    struct Notes(Mutex<Vec<String>>, bool);

    impl Progress for Notes {
        fn note(&self, text: &str) {
            self.0.lock().unwrap().push(text.into());
        }

        fn interrupted(&self) -> bool {
            self.1
        }
    }

    #[test]
    fn every_view_has_its_own_matrix_and_short_memory_is_reported_once() {
        let gpu = stand(usize::MAX, gone, 2);
        let notes = Notes(Mutex::default(), false);
        let numbers = [4, 5];
        let views = [None, Some(Dropout::new(0.3, 1, 7, &numbers))];
        for _ in 0..2 {
            let out = gpu.encode(&[[10u32], [20]], cuda::Pooling::Mean, &views, 4, &notes).unwrap();
            assert_eq!((out[0].row(0), out[0].row(1)), (&[10.0; 4][..], &[20.0; 4][..]));
            assert!(out[1].row(0)[0] > 10.0);
        }
        let warnings = notes.0.into_inner().unwrap();
        assert!(warnings.len() == 1 && warnings[0].contains("short of memory"), "{warnings:?}");
        assert!(gpu.encode(&[] as &[[u32; 1]], cuda::Pooling::Cls, &[None], 4, &NoProgress).unwrap()[0].rows() == 0);
    }

    #[test]
    fn a_gpu_failure_is_an_error_and_the_next_call_can_succeed() {
        let gpu = stand(1, gone, 0);
        let encode = |progress: &dyn Progress| gpu.encode(&[[10u32]], cuda::Pooling::Cls, &[None], 4, progress);
        assert!(encode(&NoProgress).is_ok());
        let error = encode(&NoProgress).unwrap_err();
        assert!(matches!(error, Error::Device(_)));
        let text = error.to_string();
        assert!(text.contains("Test GPU") && text.contains("kept") && text.contains("DEVICE_UNAVAILABLE"), "{text}");
        assert!(encode(&NoProgress).is_ok());
        assert!(matches!(encode(&Notes(Mutex::default(), true)), Err(Error::Interrupted)));
        let tokens = stand(1, gone, 0);
        assert_eq!(
            tokens.states(&[&[7, 8], &[9]], None, 4, &NoProgress).unwrap()[4..],
            [8.0, 8.0, 8.0, 8.0, 9.0, 9.0, 9.0, 9.0]
        );
        assert!(tokens.states(&[&[7]], None, 4, &NoProgress).unwrap_err().to_string().contains("DEVICE_UNAVAILABLE"));
        let narrow = stand(0, || cuda::Error::Range { precision: "f16", other: "bf16" }, 0);
        let text = narrow.encode(&[[10u32]], cuda::Pooling::Cls, &[None], 4, &NoProgress).unwrap_err().to_string();
        assert!(text.contains("range of f16; use the device cpu"), "{text}");
    }

    #[test]
    fn an_error_of_the_weight_file_is_not_a_device_error() {
        let own = Error::format("model.safetensors", "has no tensor \"x\"");
        let error = failure(cuda::Error::Weights { name: "x".into(), source: Box::new(own) });
        assert!(matches!(error, Error::Format { .. }), "{error}");
        let other = failure(cuda::Error::Weights { name: "x".into(), source: "of another length".into() });
        assert!(other.to_string().contains("tensor x: of another length"));
    }
}
