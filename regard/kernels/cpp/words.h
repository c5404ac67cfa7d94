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

#include "boundary.h"
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

constexpr int64_t PART = 512;  // scores that are looked at together

inline int64_t parts_of(int64_t words) { return (words + PART - 1) / PART; }

// Of a part: its best score, and the sum of e^(score - most).
struct Peak {
  float most;
  double sum;
};

#if WIDE
// e^x where x is not above 0, to 3e-7 where it counts in a sum with 1; NaN stays NaN. The powers of
// 2 were fitted for the least error from -1/2 to 1/2.
inline Floats powers(Floats x) {
  const Floats bits = _mm512_mul_ps(x, filled(1.44269504f));
  const Floats whole = _mm512_roundscale_ps(bits, 0), rest = _mm512_sub_ps(bits, whole);
  Floats p = filled(1.327647069e-3f);
  for (float c : {9.675541324e-3f, 5.550713278e-2f, 2.402211972e-1f, 6.931469671e-1f, 1.0f}) {
    p = times_plus(p, rest, filled(c));
  }
  return _mm512_scalef_ps(p, whole);
}
#endif

Peak peak(const float* scores, int64_t count) {
  float most = -FLT_MAX, sum = 0.0f;  // a score of minus infinity is no number to subtract
  int64_t i = 0;
#pragma omp simd reduction(max : most)
  for (int64_t j = 0; j < count; j++) most = scores[j] > most ? scores[j] : most;
#if WIDE
  constexpr int SIDE = 4;  // sums that grow side by side
  Floats sums[SIDE] = {};
  for (; i + SIDE * VECTOR <= count; i += SIDE * VECTOR) {
    EACH(j, SIDE) {
      const Floats x = load(scores + i + j * VECTOR);
      sums[j] = plus(sums[j], powers(_mm512_sub_ps(x, filled(most))));
    }
  }
  sum = _mm512_reduce_add_ps(plus(plus(sums[0], sums[1]), plus(sums[2], sums[3])));
#endif
  float rest = 0.0f;
#pragma omp simd reduction(+ : rest)
  for (int64_t j = i; j < count; j++) rest += exponential(scores[j] - most);
  return {most, sum + rest};
}

struct Choice {
  const float* scores;
  int64_t rows, words;
  int64_t* best;
  float* log_prob;
  Peak* peaks;  // of every part

  int64_t parts() const { return parts_of(words); }
};

// Of words that are equally probable, once log-probabilities are rounded, the first.
void choose(const Choice& c, int64_t row) {
  const float* scores = c.scores + row * c.words;
  const Peak* peaks = c.peaks + row * c.parts();
  float most = -FLT_MAX;
  for (int64_t i = 0; i < c.parts(); i++) most = std::max(most, peaks[i].most);
  double sum = 0.0;
  for (int64_t i = 0; i < c.parts(); i++) {
    sum += peaks[i].sum * std::exp((double)peaks[i].most - most);
  }
  const float norm = (float)std::log(sum);
  auto log_prob = [&](float score) { return (score - most) - norm; };
  const bool wrong = most == -FLT_MAX || std::isinf(most) || !(sum < DBL_MAX);
  c.log_prob[row] = wrong ? std::numeric_limits<float>::quiet_NaN() : -norm;
  c.best[row] = 0;
  if (wrong) return;
  int64_t part = 0, i = 0;
  while (log_prob(peaks[part].most) < -norm) part++;
  for (const float* here = scores + part * PART; !(log_prob(here[i]) >= -norm);) i++;
  c.best[row] = part * PART + i;
}

void choose_all(void* data, Worker worker) {
  const Choice& c = *(Choice*)data;
  const int64_t parts = c.rows * c.parts(), pieces = worker.pieces(parts, 2);
  auto work = [&](int64_t piece) {
    const Share share(parts, piece, pieces);
    for (int64_t i = share.begin; i < share.end; i++) {
      const int64_t row = i / c.parts(), first = i % c.parts() * PART;
      c.peaks[i] = peak(c.scores + row * c.words + first, std::min(PART, c.words - first));
    }
  };
  worker.share(pieces, work, [&] {
    for (int64_t row = 0; row < c.rows; row++) choose(c, row);
  });
}

// Minus the log-probability of a word of each row.
struct Surprise {
  const float* scores;
  int64_t rows, words;
  const int64_t* asked;
  double* found;
};

void surprise_all(void* data, Worker worker) {
  const Surprise& c = *(Surprise*)data;
  constexpr int64_t SOME = 512;  // scores whose sum is one of float32
  worker.share(c.rows, [&](int64_t row) {
    const float* scores = c.scores + row * c.words;
    double most = -FLT_MAX, sum = 0.0;
    for (int64_t at = 0; at < c.words; at += SOME) {
      const Peak here = peak(scores + at, std::min(SOME, c.words - at));
      const double higher = std::max(most, (double)here.most);
      sum = sum * std::exp(most - higher) + here.sum * std::exp(here.most - higher);
      most = higher;
    }
    c.found[row] = std::log(sum) + most - scores[c.asked[row]];
  });
}

// The best words of a row are found part by part, while its scores pass by.
// Which of 16 scores are not below the least: a bit for each.
inline uint32_t reaching(const float* scores, float least) {
#if WIDE
  return _mm512_cmp_ps_mask(load(scores), filled(least), _CMP_GE_OQ);
#elif HALF_WIDE
  const Floats low = _mm256_cmp_ps(load(scores), filled(least), _CMP_GE_OQ);
  const Floats high = _mm256_cmp_ps(load(scores + 8), filled(least), _CMP_GE_OQ);
  return _mm256_movemask_ps(low) | _mm256_movemask_ps(high) << 8;
#else
  uint32_t bits = 0;
  for (int i = 0; i < 16; i++) bits |= (uint32_t)(scores[i] >= least) << i;
  return bits;
#endif
}

// What may be among the best `count` words of a row. Words that differ a little may be equally
// probable once that is rounded: a margin below the best is kept.
struct Candidates {
  struct Word {
    float score;
    int64_t number;
  };
  std::vector<Word> words;
  float bound;  // as many words as are looked for are not below it
  float least;  // nothing that is not below it is missing
  float most;
  size_t many;  // so many words are made fewer

  void clear() {
    words.clear();
    bound = least = most = -FLT_MAX, many = 0;
  }

  // The scores of the words from `first` on, of which the greatest is given.
  void add(const float* scores, int64_t size, int64_t first, float greatest, int64_t count) {
    most = std::max(most, greatest);
    if (bound == -FLT_MAX && size >= count) raise(reached(scores, size, count));
    if (greatest < least) return;
    int64_t at = 0;
    for (; at + 16 <= size; at += 16) {
      for (uint32_t here = reaching(scores + at, least); here; here &= here - 1) {
        const int64_t i = at + __builtin_ctz(here);
        words.push_back({scores[i], first + i});
      }
    }
    for (; at < size; at++) {
      if (scores[at] >= least) words.push_back({scores[at], first + at});
    }
    if (words.size() > std::max(many, (size_t)count)) shrink(count);
  }

  void add(const Candidates& other) {
    words.insert(words.end(), other.words.begin(), other.words.end());
    least = std::max(least, other.least);
  }

 private:
  void raise(float to) {
    bound = to;
    least = std::max(least, bound - 1e-6f * (2.0f * (most - bound) + 1000.0f));
  }

  void shrink(int64_t count) {
    std::nth_element(words.begin(), words.begin() + (count - 1), words.end(),
                     [](const Word& a, const Word& b) { return a.score > b.score; });
    raise(words[count - 1].score);
    auto low = [&](const Word& word) { return word.score < least; };
    words.erase(std::remove_if(words.begin(), words.end(), low), words.end());
    many = words.size() + count;
  }

  // What so many of the scores reach: one in each of the best columns, if they stand in columns.
  static float reached(const float* scores, int64_t size, int64_t count) {
    float column[PART];
    for (int64_t i = 0; i < size; i++) column[i] = scores[i] > -FLT_MAX ? scores[i] : -FLT_MAX;
    for (; size % 2 == 0 && size / 2 >= std::max<int64_t>(16, count); size /= 2) {
      const float* other = column + size / 2;
#pragma omp simd
      for (int64_t i = 0; i < size / 2; i++) column[i] = std::max(column[i], other[i]);
    }
    std::nth_element(column, column + (count - 1), column + size, std::greater<float>());
    return column[count - 1];
  }
};

constexpr float FORBIDDEN = -1e30f;  // a score that is a number, and below every other

// The best words of each row, best first; of equally probable ones the first comes first.
// Forbidden words are not among them while there are others. Where `normalized`, they have no part
// in the sum of all probabilities either.
struct Leaders {
  int64_t count;
  int64_t* best;    // (rows, count)
  float* log_prob;  // (rows, count)
  const int64_t* never = nullptr;
  int64_t n_never = 0;
  bool normalized = false;

  // Of the scores of words from `first` on.
  void forbid(float* scores, int64_t size, int64_t first) const {
    for (int64_t i = 0; i < n_never; i++) {
      const int64_t at = never[i] - first;
      if (at >= 0 && at < size) scores[at] = FORBIDDEN;
    }
  }
};

// The best words of a row, from the peaks of all its parts. Gives whether none is missing.
bool choose_leaders(const Leaders& to, int64_t row, const Peak* peaks, int64_t parts,
                    Candidates& all) {
  struct Found {
    float log_prob;
    int64_t number;
    bool operator<(const Found& other) const {
      return log_prob != other.log_prob ? log_prob > other.log_prob : number < other.number;
    }
  };
  static thread_local std::vector<Found> kept;
  std::vector<Found>& found = kept;
  const int64_t count = to.count;
  int64_t* best = to.best + row * count;
  float* log_prob = to.log_prob + row * count;
  float most = -FLT_MAX;
  for (int64_t i = 0; i < parts; i++) most = std::max(most, peaks[i].most);
  double sum = 0.0;
  for (int64_t i = 0; i < parts; i++) {
    sum += peaks[i].sum * std::exp((double)peaks[i].most - most);
  }
  const float norm = (float)std::log(sum);
  if (most == -FLT_MAX || std::isinf(most) || !(sum < DBL_MAX)) {
    std::fill_n(log_prob, count, std::numeric_limits<float>::quiet_NaN());
    std::fill_n(best, count, 0);
    return true;
  }
  found.clear();
  for (const auto& word : all.words) found.push_back({(word.score - most) - norm, word.number});
  if ((int64_t)found.size() < count) return false;
  std::partial_sort(found.begin(), found.begin() + count, found.end());
  // Scores that differ less may have the same log-probability.
  const float last = found[count - 1].log_prob, nearly = last - 1e-6f * (1.0f - last);
  if ((all.least - most) - norm > nearly && all.least > -FLT_MAX) return false;
  for (int64_t i = 0; i < count; i++) {
    log_prob[i] = found[i].log_prob, best[i] = found[i].number;
  }
  return true;
}

// Throws where there are not so many words.
inline void check_count(int64_t count, int64_t words) {
  if (count < 1 || count > words) {
    boundary::raise_error("`count` must be from 1 to %lld, but is %lld", (long long)words,
                          (long long)count);
  }
}

// Rows of scores.
struct Scores {
  const float* scores;
  int64_t rows, words;
  Leaders to;
};

void lead(const Scores& c, int64_t row) {
  static thread_local std::vector<Peak> kept_peaks;
  static thread_local Candidates kept;
  std::vector<Peak>& peaks = kept_peaks;
  Candidates& all = kept;
  const float* scores = c.scores + row * c.words;
  peaks.clear(), all.clear();
  for (int64_t at = 0; at < c.words; at += PART) {
    const int64_t size = std::min(PART, c.words - at);
    peaks.push_back(peak(scores + at, size));
    all.add(scores + at, size, at, peaks.back().most, c.to.count);
  }
  if (choose_leaders(c.to, row, peaks.data(), peaks.size(), all)) return;
  all.clear();  // some are minus infinity
  for (int64_t i = 0; i < c.words; i++) all.words.push_back({scores[i], i});
  choose_leaders(c.to, row, peaks.data(), peaks.size(), all);
}

void lead_all(void* data, Worker worker) {
  const Scores& c = *(Scores*)data;
  worker.share(c.rows, [&](int64_t row) { lead(c, row); });
}

}  // namespace
