// One training step of MICPQ. The formulas and the layout equal those of the CPU: activations are [dimensions, n], with one
// column per view of a document, one view in the first half of the columns and the other in the second. Every sum has a fixed
// order: the same inputs give the same bits on the same kind of GPU.

typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned char u8;

// Added inside the logarithms of the entropies.
#define ENTROPY_FLOOR 1e-12f
// Smallest length in the division by a vector's length.
#define SHORTEST 1e-12f
#define ENDLESS __int_as_float(0x7f800000)

struct Objective {
  float tau, floor, prob_weight, code_weight, alpha, temperature;
  u32 gumbel, posterior;
};

struct Code {
  u32 books, words, dim, n;
};

#define TILE 32

// c [rows, cols] = scale a b (+ bias per row), then max(0, c) with relu, and 0 where mask is not positive. Element (i, k) of a
// lies at i * a_row + k * a_col, and likewise in b. A block computes a tile of 32 x 32, a thread four values of it.
extern "C" __global__ void __launch_bounds__(256) product(
    float* c, const float* a, const float* b, u32 rows, u32 cols, u32 depth, u32 a_row, u32 a_col, u32 b_row, u32 b_col,
    float scale, const float* bias, const float* mask, u32 relu) {
  __shared__ float as[TILE][TILE + 1];  // [depth, rows]
  __shared__ float bs[TILE][TILE + 1];  // [depth, cols]
  u32 across = (cols + TILE - 1) / TILE;
  u32 top = blockIdx.x / across * TILE, left = blockIdx.x % across * TILE;
  u32 t = threadIdx.x, y = t / 16 * 2, x = t % 16 * 2;
  float s00 = 0, s01 = 0, s10 = 0, s11 = 0;
  for (u32 from = 0; from < depth; from += TILE) {
    for (u32 e = t; e < TILE * TILE; e += 256) {
      // Neighbouring threads read along the unit stride.
      u32 i = a_col == 1 ? e / TILE : e % TILE, k = a_col == 1 ? e % TILE : e / TILE;
      as[k][i] = top + i < rows && from + k < depth ? a[(top + i) * a_row + (from + k) * a_col] : 0.0f;
      u32 j = b_col == 1 ? e % TILE : e / TILE, l = b_col == 1 ? e / TILE : e % TILE;
      bs[l][j] = left + j < cols && from + l < depth ? b[(from + l) * b_row + (left + j) * b_col] : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (u32 k = 0; k < TILE; ++k) {
      float a0 = as[k][y], a1 = as[k][y + 1], b0 = bs[k][x], b1 = bs[k][x + 1];
      s00 += a0 * b0;
      s01 += a0 * b1;
      s10 += a1 * b0;
      s11 += a1 * b1;
    }
    __syncthreads();
  }
  float sums[4] = {s00, s01, s10, s11};
  for (u32 e = 0; e < 4; ++e) {
    u32 i = top + y + e / 2, j = left + x + e % 2;
    if (i >= rows || j >= cols) continue;
    float v = sums[e] * scale;
    if (bias) v += bias[i];
    // This form lets NaN pass through.
    if (relu) v = v < 0.0f ? 0.0f : v;
    if (mask) v = mask[i * cols + j] > 0.0f ? v : 0.0f;
    c[i * cols + j] = v;
  }
}

__device__ u64 mix(u64 x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Draw number `number` of the CPU's generator, uniform in [0, 1): two draws of 24 bits per 64 bits.
__device__ float uniform(u64 key, u32 number) {
  u64 bits = mix(key + ((u64)(number / 2) + 1) * 0x9e3779b97f4a7c15ull);
  u32 drawn = number % 2 == 0 ? (u32)(bits >> 40) : (u32)(bits >> 8) & 0xffffffu;
  return (float)drawn * (1.0f / 16777216.0f);
}

// x = softmax(x) over codewords, with a stride of n.
__device__ void softmax(float* x, u32 words, u32 n) {
  float top = x[0], sum = 0.0f;
  for (u32 k = 1; k < words; ++k) top = x[k * n] > top ? x[k * n] : top;
  for (u32 k = 0; k < words; ++k) {
    float e = expf(x[k * n] - top);
    x[k * n] = e;
    sum += e;
  }
  float share = 1.0f / sum;
  for (u32 k = 0; k < words; ++k) x[k * n] *= share;
}

// One thread per codebook and column: the soft code and its decoded vector. posterior, code and logs are
// [codebooks, codewords, n].
extern "C" __global__ void quantize(const float* z, const float* book_words, const u64* keys, float* posterior, float* code,
                                    float* logs, float* decoded, float* squares, Code s, Objective o) {
  u32 t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t >= s.books * s.n) return;
  u32 m = t / s.n, j = t % s.n, n = s.n;
  const float* words = book_words + m * s.words * s.dim;
  const float* own = z + m * s.dim * n + j;
  float* p = posterior + m * s.words * n + j;
  float* v = code + m * s.words * n + j;
  float* l = logs + m * s.words * n + j;
  for (u32 k = 0; k < s.words; ++k) {
    float dot = 0.0f, square = 0.0f;
    for (u32 d = 0; d < s.dim; ++d) {
      float w = words[k * s.dim + d];
      dot += w * own[d * n];
      square += w * w;
    }
    p[k * n] = 2.0f * dot - square;
  }
  if (o.floor > 0.0f) softmax(p, s.words, n);
  float sharpness = 1.0f / o.tau;
  for (u32 k = 0; k < s.words; ++k) {
    float noise = 0.0f;
    if (o.gumbel) noise = -logf(-logf(uniform(keys[m], k * n + j) + 1e-20f) + 1e-20f);
    float logit = o.floor > 0.0f ? logf(p[k * n] + o.floor) : p[k * n];
    v[k * n] = (logit + noise) * sharpness;
  }
  if (o.floor <= 0.0f && o.posterior) softmax(p, s.words, n);
  softmax(v, s.words, n);
  const float* q = o.posterior ? p : v;
  for (u32 k = 0; k < s.words; ++k) l[k * n] = logf(q[k * n] + ENTROPY_FLOOR);
  float length = 0.0f;
  for (u32 d = 0; d < s.dim; ++d) {
    float h = 0.0f;
    for (u32 k = 0; k < s.words; ++k) h += v[k * n] * words[k * s.dim + d];
    decoded[(m * s.dim + d) * n + j] = h;
    length += h * h;
  }
  squares[m * n + j] = length;
}

// Sum of `value` over a block, returned to all threads; the number of threads is a power of two.
__device__ double block_sum(double value, double* space) {
  space[threadIdx.x] = value;
  __syncthreads();
  for (u32 half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) space[threadIdx.x] += space[threadIdx.x + half];
    __syncthreads();
  }
  double sum = space[0];
  __syncthreads();
  return sum;
}

// One block per codeword: its term of the mutual information, and the derivative of x ln(x + floor) at its mean in each view.
extern "C" __global__ void inform(const float* posterior, const float* code, const float* logs, float* mean_slope,
                                  double* information, Code s, Objective o) {
  __shared__ double space[64];
  u32 batch = s.n / 2;
  const float* q = (o.posterior ? posterior : code) + blockIdx.x * s.n;
  const float* l = logs + blockIdx.x * s.n;
  double both = 0.0;
  for (u32 view = 0; view < 2; ++view) {
    double sum = 0.0, own = 0.0;
    for (u32 j = threadIdx.x; j < batch; j += blockDim.x) {
      sum += q[view * batch + j];
      own += (double)q[view * batch + j] * l[view * batch + j];
    }
    double mean = block_sum(sum, space) / batch;
    own = block_sum(own, space) / batch;
    double log_mean = log(mean + 1e-12);
    both += 0.5 * (-mean * log_mean + o.alpha * own);
    if (threadIdx.x == 0) mean_slope[view * s.books * s.words + blockIdx.x] = (float)(log_mean + mean / (mean + 1e-12));
  }
  if (threadIdx.x == 0) information[blockIdx.x] = both;
}

#define UNIT_ROWS 16

// One block per 128 columns of 16 rows: the decoded vectors at unit length, and the scale of each.
extern "C" __global__ void unitize(const float* decoded, const float* squares, float* unit, float* scale, Code s) {
  u32 strips = (s.n + 127) / 128, width = s.books * s.dim;
  u32 j = blockIdx.x % strips * 128 + threadIdx.x, row = blockIdx.x / strips * UNIT_ROWS;
  if (j >= s.n) return;
  float square = 0.0f;
  for (u32 m = 0; m < s.books; ++m) square += squares[m * s.n + j];
  float length = sqrtf(square), by = 1.0f / (length < SHORTEST ? SHORTEST : length);
  if (row == 0) scale[j] = by;
  for (u32 r = row; r < width && r < row + UNIT_ROWS; ++r) unit[r * s.n + j] = decoded[r * s.n + j] * by;
}

// One block of 128 threads per row of similarities: replaces it by a row of D, and computes its term of the loss.
extern "C" __global__ void contrast(float* similar, double* losses, u32 n, float weight) {
  __shared__ double space[128];
  __shared__ float tops[128];
  u32 i = blockIdx.x, positive = (i + n / 2) % n;
  float* row = similar + i * n;
  float top = -ENDLESS;
  for (u32 j = threadIdx.x; j < n; j += 128)
    if (j != i && row[j] > top) top = row[j];
  tops[threadIdx.x] = top;
  __syncthreads();
  for (u32 half = 64; half > 0; half /= 2) {
    if (threadIdx.x < half && tops[threadIdx.x + half] > tops[threadIdx.x]) tops[threadIdx.x] = tops[threadIdx.x + half];
    __syncthreads();
  }
  top = tops[0];
  float matched = row[positive];
  double part = 0.0;
  for (u32 j = threadIdx.x; j < n; j += 128)
    if (j != i) part += expf(row[j] - top);
  double sum = block_sum(part, space);
  float scale = weight / n, share = scale / (float)sum;
  for (u32 j = threadIdx.x; j < n; j += 128) {
    float d = j == i ? 0.0f : expf(row[j] - top) * share;
    row[j] = j == positive ? d - scale : d;
  }
  if (threadIdx.x == 0) losses[i] = log(sum) + (double)(top - matched);
}

extern "C" __global__ void symmetrize(const float* d, float* both, u32 n) {
  u32 t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t < n * n) both[t] = d[t] + d[t % n * n + t / n];
}

// One block per eight columns, one thread per every 32nd row of a column: the gradient through the scaling to unit length, which
// keeps only the component orthogonal to the vector. `slope` [width, n] in place.
extern "C" __global__ void tangent(float* slope, const float* unit, const float* scale, u32 width, u32 n) {
  __shared__ float dots[32][8];
  u32 c = threadIdx.x % 8, g = threadIdx.x / 8, j = blockIdx.x * 8 + c;
  float dot = 0.0f;
  if (j < n)
    for (u32 r = g; r < width; r += 32) dot += slope[r * n + j] * unit[r * n + j];
  dots[g][c] = dot;
  __syncthreads();
  for (u32 half = 16; half > 0; half /= 2) {
    if (g < half) dots[g][c] += dots[g + half][c];
    __syncthreads();
  }
  dot = dots[0][c];
  if (j < n)
    for (u32 r = g; r < width; r += 32) slope[r * n + j] = (slope[r * n + j] - dot * unit[r * n + j]) * scale[j];
}

// One thread per codebook and column: from g, the derivative by the decoded vector, to `error`, the derivative by the logits, and
// to the derivative by z. `logs` becomes the derivative of the mutual information.
extern "C" __global__ void dequantize(const float* g, const float* book_words, const float* posterior, const float* code,
                                      float* logs, const float* mean_slope, float* error, float* dz, Code s, Objective o) {
  u32 t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t >= s.books * s.n) return;
  u32 m = t / s.n, j = t % s.n, n = s.n;
  const float* words = book_words + m * s.words * s.dim;
  const float* own = g + m * s.dim * n + j;
  const float* p = posterior + m * s.words * n + j;
  const float* v = code + m * s.words * n + j;
  float* l = logs + m * s.words * n + j;
  float* e = error + m * s.words * n + j;
  const float* slopes = mean_slope + ((j >= n / 2 ? s.books : 0) + m) * s.words;
  const float* q = o.posterior ? p : v;
  float weight = o.prob_weight / n, mean = 0.0f;
  for (u32 k = 0; k < s.words; ++k) {
    float sum = 0.0f;
    for (u32 d = 0; d < s.dim; ++d) sum += words[k * s.dim + d] * own[d * n];
    float u = weight * (slopes[k] - o.alpha * (l[k * n] + q[k * n] / (q[k * n] + ENTROPY_FLOOR)));
    l[k * n] = u;
    if (!o.posterior) sum += u;
    e[k * n] = sum;
    mean += v[k * n] * sum;
  }
  float sharpness = 1.0f / o.tau, total = 0.0f;
  for (u32 k = 0; k < s.words; ++k) {
    float a = v[k * n] * (e[k * n] - mean) * sharpness;
    if (o.floor > 0.0f) a *= p[k * n] / (p[k * n] + o.floor);
    e[k * n] = a;
    total += a;
  }
  if (o.floor > 0.0f)
    for (u32 k = 0; k < s.words; ++k) e[k * n] -= p[k * n] * total;
  if (o.posterior) {
    float middle = 0.0f;
    for (u32 k = 0; k < s.words; ++k) middle += p[k * n] * l[k * n];
    for (u32 k = 0; k < s.words; ++k) e[k * n] += p[k * n] * (l[k * n] - middle);
  }
  for (u32 d = 0; d < s.dim; ++d) {
    float sum = 0.0f;
    for (u32 k = 0; k < s.words; ++k) sum += words[k * s.dim + d] * e[k * n];
    dz[(m * s.dim + d) * n + j] = 2.0f * sum;
  }
}

// One thread per value of a codeword: dC = v G' + 2 (E z' - (sum E) c).
extern "C" __global__ void word_gradient(const float* g, const float* z, const float* book_words, const float* code,
                                         const float* error, float* gradient, Code s) {
  u32 t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t >= s.books * s.words * s.dim) return;
  u32 d = t % s.dim, mk = t / s.dim, m = mk / s.words, n = s.n;
  const float *v = code + mk * n, *e = error + mk * n;
  const float *gd = g + (m * s.dim + d) * n, *zd = z + (m * s.dim + d) * n;
  float by_code = 0.0f, by_error = 0.0f, errors = 0.0f;
  for (u32 j = 0; j < n; ++j) {
    by_code += v[j] * gd[j];
    by_error += e[j] * zd[j];
    errors += e[j];
  }
  gradient[t] = by_code + 2.0f * (by_error - errors * book_words[t]);
}

// One thread per row.
extern "C" __global__ void row_sums(const float* rows, float* sums, u32 count, u32 n) {
  u32 t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t >= count) return;
  float sum = 0.0f;
  for (u32 j = 0; j < n; ++j) sum += rows[t * n + j];
  sums[t] = sum;
}

struct Adam {
  float keep_first, keep_second, rate, scale, epsilon;
};

extern "C" __global__ void adam(float* x, const float* gradient, float* first, float* second, u64 count, Adam by) {
  u64 t = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (t >= count) return;
  float g = gradient[t];
  float m = by.keep_first * first[t] + (1.0f - by.keep_first) * g;
  float v = by.keep_second * second[t] + (1.0f - by.keep_second) * g * g;
  first[t] = m;
  second[t] = v;
  x[t] -= by.rate * m / (sqrtf(v) * by.scale + by.epsilon);
}

// One block of 256 threads: adds a step with weight `share` to totals [loss, contrastive, information, number of the first step
// whose loss is not finite].
extern "C" __global__ void tally(const double* losses, const double* information, double* totals, double share, u64 number,
                                 Code s, Objective o) {
  __shared__ double space[256];
  double loss = 0.0, known = 0.0;
  for (u32 i = threadIdx.x; i < s.n; i += 256) loss += losses[i];
  for (u32 i = threadIdx.x; i < s.books * s.words; i += 256) known += information[i];
  double contrastive = block_sum(loss, space) / s.n, informed = block_sum(known, space);
  if (threadIdx.x != 0) return;
  double whole = o.code_weight * contrastive - o.prob_weight * informed;
  totals[0] += share * whole;
  totals[1] += share * contrastive;
  totals[2] += share * informed;
  if (!(fabs(whole) < 1e300) && totals[3] == 0.0) totals[3] = (double)number;
}

// One thread per codebook and column: the nearest codeword, the first of equally near ones. `chosen` is [n, codebooks].
extern "C" __global__ void assign(const float* z, const float* book_words, u8* chosen, Code s) {
  u32 t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t >= s.books * s.n) return;
  u32 m = t / s.n, j = t % s.n, best = 0;
  const float* words = book_words + m * s.words * s.dim;
  const float* own = z + m * s.dim * s.n + j;
  float least = ENDLESS;
  for (u32 k = 0; k < s.words; ++k) {
    float square = 0.0f;
    for (u32 d = 0; d < s.dim; ++d) {
      float difference = own[d * s.n] - words[k * s.dim + d];
      square += difference * difference;
    }
    if (square < least) {
      least = square;
      best = k;
    }
  }
  chosen[j * s.books + m] = (u8)best;
}
