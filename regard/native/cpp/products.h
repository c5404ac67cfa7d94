// Matrix products with narrow weights.
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
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "elementwise.h"
#include "processor.h"
#include "threads.h"

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

constexpr int64_t GROUP = 64;    // numbers of an input that share a scale
constexpr int64_t PANEL = 16;    // lines of a matrix that lie together
constexpr int64_t TILE_M = 6;    // rows of an input that are multiplied at once
constexpr int64_t PASS = 96;     // rows that stay in the cache while the matrix passes by

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

// Some groups of the rows as 8-bit integers, in `room`.
void round_rows(const Matrix& w, const float* x, Rows room, Share share) {
  const int64_t groups = groups_of(w.k);
  for (int64_t i = share.begin; i < share.end; i++) {
    const int64_t row = i / groups, at = i % groups * GROUP;
    quantize(x + row * w.k + at, std::min(GROUP, w.k - at), room.data + i * GROUP, room.scale + i,
             room.start + i);
  }
}

// The product of rows that lie rounded in `room` where the weights are 8-bit; see `Worker::share`.
template <class After>
void multiply(const Matrix& w, const float* x, int64_t rows, const Result& to, Rows room,
              Worker& worker, After after) {
  room.groups = groups_of(w.k);
  const int64_t panels = (w.n + PANEL - 1) / PANEL, pieces = worker.pieces(panels, 12);
  auto work = [&](int64_t piece) {
    const Share share(panels, piece, pieces);
    sweep<2>(w, {x, room}, rows, share, to);
  };
  worker.share(pieces, work, after);
}

// All groups of all rows, where the weights are 8-bit.
void round_together(const Matrix& w, const float* x, int64_t rows, Rows room, Worker& worker) {
  if (w.weights != INT8) return;
  const int64_t groups = rows * groups_of(w.k), pieces = worker.pieces(groups, 16);
  worker.share(pieces,
               [&](int64_t piece) { round_rows(w, x, room, Share(groups, piece, pieces)); });
}

// The whole product. `room` is for the rows as 8-bit integers.
void product(const Matrix& w, const float* x, int64_t rows, const Result& to, Rows room,
             Worker& worker) {
  round_together(w, x, rows, room, worker);
  multiply(w, x, rows, to, room, worker, [] {});
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
