// Both ends of a decoder: the rows of an embedding, and the best of all words.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "elementwise.h"
#include "products.h"
#include "threads.h"

namespace {

// One line of a matrix, as float32: (K,)
void line_of(const Matrix& w, int64_t line, float* y) {
  const int64_t first = line / PANEL * PANEL * groups_of(w.k) * GROUP, at = line % PANEL;
  if (w.weights == INT8) {
    const uint8_t* data = (const uint8_t*)w.data + first;
    for (int64_t i = 0; i < w.k; i++) {
      y[i] = ((float)data[(i / 4 * PANEL + at) * 4 + i % 4] - 128.0f) * w.scale[line];
    }
  } else {
    const uint16_t* data = (const uint16_t*)w.data + first;
    for (int64_t i = 0; i < w.k; i++) {
      const uint32_t bits = (uint32_t)data[(i / 2 * PANEL + at) * 2 + i % 2] << 16;
      std::memcpy(y + i, &bits, 4);
    }
  }
}

constexpr int64_t CHUNK = 4096;  // scores that stay in the cache of a core

// Of a chunk: its best score, and the sum of e^(score - most).
struct Peak {
  float most;
  double sum;
};

Peak peak(const float* scores, int64_t count) {
  float most = -FLT_MAX, sum = 0.0f;  // a score of minus infinity is no number to subtract
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < count; i++) most = std::max(most, scores[i]);
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; i++) sum += exponential(scores[i] - most);
  return {most, sum};
}

struct Choice {
  const float* scores;
  int64_t rows, words;
  int64_t* best;
  float* log_prob;
  Peak* peaks;  // of every chunk

  int64_t chunks() const { return (words + CHUNK - 1) / CHUNK; }
  int64_t width(int64_t chunk) const { return std::min(CHUNK, words - chunk * CHUNK); }
};

// Of words that are equally probable, once log-probabilities are rounded, the first.
void choose(const Choice& c, int64_t row) {
  const float* scores = c.scores + row * c.words;
  const Peak* peaks = c.peaks + row * c.chunks();
  float most = -FLT_MAX;
  for (int64_t i = 0; i < c.chunks(); i++) most = std::max(most, peaks[i].most);
  double sum = 0.0;
  for (int64_t i = 0; i < c.chunks(); i++) {
    sum += peaks[i].sum * std::exp((double)peaks[i].most - most);
  }
  const float norm = (float)std::log(sum);
  auto log_prob = [&](float score) { return (score - most) - norm; };
  const bool wrong = most == -FLT_MAX || std::isinf(most) || !(sum < DBL_MAX);
  c.log_prob[row] = wrong ? std::numeric_limits<float>::quiet_NaN() : -norm;
  c.best[row] = 0;
  if (wrong) return;
  int64_t chunk = 0, i = 0;
  while (log_prob(peaks[chunk].most) < -norm) chunk++;
  for (const float* here = scores + chunk * CHUNK; !(log_prob(here[i]) >= -norm);) i++;
  c.best[row] = chunk * CHUNK + i;
}

void choose_all(void* data, Worker worker) {
  const Choice& c = *(Choice*)data;
  const int64_t parts = c.rows * c.chunks(), pieces = worker.pieces(parts, 2);
  auto work = [&](int64_t piece) {
    const Share share(parts, piece, pieces);
    for (int64_t i = share.begin; i < share.end; i++) {
      const int64_t row = i / c.chunks(), chunk = i % c.chunks();
      c.peaks[i] = peak(c.scores + row * c.words + chunk * CHUNK, c.width(chunk));
    }
  };
  worker.share(pieces, work, [&] {
    for (int64_t row = 0; row < c.rows; row++) choose(c, row);
  });
}

}  // namespace
