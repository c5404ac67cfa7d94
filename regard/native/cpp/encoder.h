// A program over texts that lie end to end, without padding: every token of a text sees all of its
// text and nothing else. Few texts pass all operations before the next do, so that what they make
// stays in the cache; a text's numbers do not depend on its neighbours.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "programs.h"

namespace {

constexpr int64_t TOGETHER = 128;  // rows that pass a program together, unless one text has more
constexpr int64_t LANES = 16;
constexpr int QUERIES = 8;  // that are answered at once

typedef float Lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

inline Lanes& lanes(float* at) { return *(Lanes*)at; }
inline const Lanes& lanes(const float* at) { return *(const Lanes*)at; }

inline int64_t filled_up(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

// y (QUERIES, P lanes) = x (QUERIES, count) times matrix (count, step), P lanes of it.
template <int P>
inline void times(const float* const* x, int64_t count, const float* matrix, int64_t step, float* y,
                  int64_t y_step) {
  Lanes sum[QUERIES][P] = {};
  for (int64_t i = 0; i < count; i++, matrix += step) {
#pragma GCC unroll 8
    for (int q = 0; q < QUERIES; q++) {
#pragma GCC unroll 2
      for (int p = 0; p < P; p++) sum[q][p] += x[q][i] * lanes(matrix + p * LANES);
    }
  }
#pragma GCC unroll 8
  for (int q = 0; q < QUERIES; q++) {
#pragma GCC unroll 2
    for (int p = 0; p < P; p++) lanes(y + q * y_step + p * LANES) = sum[q][p];
  }
}

inline void times(const float* const* x, int64_t count, const float* matrix, int64_t step, float* y,
                  int64_t columns) {
  int64_t at = 0;
  for (; at + 2 * LANES <= columns; at += 2 * LANES) {
    times<2>(x, count, matrix + at, step, y + at, columns);
  }
  if (at < columns) times<1>(x, count, matrix + at, step, y + at, columns);
}

// Weights from scores, of which the last are no keys; gives what they sum up to.
inline float weigh(float* scores, int64_t count, int64_t columns, float scale) {
  float most = scores[0], sum = 0.0f;
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < count; i++) most = std::max(most, scores[i]);
#pragma omp simd
  for (int64_t i = 0; i < columns; i++) scores[i] = exponential((scores[i] - most) * scale);
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; i++) sum += scores[i];
  return sum;
}

// One head of one text: rows of queries, keys and values side by side (count, 3 * inner) become
// contexts (count, inner).
void attend_text(const float* joined, float* context, int64_t count, int64_t inner, int64_t width,
                 float scale) {
  static thread_local std::vector<float> kept;
  const int64_t columns = filled_up(count), wide = filled_up(width), step = 3 * inner;
  float* keys = scratch(kept, width * columns + count * wide + QUERIES * (columns + wide));
  float *values = keys + width * columns, *scores = values + count * wide;
  float* answers = scores + QUERIES * columns;
  for (int64_t i = 0; i < width; i++) {
    for (int64_t s = 0; s < count; s++) keys[i * columns + s] = joined[s * step + inner + i];
    for (int64_t s = count; s < columns; s++) keys[i * columns + s] = 0.0f;
  }
  for (int64_t s = 0; s < count; s++) {
    std::memcpy(values + s * wide, joined + s * step + 2 * inner, width * sizeof(float));
    for (int64_t i = width; i < wide; i++) values[s * wide + i] = 0.0f;
  }
  for (int64_t first = 0; first < count; first += QUERIES) {
    const float *queries[QUERIES], *weights[QUERIES];
    for (int q = 0; q < QUERIES; q++) {  // behind the end the last one again
      queries[q] = joined + std::min(first + q, count - 1) * step;
      weights[q] = scores + q * columns;
    }
    times(queries, width, keys, columns, scores, columns);
    float sums[QUERIES];
    for (int q = 0; q < QUERIES; q++) sums[q] = weigh(scores + q * columns, count, columns, scale);
    times(weights, count, values, wide, answers, wide);
    for (int64_t q = 0; q < std::min<int64_t>(QUERIES, count - first); q++) {
      float* to = context + (first + q) * inner;
      const float inverse = 1.0f / sums[q];
#pragma omp simd
      for (int64_t i = 0; i < width; i++) to[i] = answers[q * wide + i] * inverse;
    }
  }
}

// Texts that pass a program together: text i has the rows from starts[i] to starts[i + 1].
struct Together {
  const Program* program;
  float* hidden;  // its first row is starts[0]
  const int64_t* starts;
  int64_t texts;
  std::vector<float*> registers;
  Rows room;

  int64_t rows() const { return starts[texts] - starts[0]; }

  // Memory of the calling thread.
  void reserve() {
    static thread_local std::vector<float> kept;
    int64_t total = 0;
    for (int64_t i = 1; i < program->registers; i++) total += program->widths[i] * rows();
    float* next = scratch(kept, total);
    registers.assign(1, hidden);
    for (int64_t i = 1; i < program->registers; i++) {
      registers.push_back(next);
      next += program->widths[i] * rows();
    }
    room = room_for(rows(), program->widest);
  }

  void attention(const Op& op, Worker& worker) const {
    const int64_t inner = (int64_t)op.heads * op.head_dim;
    worker.share(texts * op.heads, [&](int64_t piece) {
      const int64_t text = piece / op.heads, at = piece % op.heads * op.head_dim;
      const int64_t first = starts[text] - starts[0], count = starts[text + 1] - starts[text];
      attend_text(registers[op.source] + first * 3 * inner + at,
                  registers[op.target] + first * inner + at, count, inner, op.head_dim, op.number);
    });
  }

  void rowwise(const Op& op, Worker& worker) const {
    const int64_t width = program->widths[op.source], pieces = worker.pieces(rows(), 8);
    worker.share(pieces, [&](int64_t piece) {
      const Share share(rows(), piece, pieces);
      for (int64_t row = share.begin; row < share.end; row++) {
        const float* x = registers[op.source] + row * width;
        float* y = registers[op.target] + row * width;
        if (op.kind == NORM) {
          normalize(x, y, width, op.gain, op.bias, op.number);
        } else {
          const float* other = registers[op.other] + row * width;
#pragma omp simd
          for (int64_t i = 0; i < width; i++) y[i] = x[i] + other[i];
        }
      }
    });
  }

  void pass(Worker& worker) const {
    for (int64_t i = 0; i < program->count; i++) {
      const Op& op = program->ops[i];
      if (op.kind == LINEAR) {
        const float* add = op.other < 0 ? nullptr : registers[op.other];
        product(*op.matrix, registers[op.source], rows(),
                {registers[op.target], op.activation, add}, room, worker);
      } else if (op.kind == SELF) {
        attention(op, worker);
      } else {
        rowwise(op, worker);
      }
    }
  }
};

void pass_together(void* data, Worker worker) { ((Together*)data)->pass(worker); }

// All texts, some of them together.
struct Encoding {
  const Program* program;
  float* hidden;
  const int64_t* starts;
  std::vector<int64_t> cuts;  // numbers of texts

  void cut(int64_t texts) {
    cuts.assign(1, 0);
    for (int64_t i = 1; i < texts; i++) {
      if (starts[i + 1] - starts[cuts.back()] > TOGETHER) cuts.push_back(i);
    }
    cuts.push_back(texts);
  }

  int64_t parts() const { return (int64_t)cuts.size() - 1; }

  Together part(int64_t i) const {
    Together made{program, hidden + starts[cuts[i]] * program->widths[0], starts + cuts[i],
                  cuts[i + 1] - cuts[i], {}, {}};
    made.reserve();
    return made;
  }
};

// Each thread takes parts of its own.
void encode_apart(void* data, Worker worker) {
  const Encoding& all = *(Encoding*)data;
  worker.share(all.parts(), [&](int64_t i) {
    Worker alone{0, 1, nullptr};
    all.part(i).pass(alone);
  });
}

}  // namespace
