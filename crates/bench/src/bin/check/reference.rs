//! The forward pass on the CPU in f32, with the CPU's kernels: the reference for the GPU.

use cuda::{Activation, Dropout, Pooling, Shape};
use kernels::Backend;
use kernels::attention::{Scores, Scratch, Shape as Heads, attend};
use kernels::dropout::{Rate, drop_row, mix};
use kernels::gemm::{Epilogue, PackedWeight};
use kernels::rows::{add_layer_norm, layer_norm};

/// Returns a tensor by name.
pub type Read<'a> = &'a (dyn Fn(&str) -> Vec<f32> + Sync);

struct Linear {
    weight: PackedWeight,
    bias: Vec<f32>,
}

struct Layer {
    linears: [Linear; 4],
    norms: [[Vec<f32>; 2]; 2],
}

pub struct Reference {
    shape: Shape,
    tables: [Vec<f32>; 3],
    norm: [Vec<f32>; 2],
    layers: Vec<Layer>,
}

impl Reference {
    pub fn new(shape: Shape, read: Read) -> Self {
        let norm = |name: &str| ["weight", "bias"].map(|part| read(&format!("{name}.LayerNorm.{part}")));
        let linear = |names: &[String]| {
            let weight: Vec<f32> = names.iter().flat_map(|n| read(&format!("{n}.weight"))).collect();
            let bias: Vec<f32> = names.iter().flat_map(|n| read(&format!("{n}.bias"))).collect();
            Linear { weight: PackedWeight::new(&weight, bias.len(), weight.len() / bias.len()), bias }
        };
        let layer = |i: usize| {
            let at = |part: &str| format!("encoder.layer.{i}.{part}");
            Layer {
                linears: [
                    linear(&["query", "key", "value"].map(|p| at(&format!("attention.self.{p}")))),
                    linear(&[at("attention.output.dense")]),
                    linear(&[at("intermediate.dense")]),
                    linear(&[at("output.dense")]),
                ],
                norms: [norm(&at("attention.output")), norm(&at("output"))],
            }
        };
        Reference {
            shape,
            tables: ["word", "position", "token_type"].map(|t| read(&format!("embeddings.{t}_embeddings.weight"))),
            norm: norm("embeddings"),
            layers: (0..shape.layers).map(layer).collect(),
        }
    }

    /// Embeddings of all sequences, on all cores.
    pub fn encode(&self, sequences: &[&[u32]], pooling: Pooling, dropout: Option<Dropout>) -> Vec<f32> {
        let mut out = vec![0.0; sequences.len() * self.shape.hidden];
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let rows = std::sync::Mutex::new(out.chunks_exact_mut(self.shape.hidden).enumerate());
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let Some((i, row)) = rows.lock().unwrap().next() else { break };
                        self.document(
                            sequences[i],
                            pooling,
                            dropout.map(|d| (Rate::new(d.rate), mix(d.key, d.documents[i]))),
                            row,
                        );
                    }
                });
            }
        });
        out
    }

    fn document(&self, ids: &[u32], pooling: Pooling, dropout: Option<(Rate, u64)>, out: &mut [f32]) {
        let Shape { hidden, heads, epsilon, .. } = self.shape;
        let backend = Backend::active();
        let length = ids.len();
        let drop = |states: &mut [f32], site: u64| {
            let Some((rate, document)) = dropout else { return };
            for (position, row) in states.chunks_exact_mut(hidden).enumerate() {
                drop_row(backend, row, mix(mix(document, site), position as u64), rate);
            }
        };
        let [tokens, positions, types] = &self.tables;
        let mut states = vec![0.0; length * hidden];
        for (position, (&id, row)) in ids.iter().zip(states.chunks_exact_mut(hidden)).enumerate() {
            for (e, v) in row.iter_mut().enumerate() {
                *v = tokens[id as usize * hidden + e] + types[e] + positions[position * hidden + e];
            }
        }
        layer_norm(backend, &mut states, &self.norm[0], &self.norm[1], epsilon);
        drop(&mut states, 0);
        let apply = |linear: &Linear, x: &[f32], activation: Option<Activation>| {
            let mut y = vec![0.0; length * linear.bias.len()];
            let epilogue = match activation {
                None => Epilogue::Bias(&linear.bias),
                Some(Activation::Gelu) => Epilogue::BiasGelu(&linear.bias),
                Some(Activation::GeluTanh) => Epilogue::BiasGeluTanh(&linear.bias),
                Some(Activation::Relu) => Epilogue::BiasRelu(&linear.bias),
            };
            linear.weight.multiply(x, &mut y, length, epilogue);
            y
        };
        for (l, layer) in self.layers.iter().enumerate() {
            let site = 1 + 3 * l as u64;
            let [qkv, attention, feed_in, feed_out] = &layer.linears;
            let wide = apply(qkv, &states, None);
            let mut context = vec![0.0; length * hidden];
            let mask = dropout.map(|(rate, document)| (rate, mix(document, site)));
            let shape = Heads { heads, width: hidden / heads };
            attend(backend, &wide, &mut context, shape, Scores::Plain, mask, &mut Scratch::default());
            let mut update = apply(attention, &context, None);
            drop(&mut update, site + 1);
            add_layer_norm(backend, &mut states, &update, &layer.norms[0][0], &layer.norms[0][1], epsilon);
            let wide = apply(feed_in, &states, Some(self.shape.activation));
            let mut update = apply(feed_out, &wide, None);
            drop(&mut update, site + 2);
            add_layer_norm(backend, &mut states, &update, &layer.norms[1][0], &layer.norms[1][1], epsilon);
        }
        match pooling {
            Pooling::Cls => out.copy_from_slice(&states[..hidden]),
            Pooling::Mean => {
                for (e, o) in out.iter_mut().enumerate() {
                    *o = states.iter().skip(e).step_by(hidden).sum::<f32>() / length as f32;
                }
            }
        }
    }
}
