// Adam (Kingma & Ba 2015) over all parameters in one pass over memory, which also scales the
// gradient and writes the low-precision copies of the weights, where there are any.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "lanes.h"
#include "threads.h"

namespace learning {

struct Parameter {
  float *values, *grads, *means, *squares;
  bfloat16* copy;  // or null
  int64_t count;
  // The decoupled weight decay as a factor, the weight decay that is added to the gradient, and the
  // learning rate with the bias correction of the means.
  float decay_factor, l2, learning_rate, unused;
};

struct Adam {
  const Parameter* parameters;
  const int64_t* pieces;  // (count, 2) the index of a parameter, and where its piece begins
  int64_t count;
  // `root_scale` is the bias correction of the square roots.
  float grad_scale, beta1, beta2, root_scale, eps, unused;
};

constexpr int64_t ADAM_PIECE = 1 << 15;

inline int64_t piece_size(const Parameter& parameter, int64_t from) {
  return std::min(ADAM_PIECE, parameter.count - from);
}

void adam_all(void* data, Worker worker) {
  const Adam& job = *(Adam*)data;
  const float beta1 = job.beta1, beta2 = job.beta2, root_scale = job.root_scale, eps = job.eps;
  worker.share(job.count, [&](int64_t piece) {
    const int64_t from = job.pieces[2 * piece + 1];
    const Parameter& p = job.parameters[job.pieces[2 * piece]];
    float *values = p.values + from, *means = p.means + from, *squares = p.squares + from;
    const float *grads = p.grads + from, scale = job.grad_scale;
    const float decay_factor = p.decay_factor, l2 = p.l2, learning_rate = p.learning_rate;
    bfloat16* copy = p.copy ? p.copy + from : nullptr;
    by_lanes(piece_size(p, from), [&](int64_t i, int64_t n) {
      Lanes value = load(values + i, n);
      const Lanes grad = load(grads + i, n) * scale + value * l2;
      const Lanes mean = load(means + i, n) * beta1 + grad * (1.0f - beta1);
      const Lanes square = load(squares + i, n) * beta2 + grad * grad * (1.0f - beta2);
      value = value * decay_factor - learning_rate * mean / (root(square) * root_scale + eps);
      store(mean, means + i, n), store(square, squares + i, n);
      store(value, values + i, n);
      if (copy) store(value, copy + i, n);
    });
  });
}

}  // namespace learning
