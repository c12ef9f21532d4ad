//! The product in plain Rust.

use super::{PANEL, PanelRange};

pub(super) fn reference(range: &PanelRange, x: &[f32], y: &mut [f32], rows: usize) {
    let inputs = range.weight.inputs;
    for (p, panel) in range.panels.chunks_exact(PANEL * inputs).enumerate() {
        range.output(p).store(y, 0, rows, |i: usize| {
            let mut tile = [0.0f32; PANEL];
            for (&a, weights) in x[i * inputs..(i + 1) * inputs].iter().zip(panel.as_chunks::<PANEL>().0) {
                for (t, &b) in tile.iter_mut().zip(weights) {
                    *t = a.mul_add(b, *t);
                }
            }
            tile
        });
    }
}
