//! What this core gives: bare chains of instructions, and the encoder's products beside them.
//!
//!     cargo run --release --workspace --example peak
//!
//! Prints one JSON object a line: G operations (multiplications and additions) a second of one thread, the best of many
//! short runs: runs of a millisecond slip between those of other programs.

use std::time::Instant;

use kernels::Backend;
use kernels::gemm::{Epilogue, PackedWeight};
use kernels::int8::{ByteRows, ByteWeight, Unit};

/// G operations a second, the best of `runs`.
fn best(runs: usize, operations: f64, mut f: impl FnMut()) -> f64 {
    f();
    (0..runs)
        .map(|_| {
            let begun = Instant::now();
            f();
            operations / (begun.elapsed().as_secs_f64()) / 1e9
        })
        .fold(0.0, f64::max)
}

#[cfg(target_arch = "x86_64")]
mod bare {
    use std::arch::asm;

    /// Twelve independent chains of fused multiply-adds: 12 x 16 operations a turn.
    ///
    /// # Safety
    /// FMA.
    pub unsafe fn fma(turns: usize) {
        // SAFETY: registers alone are touched, and named.
        unsafe {
            asm!(
                "2:",
                "vfmadd231ps ymm0, ymm14, ymm15", "vfmadd231ps ymm1, ymm14, ymm15", "vfmadd231ps ymm2, ymm14, ymm15",
                "vfmadd231ps ymm3, ymm14, ymm15", "vfmadd231ps ymm4, ymm14, ymm15", "vfmadd231ps ymm5, ymm14, ymm15",
                "vfmadd231ps ymm6, ymm14, ymm15", "vfmadd231ps ymm7, ymm14, ymm15", "vfmadd231ps ymm8, ymm14, ymm15",
                "vfmadd231ps ymm9, ymm14, ymm15", "vfmadd231ps ymm10, ymm14, ymm15", "vfmadd231ps ymm11, ymm14, ymm15",
                "dec {n}",
                "jnz 2b",
                n = inout(reg) turns => _,
                out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _, out("ymm4") _, out("ymm5") _,
                out("ymm6") _, out("ymm7") _, out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
                options(nomem, nostack),
            );
        }
    }

    /// Four times what the product of bytes does for 64 multiplications and additions: 4 x 128 operations a turn.
    ///
    /// # Safety
    /// AVX2.
    pub unsafe fn bytes(turns: usize) {
        // SAFETY: as above.
        unsafe {
            asm!(
                "2:",
                "vpmaddubsw ymm4, ymm14, ymm15", "vpmaddubsw ymm5, ymm14, ymm15", "vpaddw ymm4, ymm4, ymm5",
                "vpmaddwd ymm4, ymm4, ymm13", "vpaddd ymm0, ymm0, ymm4",
                "vpmaddubsw ymm6, ymm14, ymm15", "vpmaddubsw ymm7, ymm14, ymm15", "vpaddw ymm6, ymm6, ymm7",
                "vpmaddwd ymm6, ymm6, ymm13", "vpaddd ymm1, ymm1, ymm6",
                "vpmaddubsw ymm8, ymm14, ymm15", "vpmaddubsw ymm9, ymm14, ymm15", "vpaddw ymm8, ymm8, ymm9",
                "vpmaddwd ymm8, ymm8, ymm13", "vpaddd ymm2, ymm2, ymm8",
                "vpmaddubsw ymm10, ymm14, ymm15", "vpmaddubsw ymm11, ymm14, ymm15", "vpaddw ymm10, ymm10, ymm11",
                "vpmaddwd ymm10, ymm10, ymm13", "vpaddd ymm3, ymm3, ymm10",
                "dec {n}",
                "jnz 2b",
                n = inout(reg) turns => _,
                out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _, out("ymm4") _, out("ymm5") _,
                out("ymm6") _, out("ymm7") _, out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
                options(nomem, nostack),
            );
        }
    }
}

fn main() {
    #[cfg(target_arch = "x86_64")]
    if Backend::available().contains(&Backend::Avx2) {
        let turns = 100_000;
        // SAFETY: the CPU was seen to have AVX2 and FMA.
        let f32_peak = best(1000, turns as f64 * 12.0 * 16.0, || unsafe { bare::fma(turns) });
        // SAFETY: as above.
        let byte_peak = best(1000, turns as f64 * 4.0 * 128.0, || unsafe { bare::bytes(turns) });
        println!("{{\"bare\": \"f32\", \"unit\": \"avx2\", \"gops\": {f32_peak:.1}}}");
        println!("{{\"bare\": \"int8\", \"unit\": \"avx2\", \"gops\": {byte_peak:.1}}}");
    }
    for (name, outputs, inputs) in [
        ("minilm qkv", 1152, 384),
        ("minilm in", 1536, 384),
        ("minilm out", 384, 1536),
        ("base qkv", 2304, 768),
        ("base in", 3072, 768),
        ("base out", 768, 3072),
    ] {
        let noise = |n: usize| -> Vec<f32> {
            (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0).collect()
        };
        let (weight, bias) = (noise(outputs * inputs), vec![0.0; outputs]);
        let (float, bytes) = (PackedWeight::new(&weight, outputs, inputs), ByteWeight::new(&weight, outputs, inputs));
        for rows in [10, 48] {
            let x = noise(rows * inputs);
            let mut y = vec![0.0; rows * outputs];
            let operations = 2.0 * (rows * outputs * inputs) as f64;
            let runs = (4e9 / operations) as usize + 2;
            for backend in Backend::available().into_iter().skip(1) {
                let gops = best(runs, operations, || {
                    float.multiply_on(backend, &x, &mut y, rows, Epilogue::Bias(&bias));
                });
                println!(
                    "{{\"product\": \"{name}\", \"rows\": {rows}, \"precision\": \"f32\", \"unit\": \"{}\", \"gops\": {gops:.1}}}",
                    backend.name()
                );
            }
            let mut packed = ByteRows::default();
            packed.fill(Backend::active(), &x, inputs);
            for unit in Unit::available().into_iter().skip(1) {
                let gops = best(runs, operations, || bytes.multiply_on(unit, &packed, &mut y, Epilogue::Bias(&bias)));
                println!(
                    "{{\"product\": \"{name}\", \"rows\": {rows}, \"precision\": \"int8\", \"unit\": \"{}\", \"gops\": {gops:.1}}}",
                    unit.name()
                );
            }
        }
    }
}
