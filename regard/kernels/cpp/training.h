// What a training does to each number besides the matrix products, in few passes over memory.
//
// What is dropped is a function of a seed and of the place of a number, so that no mask is ever
// stored: the backward pass computes it again. Sums over rows are added up in groups of rows and then
// over the groups, so that they do not depend on the number of threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "adam.h"
#include "boundary.h"
#include "lanes.h"
#include "attention_autograd.h"
#include "loss.h"
#include "lstm_step.h"
#include "threads.h"

namespace learning {

enum Numbers { FLOAT32_ = 0, BFLOAT16_ = 1 };

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
  float* stats;  // (rows, 2) the mean, and one over the deviation
  int64_t rows, width;
  Drop drop;
  float eps, unused;
  void* out;  // the norm, or the gradient of `hidden`
  // Of the backward pass: the gradient of the norm, that of the update where something is dropped, sums
  // (rows / TOGETHER, 2, width), and the gradients of gain and bias, (2, width).
  const void* grad;
  void* update_grad;
  float *sums, *parameters;
};

struct Gelu {
  const void *x, *grad;  // no gradient in the forward pass
  void* out;
  int64_t count, tanh;
};

struct Sums {
  const void* x;  // (rows, width)
  float *sums, *out;
  int64_t rows, width;
};

constexpr int64_t TOGETHER = 64;  // rows of one piece

inline int64_t pieces_of(int64_t rows) { return (rows + TOGETHER - 1) / TOGETHER; }

template <class F>
inline void each_row(int64_t rows, int64_t piece, F f) {
  const int64_t end = std::min(rows, (piece + 1) * TOGETHER);
  for (int64_t row = piece * TOGETHER; row < end; row++) f(row);
}

// (groups, width) -> (width,)
void add_groups(const float* sums, int64_t groups, int64_t width, float* out) {
  by_lanes(width, [&](int64_t i, int64_t some) {
    Lanes sum = {};
    for (int64_t group = 0; group < groups; group++) sum += load(sums + group * width + i, some);
    store(sum, out + i, some);
  });
}

template <class T>
void drop_rows(void* data, Worker worker) {
  const Dropping& job = *(Dropping*)data;
  const int64_t draws = (job.width + A_DRAW - 1) / A_DRAW, total = job.rows * draws;
  constexpr int64_t PIECE = 1 << 12, PART = 256;  // draws of a piece, and of what is done at once
  const Keeping keeping(job.drop);
  worker.share((total + PIECE - 1) / PIECE, [&](int64_t piece) {
    uint16_t drawn[room_for_draws(A_DRAW * PART)];
    const int64_t end = std::min(total, (piece + 1) * PIECE);
    for (int64_t first = piece * PIECE; first < end;) {
      const int64_t row = first / draws, column = first % draws * A_DRAW;
      const int64_t parts = std::min({PART, end - first, draws - first % draws});
      const int64_t count = std::min(A_DRAW * parts, job.width - column);
      const T* x = (const T*)job.x + row * job.width + column;
      T* y = (T*)job.y + row * job.width + column;
      draw_all(job.drop.seed, first, drawn, count);
      by_lanes(count, [&](int64_t i, int64_t some) {
        store(keeping.keep(load(x + i, some), drawn + i), y + i, some);
      });
      first += parts;
    }
  });
}

// ---- norm(hidden + drop(update))

// Room for what one row needs beside its own numbers.
struct RowRoom {
  float* z;
  uint16_t* drawn;
  explicit RowRoom(int64_t width) {
    static thread_local std::vector<float> kept;
    z = scratch(kept, width + (room_for_draws(width) + 1) / 2 + 1);
    drawn = (uint16_t*)(z + width);
  }
};

// z = hidden + drop(update) of a row; gives its sum.
template <class T>
inline float add_update(const AddNorm& job, int64_t row, RowRoom room) {
  const int64_t width = job.width;
  const T *hidden = (const T*)job.hidden + row * width, *update = (const T*)job.update + row * width;
  Lanes sum = {};
  if (job.drop.threshold) {
    draw_all(job.drop.seed, row * ((width + A_DRAW - 1) / A_DRAW), room.drawn, width);
    const Keeping keeping(job.drop);
    by_lanes(width, [&](int64_t i, int64_t some) {
      const Lanes z = load(hidden + i, some) + keeping.keep(load(update + i, some), room.drawn + i);
      sum += z, store(z, room.z + i, some);
    });
  } else {
    by_lanes(width, [&](int64_t i, int64_t some) {
      const Lanes z = load(hidden + i, some) + load(update + i, some);
      sum += z, store(z, room.z + i, some);
    });
  }
  return sum_of(sum);
}

template <class T>
void add_norm(void* data, Worker worker) {
  const AddNorm& job = *(AddNorm*)data;
  const int64_t width = job.width;
  const float *gain = job.gain, *bias = job.bias;
  worker.share(pieces_of(job.rows), [&](int64_t piece) {
    const RowRoom room(width);
    each_row(job.rows, piece, [&](int64_t row) {
      const float mean = add_update<T>(job, row, room) / width;
      Lanes squares = {};
      by_lanes(width, [&](int64_t i, int64_t some) {
        const Lanes z = only(load(room.z + i, some) - mean, some);
        squares += z * z;
      });
      const float inverse = 1.0f / std::sqrt(sum_of(squares) / width + job.eps);
      job.stats[2 * row] = mean, job.stats[2 * row + 1] = inverse;
      T* out = (T*)job.out + row * width;
      by_lanes(width, [&](int64_t i, int64_t some) {
        const Lanes z = (load(room.z + i, some) - mean) * inverse;
        store(z * load(gain + i, some) + load(bias + i, some), out + i, some);
      });
    });
  });
}

template <class T>
void add_norm_back(void* data, Worker worker) {
  const AddNorm& job = *(AddNorm*)data;
  const int64_t width = job.width, groups = pieces_of(job.rows);
  const float* gain = job.gain;
  worker.share(groups, [&](int64_t piece) {
    const RowRoom room(width);
    float *gains = job.sums + piece * 2 * width, *biases = gains + width;
    std::fill(gains, gains + 2 * width, 0.0f);
    each_row(job.rows, piece, [&](int64_t row) {
      add_update<T>(job, row, room);
      const float mean = job.stats[2 * row], inverse = job.stats[2 * row + 1];
      const T* grad = (const T*)job.grad + row * width;
      Lanes sum = {}, product = {};
      by_lanes(width, [&](int64_t i, int64_t some) {
        const Lanes z = (load(room.z + i, some) - mean) * inverse, s = load(grad + i, some);
        store(z, room.z + i, some);
        store(load(gains + i, some) + s * z, gains + i, some);
        store(load(biases + i, some) + s, biases + i, some);
        const Lanes weighed = s * load(gain + i, some);  // 0 behind the end
        sum += weighed, product += weighed * z;
      });
      const float middle = sum_of(sum) / width, tilt = sum_of(product) / width;
      T *out = (T*)job.out + row * width, *update = (T*)job.update_grad + row * width;
      const Keeping keeping(job.drop);
      by_lanes(width, [&](int64_t i, int64_t some) {
        const Lanes weighed = load(grad + i, some) * load(gain + i, some);
        const Lanes s = (weighed - middle - load(room.z + i, some) * tilt) * inverse;
        store(s, out + i, some);
        if (job.drop.threshold) store(keeping.keep(s, room.drawn + i), update + i, some);
      });
    });
  });
  worker.share(1, [&](int64_t) { add_groups(job.sums, groups, 2 * width, job.parameters); });
}

// ---- gelu

// z times a polynomial in z^2, which is moved to -1 ... 1, for z up to `end`.
template <size_t COUNT>
inline Lanes odd(Lanes x, float end, const float (&powers)[COUNT]) {
  const Lanes z = clamped(x, -end, end), u = z * z * (2.0f / (end * end)) - 1.0f;
  Lanes sum = lanes(powers[0]);
#pragma GCC unroll 16
  for (size_t i = 1; i < COUNT; i++) sum = sum * u + powers[i];
  return z * sum;
}

// The normal distribution less 1/2, exact to 3e-7, and the derivative of gelu less 1/2, to 1e-5: one
// part in 200 of what bfloat16 tells apart at 1. Then the same of the form by tanh. All are fitted so
// that the largest error is least.
constexpr float GELU_CURVE[] = {
    6.087272985e-04f, -1.613265170e-03f, 1.722799554e-03f,  -2.685575025e-03f, 6.410510112e-03f,
    -1.116433927e-02f, 1.640217468e-02f, -2.326865272e-02f, 3.144217227e-02f,  -4.044260737e-02f,
    5.152052232e-02f, -7.029628062e-02f, 1.413637876e-01f};
constexpr float GELU_GRADS[] = {
    1.025603581e-02f,  -2.466140587e-02f, 1.772628385e-02f, -1.787400472e-02f, 5.138832698e-02f,
    -7.730490832e-02f, 8.063559044e-02f,  -8.191395888e-02f, 8.021373950e-02f, -7.207909881e-02f,
    6.658154109e-02f,  -7.509979085e-02f, 1.421336571e-01f};
constexpr float TANH_CURVE[] = {
    5.768621312e-04f,  -2.047742769e-03f, 2.833644423e-03f, -3.040765723e-03f, 5.543671190e-03f,
    -1.045009794e-02f, 1.615857262e-02f,  -2.302770098e-02f, 3.132114601e-02f, -4.053941794e-02f,
    5.165921979e-02f,  -7.036591841e-02f, 1.413784885e-01f};
constexpr float TANH_GRADS[] = {
    1.386537363e-02f,  -3.385755405e-02f, 2.067432251e-02f, -7.587733003e-03f, 4.126797690e-02f,
    -7.556716037e-02f, 8.186282267e-02f,  -8.349871819e-02f, 8.248526666e-02f, -7.359199236e-02f,
    6.675646245e-02f,  -7.483276972e-02f, 1.420246352e-01f};

// x Phi(x), or (Phi(x) + x phi(x)) times a gradient.
template <class T>
void gelu_part(const Gelu& job, int64_t at, int64_t count, const float (&value)[13],
               const float (&derivative)[13]) {
  const T *x = (const T*)job.x + at, *grad = (const T*)job.grad + at;
  T* out = (T*)job.out + at;
  if (job.grad) {
    by_lanes(count, [&](int64_t i, int64_t some) {
      const Lanes found = odd(load(x + i, some), 5.0f, derivative) + 0.5f;
      store(found * load(grad + i, some), out + i, some);
    });
  } else {
    by_lanes(count, [&](int64_t i, int64_t some) {
      const Lanes z = load(x + i, some);
      const Lanes below = odd(z, 5.0f, value) + 0.5f;
      store(z < -5.0f ? z * 0.0f : z * below, out + i, some);
    });
  }
}

template <class T>
void gelu_all(void* data, Worker worker) {
  const Gelu& job = *(Gelu*)data;
  constexpr int64_t PIECE = 1 << 14;
  worker.share((job.count + PIECE - 1) / PIECE, [&](int64_t piece) {
    const int64_t at = piece * PIECE, some = std::min(PIECE, job.count - at);
    job.tanh ? gelu_part<T>(job, at, some, TANH_CURVE, TANH_GRADS)
             : gelu_part<T>(job, at, some, GELU_CURVE, GELU_GRADS);
  });
}

// ---- sums over rows

template <class T>
void sum_rows(void* data, Worker worker) {
  const Sums& job = *(Sums*)data;
  const int64_t width = job.width, groups = pieces_of(job.rows);
  worker.share(groups, [&](int64_t piece) {
    const int64_t first = piece * TOGETHER, end = std::min(job.rows, first + TOGETHER);
    float* sums = job.sums + piece * width;
    std::fill(sums, sums + width, 0.0f);
    const T* x = (const T*)job.x;
    for (int64_t row = first; row < end;) {
      const int64_t four = std::min<int64_t>(4, end - row);
      by_lanes(width, [&](int64_t i, int64_t some) {
        Lanes sum = load(sums + i, some);
        for (int64_t r = row; r < row + four; r++) sum += load(x + r * width + i, some);
        store(sum, sums + i, some);
      });
      row += four;
    }
  });
  worker.share(1, [&](int64_t) { add_groups(job.sums, groups, width, job.out); });
}

using Work = void (*)(void*, Worker);

int64_t run_as(int64_t numbers, int64_t threads, Work wide, Work half, void* job) {
  return boundary::guarded_call([&] {
    if (numbers != FLOAT32_ && numbers != BFLOAT16_) boundary::raise_error("the dtype is unknown");
    run(threads, numbers == BFLOAT16_ ? half : wide, job);
  });
}

int64_t run_attention(int64_t threads, Work dropping, Work whole, Attention* job) {
  return boundary::guarded_call([&] {
    if (!FUSED) boundary::raise_error("there are no attention kernels for this processor");
    if (job->query_starts) {
      boundary::check_offsets("query_starts", job->query_starts, job->rows, job->all_queries);
      boundary::check_offsets("key_starts", job->key_starts, job->rows, job->all_keys);
    }
    run(threads, job->drop.threshold ? dropping : whole, job);
  });
}

extern "C" {

int regard_attention_is_fast() { return FUSED; }

int64_t regard_adam(int64_t threads, Adam* job) {
  return boundary::guarded_call([&] { run(threads, adam_all, job); });
}

int64_t regard_add_squares(int64_t threads, Adam* job) {
  return boundary::guarded_call([&] { run(threads, add_squares, job); });
}

int64_t regard_attend(int64_t threads, Attention* job) {
  return run_attention(threads, attend_all<true>, attend_all<false>, job);
}

int64_t regard_attend_back(int64_t threads, Attention* job) {
  return run_attention(threads, attend_back_all<true>, attend_back_all<false>, job);
}

int64_t regard_drop(int64_t numbers, int64_t threads, Dropping* job) {
  return run_as(numbers, threads, drop_rows<float>, drop_rows<bfloat16>, job);
}

int64_t regard_add_norm(int64_t numbers, int64_t threads, AddNorm* job) {
  return run_as(numbers, threads, add_norm<float>, add_norm<bfloat16>, job);
}

int64_t regard_add_norm_back(int64_t numbers, int64_t threads, AddNorm* job) {
  return run_as(numbers, threads, add_norm_back<float>, add_norm_back<bfloat16>, job);
}

int64_t regard_gelu(int64_t numbers, int64_t threads, Gelu* job) {
  return run_as(numbers, threads, gelu_all<float>, gelu_all<bfloat16>, job);
}

// Returns how many targets are not in the vocabulary.
int64_t regard_entropy(int64_t numbers, int64_t threads, Entropy* job) {
  const int64_t missing = boundary::count_outside(job->targets, job->rows, job->words);
  return missing ? missing : run_as(numbers, threads, entropy<float>, entropy<bfloat16>, job);
}

int64_t regard_lstm_step(int64_t threads, LstmStep* job) {
  return boundary::guarded_call([&] { run(threads, lstm_step, job); });
}

int64_t regard_lstm_step_back(int64_t threads, LstmStep* job) {
  return boundary::guarded_call([&] { run(threads, lstm_step_back, job); });
}

int64_t regard_sum_rows(int64_t numbers, int64_t threads, Sums* job) {
  return run_as(numbers, threads, sum_rows<float>, sum_rows<bfloat16>, job);
}
}

}  // namespace learning
