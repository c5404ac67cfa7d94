// The equations of recurrent cells.
#pragma once

#include <cstdint>

#include "elementwise.h"

extern "C" {

// Gates are side by side: of an LSTM input, forget, candidate, output; of a GRU reset, update,
// candidate.
// LSTM_HIDDEN is the second half of LSTM_CELL.
enum Cell { RNN_CELL = 0, GRU_CELL = 1, LSTM_CELL = 2, LSTM_HIDDEN = 3 };
}

namespace {

inline float tanh_of(float x) { return 2.0f * sigmoid(2.0f * x) - 1.0f; }

// The next cell of an LSTM.
inline float lstm_cell(float input, float forget, float candidate, float cell) {
  return sigmoid(forget) * cell + sigmoid(input) * tanh_of(candidate);
}

// The next hidden state of an LSTM, from its next cell.
inline float lstm_hidden(float output, float cell) { return sigmoid(output) * tanh_of(cell); }

// The next hidden state of a GRU; `recurrent` is the candidate's U h + c.
inline float gru(float reset, float update, float candidate, float recurrent, float hidden) {
  const float next = tanh_of(candidate + sigmoid(reset) * recurrent);
  return next + sigmoid(update) * (hidden - next);
}

// The next state y (width) of a cell. gates, state: of an LSTM W x + U h with biases (4 width) and
// the cell; of a GRU W x + b (3 width), and U h + c followed by the hidden state (4 width); of an
// RNN W x + U h with biases (width), and nothing.
void next_state(int kind, const float* gates, const float* state, int64_t width, float* y) {
  const float *a = gates, *b = a + width, *c = b + width, *d = c + width;
  if (kind == LSTM_CELL) {
#pragma omp simd
    for (int64_t i = 0; i < width; i++) y[i] = lstm_cell(a[i], b[i], c[i], state[i]);
  } else if (kind == LSTM_HIDDEN) {
#pragma omp simd
    for (int64_t i = 0; i < width; i++) y[i] = lstm_hidden(d[i], state[i]);
  } else if (kind == GRU_CELL) {
    const float *e = state, *f = e + width, *g = f + width, *h = g + width;
#pragma omp simd
    for (int64_t i = 0; i < width; i++) y[i] = gru(a[i] + e[i], b[i] + f[i], c[i], g[i], h[i]);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < width; i++) y[i] = tanh_of(a[i]);
  }
}

}  // namespace
