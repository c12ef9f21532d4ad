//! AMX: whether it may be used, and its tiles. By `asm!`, since the intrinsics are not stable.
//!
//! All eight tiles are configured as sixteen rows of 64 bytes. A configuration belongs to the thread; it is set for one
//! product and released after it, so that a thread that goes on to other work carries no tiles through its switches.

use std::arch::asm;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::OnceLock;

/// Rows of a tile.
pub(crate) const ROWS: usize = 16;

/// What this CPU's tiles multiply.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tiles {
    /// Bytes.
    pub int8: bool,
    /// `bf16`.
    pub bf16: bool,
}

/// Asked once: the CPU, the system, and the system's leave for this process.
pub(crate) fn tiles() -> Tiles {
    static FOUND: OnceLock<Tiles> = OnceLock::new();
    *FOUND.get_or_init(find)
}

fn find() -> Tiles {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    if cfg!(not(target_os = "linux")) || __cpuid(0).eax < 7 {
        return Tiles::default();
    }
    // Leaf 1, ECX bit 27: the system uses XSAVE, so XGETBV may be asked. Some virtual machines show leaf 0x1D as zero
    // though tiles work: what palette 1 is, is written down, and the leaf is not asked.
    let saves = __cpuid(1).ecx & (1 << 27) != 0;
    let features = __cpuid_count(7, 0).edx;
    if !saves || features & (1 << 24) == 0 {
        return Tiles::default();
    }
    let (low, _high): (u32, u32);
    // SAFETY: the CPU was seen to have XGETBV; it reads a register.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") _high, options(nomem, nostack)) };
    const TILE_STATE: u32 = 0b11 << 17;
    if low & TILE_STATE != TILE_STATE || !permitted() {
        return Tiles::default();
    }
    Tiles { int8: features & (1 << 25) != 0, bf16: features & (1 << 22) != 0 }
}

/// Asks Linux for the tile registers' space: `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`.
fn permitted() -> bool {
    let result: isize;
    // SAFETY: the call changes nothing but this process's leave to use tiles; on refusal it returns an error.
    unsafe {
        asm!("syscall", inout("rax") 158isize => result, in("rdi") 0x1023, in("rsi") 18,
            out("rcx") _, out("r11") _, options(nostack));
    }
    result == 0
}

/// Tiles in use by this thread; released when dropped.
pub(crate) struct Configured(());

impl Configured {
    /// # Safety
    /// `tiles` has said that there are tiles.
    pub(crate) unsafe fn new() -> Self {
        #[repr(C, align(64))]
        struct Configuration {
            palette: u8,
            start: u8,
            reserved: [u8; 14],
            row_bytes: [u16; 16],
            rows: [u8; 16],
        }
        let mut configuration =
            Configuration { palette: 1, start: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        configuration.row_bytes[..8].fill(64);
        configuration.rows[..8].fill(ROWS as u8);
        // SAFETY: the caller's promise; 64 bytes are read.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &configuration, options(nostack, readonly)) };
        Configured(())
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        // SAFETY: tiles are there, or there were no `Configured`.
        unsafe { asm!("tilerelease", options(nomem, nostack)) };
    }
}

/// Sums of one tile.
#[repr(align(64))]
struct Sums<T>([[T; 16]; ROWS]);

/// Rows by panels: where they lie.
pub(crate) struct Product {
    /// Rows of `steps` times 64 bytes, each `stride` bytes after the last.
    pub x: *const u8,
    pub stride: usize,
    pub rows: usize,
    /// Panels of `steps` times 1,024 bytes, one behind the other.
    pub w: *const u8,
    pub steps: usize,
}

/// Panels that are read again for every pair of tiles of rows take so many bytes at most: half of a second-level cache.
const NEAR: usize = 1 << 20;

/// Defines a product on one instruction: all rows by some panels. Pairs of tiles of rows meet pairs of panels; a last tile
/// alone meets four at a time. Rows stay in the first-level cache while panels pass, one behind the other as they lie:
/// the other way about, rows were fetched from 32 places for every pair of panels, and 384 of them took twice the
/// time of 48.
macro_rules! product {
    ($(#[$doc:meta])* $name:ident, $instruction:literal, $sum:ty) => {
        $(#[$doc])*
        /// `finish` is given the first row, the panel and the sums of every tile; rows beyond the last are to be left.
        ///
        /// # Safety
        /// Tiles have the instruction; of rows, so many as fill whole tiles can be read, and the panels are there.
        #[inline(always)]
        pub(crate) unsafe fn $name(
            _tiles: &Configured,
            product: &Product,
            panels: Range<usize>,
            mut finish: impl FnMut(usize, usize, &[[$sum; 16]; ROWS]),
        ) {
            /// Two tiles of rows by two panels.
            ///
            /// # Safety
            /// As above; `steps` is not 0.
            #[inline(always)]
            unsafe fn two_by_two(x: *const u8, stride: usize, w: [*const u8; 2], steps: usize, sums: *mut Sums<$sum>) {
                // SAFETY: the caller's promise.
                unsafe {
                    asm!(
                        "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                        "2:",
                        "tileloadd tmm4, [{x0} + {stride}]",
                        "tileloadd tmm6, [{w0} + {group}]",
                        "tileloadd tmm7, [{w1} + {group}]",
                        concat!($instruction, " tmm0, tmm4, tmm6"),
                        "tileloadd tmm5, [{x1} + {stride}]",
                        concat!($instruction, " tmm1, tmm4, tmm7"),
                        concat!($instruction, " tmm2, tmm5, tmm6"),
                        concat!($instruction, " tmm3, tmm5, tmm7"),
                        "add {x0}, 64", "add {x1}, 64", "add {w0}, 1024", "add {w1}, 1024",
                        "dec {n}",
                        "jnz 2b",
                        "tilestored [{to} + {group}], tmm0",
                        "tilestored [{to} + {group} + 1024], tmm1",
                        "tilestored [{to} + {group} + 2048], tmm2",
                        "tilestored [{to} + {group} + 3072], tmm3",
                        x0 = inout(reg) x => _,
                        x1 = inout(reg) x.add(ROWS * stride) => _,
                        w0 = inout(reg) w[0] => _,
                        w1 = inout(reg) w[1] => _,
                        n = inout(reg) steps => _,
                        stride = in(reg) stride,
                        group = in(reg) 64usize,
                        to = in(reg) sums,
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                        out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                        options(nostack),
                    );
                }
            }

            /// One tile of rows by four panels: four sums that do not wait for each other.
            ///
            /// # Safety
            /// As above.
            #[inline(always)]
            unsafe fn one_by_four(x: *const u8, stride: usize, w: [*const u8; 4], steps: usize, sums: *mut Sums<$sum>) {
                // SAFETY: the caller's promise.
                unsafe {
                    asm!(
                        "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                        "2:",
                        "tileloadd tmm4, [{x} + {stride}]",
                        "tileloadd tmm5, [{w0} + {group}]",
                        "tileloadd tmm6, [{w1} + {group}]",
                        concat!($instruction, " tmm0, tmm4, tmm5"),
                        "tileloadd tmm7, [{w2} + {group}]",
                        concat!($instruction, " tmm1, tmm4, tmm6"),
                        "tileloadd tmm5, [{w3} + {group}]",
                        concat!($instruction, " tmm2, tmm4, tmm7"),
                        concat!($instruction, " tmm3, tmm4, tmm5"),
                        "add {x}, 64", "add {w0}, 1024", "add {w1}, 1024", "add {w2}, 1024", "add {w3}, 1024",
                        "dec {n}",
                        "jnz 2b",
                        "tilestored [{to} + {group}], tmm0",
                        "tilestored [{to} + {group} + 1024], tmm1",
                        "tilestored [{to} + {group} + 2048], tmm2",
                        "tilestored [{to} + {group} + 3072], tmm3",
                        x = inout(reg) x => _,
                        w0 = inout(reg) w[0] => _,
                        w1 = inout(reg) w[1] => _,
                        w2 = inout(reg) w[2] => _,
                        w3 = inout(reg) w[3] => _,
                        n = inout(reg) steps => _,
                        stride = in(reg) stride,
                        group = in(reg) 64usize,
                        to = in(reg) sums,
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                        out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                        options(nostack),
                    );
                }
            }

            let &Product { x, stride, rows, w, steps } = product;
            let mut sums = [const { MaybeUninit::<Sums<$sum>>::uninit() }; 4];
            let sums = sums.as_mut_ptr().cast::<Sums<$sum>>();
            // SAFETY: the caller's promise; sums are read where a product has put them.
            unsafe {
                let row = |tile: usize| x.add(tile * ROWS * stride);
                // A panel beyond the last is read as the last, and what comes of it left.
                let panel = |p: usize| w.add(p.min(panels.end - 1) * steps * 1024);
                walk(rows, steps, panels.clone(), |part| {
                    if part.tiles == 2 {
                        let w = [panel(part.panel), panel(part.panel + 1)];
                        two_by_two(row(part.tile), stride, w, steps, sums);
                    } else {
                        let w = [0, 1, 2, 3].map(|i| panel(part.panel + i));
                        one_by_four(row(part.tile), stride, w, steps, sums);
                    }
                    let across = 4 / part.tiles;
                    for k in 0..4 {
                        let p = part.panel + k % across;
                        if p < panels.end {
                            finish((part.tile + k / across) * ROWS, p, &(*sums.add(k)).0);
                        }
                    }
                });
            }
        }
    };
}

product! {
    /// Unsigned bytes by signed ones, summed as whole numbers.
    bytes, "tdpbusd", i32
}
product! {
    /// Pairs of `bf16`, summed as `f32`.
    halves, "tdpbf16ps", f32
}

/// Four products of tiles: two tiles of rows by two panels, or one by four.
struct Part {
    /// The first tile of rows and how many: one or two.
    tile: usize,
    tiles: usize,
    /// The first of two panels, or of four. Some may lie beyond the last.
    panel: usize,
}

/// The order of a product.
#[inline(always)]
fn walk(rows: usize, steps: usize, panels: Range<usize>, mut each: impl FnMut(Part)) {
    if steps == 0 {
        return;
    }
    // Whole fours, so that none but the last is cut.
    let near = (NEAR / (steps * 1024)).max(4) / 4 * 4;
    let tiles = rows.div_ceil(ROWS);
    for first in panels.clone().step_by(near) {
        let end = panels.end.min(first + near);
        for tile in (0..tiles).step_by(2) {
            let tiles = (tiles - tile).min(2);
            for panel in (first..end).step_by(4 / tiles) {
                each(Part { tile, tiles, panel });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tile_of_rows_meets_every_panel_once() {
        for (rows, steps) in [(1usize, 1), (15, 12), (16, 13), (17, 12), (32, 48), (33, 96), (250, 24), (449, 200)] {
            for panels in [0..1, 0..2, 3..6, 2..6, 1..8, 0..24] {
                let mut met = vec![0; rows.div_ceil(ROWS) * 24];
                walk(rows, steps, panels.clone(), |part| {
                    for tile in part.tile..part.tile + part.tiles {
                        for panel in part.panel..(part.panel + 4 / part.tiles).min(panels.end) {
                            met[tile * 24 + panel] += 1;
                        }
                    }
                });
                for (at, met) in met.into_iter().enumerate() {
                    let expected = usize::from(panels.contains(&(at % 24)));
                    assert_eq!(met, expected, "{rows} rows, {steps} steps, panels {panels:?}, {at}");
                }
            }
        }
    }
}
