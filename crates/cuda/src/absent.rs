//! A build without CUDA: no GPU opens, so nothing can be done on one.

use std::convert::Infallible;

use crate::{
    DeviceInfo, Dropout, Error, InfoMaxHead, InfoMaxStep, LayerPart, Pooling, Precision, Report, Result, Shape, Source,
    Texts, TrainingAdam, TrainingLosses, TrainingObjective, TrainingShape,
};

/// No GPU is listed.
pub fn devices() -> Result<Vec<DeviceInfo>> {
    Ok(Vec::new())
}

macro_rules! never {
    ($($name:ident),*) => {
        $(
            /// Never exists.
            #[derive(Clone)]
            pub struct $name(Infallible);
        )*
    };
}

never!(Device, Bert, Layer, InfoMax, Trainer);

impl Device {
    /// # Errors
    /// Always.
    pub fn open(_: usize) -> Result<Self> {
        Err(Error::Unsupported(
            "this program was built without CUDA; use the CPU, or build with the feature \"cuda\"".into(),
        ))
    }

    pub fn info(&self) -> &DeviceInfo {
        match self.0 {}
    }
}

impl Bert {
    pub fn new(device: &Device, _: Shape, _: Precision, _: Source) -> Result<Self> {
        match device.0 {}
    }

    pub fn encode_views(
        &self,
        _: &[&[u32]],
        _: Pooling,
        _: &[Option<Dropout>],
        _: &mut [&mut [f32]],
        _: &dyn Fn(usize) -> bool,
    ) -> Result<Report> {
        match self.0 {}
    }

    pub fn states(&self, _: &[&[u32]], _: Option<Dropout>, _: &mut [f32], _: &dyn Fn(usize) -> bool) -> Result<()> {
        match self.0 {}
    }
}

impl Layer {
    pub fn new(device: &Device, _: Vec<LayerPart>, _: &[f32], _: &[f32]) -> Result<Self> {
        match device.0 {}
    }

    pub fn pool(&mut self, _: &Texts) -> Result<Vec<f32>> {
        match self.0 {}
    }

    pub fn read(&self, _: &mut [f32], _: &mut [f32]) -> Result<()> {
        match self.0 {}
    }
}

impl InfoMax {
    pub fn new(layer: Layer, _: InfoMaxHead, _: f32, _: f32) -> Result<Self> {
        match layer.0 {}
    }

    pub fn step(&mut self, _: &InfoMaxStep) -> Result<f64> {
        match self.0 {}
    }

    pub fn update(&mut self, _: TrainingAdam) -> Result<()> {
        match self.0 {}
    }

    pub fn layer(&self) -> &Layer {
        match self.0 {}
    }

    pub fn head(&self) -> Result<[Vec<f32>; 6]> {
        match self.0 {}
    }

    pub fn head_gradient(&self) -> Result<[Vec<f32>; 6]> {
        match self.0 {}
    }
}

impl Trainer {
    pub fn new(device: &Device, _: TrainingShape, _: TrainingObjective) -> Result<Self> {
        match device.0 {}
    }

    pub fn set_state(&mut self, _: &[f32], _: &[f32], _: &[f32]) -> Result<()> {
        match self.0 {}
    }

    pub fn state(&self, _: &mut [f32], _: &mut [f32], _: &mut [f32]) -> Result<()> {
        match self.0 {}
    }

    pub fn gradient(&self, _: &mut [f32]) -> Result<()> {
        match self.0 {}
    }

    pub fn step(&mut self, _: &[f32], _: &[u64], _: f64, _: u64) -> Result<()> {
        match self.0 {}
    }

    pub fn update(&mut self, _: TrainingAdam) -> Result<()> {
        match self.0 {}
    }

    pub fn set_gradient(&mut self, _: &[f32]) -> Result<()> {
        match self.0 {}
    }

    pub fn losses(&mut self, _: bool) -> Result<TrainingLosses> {
        match self.0 {}
    }

    pub fn codes(&mut self, _: &[f32]) -> Result<Vec<u8>> {
        match self.0 {}
    }
}
