// The equations of recurrent cells.
#pragma once

#include <cstdint>

#include "elementwise.h"

extern "C" {

// Gates lie side by side: of an LSTM input, forget, new, output; of a GRU reset, update, new.
// LSTM_HIDDEN is the second half of LSTM_CELL.
enum Cell { PLAIN = 0, GRU_CELL = 1, LSTM_CELL = 2, LSTM_HIDDEN = 3 };
}

namespace {

inline float tangent(float x) { return 2.0f * sigmoid(2.0f * x) - 1.0f; }

// The next cell of an LSTM.
inline float lstm_cell(float enter, float keep, float fresh, float cell) {
  return sigmoid(keep) * cell + sigmoid(enter) * tangent(fresh);
}

// The next hidden state of an LSTM, from its next cell.
inline float lstm_hidden(float leave, float cell) { return sigmoid(leave) * tangent(cell); }

// The next hidden state of a GRU; `again` is its share of the new one.
inline float gru(float reset, float update, float fresh, float again, float hidden) {
  const float next = tangent(fresh + sigmoid(reset) * again);
  return next + sigmoid(update) * (hidden - next);
}

// The same where the sums of both sides are there: `gates` of an LSTM (4 width) with the cell; those
// that a token says to a GRU (3 width), with those of its hidden state and that (4 width); of a plain
// layer (width).
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
    for (int64_t i = 0; i < width; i++) y[i] = tangent(a[i]);
  }
}

}  // namespace
