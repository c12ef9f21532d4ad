//! The mean of rows of a table in bytes: how a distilled query encoder reads a text. The program and the web page run this one
//! function, so both give the same bits.

/// `out[j] = (sum over ids of scales[id] * table[id, j]) / ids`, summed in the order of the ids. Without ids it is zero.
///
/// # Panics
/// When `table` is not `[scales, out]`, or an id is beyond it.
pub fn mean(table: &[i8], scales: &[f32], ids: &[u32], out: &mut [f32]) {
    assert_eq!(table.len(), scales.len() * out.len(), "table is [pieces, width]");
    out.fill(0.0);
    for &id in ids {
        let id = id as usize;
        let (scale, row) = (scales[id], &table[id * out.len()..(id + 1) * out.len()]);
        for (sum, &value) in out.iter_mut().zip(row) {
            *sum += scale * f32::from(value);
        }
    }
    if !ids.is_empty() {
        let share = 1.0 / ids.len() as f32;
        out.iter_mut().for_each(|sum| *sum *= share);
    }
}

/// Rows `[pieces, width]` as bytes, and what a byte of each row stands for. A row of zeros has the scale 0.
pub fn quantize(rows: &[f32], width: usize) -> (Vec<i8>, Vec<f32>) {
    let mut table = Vec::with_capacity(rows.len());
    let mut scales = Vec::with_capacity(rows.len() / width);
    for row in rows.chunks_exact(width) {
        let largest = row.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        let scale = largest / 127.0;
        scales.push(scale);
        table.extend(row.iter().map(|value| if scale > 0.0 { (value / scale).round() as i8 } else { 0 }));
    }
    (table, scales)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_of_quantized_rows_is_within_half_a_step_of_the_mean() {
        let rows = [1.0, -2.0, 0.5, 0.0, 0.0, 0.0, -0.25, 0.125, 4.0];
        let (table, scales) = quantize(&rows, 3);
        assert_eq!(scales[1], 0.0);
        let mut out = [f32::NAN; 3];
        mean(&table, &scales, &[0, 2, 2], &mut out);
        for (j, value) in out.iter().enumerate() {
            let exact = (rows[j] + 2.0 * rows[6 + j]) / 3.0;
            assert!((value - exact).abs() <= (scales[0] + 2.0 * scales[2]) / 6.0 + 1e-6, "{value} {exact}");
        }
        mean(&table, &scales, &[], &mut out);
        assert_eq!(out, [0.0; 3]);
    }
}
