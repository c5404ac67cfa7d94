// A layer of LSTM over whole sequences, forward and backward, each in one call.
//
// The product W x of all steps is an input. What remains is a chain of small products U h, one
// after the other: U is packed once, and at each step the threads share its rows. The thread that
// computes the gates of a unit also applies their activations, so that a step is one stage.
//
// Products are computed in bfloat16, everything else in float32: torch's own kernels for float32
// products are as fast. A packed matrix is stored in pairs of panels of 16 rows, with two numbers
// of a row side by side: (N / 32, K / 2, 2, 16, 2).
//
// These kernels need a processor with bfloat16 instructions.
#pragma once

#include "boundary.h"
#include "processor.h"

#if WIDE && defined(__AVX512BF16__)

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "lanes.h"
#include "threads.h"

namespace {
namespace lstm {

using learning::bfloat16;
using learning::Halves;
using learning::Lanes;
using learning::LANES;

// B rows of T steps and D units; the gates i, f, g, o are side by side. d_x is the gradient of x.
struct Layer {
  int64_t rows, steps, width;
  const float* weight;         // U, (4D, D)
  const bfloat16* inputs;      // W x, (B, T, 4D)
  const float* bias;           // (4D)
  const float *hidden, *cell;  // before the first step, (B, D)
  float* gates;    // after their activations, (B, T, 4D); null where no gradient is needed
  float* cells;    // (B, T, D); without gates only the last, (B, 1, D)
  float* hiddens;  // (B, T, D)

  const float* d_hiddens;  // (B, T, D)
  const float* d_end;      // of the last hidden state alone, added to d_hiddens, (B, D)
  float* d_cell;           // in: of the last cell; out: of the first, (B, D)
  float* d_hidden;         // out: of the first hidden state, or null
  bfloat16* d_gates;       // out: before their activations, (B, T, 4D)
  float* d_bias;           // out, added: (4D)
};

constexpr int64_t PAIR = 2 * LANES;
constexpr int64_t K_CHUNK = 128;  // pairs of columns whose weights stay in the first-level cache
constexpr int64_t BLOCKS = 4;     // of 16 units in a work item: long contiguous reads are faster
constexpr int MAX_ROWS = 12;      // whose sums fit into registers

#define UNROLLED(i, count) _Pragma("GCC unroll 16") for (int i = 0; i < count; i++)

// ---- the first `count` of 16 numbers; the others are read as zeros, and not written

inline __mmask16 mask(int64_t count) {
  return count >= LANES ? 0xffff : count <= 0 ? 0 : (1u << count) - 1;
}

inline Lanes read(const float* from, int64_t count = LANES) {
  return (Lanes)_mm512_maskz_loadu_ps(mask(count), from);
}

inline void write(const Lanes& x, float* to, int64_t count = LANES) {
  _mm512_mask_storeu_ps(to, mask(count), (__m512)x);
}

inline Lanes read(const bfloat16* from, int64_t count = LANES) {
  const Halves x = (Halves)_mm256_maskz_loadu_epi16(mask(count), from);
  return (Lanes)(learning::widened(x) << 16);
}

inline void write(const Lanes& x, bfloat16* to, int64_t count = LANES) {
  _mm256_mask_storeu_epi16(to, mask(count), (__m256i)learning::to_halves(x));
}

inline Lanes sigmoid(const Lanes& x) { return 1.0f / (1.0f + learning::exponential(-x)); }
inline Lanes tanh(const Lanes& x) { return 2.0f * sigmoid(2.0f * x) - 1.0f; }

// ---- products

constexpr int64_t SIDE = 2;  // numbers of a row that one instruction multiplies and adds

inline Lanes times(Lanes sum, const bfloat16* weights, const bfloat16* x) {
  int32_t two;
  std::memcpy(&two, x, 4);
  return (Lanes)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_loadu_si512(weights),
                                 (__m512bh)_mm512_set1_epi32(two));
}

// y (M, 2, 16) += `count` columns of M rows, `stride` apart, times those of a pair of panels.
template <int M>
inline void multiply(const bfloat16* weights, const bfloat16* x, int64_t stride, int64_t count,
                     float* y) {
  constexpr int64_t panel = LANES * SIDE, prefetch = 16 * 2 * panel;
  Lanes sum[M][2];
  const bfloat16* row[M];
  UNROLLED(m, M) {
    row[m] = x + m * stride;
    UNROLLED(p, 2) sum[m][p] = read(y + m * PAIR + p * LANES);
  }
  for (int64_t k = 0; k < count; k += SIDE, weights += 2 * panel) {
    UNROLLED(p, 2) __builtin_prefetch(weights + prefetch + p * panel);
    UNROLLED(m, M) {
      UNROLLED(p, 2) sum[m][p] = times(sum[m][p], weights + p * panel, row[m] + k);
    }
  }
  UNROLLED(m, M) {
    UNROLLED(p, 2) write(sum[m][p], y + m * PAIR + p * LANES);
  }
}

template <int M>
inline void multiply(int64_t rows, const bfloat16* weights, const bfloat16* x, int64_t stride,
                     int64_t count, float* y) {
  if constexpr (M > 0) {
    if (rows == M) return multiply<M>(weights, x, stride, count, y);
    multiply<M - 1>(rows, weights, x, stride, count, y);
  }
}

// y (rows, 2, 16) = x (rows, K) times a pair of panels.
void times_pair(const bfloat16* weights, const bfloat16* x, int64_t rows, int64_t k, float* y) {
  std::memset(y, 0, rows * PAIR * sizeof(float));
  const int64_t blocks = (rows + MAX_ROWS - 1) / MAX_ROWS, chunk = K_CHUNK * SIDE;
  for (int64_t start = 0; start < k; start += chunk) {
    const int64_t count = std::min(chunk, k - start);
    for (int64_t block = 0; block < blocks; block++) {
      const Share share(rows, block, blocks);
      multiply<MAX_ROWS>(share.end - share.begin, weights + start * PAIR,
                         x + share.begin * k + start, k, count, y + share.begin * PAIR);
    }
  }
}

// One panel of a pair, from up to 16 rows of K numbers that are `stride` apart. Missing rows are
// zeros, and so is column K where K is odd.
void pack_rows(const float* from, int64_t rows, int64_t stride, int64_t k, bfloat16* to) {
  constexpr int64_t side = SIDE, chunk = LANES * side;
  for (int64_t start = 0; start < k; start += chunk) {
    const int64_t count = std::min(chunk, k - start);
    for (int64_t row = 0; row < LANES; row++) {
      bfloat16 numbers[chunk] = {};
      for (int64_t i = 0; row < rows && i < count; i += LANES) {
        const int64_t n = std::min(LANES, count - i);
        write(read(from + row * stride + start + i, n), numbers + i);
      }
      for (int64_t i = 0; i < count; i += side) {
        std::memcpy(to + (start + i) * PAIR + row * side, numbers + i, 4);
      }
    }
  }
}

// The same from up to 16 columns: the panel of the transposed matrix. K, the number of rows, is
// even.
inline void pack_columns(const float* from, int64_t columns, int64_t stride, int64_t k,
                         bfloat16* to) {
  for (int64_t i = 0; i < k; i += 2) {
    bfloat16 even[LANES], odd[LANES];
    uint32_t pairs[LANES];
    write(read(from + i * stride, columns), even);
    write(read(from + (i + 1) * stride, columns), odd);
#pragma omp simd
    for (int l = 0; l < LANES; l++) pairs[l] = even[l].bits | (uint32_t)odd[l].bits << 16;
    std::memcpy(to + i * PAIR, pairs, sizeof(pairs));
  }
}

// ---- the chain of steps

struct Chain {
  const Layer& layer;
  bfloat16* packed;
  int64_t k;    // columns of a packed matrix
  bfloat16* state[2];  // of this step and the next: h (B, K); in the backward pass d_gates
  float* sums;  // of each thread, (BLOCKS, 2, B, 2, 16)

  float* sums_of(const Worker& worker) const {
    return sums + worker.thread * BLOCKS * 2 * PAIR * layer.rows;
  }
};

// Blocks of 16 units for all rows. The gates of a block are the rows of two pairs of panels.
struct Units {
  const Chain& chain;
  const Layer& s;
  int64_t step;
  Share blocks;
  float* sums;

  float* sum(int64_t block, int64_t gate, int64_t row) const {
    const int64_t pair = (block - blocks.begin) * 2 + gate / 2;
    return sums + (pair * s.rows + row) * PAIR + gate % 2 * LANES;
  }

  void run() const {
    for (int64_t pair = 2 * blocks.begin; pair < 2 * blocks.end; pair++) {
      times_pair(chain.packed + pair * PAIR * chain.k, chain.state[step % 2], s.rows, chain.k,
                 sum(pair / 2, pair % 2 * 2, 0));
    }
    for (int64_t row = 0; row < s.rows; row++) {
      for (int64_t gate = 0; gate < 4; gate++) activate(row, gate);
      for (int64_t block = blocks.begin; block < blocks.end; block++) finish(row, block);
    }
  }

  void activate(int64_t row, int64_t gate) const {
    const int64_t at = ((row * s.steps + step) * 4 + gate) * s.width;
    for (int64_t block = blocks.begin; block < blocks.end; block++) {
      const int64_t unit = block * LANES, count = std::min(LANES, s.width - unit);
      float* total = sum(block, gate, row);
      Lanes x = read(total) + read(s.bias + gate * s.width + unit, count);
      x += read(s.inputs + at + unit, count);
      x = gate == 2 ? tanh(x) : sigmoid(x);
      write(x, total);
      if (s.gates) write(x, s.gates + at + unit, count);
    }
  }

  void finish(int64_t row, int64_t block) const {
    const int64_t unit = block * LANES, count = std::min(LANES, s.width - unit);
    const int64_t at = (row * s.steps + step) * s.width + unit, first = row * s.width + unit;
    float* after = s.cells + (s.gates ? at : first);
    const float* before = !step ? s.cell + first : s.gates ? after - s.width : after;
    const Lanes cell = read(sum(block, 0, row)) * read(sum(block, 2, row)) +
                       read(sum(block, 1, row)) * read(before, count);
    const Lanes hidden = read(sum(block, 3, row)) * tanh(cell);
    write(cell, after, count);
    write(hidden, s.hiddens + at, count);
    write(hidden, chain.state[(step + 1) % 2] + row * chain.k + unit, count);
  }
};

void forward(void* data, Worker worker) {
  const Chain& chain = *(const Chain*)data;
  const Layer& s = chain.layer;
  const int64_t blocks = (s.width + LANES - 1) / LANES, at_once = worker.threads * BLOCKS;
  worker.share(blocks, [&](int64_t block) {
    const int64_t unit = block * LANES, rows = std::min(LANES, s.width - unit);
    for (int gate = 0; gate < 4; gate++) {
      bfloat16* pair = chain.packed + (block * 2 + gate / 2) * PAIR * chain.k;
      pack_rows(s.weight + (gate * s.width + unit) * s.width, rows, s.width, s.width,
                pair + gate % 2 * LANES * SIDE);
    }
  });
  const int64_t pieces = (blocks + at_once - 1) / at_once * worker.threads;  // equal per thread
  for (int64_t step = 0; step < s.steps; step++) {
    worker.share(pieces, [&](int64_t piece) {
      Units{chain, s, step, Share(blocks, piece, pieces), chain.sums_of(worker)}.run();
    });
  }
}

// 16 units of one row: `d_output` is the gradient of their hidden states by way of the next step.
inline void backward_units(const Chain& chain, int64_t row, int64_t step, int64_t unit,
                           Lanes d_output) {
  const Layer& s = chain.layer;
  const int64_t width = s.width, count = std::min(LANES, width - unit);
  const int64_t at = row * s.steps + step, first = row * width + unit;
  Lanes gate[4];
  UNROLLED(g, 4) gate[g] = read(s.gates + (at * 4 + g) * width + unit, count);
  const Lanes input = gate[0], forget = gate[1], candidate = gate[2], output = gate[3];
  const float* cell = s.cells + at * width + unit;
  const Lanes before = read(step ? cell - width : s.cell + first, count);
  const Lanes squashed = tanh(read(cell, count));
  d_output += read(s.d_hiddens + at * width + unit, count);
  const Lanes d_cell =
      read(s.d_cell + first, count) + d_output * output * (1.0f - squashed * squashed);
  write(d_cell * forget, s.d_cell + first, count);
  const Lanes d[4] = {d_cell * candidate * input * (1.0f - input),
                      d_cell * before * forget * (1.0f - forget),
                      d_cell * input * (1.0f - candidate * candidate),
                      d_output * squashed * output * (1.0f - output)};
  bfloat16* state = chain.state[(step + 1) % 2] + row * chain.k + unit;
  UNROLLED(g, 4) {
    write(d[g], state + g * width, count);
    write(d[g], s.d_gates + (at * 4 + g) * width + unit, count);
    float* bias = s.d_bias + g * width + unit;
    write(read(bias, count) + d[g], bias, count);
  }
}

// 32 units for all rows: the gradient of their hidden states from all gates of the next step, and
// with it that of their own gates. The last step has no next one; before the first step there are
// no gates.
void backward_piece(const Chain& chain, int64_t step, int64_t piece, float* sums) {
  const Layer& s = chain.layer;
  const bool last = step + 1 == s.steps;
  if (!last) {
    times_pair(chain.packed + piece * PAIR * chain.k, chain.state[(step + 2) % 2], s.rows, chain.k,
               sums);
  }
  for (int64_t row = 0; row < s.rows; row++) {
    for (int64_t unit = piece * PAIR; unit < std::min(s.width, (piece + 1) * PAIR); unit += LANES) {
      const int64_t count = std::min(LANES, s.width - unit), first = row * s.width + unit;
      const float* sum = sums + row * PAIR + unit % PAIR;
      const Lanes out = last ? read(s.d_end + first, count) : read(sum);
      if (step < 0) {
        write(out, s.d_hidden + first, count);
      } else {
        backward_units(chain, row, step, unit, out);
      }
    }
  }
}

void backward(void* data, Worker worker) {
  const Chain& chain = *(const Chain*)data;
  const Layer& s = chain.layer;
  const int64_t pieces = (s.width + PAIR - 1) / PAIR;
  worker.share(pieces, [&](int64_t piece) {
    for (int panel = 0; panel < 2; panel++) {
      const int64_t unit = piece * PAIR + panel * LANES, columns = std::min(LANES, s.width - unit);
      pack_columns(s.weight + unit, columns, s.width, chain.k,
                   chain.packed + piece * PAIR * chain.k + panel * LANES * SIDE);
    }
  });
  for (int64_t step = s.steps - 1; step >= (s.d_hidden ? -1 : 0); step--) {
    worker.share(pieces, [&](int64_t piece) {
      backward_piece(chain, step, piece, chain.sums_of(worker));
    });
  }
}

// Scratch memory that begins at a cache line.
template <class T>
T* aligned(std::vector<T>& memory, int64_t count) {
  constexpr int64_t cache_line = 64;
  T* first = scratch(memory, count + cache_line / (int64_t)sizeof(T));
  return first + (cache_line - (uintptr_t)first % cache_line) % cache_line / sizeof(T);
}

void run_all(const Layer& s, bool is_forward, int64_t threads) {
  static thread_local std::vector<bfloat16> packed, state;
  static thread_local std::vector<float> sums;
  const int64_t even = (s.width + SIDE - 1) / SIDE * SIDE, k = is_forward ? even : 4 * s.width;
  const int64_t packed_rows = is_forward ? 4 * ((s.width + LANES - 1) / LANES * LANES)
                                         : (s.width + PAIR - 1) / PAIR * PAIR;
  bfloat16* first = aligned(state, 2 * s.rows * k);
  std::fill(first, first + 2 * s.rows * k, bfloat16{});
  Chain chain{s,
                 aligned(packed, packed_rows * k),
                 k,
                 {first, first + s.rows * k},
                 aligned(sums, threads * BLOCKS * 2 * PAIR * s.rows)};
  for (int64_t row = 0; is_forward && row < s.rows; row++) {
    for (int64_t unit = 0; unit < s.width; unit += LANES) {
      const int64_t count = std::min(LANES, s.width - unit);
      write(read(s.hidden + row * s.width + unit, count), first + row * k + unit, count);
    }
  }
  run(threads, is_forward ? forward : backward, &chain);
}

}  // namespace lstm
}  // namespace

extern "C" {

int64_t regard_lstm_forward(const lstm::Layer* s, int64_t threads) {
  return boundary::guarded_call([&] { lstm::run_all(*s, true, threads); });
}

int64_t regard_lstm_backward(const lstm::Layer* s, int64_t threads) {
  return boundary::guarded_call([&] { lstm::run_all(*s, false, threads); });
}

int regard_lstm_available() { return 1; }
}

#define LSTM_LAYER_SIZE sizeof(lstm::Layer)

#else

extern "C" {

int64_t regard_lstm_forward(const void*, int64_t) {
  return boundary::store_error(boundary::INVALID_ARGUMENT,
                               "there are no LSTM kernels for this processor");
}

int64_t regard_lstm_backward(const void*, int64_t) {
  return boundary::store_error(boundary::INVALID_ARGUMENT,
                               "there are no LSTM kernels for this processor");
}

// Whether this processor has the kernels.
int regard_lstm_available() { return 0; }
}

#define LSTM_LAYER_SIZE (-1)

#endif
