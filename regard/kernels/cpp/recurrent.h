// A recurrent layer over whole sequences; W x + b of all tokens is given.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cells.h"
#include "products.h"
#include "threads.h"

namespace {

// One step: `gates` are W x + b, `recurrent` is U h + c; `hidden` and `cell` (width) are updated.
void update_state(int kind, const float* gates, const float* recurrent, int64_t width,
                  float* hidden, float* cell) {
  const float *a = gates, *b = a + width, *c = b + width, *d = c + width;
  const float *e = recurrent, *f = e + width, *g = f + width, *h = g + width;
  if (kind == LSTM_CELL) {
#pragma omp simd
    for (int64_t i = 0; i < width; i++) {
      cell[i] = lstm_cell(a[i] + e[i], b[i] + f[i], c[i] + g[i], cell[i]);
      hidden[i] = lstm_hidden(d[i] + h[i], cell[i]);
    }
  } else if (kind == GRU_CELL) {
#pragma omp simd
    for (int64_t i = 0; i < width; i++) {
      hidden[i] = gru(a[i] + e[i], b[i] + f[i], c[i], g[i], hidden[i]);
    }
  } else {
#pragma omp simd
    for (int64_t i = 0; i < width; i++) hidden[i] = tanh_of(a[i] + e[i]);
  }
}

struct Recurrence {
  int kind;
  const Matrix* w;
  const float* gates;  // (rows, tokens, N)
  int64_t rows, tokens;
  float *hidden, *cell;  // (rows, K)
  float* y;              // (rows, tokens, K)
  float* recurrent;      // (rows, N)
  Rows buffer;

  void update_row(int64_t row, int64_t t) const {
    const int64_t width = w->k, token = row * tokens + t;
    float* state = hidden + row * width;
    update_state(kind, gates + token * w->n, recurrent + row * w->n, width, state,
                 cell ? cell + row * width : nullptr);
    std::copy_n(state, width, y + token * width);
  }
};

void recur(void* data, Worker worker) {
  const Recurrence& r = *(Recurrence*)data;
  for (int64_t t = 0; t < r.tokens; t++) {
    round_all(*r.w, r.hidden, r.buffer, worker);
    multiply(*r.w, {r.recurrent, LINEAR_, nullptr}, r.buffer, worker, [] {});
    worker.share(r.rows, [&](int64_t row) { r.update_row(row, t); });
  }
}

}  // namespace
