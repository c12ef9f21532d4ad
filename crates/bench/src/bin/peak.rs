//! Peak speed of one core: bare chains of instructions, compared with the encoder's products.
//!
//!     cargo run --release -p micpq-bench --bin peak
//!
//! Prints one JSON object per line: G operations (multiplications and additions) per second of one thread, and the time of the
//! kernels between the products in nanoseconds per token. Each number is the best of many short runs: a run of a millisecond
//! fits between those of other programs.

use std::time::Instant;

use kernels::attention::{HalfScratch, Scores, Scratch, Shape, Tiled, attend, attend_rounded};
use kernels::bf16::{HalfRows, HalfWeight};
use kernels::dropout::{Rate, drop_row};
use kernels::gemm::{Epilogue, PackedWeight};
use kernels::int8::{ByteRows, ByteWeight};
use kernels::rows::add_layer_norm;
use kernels::{Backend, bf16, int8};

/// G operations per second, the best of `runs`.
fn best(runs: usize, operations: f64, mut f: impl FnMut()) -> f64 {
    f();
    (0..runs)
        .map(|_| {
            let start = Instant::now();
            f();
            operations / (start.elapsed().as_secs_f64()) / 1e9
        })
        .fold(0.0, f64::max)
}

#[cfg(target_arch = "x86_64")]
mod bare {
    use std::arch::asm;

    /// Independent chains of one instruction, one per register.
    macro_rules! chains {
        ($(#[$doc:meta])* $name:ident, $instruction:literal, $a:literal, $($register:tt)*) => {
            $(#[$doc])*
            ///
            /// # Safety
            /// The CPU has the instruction.
            pub unsafe fn $name(turns: usize) {
                // SAFETY: only registers are touched, and all of them are named.
                unsafe {
                    asm!(
                        "2:",
                        $(concat!($instruction, " ", $register, ", ", $a),)*
                        "dec {n}",
                        "jnz 2b",
                        n = inout(reg) turns => _,
                        $(out($register) _,)*
                        options(nomem, nostack),
                    );
                }
            }
        };
    }
    chains! {
        /// 12 x 16 operations per turn.
        fma, "vfmadd231ps", "ymm14, ymm15",
        "ymm0" "ymm1" "ymm2" "ymm3" "ymm4" "ymm5" "ymm6" "ymm7" "ymm8" "ymm9" "ymm10" "ymm11"
    }
    chains! {
        /// 12 x 32 operations per turn.
        wide_fma, "vfmadd231ps", "zmm14, zmm15",
        "zmm0" "zmm1" "zmm2" "zmm3" "zmm4" "zmm5" "zmm6" "zmm7" "zmm8" "zmm9" "zmm10" "zmm11"
    }
    chains! {
        /// 12 x 128 operations per turn.
        vnni, "vpdpbusd", "zmm14, zmm15",
        "zmm0" "zmm1" "zmm2" "zmm3" "zmm4" "zmm5" "zmm6" "zmm7" "zmm8" "zmm9" "zmm10" "zmm11"
    }
    chains! {
        /// 12 x 64 operations per turn.
        pairs, "vdpbf16ps", "zmm14, zmm15",
        "zmm0" "zmm1" "zmm2" "zmm3" "zmm4" "zmm5" "zmm6" "zmm7" "zmm8" "zmm9" "zmm10" "zmm11"
    }
    chains! {
        /// 6 x 32,768 operations per turn. Tiles must be configured.
        byte_tiles, "tdpbusd", "tmm6, tmm7", "tmm0" "tmm1" "tmm2" "tmm3" "tmm4" "tmm5"
    }
    chains! {
        /// 6 x 16,384 operations per turn. Tiles must be configured.
        half_tiles, "tdpbf16ps", "tmm6, tmm7", "tmm0" "tmm1" "tmm2" "tmm3" "tmm4" "tmm5"
    }

    /// Runs `f` with all tiles configured as sixteen rows of 64 bytes of zeros.
    ///
    /// # Safety
    /// The CPU has tiles and the process has permission to use them.
    pub unsafe fn with_tiles<T>(f: impl FnOnce() -> T) -> T {
        #[repr(align(64))]
        struct Configuration([u8; 64]);
        let mut configuration = Configuration([0; 64]);
        configuration.0[0] = 1;
        for tile in 0..8 {
            configuration.0[16 + 2 * tile] = 64;
            configuration.0[48 + tile] = 16;
        }
        // SAFETY: the caller's promise; 64 bytes are read.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const configuration, options(nostack, readonly)) };
        let result = f();
        // SAFETY: as above.
        unsafe { asm!("tilerelease", options(nomem, nostack)) };
        result
    }

    /// Four times the instructions of the int8 product for 64 multiplications and additions: 4 x 128 operations per turn.
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

/// Speed of bare chains of this CPU's instructions.
#[cfg(target_arch = "x86_64")]
fn bare_chains() {
    let print = |precision: &str, unit: &str, gops: f64| {
        println!("{{\"bare\": \"{precision}\", \"unit\": \"{unit}\", \"gops\": {gops:.1}}}");
    };
    let turns = 100_000;
    let chain = |operations: usize, f: unsafe fn(usize)| {
        // SAFETY: called only for instructions that the CPU was seen to have.
        best(300, (turns * operations) as f64, || unsafe { f(turns) })
    };
    let (bytes, halves) = (int8::Unit::available(), bf16::Unit::available());
    if Backend::available().contains(&Backend::Avx2) {
        print("f32", "avx2", chain(12 * 16, bare::fma));
        print("int8", "avx2", chain(4 * 128, bare::bytes));
    }
    if Backend::available().contains(&Backend::Avx512) {
        print("f32", "avx512", chain(12 * 32, bare::wide_fma));
    }
    if bytes.contains(&int8::Unit::Vnni) {
        print("int8", "vnni", chain(12 * 128, bare::vnni));
    }
    if halves.contains(&bf16::Unit::Pairs) {
        print("bf16", "avx512bf16", chain(12 * 64, bare::pairs));
    }
    let tiles = |operations: usize, f: unsafe fn(usize)| {
        // SAFETY: called only for instructions that the CPU was seen to have.
        best(100, (5_000 * operations) as f64, || unsafe { bare::with_tiles(|| f(5_000)) })
    };
    if bytes.contains(&int8::Unit::Amx) {
        print("int8", "amx", tiles(6 * 32_768, bare::byte_tiles));
    }
    if halves.contains(&bf16::Unit::Amx) {
        print("bf16", "amx", tiles(6 * 16_384, bare::half_tiles));
    }
}

fn noise(n: usize) -> Vec<f32> {
    (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0).collect()
}

/// Every product of both encoders, on every unit.
fn products() {
    for (name, outputs, inputs) in [
        ("minilm qkv", 1152, 384),
        ("minilm in", 1536, 384),
        ("minilm out", 384, 1536),
        ("base qkv", 2304, 768),
        ("base in", 3072, 768),
        ("base out", 768, 3072),
    ] {
        let (weight, bias) = (noise(outputs * inputs), vec![0.0; outputs]);
        let float = PackedWeight::new(&weight, outputs, inputs);
        let (bytes, halves) = (ByteWeight::new(&weight, outputs, inputs), HalfWeight::new(&weight, outputs, inputs));
        for rows in [10, 48, 64, 384] {
            let x = noise(rows * inputs);
            let mut y = vec![0.0; rows * outputs];
            let operations = 2.0 * (rows * outputs * inputs) as f64;
            let runs = (2e9 / operations) as usize + 2;
            let print = |precision: &str, unit: &str, gops: f64| {
                println!(
                    "{{\"product\": \"{name}\", \"rows\": {rows}, \"precision\": \"{precision}\", \"unit\": \"{unit}\", \"gops\": {gops:.1}}}"
                );
            };
            for backend in Backend::available().into_iter().skip(1) {
                let run = || float.multiply_on(backend, &x, &mut y, rows, Epilogue::Bias(&bias));
                print("f32", backend.name(), best(runs, operations, run));
            }
            let mut packed = ByteRows::default();
            packed.fill(Backend::active(), &x, inputs);
            for unit in int8::Unit::available().into_iter().skip(1) {
                let run = || bytes.multiply_on(unit, &packed, &mut y, Epilogue::Bias(&bias));
                print("int8", unit.name(), best(runs, operations, run));
            }
            let mut packed = HalfRows::default();
            packed.fill(Backend::active(), &x, inputs);
            for unit in bf16::Unit::available().into_iter().skip(1) {
                let run =
                    || halves.multiply_panels_on(unit, 0..halves.panels(), &packed, &mut y, Epilogue::Bias(&bias));
                print("bf16", unit.name(), best(runs, operations, run));
            }
        }
    }
}

/// The kernels between the products, in nanoseconds per token of one layer: one sequence of 48 tokens.
fn rest() {
    let rows = 48;
    for (name, hidden, heads) in [("minilm", 384, 12), ("base", 768, 12)] {
        for backend in Backend::available().into_iter().skip(1) {
            let print = |what: &str, giga: f64| {
                println!(
                    "{{\"rest\": \"{name}\", \"what\": \"{what}\", \"unit\": \"{}\", \"ns\": {:.0}}}",
                    backend.name(),
                    1.0 / giga
                );
            };
            let tokens = rows as f64;
            let shape = Shape { heads, width: hidden / heads };
            let (qkv, mut out) = (noise(rows * 3 * hidden), vec![0.0; rows * hidden]);
            let mut scratch = Scratch::default();
            print(
                "attention",
                best(200, tokens, || attend(backend, &qkv, &mut out, shape, Scores::Plain, None, &mut scratch)),
            );
            let mask = Some((Rate::new(0.3), 1));
            print(
                "attention dropped",
                best(200, tokens, || attend(backend, &qkv, &mut out, shape, Scores::Plain, mask, &mut scratch)),
            );
            let (mut rounded, mut halves) = (qkv.clone(), HalfScratch::default());
            print(
                "attention bf16",
                best(200, tokens, || {
                    attend_rounded(backend, &mut rounded, &mut out, shape, Scores::Plain, None, &mut halves);
                }),
            );
            if let Some(tiled) = Tiled::new(backend, shape) {
                let mut rows = HalfRows::default();
                rows.fill(backend, &qkv, 3 * hidden);
                let run = || tiled.attend(&rows, 0, &mut out, shape, None, &mut halves);
                print("attention tiles", best(200, tokens, run));
            }
            let (scale, shift, more) = (vec![1.0; hidden], vec![0.0; hidden], noise(rows * hidden));
            print(
                "add, layer norm",
                best(200, tokens, || add_layer_norm(backend, &mut out, &more, &scale, &shift, 1e-12)),
            );
            let drop = || out.chunks_exact_mut(hidden).for_each(|row| drop_row(backend, row, 1, Rate::new(0.3)));
            print("dropout", best(200, tokens, drop));
            let (mut bytes, mut halves, wide) = (ByteRows::default(), HalfRows::default(), noise(rows * 4 * hidden));
            print("to bytes", best(200, tokens, || bytes.fill(backend, &more, hidden)));
            print("to bytes, wide", best(200, tokens, || bytes.fill(backend, &wide, 4 * hidden)));
            print("to bf16", best(200, tokens, || halves.fill(backend, &more, hidden)));
            print("to bf16, wide", best(200, tokens, || halves.fill(backend, &wide, 4 * hidden)));
            // One input: the time is that of the epilogue.
            let (edge, bias) = (PackedWeight::new(&noise(4 * hidden), 4 * hidden, 1), vec![0.0; 4 * hidden]);
            let (x, mut y) = (noise(rows), vec![0.0; rows * 4 * hidden]);
            print(
                "edge, bias",
                best(200, tokens, || edge.multiply_on(backend, &x, &mut y, rows, Epilogue::Bias(&bias))),
            );
            print(
                "edge, gelu",
                best(200, tokens, || edge.multiply_on(backend, &x, &mut y, rows, Epilogue::BiasGelu(&bias))),
            );
        }
    }
}

fn main() {
    #[cfg(target_arch = "x86_64")]
    bare_chains();
    products();
    rest();
}
