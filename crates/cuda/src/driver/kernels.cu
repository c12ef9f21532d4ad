// The kernels of the forward pass, without the matrix products; compiled at run time for one encoder and one GPU.
//
// Set by the host: HIDDEN, HEADS, WIDTH (of a head), INNER, BF16 (0: f16), ACTIVATION (0 erf GELU, 1 tanh GELU, 2 ReLU),
// EPSILON. States are 16-bit, every sum and every normalisation is f32. No header is included: the run-time compiler has
// none.

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define WARP 32
#define ALL 0xffffffffu
#define LEAST __int_as_float(0xff800000)  // minus infinity

// ---------------------------------------------------------------- 16-bit values, two per u32

#if BF16
__device__ __forceinline__ float2 unpack(u32 v) {
    return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
}
__device__ __forceinline__ u32 pack(float low, float high) {
    u32 v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    return v;
}
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
#else
__device__ __forceinline__ float2 unpack(u32 v) {
    float2 f;
    asm("{.reg .f16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}" : "=f"(f.x), "=f"(f.y) : "r"(v));
    return f;
}
__device__ __forceinline__ u32 pack(float low, float high) {
    u32 v;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    return v;
}
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
#endif

__device__ __forceinline__ void unpack8(uint4 v, float *out) {
    float2 a = unpack(v.x), b = unpack(v.y), c = unpack(v.z), d = unpack(v.w);
    out[0] = a.x, out[1] = a.y, out[2] = b.x, out[3] = b.y, out[4] = c.x, out[5] = c.y, out[6] = d.x, out[7] = d.y;
}

__device__ __forceinline__ uint4 pack8(const float *v) {
    return make_uint4(pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7]));
}

// Error of two units in the last place; zero for minus infinity.
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int i = 16; i; i >>= 1) v += __shfl_xor_sync(ALL, v, i);
    return v;
}

// ---------------------------------------------------------------- dropout: the CPU's function, bit for bit

struct Rate {
    u32 threshold;
    float scale;
};

// SplitMix64's finaliser over a Weyl step.
__device__ __forceinline__ u64 mix(u64 key, u64 with) {
    u64 z = key ^ ((with + 1) * 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

#define STRIDE 0x9E3779B9u

// Whether an element is not dropped; `place` is its index times STRIDE.
__device__ __forceinline__ bool stays(u32 place, u32 low, u32 high, u32 threshold) {
    u32 h = place ^ low;
    h = (h ^ (h >> 16)) * 0x85EBCA6Bu;
    h = (h ^ (h >> 13) ^ high) * 0xC2B2AE35u;
    return (h ^ (h >> 16)) >= threshold;
}

// Dropout keys of one view. One thread per token: row_keys[2 * LAYERS + 1, tokens] for the sites that drop states (embeddings, then
// attention and feed-forward of each layer), attention_keys[LAYERS, documents] for the probabilities.
extern "C" __global__ void keys(const uint2 *places, int tokens, int documents, int layers, u64 view,
                                const u64 *numbers, u64 *row_keys, u64 *attention_keys) {
    int token = blockIdx.x * blockDim.x + threadIdx.x;
    if (token >= tokens) return;
    uint2 place = places[token];  // document of the batch, position
    u64 document = mix(view, numbers[place.x]);
    row_keys[token] = mix(mix(document, 0), place.y);
    for (int l = 0; l < layers; l++) {
        u64 site = 1 + 3 * (u64)l;
        row_keys[(size_t)(1 + 2 * l) * tokens + token] = mix(mix(document, site + 1), place.y);
        row_keys[(size_t)(2 + 2 * l) * tokens + token] = mix(mix(document, site + 2), place.y);
        if (place.y == 0) attention_keys[(size_t)l * documents + place.x] = mix(document, site);
    }
}

// ---------------------------------------------------------------- rows: one warp per row, 8 values per lane and step

#define STEPS ((HIDDEN + 8 * WARP - 1) / (8 * WARP))

__device__ __forceinline__ bool inside(int step, int lane) {
    return HIDDEN % (8 * WARP) == 0 || (step * WARP + lane) * 8 < HIDDEN;
}

__device__ __forceinline__ void drop_row(float v[STEPS][8], int lane, u64 key, Rate rate) {
    u32 low = (u32)key, high = (u32)(key >> 32);
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        u32 at = (u32)((s * WARP + lane) * 8) * STRIDE;
#pragma unroll
        for (int e = 0; e < 8; e++) v[s][e] *= stays(at + e * STRIDE, low, high, rate.threshold) ? rate.scale : 0.f;
    }
}

// LayerNorm in f32, mean first as on the CPU.
__device__ __forceinline__ void normalise(float v[STEPS][8], int lane, const float *scale, const float *shift) {
    float sum = 0;
#pragma unroll
    for (int s = 0; s < STEPS; s++)
        if (inside(s, lane))
#pragma unroll
            for (int e = 0; e < 8; e++) sum += v[s][e];
    float mean = warp_sum(sum) / HIDDEN, squares = 0;
#pragma unroll
    for (int s = 0; s < STEPS; s++)
        if (inside(s, lane))
#pragma unroll
            for (int e = 0; e < 8; e++) v[s][e] -= mean, squares += v[s][e] * v[s][e];
    float inverse = rsqrtf(warp_sum(squares) / HIDDEN + EPSILON);
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        if (!inside(s, lane)) continue;
        int at = (s * WARP + lane) * 8;
        float4 a = *(const float4 *)(scale + at), b = *(const float4 *)(scale + at + 4);
        float4 c = *(const float4 *)(shift + at), d = *(const float4 *)(shift + at + 4);
        float w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}, o[8] = {c.x, c.y, c.z, c.w, d.x, d.y, d.z, d.w};
#pragma unroll
        for (int e = 0; e < 8; e++) v[s][e] = v[s][e] * inverse * w[e] + o[e];
    }
}

__device__ __forceinline__ void store_row(u16 *to, float v[STEPS][8], int lane) {
#pragma unroll
    for (int s = 0; s < STEPS; s++)
        if (inside(s, lane)) *(uint4 *)(to + (s * WARP + lane) * 8) = pack8(v[s]);
}

// states[tokens, HIDDEN] = dropout(LayerNorm(token embedding + position and type)).
template <bool DROP>
__device__ __forceinline__ void embed_row(const u32 *ids, const uint2 *places, const u16 *words, const float *positions,
                                          const float *scale, const float *shift, u16 *states, int tokens,
                                          const u64 *row_keys, Rate rate) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / WARP, lane = threadIdx.x % WARP;
    if (row >= tokens) return;
    const u16 *word = words + (size_t)ids[row] * HIDDEN;
    const float *position = positions + (size_t)places[row].y * HIDDEN;
    float v[STEPS][8];
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        if (!inside(s, lane)) continue;
        int at = (s * WARP + lane) * 8;
        unpack8(*(const uint4 *)(word + at), v[s]);
        float4 a = *(const float4 *)(position + at), b = *(const float4 *)(position + at + 4);
        v[s][0] += a.x, v[s][1] += a.y, v[s][2] += a.z, v[s][3] += a.w;
        v[s][4] += b.x, v[s][5] += b.y, v[s][6] += b.z, v[s][7] += b.w;
    }
    normalise(v, lane, scale, shift);
    if (DROP) drop_row(v, lane, row_keys[row], rate);
    store_row(states + (size_t)row * HIDDEN, v, lane);
}

extern "C" __global__ void __launch_bounds__(256)
embed(const u32 *ids, const uint2 *places, const u16 *words, const float *positions, const float *scale,
      const float *shift, u16 *states, int tokens, const u64 *row_keys, Rate rate) {
    embed_row<false>(ids, places, words, positions, scale, shift, states, tokens, row_keys, rate);
}

extern "C" __global__ void __launch_bounds__(256)
embed_drop(const u32 *ids, const uint2 *places, const u16 *words, const float *positions, const float *scale,
           const float *shift, u16 *states, int tokens, const u64 *row_keys, Rate rate) {
    embed_row<true>(ids, places, words, positions, scale, shift, states, tokens, row_keys, rate);
}

// to[row] = LayerNorm(from[residual_at[row]] + dropout(update[row])); the key of a row is row_keys[key_at[row]].
// A null `residual_at` or `key_at` means the row itself. With a null `residual_at`, `to` may be `from`.
template <bool DROP>
__device__ __forceinline__ void norm_row(const u16 *from, const u32 *residual_at, const u16 *update, u16 *to,
                                         const float *scale, const float *shift, int rows, const u64 *row_keys,
                                         const u32 *key_at, Rate rate) {
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / WARP, lane = threadIdx.x % WARP;
    if (row >= rows) return;
    const u16 *residual = from + (size_t)(residual_at ? residual_at[row] : row) * HIDDEN;
    float v[STEPS][8], r[STEPS][8];
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        if (!inside(s, lane)) continue;
        int at = (s * WARP + lane) * 8;
        unpack8(*(const uint4 *)(update + (size_t)row * HIDDEN + at), v[s]);
        unpack8(*(const uint4 *)(residual + at), r[s]);
    }
    if (DROP) drop_row(v, lane, row_keys[key_at ? key_at[row] : row], rate);
#pragma unroll
    for (int s = 0; s < STEPS; s++)
        if (inside(s, lane))
#pragma unroll
            for (int e = 0; e < 8; e++) v[s][e] += r[s][e];
    normalise(v, lane, scale, shift);
    store_row(to + (size_t)row * HIDDEN, v, lane);
}

extern "C" __global__ void __launch_bounds__(256)
add_norm(const u16 *from, const u32 *residual_at, const u16 *update, u16 *to, const float *scale, const float *shift,
         int rows, const u64 *row_keys, const u32 *key_at, Rate rate) {
    norm_row<false>(from, residual_at, update, to, scale, shift, rows, row_keys, key_at, rate);
}

extern "C" __global__ void __launch_bounds__(256)
add_norm_drop(const u16 *from, const u32 *residual_at, const u16 *update, u16 *to, const float *scale, const float *shift,
              int rows, const u64 *row_keys, const u32 *key_at, Rate rate) {
    norm_row<true>(from, residual_at, update, to, scale, shift, rows, row_keys, key_at, rate);
}

// ---------------------------------------------------------------- activation

__device__ __forceinline__ float activate(float x) {
#if ACTIVATION == 0
    // x Phi(x), with Phi as a logistic function of an odd polynomial fitted to erf. The error is at most 3.4e-6, which is the
    // rounding error of f16 at 0.007; erf itself would take twice the instructions.
    float s = fminf(x * x, 25.f);
    float p = -3.210405111531145e-6f;
    p = fmaf(p, s, 8.791022264631465e-5f);
    p = fmaf(p, s, 3.6204562638886273e-4f);
    p = fmaf(p, s, -1.0522997379302979e-1f);
    p = fmaf(p, s, -2.3020436763763428f);
    return __fdividef(x, 1.f + exp2_fast(fminf(p * x, 126.f)));
#elif ACTIVATION == 1
    float u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
    return x * (1.f - __fdividef(1.f, 1.f + exp2_fast(fminf(2.8853900817779268f * u, 126.f))));
#else
    return fmaxf(x, 0.f);
#endif
}

// In place over [rows, INNER].
extern "C" __global__ void __launch_bounds__(256) activation(uint4 *values, u64 words) {
    u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= words) return;
    float v[8];
    unpack8(values[at], v);
#pragma unroll
    for (int e = 0; e < 8; e++) v[e] = activate(v[e]);
    values[at] = pack8(v);
}

// ---------------------------------------------------------------- attention

__device__ __forceinline__ void mma(float d[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile(MMA " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Sixteen queries of one head against all keys of their sequence, in one warp, directly from device memory.
//
// A tensor-core product sums over an index whose order is free as long as both operands agree, and its columns may be any
// columns of the result. So a lane loads eight consecutive values of a query and of a key (one 16-byte load, two k-steps), and
// the columns of the second product are assigned so that a lane's values of V and of the result are consecutive too. This
// needs no shared memory and no transposition.
#define CHUNKS (WIDTH / 32)  // 16-byte loads per lane for one query or key
#define TILES (WIDTH / 8)    // 8-column tiles of the result; a lane holds TILES consecutive values of a V row
#define KEYS 32              // keys per step

__device__ __forceinline__ void load_values(u32 to[TILES / 2], const u16 *from) {
#if WIDTH % 64 == 0
#pragma unroll
    for (int i = 0; i < TILES / 8; i++) {
        uint4 v = ((const uint4 *)from)[i];
        to[4 * i] = v.x, to[4 * i + 1] = v.y, to[4 * i + 2] = v.z, to[4 * i + 3] = v.w;
    }
#else
#pragma unroll
    for (int i = 0; i < TILES / 4; i++) {
        uint2 v = ((const uint2 *)from)[i];
        to[2 * i] = v.x, to[2 * i + 1] = v.y;
    }
#endif
}

// Stores the first `rows` of sixteen rows of one head to `to`. Columns 2t and 2t + 1 of every tile are values
// 2t * TILES .. (2t + 2) * TILES of a row.
template <bool DROP>
__device__ __forceinline__ void store_tile(u16 *to, float o[TILES][4], float sum0, float sum1, int rows, Rate rate) {
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    sum0 += __shfl_xor_sync(ALL, sum0, 1), sum1 += __shfl_xor_sync(ALL, sum1, 1);
    sum0 += __shfl_xor_sync(ALL, sum0, 2), sum1 += __shfl_xor_sync(ALL, sum1, 2);
    float inverse0 = (DROP ? rate.scale : 1.f) / sum0, inverse1 = (DROP ? rate.scale : 1.f) / sum1;
    float r[2 * TILES];
    to += (size_t)g * HIDDEN + 2 * t * TILES;
    if (g < rows) {
#pragma unroll
        for (int j = 0; j < TILES; j++) r[j] = o[j][0] * inverse0, r[TILES + j] = o[j][1] * inverse0;
#pragma unroll
        for (int i = 0; i < TILES / 4; i++) *(uint4 *)(to + 8 * i) = pack8(r + 8 * i);
    }
    if (g + 8 < rows) {
#pragma unroll
        for (int j = 0; j < TILES; j++) r[j] = o[j][2] * inverse1, r[TILES + j] = o[j][3] * inverse1;
#pragma unroll
        for (int i = 0; i < TILES / 4; i++) *(uint4 *)(to + 8 * HIDDEN + 8 * i) = pack8(r + 8 * i);
    }
}

template <bool DROP>
__device__ __forceinline__ void attend_tile(const u16 *qkv, u16 *out, int head, int start, int length, int query,
                                            int rows_out, int out_row, u64 key, Rate rate) {
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const size_t pitch = 3 * HIDDEN;
    const u16 *base = qkv + (size_t)start * pitch + head * WIDTH;
    const int row0 = query + g, row1 = row0 + 8, last = length - 1;

    uint4 q0[CHUNKS], q1[CHUNKS];
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        q0[c] = *(const uint4 *)(base + min(row0, last) * pitch + c * 32 + t * 8);
        q1[c] = *(const uint4 *)(base + min(row1, last) * pitch + c * 32 + t * 8);
    }
    u32 low0, high0, low1, high1;
    if (DROP) {
        u64 k0 = mix(key, (u64)(head * length + row0)), k1 = mix(key, (u64)(head * length + row1));
        low0 = (u32)k0, high0 = (u32)(k0 >> 32), low1 = (u32)k1, high1 = (u32)(k1 >> 32);
    }
    float o[TILES][4];
#pragma unroll
    for (int j = 0; j < TILES; j++) o[j][0] = o[j][1] = o[j][2] = o[j][3] = 0.f;
    float top0 = LEAST, top1 = LEAST, sum0 = 0.f, sum1 = 0.f;
    const float scale = rsqrtf((float)WIDTH) * 1.4426950408889634f;

    for (int from = 0; from < length; from += KEYS) {
        // All loads of the step first, so that they are in flight together.
        uint4 k[KEYS / 8][CHUNKS];
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int c = 0; c < CHUNKS; c++)
                k[n][c] = *(const uint4 *)(base + min(from + n * 8 + g, last) * pitch + HIDDEN + c * 32 + t * 8);
        u32 v[KEYS / 16][4][TILES / 2];
#pragma unroll
        for (int u = 0; u < KEYS / 16; u++)
#pragma unroll
            for (int i = 0; i < 4; i++)  // keys 2t, 2t + 1, 2t + 8, 2t + 9 of the sixteen
                load_values(v[u][i], base + min(from + u * 16 + 2 * t + (i & 1) + (i >> 1) * 8, last) * pitch +
                                         2 * HIDDEN + g * TILES);

        float s[KEYS / 8][4];
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.f;
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                mma(s[n], q0[c].x, q1[c].x, q0[c].y, q1[c].y, k[n][c].x, k[n][c].y);
                mma(s[n], q0[c].z, q1[c].z, q0[c].w, q1[c].w, k[n][c].z, k[n][c].w);
            }
        }
        float new0 = top0, new1 = top1;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            int at = from + n * 8 + 2 * t;
#pragma unroll
            for (int e = 0; e < 2; e++) {
                s[n][e] = at + e < length ? s[n][e] * scale : LEAST;
                s[n][e + 2] = at + e < length ? s[n][e + 2] * scale : LEAST;
                new0 = fmaxf(new0, s[n][e]), new1 = fmaxf(new1, s[n][e + 2]);
            }
        }
        new0 = fmaxf(new0, __shfl_xor_sync(ALL, new0, 1)), new1 = fmaxf(new1, __shfl_xor_sync(ALL, new1, 1));
        new0 = fmaxf(new0, __shfl_xor_sync(ALL, new0, 2)), new1 = fmaxf(new1, __shfl_xor_sync(ALL, new1, 2));
        // In the first step top is -inf and there is nothing to rescale; later top is finite.
        float fade0 = exp2_fast(top0 - new0), fade1 = exp2_fast(top1 - new1);
        top0 = new0, top1 = new1;
        sum0 *= fade0, sum1 *= fade1;
#pragma unroll
        for (int j = 0; j < TILES; j++) o[j][0] *= fade0, o[j][1] *= fade0, o[j][2] *= fade1, o[j][3] *= fade1;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                s[n][e] = exp2_fast(s[n][e] - top0), s[n][e + 2] = exp2_fast(s[n][e + 2] - top1);
                sum0 += s[n][e], sum1 += s[n][e + 2];
                if (DROP) {  // after the sum: dropout follows the softmax
                    u32 place = (u32)(from + n * 8 + 2 * t + e) * STRIDE;
                    if (!stays(place, low0, high0, rate.threshold)) s[n][e] = 0.f;
                    if (!stays(place, low1, high1, rate.threshold)) s[n][e + 2] = 0.f;
                }
            }
#pragma unroll
        for (int u = 0; u < KEYS / 16; u++) {
            u32 a0 = pack(s[2 * u][0], s[2 * u][1]), a1 = pack(s[2 * u][2], s[2 * u][3]);
            u32 a2 = pack(s[2 * u + 1][0], s[2 * u + 1][1]), a3 = pack(s[2 * u + 1][2], s[2 * u + 1][3]);
#pragma unroll
            for (int w = 0; w < TILES / 2; w++) {
                u32 v0 = v[u][0][w], v1 = v[u][1][w], v2 = v[u][2][w], v3 = v[u][3][w];
                mma(o[2 * w], a0, a1, a2, a3, __byte_perm(v0, v1, 0x5410), __byte_perm(v2, v3, 0x5410));
                mma(o[2 * w + 1], a0, a1, a2, a3, __byte_perm(v0, v1, 0x7632), __byte_perm(v2, v3, 0x7632));
            }
        }
    }
    store_tile<DROP>(out + ((size_t)out_row + query) * HIDDEN + head * WIDTH, o, sum0, sum1, rows_out - query, rate);
}

// A sequence of up to SHORT tokens, one head, one warp: keys and values are loaded once and stay in registers for all tiles of
// sixteen queries. With one warp per tile it took 33 us of a layer's 193 on an H200 (16,384 tokens, 384 wide), three times the
// time of its memory traffic: a quarter of the warps had no tile, and each waited for memory once per step of keys.
#define SHORT (WIDTH <= 64 ? 64 : 32)  // the limit of the registers

// For BLOCKS blocks of sixteen keys, of which only the last may be partial. Without a branch between them the products run in
// parallel. The registers allow eight warps per multiprocessor, which alone do not hide each other's waits as well.
template <bool DROP, int BLOCKS>
__device__ __forceinline__ void attend_blocks(const u16 *base, u16 *out, int head, int length, u64 key, Rate rate) {
    const int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const size_t pitch = 3 * HIDDEN;
    const uint4 none = make_uint4(0, 0, 0, 0);

    uint4 k[2 * BLOCKS][CHUNKS];
#pragma unroll
    for (int n = 0; n < 2 * BLOCKS; n++)
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
            k[n][c] = n < 2 * BLOCKS - 2 || n * 8 + g < length
                          ? *(const uint4 *)(base + (n * 8 + g) * pitch + HIDDEN + c * 32 + t * 8)
                          : none;
    uint4 q0[CHUNKS], q1[CHUNKS];
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        q0[c] = BLOCKS > 1 || g < length ? *(const uint4 *)(base + g * pitch + c * 32 + t * 8) : none;
        q1[c] = BLOCKS > 1 || g + 8 < length ? *(const uint4 *)(base + (g + 8) * pitch + c * 32 + t * 8) : none;
    }
    u32 v[BLOCKS][4][TILES / 2];
#pragma unroll
    for (int u = 0; u < BLOCKS; u++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int at = u * 16 + 2 * t + (i & 1) + (i >> 1) * 8;
            if (u < BLOCKS - 1 || at < length)
                load_values(v[u][i], base + at * pitch + 2 * HIDDEN + g * TILES);
            else
#pragma unroll
                for (int w = 0; w < TILES / 2; w++) v[u][i][w] = 0;
        }
    const float scale = rsqrtf((float)WIDTH) * 1.4426950408889634f;

#pragma unroll 1
    for (int query = 0; query < 16 * BLOCKS; query += 16) {
        const int row0 = query + g, row1 = row0 + 8;
        float s[2 * BLOCKS][4];
#pragma unroll
        for (int n = 0; n < 2 * BLOCKS; n++) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.f;
        // The products of each sum are in order; the sums are interleaved.
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
#pragma unroll
            for (int n = 0; n < 2 * BLOCKS; n++)
                mma(s[n], q0[c].x, q1[c].x, q0[c].y, q1[c].y, k[n][c].x, k[n][c].y);
#pragma unroll
            for (int n = 0; n < 2 * BLOCKS; n++)
                mma(s[n], q0[c].z, q1[c].z, q0[c].w, q1[c].w, k[n][c].z, k[n][c].w);
        }
        // Load the next tile's queries while this one is computed.
        const int next0 = row0 + 16, next1 = row1 + 16;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            q0[c] = next0 < length ? *(const uint4 *)(base + next0 * pitch + c * 32 + t * 8) : none;
            q1[c] = next1 < length ? *(const uint4 *)(base + next1 * pitch + c * 32 + t * 8) : none;
        }
        float top0 = LEAST, top1 = LEAST;
#pragma unroll
        for (int n = 0; n < 2 * BLOCKS; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                bool there = n < 2 * BLOCKS - 2 || n * 8 + 2 * t + e < length;
                s[n][e] = there ? s[n][e] * scale : LEAST, s[n][e + 2] = there ? s[n][e + 2] * scale : LEAST;
                top0 = fmaxf(top0, s[n][e]), top1 = fmaxf(top1, s[n][e + 2]);
            }
        top0 = fmaxf(top0, __shfl_xor_sync(ALL, top0, 1)), top1 = fmaxf(top1, __shfl_xor_sync(ALL, top1, 1));
        top0 = fmaxf(top0, __shfl_xor_sync(ALL, top0, 2)), top1 = fmaxf(top1, __shfl_xor_sync(ALL, top1, 2));
        u32 low0 = 0, high0 = 0, low1 = 0, high1 = 0;
        if (DROP) {
            u64 k0 = mix(key, (u64)(head * length + row0)), k1 = mix(key, (u64)(head * length + row1));
            low0 = (u32)k0, high0 = (u32)(k0 >> 32), low1 = (u32)k1, high1 = (u32)(k1 >> 32);
        }
        float sum0 = 0.f, sum1 = 0.f;
        u32 a[2 * BLOCKS][2];
#pragma unroll
        for (int n = 0; n < 2 * BLOCKS; n++) {
            float p[4];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                p[e] = exp2_fast(s[n][e] - top0), p[e + 2] = exp2_fast(s[n][e + 2] - top1);
                sum0 += p[e], sum1 += p[e + 2];
                if (DROP) {  // after the sum: dropout follows the softmax
                    u32 place = (u32)(n * 8 + 2 * t + e) * STRIDE;
                    if (!stays(place, low0, high0, rate.threshold)) p[e] = 0.f;
                    if (!stays(place, low1, high1, rate.threshold)) p[e + 2] = 0.f;
                }
            }
            a[n][0] = pack(p[0], p[1]), a[n][1] = pack(p[2], p[3]);
        }
        float o[TILES][4];
#pragma unroll
        for (int j = 0; j < TILES; j++) o[j][0] = o[j][1] = o[j][2] = o[j][3] = 0.f;
#pragma unroll
        for (int u = 0; u < BLOCKS; u++)
#pragma unroll
            for (int w = 0; w < TILES / 2; w++) {
                u32 v0 = v[u][0][w], v1 = v[u][1][w], v2 = v[u][2][w], v3 = v[u][3][w];
                mma(o[2 * w], a[2 * u][0], a[2 * u][1], a[2 * u + 1][0], a[2 * u + 1][1], __byte_perm(v0, v1, 0x5410),
                    __byte_perm(v2, v3, 0x5410));
                mma(o[2 * w + 1], a[2 * u][0], a[2 * u][1], a[2 * u + 1][0], a[2 * u + 1][1],
                    __byte_perm(v0, v1, 0x7632), __byte_perm(v2, v3, 0x7632));
            }
        store_tile<DROP>(out + (size_t)query * HIDDEN, o, sum0, sum1, length - query, rate);
    }
}

template <bool DROP>
__device__ __forceinline__ void attend_short_warp(const u16 *qkv, u16 *out, const uint2 *shorts, int units,
                                                  const u64 *keys, Rate rate) {
    const int unit = (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    if (unit >= units) return;
    const uint2 item = shorts[unit / HEADS];  // first token with length - 1 in the top eight bits; document
    const int head = unit % HEADS, start = item.x & 0xffffff, length = (item.x >> 24) + 1;
    const u16 *base = qkv + (size_t)start * 3 * HIDDEN + head * WIDTH;
    out += (size_t)start * HIDDEN + head * WIDTH;
    const u64 key = DROP ? keys[item.y] : 0;
    switch ((length + 15) / 16) {
    case 1: attend_blocks<DROP, 1>(base, out, head, length, key, rate); break;
    case 2: attend_blocks<DROP, 2>(base, out, head, length, key, rate); break;
#if WIDTH <= 64
    case 3: attend_blocks<DROP, 3>(base, out, head, length, key, rate); break;
    default: attend_blocks<DROP, 4>(base, out, head, length, key, rate); break;
#endif
    }
}

extern "C" __global__ void __launch_bounds__(128)
attend_short(const u16 *qkv, u16 *out, const uint2 *shorts, int units, const u64 *keys, Rate rate) {
    attend_short_warp<false>(qkv, out, shorts, units, keys, rate);
}

extern "C" __global__ void __launch_bounds__(128)
attend_short_drop(const u16 *qkv, u16 *out, const uint2 *shorts, int units, const u64 *keys, Rate rate) {
    attend_short_warp<true>(qkv, out, shorts, units, keys, rate);
}

// out[tokens, HIDDEN]. A block computes 64 queries of one head: an item is (first token, length, first query, document).
template <bool DROP>
__device__ __forceinline__ void attend_block(const u16 *qkv, u16 *out, const uint4 *items, const u64 *keys, Rate rate) {
    uint4 item = items[blockIdx.x / HEADS];
    int head = blockIdx.x % HEADS, length = item.y, query = item.z + threadIdx.x / WARP * 16;
    if (query >= length) return;
    attend_tile<DROP>(qkv, out, head, item.x, length, query, length, item.x, DROP ? keys[item.w] : 0, rate);
}

extern "C" __global__ void __launch_bounds__(128)
attend(const u16 *qkv, u16 *out, const uint4 *items, const u64 *keys, Rate rate) {
    attend_block<false>(qkv, out, items, keys, rate);
}

extern "C" __global__ void __launch_bounds__(128)
attend_drop(const u16 *qkv, u16 *out, const uint4 *items, const u64 *keys, Rate rate) {
    attend_block<true>(qkv, out, items, keys, rate);
}

// out[documents, HIDDEN]: only the query of the first token, one warp per head and document.
template <bool DROP>
__device__ __forceinline__ void attend_first_warp(const u16 *qkv, u16 *out, const u32 *starts, int documents,
                                                  const u64 *keys, Rate rate) {
    int unit = (blockIdx.x * blockDim.x + threadIdx.x) / WARP, document = unit / HEADS;
    if (document >= documents) return;
    int start = starts[document], length = starts[document + 1] - start;
    attend_tile<DROP>(qkv, out, unit % HEADS, start, length, 0, 1, document, DROP ? keys[document] : 0, rate);
}

extern "C" __global__ void __launch_bounds__(128)
attend_first(const u16 *qkv, u16 *out, const u32 *starts, int documents, const u64 *keys, Rate rate) {
    attend_first_warp<false>(qkv, out, starts, documents, keys, rate);
}

extern "C" __global__ void __launch_bounds__(128)
attend_first_drop(const u16 *qkv, u16 *out, const u32 *starts, int documents, const u64 *keys, Rate rate) {
    attend_first_warp<true>(qkv, out, starts, documents, keys, rate);
}

// ---------------------------------------------------------------- pooling

// out[documents, HIDDEN] in f32, one block per document: the mean over its rows, or its row of a compact [documents, HIDDEN]
// where `starts` is null. `spoiled` becomes 1 where a value is not finite: the encoder's states exceed the precision's range.
extern "C" __global__ void __launch_bounds__(128)
pool(const u16 *states, const u32 *starts, float *out, u32 *spoiled) {
    int document = blockIdx.x;
    int from = starts ? starts[document] : document, to = starts ? starts[document + 1] : document + 1;
    for (int at = threadIdx.x * 2; at < HIDDEN; at += 256) {
        float2 sum = make_float2(0.f, 0.f);
        for (int row = from; row < to; row++) {
            float2 v = unpack(*(const u32 *)(states + (size_t)row * HIDDEN + at));
            sum.x += v.x, sum.y += v.y;
        }
        float count = (float)(to - from);
        sum.x /= count, sum.y /= count;
        *(float2 *)(out + (size_t)document * HIDDEN + at) = sum;
        if (!isfinite(sum.x) || !isfinite(sum.y)) *spoiled = 1;
    }
}
