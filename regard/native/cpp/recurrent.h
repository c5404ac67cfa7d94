// A recurrent layer, whose product with the tokens is already there.
#pragma once

#include <algorithm>
#include <cstdint>

#include "elementwise.h"
#include "products.h"
#include "threads.h"

extern "C" {

// Gates lie side by side: of an LSTM input, forget, new, output; of a GRU reset, update, new.
enum Cell { PLAIN = 0, GATED = 1, LONG_SHORT = 2 };
}

namespace {

inline float tangent(float x) { return 2.0f * sigmoid(2.0f * x) - 1.0f; }

// `gates` come from a token, `again` from the hidden state (width), which changes, as does `cell`.
void remember(int kind, const float* gates, const float* again, int64_t width, float* hidden,
              float* cell) {
  const float *a = gates, *b = a + width, *c = b + width, *d = c + width;
  const float *e = again, *f = e + width, *g = f + width, *h = g + width;
  if (kind == LONG_SHORT) {
#pragma omp simd
    for (int64_t i = 0; i < width; i++) {
      const float kept = sigmoid(b[i] + f[i]) * cell[i];
      cell[i] = kept + sigmoid(a[i] + e[i]) * tangent(c[i] + g[i]);
      hidden[i] = sigmoid(d[i] + h[i]) * tangent(cell[i]);
    }
  } else if (kind == GATED) {
#pragma omp simd
    for (int64_t i = 0; i < width; i++) {
      const float fresh = tangent(c[i] + sigmoid(a[i] + e[i]) * g[i]);
      hidden[i] = fresh + sigmoid(b[i] + f[i]) * (hidden[i] - fresh);
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
