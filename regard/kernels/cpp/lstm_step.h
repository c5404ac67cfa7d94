// One step of an LSTM's cell, forward and backward, for loops whose next input depends on it.
#pragma once

#include <cstdint>

#include "lanes.h"
#include "threads.h"

namespace learning {

// Gates are input, forget, new, output, side by side: (rows, 4 width). All else is (rows, width).
struct LstmStep {
  const float *sums, *more;  // that together are the gates before they are squashed
  int64_t step;              // numbers between two rows of `sums`
  const float* before;       // the cell
  float *gates, *hidden, *after;
  const float *d_hidden, *d_after;
  float *d_sums, *d_before;
  int64_t rows, width;
};

inline Lanes squashed(Lanes x) { return 1.0f / (1.0f + exponential(-x)); }

inline Lanes tangent(Lanes x) { return 2.0f * squashed(2.0f * x) - 1.0f; }

void lstm_step(void* data, Worker worker) {
  const LstmStep& job = *(LstmStep*)data;
  const int64_t width = job.width;
  worker.share(job.rows, [&](int64_t row) {
    const float *sums = job.sums + row * job.step, *more = job.more + row * 4 * width;
    float* gates = job.gates + row * 4 * width;
    by_lanes(width, [&](int64_t i, int64_t some) {
      Lanes gate[4];
      for (int64_t g = 0; g < 4; g++) {
        const Lanes x = load(sums + g * width + i, some) + load(more + g * width + i, some);
        gate[g] = g == 2 ? tangent(x) : squashed(x);
        store(gate[g], gates + g * width + i, some);
      }
      const int64_t at = row * width + i;
      const Lanes after = gate[1] * load(job.before + at, some) + gate[0] * gate[2];
      store(after, job.after + at, some);
      store(gate[3] * tangent(after), job.hidden + at, some);
    });
  });
}

void lstm_step_back(void* data, Worker worker) {
  const LstmStep& job = *(LstmStep*)data;
  const int64_t width = job.width;
  worker.share(job.rows, [&](int64_t row) {
    const float* gates = job.gates + row * 4 * width;
    float* grads = job.d_sums + row * 4 * width;
    by_lanes(width, [&](int64_t i, int64_t some) {
      const int64_t at = row * width + i;
      Lanes gate[4];
      for (int64_t g = 0; g < 4; g++) gate[g] = load(gates + g * width + i, some);
      const Lanes enter = gate[0], keep = gate[1], fresh = gate[2], leave = gate[3];
      const Lanes shown = tangent(load(job.after + at, some)), out = load(job.d_hidden + at, some);
      const Lanes inside = load(job.d_after + at, some) + out * leave * (1.0f - shown * shown);
      store(inside * keep, job.d_before + at, some);
      const Lanes before = load(job.before + at, some);
      const Lanes grad[4] = {inside * fresh * enter * (1.0f - enter),
                              inside * before * keep * (1.0f - keep),
                              inside * enter * (1.0f - fresh * fresh),
                              out * shown * leave * (1.0f - leave)};
      for (int64_t g = 0; g < 4; g++) store(grad[g], grads + g * width + i, some);
    });
  });
}

}  // namespace learning
