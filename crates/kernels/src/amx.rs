//! AMX: detection, and products on its tiles. Written with `asm!`, since the intrinsics are not stable.
//!
//! All eight tiles are configured as sixteen rows of 64 bytes. The configuration belongs to the thread. It is set for one
//! product and released after it, so that later context switches of the thread do not save tiles.

use std::arch::asm;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::OnceLock;

/// Rows of a tile.
pub(crate) const ROWS: usize = 16;

/// Types that this CPU's tiles multiply.
#[derive(Clone, Copy, Default)]
pub(crate) struct TileSupport {
    pub int8: bool,
    pub bf16: bool,
}

/// Support of the CPU and the system, with the system's permission for this process; detected once.
pub(crate) fn tile_support() -> TileSupport {
    static DETECTED: OnceLock<TileSupport> = OnceLock::new();
    *DETECTED.get_or_init(detect)
}

fn detect() -> TileSupport {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    if cfg!(not(target_os = "linux")) || __cpuid(0).eax < 7 {
        return TileSupport::default();
    }
    // Leaf 1, ECX bit 27 (OSXSAVE): the system uses XSAVE, so XGETBV is allowed. Leaf 0x1D is not read: some virtual
    // machines report it as zero although tiles work, and palette 1 is specified by the architecture.
    let osxsave = __cpuid(1).ecx & (1 << 27) != 0;
    let features = __cpuid_count(7, 0).edx;
    if !osxsave || features & (1 << 24) == 0 {
        return TileSupport::default();
    }
    let (low, _high): (u32, u32);
    // SAFETY: the CPU was seen to have XGETBV; it reads a register.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") _high, options(nomem, nostack)) };
    const TILE_STATE: u32 = 0b11 << 17;
    if low & TILE_STATE != TILE_STATE || !request_permission() {
        return TileSupport::default();
    }
    TileSupport { int8: features & (1 << 25) != 0, bf16: features & (1 << 22) != 0 }
}

/// Requests the use of the tile registers from Linux: `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`.
fn request_permission() -> bool {
    let result: isize;
    // SAFETY: the call changes nothing but this process's permission to use tiles; on refusal it returns an error.
    unsafe {
        asm!("syscall", inout("rax") 158isize => result, in("rdi") 0x1023, in("rsi") 18,
            out("rcx") _, out("r11") _, options(nostack));
    }
    result == 0
}

/// The tile configuration of this thread; released when dropped.
pub(crate) struct Configured(());

impl Configured {
    /// # Safety
    /// `tile_support` has reported tiles.
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
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const configuration, options(nostack, readonly)) };
        Configured(())
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        // SAFETY: `Configured` exists only where the CPU has tiles.
        unsafe { asm!("tilerelease", options(nomem, nostack)) };
    }
}

/// Sums of one tile.
#[repr(align(64))]
struct Sums<T>([[T; 16]; ROWS]);

/// Addresses and sizes of the operands of a product, rows by panels.
pub(crate) struct Product {
    /// Rows of `steps` times 64 bytes; `stride` is the distance from row to row in bytes.
    pub x: *const u8,
    pub stride: usize,
    pub rows: usize,
    /// Panels of `steps` times 1,024 bytes, contiguous.
    pub w: *const u8,
    pub steps: usize,
}

/// Budget of the panels that are read again for every pair of row tiles: half of a second-level cache.
const MAX_PANEL_BYTES: usize = 1 << 20;

/// Budget of the rows that stay in the first-level cache while two panels pass over them: half of that cache.
const MAX_ROW_BYTES: usize = 24 << 10;

/// Rows of a tile of sums that are finished together.
const CHUNK_ROWS: usize = 8;

/// Chunks of the four tiles of a part.
const CHUNKS: usize = 4 * ROWS / CHUNK_ROWS;

/// Defines a product on one instruction: all rows by a range of panels. Pairs of row tiles are multiplied by pairs of panels; a
/// single last tile is multiplied by four panels at a time. Rows stay in the first-level cache while the panels pass in
/// memory order. In the opposite order rows were fetched from 32 addresses for every pair of panels, and 384 rows took twice
/// as long per row as 48.
///
/// The sums of a part are finished between the steps of the next part, a few after each step: tiles and vectors are separate
/// execution units, and without the overlap each was idle half of the time (parts of 384 inputs).
macro_rules! product {
    ($(#[$doc:meta])* $name:ident, $instruction:literal, $sum:ty) => {
        $(#[$doc])*
        /// Calls `finish` with a first row, a panel and the sums of a chunk of rows; every row and panel comes once.
        ///
        /// # Safety
        /// The CPU's tiles have the instruction; rows can be read up to a whole number of tiles, and all `panels` exist.
        #[inline(always)]
        pub(crate) unsafe fn $name(
            _tiles: &Configured,
            product: &Product,
            panels: Range<usize>,
            mut finish: impl FnMut(usize, usize, &[[$sum; 16]]),
        ) {
            /// One step of two row tiles by two panels, added to the sums in the first four tiles. The compiler itself never
            /// uses tiles, so they keep their values from one `asm!` to the next. Panels are loaded with a non-temporal hint;
            /// without it they evict the rows from the first-level cache, which costs a tenth of the time.
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

            /// One step of one row tile by four panels: four independent sums.
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
            // Sums of the part that is being finished, and of the part that is being multiplied.
            let mut space = [const { MaybeUninit::<[Sums<$sum>; 4]>::uninit() }; 2];
            let [mut ready, mut next] = space.each_mut().map(|four| four.as_mut_ptr().cast::<Sums<$sum>>());
            let mut previous: Option<Part> = None;
            let mut parts = Parts::new(rows, steps, panels.clone());
            loop {
                let part = parts.next();
                let (mut chunk, mut due) = (0, 0);
                let at = part.map(|part| {
                    zero();
                    // A panel beyond the last is replaced by the last, and its sums are ignored.
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
                        if let Some((tile, row, panel)) = previous.map(|part| part.chunk(chunk))
                            && row < rows
                            && panel < panels.end
                        {
                            // SAFETY: the previous part has stored its sums there.
                            let sums = unsafe { &(*ready.add(tile)).0 };
                            finish(row, panel, &sums[row % ROWS..][..(rows - row).min(CHUNK_ROWS)]);
                        }
                        chunk += 1;
                    }
                }
                previous = part;
                if previous.is_none() {
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
    /// Unsigned bytes by signed bytes, summed as integers.
    bytes, "tdpbusd", i32
}
product! {
    /// Pairs of `bf16`, summed as `f32`.
    halves, "tdpbf16ps", f32
}

/// Four products of tiles: two row tiles by two panels, or one by four.
#[derive(Clone, Copy)]
struct Part {
    /// First row tile.
    tile: usize,
    /// Number of row tiles: one or two.
    tiles: usize,
    /// First of two or four panels. Some of them may lie beyond the last.
    panel: usize,
}

impl Part {
    /// Position of chunk number `chunk`: the tile of sums, the first row, the panel.
    #[inline(always)]
    fn chunk(self, chunk: usize) -> (usize, usize, usize) {
        let tile = chunk / (ROWS / CHUNK_ROWS);
        let across = 4 / self.tiles;
        (
            tile,
            (self.tile + tile / across) * ROWS + chunk % (ROWS / CHUNK_ROWS) * CHUNK_ROWS,
            self.panel + tile % across,
        )
    }
}

/// Iterator over the parts of a product.
struct Parts {
    // All row tiles, and the number that stays in the first-level cache.
    tiles: usize,
    tiles_per_pass: usize,
    // All panels, and the number that passes over all rows before the next panels.
    panels: Range<usize>,
    panels_per_pass: usize,
    // First row tile and first panel of the current pass.
    pass_tile: usize,
    pass_panel: usize,
    // Row tile and panel of the next part.
    tile: usize,
    panel: usize,
}

impl Parts {
    fn new(rows: usize, steps: usize, panels: Range<usize>) -> Self {
        // A multiple of four, so that only the last group of four is cut.
        let panels_per_pass = (MAX_PANEL_BYTES / (steps * 1024).max(1)).max(4) / 4 * 4;
        let tiles_per_pass = (MAX_ROW_BYTES / (2 * steps * 1024).max(1)).max(1) * 2;
        let tiles = rows.div_ceil(ROWS);
        let start = panels.start;
        Parts { tiles, tiles_per_pass, panels, panels_per_pass, pass_tile: 0, pass_panel: start, tile: 0, panel: start }
    }

    #[inline(always)]
    fn next(&mut self) -> Option<Part> {
        if self.pass_panel >= self.panels.end || self.tiles == 0 {
            return None;
        }
        let part = Part { tile: self.tile, tiles: (self.tiles - self.tile).min(2), panel: self.panel };
        let panels = self.panels.end.min(self.pass_panel + self.panels_per_pass);
        // Pairs of tiles, or the single last one.
        let tiles = self.pass_tile + ((self.tiles - self.pass_tile) / 2 * 2).clamp(1, self.tiles_per_pass);
        self.tile += part.tiles;
        if self.tile >= tiles {
            self.tile = self.pass_tile;
            self.panel += 4 / part.tiles;
        }
        if self.panel >= panels {
            (self.pass_tile, self.tile, self.panel) = (tiles, tiles, self.pass_panel);
        }
        if self.pass_tile >= self.tiles {
            (self.pass_tile, self.tile, self.pass_panel, self.panel) = (0, 0, panels, panels);
        }
        Some(part)
    }
}

/// Zeroes the four tiles of sums.
#[inline(always)]
fn zero() {
    // SAFETY: only products call it, and they have tiles; it changes nothing but the tiles.
    unsafe {
        asm!(
            "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            options(nomem, nostack),
        );
    }
}

/// Stores the four tiles of sums contiguously.
///
/// # Safety
/// There is space for 4,096 bytes.
#[inline(always)]
unsafe fn store(to: *mut u8) {
    // SAFETY: the caller's promise; only products call it, and they have tiles.
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
    fn parts_cover_every_row_and_panel_once() {
        for (rows, steps) in [(1usize, 1), (15, 12), (16, 13), (17, 12), (32, 48), (33, 96), (250, 24), (449, 200)] {
            for panels in [0..0, 0..1, 0..2, 3..6, 2..6, 1..8, 0..24] {
                let whole = rows.next_multiple_of(2 * ROWS);
                let mut counts = vec![0; whole * 24];
                let mut parts = Parts::new(rows, steps, panels.clone());
                while let Some(part) = parts.next() {
                    for (_, row, panel) in (0..CHUNKS).map(|chunk| part.chunk(chunk)) {
                        for row in row..row + CHUNK_ROWS {
                            if panel < panels.end {
                                counts[row * 24 + panel] += 1;
                            }
                        }
                    }
                }
                for (at, count) in counts.into_iter().enumerate().take(rows * 24) {
                    let expected = usize::from(panels.contains(&(at % 24)));
                    assert_eq!(count, expected, "{rows} rows, {steps} steps, panels {panels:?}, {at}");
                }
            }
        }
    }
}
