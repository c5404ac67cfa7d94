// The cross-entropy over a vocabulary; its gradient overwrites the logits.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "lanes.h"
#include "threads.h"

namespace learning {

struct Entropy {
  void* logits;            // (rows, vocab_size), then the gradient
  const int64_t* targets;  // (rows,)
  double* losses;          // (rows,)
  int64_t rows, vocab_size;
  double smoothing;  // of the labels: the probability that is spread over the vocabulary
};

// Of one row: its largest logit, the sum of all, and of e^(logit - largest).
struct RowSums {
  float largest;
  double sum, powers;
};

template <class T>
RowSums sums_of_row(const T* logits, int64_t vocab_size) {
  constexpr int64_t CHUNK = 4096;  // logits that are summed in float32, then in float64
  constexpr float LOWEST = -std::numeric_limits<float>::infinity();
  Lanes largest = lanes(LOWEST);
  by_lanes(vocab_size, [&](int64_t i, int64_t n) {
    Lanes x = load(logits + i, n);
    for (int64_t l = n; l < LANES; l++) x[l] = LOWEST;
    largest = x > largest ? x : largest;
  });
  RowSums found{max_of(largest), 0.0, 0.0};
  for (int64_t first = 0; first < vocab_size; first += CHUNK) {
    Lanes sum = {}, powers = {};
    by_lanes(std::min(CHUNK, vocab_size - first), [&](int64_t i, int64_t n) {
      const Lanes x = load(logits + first + i, n);
      sum += x, powers += first_lanes(exponential(x - found.largest), n);
    });
    found.sum += sum_of(sum), found.powers += sum_of(powers);
  }
  return found;
}

// d/dz of (1 - e) (lse - z_t) + e (lse - mean z)  is  softmax - (1 - e) onehot - e / V.
template <class T>
void entropy_of_row(const Entropy& job, int64_t row) {
  T* logits = (T*)job.logits + row * job.vocab_size;
  const RowSums found = sums_of_row(logits, job.vocab_size);
  const int64_t target = job.targets[row];
  const double norm = std::log(found.powers), uniform = job.smoothing / job.vocab_size;
  const float target_logit = load(logits + target, 1)[0];
  const float norm32 = (float)norm, uniform32 = (float)uniform;
  job.losses[row] = found.largest + norm - (1.0 - job.smoothing) * target_logit;
  if (job.smoothing > 0.0) job.losses[row] -= uniform * found.sum;  // which may be infinite
  by_lanes(job.vocab_size, [&](int64_t i, int64_t n) {
    const Lanes x = load(logits + i, n) - found.largest - norm32;
    store(exponential(x) - uniform32, logits + i, n);
  });
  const double probability = std::exp((double)target_logit - found.largest - norm);
  const double grad = probability - uniform - (1.0 - job.smoothing);
  store(lanes((float)grad), logits + target, 1);
}

template <class T>
void entropy(void* data, Worker worker) {
  const Entropy& job = *(Entropy*)data;
  worker.share(job.rows, [&](int64_t row) { entropy_of_row<T>(job, row); });
}

}  // namespace learning
