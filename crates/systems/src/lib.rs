//! The other systems of the MICPQ paper, each a method that ends in an ordinary model: dense layers, codebooks and a
//! distance, so that one index and one search serve them all.
//!
//! A [`method`] is a name, its [`config`] every option of it. Quantizers are fitted: [`kmeans`] and [`rotation`] carry
//! [`pq`], [`opq`] and [`lopq`]. The others are learned: [`tfidf`] or an encoder gives the [`inputs`], [`entry`] is the first
//! layer, [`graph`] what the losses are written in, [`learn`] the run, [`infomax`] its steps on a GPU where there are some, and each system is a file that reads like its
//! equations: [`vdsh`], [`nash`], [`wish`], [`bmsh`], [`corrsh`], [`ammi`], [`csh`], [`dhim`], [`aepq`], [`two_stage`]. [`job`] goes from
//! texts to a model, [`training`] chooses between it and MICPQ's own; [`fidelity`], [`clustering`] and [`yardstick`] measure, and [`paper`] runs the whole evaluation.
//!
//! Nothing here is needed to search: a model reaches the engine as a directory.
#![deny(unsafe_code)]

pub mod config;
pub mod job;
pub mod method;
pub mod training;

pub mod kmeans;
pub mod rotation;

pub mod lopq;
pub mod opq;
pub mod pq;

pub mod entry;
pub mod graph;
pub mod infomax;
pub mod inputs;
pub mod learn;
pub mod scale;
pub mod tfidf;

pub mod aepq;
pub mod ammi;
pub mod bmsh;
pub mod corrsh;
pub mod csh;
pub mod decoder;
pub mod dhim;
pub mod nash;
pub mod two_stage;
pub mod vdsh;
pub mod wish;

pub mod clustering;
pub mod fidelity;
pub mod yardstick;

pub mod paper;

pub use config::SystemConfig;
pub use method::{Input, Method};
pub use training::Training;
