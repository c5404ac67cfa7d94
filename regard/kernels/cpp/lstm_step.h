// One step of an LSTM, forward and backward, for loops whose next input depends on its output.
#pragma once

#include <cstdint>

#include "lanes.h"
#include "threads.h"

namespace learning {

// Gates are input, forget, candidate, output, side by side: (rows, 4 width); `below` is W x + b and
// `recurrent` is U h + c of the gates. All else is (rows, width).
struct LstmStep {
  const float *below, *recurrent;
  int64_t below_stride;  // numbers between two rows of `below`
  const float* cell;     // before the step
  float *gates, *hidden, *next_cell;
  const float *d_hidden, *d_next_cell;
  float *d_gates, *d_cell;
  int64_t rows, width;
};

inline Lanes sigmoid(Lanes x) { return 1.0f / (1.0f + exponential(-x)); }

inline Lanes tanh(Lanes x) { return 2.0f * sigmoid(2.0f * x) - 1.0f; }

void lstm_step(void* data, Worker worker) {
  const LstmStep& job = *(LstmStep*)data;
  const int64_t width = job.width;
  worker.share(job.rows, [&](int64_t row) {
    const float* below = job.below + row * job.below_stride;
    const float* recurrent = job.recurrent + row * 4 * width;
    float* gates = job.gates + row * 4 * width;
    by_lanes(width, [&](int64_t i, int64_t n) {
      Lanes gate[4];
      for (int64_t g = 0; g < 4; g++) {
        const int64_t k = g * width + i;
        const Lanes x = load(below + k, n) + load(recurrent + k, n);
        gate[g] = g == 2 ? tanh(x) : sigmoid(x);
        store(gate[g], gates + k, n);
      }
      const int64_t at = row * width + i;
      const Lanes cell = gate[1] * load(job.cell + at, n) + gate[0] * gate[2];
      store(cell, job.next_cell + at, n);
      store(gate[3] * tanh(cell), job.hidden + at, n);
    });
  });
}

void lstm_step_back(void* data, Worker worker) {
  const LstmStep& job = *(LstmStep*)data;
  const int64_t width = job.width;
  worker.share(job.rows, [&](int64_t row) {
    const float* gates = job.gates + row * 4 * width;
    float* grads = job.d_gates + row * 4 * width;
    by_lanes(width, [&](int64_t i, int64_t n) {
      const int64_t at = row * width + i;
      Lanes gate[4];
      for (int64_t g = 0; g < 4; g++) gate[g] = load(gates + g * width + i, n);
      const Lanes input = gate[0], forget = gate[1], candidate = gate[2], output = gate[3];
      const Lanes squashed = tanh(load(job.next_cell + at, n));
      const Lanes d_hidden = load(job.d_hidden + at, n);
      const Lanes d_cell = load(job.d_next_cell + at, n) +
                           d_hidden * output * (1.0f - squashed * squashed);
      store(d_cell * forget, job.d_cell + at, n);
      const Lanes cell = load(job.cell + at, n);
      const Lanes grad[4] = {d_cell * candidate * input * (1.0f - input),
                             d_cell * cell * forget * (1.0f - forget),
                             d_cell * input * (1.0f - candidate * candidate),
                             d_hidden * squashed * output * (1.0f - output)};
      for (int64_t g = 0; g < 4; g++) store(grad[g], grads + g * width + i, n);
    });
  });
}

}  // namespace learning
