// Decoding at the speed at which weights can be read.
//
// A program is a list of operations over registers, each a matrix of float32 with a line for every
// row that is being decoded. All threads run the whole program together; each operation is cut into
// pieces, which go to whoever is free.
//
// A matrix of N lines and K columns lies in panels of 16 lines, one behind the other, so that all of
// it is read in one sweep and sums of 16 lines stand side by side in one register:
//
//     8-bit      (N / 16, K / 4, 16, 4)   w + 128 without sign, and a float32 scale for each line
//     bfloat16   (N / 16, K / 2, 16, 2)
//
// N is filled up to a multiple of 16, K of 64. Where weights are 8-bit, so is what they are
// multiplied with: groups of 64 numbers share a scale, and each group's dot product is exact.
//
// Everything has a plain form that any compiler vectorizes; AVX-512 or AVX2 replace the innermost
// tiles.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && \
    defined(__AVX512VNNI__) && defined(__AVX512VL__) && !defined(PORTABLE)
#define WIDE 1
#else
#define WIDE 0
#endif
#if defined(__AVX2__) && defined(__FMA__) && !defined(PORTABLE)
#define HALF_WIDE 1
#else
#define HALF_WIDE 0
#endif
#if WIDE || HALF_WIDE
#include <immintrin.h>
#endif

namespace {

constexpr int64_t GROUP = 64;    // numbers of an input that share a scale
constexpr int64_t PANEL = 16;    // lines of a matrix that lie together
constexpr int64_t TILE_M = 6;    // rows of an input that are multiplied at once
constexpr int64_t PASS = 96;     // rows that stay in the cache while the matrix passes by

// ------------------------------------------------------------------------------------ threads

inline void relax(int turn) {
  if (turn < 2000) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  } else {
    std::this_thread::yield();  // the others may need this core
  }
}

// One stage of a job: pieces that may be done at the same time.
struct alignas(64) Stage {
  std::atomic<int64_t> taken{0}, done{0};
};

// One of the threads that run a job. All go through the same stages, and none goes on before a
// stage is complete. Nobody waits for a thread that took no piece: on a busy machine it may come
// late, and finds everything done.
struct Worker {
  int thread, threads;
  Stage* stage;

  template <class F>
  void share(int64_t pieces, F work) {
    if (threads == 1) {
      for (int64_t i = 0; i < pieces; i++) work(i);
      return;
    }
    for (int64_t i; (i = stage->taken.fetch_add(1, std::memory_order_relaxed)) < pieces;) {
      work(i);
      stage->done.fetch_add(1, std::memory_order_release);
    }
    for (int i = 0; stage->done.load(std::memory_order_acquire) < pieces; i++) relax(i);
    stage++;
  }

  // Into how many pieces a stage should be cut that has so many parts.
  int64_t pieces(int64_t parts, int64_t least) const {
    return threads == 1 ? 1 : std::max<int64_t>(1, std::min<int64_t>(4 * threads, parts / least));
  }
};

// Threads come from the OpenMP runtime that torch uses: its threads stay awake for a while after
// each of torch's own operations, and would be in the way of others.
struct Runtime {
  void (*parallel)(void (*)(void*), void*, unsigned threads, unsigned flags);
  int (*number)();
  int (*size)();
};

Runtime runtime = {};

struct Job {
  void (*run)(void* data, Worker worker);
  void* data;
  int threads;
  Stage* stages;
};

void enter(void* with) {
  Job& job = *(Job*)with;
  const int thread = runtime.number();
  if (runtime.size() <= job.threads) job.run(job.data, {thread, runtime.size(), job.stages});
}

void run(int64_t threads, int64_t stages, void (*what)(void*, Worker), void* data) {
  if (threads > 1 && runtime.parallel) {
    std::vector<Stage> fresh(stages);
    Job job{what, data, (int)threads, fresh.data()};
    runtime.parallel(enter, &job, (unsigned)threads, 0);
  } else {
    what(data, {0, 1, nullptr});
  }
}

// The items of one piece.
struct Share {
  int64_t begin, end;
  Share(int64_t count, int64_t piece, int64_t pieces)
      : begin(count * piece / pieces), end(count * (piece + 1) / pieces) {}
};

// ------------------------------------------------------------------------------- elementwise

// e^x by 2^n times a polynomial, without a branch; NaN stays NaN.
inline float exponential(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float magic = 12582912.0f;  // adding it rounds to a whole number
  float shifted = x * 1.44269504f + magic;
  float n = shifted - magic;
  float r = x - n * 0.693359375f + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  int32_t bits;
  std::memcpy(&bits, &shifted, 4);
  bits = (int32_t)((uint32_t)bits << 23) + 0x3f800000;
  float power;
  std::memcpy(&power, &bits, 4);
  return p * power;
}

inline float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

enum Activation { LINEAR_, RELU, GELU, GELU_TANH, QUICK_GELU, SWISH, RELU_SQUARED, TANH, SIGMOID };

template <class F>
inline void each(float* x, int64_t count, F f) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) x[i] = f(x[i]);
}

void activate(int kind, float* x, int64_t count) {
  switch (kind) {
    case RELU: return each(x, count, [](float v) { return v < 0.0f ? 0.0f : v; });
    case GELU:
      return each(x, count, [](float v) { return 0.5f * v * (1.0f + erff(v * 0.70710678f)); });
    case GELU_TANH:  // 0.5 (1 + tanh u) is sigmoid(2 u)
      return each(x, count, [](float v) {
        return v * sigmoid(1.5957691216f * (v + 0.044715f * v * v * v));
      });
    case QUICK_GELU: return each(x, count, [](float v) { return v * sigmoid(1.702f * v); });
    case SWISH: return each(x, count, [](float v) { return v * sigmoid(v); });
    case RELU_SQUARED:
      return each(x, count, [](float v) { return v < 0.0f ? 0.0f : v * v; });
    case TANH: return each(x, count, [](float v) { return 2.0f * sigmoid(2.0f * v) - 1.0f; });
    case SIGMOID: return each(x, count, [](float v) { return sigmoid(v); });
  }
}

void normalize(const float* x, float* y, int64_t width, const float* gain, const float* bias,
               float eps) {
  float sum = 0.0f, squares = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < width; i++) sum += x[i];
  float mean = sum / width;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < width; i++) squares += (x[i] - mean) * (x[i] - mean);
  float scale = 1.0f / std::sqrt(squares / width + eps);
#pragma omp simd
  for (int64_t i = 0; i < width; i++) {
    y[i] = (x[i] - mean) * scale * gain[i] + (bias ? bias[i] : 0.0f);
  }
}

// ----------------------------------------------------------------------------------- products

}  // namespace

extern "C" {

enum Weights { INT8 = 0, BFLOAT16 = 1 };

// y = W x + b, W of n lines and k columns.
struct Matrix {
  int64_t weights, n, k;
  const void* data;
  const float* scale;  // one for each line, where the weights are 8-bit
  const float* bias;   // or null
};
}

namespace {

inline int64_t groups_of(int64_t k) { return (k + GROUP - 1) / GROUP; }

// Rows as 8-bit integers: (M, G * 64), with a scale for each group and what its dot products begin
// with: (M, G).
struct Rows {
  int8_t* data;
  float* scale;
  int32_t* start;
  int64_t groups;
};

// One group: at most 64 numbers, zeros behind them. NaN and infinity make the scale NaN.
void quantize(const float* x, int64_t count, int8_t* y, float* scale, int32_t* start) {
  float most = 0.0f, wrong = 0.0f;
#pragma omp simd reduction(max : most) reduction(+ : wrong)
  for (int64_t i = 0; i < count; i++) {
    most = std::max(most, std::fabs(x[i]));
    wrong += x[i] * 0.0f;  // 0, or NaN
  }
  const float inverse = most > 0.0f && wrong == 0.0f ? 127.0f / most : 0.0f;
  int32_t sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; i++) {
    const int32_t rounded = (int32_t)std::nearbyint(x[i] * inverse);
    y[i] = (int8_t)rounded;
    sum += rounded;
  }
  for (int64_t i = count; i < GROUP; i++) y[i] = 0;
  *scale = most / 127.0f + wrong;
  *start = -128 * sum;  // what the 128 in w + 128 will add
}

// What a product reads: rows of floats (M, K), and the same as 8-bit integers.
struct Input {
  const float* floats;
  Rows bytes;
};

// Panels that are read side by side: two long streams come faster than one, or than many.
struct Panels {
  int64_t first, step;
  int64_t at(int64_t p) const { return first + p * step; }
};

#if WIDE

// The sums of M x P products lie in registers; loops over them are unrolled early for that.
#define EACH(i, count) _Pragma("GCC unroll 8") for (int i = 0; i < count; i++)

// 64 bytes of a stream, and a request for those of the next page, where the processor stops by
// itself. A request behind the end does nothing.
inline __m512i read(const void* stream) {
  _mm_prefetch((const char*)stream + 4096, _MM_HINT_T0);
  return _mm512_loadu_si512(stream);
}

template <int M, int P>
inline void store(__m512 (&total)[M][P], float* y) {
  EACH(m, M) EACH(p, P) _mm512_storeu_ps(y + (m * P + p) * PANEL, total[m][p]);
}

// y (M, P, 16): rows times panels.
template <int M, int P>
inline void tile_int8(const Matrix& w, const Input& input, Panels panels, int64_t row, float* y) {
  const Rows& rows = input.bytes;
  const int64_t groups = rows.groups, step = panels.step * groups * GROUP * PANEL;
  const uint8_t* data = (const uint8_t*)w.data + panels.first * groups * GROUP * PANEL;
  const int8_t* x = rows.data + row * groups * GROUP;
  const float* scale = rows.scale + row * groups;
  const int32_t* start = rows.start + row * groups;
  __m512 total[M][P];
  EACH(m, M) EACH(p, P) total[m][p] = _mm512_setzero_ps();
  for (int64_t g = 0; g < groups; g++) {
    __m512i sum[M][P];
    EACH(m, M) EACH(p, P) sum[m][p] = _mm512_set1_epi32(start[m * groups + g]);
    for (int64_t i = g * GROUP; i < (g + 1) * GROUP; i += 4) {
      __m512i lines[P];
      EACH(p, P) lines[p] = read(data + p * step + i * PANEL);
      EACH(m, M) {
        int32_t four;
        std::memcpy(&four, x + m * groups * GROUP + i, 4);
        const __m512i v = _mm512_set1_epi32(four);
        EACH(p, P) sum[m][p] = _mm512_dpbusd_epi32(sum[m][p], lines[p], v);
      }
    }
    EACH(m, M) {
      const __m512 s = _mm512_set1_ps(scale[m * groups + g]);
      EACH(p, P) total[m][p] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[m][p]), s, total[m][p]);
    }
  }
  store<M, P>(total, y);
}

template <int M, int P>
inline void tile_bfloat16(const Matrix& w, const Input& input, Panels panels, int64_t row,
                          float* y) {
  const int64_t whole = groups_of(w.k) * GROUP * PANEL, step = panels.step * whole;
  const uint16_t* data = (const uint16_t*)w.data + panels.first * whole;
  const float* x = input.floats + row * w.k;
  const __m512i high = _mm512_set1_epi32((int)0xffff0000);
  __m512 total[M][P];
  EACH(m, M) EACH(p, P) total[m][p] = _mm512_setzero_ps();
  for (int64_t i = 0; i < w.k; i += 2) {
    __m512 even[P], odd[P];
    EACH(p, P) {
      const __m512i pair = read(data + p * step + i * PANEL);
      even[p] = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
      odd[p] = _mm512_castsi512_ps(_mm512_and_si512(pair, high));
    }
    EACH(m, M) {
      const __m512 v = _mm512_set1_ps(x[m * w.k + i]);
      EACH(p, P) total[m][p] = _mm512_fmadd_ps(even[p], v, total[m][p]);
    }
    if (i + 1 == w.k) break;
    EACH(m, M) {
      const __m512 v = _mm512_set1_ps(x[m * w.k + i + 1]);
      EACH(p, P) total[m][p] = _mm512_fmadd_ps(odd[p], v, total[m][p]);
    }
  }
  store<M, P>(total, y);
}

#else

#if HALF_WIDE

// Sums of 8 lines += their next four weights times four numbers.
inline __m256i dots(__m256i sum, __m256i lines, __m256i four) {
#if defined(__AVXVNNI__)
  return _mm256_dpbusd_avx_epi32(sum, lines, four);
#else
  // In 16 bits, the even and the odd ones: products of 8 bits could overflow in pairs.
  const __m256i low = _mm256_and_si256(lines, _mm256_set1_epi16(0xff));
  const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(four, 8), 8);
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(low, even));
  const __m256i high = _mm256_srli_epi16(lines, 8), odd = _mm256_srai_epi16(four, 8);
  return _mm256_add_epi32(sum, _mm256_madd_epi16(high, odd));
#endif
}

// One panel of one row.
inline void panel_int8(const uint8_t* data, const Rows& rows, int64_t row, float* y) {
  __m256 left = _mm256_setzero_ps(), right = left;
  for (int64_t at = row * rows.groups; at < (row + 1) * rows.groups; at++) {
    __m256i a = _mm256_set1_epi32(rows.start[at]), b = a;
    for (int64_t i = 0; i < GROUP; i += 4, data += 4 * PANEL) {
      int32_t four;
      std::memcpy(&four, rows.data + at * GROUP + i, 4);
      const __m256i x = _mm256_set1_epi32(four);
      a = dots(a, _mm256_loadu_si256((const __m256i*)data), x);
      b = dots(b, _mm256_loadu_si256((const __m256i*)(data + 32)), x);
    }
    const __m256 scale = _mm256_set1_ps(rows.scale[at]);
    left = _mm256_fmadd_ps(_mm256_cvtepi32_ps(a), scale, left);
    right = _mm256_fmadd_ps(_mm256_cvtepi32_ps(b), scale, right);
  }
  _mm256_storeu_ps(y, left);
  _mm256_storeu_ps(y + 8, right);
}

#else

// One panel of one row.
inline void panel_int8(const uint8_t* data, const Rows& rows, int64_t row, float* y) {
  for (int l = 0; l < PANEL; l++) y[l] = 0.0f;
  for (int64_t at = row * rows.groups; at < (row + 1) * rows.groups; at++) {
    const int8_t* x = rows.data + at * GROUP;
    int32_t sum[PANEL];
    for (int l = 0; l < PANEL; l++) sum[l] = rows.start[at];
    for (int64_t i = 0; i < GROUP; i += 4, data += 4 * PANEL) {
      for (int l = 0; l < PANEL; l++) {
        const uint8_t* four = data + 4 * l;
        sum[l] += (int16_t)four[0] * x[i] + (int16_t)four[1] * x[i + 1] +
                  (int16_t)four[2] * x[i + 2] + (int16_t)four[3] * x[i + 3];
      }
    }
    for (int l = 0; l < PANEL; l++) y[l] += rows.scale[at] * (float)sum[l];
  }
}

#endif

template <int M, int P>
inline void tile_int8(const Matrix& w, const Input& input, Panels panels, int64_t row, float* y) {
  const int64_t whole = groups_of(w.k) * GROUP * PANEL;
  for (int m = 0; m < M; m++) {
    for (int p = 0; p < P; p++) {
      const uint8_t* data = (const uint8_t*)w.data + panels.at(p) * whole;
      panel_int8(data, input.bytes, row + m, y + (m * P + p) * PANEL);
    }
  }
}

inline float widened(uint16_t half) {
  const uint32_t bits = (uint32_t)half << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

template <int M, int P>
inline void tile_bfloat16(const Matrix& w, const Input& input, Panels panels, int64_t row,
                          float* y) {
  const int64_t whole = groups_of(w.k) * GROUP * PANEL;
  for (int m = 0; m < M; m++) {
    const float* x = input.floats + (row + m) * w.k;
    for (int p = 0; p < P; p++) {
      const uint16_t* data = (const uint16_t*)w.data + panels.at(p) * whole;
      float sum[PANEL] = {};
      for (int64_t i = 0; i < w.k; i++) {
        const uint16_t* here = data + i / 2 * 2 * PANEL + i % 2;
#pragma omp simd
        for (int l = 0; l < PANEL; l++) sum[l] += x[i] * widened(here[2 * l]);
      }
      std::memcpy(y + (m * P + p) * PANEL, sum, sizeof(sum));
    }
  }
}

#endif

// Sums (rows, P, 16) of one tile.
template <int M, int P>
inline void tile(const Matrix& w, const Input& x, Panels panels, int64_t row, float* sums) {
  if (w.weights == INT8) {
    tile_int8<M, P>(w, x, panels, row, sums);
  } else {
    tile_bfloat16<M, P>(w, x, panels, row, sums);
  }
}

// y (M, N) = activation(x W^T + b) + add
struct Result {
  float* y;
  int activation;
  const float* add;
};

// One panel of one row.
inline void finish(const Matrix& w, float* sum, int64_t panel, int64_t row, const Result& to) {
  const int64_t first = panel * PANEL, count = std::min(PANEL, w.n - first);
  const int64_t at = row * w.n + first;
  for (int64_t i = 0; i < count; i++) {
    const float scale = w.scale ? w.scale[first + i] : 1.0f;
    sum[i] = sum[i] * scale + (w.bias ? w.bias[first + i] : 0.0f);
  }
  activate(to.activation, sum, count);
  for (int64_t i = 0; i < count; i++) to.y[at + i] = sum[i] + (to.add ? to.add[at + i] : 0.0f);
}

// Some rows times some panels.
template <int M, int P>
inline void piece(const Matrix& w, const Input& x, Panels panels, int64_t row, const Result& to) {
  alignas(64) float sums[M * P * PANEL];
  tile<M, P>(w, x, panels, row, sums);
  for (int m = 0; m < M; m++) {
    for (int p = 0; p < P; p++) finish(w, sums + (m * P + p) * PANEL, panels.at(p), row + m, to);
  }
}

template <int P>
inline void pieces(const Matrix& w, const Input& x, Panels panels, int64_t row, int64_t last,
                   const Result& to) {
  for (; row + TILE_M <= last; row += TILE_M) piece<TILE_M, P>(w, x, panels, row, to);
  switch (last - row) {
    case 1: return piece<1, P>(w, x, panels, row, to);
    case 2: return piece<2, P>(w, x, panels, row, to);
    case 3: return piece<3, P>(w, x, panels, row, to);
    case 4: return piece<4, P>(w, x, panels, row, to);
    case 5: return piece<5, P>(w, x, panels, row, to);
  }
}

// All rows times the panels of one piece, which are read in P streams.
template <int P>
inline void sweep(const Matrix& w, const Input& x, int64_t rows, Share share, const Result& to) {
  const int64_t step = (share.end - share.begin) / P;
  for (int64_t row = 0; row < rows; row += PASS) {
    const int64_t last = std::min(rows, row + PASS);
    for (int64_t i = 0; i < step; i++) pieces<P>(w, x, {share.begin + i, step}, row, last, to);
    for (int64_t panel = share.begin + P * step; panel < share.end; panel++) {
      pieces<1>(w, x, {panel, 0}, row, last, to);
    }
  }
}

constexpr int64_t STAGES = 2;  // of an operation, at most

// The whole product. `room` is for the rows as 8-bit integers.
void product(const Matrix& w, const float* x, int64_t rows, const Result& to, Rows room,
             Worker& worker) {
  const int64_t groups = room.groups = groups_of(w.k), all = rows * groups;
  if (w.weights == INT8) {
    const int64_t pieces = worker.pieces(all, 16);
    worker.share(pieces, [&](int64_t piece) {
      const Share share(all, piece, pieces);
      for (int64_t i = share.begin; i < share.end; i++) {
        const int64_t row = i / groups, at = i % groups * GROUP;
        quantize(x + row * w.k + at, std::min(GROUP, w.k - at), room.data + i * GROUP,
                 room.scale + i, room.start + i);
      }
    });
  }
  const int64_t panels = (w.n + PANEL - 1) / PANEL, pieces = worker.pieces(panels, 12);
  worker.share(pieces, [&](int64_t piece) {
    const Share share(panels, piece, pieces);
    sweep<2>(w, {x, room}, rows, share, to);
  });
}

// ---------------------------------------------------------------------------------- attention

// One query over `count` keys and values that lie `step` apart.
void attend(const float* query, const float* keys, const float* values, int64_t count,
            int64_t step, int64_t width, float scale, float* weights, float* context) {
  for (int64_t i = 0; i < width; i++) context[i] = 0.0f;
  if (count == 0) return;
  int64_t s = 0;
  for (; s + 4 <= count; s += 4) {
    const float *a = keys + s * step, *b = a + step, *c = b + step, *d = c + step;
    float p = 0.0f, q = 0.0f, r = 0.0f, t = 0.0f;
#pragma omp simd reduction(+ : p, q, r, t)
    for (int64_t i = 0; i < width; i++) {
      p += query[i] * a[i], q += query[i] * b[i], r += query[i] * c[i], t += query[i] * d[i];
    }
    weights[s] = p, weights[s + 1] = q, weights[s + 2] = r, weights[s + 3] = t;
  }
  for (; s < count; s++) {
    float p = 0.0f;
#pragma omp simd reduction(+ : p)
    for (int64_t i = 0; i < width; i++) p += query[i] * keys[s * step + i];
    weights[s] = p;
  }
  float most = weights[0], sum = 0.0f;
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < count; i++) most = std::max(most, weights[i]);
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; i++) {
    weights[i] = exponential((weights[i] - most) * scale);
    sum += weights[i];
  }
  for (s = 0; s + 4 <= count; s += 4) {
    const float *a = values + s * step, *b = a + step, *c = b + step, *d = c + step;
    const float p = weights[s], q = weights[s + 1], r = weights[s + 2], t = weights[s + 3];
#pragma omp simd
    for (int64_t i = 0; i < width; i++) context[i] += p * a[i] + q * b[i] + r * c[i] + t * d[i];
  }
  for (; s < count; s++) {
#pragma omp simd
    for (int64_t i = 0; i < width; i++) context[i] += weights[s] * values[s * step + i];
  }
#pragma omp simd
  for (int64_t i = 0; i < width; i++) context[i] /= sum;
}

}  // namespace

// ----------------------------------------------------------------------------------- programs

extern "C" {

enum Kind { NORM = 0, LINEAR = 1, SELF = 2, CROSS = 3, ADD = 4 };

// target = f(source), numbers of registers; `other` is added where it is not negative.
struct Op {
  int32_t kind, target, source, other;
  int32_t layer, heads, head_dim, activation;
  float number, unused;  // the scale of scores, or the epsilon of a norm
  const Matrix* matrix;
  const float *gain, *bias;  // of a norm
};

// Keys and values (rows, layers, heads, positions, width), with the steps of the first four.
struct Memory {
  float *keys, *values;
  int64_t row, layer, head, position;
  const int64_t* lengths;  // how many positions each row has; in a cache before this token
  int64_t sharing;         // rows that read the same memory
  int64_t longest;         // no length is above it
};

struct Program {
  const Op* ops;
  int64_t count;
  const int64_t* widths;  // of the registers; the first is what comes in and goes out
  int64_t registers, widest;
};
}

namespace {

struct Call {
  const Program* program;
  int64_t rows;
  const Memory *cache, *source;
  std::vector<float*> registers;
  Rows room;
  float* weights;  // of attention, for each thread
  int64_t most;    // positions
};

void self_attention(const Op& op, const Call& call, Share share, int thread) {
  const int64_t inner = (int64_t)op.heads * op.head_dim;
  const Memory& cache = *call.cache;
  for (int64_t i = share.begin; i < share.end; i++) {
    const int64_t row = i / op.heads, head = i % op.heads;
    const float* query = call.registers[op.source] + row * 3 * inner + head * op.head_dim;
    const int64_t at = row * cache.row + op.layer * cache.layer + head * cache.head;
    float *keys = cache.keys + at, *values = cache.values + at;
    const int64_t end = cache.lengths[row];
    std::memcpy(keys + end * cache.position, query + inner, op.head_dim * sizeof(float));
    std::memcpy(values + end * cache.position, query + 2 * inner, op.head_dim * sizeof(float));
    attend(query, keys, values, end + 1, cache.position, op.head_dim, op.number,
           call.weights + thread * call.most,
           call.registers[op.target] + row * inner + head * op.head_dim);
  }
}

void cross_attention(const Op& op, const Call& call, Share share, int thread) {
  const int64_t inner = (int64_t)op.heads * op.head_dim;
  const Memory& source = *call.source;
  for (int64_t i = share.begin; i < share.end; i++) {
    const int64_t row = i / op.heads, head = i % op.heads, memory = row / source.sharing;
    const int64_t at = memory * source.row + op.layer * source.layer + head * source.head;
    const int64_t here = row * inner + head * op.head_dim;
    attend(call.registers[op.source] + here, source.keys + at, source.values + at,
           source.lengths[memory], source.position, op.head_dim, op.number,
           call.weights + thread * call.most, call.registers[op.target] + here);
  }
}

void rowwise(const Op& op, const Call& call, Share share) {
  const int64_t width = call.program->widths[op.source];
  for (int64_t row = share.begin; row < share.end; row++) {
    const float* x = call.registers[op.source] + row * width;
    float* y = call.registers[op.target] + row * width;
    if (op.kind == NORM) {
      normalize(x, y, width, op.gain, op.bias, op.number);
    } else {
      const float* other = call.registers[op.other] + row * width;
#pragma omp simd
      for (int64_t i = 0; i < width; i++) y[i] = x[i] + other[i];
    }
  }
}

void execute(void* data, Worker worker) {
  const Call& call = *(Call*)data;
  for (int64_t i = 0; i < call.program->count; i++) {
    const Op& op = call.program->ops[i];
    if (op.kind == LINEAR) {
      const float* add = op.other < 0 ? nullptr : call.registers[op.other];
      product(*op.matrix, call.registers[op.source], call.rows,
              {call.registers[op.target], op.activation, add}, call.room, worker);
      continue;
    }
    const bool attention = op.kind == SELF || op.kind == CROSS;
    const int64_t parts = attention ? call.rows * op.heads : call.rows;
    const int64_t pieces = worker.pieces(parts, 1);
    worker.share(pieces, [&](int64_t piece) {
      const Share share(parts, piece, pieces);
      if (op.kind == SELF) {
        self_attention(op, call, share, worker.thread);
      } else if (op.kind == CROSS) {
        cross_attention(op, call, share, worker.thread);
      } else {
        rowwise(op, call, share);
      }
    });
  }
}

// Scratch memory of the calling thread: as large as it ever was.
template <class T>
T* scratch(std::vector<T>& kept, int64_t count) {
  if ((int64_t)kept.size() < count) kept.resize(count);
  return kept.data();
}

Rows room_for(int64_t rows, int64_t k) {
  static thread_local std::vector<int8_t> data;
  static thread_local std::vector<float> scale;
  static thread_local std::vector<int32_t> start;
  const int64_t groups = rows * groups_of(k);
  return {scratch(data, groups * GROUP), scratch(scale, groups), scratch(start, groups), 0};
}

struct Product {
  const Matrix* w;
  const float* x;
  int64_t rows;
  float* y;
  Rows room;
};

void one_product(void* data, Worker worker) {
  const Product& p = *(Product*)data;
  product(*p.w, p.x, p.rows, {p.y, LINEAR_, nullptr}, p.room, worker);
}

}  // namespace

extern "C" {

// The functions of an OpenMP runtime; without them everything runs in one thread.
void regard_threads(decltype(Runtime::parallel) parallel, decltype(Runtime::number) number,
                    decltype(Runtime::size) size) {
  runtime = {parallel, number, size};
}

// x (M, K) -> y (M, N)
void regard_linear(int64_t weights, int64_t n, int64_t k, const void* data, const float* scale,
                   const float* bias, const float* x, int64_t rows, float* y, int64_t threads) {
  Matrix w{weights, n, k, data, scale, bias};
  Product p{&w, x, rows, y, weights == INT8 ? room_for(rows, k) : Rows{}};
  run(threads, STAGES, one_product, &p);
}

// hidden (rows, width), in and out: one token for each row. `source` may be null.
void regard_run(const Program* program, float* hidden, int64_t rows, const Memory* cache,
                const Memory* source, int64_t threads) {
  static thread_local std::vector<float> kept, weights;
  Call call{program, rows, cache, source, {}, {}, nullptr, 0};
  int64_t total = 0;
  for (int64_t i = 1; i < program->registers; i++) total += program->widths[i] * rows;
  float* next = scratch(kept, total);
  call.registers.push_back(hidden);
  for (int64_t i = 1; i < program->registers; i++) {
    call.registers.push_back(next);
    next += program->widths[i] * rows;
  }
  call.most = std::max(cache->longest + 1, source ? source->longest : 0) + 16;
  call.weights = scratch(weights, call.most * threads);
  call.room = room_for(rows, program->widest);
  run(threads, STAGES * program->count, execute, &call);
}

// 0 if products of this library are right on this processor.
int regard_check() {
  constexpr int64_t n = 21, k = 200, rows = 5;
  const int64_t lines = (n + PANEL - 1) / PANEL * PANEL, columns = groups_of(k) * GROUP;
  std::vector<uint8_t> bytes(lines * columns, 128);
  std::vector<uint16_t> halves(lines * columns, 0x3f80);  // ones
  std::vector<float> x(rows * k), y(rows * n), scale(n, 0.5f);
  auto weight = [](int64_t line, int64_t column) { return (line * 7 + column) * 37 % 255 - 127; };
  for (int64_t line = 0; line < n; line++) {
    for (int64_t i = 0; i < k; i++) {
      const int64_t panel = line / PANEL * PANEL * columns;
      bytes[panel + (i / 4 * PANEL + line % PANEL) * 4 + i % 4] = weight(line, i) + 128;
    }
  }
  for (int64_t i = 0; i < rows * k; i++) x[i] = (float)(i % 64 == 0 ? 127 : i * 29 % 200 - 100);
  for (int64_t weights : {INT8, BFLOAT16}) {
    const void* data = weights == INT8 ? (void*)bytes.data() : (void*)halves.data();
    regard_linear(weights, n, k, data, scale.data(), nullptr, x.data(), rows, y.data(), 2);
    for (int64_t i = 0; i < rows * n; i++) {
      double sum = 0.0, size = 0.0;
      for (int64_t j = 0; j < k; j++) {
        double term = 0.5 * x[i / n * k + j] * (weights == INT8 ? weight(i % n, j) : 1);
        sum += term, size += std::fabs(term);
      }
      if (!(std::fabs(y[i] - sum) <= (weights == INT8 ? 1e-2 : 1e-5) * size)) return 1;
    }
  }
  return 0;
}
}
