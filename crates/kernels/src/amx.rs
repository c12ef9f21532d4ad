//! AMX: whether it may be used, and its tiles. By `asm!`, since the intrinsics are not stable.
//!
//! All eight tiles are configured as sixteen rows of 64 bytes. A configuration belongs to the thread; it is set for one
//! product and released after it, so that a thread that goes on to other work carries no tiles through its switches.

use std::arch::asm;
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
pub(crate) struct Sums<T>(pub [[T; 16]; ROWS]);

/// Some tiles of rows and as many panels as are multiplied at once: two by two, one by four, or one by one.
pub(crate) struct Part {
    /// The first row and how many tiles.
    pub row: usize,
    pub tiles: usize,
    /// The first panel and how many.
    pub panel: usize,
    pub panels: usize,
}

/// Goes over all tiles of `rows` rows and some panels: pairs of tiles meet pairs of panels, which stay in the first-level cache
/// for all rows; a last tile alone meets four panels at a time.
#[inline(always)]
pub(crate) fn cover(rows: usize, panels: Range<usize>, mut each: impl FnMut(Part)) {
    let tiles = rows.div_ceil(ROWS);
    let paired = tiles / 2 * 2;
    // What is left over: a panel of an odd number, and rows of an odd number of tiles.
    for panel in panels.clone().step_by(2) {
        let both = panel + 1 < panels.end;
        for tile in (0..paired).step_by(2) {
            if both {
                each(Part { row: tile * ROWS, tiles: 2, panel, panels: 2 });
            } else {
                each(Part { row: tile * ROWS, tiles: 1, panel, panels: 1 });
                each(Part { row: (tile + 1) * ROWS, tiles: 1, panel, panels: 1 });
            }
        }
    }
    if tiles > paired {
        let mut panel = panels.start;
        while panel < panels.end {
            let n = if panels.end - panel >= 4 { 4 } else { 1 };
            each(Part { row: paired * ROWS, tiles: 1, panel, panels: n });
            panel += n;
        }
    }
}

/// Defines the products of two by two tiles, of one by four and of one by one for one instruction. A step is 64 bytes of every row and
/// sixteen groups of 64 bytes of every panel.
macro_rules! products {
    ($(#[$doc:meta])* $two:ident, $four:ident, $one:ident, $instruction:literal, $x:ty, $w:ty, $sum:ty) => {
        $(#[$doc])*
        /// Two tiles of rows by two of outputs: `sums[2 * rows + outputs] = x w`.
        ///
        /// # Safety
        /// Tiles are configured and have the instruction; `x` points at 32 rows of `steps` times 64 bytes, each `stride`
        /// bytes after the last, and each of `w` at a panel of `steps` times 1,024 bytes; `steps` is not 0.
        pub(crate) unsafe fn $two(x: *const $x, stride: usize, w: [*const $w; 2], steps: usize, sums: &mut [Sums<$sum>; 4]) {
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
                    x1 = inout(reg) x.byte_add(ROWS * stride) => _,
                    w0 = inout(reg) w[0] => _,
                    w1 = inout(reg) w[1] => _,
                    n = inout(reg) steps => _,
                    stride = in(reg) stride,
                    group = in(reg) 64usize,
                    to = in(reg) sums.as_mut_ptr(),
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        }

        $(#[$doc])*
        /// One tile of rows by four of outputs: four sums that do not wait for each other.
        ///
        /// # Safety
        /// As of the other, with 16 rows and four panels, each `panel` bytes after the last.
        pub(crate) unsafe fn $four(x: *const $x, stride: usize, w: *const $w, panel: usize, steps: usize, sums: &mut [Sums<$sum>; 4]) {
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
                    w0 = inout(reg) w => _,
                    w1 = inout(reg) w.byte_add(panel) => _,
                    w2 = inout(reg) w.byte_add(2 * panel) => _,
                    w3 = inout(reg) w.byte_add(3 * panel) => _,
                    n = inout(reg) steps => _,
                    stride = in(reg) stride,
                    group = in(reg) 64usize,
                    to = in(reg) sums.as_mut_ptr(),
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        }

        $(#[$doc])*
        /// One tile of rows by one of outputs.
        ///
        /// # Safety
        /// As of the other, with 16 rows and one panel.
        pub(crate) unsafe fn $one(x: *const $x, stride: usize, w: *const $w, steps: usize, sums: &mut Sums<$sum>) {
            // SAFETY: the caller's promise.
            unsafe {
                asm!(
                    "tilezero tmm0",
                    "2:",
                    "tileloadd tmm4, [{x} + {stride}]",
                    "tileloadd tmm6, [{w} + {group}]",
                    concat!($instruction, " tmm0, tmm4, tmm6"),
                    "add {x}, 64", "add {w}, 1024",
                    "dec {n}",
                    "jnz 2b",
                    "tilestored [{to} + {group}], tmm0",
                    x = inout(reg) x => _,
                    w = inout(reg) w => _,
                    n = inout(reg) steps => _,
                    stride = in(reg) stride,
                    group = in(reg) 64usize,
                    to = in(reg) sums,
                    out("tmm0") _, out("tmm4") _, out("tmm6") _,
                    options(nostack),
                );
            }
        }
    };
}

products! {
    /// Unsigned bytes by signed ones, summed as whole numbers.
    bytes_2x2, bytes_1x4, bytes_1x1, "tdpbusd", u8, i8, i32
}
products! {
    /// Pairs of `bf16`, summed as `f32`.
    halves_2x2, halves_1x4, halves_1x1, "tdpbf16ps", u16, u16, f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tile_of_rows_meets_every_panel_once() {
        for rows in [1usize, 15, 16, 17, 32, 33, 48, 49, 80] {
            for panels in [0..1, 0..2, 3..6, 2..6, 1..8, 0..24] {
                let mut met = vec![0; rows.div_ceil(ROWS) * 24];
                cover(rows, panels.clone(), |part| {
                    assert!(matches!((part.tiles, part.panels), (2, 2) | (1, 4) | (1, 1)));
                    for tile in 0..part.tiles {
                        for panel in part.panel..part.panel + part.panels {
                            met[(part.row / ROWS + tile) * 24 + panel] += 1;
                        }
                    }
                });
                for (at, met) in met.into_iter().enumerate() {
                    assert_eq!(met, usize::from(panels.contains(&(at % 24))), "{rows} rows, panels {panels:?}, {at}");
                }
            }
        }
    }
}
