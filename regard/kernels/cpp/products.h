// Matrix products with quantized weights.
//
// A matrix W of N rows and K columns is stored in panels of 16 rows, so that it is read
// sequentially and the sums of 16 rows are in one register:
//
//     8-bit      (N / 16, K / 4, 16, 4)   w + 128, unsigned, and a float32 scale for each row
//     bfloat16   (N / 16, K / 2, 16, 2)
//
// N is padded to a multiple of 16, K of 64. Inputs are quantized too: to bfloat16, or to 8 bits in
// groups of 64 numbers that share a scale, so that dot products of groups are exact.
//
// A tile is the product of up to ROWS rows of the input with up to PANELS panels. Each of its
// numbers is computed in the same order whatever the tile's size, so that the product of a row is
// bit-identical alone and in any batch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "elementwise.h"
#include "rounding.h"
#include "threads.h"
#include "vectors.h"

extern "C" {

enum Weights { INT8 = 0, BFLOAT16 = 1 };

// y = W x + b, W of n rows and k columns.
struct Matrix {
  int64_t weights, n, k;
  const void* data;
  const float* scale;  // one for each row, where the weights are 8-bit
  const float* bias;   // or null
};
}

namespace {

constexpr int64_t PANEL = 16;          // rows of W
constexpr int PARTS = PANEL / VECTOR;  // vectors that hold the sums of a panel
constexpr int64_t SLICE = STEPS * 64;  // bytes of a panel that are multiplied with a chunk of a row
constexpr int PANELS = WIDE ? 2 : 1;   // of a tile, at most
constexpr int64_t PASS = 192 / ROWS;   // tiles whose rows stay in the cache while W is read
constexpr int64_t FAST_ROWS = 2;       // up to which the processor prefetches by itself

inline int64_t chunks_of(const Matrix& w) {
  return groups_of(w.k) * (w.weights == INT8 ? 1 : 2);
}

// The panels of a tile, and the bytes between them.
struct Panels {
  const uint8_t* first;
  int64_t stride;
};

// What a tile prefetches: from `bytes` behind its panels on, `lines` cache lines at every fourth
// step.
struct Prefetch {
  int64_t bytes, lines;
};

// y (M, N) = activation(x W^T + b) + add
struct Result {
  float* y;
  int activation;
  const float* add;
  int64_t stride = 0;  // of the rows of y; 0: N
};

// What is done with the sums of a tile, M rows of V vectors of columns of y.
struct Epilogue {
  const float *scale, *bias;          // of the first column; or null
  const float* add;                   // to the first row and column; or null
  float* y;                           // of the first row and column
  int64_t row_stride, panel_stride;  // of y
  bool relu;
  float* sums;  // (M, V, VECTOR), which get the sums, and y nothing; or null
};

template <int M, int V>
inline void finish_tile(Floats (&total)[M][V], const Epilogue& end) {
  if (end.sums) {
    EACH(m, M) EACH(v, V) store(end.sums + (m * V + v) * VECTOR, total[m][v]);
    return;
  }
  EACH(v, V) {
    const int64_t column = v / PARTS * end.panel_stride + v % PARTS * VECTOR;
    const Floats scale = end.scale ? load(end.scale + column) : filled(1.0f);
    const Floats bias = end.bias ? load(end.bias + column) : filled(0.0f);
    EACH(m, M) total[m][v] = times_plus(total[m][v], scale, bias);
    if (end.relu) EACH(m, M) total[m][v] = not_negative(total[m][v]);
    if (end.add) {
      EACH(m, M) {
        total[m][v] = plus(total[m][v], load(end.add + m * end.row_stride + column));
      }
    }
    EACH(m, M) store(end.y + m * end.row_stride + column, total[m][v]);
  }
}

// A tile's rows, which begin at chunk `at`, times its panels. Never inlined, so that it can use all
// registers.
template <int KIND, int M, int V>
__attribute__((noinline)) void multiply_tile(const Panels& panels, int64_t chunks,
                                             const Rows& rows, int64_t at, const Prefetch& prefetch,
                                             const Epilogue& end) {
  const int64_t stride = panels.stride, requests = prefetch.lines;
  const uint8_t *weights = panels.first, *next = weights + prefetch.bytes;
  const int8_t* x = rows.data + at * CHUNK;
  const float* scale = rows.scale + at;
  const int32_t* start = rows.start + at;
  Floats total[M][V];
  EACH(m, M) EACH(v, V) total[m][v] = filled(0.0f);
  for (int64_t s = 0; s < chunks; s++) {
    Ints sum[M][V];
    EACH(m, M) EACH(v, V) sum[m][v] = filled(KIND == INT8 ? start[m] : 0);
    for (int i = 0; i < STEPS; i += 4) {
      for (int64_t j = 0; j < requests; j++, next += 64) {
        EACH(p, V / PARTS) __builtin_prefetch(next + p * stride);
      }
      EACH(j, 4) {
        const uint8_t* step = weights + (i + j) * 64;
        Ints w[V];
        EACH(v, V) w[v] = load_ints(step + v / PARTS * stride + v % PARTS * sizeof(Ints));
        EACH(m, M) {
          const Ints four = repeated(x + m * CHUNK + (i + j) * 4);
          EACH(v, V) {
            if constexpr (KIND == INT8) {
              add_fours(sum[m][v], w[v], four);
            } else {
              add_pairs(total[m][v], w[v], four);
            }
          }
        }
      }
    }
    if constexpr (KIND == INT8) {
      EACH(m, M) {
        const Floats group = filled(scale[m]);
        EACH(v, V) total[m][v] = times_plus(as_floats(sum[m][v]), group, total[m][v]);
      }
    }
    weights += SLICE, x += M * CHUNK, scale += M, start += M;
  }
  finish_tile<M, V>(total, end);
}

// M rows from `row` on, times P panels: `panel`, `panel + spacing`, ...
template <int M, int P>
void tile(const Matrix& w, const Rows& rows, int64_t row, int64_t panel, int64_t spacing,
          const Prefetch& prefetch, const Result& to) {
  constexpr int V = P * PARTS;
  const int64_t chunks = chunks_of(w), size = chunks * SLICE;
  const Panels panels{(const uint8_t*)w.data + panel * size, spacing * size};
  auto column = [&](int v) { return (panel + v / PARTS * spacing) * PANEL + v % PARTS * VECTOR; };
  const int64_t stride = to.stride ? to.stride : w.n, first = row * stride + panel * PANEL;
  auto offset = [&](int m, int v) { return (row + m) * stride + column(v); };
  EACH(m, M) EACH(p, P) __builtin_prefetch(to.y + offset(m, p * PARTS), 1);
  if (to.add) EACH(m, M) EACH(p, P) __builtin_prefetch(to.add + offset(m, p * PARTS));

  alignas(64) float sums[M * V * VECTOR];
  const bool full = column(V - 1) + VECTOR <= w.n, relu = to.activation == RELU;
  const bool simple = full && (relu || to.activation == LINEAR_);
  auto from = [&](const float* x) { return x ? x + panel * PANEL : nullptr; };
  const Epilogue end{from(w.scale), from(w.bias),   to.add ? to.add + first : nullptr, to.y + first,
                     stride, spacing * PANEL, relu, simple ? nullptr : sums};
  auto multiply = w.weights == INT8 ? multiply_tile<INT8, M, V> : multiply_tile<BFLOAT16, M, V>;
  multiply(panels, chunks, rows, row * chunks, prefetch, end);
  if (simple) return;
  EACH(v, V) {
    const int64_t left = w.n - column(v);
    const Floats scale = w.scale ? load_some(w.scale + column(v), left) : filled(1.0f);
    const Floats bias = w.bias ? load_some(w.bias + column(v), left) : filled(0.0f);
    EACH(m, M) {
      float* sum = sums + (m * V + v) * VECTOR;
      store(sum, times_plus(load(sum), scale, bias));
    }
  }
  if (to.activation != LINEAR_) activate(to.activation, sums, M * V * VECTOR);
  EACH(v, V) {
    const int64_t left = w.n - column(v);
    EACH(m, M) {
      Floats y = load(sums + (m * V + v) * VECTOR);
      if (to.add) y = plus(y, load_some(to.add + offset(m, v), left));
      store_some(to.y + offset(m, v), y, left);
    }
  }
}

// A tile of `height` rows.
template <int P, int M = 1, class... Rest>
void tile_of(int64_t height, const Rest&... rest) {
  if (height == M) return tile<M, P>(rest...);
  if constexpr (M < ROWS) tile_of<P, M + 1>(height, rest...);
}

// Tiles of rows times a range of panels.
//
// One tile alone is limited by memory; then two long streams, from the first half of the panels and
// from the second, are faster than one. Of several tiles, each prefetches a part of the next
// panels, so that memory is never idle; the first panels are read by the first tile.
struct Sweep {
  const Matrix& w;
  const Rows& rows;
  const Result& to;
  Share panels;

  // Tiles of the rows between `edges`, times P panels.
  template <int P>
  void pass(const int64_t* edges, int64_t count, int64_t panel, int64_t spacing) const {
    const int64_t size = chunks_of(w) * SLICE, all = (w.n + PANEL - 1) / PANEL;
    const bool begins = panel == panels.begin, ends = panel + 2 * P > all;
    const int64_t prefetching = begins ? count - 1 : count;  // tiles that do
    const int64_t lines = ends || !prefetching ? 0 : (4 + prefetching - 1) / prefetching;
    for (int64_t t = 0; t < count; t++) {
      const int64_t first = edges[t], end = edges[t + 1];
      const int64_t part = (begins ? t - 1 : t) * lines;  // in quarters of a panel
      Prefetch prefetch{P * size + part * size / 4, part < 4 ? lines : 0};
      if (count == 1 || part < 0) prefetch = {4096, end - first > FAST_ROWS ? 4 : 0};
      tile_of<P>(end - first, w, rows, first, panel, spacing, prefetch, to);
    }
  }

  void run(Share tiles) const {
    for (int64_t first = tiles.begin; first < tiles.end; first += PASS) {
      const int64_t count = std::min(PASS, tiles.end - first);
      int64_t edges[PASS + 1];
      for (int64_t t = 0; t <= count; t++) edges[t] = rows.first(first + t);
      const int64_t pairs = (panels.end - panels.begin) / PANELS;
      const bool alone = count == 1;
      for (int64_t i = 0; i < pairs; i++) {
        const int64_t panel = panels.begin + (alone ? i : i * PANELS);
        pass<PANELS>(edges, count, panel, alone ? pairs : 1);
      }
      for (int64_t panel = panels.begin + pairs * PANELS; panel < panels.end; panel++) {
        pass<1>(edges, count, panel, 1);
      }
    }
  }
};

// Quantizes a share of the groups of all rows.
void round_rows(const Matrix& w, const float* x, Rows buffer, Share share) {
  round_groups(w.weights == INT8, x, w.k, buffer, share);
}

// Quantizes all rows.
void round_all(const Matrix& w, const float* x, Rows buffer, Worker& worker) {
  const int64_t groups = buffer.count * groups_of(w.k), pieces = worker.pieces(groups, 16);
  worker.share(pieces,
               [&](int64_t piece) { round_rows(w, x, buffer, Share(groups, piece, pieces)); });
}

// The product of the quantized rows in `buffer`. `done` is called with the rows and the GROUPs of
// columns that a work item has computed; for `after` see `Worker::share`.
template <class Done, class After>
void multiply(const Matrix& w, const Result& to, Rows buffer, Worker& worker, Done done,
              After after) {
  constexpr int64_t UNIT = GROUP / PANEL;
  const int64_t panels = (w.n + PANEL - 1) / PANEL, units = (panels + UNIT - 1) / UNIT;
  const int64_t tiles = buffer.tiles();
  // A matrix that is read once is read in long streams; one that is read often may be cut finer.
  const int64_t minimum = std::max((int64_t)1, 6 / tiles * PANELS / UNIT);
  const int64_t across = worker.pieces(units, minimum);
  const int64_t along = std::max((int64_t)1, worker.pieces(tiles, PASS) / across);
  worker.share(
      across * along,
      [&](int64_t piece) {
        const Share columns(units, piece / along, across), rows(tiles, piece % along, along);
        const Share own_panels(columns.begin * UNIT, std::min(columns.end * UNIT, panels));
        for (int64_t first = rows.begin; first < rows.end; first += PASS) {
          const Share block(first, std::min(first + PASS, rows.end));
          Sweep{w, buffer, to, own_panels}.run(block);
          done(Share(buffer.first(block.begin), buffer.first(block.end)), columns);
        }
      },
      after);
}

template <class After>
void multiply(const Matrix& w, const Result& to, Rows buffer, Worker& worker, After after) {
  multiply(w, to, buffer, worker, [](Share, Share) {}, after);
}

// The whole product. `buffer` has space for at least `rows` quantized rows.
void product(const Matrix& w, const float* x, int64_t rows, const Result& to, Rows buffer,
             Worker& worker) {
  buffer.count = rows;
  round_all(w, x, buffer, worker);
  multiply(w, to, buffer, worker, [] {});
}

struct Product {
  const Matrix* w;
  const float* x;
  int64_t rows;
  float* y;
  Rows buffer;
};

void one_product(void* data, Worker worker) {
  const Product& p = *(Product*)data;
  product(*p.w, p.x, p.rows, {p.y, LINEAR_, nullptr}, p.buffer, worker);
}

}  // namespace
