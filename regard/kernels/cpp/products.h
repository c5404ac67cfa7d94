// Matrix products with quantized weights.
//
// A matrix of N lines and K columns lies in panels of 16 lines, one behind the other, so that all
// of it is read in one sweep and sums of 16 lines stand side by side in one register:
//
//     8-bit      (N / 16, K / 4, 16, 4)   w + 128 without sign, and a float32 scale for each line
//     bfloat16   (N / 16, K / 2, 16, 2)
//
// N is filled up to a multiple of 16, K of 64. What is multiplied with them is quantized, too:
// bfloat16, or 8-bit in groups of 64 numbers that share a scale, so that dot products of groups are
// exact.
//
// A tile is the product of some rows with some panels. Each of its numbers is computed alone and in
// the same order whatever the tile's size, so that a row gives the same, to the last bit, alone and
// among others.
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

// y = W x + b, W of n lines and k columns.
struct Matrix {
  int64_t weights, n, k;
  const void* data;
  const float* scale;  // one for each line, where the weights are 8-bit
  const float* bias;   // or null
};
}

namespace {

constexpr int64_t PANEL = 16;          // lines of a matrix that lie together
constexpr int PARTS = PANEL / VECTOR;   // vectors that hold the sums of a panel
constexpr int64_t SLICE = STEPS * 64;  // bytes of a panel that meet a stretch of a row
constexpr int PANELS = WIDE ? 2 : 1;   // of a tile, at most
constexpr int64_t PASS = 192 / ROWS;    // tiles that stay in the cache while the matrix passes by
constexpr int64_t FOLLOWED = 2;        // rows so fast that the processor sees streams by itself

inline int64_t stretches_of(const Matrix& w) {
  return groups_of(w.k) * (w.weights == INT8 ? 1 : 2);
}

// Where the panels of a tile begin, and how far apart.
struct Panels {
  const uint8_t* first;
  int64_t apart;
};

// What a tile asks for that is not yet in the cache: from so many bytes behind its panels on, and
// so many times 64 bytes at every fourth step.
struct Ahead {
  int64_t bytes, lines;
};

// y (M, N) = activation(x W^T + b) + add
struct Result {
  float* y;
  int activation;
  const float* add;
  int64_t apart = 0;  // rows of y; 0: as many numbers as W has lines
};

// What becomes of the sums of a tile: V times VECTOR lines of a matrix, of which a panel each lie
// together.
struct Ending {
  const float *scale, *bias;  // of the first line; or null
  const float* add;           // to the first row and line; or null
  float* y;                   // of the first row and line
  int64_t row, panel;         // how far apart rows and panels are
  bool positive;              // numbers below 0 become 0
  float* sums;                // (M, V, VECTOR): where they go instead, as they are
};

template <int M, int V>
inline void finish_tile(Floats (&total)[M][V], const Ending& end) {
  if (end.sums) {
    EACH(m, M) EACH(v, V) store(end.sums + (m * V + v) * VECTOR, total[m][v]);
    return;
  }
  EACH(v, V) {
    const int64_t line = v / PARTS * end.panel + v % PARTS * VECTOR;
    const Floats scale = end.scale ? load(end.scale + line) : filled(1.0f);
    const Floats bias = end.bias ? load(end.bias + line) : filled(0.0f);
    EACH(m, M) total[m][v] = times_plus(total[m][v], scale, bias);
    if (end.positive) EACH(m, M) total[m][v] = not_negative(total[m][v]);
    if (end.add) EACH(m, M) total[m][v] = plus(total[m][v], load(end.add + m * end.row + line));
    EACH(m, M) store(end.y + m * end.row + line, total[m][v]);
  }
}

// A tile's rows, which begin at stretch `at`, times its panels. Never inlined, so that it has all
// registers for itself.
template <int KIND, int M, int V>
__attribute__((noinline)) void multiply_tile(const Panels& panels, int64_t stretches,
                                             const Rows& rows, int64_t at, const Ahead& ahead,
                                             const Ending& end) {
  const int64_t apart = panels.apart, asked = ahead.lines;
  const uint8_t *lines = panels.first, *next = lines + ahead.bytes;
  const int8_t* x = rows.data + at * STRETCH;
  const float* scale = rows.scale + at;
  const int32_t* start = rows.start + at;
  Floats total[M][V];
  EACH(m, M) EACH(v, V) total[m][v] = filled(0.0f);
  for (int64_t s = 0; s < stretches; s++) {
    Ints sum[M][V];
    EACH(m, M) EACH(v, V) sum[m][v] = filled(KIND == INT8 ? start[m] : 0);
    for (int i = 0; i < STEPS; i += 4) {
      for (int64_t j = 0; j < asked; j++, next += 64) {
        EACH(p, V / PARTS) __builtin_prefetch(next + p * apart);
      }
      EACH(j, 4) {
        const uint8_t* here = lines + (i + j) * 64;
        Ints w[V];
        EACH(v, V) w[v] = load_ints(here + v / PARTS * apart + v % PARTS * sizeof(Ints));
        EACH(m, M) {
          const Ints four = repeated(x + m * STRETCH + (i + j) * 4);
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
    lines += SLICE, x += M * STRETCH, scale += M, start += M;
  }
  finish_tile<M, V>(total, end);
}

// M rows from `row` on, times P panels from `panel` on that are so many panels apart.
template <int M, int P>
void tile(const Matrix& w, const Rows& rows, int64_t row, int64_t panel, int64_t apart,
          const Ahead& ahead, const Result& to) {
  constexpr int V = P * PARTS;
  const int64_t stretches = stretches_of(w), size = stretches * SLICE;
  const Panels panels{(const uint8_t*)w.data + panel * size, apart * size};
  auto line = [&](int v) { return (panel + v / PARTS * apart) * PANEL + v % PARTS * VECTOR; };
  const int64_t step = to.apart ? to.apart : w.n, first = row * step + panel * PANEL;
  auto place = [&](int m, int v) { return (row + m) * step + line(v); };
  EACH(m, M) EACH(p, P) __builtin_prefetch(to.y + place(m, p * PARTS), 1);
  if (to.add) EACH(m, M) EACH(p, P) __builtin_prefetch(to.add + place(m, p * PARTS));

  alignas(64) float sums[M * V * VECTOR];
  const bool whole = line(V - 1) + VECTOR <= w.n, relu = to.activation == RELU;
  const bool simple = whole && (relu || to.activation == LINEAR_);
  auto from = [&](const float* lines) { return lines ? lines + panel * PANEL : nullptr; };
  const Ending end{from(w.scale), from(w.bias),   to.add ? to.add + first : nullptr, to.y + first,
                   step,          apart * PANEL, relu, simple ? nullptr : sums};
  auto multiply = w.weights == INT8 ? multiply_tile<INT8, M, V> : multiply_tile<BFLOAT16, M, V>;
  multiply(panels, stretches, rows, row * stretches, ahead, end);
  if (simple) return;
  EACH(v, V) {
    const int64_t left = w.n - line(v);
    const Floats scale = w.scale ? load_some(w.scale + line(v), left) : filled(1.0f);
    const Floats bias = w.bias ? load_some(w.bias + line(v), left) : filled(0.0f);
    EACH(m, M) {
      float* sum = sums + (m * V + v) * VECTOR;
      store(sum, times_plus(load(sum), scale, bias));
    }
  }
  if (to.activation != LINEAR_) activate(to.activation, sums, M * V * VECTOR);
  EACH(v, V) {
    const int64_t left = w.n - line(v);
    EACH(m, M) {
      Floats y = load(sums + (m * V + v) * VECTOR);
      if (to.add) y = plus(y, load_some(to.add + place(m, v), left));
      store_some(to.y + place(m, v), y, left);
    }
  }
}

// A tile of so many rows.
template <int P, int M = 1, class... Rest>
void tile_of(int64_t height, const Rest&... rest) {
  if (height == M) return tile<M, P>(rest...);
  if constexpr (M < ROWS) tile_of<P, M + 1>(height, rest...);
}

// Some tiles of rows times some panels.
//
// One tile alone takes its panels from memory as fast as they come; then two long streams, from the
// first half of the panels and from the second, are better than one. Of several tiles, each asks
// for a part of the next panels, so that memory is never idle; the first panels are the first
// tile's.
struct Sweep {
  const Matrix& w;
  const Rows& rows;
  const Result& to;
  Share panels;

  // Tiles begin and end at these rows.
  template <int P>
  void pass(const int64_t* edges, int64_t count, int64_t panel, int64_t apart) const {
    const int64_t size = stretches_of(w) * SLICE, all = (w.n + PANEL - 1) / PANEL;
    const bool begins = panel == panels.begin, ends = panel + 2 * P > all;
    const int64_t askers = begins ? count - 1 : count;
    const int64_t lines = ends || !askers ? 0 : (4 + askers - 1) / askers;
    for (int64_t t = 0; t < count; t++) {
      const int64_t first = edges[t], end = edges[t + 1];
      const int64_t part = (begins ? t - 1 : t) * lines;  // in quarters of a panel
      Ahead ahead{P * size + part * size / 4, part < 4 ? lines : 0};
      if (count == 1 || part < 0) ahead = {4096, end - first > FOLLOWED ? 4 : 0};
      tile_of<P>(end - first, w, rows, first, panel, apart, ahead, to);
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

// Some groups of the rows, counted row after row.
void round_rows(const Matrix& w, const float* x, Rows room, Share share) {
  round_groups(w.weights == INT8, x, w.k, room, share);
}

// All groups of all rows.
void round_together(const Matrix& w, const float* x, Rows room, Worker& worker) {
  const int64_t groups = room.count * groups_of(w.k), pieces = worker.pieces(groups, 16);
  worker.share(pieces,
               [&](int64_t piece) { round_rows(w, x, room, Share(groups, piece, pieces)); });
}

// The product of rows that lie rounded in `room`; see `Worker::share`. `made` is told of rows and of
// GROUPs of columns that are there.
template <class Made, class After>
void multiply(const Matrix& w, const Result& to, Rows room, Worker& worker, Made made,
              After after) {
  constexpr int64_t UNIT = GROUP / PANEL;
  const int64_t panels = (w.n + PANEL - 1) / PANEL, units = (panels + UNIT - 1) / UNIT;
  const int64_t tiles = room.tiles();
  // A matrix that is read once comes in long streams; one that is read often may be cut finer.
  const int64_t least = std::max((int64_t)1, 6 / tiles * PANELS / UNIT);
  const int64_t across = worker.pieces(units, least);
  const int64_t along = std::max((int64_t)1, worker.pieces(tiles, PASS) / across);
  worker.share(
      across * along,
      [&](int64_t piece) {
        const Share columns(units, piece / along, across), rows(tiles, piece % along, along);
        const Share mine(columns.begin * UNIT, std::min(columns.end * UNIT, panels));
        for (int64_t first = rows.begin; first < rows.end; first += PASS) {
          const Share some(first, std::min(first + PASS, rows.end));
          Sweep{w, room, to, mine}.run(some);
          made(Share(room.first(some.begin), room.first(some.end)), columns);
        }
      },
      after);
}

template <class After>
void multiply(const Matrix& w, const Result& to, Rows room, Worker& worker, After after) {
  multiply(w, to, room, worker, [](Share, Share) {}, after);
}

// The whole product. `room` is for so many quantized rows, at least.
void product(const Matrix& w, const float* x, int64_t rows, const Result& to, Rows room,
             Worker& worker) {
  room.count = rows;
  round_together(w, x, room, worker);
  multiply(w, to, room, worker, [] {});
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
