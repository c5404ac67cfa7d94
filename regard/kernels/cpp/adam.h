// Adam (Kingma & Ba 2015) over all parameters in one pass over memory: the gradient is scaled on its
// way, and low-precision copies of the weights are written where there are some.
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
  // What the values are multiplied with, what of them is added to the gradients, and the rate, divided
  // by what the means lack as yet.
  float keep, pull, rate, unused;
};

struct Adam {
  const Parameter* parameters;
  const int64_t* pieces;  // (count, 2) the number of a parameter, and where its piece begins
  int64_t count;
  float grad_scale, first, second, lacking, eps, unused;  // `lacking`: of the roots of the squares
  double* sums;  // of squares, one for each piece: for `add_squares`
};

constexpr int64_t ADAM_PIECE = 1 << 15;

inline int64_t piece_size(const Parameter& parameter, int64_t from) {
  return std::min(ADAM_PIECE, parameter.count - from);
}

void adam_all(void* data, Worker worker) {
  const Adam& job = *(Adam*)data;
  const float first = job.first, second = job.second, lacking = job.lacking, eps = job.eps;
  worker.share(job.count, [&](int64_t piece) {
    const int64_t from = job.pieces[2 * piece + 1];
    const Parameter& p = job.parameters[job.pieces[2 * piece]];
    float *values = p.values + from, *means = p.means + from, *squares = p.squares + from;
    const float *grads = p.grads + from, scale = job.grad_scale;
    const float keep = p.keep, pull = p.pull, rate = p.rate;
    bfloat16* copy = p.copy ? p.copy + from : nullptr;
    by_lanes(piece_size(p, from), [&](int64_t i, int64_t some) {
      Lanes value = load(values + i, some);
      const Lanes grad = load(grads + i, some) * scale + value * pull;
      const Lanes mean = load(means + i, some) * first + grad * (1.0f - first);
      const Lanes square = load(squares + i, some) * second + grad * grad * (1.0f - second);
      value = value * keep - rate * mean / (root(square) * lacking + eps);
      store(mean, means + i, some), store(square, squares + i, some);
      store(value, values + i, some);
      if (copy) store(value, copy + i, some);
    });
  });
}

// The sums of the squares of all gradients, piece by piece, in float64.
void add_squares(void* data, Worker worker) {
  const Adam& job = *(Adam*)data;
  worker.share(job.count, [&](int64_t piece) {
    const int64_t from = job.pieces[2 * piece + 1];
    const Parameter& p = job.parameters[job.pieces[2 * piece]];
    constexpr int64_t PART = 1024;
    double sum = 0.0;
    for (int64_t at = 0, count = piece_size(p, from); at < count; at += PART) {
      Lanes some_sum = {};
      by_lanes(std::min(PART, count - at), [&](int64_t i, int64_t some) {
        const Lanes grad = load(p.grads + from + at + i, some);
        some_sum += grad * grad;
      });
      sum += sum_of(some_sum);
    }
    job.sums[piece] = sum;
  });
}

}  // namespace learning
