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

/// Rows that stay in the first-level cache while two panels pass them take so many bytes at most: half of it.
const HELD: usize = 24 << 10;

/// Rows of a tile of sums that are finished together, and how often that is done for the four tiles of a part.
const CHUNK: usize = 8;
const CHUNKS: usize = 4 * ROWS / CHUNK;

/// Defines a product on one instruction: all rows by some panels. Pairs of tiles of rows meet pairs of panels; a last tile
/// alone meets four at a time. Rows stay in the first-level cache while panels pass, one behind the other as they lie:
/// the other way about, rows were fetched from 32 places for every pair of panels, and 384 of them took twice the
/// time of 48.
///
/// What is done to the sums of a part is done between the steps of the next, a little after each: tiles and vectors are
/// different units, and one after the other each waited for the other half of the time (of a part of 384 inputs).
macro_rules! product {
    ($(#[$doc:meta])* $name:ident, $instruction:literal, $sum:ty) => {
        $(#[$doc])*
        /// `finish` is given the first row, the panel and the sums of some rows, of every row and panel once.
        ///
        /// # Safety
        /// Tiles have the instruction; of rows, so many as fill whole tiles can be read, and the panels are there.
        #[inline(always)]
        pub(crate) unsafe fn $name(
            _tiles: &Configured,
            product: &Product,
            panels: Range<usize>,
            mut finish: impl FnMut(usize, usize, &[[$sum; 16]]),
        ) {
            /// One step of two tiles of rows by two panels, added to the sums in the first four tiles. The compiler has no
            /// use for tiles of its own, so they keep what they hold from one `asm!` to the next. Panels are read as what
            /// will not be read again soon, or they drive the rows out of the first-level cache: a tenth of the time.
            ///
            /// # Safety
            /// As above.
            #[inline(always)]
            unsafe fn two_by_two(x: [*const u8; 2], stride: usize, w: [*const u8; 2]) {
                // SAFETY: the caller's promise.
                unsafe {
                    asm!(
                        "tileloadd tmm4, [{x0} + {stride}]",
                        "tileloaddt1 tmm6, [{w0} + {group}]",
                        "tileloaddt1 tmm7, [{w1} + {group}]",
                        concat!($instruction, " tmm0, tmm4, tmm6"),
                        "tileloadd tmm5, [{x1} + {stride}]",
                        concat!($instruction, " tmm1, tmm4, tmm7"),
                        concat!($instruction, " tmm2, tmm5, tmm6"),
                        concat!($instruction, " tmm3, tmm5, tmm7"),
                        x0 = in(reg) x[0],
                        x1 = in(reg) x[1],
                        w0 = in(reg) w[0],
                        w1 = in(reg) w[1],
                        stride = in(reg) stride,
                        group = in(reg) 64usize,
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                        out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                        options(nostack, readonly),
                    );
                }
            }

            /// One step of one tile of rows by four panels: four sums that do not wait for each other.
            ///
            /// # Safety
            /// As above.
            #[inline(always)]
            unsafe fn one_by_four(x: *const u8, stride: usize, w: [*const u8; 4]) {
                // SAFETY: the caller's promise.
                unsafe {
                    asm!(
                        "tileloadd tmm4, [{x} + {stride}]",
                        "tileloadd tmm5, [{w0} + {group}]",
                        "tileloadd tmm6, [{w1} + {group}]",
                        concat!($instruction, " tmm0, tmm4, tmm5"),
                        "tileloadd tmm7, [{w2} + {group}]",
                        concat!($instruction, " tmm1, tmm4, tmm6"),
                        "tileloadd tmm5, [{w3} + {group}]",
                        concat!($instruction, " tmm2, tmm4, tmm7"),
                        concat!($instruction, " tmm3, tmm4, tmm5"),
                        x = in(reg) x,
                        w0 = in(reg) w[0],
                        w1 = in(reg) w[1],
                        w2 = in(reg) w[2],
                        w3 = in(reg) w[3],
                        stride = in(reg) stride,
                        group = in(reg) 64usize,
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                        out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                        options(nostack, readonly),
                    );
                }
            }

            let &Product { x, stride, rows, w, steps } = product;
            if steps == 0 {
                return;
            }
            // Sums of the part that is being finished, and of the one under way.
            let mut space = [const { MaybeUninit::<[Sums<$sum>; 4]>::uninit() }; 2];
            let [mut ready, mut next] = space.each_mut().map(|four| four.as_mut_ptr().cast::<Sums<$sum>>());
            let mut before: Option<Part> = None;
            let mut parts = Parts::new(rows, steps, panels.clone());
            loop {
                let part = parts.next();
                let (mut chunk, mut due) = (0, 0);
                let at = part.map(|part| {
                    zero();
                    // A panel beyond the last is read as the last, and what comes of it left.
                    let panel = |i: usize| w.wrapping_add((part.panel + i).min(panels.end - 1) * steps * 1024);
                    (part.tiles, x.wrapping_add(part.tile * ROWS * stride), [0, 1, 2, 3].map(panel))
                });
                for step in 0..steps {
                    if let Some((tiles, x, w)) = at {
                        let (x, w) = (x.wrapping_add(step * 64), w.map(|w| w.wrapping_add(step * 1024)));
                        // SAFETY: the caller's promise; the part is one of this product.
                        unsafe {
                            if tiles == 2 {
                                two_by_two([x, x.wrapping_add(ROWS * stride)], stride, [w[0], w[1]]);
                            } else {
                                one_by_four(x, stride, w);
                            }
                        }
                    }
                    due += CHUNKS;
                    while due >= steps {
                        due -= steps;
                        if let Some((tile, row, panel)) = before.map(|part| part.chunk(chunk))
                            && row < rows
                            && panel < panels.end
                        {
                            // SAFETY: the part before has left its sums there.
                            let sums = unsafe { &(*ready.add(tile)).0 };
                            finish(row, panel, &sums[row % ROWS..][..(rows - row).min(CHUNK)]);
                        }
                        chunk += 1;
                    }
                }
                before = part;
                if before.is_none() {
                    return;
                }
                // SAFETY: there is space for four tiles.
                unsafe { store(next.cast()) };
                (ready, next) = (next, ready);
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
#[derive(Clone, Copy)]
struct Part {
    /// The first tile of rows and how many: one or two.
    tile: usize,
    tiles: usize,
    /// The first of two panels, or of four. Some may lie beyond the last.
    panel: usize,
}

impl Part {
    /// Where some of its sums belong: the tile of sums, the first row, the panel.
    #[inline(always)]
    fn chunk(self, chunk: usize) -> (usize, usize, usize) {
        let tile = chunk / (ROWS / CHUNK);
        let across = 4 / self.tiles;
        (tile, (self.tile + tile / across) * ROWS + chunk % (ROWS / CHUNK) * CHUNK, self.panel + tile % across)
    }
}

/// The parts of a product in their order.
struct Parts {
    // Tiles of rows in all, and how many stay near while two panels pass them.
    tiles: usize,
    held: usize,
    // Panels in all, and how many pass all rows before the next begin.
    panels: Range<usize>,
    near: usize,
    // The first of the tiles and of the panels that are under way, and what comes next of them.
    base: usize,
    first: usize,
    tile: usize,
    panel: usize,
}

impl Parts {
    fn new(rows: usize, steps: usize, panels: Range<usize>) -> Self {
        // Whole fours, so that none but the last is cut.
        let near = (NEAR / (steps * 1024).max(1)).max(4) / 4 * 4;
        let held = (HELD / (2 * steps * 1024).max(1)).max(1) * 2;
        let tiles = rows.div_ceil(ROWS);
        Parts { tiles, held, near, base: 0, first: panels.start, tile: 0, panel: panels.start, panels }
    }

    #[inline(always)]
    fn next(&mut self) -> Option<Part> {
        if self.first >= self.panels.end || self.tiles == 0 {
            return None;
        }
        let part = Part { tile: self.tile, tiles: (self.tiles - self.tile).min(2), panel: self.panel };
        let panels = self.panels.end.min(self.first + self.near);
        // Pairs of tiles, or the last alone.
        let tiles = self.base + ((self.tiles - self.base) / 2 * 2).clamp(1, self.held);
        self.tile += part.tiles;
        if self.tile >= tiles {
            self.tile = self.base;
            self.panel += 4 / part.tiles;
        }
        if self.panel >= panels {
            (self.base, self.tile, self.panel) = (tiles, tiles, self.first);
        }
        if self.base >= self.tiles {
            (self.base, self.tile, self.first, self.panel) = (0, 0, panels, panels);
        }
        Some(part)
    }
}

/// Empties the four tiles of sums.
#[inline(always)]
fn zero() {
    // SAFETY: only products call it, which have tiles; it changes nothing but them.
    unsafe {
        asm!(
            "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            options(nomem, nostack),
        );
    }
}

/// Puts the four tiles of sums one behind the other.
///
/// # Safety
/// There is space for 4,096 bytes.
#[inline(always)]
unsafe fn store(to: *mut u8) {
    // SAFETY: the caller's promise; only products call it, which have tiles.
    unsafe {
        asm!(
            "tilestored [{to} + {group}], tmm0",
            "tilestored [{to} + {group} + 1024], tmm1",
            "tilestored [{to} + {group} + 2048], tmm2",
            "tilestored [{to} + {group} + 3072], tmm3",
            to = in(reg) to,
            group = in(reg) 64usize,
            options(nostack),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_meets_every_panel_once() {
        for (rows, steps) in [(1usize, 1), (15, 12), (16, 13), (17, 12), (32, 48), (33, 96), (250, 24), (449, 200)] {
            for panels in [0..0, 0..1, 0..2, 3..6, 2..6, 1..8, 0..24] {
                let whole = rows.next_multiple_of(2 * ROWS);
                let mut met = vec![0; whole * 24];
                let mut parts = Parts::new(rows, steps, panels.clone());
                while let Some(part) = parts.next() {
                    for (_, row, panel) in (0..CHUNKS).map(|chunk| part.chunk(chunk)) {
                        for row in row..row + CHUNK {
                            if panel < panels.end {
                                met[row * 24 + panel] += 1;
                            }
                        }
                    }
                }
                for (at, met) in met.into_iter().enumerate().take(rows * 24) {
                    let expected = usize::from(panels.contains(&(at % 24)));
                    assert_eq!(met, expected, "{rows} rows, {steps} steps, panels {panels:?}, {at}");
                }
            }
        }
    }
}
