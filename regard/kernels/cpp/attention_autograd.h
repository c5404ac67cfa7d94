// Attention of bfloat16 heads and its backward pass, for training: softmax(scale Q K^T) V, with
// dropout of the weights. No weights are stored: the backward pass computes them again, transposed,
// from the sums of the softmax. A block of queries and all keys of a head stay in the cache.
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

// The strides of a tensor (rows, positions, heads, width) that is contiguous in the last dimension.
struct HeadsView {
  void* data;
  int64_t row, position, head;
};

struct Attention {
  HeadsView query, key, value, context;
  HeadsView context_grad, query_grad, key_grad, value_grad;  // of the backward pass
  // Which keys a query may attend to, (rows, heads, queries, keys), contiguous in the last
  // dimension; or null. Then its strides.
  const uint8_t* mask;
  int64_t mask_row, mask_head, mask_query;
  float* norms;  // (rows, heads, queries) the logarithms of the softmax's sums
  int64_t rows, heads, queries, keys, width, causal;
  Drop drop;
  float scale, unused;
  // Of sequences without padding: where each begins in the only row, and the end, (rows + 1); else
  // null. Then `HeadsView::row` is not used, `queries` and `keys` are those of the longest
  // sequence, dropout draws as for the padded sequences, and `norms` are (heads, all_queries).
  const int64_t *query_starts, *key_starts;
  int64_t all_queries, all_keys;  // of all sequences together
};

inline int64_t round_up(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

#if defined(__AVX512BF16__) && WIDE
#define FUSED 1

typedef uint32_t Pair;  // of bfloat16: the unit of the products

constexpr int64_t BLOCK = 64;  // queries of one block

// C (R, 16 COLUMNS) = A B, or C += A B, of A (R, pairs) and B (pairs, 16 COLUMNS).
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
                   int64_t rows, int64_t pairs) {
  const int64_t tiles = (rows + 5) / 6;
  for (int64_t i = 0; i < tiles; i++) {
    const int64_t from = rows * i / tiles, count = rows * (i + 1) / tiles - from;
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

// C (rows, columns) = A B, or C += A B; columns is a multiple of 16.
template <bool ADD>
void small_product(const Pair* a, int64_t lda, const Pair* b, int64_t ldb, float* c, int64_t ldc,
                   int64_t rows, int64_t columns, int64_t pairs) {
  int64_t n = 0;
  for (; n + 64 <= columns; n += 64) {
    column<4, ADD>(a, lda, b + n, ldb, c + n, ldc, rows, pairs);
  }
  for (; n + 32 <= columns; n += 32) {
    column<2, ADD>(a, lda, b + n, ldb, c + n, ldc, rows, pairs);
  }
  if (n < columns) column<1, ADD>(a, lda, b + n, ldb, c + n, ldc, rows, pairs);
}

// Rows of bfloat16 as rows of pairs, padded with zeros: (count, width) -> (count, pairs).
void copy_rows(const bfloat16* x, int64_t stride, int64_t count, int64_t width, Pair* out,
                int64_t pairs) {
  for (int64_t i = 0; i < count; i++) {
    std::memcpy(out + i * pairs, x + i * stride, width * 2);
    std::memset((bfloat16*)(out + i * pairs) + width, 0, (2 * pairs - width) * 2);
  }
}

// (count, pairs) -> (pairs, columns), zeros behind `count`.
void transpose_pairs(const Pair* x, int64_t count, int64_t pairs, Pair* out, int64_t columns) {
  for (int64_t i = 0; i < columns; i += 16) {
    const int64_t m = std::min<int64_t>(16, count - i);
    for (int64_t k = 0; k < pairs; k += 16) {
      const int64_t n = std::min<int64_t>(16, pairs - k);
      Pair block[16][16];
      for (int64_t r = 0; r < 16; r++) {
        for (int64_t c = 0; c < n; c++) block[c][r] = r < m ? x[(i + r) * pairs + k + c] : 0;
      }
      for (int64_t c = 0; c < n; c++) std::memcpy(out + (k + c) * columns + i, block[c], 64);
    }
  }
}

// Two rows of bfloat16 become one of pairs: (count, 2 * pairs) -> (rows, 2 * pairs), where `rows`
// is at least half of `count`.
void pair_rows(const Pair* x, int64_t count, int64_t pairs, Pair* out, int64_t rows) {
  for (int64_t i = 0; i < rows; i++) {
    const uint16_t* upper = (const uint16_t*)(x + 2 * i * pairs);
    const uint16_t* lower = upper + 2 * pairs;
    Pair* to = out + i * 2 * pairs;
    const bool one = 2 * i < count, two = 2 * i + 1 < count;
    for (int64_t k = 0; k < 2 * pairs; k++) {
      to[k] = (one ? upper[k] : 0u) | (two ? (Pair)lower[k] << 16 : 0u);
    }
  }
}

// Scratch memory of a head. With an empty one a function only counts what it takes.
struct Arena {
  std::vector<Pair> memory;
  int64_t used = 0;
  template <class T>
  T* take(int64_t count) {
    T* found = (T*)(memory.data() + used);
    used += round_up(count * (int64_t)sizeof(T), 64) / 4;
    return found;
  }
};

// The positions of one row among those of all.
struct Extent {
  int64_t row, first, count;  // `row` is 0 for sequences without padding
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
  int64_t keys, pairs, columns;  // keys up to the last one that is not padding; pairs of the width
  float* norms;
  Head(const Attention& job, int64_t item)
      : job(job),
        row(item / job.heads),
        head(item % job.heads),
        queries(job.query_starts, row, job.queries),
        all_keys(job.key_starts, row, job.keys) {
    keys = all_keys.count;
    if (job.mask && !job.mask_query) {
      while (keys && !mask(0)[keys - 1]) keys--;
    }
    pairs = round_up(job.width, 32) / 2, columns = 2 * pairs;
    norms = job.norms + (job.query_starts ? head * job.query_starts[job.rows] + queries.first
                                          : item * job.queries);
  }
  bfloat16* at_query(const HeadsView& x, int64_t query) const { return at(x, queries, query); }
  bfloat16* at_key(const HeadsView& x, int64_t key) const { return at(x, all_keys, key); }
  const uint8_t* mask(int64_t query) const {
    return job.mask + row * job.mask_row + head * job.mask_head + query * job.mask_query;
  }
  // Keys that the queries before `query` see.
  int64_t keys_until(int64_t query) const { return job.causal ? std::min(keys, query) : keys; }
  // The first draw of a query's weights.
  uint64_t draws(int64_t query) const {
    const int64_t item = row * job.heads + head;
    return (item * job.queries + query) * ((job.keys + PER_DRAW - 1) / PER_DRAW);
  }

 private:
  bfloat16* at(const HeadsView& x, const Extent& extent, int64_t position) const {
    return (bfloat16*)x.data + extent.row * x.row + head * x.head +
           (extent.first + position) * x.position;
  }
};

// True in the lanes of those of n keys from `first` on that the query may attend to.
inline IntLanes visible_lanes(const Head& head, int64_t query, int64_t first, int64_t n) {
  const IntLanes lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  IntLanes visible = lane < (int32_t)n;
  if (head.job.causal) visible &= lane + (int32_t)first <= (int32_t)query;
  if (head.job.mask) {
    uint8_t bytes[16] = {};
    std::memcpy(bytes, head.mask(query) + first, n);
    visible &= (IntLanes)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)bytes)) != 0;
  }
  return visible;
}

// The weights exp(x - max x) of one query's scores as bfloat16, after dropout; returns the
// logarithm of their sum, and in `inverse` the factor for the context.
template <bool DROP>
float softmax(const Head& head, int64_t query, const float* scores, bfloat16* weights,
             int64_t width, float& inverse, uint16_t* draws) {
  const Attention& job = head.job;
  const bool all = !job.mask && !job.causal;
  const int64_t keys = head.keys_until(query + 1);
  Lanes maxima = lanes(-INFINITY), sum = {};
  by_lanes(keys, [&](int64_t s, int64_t n) {
    const Lanes x = load(scores + s, n);
    const Lanes y = all && n == LANES ? x : visible_lanes(head, query, s, n) ? x : lanes(-INFINITY);
    maxima = (y > maxima) | (y != y) ? y : maxima;  // NaN stays
  });
  const float largest = max_of(maxima);
  if (DROP) draw_all(job.drop.seed, head.draws(query), draws, keys);
  const DropMask dropout(job.drop);
  by_lanes(keys, [&](int64_t s, int64_t n) {
    Lanes x = exponential((load(scores + s, n) - largest) * job.scale);
    if (!all || n < LANES) x = visible_lanes(head, query, s, n) ? x : Lanes{};
    sum += x;
    if (DROP) x = dropout.keep_lanes(draws + s) ? x : Lanes{};
    store(x, weights + s, LANES);
  });
  std::memset(weights + round_up(keys, LANES), 0, (width - round_up(keys, LANES)) * 2);
  const float total = sum_of(sum);
  const bool idle = !(largest > -INFINITY) && largest == largest;  // may attend to no key
  inverse = idle ? 0.0f : (DROP ? dropout.scale : 1.0f) / total;
  return idle ? INFINITY : largest * job.scale + std::log(total);
}

template <bool DROP>
void attend_head(const Head& head, Arena& arena) {
  const Attention& job = head.job;
  const int64_t keys = round_up(head.keys, 16), pairs = head.pairs, columns = head.columns;
  Pair* rows = arena.take<Pair>(std::max(keys, BLOCK) * pairs);
  Pair* key = arena.take<Pair>(pairs * keys);
  Pair* value = arena.take<Pair>(keys / 2 * columns);
  Pair* query = arena.take<Pair>(BLOCK * pairs);
  float* scores = arena.take<float>(BLOCK * keys);
  bfloat16* weights = arena.take<bfloat16>(BLOCK * keys);
  float* context = arena.take<float>(BLOCK * columns);
  uint16_t* draws = arena.take<uint16_t>(draws_capacity(keys));
  if (arena.memory.empty()) return;
  copy_rows(head.at_key(job.key, 0), job.key.position, head.keys, job.width, rows, pairs);
  transpose_pairs(rows, head.keys, pairs, key, keys);
  copy_rows(head.at_key(job.value, 0), job.value.position, head.keys, job.width, rows, pairs);
  pair_rows(rows, head.keys, pairs, value, keys / 2);
  for (int64_t first = 0; first < head.queries.count; first += BLOCK) {
    const int64_t count = std::min(BLOCK, head.queries.count - first);
    const int64_t visible = round_up(head.keys_until(first + count), 16);
    copy_rows(head.at_query(job.query, first), job.query.position, count, job.width,
               query, pairs);
    small_product<false>(query, pairs, key, keys, scores, keys, count, visible, pairs);
    float inverse[BLOCK];
    for (int64_t i = 0; i < count; i++) {
      head.norms[first + i] =
          softmax<DROP>(head, first + i, scores + i * keys, weights + i * keys, visible, inverse[i],
                        draws);
    }
    small_product<false>((Pair*)weights, keys / 2, value, columns, context, columns, count, columns,
                         visible / 2);
    for (int64_t i = 0; i < count; i++) {
      bfloat16* out = head.at_query(job.context, first + i);
      by_lanes(job.width, [&](int64_t k, int64_t n) {
        store(load(context + i * columns + k, n) * inverse[i], out + k, n);
      });
    }
  }
}

// The sum over the width of a query's context times its gradient.
inline float dot(const bfloat16* x, const bfloat16* y, int64_t width) {
  Lanes sum = {};
  by_lanes(width, [&](int64_t k, int64_t n) { sum += load(x + k, n) * load(y + k, n); });
  return sum_of(sum);
}

// Of a block of queries, transposed: (keys, queries).
struct Transposed {
  int64_t queries;  // rounded up to a multiple of the lanes
  float *scores, *weight_grads;
  bfloat16 *weights, *grads;  // weights after dropout, and gradients of scores
  Pair* paired;               // gradients of scores in pairs of keys, (keys / 2, queries)
  uint8_t* mask;
  uint16_t (*draws)[BLOCK];
};

// Weights P from the scores, and the gradients of the scores: P (dP - sum P dP) scale.
template <bool DROP>
void softmax_back(const Head& head, int64_t first, int64_t count, int64_t keys, const float* norms,
                 const float* sums, const Transposed& t) {
  const Attention& job = head.job;
  const DropMask dropout(job.drop);
  const int64_t draws = head.draws(1) - head.draws(0);
  const bool by_query = job.mask && job.mask_query;  // not only by key
  if (by_query) {
    for (int64_t i = 0; i < t.queries; i++) {
      const uint8_t* mask = head.mask(first + std::min(i, count - 1));
      for (int64_t s = 0; s < keys; s++) t.mask[s * t.queries + i] = i < count && mask[s];
    }
  }
  for (int64_t s = 0; s < round_up(keys, 16); s++) {
    if (DROP && s % PER_DRAW == 0 && s < keys) {
      uint64_t numbers[BLOCK];
      const uint64_t from = head.draws(first) + s / PER_DRAW;
#pragma omp simd
      for (int64_t i = 0; i < t.queries; i++) numbers[i] = draw(job.drop.seed, from + i * draws);
      for (int64_t j = 0; j < PER_DRAW; j++) {
#pragma omp simd
        for (int64_t i = 0; i < t.queries; i++) t.draws[j][i] = (uint16_t)(numbers[i] >> 16 * j);
      }
    }
    const bool masked = s >= keys || (job.mask && !by_query && !head.mask(0)[s]);
    for (int64_t i = 0; i < t.queries; i += LANES) {
      Lanes weight = {}, grad = {}, dropped = {};
      if (!masked) {
        const IntLanes query = IntLanes{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} +
                            (int32_t)(first + i);
        IntLanes visible = query < (int32_t)(first + count);
        if (job.causal) visible &= query >= (int32_t)s;
        if (by_query) {
          visible &= (IntLanes)_mm512_cvtepu8_epi32(
                      _mm_loadu_si128((const __m128i*)(t.mask + s * t.queries + i))) != 0;
        }
        const Lanes score = load(t.scores + s * t.queries + i, LANES) * job.scale;
        weight = exponential(score - load(norms + i, LANES));
        weight = visible ? weight : Lanes{};
        grad = load(t.weight_grads + s * t.queries + i, LANES);
        dropped = weight;
        if (DROP) {
          const IntLanes keep = dropout.keep_lanes(t.draws[s % PER_DRAW] + i);
          dropped = keep ? weight * dropout.scale : Lanes{};
          grad = keep ? grad * dropout.scale : Lanes{};
        }
        grad = weight * (grad - load(sums + i, LANES)) * job.scale;
      }
      store(dropped, t.weights + s * t.queries + i, LANES);
      store(grad, t.grads + s * t.queries + i, LANES);
    }
  }
  pair_rows((const Pair*)t.grads, keys, t.queries / 2, t.paired, round_up(keys, 16) / 2);
}

template <bool DROP>
void attend_head_back(const Head& head, Arena& arena) {
  const Attention& job = head.job;
  const int64_t keys = round_up(head.keys, 16), pairs = head.pairs, columns = head.columns;
  Pair* key = arena.take<Pair>(keys * pairs);
  Pair* value = arena.take<Pair>(keys * pairs);
  Pair* transposed = arena.take<Pair>(columns * keys / 2);  // keys, (columns, keys)
  float* key_grad = arena.take<float>(keys * columns);
  float* value_grad = arena.take<float>(keys * columns);
  Pair* query = arena.take<Pair>(BLOCK * pairs);
  Pair* grad = arena.take<Pair>(BLOCK * pairs);
  Pair* right = arena.take<Pair>(BLOCK * pairs);  // the right matrix of each product
  float* transposed_grad = arena.take<float>(columns * BLOCK);
  float norms[BLOCK], sums[BLOCK];
  Transposed t{};
  t.scores = arena.take<float>(keys * BLOCK), t.weight_grads = arena.take<float>(keys * BLOCK);
  t.weights = arena.take<bfloat16>(keys * BLOCK), t.grads = arena.take<bfloat16>(keys * BLOCK);
  t.paired = arena.take<Pair>(keys / 2 * BLOCK);
  t.mask = arena.take<uint8_t>(keys * BLOCK);
  t.draws = (uint16_t(*)[BLOCK])arena.take<uint16_t>(PER_DRAW * BLOCK);
  if (arena.memory.empty()) return;
  std::memset(key + head.keys * pairs, 0, (keys - head.keys) * pairs * 4);
  std::memset(value + head.keys * pairs, 0, (keys - head.keys) * pairs * 4);
  copy_rows(head.at_key(job.key, 0), job.key.position, head.keys, job.width, key, pairs);
  copy_rows(head.at_key(job.value, 0), job.value.position, head.keys, job.width, value,
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
    const int64_t visible = head.keys_until(first + count), rows = round_up(visible, 16);
    const int64_t padded = t.queries = round_up(count, LANES);
    for (int64_t i = 0; i < padded; i++) {
      const bool real = i < count;
      norms[i] = real ? head.norms[first + i] : INFINITY;
      sums[i] = real ? dot(head.at_query(job.context, first + i),
                           head.at_query(job.context_grad, first + i), job.width)
                     : 0.0f;
    }
    copy_rows(head.at_query(job.query, first), job.query.position, count, job.width,
               query, pairs);
    copy_rows(head.at_query(job.context_grad, first), job.context_grad.position, count,
               job.width, grad, pairs);
    transpose_pairs(query, count, pairs, right, padded);
    small_product<false>(key, pairs, right, padded, t.scores, padded, visible, padded, pairs);
    transpose_pairs(grad, count, pairs, right, padded);
    small_product<false>(value, pairs, right, padded, t.weight_grads, padded, visible, padded,
                         pairs);
    softmax_back<DROP>(head, first, count, visible, norms, sums, t);
    pair_rows(grad, count, pairs, right, padded / 2);
    small_product<true>((Pair*)t.weights, padded / 2, right, columns, value_grad, columns, visible,
                        columns, padded / 2);
    pair_rows(query, count, pairs, right, padded / 2);
    small_product<true>((Pair*)t.grads, padded / 2, right, columns, key_grad, columns, visible,
                        columns, padded / 2);
    small_product<false>(transposed, keys / 2, t.paired, padded, transposed_grad, padded, job.width,
                         padded, rows / 2);
    for (int64_t i = 0; i < count; i++) {
      bfloat16* out = head.at_query(job.query_grad, first + i);
      by_lanes(job.width, [&](int64_t k, int64_t n) {
        Lanes x = {};
        for (int64_t j = 0; j < n; j++) x[j] = transposed_grad[(k + j) * padded + i];
        store(x, out + k, n);
      });
    }
  }
  for (int64_t s = 0; s < head.all_keys.count; s++) {
    bfloat16 *keys_out = head.at_key(job.key_grad, s);
    bfloat16 *values_out = head.at_key(job.value_grad, s);
    by_lanes(job.width, [&](int64_t k, int64_t n) {
      const bool real = s < head.keys;
      store(real ? load(key_grad + s * columns + k, n) : Lanes{}, keys_out + k, n);
      store(real ? load(value_grad + s * columns + k, n) : Lanes{}, values_out + k, n);
    });
  }
}

template <void one(const Head&, Arena&)>
void by_heads(void* data, Worker worker) {
  const Attention& job = *(Attention*)data;
  worker.share(job.rows * job.heads, [&](int64_t item) {
    static thread_local Arena arena;
    Arena counting;
    const Head head(job, item);
    one(head, counting);
    const int64_t capacity = counting.used + 16;
    if ((int64_t)arena.memory.size() < capacity) arena.memory.resize(capacity);
    arena.used = round_up((64 - (int64_t)((uintptr_t)arena.memory.data() % 64)) % 64, 4) / 4;
    one(head, arena);
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
