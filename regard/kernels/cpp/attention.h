// Attention of queries over the keys and values of a cache, or of a source.
//
// Up to four queries with the same keys are computed together, so that each key and each value is
// read once for all of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "elementwise.h"
#include "halves.h"
#include "processor.h"

extern "C" {

enum CacheType { FLOAT32 = 0, FLOAT16 = 1 };

// Keys and values (slots, layers, heads, positions, width), and the strides of the first four.
struct Memory {
  void *keys, *values;
  int64_t dtype;
  int64_t slot_stride, layer_stride, head_stride, position_stride;
  const int64_t* lengths;  // positions of each row; of a cache, those before the new tokens
  int64_t sharing;         // rows that read the same memory
  int64_t longest;         // the greatest length
  // Position s of a row lies in slot origin[row * origin_row_stride + (s >> origin_shift) *
  // origin_stride], at its position s & slot_mask. Null: slot i holds row i.
  const int64_t* origin;
  int64_t origin_row_stride, origin_stride, origin_shift, slot_mask;
  // How many rows have a length, the shape of keys and values, and the positions of a row.
  int64_t rows, slots, layers, heads, capacity, width;
};
}

namespace {

constexpr int64_t QUERIES = 4;             // that are computed together
constexpr int64_t PREFETCH_BLOCK = 16;     // positions that are prefetched at once
constexpr int64_t PREFETCH_DISTANCE = 64;  // positions between a prefetch and the reading
constexpr int64_t CACHE_LINE = 64;         // bytes
constexpr int64_t BLOCK = 16;              // weights are computed in full blocks

// Without it a compiler may remove a function that only prefetches.
#define INLINE __attribute__((always_inline)) inline

INLINE void fetch(const void* at) {
#if WIDE || HALF_WIDE
  _mm_prefetch((const char*)at, _MM_HINT_T0);
#endif
}

// A head of a layer, of one row.
struct HeadIndex {
  int64_t layer, row, head;
};

// Queries or contexts: `count` rows, `stride` numbers apart.
template <class T>
struct RowsView {
  T* first;
  int64_t stride, count;
};

// The keys, or the values, of one head of one row.
template <class T>
struct KVView {
  const T* first;  // of slot 0
  int64_t slot_stride, position_stride, row, begin;
  const int64_t* origin;
  int64_t origin_stride, origin_shift, slot_mask;

  KVView(const Memory& memory, const void* data, HeadIndex index, int64_t begin)
      : first((const T*)data + index.layer * memory.layer_stride + index.head * memory.head_stride),
        slot_stride(memory.slot_stride), position_stride(memory.position_stride), row(index.row),
        begin(begin),
        origin(memory.origin ? memory.origin + index.row * memory.origin_row_stride : nullptr),
        origin_stride(memory.origin_stride), origin_shift(memory.origin_shift),
        slot_mask(memory.slot_mask) {}

  // Counted from `begin` on.
  INLINE const T* at(int64_t s) const {
    s += begin;
    const int64_t slot = origin ? origin[(s >> origin_shift) * origin_stride] : row;
    return first + slot * slot_stride + (s & slot_mask) * position_stride;
  }

  // Positions `begin` to before `end`.
  INLINE void prefetch(int64_t begin, int64_t end, int64_t width) const {
    if (!origin && position_stride == width) {
      const T* last = at(end);
      for (const T* line = at(begin); line < last; line += CACHE_LINE / sizeof(T)) fetch(line);
      return;
    }
    for (; begin < end; begin++) {
      for (int64_t i = 0; i < width; i += CACHE_LINE / sizeof(T)) fetch(at(begin) + i);
    }
  }
};

// Keys or values of mask `count` positions are read, then as many of the next ones.
template <class T>
struct Stream {
  KVView<T> current, next;
  int64_t count, width;

  const T* at(int64_t s) const { return current.at(s); }

  // Prefetches a block of positions while others are read: many requests at once take less time
  // than one after the other.
  INLINE void prefetch(int64_t s) const {
    if (s % PREFETCH_BLOCK != 0) return;
    const int64_t from = s + std::min(PREFETCH_DISTANCE, count);
    const int64_t end = std::min(from + PREFETCH_BLOCK, 2 * count);
    current.prefetch(from, std::min(end, count), width);
    next.prefetch(std::max(from - count, (int64_t)0), end - count, width);
  }
};

#if WIDE

inline __m512 load_masked(const float* x, __mmask16 mask) {
  return _mm512_maskz_loadu_ps(mask, x);
}

inline __m512 load_masked(const uint16_t* x, __mmask16 mask) {
  if (mask == 0xffff) return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)x));
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, x));
}

// The mask of those of 16 columns from `first` on that exist.
inline __mmask16 column_mask(int64_t first, int64_t width) {
  return width - first >= 16 ? 0xffff : width > first ? (1 << (width - first)) - 1 : 0;
}

// The sums of four registers.
inline __m128 sums(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512d x = _mm512_castps_pd(ab), y = _mm512_castps_pd(cd);
  const __m512 all = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                                   _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// The usual width of a head, for mask the loops are compiled; 0 stands for any other.
constexpr int64_t USUAL_WIDTH = 64;

// weights (Q, capacity) = queries times keys, four keys at a time; up to three numbers behind
// `count` are written too.
template <int Q, int64_t WIDTH, class T>
inline void compute_scores_of(const RowsView<const float>& queries, const Stream<T>& keys,
                              float* weights, int64_t capacity) {
  const int64_t count = keys.count, width = WIDTH ? WIDTH : keys.width;
  for (int64_t s = 0; s < count; s += 4) {
    keys.prefetch(s);
    const T* key[4];
    EACH(j, 4) key[j] = keys.at(std::min(s + j, count - 1));
    __m512 sum[Q][4];
    EACH(q, Q) EACH(j, 4) sum[q][j] = _mm512_setzero_ps();
#pragma GCC unroll 4
    for (int64_t i = 0; i < width; i += 16) {
      const __mmask16 mask = WIDTH ? 0xffff : column_mask(i, width);
      __m512 k[4];
      EACH(j, 4) k[j] = load_masked(key[j] + i, mask);
      EACH(q, Q) {
        const __m512 x = load_masked(queries.first + q * queries.stride + i, mask);
        EACH(j, 4) sum[q][j] = _mm512_fmadd_ps(x, k[j], sum[q][j]);
      }
    }
    EACH(q, Q) {
      _mm_storeu_ps(weights + q * capacity + s, sums(sum[q][0], sum[q][1], sum[q][2], sum[q][3]));
    }
  }
}

template <int Q, class T>
inline void compute_scores(const RowsView<const float>& queries, const Stream<T>& keys,
                           float* weights, int64_t capacity) {
  if (keys.width == USUAL_WIDTH) {
    return compute_scores_of<Q, USUAL_WIDTH>(queries, keys, weights, capacity);
  }
  compute_scores_of<Q, 0>(queries, keys, weights, capacity);
}

// context (Q, width) = scale (Q) times weights times values, 16 C columns at a time. Even and odd
// positions are summed separately.
template <int Q, int64_t WIDTH, class T>
inline void weighted_sum_of(const float* weights, int64_t capacity, const float* scale,
                       const Stream<T>& values, const RowsView<float>& context) {
  constexpr int C = Q > 2 ? 2 : 4;  // registers for one position
  const int64_t count = values.count, width = WIDTH ? WIDTH : values.width;
  for (int64_t first = 0; first < width; first += 16 * C) {
    __mmask16 mask[C];
    EACH(c, C) mask[c] = WIDTH ? 0xffff : column_mask(first + 16 * c, width);
    __m512 sum[2][Q][C];
    EACH(side, 2) EACH(q, Q) EACH(c, C) sum[side][q][c] = _mm512_setzero_ps();
    auto add = [&](int64_t s, auto& sums) {
      const T* value = values.at(s) + first;
      __m512 v[C];
      EACH(c, C) v[c] = load_masked(value + 16 * c, mask[c]);
      EACH(q, Q) {
        const __m512 weight = _mm512_set1_ps(weights[q * capacity + s]);
        EACH(c, C) sums[q][c] = _mm512_fmadd_ps(weight, v[c], sums[q][c]);
      }
    };
    int64_t s = 0;
    for (; s + 1 < count; s += 2) {
      if (first == 0) values.prefetch(s);
      add(s, sum[0]);
      add(s + 1, sum[1]);
    }
    if (s < count) add(s, sum[0]);
    EACH(q, Q) {
      float* to = context.first + q * context.stride + first;
      EACH(c, C) {
        const __m512 both = _mm512_add_ps(sum[0][q][c], sum[1][q][c]);
        _mm512_mask_storeu_ps(to + 16 * c, mask[c], _mm512_mul_ps(both, _mm512_set1_ps(scale[q])));
      }
    }
  }
}

template <int Q, class T>
inline void weighted_sum(const float* weights, int64_t capacity, const float* scale,
                   const Stream<T>& values, const RowsView<float>& context) {
  if (values.width == USUAL_WIDTH) {
    return weighted_sum_of<Q, USUAL_WIDTH>(weights, capacity, scale, values, context);
  }
  weighted_sum_of<Q, 0>(weights, capacity, scale, values, context);
}

#else

inline float to_float(float x) { return x; }
inline float to_float(uint16_t x) { return from_half(x); }

template <int Q, class T>
inline void compute_scores(const RowsView<const float>& queries, const Stream<T>& keys,
                           float* weights, int64_t capacity) {
  const int64_t count = keys.count, width = keys.width;
  for (int64_t s = 0; s < count; s++) {
    keys.prefetch(s);
    const T* key = keys.at(s);
    for (int q = 0; q < Q; q++) {
      const float* query = queries.first + q * queries.stride;
      float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < width; i++) sum += query[i] * to_float(key[i]);
      weights[q * capacity + s] = sum;
    }
  }
}

template <int Q, class T>
inline void weighted_sum(const float* weights, int64_t capacity, const float* scale,
                   const Stream<T>& values, const RowsView<float>& context) {
  const int64_t count = values.count, width = values.width;
  for (int q = 0; q < Q; q++) std::fill_n(context.first + q * context.stride, width, 0.0f);
  for (int64_t s = 0; s < count; s++) {
    values.prefetch(s);
    const T* value = values.at(s);
    for (int q = 0; q < Q; q++) {
      float* to = context.first + q * context.stride;
      const float weight = weights[q * capacity + s] * scale[q];
#pragma omp simd
      for (int64_t i = 0; i < width; i++) to[i] += weight * to_float(value[i]);
    }
  }
}

#endif

// Scores of `count` positions become e^(scale (score - the largest)); returns 1 / their sum. Those
// from `count` to `total` become 0.
inline float softmax(float* weights, int64_t count, int64_t total, float scale) {
  const int64_t end = (count + BLOCK - 1) / BLOCK * BLOCK;
  std::fill(weights + count, weights + end, -std::numeric_limits<float>::infinity());
  float largest = weights[0], sum = 0.0f;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < end; i++) largest = weights[i] > largest ? weights[i] : largest;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < end; i++) {
    weights[i] = exponential((weights[i] - largest) * scale);
    sum += weights[i];
  }
  std::fill(weights + count, weights + total, 0.0f);
  return 1.0f / sum;
}

// What is added to the scores of a head: for keys `reach` positions before the query, ..., at it,
// ..., `reach` behind it. Where keys are further away the first or the last number is added.
struct DistanceBias {
  const float* numbers;  // 2 reach + 1, or null
  int64_t reach;

  // To the scores of the first `count` keys, the last of which stands where the query does.
  void add(float* scores, int64_t count) const {
    const int64_t far = std::max(count - 1 - reach, (int64_t)0), first = reach - (count - 1 - far);
#pragma omp simd
    for (int64_t s = 0; s < far; s++) scores[s] += numbers[0];
#pragma omp simd
    for (int64_t s = far; s < count; s++) scores[s] += numbers[first + s - far];
  }
};

// The attention of queries (count, width) over the keys of one head. The first query sees the first
// `keys` positions, each further one `more_keys` more, or of these the last `window`, if it is not 0.
// `next` is the head that is computed afterwards.
struct AttentionCall {
  const Memory& memory;
  HeadIndex index, next;
  RowsView<const float> queries;
  int64_t keys, more_keys, width;
  float scale;
  float* weights;    // (QUERIES, capacity)
  int64_t capacity;  // all positions and a block
  RowsView<float> context;
  DistanceBias bias;
  int64_t window;
};

template <int Q, class T>
void attend_block(const AttentionCall& call) {
  const int64_t capacity = call.capacity;
  const int64_t begin = call.window ? std::max(call.keys - call.window, (int64_t)0) : 0;
  const int64_t total = call.keys + (Q - 1) * call.more_keys - begin;
  float inverse[Q];
  const Memory& memory = call.memory;
  const KVView<T> keys(memory, memory.keys, call.index, begin);
  const KVView<T> values(memory, memory.values, call.index, begin);
  const KVView<T> next(memory, memory.keys, call.next, begin);
  const Stream<T> key_stream{keys, values, total, call.width};
  compute_scores<Q>(call.queries, key_stream, call.weights, capacity);
  for (int q = 0; q < Q; q++) {
    const int64_t count = call.keys + q * call.more_keys - begin;
    const int64_t hidden = call.window ? std::max(count - call.window, (int64_t)0) : 0;
    float* weights = call.weights + q * capacity;
    if (call.bias.numbers) call.bias.add(weights, count);
    std::fill_n(weights, hidden, 0.0f);
    inverse[q] = softmax(weights + hidden, count - hidden, total - hidden, call.scale);
  }
  const Stream<T> value_stream{values, next, total, call.width};
  weighted_sum<Q>(call.weights, capacity, inverse, value_stream, call.context);
}

template <class T>
void attend_queries(AttentionCall call) {
  for (int64_t left = call.queries.count; left > 0; left -= QUERIES) {
    switch (std::min(left, QUERIES)) {
      case 1: return attend_block<1, T>(call);
      case 2: return attend_block<2, T>(call);
      case 3: return attend_block<3, T>(call);
    }
    attend_block<QUERIES, T>(call);
    call.queries.first += QUERIES * call.queries.stride;
    call.context.first += QUERIES * call.context.stride;
    call.keys += QUERIES * call.more_keys;
  }
}

void attend(const AttentionCall& call) {
  const auto& context = call.context;
  if (call.keys + call.more_keys == 0) {
    for (int64_t q = 0; q < context.count; q++) {
      std::fill_n(context.first + q * context.stride, call.width, 0.0f);
    }
  } else if (call.memory.dtype == FLOAT16) {
    attend_queries<uint16_t>(call);
  } else {
    attend_queries<float>(call);
  }
}

// Stores a key and a value where the position of the row lies.
void store_kv(const Memory& memory, const HeadIndex& index, int64_t position, const float* key,
              const float* value, int64_t width) {
  const int64_t* origin = memory.origin;
  const int64_t slot = origin ? origin[index.row * memory.origin_row_stride +
                                       (position >> memory.origin_shift) * memory.origin_stride]
                              : index.row;
  const int64_t at = slot * memory.slot_stride + index.layer * memory.layer_stride +
                     index.head * memory.head_stride +
                     (position & memory.slot_mask) * memory.position_stride;
  if (memory.dtype == FLOAT16) {
    copy_numbers(key, (uint16_t*)memory.keys + at, width);
    copy_numbers(value, (uint16_t*)memory.values + at, width);
  } else {
    copy_numbers(key, (float*)memory.keys + at, width);
    copy_numbers(value, (float*)memory.values + at, width);
  }
}

}  // namespace
