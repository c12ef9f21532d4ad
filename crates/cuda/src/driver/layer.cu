
// Filters over token states, and DHIM's loss. Appended to training.cu, whose draws and update it uses.

#define WIDE 64
#define DEEP 16

// c [rows, cols] = a b (+ bias per column). Element (i, k) of a lies at i * a_row + k * a_col, and likewise in b; one of the two
// strides of each matrix is 1. c is row-major with the row stride c_row. A block computes a tile of 64 x 64, a thread 4 x 4 of
// it. The next 16 steps of the depth are loaded while the current 16 are summed.
extern "C" __global__ void __launch_bounds__(256) wide_product(
    float* c, const float* a, const float* b, u32 rows, u32 cols, u32 depth, u32 a_row, u32 a_col, u32 b_row, u32 b_col,
    u32 c_row, const float* bias) {
  __shared__ float4 as[DEEP][WIDE / 4];  // [depth, rows]
  __shared__ float4 bs[DEEP][WIDE / 4];  // [depth, cols]
  u32 across = (cols + WIDE - 1) / WIDE;
  u32 top = blockIdx.x / across * WIDE, left = blockIdx.x % across * WIDE;
  u32 t = threadIdx.x, y = t / 16, x = t % 16;
  // Neighbouring threads read along the unit stride.
  u32 ai[4], ak[4], bj[4], bk[4];
#pragma unroll
  for (u32 q = 0; q < 4; ++q) {
    u32 e = t + 256 * q;
    ai[q] = a_col == 1 ? e / DEEP : e % WIDE;
    ak[q] = a_col == 1 ? e % DEEP : e / WIDE;
    bj[q] = b_col == 1 ? e % WIDE : e / DEEP;
    bk[q] = b_col == 1 ? e / WIDE : e % DEEP;
  }
  float sums[4][4] = {};
  float next_a[4], next_b[4];
  for (u32 from = 0; from < depth + DEEP; from += DEEP) {
    if (from > 0) {
      __syncthreads();
#pragma unroll
      for (u32 q = 0; q < 4; ++q) {
        ((float*)as[ak[q]])[ai[q]] = next_a[q];
        ((float*)bs[bk[q]])[bj[q]] = next_b[q];
      }
      __syncthreads();
    }
    if (from < depth) {
#pragma unroll
      for (u32 q = 0; q < 4; ++q) {
        u32 i = top + ai[q], k = from + ak[q], j = left + bj[q], l = from + bk[q];
        next_a[q] = i < rows && k < depth ? a[(u64)i * a_row + (u64)k * a_col] : 0.0f;
        next_b[q] = l < depth && j < cols ? b[(u64)l * b_row + (u64)j * b_col] : 0.0f;
      }
    }
    if (from == 0) continue;
#pragma unroll
    for (u32 k = 0; k < DEEP; ++k) {
      float4 av = as[k][y], bv = bs[k][x];
      float ar[4] = {av.x, av.y, av.z, av.w}, br[4] = {bv.x, bv.y, bv.z, bv.w};
#pragma unroll
      for (u32 p = 0; p < 4; ++p) {
#pragma unroll
        for (u32 q = 0; q < 4; ++q) sums[p][q] += ar[p] * br[q];
      }
    }
  }
#pragma unroll
  for (u32 p = 0; p < 4; ++p) {
#pragma unroll
    for (u32 q = 0; q < 4; ++q) {
      u32 i = top + 4 * y + p, j = left + 4 * x + q;
      if (i < rows && j < cols) c[(u64)i * c_row + j] = sums[p][q] + (bias ? bias[j] : 0.0f);
    }
  }
}

// out [cols] = sums over the rows of x [rows, cols]; a block of 32 x 32 threads per 32 columns.
extern "C" __global__ void column_sums(const float* x, float* out, u32 rows, u32 cols) {
  __shared__ float space[32][33];
  u32 lane = threadIdx.x % 32, part = threadIdx.x / 32, j = blockIdx.x * 32 + lane;
  float sum = 0.0f;
  if (j < cols) {
    for (u32 i = part; i < rows; i += 32) sum += x[(u64)i * cols + j];
  }
  space[part][lane] = sum;
  __syncthreads();
  if (part != 0 || j >= cols) return;
  for (u32 i = 1; i < 32; ++i) sum += space[i][lane];
  out[j] = sum;
}

// The windows of a text.
struct Text {
  u32 start, count;
};

// One thread per text and column: max(0, x) in place, and its mean over the text's rows. x is [rows, cols], means is [texts, cols].
extern "C" __global__ void pool(float* x, float* means, const Text* texts, u32 count, u32 cols) {
  u32 t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t >= count * cols) return;
  Text text = texts[t / cols];
  float* own = x + (u64)text.start * cols + t % cols;
  float sum = 0.0f;
  for (u32 i = 0; i < text.count; ++i) {
    float v = own[(u64)i * cols];
    // This form lets NaN pass through.
    v = v < 0.0f ? 0.0f : v;
    own[(u64)i * cols] = v;
    sum += v;
  }
  means[t] = text.count > 0 ? sum / text.count : 0.0f;
}

// Owner of a window: a text, and the number of the token among all tokens. `text` is negative for windows without a token.
struct Token {
  int text;
  u32 number;
};

// Codes of windows, then of n texts, then of n first states: logits and codes are [windows + 2 n, bits]. A bit is drawn with
// probability sigmoid(logit / sharpness); slopes are the derivatives of the probability by the logit.
extern "C" __global__ void draw_codes(const float* logits, float* codes, float* slopes, const Token* tokens, u64 key_text,
                                      u64 key_token, u64 key_first, u32 windows, u32 n, u32 bits, float sharpness) {
  u32 t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t >= (windows + 2 * n) * bits) return;
  u32 row = t / bits, bit = t % bits, number;
  u64 key;
  if (row < windows) {
    if (tokens[row].text < 0) {
      codes[t] = slopes[t] = 0.0f;
      return;
    }
    key = key_token;
    number = tokens[row].number;
  } else {
    key = row < windows + n ? key_text : key_first;
    number = (row - windows) % n;
  }
  float q = 1.0f / (1.0f + expf(-logits[t] / sharpness));
  codes[t] = uniform(key, number * bits + bit) < q ? 1.0f : 0.0f;
  slopes[t] = q * (1.0f - q) / sharpness;
}

// One thread per element of scores [n, others]: its term of the Jensen-Shannon bound, summed per block into losses. The score is
// replaced by the derivative of the loss. Without tokens the others are the texts themselves. `weight` is the weight of one text;
// its windows share it.
extern "C" __global__ void agree(float* scores, double* losses, const Token* tokens, const Text* texts, u32 n, u32 others,
                                 float weight) {
  __shared__ double space[256];
  u32 t = blockIdx.x * blockDim.x + threadIdx.x;
  double loss = 0.0;
  if (t < n * others) {
    u32 text = t / others, other = t % others;
    int owner = tokens ? tokens[other].text : (int)other;
    float slope = 0.0f;
    if (owner >= 0) {
      float share = tokens ? weight / texts[owner].count : weight;
      float s = 1.0f / (1.0f + expf(-scores[t])), risen = logf(1.0f + expf(s)), part = 1.0f / (1.0f + expf(-s));
      float rest = share / (n > 2 ? n - 1 : 1);
      // softplus(-s) = softplus(s) - s, its slope -sigmoid(-s).
      loss = owner == (int)text ? share * (risen - s) : rest * risen;
      slope = (owner == (int)text ? share * (part - 1.0f) : rest * part) * s * (1.0f - s);
    }
    scores[t] = slope;
  }
  double sum = block_sum(loss, space);
  if (threadIdx.x == 0) losses[blockIdx.x] = sum;
}

// One block of 256 threads: the sum of `count` losses.
extern "C" __global__ void sum_losses(const double* losses, double* sum, u32 count) {
  __shared__ double space[256];
  double own = 0.0;
  for (u32 i = threadIdx.x; i < count; i += 256) own += losses[i];
  own = block_sum(own, space);
  if (threadIdx.x == 0) *sum = own;
}

// x *= y.
extern "C" __global__ void scale_by(float* x, const float* y, u32 count) {
  u32 t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t < count) x[t] *= y[t];
}

// slopes [windows + n, width] are the gradients of windows and of the means of texts. The gradients of the filters replace those
// of the windows. values are max(0, filters).
extern "C" __global__ void filter_slopes(float* slopes, const float* values, const Token* tokens, const Text* texts, u32 windows,
                                         u32 width) {
  u32 t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t >= windows * width) return;
  int text = tokens[t / width].text;
  float slope = 0.0f;
  if (text >= 0 && values[t] > 0.0f) {
    slope = slopes[t] + slopes[(u64)(windows + text) * width + t % width] / texts[text].count;
  }
  slopes[t] = slope;
}
