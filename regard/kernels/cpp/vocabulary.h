// Both ends of a decoder: the rows of an embedding, and the most probable tokens.
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

// One row of a matrix, as float32: (K,)
void copy_row(const Matrix& w, int64_t row, float* y) {
  const int64_t first = row / PANEL * PANEL * groups_of(w.k) * GROUP, at = row % PANEL;
  if (w.weights == INT8) {
    const uint8_t* data = (const uint8_t*)w.data + first;
    for (int64_t i = 0; i < w.k; i++) {
      y[i] = ((float)data[(i / 4 * PANEL + at) * 4 + i % 4] - 128.0f) * w.scale[row];
    }
  } else {
    const uint16_t* data = (const uint16_t*)w.data + first;
    for (int64_t i = 0; i < w.k; i++) {
      const uint32_t bits = (uint32_t)data[(i / 2 * PANEL + at) * 2 + i % 2] << 16;
      std::memcpy(y + i, &bits, 4);
    }
  }
}

constexpr int64_t PART = 512;  // logits of a part

inline int64_t parts_of(int64_t vocab_size) { return (vocab_size + PART - 1) / PART; }

// Of a part: its largest logit, and the sum of e^(logit - largest).
struct ExpSum {
  float largest;
  double sum;
};

#if WIDE
// e^x for x <= 0, with an absolute error of 3e-7; NaN stays NaN. The polynomial for 2^x is a
// minimax fit from -1/2 to 1/2.
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

ExpSum exp_sum(const float* logits, int64_t count) {
  float largest = -FLT_MAX, sum = 0.0f;  // finite, even where all logits are minus infinity
  int64_t i = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t j = 0; j < count; j++) largest = logits[j] > largest ? logits[j] : largest;
#if WIDE
  constexpr int SIDE = 4;  // independent sums
  Floats sums[SIDE] = {};
  for (; i + SIDE * VECTOR <= count; i += SIDE * VECTOR) {
    EACH(j, SIDE) {
      const Floats x = load(logits + i + j * VECTOR);
      sums[j] = plus(sums[j], powers(_mm512_sub_ps(x, filled(largest))));
    }
  }
  sum = _mm512_reduce_add_ps(plus(plus(sums[0], sums[1]), plus(sums[2], sums[3])));
#endif
  float rest = 0.0f;
#pragma omp simd reduction(+ : rest)
  for (int64_t j = i; j < count; j++) rest += exponential(logits[j] - largest);
  return {largest, sum + rest};
}

// -log softmax(logits)[target] of each row.
struct NegativeLogLikelihood {
  const float* logits;
  int64_t rows, vocab_size;
  const int64_t* targets;
  double* found;
};

void nll_all(void* data, Worker worker) {
  const NegativeLogLikelihood& c = *(NegativeLogLikelihood*)data;
  constexpr int64_t CHUNK = 512;  // logits that are summed in float32, then in float64
  worker.share(c.rows, [&](int64_t row) {
    const float* logits = c.logits + row * c.vocab_size;
    double largest = -FLT_MAX, sum = 0.0;
    for (int64_t at = 0; at < c.vocab_size; at += CHUNK) {
      const ExpSum part = exp_sum(logits + at, std::min(CHUNK, c.vocab_size - at));
      const double larger = std::max(largest, (double)part.largest);
      sum = sum * std::exp(largest - larger) + part.sum * std::exp(part.largest - larger);
      largest = larger;
    }
    c.found[row] = std::log(sum) + largest - logits[c.targets[row]];
  });
}

// Which of 16 logits are at least `threshold`: a bit for each.
inline uint32_t at_least(const float* logits, float threshold) {
#if WIDE
  return _mm512_cmp_ps_mask(load(logits), filled(threshold), _CMP_GE_OQ);
#elif HALF_WIDE
  const Floats low = _mm256_cmp_ps(load(logits), filled(threshold), _CMP_GE_OQ);
  const Floats high = _mm256_cmp_ps(load(logits + 8), filled(threshold), _CMP_GE_OQ);
  return _mm256_movemask_ps(low) | _mm256_movemask_ps(high) << 8;
#else
  uint32_t bits = 0;
  for (int i = 0; i < 16; i++) bits |= (uint32_t)(logits[i] >= threshold) << i;
  return bits;
#endif
}

// The tokens of a row that may be among the `count` most probable, found part by part. Logits that
// differ a little may have equal log-probabilities after rounding: candidates include a margin for
// them.
struct Candidates {
  struct Candidate {
    float logit;
    int64_t token;
  };
  std::vector<Candidate> tokens;
  float bound;      // at least `count` logits are not below it
  float threshold;  // the bound less the margin: every token not below it is a candidate
  float largest;
  size_t limit;     // of the number of candidates, above which some are removed

  void clear() {
    tokens.clear();
    bound = threshold = largest = -FLT_MAX, limit = 0;
  }

  // Adds the logits of the tokens from `first` on, of which the largest is given.
  void add(const float* logits, int64_t size, int64_t first, float part_largest, int64_t count) {
    largest = std::max(largest, part_largest);
    if (bound == -FLT_MAX && size >= count) raise(lower_bound(logits, size, count));
    if (part_largest < threshold) return;
    int64_t at = 0;
    for (; at + 16 <= size; at += 16) {
      for (uint32_t bits = at_least(logits + at, threshold); bits; bits &= bits - 1) {
        const int64_t i = at + __builtin_ctz(bits);
        tokens.push_back({logits[i], first + i});
      }
    }
    for (; at < size; at++) {
      if (logits[at] >= threshold) tokens.push_back({logits[at], first + at});
    }
    if (tokens.size() > std::max(limit, (size_t)count)) shrink(count);
  }

  void add(const Candidates& other) {
    tokens.insert(tokens.end(), other.tokens.begin(), other.tokens.end());
    threshold = std::max(threshold, other.threshold);
  }

 private:
  void raise(float to) {
    bound = to;
    threshold = std::max(threshold, bound - 1e-6f * (2.0f * (largest - bound) + 1000.0f));
  }

  void shrink(int64_t count) {
    std::nth_element(tokens.begin(), tokens.begin() + (count - 1), tokens.end(),
                     [](const Candidate& a, const Candidate& b) { return a.logit > b.logit; });
    raise(tokens[count - 1].logit);
    auto below = [&](const Candidate& one) { return one.logit < threshold; };
    tokens.erase(std::remove_if(tokens.begin(), tokens.end(), below), tokens.end());
    limit = tokens.size() + count;
  }

  // A number that at least `count` of the logits are not below: the logits are arranged in columns,
  // and it is the `count`-th of the columns' maxima.
  static float lower_bound(const float* logits, int64_t size, int64_t count) {
    float column[PART];
    for (int64_t i = 0; i < size; i++) column[i] = logits[i] > -FLT_MAX ? logits[i] : -FLT_MAX;
    for (; size % 2 == 0 && size / 2 >= std::max<int64_t>(16, count); size /= 2) {
      const float* other = column + size / 2;
#pragma omp simd
      for (int64_t i = 0; i < size / 2; i++) column[i] = std::max(column[i], other[i]);
    }
    std::nth_element(column, column + (count - 1), column + size, std::greater<float>());
    return column[count - 1];
  }
};

constexpr float FORBIDDEN = -1e30f;  // a finite logit below every other

// The most probable tokens of each row, best first; of equally probable ones the first comes first.
// Forbidden tokens are chosen only if there are no others. Where `normalized`, the probabilities of
// the others sum to 1 without them.
struct TopK {
  int64_t count;
  int64_t* best;    // (rows, count)
  float* log_prob;  // (rows, count)
  const int64_t* forbidden = nullptr;
  int64_t n_forbidden = 0;
  bool normalized = false;

  // `logits` are the logits of the tokens from `first` on.
  void forbid(float* logits, int64_t size, int64_t first) const {
    for (int64_t i = 0; i < n_forbidden; i++) {
      const int64_t at = forbidden[i] - first;
      if (at >= 0 && at < size) logits[at] = FORBIDDEN;
    }
  }
};

// The most probable tokens of a row, from the sums of all its parts. Returns false where candidates
// are missing.
bool select_topk(const TopK& to, int64_t row, const ExpSum* sums, int64_t parts, Candidates& all) {
  struct Found {
    float log_prob;
    int64_t token;
    bool operator<(const Found& other) const {
      return log_prob != other.log_prob ? log_prob > other.log_prob : token < other.token;
    }
  };
  static thread_local std::vector<Found> memory;
  std::vector<Found>& found = memory;
  const int64_t count = to.count;
  int64_t* best = to.best + row * count;
  float* log_prob = to.log_prob + row * count;
  float largest = -FLT_MAX;
  for (int64_t i = 0; i < parts; i++) largest = std::max(largest, sums[i].largest);
  double sum = 0.0;
  for (int64_t i = 0; i < parts; i++) {
    sum += sums[i].sum * std::exp((double)sums[i].largest - largest);
  }
  const float norm = (float)std::log(sum);
  if (largest == -FLT_MAX || std::isinf(largest) || !(sum < DBL_MAX)) {
    std::fill_n(log_prob, count, std::numeric_limits<float>::quiet_NaN());
    std::fill_n(best, count, 0);
    return true;
  }
  found.clear();
  for (const auto& one : all.tokens) found.push_back({(one.logit - largest) - norm, one.token});
  if ((int64_t)found.size() < count) return false;
  std::partial_sort(found.begin(), found.begin() + count, found.end());
  // Logits that differ less may have the same log-probability.
  const float last = found[count - 1].log_prob, lowest = last - 1e-6f * (1.0f - last);
  if ((all.threshold - largest) - norm > lowest && all.threshold > -FLT_MAX) return false;
  for (int64_t i = 0; i < count; i++) {
    log_prob[i] = found[i].log_prob, best[i] = found[i].token;
  }
  return true;
}

// Throws where the vocabulary has fewer tokens.
inline void check_count(int64_t count, int64_t vocab_size) {
  if (count < 1 || count > vocab_size) {
    boundary::raise_error("`count` must be from 1 to %lld, but is %lld", (long long)vocab_size,
                          (long long)count);
  }
}

// The logits of rows.
struct TopKCall {
  const float* logits;
  int64_t rows, vocab_size;
  TopK to;
};

void topk_row(const TopKCall& c, int64_t row) {
  static thread_local std::vector<ExpSum> sums_memory;
  static thread_local Candidates candidates_memory;
  std::vector<ExpSum>& sums = sums_memory;
  Candidates& all = candidates_memory;
  const float* logits = c.logits + row * c.vocab_size;
  sums.clear(), all.clear();
  for (int64_t at = 0; at < c.vocab_size; at += PART) {
    const int64_t size = std::min(PART, c.vocab_size - at);
    sums.push_back(exp_sum(logits + at, size));
    all.add(logits + at, size, at, sums.back().largest, c.to.count);
  }
  if (select_topk(c.to, row, sums.data(), sums.size(), all)) return;
  all.clear();  // some logits are minus infinity: all tokens are candidates
  for (int64_t i = 0; i < c.vocab_size; i++) all.tokens.push_back({logits[i], i});
  select_topk(c.to, row, sums.data(), sums.size(), all);
}

void topk_all(void* data, Worker worker) {
  const TopKCall& c = *(TopKCall*)data;
  worker.share(c.rows, [&](int64_t row) { topk_row(c, row); });
}

}  // namespace
