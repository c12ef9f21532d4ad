// The first product of the feed-forward part with its activation, for Hopper only: wgmma feeds its tensor cores from shared
// memory. Older chips do not have wgmma, and newer ones dropped it.
//
// Appended to kernels.cu; sm_90a. y[rows, OUTPUTS] = activate(x[rows, INPUTS] W[OUTPUTS, INPUTS]^T + bias), f32 sums. The
// value is rounded to 16 bits before the activation, as when cuBLASLt multiplies and the kernel `activation` follows: both
// give the same bits. At 16,384 rows of BERT-base it takes 140 us on an H200; cuBLASLt and `activation` take 167. Without an
// activation the same loop is no faster than cuBLASLt, so cuBLASLt does the other products.
//
// A block stays on its multiprocessor and processes tile after tile of 128 x 256. It has three groups of 128 threads:
//   two sum      64 x 256 each, 128 sums per thread; they add the bias, round, and store into shared memory
//   one serves   its first warp keeps loads of STAGES steps of 64 inputs into shared memory in flight; the other three warps
//                apply the activation to a stored tile and write it to y, while the next tile is summed
// If the summing threads applied the activation, it would take as much time as the sums at 768 inputs (two special functions
// per element). Two neighbouring blocks (a cluster) share the weights: each loads half of them for both. Without that the
// second-level cache cannot keep up (it would need 48 bytes per clock and multiprocessor, and gives about 38).

#define TILE_ROWS 128
#define TILE_COLUMNS 256
#define STEP 64            // inputs of a stage: rows of 128 bytes, the swizzle's width
#define STAGES 3
#define X_BYTES (TILE_ROWS * STEP * 2)
#define W_BYTES (TILE_COLUMNS * STEP * 2)
#define STAGE_BYTES (X_BYTES + W_BYTES)
#define OUT_PITCH (TILE_COLUMNS * 2 + 16)  // 16 more than a row, so that eight rows of a matrix lie in different banks
#define OUT_BYTES (TILE_ROWS * OUT_PITCH)
#define PAIR 2             // blocks of a cluster
#define FINISHERS 96       // threads that apply the activation
#define AT_ONCE 4          // rows per step of a finishing warp: with a single row it waits for shared memory, which is busy
// The host allocates STAGES * STAGE_BYTES + OUT_BYTES + 2 * OUTPUTS + 1280 bytes: stages, tile, bias; alignment, barriers.

struct __align__(128) Map {
    char bytes[128];
};

__device__ __forceinline__ u32 shared_at(const void *p) {
    u32 at;
    asm("{.reg .u64 a; cvta.to.shared.u64 a, %1; cvt.u32.u64 %0, a;}" : "=r"(at) : "l"(p));
    return at;
}

__device__ __forceinline__ void barrier_init(u32 at, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_expect(u32 at, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_arrive(u32 at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

// Arrives at the same barrier of another block of the cluster. The freed memory was read by the tensor cores, which have
// finished. No other accesses need an order, and a fence over the cluster costs as much as a step.
__device__ __forceinline__ void barrier_arrive_at(u32 at, u32 block) {
    asm volatile(
        "{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [there];}" ::
            "r"(at),
        "r"(block)
        : "memory");
}

__device__ __forceinline__ void barrier_wait(u32 at, u32 parity) {
    asm volatile(
        "{.reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra over;\n"
        "bra again;\n"
        "over: }" ::"r"(at),
        "r"(parity)
        : "memory");
}

// Loads a box of a matrix into shared memory; `blocks` is a mask of the cluster's blocks that get it, at the same address.
__device__ __forceinline__ void fetch(u32 to, const Map *map, int column, int row, u32 barrier, u16 blocks) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(blocks)
        : "memory");
}

__device__ __forceinline__ void fetch_own(u32 to, const Map *map, int column, int row, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
        "l"(map), "r"(column), "r"(row), "r"(barrier)
        : "memory");
}

__device__ __forceinline__ u32 load_word(u32 at) {
    u32 v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
}

// Loads rows of a summed tile.
__device__ __forceinline__ void take(uint4 to[AT_ONCE], u32 at) {
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++)
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[i].x), "=r"(to[i].y), "=r"(to[i].z), "=r"(to[i].w)
                     : "r"(at + i * OUT_PITCH)
                     : "memory");
}

// Descriptor of rows of 128 bytes for the tensor cores, swizzled in groups of eight.
__device__ __forceinline__ u64 described(u32 at) {
    return (u64)((at & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

#define WGMMA_FENCE() asm volatile("wgmma.fence.sync.aligned;" ::: "memory")
#define WGMMA_COMMIT() asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory")
#define WGMMA_WAIT(n) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory")
#if BF16
#define WGMMA "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16"
#else
#define WGMMA "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16"
#endif

// d[64 x 256 of the group] (+)= x[64, 16] w[256, 16]^T
__device__ __forceinline__ void wgmma(float d[128], u64 x, u64 w, int add) {
    asm volatile(
        "{.reg .pred add; setp.ne.b32 add, %130, 0;\n" WGMMA
        " {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
        "}, %128, %129, add, 1, 1, 0, 0;}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
          "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
          "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
          "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
          "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]),
          "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]),
          "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
          "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
          "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]),
          "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
          "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]),
          "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
          "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]),
          "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
          "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]),
          "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
          "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]),
          "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
          "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]),
          "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),
          "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]),
          "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
          "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]),
          "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
        : "l"(x), "l"(w), "r"(add));
}

template <int INPUTS, int OUTPUTS>
__device__ __forceinline__ void multiply(const Map *x_map, const Map *w_map, const u16 *bias, u16 *y, int rows) {
    extern __shared__ char memory[];
    const u32 base = (shared_at(memory) + 1023) & ~1023u;
    const u32 out = base + STAGES * STAGE_BYTES;
    const u32 biases = out + OUT_BYTES, full = biases + 2 * OUTPUTS, empty = full + 8 * STAGES, laid = empty + 8 * STAGES,
              taken = laid + 8;
    const int group = threadIdx.x / 128, warp = threadIdx.x % 128 / WARP, lane = threadIdx.x % WARP;
    u32 block;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(block));
    for (int at = threadIdx.x; at < OUTPUTS / 2; at += 384)
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(biases + 4 * at), "r"(((const u32 *)bias)[at]) : "memory");
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(full + 8 * s, 1);
            barrier_init(empty + 8 * s, 2 * PAIR);  // both summing groups of every block of the cluster
        }
        barrier_init(laid, 256);
        barrier_init(taken, FINISHERS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");

    // A cluster takes PAIR tiles of rows, one per block, and one tile of columns. It iterates over columns first, so that the
    // rows of x are loaded again while they are in the second-level cache.
    const int columns = OUTPUTS / TILE_COLUMNS, steps = INPUTS / STEP;
    const int tiles = (rows + PAIR * TILE_ROWS - 1) / (PAIR * TILE_ROWS) * columns;
    const int first = blockIdx.x / PAIR, apart = gridDim.x / PAIR;

    if (group == 0 && warp == 0) {
        if (lane == 0) {
            int stage = 0, turn = 0;
            for (int tile = first; tile < tiles; tile += apart) {
                const int row = (tile / columns * PAIR + block) * TILE_ROWS, column = tile % columns * TILE_COLUMNS;
#pragma unroll 1
                for (int step = 0; step < steps; step++) {
                    barrier_wait(empty + 8 * stage, turn ^ 1);
                    const u32 at = base + stage * STAGE_BYTES, barrier = full + 8 * stage;
                    barrier_expect(barrier, STAGE_BYTES);
                    fetch_own(at, x_map, step * STEP, row, barrier);
                    const int part = block * (TILE_COLUMNS / PAIR);
                    fetch(at + X_BYTES + part * STEP * 2, w_map, step * STEP, column + part, barrier, (1 << PAIR) - 1);
                    if (++stage == STAGES) stage = 0, turn ^= 1;
                }
            }
        }
        __syncwarp();
    } else if (group == 0) {
        int turn = 0;
        for (int tile = first; tile < tiles; tile += apart) {
            const int row = (tile / columns * PAIR + block) * TILE_ROWS, column = tile % columns * TILE_COLUMNS;
            u16 *to = y + (size_t)row * OUTPUTS + column + lane * 8;
            barrier_wait(laid, turn);
            turn ^= 1;
            uint4 next[AT_ONCE];
            take(next, out + (warp - 1) * AT_ONCE * OUT_PITCH + lane * 16);
#pragma unroll 1
            for (int r = (warp - 1) * AT_ONCE; r < TILE_ROWS; r += 3 * AT_ONCE) {
                uint4 now[AT_ONCE];
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++) now[i] = next[i];
                if (r + 3 * AT_ONCE < TILE_ROWS) take(next, out + (r + 3 * AT_ONCE) * OUT_PITCH + lane * 16);
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++) {
                    float f[8];
                    unpack8(now[i], f);
#pragma unroll
                    for (int e = 0; e < 8; e++) f[e] = activate(f[e]);
                    if (row + r + i < rows) *(uint4 *)(to + (size_t)(r + i) * OUTPUTS) = pack8(f);
                }
            }
            barrier_arrive(taken);
        }
    } else {
        const int half = group - 1;
        // Address of this lane's row of a matrix. The matrices are rows 0-7 and 8-15, then the same rows of the next columns.
        const u32 to = out + (half * 64 + warp * 16 + lane % 16) * OUT_PITCH + lane / 16 * 16;
        int stage = 0, turn = 0, out_turn = 0;
        float d[128];
        for (int tile = first; tile < tiles; tile += apart) {
            const int column = tile % columns * TILE_COLUMNS;
#pragma unroll 1
            for (int step = 0; step < steps; step++) {
                barrier_wait(full + 8 * stage, turn);
                const u32 at = base + stage * STAGE_BYTES;
                u64 x = described(at + half * (X_BYTES / 2)), w = described(at + X_BYTES);
                WGMMA_FENCE();
#pragma unroll
                for (int k = 0; k < STEP / 16; k++) wgmma(d, x + 2 * k, w + 2 * k, step > 0 || k > 0);
                WGMMA_COMMIT();
                // When only this step's products are in flight, the previous step's are done: its stage is free.
                WGMMA_WAIT(1);
                if (step > 0 && threadIdx.x % 128 < PAIR)
                    barrier_arrive_at(empty + 8 * (stage == 0 ? STAGES - 1 : stage - 1), threadIdx.x % 128);
                if (++stage == STAGES) stage = 0, turn ^= 1;
            }
            WGMMA_WAIT(0);
            if (threadIdx.x % 128 < PAIR)
                barrier_arrive_at(empty + 8 * (stage == 0 ? STAGES - 1 : stage - 1), threadIdx.x % 128);
            barrier_wait(taken, out_turn ^ 1);
            out_turn ^= 1;
#pragma unroll
            for (int j = 0; j < 32; j += 2) {
                const u32 at = biases + 2 * (column + 8 * j + lane % 4 * 2);
                float2 b0 = unpack(load_word(at)), b1 = unpack(load_word(at + 16));
                const float *s = d + 4 * j;
                u32 r0 = pack(s[0] + b0.x, s[1] + b0.y), r1 = pack(s[2] + b0.x, s[3] + b0.y);
                u32 r2 = pack(s[4] + b1.x, s[5] + b1.y), r3 = pack(s[6] + b1.x, s[7] + b1.y);
                asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to + j * 16), "r"(r0),
                             "r"(r1), "r"(r2), "r"(r3)
                             : "memory");
            }
            barrier_arrive(laid);
        }
    }
    // A block's memory must stay valid while the other block may write to it or arrive at its barriers.
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

extern "C" __global__ void __cluster_dims__(PAIR, 1, 1) __launch_bounds__(384, 1)
feed_in(const __grid_constant__ Map x_map, const __grid_constant__ Map w_map, const u16 *bias, u16 *y, int rows) {
    multiply<HIDDEN, INNER>(&x_map, &w_map, bias, y, rows);
}
