// Attention of bfloat16 heads and its backward pass, for training: softmax(scale Q K^T) V, weights
// dropped. No weights are stored: the backward pass computes them again, transposed, from the sums of
// the softmax. A block of queries and all keys of a head stay in the cache.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "boundary.h"
#include "lanes.h"
#include "threads.h"

namespace learning {

// Where numbers lie: (rows, positions, heads, width), the width side by side.
struct Place {
  void* data;
  int64_t row, position, head;
};

struct Attention {
  Place query, key, value, context;
  Place context_grad, query_grad, key_grad, value_grad;  // of the backward pass
  // Which keys a query may see, (rows, heads, queries, keys), the keys side by side; or null.
  const uint8_t* allowed;
  int64_t allowed_row, allowed_head, allowed_query;
  float* norms;  // (rows, heads, queries) the logarithms of the softmax's sums
  int64_t rows, heads, queries, keys, width, causal;
  Drop drop;
  float scale, unused;
  // Or null. Where rows lie end to end, where each begins, and the end, (rows + 1): `Place::row` is
  // then not asked, `queries` and `keys` are those of the longest row, and what is dropped is what
  // would be if all were as long; `norms` are (heads, all queries).
  const int64_t *query_starts, *key_starts;
  int64_t all_queries, all_keys;  // where rows lie end to end: of all of them
};

inline int64_t up(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

#if defined(__AVX512BF16__) && WIDE
#define FUSED 1

typedef uint32_t Pair;  // of bfloat16: the unit of the products

constexpr int64_t BLOCK = 64;  // queries of one block

// C (R, 64) = A B, or C += A B: A has a line of pairs for each of the R, B a line of 64 for each pair.
template <int R, int COLUMNS, bool ADD>
inline void tile(const Pair* a, int64_t lda, const Pair* b, int64_t ldb, float* c, int64_t ldc,
                 int64_t pairs) {
  __m512 sum[R][COLUMNS];
  for (int r = 0; r < R; r++) {
    for (int n = 0; n < COLUMNS; n++) {
      sum[r][n] = ADD ? _mm512_loadu_ps(c + r * ldc + 16 * n) : _mm512_setzero_ps();
    }
  }
  for (int64_t k = 0; k < pairs; k++) {
    __m512bh right[COLUMNS];
    for (int n = 0; n < COLUMNS; n++) {
      right[n] = (__m512bh)_mm512_loadu_si512(b + k * ldb + 16 * n);
    }
    for (int r = 0; r < R; r++) {
      const __m512bh left = (__m512bh)_mm512_set1_epi32((int)a[r * lda + k]);
      for (int n = 0; n < COLUMNS; n++) sum[r][n] = _mm512_dpbf16_ps(sum[r][n], left, right[n]);
    }
  }
  for (int r = 0; r < R; r++) {
    for (int n = 0; n < COLUMNS; n++) _mm512_storeu_ps(c + r * ldc + 16 * n, sum[r][n]);
  }
}

template <int COLUMNS, bool ADD>
inline void column(const Pair* a, int64_t lda, const Pair* b, int64_t ldb, float* c, int64_t ldc,
                   int64_t lines, int64_t pairs) {
  const int64_t tiles = (lines + 5) / 6;
  for (int64_t i = 0; i < tiles; i++) {
    const int64_t from = lines * i / tiles, count = lines * (i + 1) / tiles - from;
    const Pair* left = a + from * lda;
    float* to = c + from * ldc;
    switch (count) {
      case 6: tile<6, COLUMNS, ADD>(left, lda, b, ldb, to, ldc, pairs); break;
      case 5: tile<5, COLUMNS, ADD>(left, lda, b, ldb, to, ldc, pairs); break;
      case 4: tile<4, COLUMNS, ADD>(left, lda, b, ldb, to, ldc, pairs); break;
      case 3: tile<3, COLUMNS, ADD>(left, lda, b, ldb, to, ldc, pairs); break;
      case 2: tile<2, COLUMNS, ADD>(left, lda, b, ldb, to, ldc, pairs); break;
      default: tile<1, COLUMNS, ADD>(left, lda, b, ldb, to, ldc, pairs);
    }
  }
}

// C (lines, columns) = A B, or C += A B; columns is a multiple of 16.
template <bool ADD>
void small_product(const Pair* a, int64_t lda, const Pair* b, int64_t ldb, float* c, int64_t ldc,
                   int64_t lines, int64_t columns, int64_t pairs) {
  int64_t n = 0;
  for (; n + 64 <= columns; n += 64) {
    column<4, ADD>(a, lda, b + n, ldb, c + n, ldc, lines, pairs);
  }
  for (; n + 32 <= columns; n += 32) {
    column<2, ADD>(a, lda, b + n, ldb, c + n, ldc, lines, pairs);
  }
  if (n < columns) column<1, ADD>(a, lda, b + n, ldb, c + n, ldc, lines, pairs);
}

// Lines of bfloat16 as lines of pairs, zeros behind their end: (count, width) -> (count, pairs).
void copy_lines(const bfloat16* x, int64_t step, int64_t count, int64_t width, Pair* out,
                int64_t pairs) {
  for (int64_t i = 0; i < count; i++) {
    std::memcpy(out + i * pairs, x + i * step, width * 2);
    std::memset((bfloat16*)(out + i * pairs) + width, 0, (2 * pairs - width) * 2);
  }
}

// (count, pairs) -> (pairs, columns), zeros behind `count`.
void transpose_pairs(const Pair* x, int64_t count, int64_t pairs, Pair* out, int64_t columns) {
  for (int64_t i = 0; i < columns; i += 16) {
    const int64_t some = std::min<int64_t>(16, count - i);
    for (int64_t k = 0; k < pairs; k += 16) {
      const int64_t few = std::min<int64_t>(16, pairs - k);
      Pair part[16][16];
      for (int64_t r = 0; r < 16; r++) {
        for (int64_t c = 0; c < few; c++) part[c][r] = r < some ? x[(i + r) * pairs + k + c] : 0;
      }
      for (int64_t c = 0; c < few; c++) std::memcpy(out + (k + c) * columns + i, part[c], 64);
    }
  }
}

// Two lines become one of pairs: (count, 2 * pairs) -> (lines, 2 * pairs), where `lines` is at least
// half of `count`.
void join_lines(const Pair* x, int64_t count, int64_t pairs, Pair* out, int64_t lines) {
  for (int64_t i = 0; i < lines; i++) {
    const uint16_t* upper = (const uint16_t*)(x + 2 * i * pairs);
    const uint16_t* lower = upper + 2 * pairs;
    Pair* to = out + i * 2 * pairs;
    const bool one = 2 * i < count, two = 2 * i + 1 < count;
    for (int64_t k = 0; k < 2 * pairs; k++) {
      to[k] = (one ? upper[k] : 0u) | (two ? (Pair)lower[k] << 16 : 0u);
    }
  }
}

struct Room {
  std::vector<Pair> kept;
  int64_t used = 0;
  // Parts of one block of memory. The first pass only counts.
  template <class T>
  T* take(int64_t count) {
    T* found = (T*)(kept.data() + used);
    used += up(count * (int64_t)sizeof(T), 64) / 4;
    return found;
  }
};

// Where the numbers of one row lie among those of all.
struct Extent {
  int64_t row, first, count;  // `row` is 0 where rows lie end to end
  Extent(const int64_t* starts, int64_t row, int64_t count)
      : row(starts ? 0 : row),
        first(starts ? starts[row] : 0),
        count(starts ? starts[row + 1] - first : count) {}
};

// One head of one row.
struct Head {
  const Attention& job;
  int64_t row, head;
  Extent queries, all_keys;
  int64_t keys, pairs, columns;  // keys that any query sees; pairs of the width
  float* norms;
  Head(const Attention& job, int64_t item)
      : job(job),
        row(item / job.heads),
        head(item % job.heads),
        queries(job.query_starts, row, job.queries),
        all_keys(job.key_starts, row, job.keys) {
    keys = all_keys.count;
    if (job.allowed && !job.allowed_query) {  // behind the last one that is seen lies padding
      while (keys && !seen(0)[keys - 1]) keys--;
    }
    pairs = up(job.width, 32) / 2, columns = 2 * pairs;
    norms = job.norms + (job.query_starts ? head * job.query_starts[job.rows] + queries.first
                                          : item * job.queries);
  }
  bfloat16* at_query(const Place& place, int64_t query) const { return at(place, queries, query); }
  bfloat16* at_key(const Place& place, int64_t key) const { return at(place, all_keys, key); }
  const uint8_t* seen(int64_t query) const {
    return job.allowed + row * job.allowed_row + head * job.allowed_head +
           query * job.allowed_query;
  }
  // Keys that a block of queries sees.
  int64_t keys_until(int64_t query) const { return job.causal ? std::min(keys, query) : keys; }
  // The first draw of a query's weights.
  uint64_t draws(int64_t query) const {
    const int64_t item = row * job.heads + head;
    return (item * job.queries + query) * ((job.keys + A_DRAW - 1) / A_DRAW);
  }

 private:
  bfloat16* at(const Place& place, const Extent& extent, int64_t position) const {
    return (bfloat16*)place.data + extent.row * place.row + head * place.head +
           (extent.first + position) * place.position;
  }
};

// True in the lanes of keys that may be seen, of those from `first` on.
inline Whole seen_lanes(const Head& head, int64_t query, int64_t first, int64_t some) {
  const Whole place = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  Whole seen = place < (int32_t)some;
  if (head.job.causal) seen &= place + (int32_t)first <= (int32_t)query;
  if (head.job.allowed) {
    uint8_t bytes[16] = {};
    std::memcpy(bytes, head.seen(query) + first, some);
    seen &= (Whole)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)bytes)) != 0;
  }
  return seen;
}

// exp(x - most of x) of one query's scores, in place as bfloat16, dropped; gives the logarithm of
// the sum, and in `inverse` what the context is to be multiplied with.
template <bool DROP>
float softmax(const Head& head, int64_t query, const float* scores, bfloat16* weights,
             int64_t width, float& inverse, uint16_t* drawn) {
  const Attention& job = head.job;
  const bool all = !job.allowed && !job.causal;
  const int64_t keys = head.keys_until(query + 1);
  Lanes most = lanes(-INFINITY), sum = {};
  by_lanes(keys, [&](int64_t s, int64_t some) {
    const Lanes x = load(scores + s, some);
    const Lanes y = all && some == LANES ? x : seen_lanes(head, query, s, some) ? x : lanes(-INFINITY);
    most = (y > most) | (y != y) ? y : most;  // NaN stays
  });
  const float top = most_of(most);
  if (DROP) draw_all(job.drop.seed, head.draws(query), drawn, keys);
  const Keeping keeping(job.drop);
  by_lanes(keys, [&](int64_t s, int64_t some) {
    Lanes x = exponential((load(scores + s, some) - top) * job.scale);
    if (!all || some < LANES) x = seen_lanes(head, query, s, some) ? x : Lanes{};
    sum += x;
    if (DROP) x = keeping.kept(drawn + s) ? x : Lanes{};
    store(x, weights + s, LANES);
  });
  std::memset(weights + up(keys, LANES), 0, (width - up(keys, LANES)) * 2);
  const float total = sum_of(sum);
  const bool idle = !(top > -INFINITY) && top == top;  // sees nothing
  inverse = idle ? 0.0f : (DROP ? keeping.scale : 1.0f) / total;
  return idle ? INFINITY : top * job.scale + std::log(total);
}

template <bool DROP>
void attend_head(const Head& head, Room& room) {
  const Attention& job = head.job;
  const int64_t keys = up(head.keys, 16), pairs = head.pairs, columns = head.columns;
  Pair* lines = room.take<Pair>(std::max(keys, BLOCK) * pairs);
  Pair* key = room.take<Pair>(pairs * keys);
  Pair* value = room.take<Pair>(keys / 2 * columns);
  Pair* query = room.take<Pair>(BLOCK * pairs);
  float* scores = room.take<float>(BLOCK * keys);
  bfloat16* weights = room.take<bfloat16>(BLOCK * keys);
  float* context = room.take<float>(BLOCK * columns);
  uint16_t* drawn = room.take<uint16_t>(room_for_draws(keys));
  if (room.kept.empty()) return;
  copy_lines(head.at_key(job.key, 0), job.key.position, head.keys, job.width, lines,
             pairs);
  transpose_pairs(lines, head.keys, pairs, key, keys);
  copy_lines(head.at_key(job.value, 0), job.value.position, head.keys, job.width, lines,
             pairs);
  join_lines(lines, head.keys, pairs, value, keys / 2);
  for (int64_t first = 0; first < head.queries.count; first += BLOCK) {
    const int64_t count = std::min(BLOCK, head.queries.count - first);
    const int64_t some = up(head.keys_until(first + count), 16);
    copy_lines(head.at_query(job.query, first), job.query.position, count, job.width,
               query, pairs);
    small_product<false>(query, pairs, key, keys, scores, keys, count, some, pairs);
    float inverse[BLOCK];
    for (int64_t i = 0; i < count; i++) {
      head.norms[first + i] =
          softmax<DROP>(head, first + i, scores + i * keys, weights + i * keys, some, inverse[i], drawn);
    }
    small_product<false>((Pair*)weights, keys / 2, value, columns, context, columns, count, columns,
                         some / 2);
    for (int64_t i = 0; i < count; i++) {
      bfloat16* out = head.at_query(job.context, first + i);
      by_lanes(job.width, [&](int64_t k, int64_t few) {
        store(load(context + i * columns + k, few) * inverse[i], out + k, few);
      });
    }
  }
}

// The sum over the width of a query's context times its gradient.
inline float dot(const bfloat16* x, const bfloat16* y, int64_t width) {
  Lanes sum = {};
  by_lanes(width, [&](int64_t k, int64_t some) { sum += load(x + k, some) * load(y + k, some); });
  return sum_of(sum);
}

// Of a block of queries, transposed: (keys, wide).
struct Transposed {
  int64_t wide;  // queries, up to a multiple of the lanes
  float *scores, *weight_grads;
  bfloat16 *weights, *grads;  // dropped weights, and gradients of scores
  Pair* joined;                // gradients of scores in pairs of keys, (keys / 2, wide)
  uint8_t* seen;
  uint16_t (*drawn)[BLOCK];
};

// Weights again, and from the gradients of weights those of scores: P (dP - sum P dP) scale.
template <bool DROP>
void softmax_back(const Head& head, int64_t first, int64_t count, int64_t keys, const float* norms,
                 const float* sums, const Transposed& t) {
  const Attention& job = head.job;
  const Keeping keeping(job.drop);
  const int64_t draws = head.draws(1) - head.draws(0);
  const bool each = job.allowed && job.allowed_query;
  if (each) {
    for (int64_t i = 0; i < t.wide; i++) {
      const uint8_t* seen = head.seen(first + std::min(i, count - 1));
      for (int64_t s = 0; s < keys; s++) t.seen[s * t.wide + i] = i < count && seen[s];
    }
  }
  for (int64_t s = 0; s < up(keys, 16); s++) {
    if (DROP && s % A_DRAW == 0 && s < keys) {
      uint64_t some[BLOCK];
      const uint64_t from = head.draws(first) + s / A_DRAW;
#pragma omp simd
      for (int64_t i = 0; i < t.wide; i++) some[i] = draw(job.drop.seed, from + i * draws);
      for (int64_t j = 0; j < A_DRAW; j++) {
#pragma omp simd
        for (int64_t i = 0; i < t.wide; i++) t.drawn[j][i] = (uint16_t)(some[i] >> 16 * j);
      }
    }
    const bool hidden = s >= keys || (job.allowed && !each && !head.seen(0)[s]);
    for (int64_t i = 0; i < t.wide; i += LANES) {
      Lanes weight = {}, grad = {}, dropped = {};
      if (!hidden) {
        const Whole query = Whole{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} +
                            (int32_t)(first + i);
        Whole seen = query < (int32_t)(first + count);
        if (job.causal) seen &= query >= (int32_t)s;
        if (each) {
          seen &= (Whole)_mm512_cvtepu8_epi32(
                      _mm_loadu_si128((const __m128i*)(t.seen + s * t.wide + i))) != 0;
        }
        weight = exponential(load(t.scores + s * t.wide + i, LANES) * job.scale - load(norms + i, LANES));
        weight = seen ? weight : Lanes{};
        grad = load(t.weight_grads + s * t.wide + i, LANES);
        dropped = weight;
        if (DROP) {
          const Whole kept = keeping.kept(t.drawn[s % A_DRAW] + i);
          dropped = kept ? weight * keeping.scale : Lanes{};
          grad = kept ? grad * keeping.scale : Lanes{};
        }
        grad = weight * (grad - load(sums + i, LANES)) * job.scale;
      }
      store(dropped, t.weights + s * t.wide + i, LANES);
      store(grad, t.grads + s * t.wide + i, LANES);
    }
  }
  join_lines((const Pair*)t.grads, keys, t.wide / 2, t.joined, up(keys, 16) / 2);
}

template <bool DROP>
void attend_head_back(const Head& head, Room& room) {
  const Attention& job = head.job;
  const int64_t keys = up(head.keys, 16), pairs = head.pairs, columns = head.columns;
  Pair* key = room.take<Pair>(keys * pairs);
  Pair* value = room.take<Pair>(keys * pairs);
  Pair* transposed = room.take<Pair>(columns * keys / 2);  // keys, a line for each place of the width
  float* key_grad = room.take<float>(keys * columns);
  float* value_grad = room.take<float>(keys * columns);
  Pair* query = room.take<Pair>(BLOCK * pairs);
  Pair* grad = room.take<Pair>(BLOCK * pairs);
  Pair* right = room.take<Pair>(BLOCK * pairs);  // of one product after the other
  float* transposed_grad = room.take<float>(columns * BLOCK);
  float norms[BLOCK], sums[BLOCK];
  Transposed t{};
  t.scores = room.take<float>(keys * BLOCK), t.weight_grads = room.take<float>(keys * BLOCK);
  t.weights = room.take<bfloat16>(keys * BLOCK), t.grads = room.take<bfloat16>(keys * BLOCK);
  t.joined = room.take<Pair>(keys / 2 * BLOCK);
  t.seen = room.take<uint8_t>(keys * BLOCK);
  t.drawn = (uint16_t(*)[BLOCK])room.take<uint16_t>(A_DRAW * BLOCK);
  if (room.kept.empty()) return;
  std::memset(key + head.keys * pairs, 0, (keys - head.keys) * pairs * 4);
  std::memset(value + head.keys * pairs, 0, (keys - head.keys) * pairs * 4);
  copy_lines(head.at_key(job.key, 0), job.key.position, head.keys, job.width, key, pairs);
  copy_lines(head.at_key(job.value, 0), job.value.position, head.keys, job.width, value,
             pairs);
  for (int64_t s = 0; s < keys; s++) {
    for (int64_t k = 0; k < columns; k++) {
      ((bfloat16*)transposed)[k * keys + s] = ((const bfloat16*)key)[s * columns + k];
    }
  }
  std::fill(key_grad, key_grad + keys * columns, 0.0f);
  std::fill(value_grad, value_grad + keys * columns, 0.0f);
  for (int64_t first = 0; first < head.queries.count; first += BLOCK) {
    const int64_t count = std::min(BLOCK, head.queries.count - first);
    const int64_t some = head.keys_until(first + count), lines = up(some, 16);
    const int64_t wide = t.wide = up(count, LANES);
    for (int64_t i = 0; i < wide; i++) {
      const bool real = i < count;
      norms[i] = real ? head.norms[first + i] : INFINITY;
      sums[i] = real ? dot(head.at_query(job.context, first + i),
                           head.at_query(job.context_grad, first + i), job.width)
                     : 0.0f;
    }
    copy_lines(head.at_query(job.query, first), job.query.position, count, job.width,
               query, pairs);
    copy_lines(head.at_query(job.context_grad, first), job.context_grad.position, count,
               job.width, grad, pairs);
    transpose_pairs(query, count, pairs, right, wide);
    small_product<false>(key, pairs, right, wide, t.scores, wide, some, wide, pairs);
    transpose_pairs(grad, count, pairs, right, wide);
    small_product<false>(value, pairs, right, wide, t.weight_grads, wide, some, wide, pairs);
    softmax_back<DROP>(head, first, count, some, norms, sums, t);
    join_lines(grad, count, pairs, right, wide / 2);
    small_product<true>((Pair*)t.weights, wide / 2, right, columns, value_grad, columns, some,
                        columns, wide / 2);
    join_lines(query, count, pairs, right, wide / 2);
    small_product<true>((Pair*)t.grads, wide / 2, right, columns, key_grad, columns, some, columns,
                        wide / 2);
    small_product<false>(transposed, keys / 2, t.joined, wide, transposed_grad, wide, job.width, wide,
                         lines / 2);
    for (int64_t i = 0; i < count; i++) {
      bfloat16* out = head.at_query(job.query_grad, first + i);
      by_lanes(job.width, [&](int64_t k, int64_t few) {
        Lanes x = {};
        for (int64_t j = 0; j < few; j++) x[j] = transposed_grad[(k + j) * wide + i];
        store(x, out + k, few);
      });
    }
  }
  for (int64_t s = 0; s < head.all_keys.count; s++) {
    bfloat16 *keys_out = head.at_key(job.key_grad, s);
    bfloat16 *values_out = head.at_key(job.value_grad, s);
    by_lanes(job.width, [&](int64_t k, int64_t few) {
      const bool real = s < head.keys;
      store(real ? load(key_grad + s * columns + k, few) : Lanes{}, keys_out + k, few);
      store(real ? load(value_grad + s * columns + k, few) : Lanes{}, values_out + k, few);
    });
  }
}

template <void one(const Head&, Room&)>
void by_heads(void* data, Worker worker) {
  const Attention& job = *(Attention*)data;
  worker.share(job.rows * job.heads, [&](int64_t item) {
    static thread_local Room kept;
    Room counting;
    const Head head(job, item);
    one(head, counting);
    if ((int64_t)kept.kept.size() < counting.used + 16) kept.kept.resize(counting.used + 16);
    kept.used = up((64 - (int64_t)((uintptr_t)kept.kept.data() % 64)) % 64, 4) / 4;
    one(head, kept);
  });
}

template <bool DROP>
void attend_all(void* data, Worker worker) {
  by_heads<attend_head<DROP>>(data, worker);
}

template <bool DROP>
void attend_back_all(void* data, Worker worker) {
  by_heads<attend_head_back<DROP>>(data, worker);
}

#else
#define FUSED 0

template <bool DROP>
void attend_all(void*, Worker) {}

template <bool DROP>
void attend_back_all(void*, Worker) {}
#endif

}  // namespace learning
