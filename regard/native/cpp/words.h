// Both ends of a decoder: the rows of an embedding, and the best of all words.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
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
  for (int64_t i = 0; i < count; i++) most = scores[i] > most ? scores[i] : most;
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

// The best words of each row, best first; of equally probable ones the first comes first.
struct Leaders {
  const float* scores;
  int64_t rows, words, count;
  int64_t* best;    // (rows, count)
  float* log_prob;  // (rows, count)

  static constexpr int64_t PART = 512;  // scores of which the greatest is known

  int64_t parts() const { return (words + PART - 1) / PART; }
};

// There are at least as many parts as leaders: the least of the greatest parts' greatest scores is
// reached by as many words as are looked for, and by few others.
void lead(const Leaders& c, int64_t row) {
  struct Word {
    float log_prob;
    int64_t number;
    bool operator<(const Word& other) const {
      return log_prob != other.log_prob ? log_prob > other.log_prob : number < other.number;
    }
  };
  static thread_local std::vector<Peak> peaks;
  static thread_local std::vector<float> greatest;
  static thread_local std::vector<Word> found;
  const float* scores = c.scores + row * c.words;
  peaks.clear(), greatest.clear(), found.clear();
  float most = -FLT_MAX;
  for (int64_t at = 0; at < c.words; at += Leaders::PART) {
    peaks.push_back(peak(scores + at, std::min(Leaders::PART, c.words - at)));
    greatest.push_back(peaks.back().most);
    most = std::max(most, greatest.back());
  }
  double sum = 0.0;
  for (const Peak& part : peaks) sum += part.sum * std::exp((double)part.most - most);
  const float norm = (float)std::log(sum);
  if (most == -FLT_MAX || std::isinf(most) || !(sum < DBL_MAX)) {
    std::fill_n(c.log_prob + row * c.count, c.count, std::numeric_limits<float>::quiet_NaN());
    std::fill_n(c.best + row * c.count, c.count, 0);
    return;
  }
  std::nth_element(greatest.begin(), greatest.begin() + (c.count - 1), greatest.end(),
                   std::greater<float>());
  // Scores that differ less may have the same log-probability.
  const float last = greatest[c.count - 1], nearly = last - 1e-6f * (most - last + norm + 1.0f);
  auto add = [&](int64_t i) { found.push_back({(scores[i] - most) - norm, i}); };
  for (int64_t part = 0; part < c.parts(); part++) {
    if (peaks[part].most < nearly) continue;
    const int64_t end = std::min(c.words, (part + 1) * Leaders::PART);
    for (int64_t i = part * Leaders::PART; i < end; i++) {
      if (scores[i] >= nearly) add(i);
    }
  }
  if ((int64_t)found.size() < c.count) {  // others are minus infinity
    found.clear();
    for (int64_t i = 0; i < c.words; i++) add(i);
  }
  std::partial_sort(found.begin(), found.begin() + c.count, found.end());
  for (int64_t i = 0; i < c.count; i++) {
    c.log_prob[row * c.count + i] = found[i].log_prob;
    c.best[row * c.count + i] = found[i].number;
  }
}

void lead_all(void* data, Worker worker) {
  const Leaders& c = *(Leaders*)data;
  worker.share(c.rows, [&](int64_t row) { lead(c, row); });
}

}  // namespace
