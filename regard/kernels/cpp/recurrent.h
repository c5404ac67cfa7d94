// A recurrent layer, whose product with the tokens is already there.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cells.h"
#include "products.h"
#include "threads.h"

namespace {

// `gates` come from a token, `again` from the hidden state (width), which changes, as does `cell`.
void remember(int kind, const float* gates, const float* again, int64_t width, float* hidden,
              float* cell) {
  const float *a = gates, *b = a + width, *c = b + width, *d = c + width;
  const float *e = again, *f = e + width, *g = f + width, *h = g + width;
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
    for (int64_t i = 0; i < width; i++) hidden[i] = tangent(a[i] + e[i]);
  }
}

struct Recurrence {
  int kind;
  const Matrix* w;
  const float* gates;  // (rows, tokens, N)
  int64_t rows, tokens;
  float *hidden, *cell;  // (rows, K)
  float* y;              // (rows, tokens, K)
  float* again;          // (rows, N)
  Rows room;

  void remember_row(int64_t row, int64_t t) const {
    const int64_t width = w->k, line = row * tokens + t;
    float* state = hidden + row * width;
    remember(kind, gates + line * w->n, again + row * w->n, width, state,
             cell ? cell + row * width : nullptr);
    std::copy_n(state, width, y + line * width);
  }
};

void recur(void* data, Worker worker) {
  const Recurrence& r = *(Recurrence*)data;
  for (int64_t t = 0; t < r.tokens; t++) {
    round_together(*r.w, r.hidden, r.room, worker);
    multiply(*r.w, {r.again, LINEAR_, nullptr}, r.room, worker, [] {});
    worker.share(r.rows, [&](int64_t row) { r.remember_row(row, t); });
  }
}

}  // namespace
