//! Methods that train a model: MICPQ and its variants, and those the paper compares it with. Each ends in an ordinary model
//! of dense layers, codebooks and a distance, so that one index and one search serve them all.
//!
//! A [`Method`] is found by name in the [`registry`](mod@registry); [`config`] has its options, [`training`] joins both with the texts to train
//! on. There are five kinds. [`variants`] change options of MICPQ, whose steps are in the crate `train`. [`quantization`]
//! is fitted at once: [`pq`], [`opq`] and [`lopq`], on [`kmeans`] and [`rotation`]. [`gradient`] learns by epochs, and each
//! method is a file that reads like its equations: [`vdsh`], [`nash`], [`wish`], [`bmsh`], [`corrsh`], [`ammi`], [`csh`], [`dhim`],
//! [`aepq`], [`two_stage`]. [`distilled`] starts at OPQ and learns from float search and MICPQ. [`embedding`] is for methods of
//! users.
//!
//! Learning: [`tfidf`] or an encoder gives the [`inputs`], [`entry`] is the first layer, losses are written in [`graph`], [`learn`]
//! runs the epochs, [`infomax`] has DHIM's steps on a GPU. [`job`] goes from texts to a model. [`recall`], [`clustering`] and
//! [`yardstick`] measure.
//!
//! Search needs none of this: a model reaches the engine as a directory.
//!
//! This program adds a method, the signs of an embedding, and trains it as any other:
//!
//! ```
//! use std::sync::Arc;
//!
//! use engine::model::{CodeShape, Codebooks, Dense, Projection};
//! use engine::{Matrix, NoProgress};
//! use methods::{EmbeddingMethod, MethodConfig, register};
//! use train::vectors::VectorViews;
//!
//! // A codebook per bit with the codewords -1 and 1, and a projection that changes nothing.
//! let signs = EmbeddingMethod::new("signs", |embeddings, training| {
//!     let (width, bits) = (embeddings.cols(), training.bits());
//!     let mut identity = vec![0.0; bits * width];
//!     (0..bits).for_each(|bit| identity[bit * width + bit] = 1.0);
//!     let projection = Projection::new(vec![Dense::new(width, identity, vec![0.0; bits])?])?;
//!     Ok((projection, Codebooks::new(CodeShape::new(bits, 2, 1)?, [-1.0, 1.0].repeat(bits))?))
//! });
//! register(Arc::new(signs))?;
//!
//! let values: Vec<f32> = (0..50 * 16).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
//! let vectors = Matrix::from_vec(16, values);
//! for method in ["signs", "pq"] {
//!     let config = MethodConfig::named(method, 16)?;
//!     let views = VectorViews::Noise(VectorViews::NOISE);
//!     let trained = methods::job::of_vectors(&config, vectors.clone(), &views, None, &NoProgress)?;
//!     println!("{method}: {}", trained.summary());
//!     assert_eq!(trained.model.encode(&vectors)?.len(), 50 * 2);
//! }
//! # Ok::<(), engine::Error>(())
//! ```
#![deny(unsafe_code)]

pub mod embedding;
pub mod gradient;
pub mod method;
pub mod quantization;

pub mod kmeans;
pub mod rotation;

pub mod decoder;
pub mod entry;
pub mod graph;
pub mod infomax;
pub mod inputs;
pub mod learn;
pub mod scale;
pub mod tfidf;

pub mod clustering;
pub mod recall;
pub mod yardstick;

/// Declares the modules of methods and lists their constants.
macro_rules! methods {
    ($($module:ident: $($constant:ident),+;)+) => {
        $(pub mod $module;)+

        fn built_in() -> Vec<std::sync::Arc<dyn Method>> {
            vec![$($(std::sync::Arc::new($module::$constant),)+)+]
        }
    };
}

// A new method is its file and its line here, in the order of the paper's tables; what is newer comes last.
methods! {
    vdsh: METHOD;
    nash: METHOD;
    wish: METHOD;
    bmsh: METHOD;
    corrsh: METHOD;
    ammi: METHOD;
    dhim: METHOD;
    pq: METHOD;
    opq: METHOD;
    lopq: METHOD;
    two_stage: METHOD;
    aepq: METHOD;
    csh: METHOD;
    variants: MICPQ_EH, MICPQ_EA, SOFTMAX, CL, MICPQ;
    distilled: METHOD;
}

pub use embedding::EmbeddingMethod;
pub use gradient::GradientMethod;
pub use method::config::MethodConfig;
pub use method::job::UserVectors;
pub use method::options::MethodOptions;
pub use method::registry::{MethodHandle, find, register, registry};
pub use method::training::Training;
pub use method::{Fitted, Input, Method, Prepared, Reads};
pub use method::{config, job, options, registry, training};
pub use quantization::Quantization;
