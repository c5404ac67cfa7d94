// The elementwise operations of training, in few passes over memory.
//
// Dropout is a function of a seed and of the position of an element, so that no mask is stored: the
// backward pass computes it again. Sums over rows are sums of groups of rows, then of the groups,
// so that they do not depend on the number of threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "boundary.h"
#include "lanes.h"
#include "attention_autograd.h"
#include "loss.h"
#include "threads.h"

namespace learning {

enum Type { FLOAT32_ = 0, BFLOAT16_ = 1 };

struct Dropping {
  const void* x;
  void* y;
  int64_t rows, width;
  Drop drop;
};

// norm(hidden + drop(update)), and its backward pass.
struct AddNorm {
  const void *hidden, *update;
  const float *gain, *bias;
  float* stats;  // (rows, 2) the mean, and 1 / standard deviation
  int64_t rows, width;
  Drop drop;
  float eps, unused;
  void* out;  // the norm, or the gradient of `hidden`
  // Of the backward pass: the gradient of the norm, that of the update where there is dropout, sums
  // (rows / GROUP_ROWS, 2, width), and the gradients of gain and bias, (2, width).
  const void* grad;
  void* update_grad;
  float *sums, *parameters;
};

constexpr int64_t GROUP_ROWS = 64;  // rows of one group

inline int64_t groups_of_rows(int64_t rows) { return (rows + GROUP_ROWS - 1) / GROUP_ROWS; }

template <class F>
inline void each_row(int64_t rows, int64_t piece, F f) {
  const int64_t end = std::min(rows, (piece + 1) * GROUP_ROWS);
  for (int64_t row = piece * GROUP_ROWS; row < end; row++) f(row);
}

// (groups, width) -> (width,)
void add_groups(const float* sums, int64_t groups, int64_t width, float* out) {
  by_lanes(width, [&](int64_t i, int64_t n) {
    Lanes sum = {};
    for (int64_t group = 0; group < groups; group++) sum += load(sums + group * width + i, n);
    store(sum, out + i, n);
  });
}

template <class T>
void drop_rows(void* data, Worker worker) {
  const Dropping& job = *(Dropping*)data;
  const int64_t row_draws = (job.width + PER_DRAW - 1) / PER_DRAW, total = job.rows * row_draws;
  constexpr int64_t PIECE = 1 << 12, PART = 256;  // draws of a work item, and in the buffer
  const DropMask dropout(job.drop);
  worker.share((total + PIECE - 1) / PIECE, [&](int64_t piece) {
    uint16_t draws[draws_capacity(PER_DRAW * PART)];
    const int64_t end = std::min(total, (piece + 1) * PIECE);
    for (int64_t first = piece * PIECE; first < end;) {
      const int64_t row = first / row_draws, column = first % row_draws * PER_DRAW;
      const int64_t parts = std::min({PART, end - first, row_draws - first % row_draws});
      const int64_t count = std::min(PER_DRAW * parts, job.width - column);
      const T* x = (const T*)job.x + row * job.width + column;
      T* y = (T*)job.y + row * job.width + column;
      draw_all(job.drop.seed, first, draws, count);
      by_lanes(count, [&](int64_t i, int64_t n) {
        store(dropout.apply(load(x + i, n), draws + i), y + i, n);
      });
      first += parts;
    }
  });
}

// ---- norm(hidden + drop(update))

// Scratch memory for one row.
struct RowBuffer {
  float* z;
  uint16_t* draws;
  explicit RowBuffer(int64_t width) {
    static thread_local std::vector<float> memory;
    z = scratch(memory, width + (draws_capacity(width) + 1) / 2 + 1);
    draws = (uint16_t*)(z + width);
  }
};

// z = hidden + drop(update) of a row; returns its sum.
template <class T>
inline float add_update(const AddNorm& job, int64_t row, RowBuffer buffer) {
  const int64_t width = job.width;
  const T* hidden = (const T*)job.hidden + row * width;
  const T* update = (const T*)job.update + row * width;
  Lanes sum = {};
  if (job.drop.threshold) {
    draw_all(job.drop.seed, row * ((width + PER_DRAW - 1) / PER_DRAW), buffer.draws, width);
    const DropMask dropout(job.drop);
    by_lanes(width, [&](int64_t i, int64_t n) {
      const Lanes z = load(hidden + i, n) + dropout.apply(load(update + i, n), buffer.draws + i);
      sum += z, store(z, buffer.z + i, n);
    });
  } else {
    by_lanes(width, [&](int64_t i, int64_t n) {
      const Lanes z = load(hidden + i, n) + load(update + i, n);
      sum += z, store(z, buffer.z + i, n);
    });
  }
  return sum_of(sum);
}

template <class T>
void add_norm(void* data, Worker worker) {
  const AddNorm& job = *(AddNorm*)data;
  const int64_t width = job.width;
  const float *gain = job.gain, *bias = job.bias;
  worker.share(groups_of_rows(job.rows), [&](int64_t piece) {
    const RowBuffer buffer(width);
    each_row(job.rows, piece, [&](int64_t row) {
      const float mean = add_update<T>(job, row, buffer) / width;
      Lanes squares = {};
      by_lanes(width, [&](int64_t i, int64_t n) {
        const Lanes z = first_lanes(load(buffer.z + i, n) - mean, n);
        squares += z * z;
      });
      const float inverse = 1.0f / std::sqrt(sum_of(squares) / width + job.eps);
      job.stats[2 * row] = mean, job.stats[2 * row + 1] = inverse;
      T* out = (T*)job.out + row * width;
      by_lanes(width, [&](int64_t i, int64_t n) {
        const Lanes z = (load(buffer.z + i, n) - mean) * inverse;
        store(z * load(gain + i, n) + load(bias + i, n), out + i, n);
      });
    });
  });
}

template <class T>
void add_norm_back(void* data, Worker worker) {
  const AddNorm& job = *(AddNorm*)data;
  const int64_t width = job.width, groups = groups_of_rows(job.rows);
  const float* gain = job.gain;
  worker.share(groups, [&](int64_t piece) {
    const RowBuffer buffer(width);
    float *gains = job.sums + piece * 2 * width, *biases = gains + width;
    std::fill(gains, gains + 2 * width, 0.0f);
    each_row(job.rows, piece, [&](int64_t row) {
      add_update<T>(job, row, buffer);
      const float mean = job.stats[2 * row], inverse = job.stats[2 * row + 1];
      const T* grad = (const T*)job.grad + row * width;
      Lanes sum = {}, product = {};
      by_lanes(width, [&](int64_t i, int64_t n) {
        const Lanes z = (load(buffer.z + i, n) - mean) * inverse, s = load(grad + i, n);
        store(z, buffer.z + i, n);
        store(load(gains + i, n) + s * z, gains + i, n);
        store(load(biases + i, n) + s, biases + i, n);
        const Lanes weighted = s * load(gain + i, n);  // 0 behind the end
        sum += weighted, product += weighted * z;
      });
      const float mean_grad = sum_of(sum) / width, mean_product = sum_of(product) / width;
      T *out = (T*)job.out + row * width, *update = (T*)job.update_grad + row * width;
      const DropMask dropout(job.drop);
      by_lanes(width, [&](int64_t i, int64_t n) {
        const Lanes weighted = load(grad + i, n) * load(gain + i, n);
        const Lanes s = (weighted - mean_grad - load(buffer.z + i, n) * mean_product) * inverse;
        store(s, out + i, n);
        if (job.drop.threshold) store(dropout.apply(s, buffer.draws + i), update + i, n);
      });
    });
  });
  worker.share(1, [&](int64_t) { add_groups(job.sums, groups, 2 * width, job.parameters); });
}

using Work = void (*)(void*, Worker);

int64_t run_as(int64_t type, int64_t threads, Work float32, Work bfloat16, void* job) {
  return boundary::guarded_call([&] {
    if (type != FLOAT32_ && type != BFLOAT16_) boundary::raise_error("the dtype is unknown");
    run(threads, type == BFLOAT16_ ? bfloat16 : float32, job);
  });
}

int64_t run_attention(int64_t threads, Work with_dropout, Work without, Attention* job) {
  return boundary::guarded_call([&] {
    if (!FUSED) boundary::raise_error("there are no attention kernels for this processor");
    if (job->query_starts) {
      boundary::check_offsets("query_starts", job->query_starts, job->rows, job->all_queries);
      boundary::check_offsets("key_starts", job->key_starts, job->rows, job->all_keys);
    }
    run(threads, job->drop.threshold ? with_dropout : without, job);
  });
}

extern "C" {

int regard_attention_is_fast() { return FUSED; }

int64_t regard_attend(int64_t threads, Attention* job) {
  return run_attention(threads, attend_all<true>, attend_all<false>, job);
}

int64_t regard_attend_back(int64_t threads, Attention* job) {
  return run_attention(threads, attend_back_all<true>, attend_back_all<false>, job);
}

int64_t regard_drop(int64_t type, int64_t threads, Dropping* job) {
  return run_as(type, threads, drop_rows<float>, drop_rows<bfloat16>, job);
}

int64_t regard_add_norm(int64_t type, int64_t threads, AddNorm* job) {
  return run_as(type, threads, add_norm<float>, add_norm<bfloat16>, job);
}

int64_t regard_add_norm_back(int64_t type, int64_t threads, AddNorm* job) {
  return run_as(type, threads, add_norm_back<float>, add_norm_back<bfloat16>, job);
}

// Returns how many targets are not in the vocabulary.
int64_t regard_entropy(int64_t type, int64_t threads, Entropy* job) {
  const int64_t missing = boundary::count_outside(job->targets, job->rows, job->vocab_size);
  return missing ? missing : run_as(type, threads, entropy<float>, entropy<bfloat16>, job);
}

}

}  // namespace learning
