// Attention of queries over the keys and values of a cache, or of a memory.
//
// A few queries that read the same keys go together: each key, and each value, is read once for all
// of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "elementwise.h"
#include "halves.h"
#include "processor.h"

extern "C" {

enum Numbers { FLOAT32 = 0, FLOAT16 = 1 };

// Keys and values (lines, layers, heads, positions, width), with the steps of the first four.
struct Memory {
  void *keys, *values;
  int64_t numbers;  // of which type
  int64_t line, layer, head, position;
  const int64_t* lengths;  // how many positions each row has; in a cache before these tokens
  int64_t sharing;         // rows that read the same memory
  int64_t longest;         // no length is above it
  const int64_t* origin;   // in which line each position of a row lies; null: in the row's own
  int64_t origin_row, origin_position;  // its steps
  // Its size: how many rows have a length, and the shape of keys and values.
  int64_t rows, lines, layers, heads, positions, width;
};
}

namespace {

constexpr int64_t READERS = 4;  // queries that go together
constexpr int64_t AHEAD = 16;   // positions that are asked for at once
constexpr int64_t EARLY = 64;   // so many positions before they are read
constexpr int64_t LINE = 64;    // bytes that come from memory together
constexpr int64_t BLOCK = 16;   // weights are computed in full blocks

// A compiler may think that a function which only asks for memory does nothing.
#define INLINE __attribute__((always_inline)) inline

INLINE void fetch(const void* at) {
#if WIDE || HALF_WIDE
  _mm_prefetch((const char*)at, _MM_HINT_T0);
#endif
}

// Where a head of a layer lies for one row.
struct Place {
  int64_t layer, row, head;
};

// Queries, or what they find: lines that lie `step` apart.
template <class T>
struct Lines {
  T* first;
  int64_t step, count;
};

// The keys, or the values, of one place.
template <class T>
struct KVView {
  const T* first;  // of line 0
  int64_t line, position, own;
  const int64_t* origin;
  int64_t origin_position;

  KVView(const Memory& memory, const void* data, Place place)
      : first((const T*)data + place.layer * memory.layer + place.head * memory.head),
        line(memory.line), position(memory.position), own(place.row),
        origin(memory.origin ? memory.origin + place.row * memory.origin_row : nullptr),
        origin_position(memory.origin_position) {}

  const T* at(int64_t s) const {
    return first + (origin ? origin[s * origin_position] : own) * line + s * position;
  }

  // Asks for some positions.
  INLINE void ask(int64_t begin, int64_t end, int64_t width) const {
    if (!origin && position == width) {
      const T* last = at(end);
      for (const T* here = at(begin); here < last; here += LINE / sizeof(T)) fetch(here);
      return;
    }
    for (; begin < end; begin++) {
      for (int64_t i = 0; i < width; i += LINE / sizeof(T)) fetch(at(begin) + i);
    }
  }
};

// A strip of which so many positions are read, then the same of the next strip.
template <class T>
struct Stream {
  KVView<T> now, next;
  int64_t count, width;

  const T* at(int64_t s) const { return now.at(s); }

  // Asks for a block of positions while others are read. Many requests at once are answered sooner
  // than each at its time.
  INLINE void ask(int64_t s) const {
    if (s % AHEAD != 0) return;
    const int64_t from = s + std::min(EARLY, count), end = std::min(from + AHEAD, 2 * count);
    now.ask(from, std::min(end, count), width);
    next.ask(std::max(from - count, (int64_t)0), end - count, width);
  }
};

#if WIDE

inline __m512 some(const float* x, __mmask16 which) { return _mm512_maskz_loadu_ps(which, x); }

inline __m512 some(const uint16_t* x, __mmask16 which) {
  if (which == 0xffff) return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)x));
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(which, x));
}

// Which of 16 columns from `first` on there are.
inline __mmask16 columns(int64_t first, int64_t width) {
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

// Columns of a head as they usually are, known when this is compiled; or any number.
constexpr int64_t USUAL = 64;

// weights (Q, room) = queries times keys, four keys at a time; behind `count` it writes too.
template <int Q, int64_t WIDTH, class T>
inline void compare_all(const Lines<const float>& queries, const Stream<T>& keys, float* weights,
                        int64_t room) {
  const int64_t count = keys.count, width = WIDTH ? WIDTH : keys.width;
  for (int64_t s = 0; s < count; s += 4) {
    keys.ask(s);
    const T* key[4];
    EACH(j, 4) key[j] = keys.at(std::min(s + j, count - 1));
    __m512 sum[Q][4];
    EACH(q, Q) EACH(j, 4) sum[q][j] = _mm512_setzero_ps();
#pragma GCC unroll 4
    for (int64_t i = 0; i < width; i += 16) {
      const __mmask16 which = WIDTH ? 0xffff : columns(i, width);
      __m512 k[4];
      EACH(j, 4) k[j] = some(key[j] + i, which);
      EACH(q, Q) {
        const __m512 x = some(queries.first + q * queries.step + i, which);
        EACH(j, 4) sum[q][j] = _mm512_fmadd_ps(x, k[j], sum[q][j]);
      }
    }
    EACH(q, Q) {
      _mm_storeu_ps(weights + q * room + s, sums(sum[q][0], sum[q][1], sum[q][2], sum[q][3]));
    }
  }
}

template <int Q, class T>
inline void compare(const Lines<const float>& queries, const Stream<T>& keys, float* weights,
                    int64_t room) {
  if (keys.width == USUAL) return compare_all<Q, USUAL>(queries, keys, weights, room);
  compare_all<Q, 0>(queries, keys, weights, room);
}

// context (Q, width) = scale (Q) times weights times values, some columns at a time. Sums of even
// and of odd positions grow side by side.
template <int Q, int64_t WIDTH, class T>
inline void gather_all(const float* weights, int64_t room, const float* scale,
                       const Stream<T>& values, const Lines<float>& context) {
  constexpr int C = Q > 2 ? 2 : 4;  // registers that a position fills
  const int64_t count = values.count, width = WIDTH ? WIDTH : values.width;
  for (int64_t first = 0; first < width; first += 16 * C) {
    __mmask16 which[C];
    EACH(c, C) which[c] = WIDTH ? 0xffff : columns(first + 16 * c, width);
    __m512 sum[2][Q][C];
    EACH(side, 2) EACH(q, Q) EACH(c, C) sum[side][q][c] = _mm512_setzero_ps();
    auto add = [&](int64_t s, auto& sums) {
      const T* value = values.at(s) + first;
      __m512 v[C];
      EACH(c, C) v[c] = some(value + 16 * c, which[c]);
      EACH(q, Q) {
        const __m512 weight = _mm512_set1_ps(weights[q * room + s]);
        EACH(c, C) sums[q][c] = _mm512_fmadd_ps(weight, v[c], sums[q][c]);
      }
    };
    int64_t s = 0;
    for (; s + 1 < count; s += 2) {
      if (first == 0) values.ask(s);
      add(s, sum[0]);
      add(s + 1, sum[1]);
    }
    if (s < count) add(s, sum[0]);
    EACH(q, Q) {
      float* to = context.first + q * context.step + first;
      EACH(c, C) {
        const __m512 both = _mm512_add_ps(sum[0][q][c], sum[1][q][c]);
        _mm512_mask_storeu_ps(to + 16 * c, which[c], _mm512_mul_ps(both, _mm512_set1_ps(scale[q])));
      }
    }
  }
}

template <int Q, class T>
inline void gather(const float* weights, int64_t room, const float* scale,
                   const Stream<T>& values, const Lines<float>& context) {
  if (values.width == USUAL) return gather_all<Q, USUAL>(weights, room, scale, values, context);
  gather_all<Q, 0>(weights, room, scale, values, context);
}

#else

inline float wide(float x) { return x; }
inline float wide(uint16_t x) { return from_half(x); }

template <int Q, class T>
inline void compare(const Lines<const float>& queries, const Stream<T>& keys, float* weights,
                    int64_t room) {
  const int64_t count = keys.count, width = keys.width;
  for (int64_t s = 0; s < count; s++) {
    keys.ask(s);
    const T* key = keys.at(s);
    for (int q = 0; q < Q; q++) {
      const float* query = queries.first + q * queries.step;
      float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < width; i++) sum += query[i] * wide(key[i]);
      weights[q * room + s] = sum;
    }
  }
}

template <int Q, class T>
inline void gather(const float* weights, int64_t room, const float* scale,
                   const Stream<T>& values, const Lines<float>& context) {
  const int64_t count = values.count, width = values.width;
  for (int q = 0; q < Q; q++) std::fill_n(context.first + q * context.step, width, 0.0f);
  for (int64_t s = 0; s < count; s++) {
    values.ask(s);
    const T* value = values.at(s);
    for (int q = 0; q < Q; q++) {
      float* to = context.first + q * context.step;
      const float weight = weights[q * room + s] * scale[q];
#pragma omp simd
      for (int64_t i = 0; i < width; i++) to[i] += weight * wide(value[i]);
    }
  }
}

#endif

// Scores of `count` positions become e^(scale (score - the greatest)); gives 1 / their sum. There is
// room for `whole` of them, and those behind `count` become 0.
inline float softmax(float* weights, int64_t count, int64_t whole, float scale) {
  const int64_t end = (count + BLOCK - 1) / BLOCK * BLOCK;
  std::fill(weights + count, weights + end, -std::numeric_limits<float>::infinity());
  float most = weights[0], sum = 0.0f;
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < end; i++) most = weights[i] > most ? weights[i] : most;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < end; i++) {
    weights[i] = exponential((weights[i] - most) * scale);
    sum += weights[i];
  }
  std::fill(weights + count, weights + whole, 0.0f);
  return 1.0f / sum;
}

// What some queries (count, width) read at a place. The first of them reads the first `reach`
// positions, and each after it `more` than the one before. Others will then read at `next`.
struct AttentionCall {
  const Memory& memory;
  Place place, next;
  Lines<const float> queries;
  int64_t reach, more, width;
  float scale;
  float* weights;  // room for those of READERS queries
  int64_t room;    // for all positions, and a block
  Lines<float> context;
};

template <int Q, class T>
void read_together(const AttentionCall& all) {
  const int64_t whole = all.reach + (Q - 1) * all.more, room = all.room;
  float inverse[Q];
  const Memory& memory = all.memory;
  const KVView<T> keys(memory, memory.keys, all.place), values(memory, memory.values, all.place);
  const KVView<T> next(memory, memory.keys, all.next);
  compare<Q>(all.queries, Stream<T>{keys, values, whole, all.width}, all.weights, room);
  for (int q = 0; q < Q; q++) {
    inverse[q] = softmax(all.weights + q * room, all.reach + q * all.more, whole, all.scale);
  }
  const Stream<T> stream{values, next, whole, all.width};
  gather<Q>(all.weights, room, inverse, stream, all.context);
}

template <class T>
void read_all(AttentionCall part) {
  for (int64_t left = part.queries.count; left > 0; left -= READERS) {
    switch (std::min(left, READERS)) {
      case 1: return read_together<1, T>(part);
      case 2: return read_together<2, T>(part);
      case 3: return read_together<3, T>(part);
    }
    read_together<READERS, T>(part);
    part.queries.first += READERS * part.queries.step;
    part.context.first += READERS * part.context.step;
    part.reach += READERS * part.more;
  }
}

void attend(const AttentionCall& reading) {
  const auto& context = reading.context;
  if (reading.reach + reading.more == 0) {
    for (int64_t q = 0; q < context.count; q++) {
      std::fill_n(context.first + q * context.step, reading.width, 0.0f);
    }
  } else if (reading.memory.numbers == FLOAT16) {
    read_all<uint16_t>(reading);
  } else {
    read_all<float>(reading);
  }
}

// Puts a key and a value into the row's own line.
void keep(const Memory& memory, const Place& place, int64_t position, const float* key, const float* value,
          int64_t width) {
  const int64_t at = place.row * memory.line + place.layer * memory.layer +
                     place.head * memory.head + position * memory.position;
  if (memory.numbers == FLOAT16) {
    copy_numbers(key, (uint16_t*)memory.keys + at, width);
    copy_numbers(value, (uint16_t*)memory.values + at, width);
  } else {
    copy_numbers(key, (float*)memory.keys + at, width);
    copy_numbers(value, (float*)memory.values + at, width);
  }
}

}  // namespace
