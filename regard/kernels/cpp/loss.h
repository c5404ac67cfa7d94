// The cross-entropy of words, and its gradient in the place of their scores.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "lanes.h"
#include "threads.h"

namespace learning {

struct Entropy {
  void* scores;            // (rows, words), then the gradient
  const int64_t* targets;  // (rows,)
  double* losses;          // (rows,)
  int64_t rows, words;
  double smoothing;  // how much of a target's probability all words share
};

// Of one row: its greatest score, the sum of all, and of e^(score - greatest).
struct Summed {
  float most;
  double sum, powers;
};

template <class T>
Summed summed(const T* scores, int64_t words) {
  constexpr int64_t CHUNK = 4096;  // whose sums are those of float32
  constexpr float LEAST = -std::numeric_limits<float>::infinity();
  Lanes most = lanes(LEAST);
  by_lanes(words, [&](int64_t i, int64_t some) {
    Lanes x = load(scores + i, some);
    for (int64_t l = some; l < LANES; l++) x[l] = LEAST;
    most = x > most ? x : most;
  });
  Summed found{most_of(most), 0.0, 0.0};
  for (int64_t first = 0; first < words; first += CHUNK) {
    Lanes sum = {}, powers = {};
    by_lanes(std::min(CHUNK, words - first), [&](int64_t i, int64_t some) {
      const Lanes x = load(scores + first + i, some);
      sum += x, powers += only(exponential(x - found.most), some);
    });
    found.sum += sum_of(sum), found.powers += sum_of(powers);
  }
  return found;
}

// d/dz of (1 - e) (lse - z_t) + e (lse - mean z)  is  softmax - (1 - e) onehot - e / V.
template <class T>
void entropy_of_row(const Entropy& job, int64_t row) {
  T* scores = (T*)job.scores + row * job.words;
  const Summed found = summed(scores, job.words);
  const int64_t target = job.targets[row];
  const double norm = std::log(found.powers), even = job.smoothing / job.words;
  const float wanted = load(scores + target, 1)[0], least = (float)norm, share = (float)even;
  job.losses[row] = found.most + norm - (1.0 - job.smoothing) * wanted;
  if (job.smoothing > 0.0) job.losses[row] -= even * found.sum;  // which may be infinite
  by_lanes(job.words, [&](int64_t i, int64_t some) {
    store(exponential(load(scores + i, some) - found.most - least) - share, scores + i, some);
  });
  const double grad = std::exp((double)wanted - found.most - norm) - even - (1.0 - job.smoothing);
  store(lanes((float)grad), scores + target, 1);
}

template <class T>
void entropy(void* data, Worker worker) {
  const Entropy& job = *(Entropy*)data;
  worker.share(job.rows, [&](int64_t row) { entropy_of_row<T>(job, row); });
}

}  // namespace learning
