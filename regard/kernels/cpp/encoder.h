// A program over texts without padding, one after the other: every token of a text attends to its
// whole text and to nothing else. A few texts pass all operations before the next ones do, so that
// their registers stay in the cache; the result of a text does not depend on the others.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "programs.h"

namespace {

constexpr int64_t BATCH_ROWS = 96;  // of texts that are computed together, unless one text has more
constexpr int64_t PACK_KEYS = 64;   // from more keys on they are packed, to stay in the cache
constexpr int64_t LANES = 16;

typedef float Lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

inline Lanes& lanes(float* at) { return *(Lanes*)at; }
inline const Lanes& lanes(const float* at) { return *(const Lanes*)at; }

inline int64_t rounded_up(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

// Transposes a tile of 16 x 16: blocks of 8, 4, 2, 1 are exchanged across the diagonal.
inline void transpose16x16(float* tile) {
#if WIDE
  __m512 row[LANES];
#pragma GCC unroll 16
  for (int i = 0; i < LANES; i++) row[i] = _mm512_loadu_ps(tile + i * LANES);
  const __m512i every = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
#pragma GCC unroll 4
  for (int half = LANES / 2; half; half /= 2) {
    const __m512i by = _mm512_set1_epi32(half);
    const __mmask16 upper = _mm512_test_epi32_mask(every, by);
    // The permutation counts the lanes of the second row from 16 on.
    const __m512i second_row = _mm512_add_epi32(every, _mm512_set1_epi32(LANES));
    const __m512i first = _mm512_mask_sub_epi32(every, upper, second_row, by);
    const __m512i second = _mm512_mask_mov_epi32(_mm512_add_epi32(every, by), upper, second_row);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) {
      if (i & half) continue;
      const __m512 a = row[i], b = row[i + half];
      row[i] = _mm512_permutex2var_ps(a, first, b);
      row[i + half] = _mm512_permutex2var_ps(a, second, b);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < LANES; i++) _mm512_storeu_ps(tile + i * LANES, row[i]);
#else
  for (int i = 0; i < LANES; i++) {
    for (int j = 0; j < i; j++) std::swap(tile[i * LANES + j], tile[j * LANES + i]);
  }
#endif
}

// Rows that are `stride` numbers apart.
struct StridedRows {
  const float* first;
  int64_t stride;
  const float* operator[](int64_t i) const { return first + i * stride; }
};

// The scores of 16 queries, transposed (width, 16), with all keys: (count, 16).
inline void score(const float* queries, StridedRows keys, int64_t count, int64_t width,
                  float* scores) {
  constexpr int KEYS = 4;
  for (int64_t k = 0; k < count; k += KEYS) {
    const float* key[KEYS];
    Lanes even[KEYS] = {}, odd[KEYS] = {};
    for (int i = 0; i < KEYS; i++) key[i] = keys[std::min(k + i, count - 1)];
    int64_t d = 0;
    for (; d + 2 <= width; d += 2) {
#pragma GCC unroll 4
      for (int i = 0; i < KEYS; i++) {
        even[i] += key[i][d] * lanes(queries + d * LANES);
        odd[i] += key[i][d + 1] * lanes(queries + (d + 1) * LANES);
      }
    }
    for (int i = 0; i < KEYS && k + i < count; i++) {
      if (d < width) even[i] += key[i][d] * lanes(queries + d * LANES);
      lanes(scores + (k + i) * LANES) = even[i] + odd[i];
    }
  }
}

// Scores (count, 16) become weights that are not divided by their sum; returns the sum.
inline Lanes exp_weights(float* scores, int64_t count, float scale) {
  Lanes largest = lanes(scores), sum = {};
  for (int64_t k = 1; k < count; k++) {
    const Lanes next = lanes(scores + k * LANES);
    largest = largest > next ? largest : next;
  }
  for (int64_t k = 0; k < count; k++) {
    Lanes& weight = lanes(scores + k * LANES);
    Lanes x = (weight - largest) * scale;
#pragma omp simd
    for (int l = 0; l < LANES; l++) ((float*)&x)[l] = exponential(((float*)&x)[l]);
    sum += weight = x;
  }
  return sum;
}

// 16 columns of the context of 16 queries: (16 columns, 16 queries).
inline void weighted_values(const float* weights, StridedRows values, int64_t count, Lanes sum,
                            float* tile) {
  Lanes total[LANES] = {};
  for (int64_t k = 0; k < count; k++) {
    const Lanes weight = lanes(weights + k * LANES);
    const float* value = values[k];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) total[i] += value[i] * weight;
  }
  const Lanes inverse = 1.0f / sum;
#pragma GCC unroll 16
  for (int i = 0; i < LANES; i++) lanes(tile + i * LANES) = total[i] * inverse;
}

// A contiguous copy of rows of `width` numbers.
inline StridedRows packed(StridedRows from, int64_t count, int64_t width, float* to) {
  for (int64_t i = 0; i < count; i++) {
    for (int64_t d = 0; d < width; d += LANES) lanes(to + i * width + d) = lanes(from[i] + d);
  }
  return {to, width};
}

// One head of one text: `queries`, which may be fewer than its keys and values.
struct Head {
  StridedRows queries, keys, values;
  int64_t n_queries, count, width;
  float scale;
  DistanceBias bias;
};

// For each distance between a query and a key, from 1 - count to count - 1, what is added to their
// score; then as much as a full lane more is read.
inline void spread_bias(const DistanceBias& bias, int64_t count, float* to) {
  for (int64_t i = 0; i < 2 * count - 1 + LANES; i++) {
    const int64_t distance = i - (count - 1);
    to[i] = bias.numbers[bias.reach - std::clamp(distance, -bias.reach, bias.reach)];
  }
}

// Contexts (n_queries, width), whose rows are `inner` apart. The lanes are queries, so that none
// depends on another. Full lanes are read, also behind `width` numbers.
void attend_text(const Head& head, float* context, int64_t inner) {
  static thread_local std::vector<float> memory;
  const int64_t count = head.count, width = head.width, padded = rounded_up(width);
  const int64_t spread = 2 * count + LANES;
  float* queries =
      scratch(memory, LANES * (padded + count) + 2 * count * padded + LANES * LANES + spread);
  float *scores = queries + LANES * padded, *kv = scores + LANES * count;
  float *tile = kv + 2 * count * padded, *bias = tile + LANES * LANES;
  if (head.bias.numbers) spread_bias(head.bias, count, bias);
  StridedRows keys = head.keys, values = head.values;
  if (count > PACK_KEYS) {
    keys = packed(keys, count, padded, kv);
    values = packed(values, count, padded, kv + count * padded);
  }
  for (int64_t first = 0; first < head.n_queries; first += LANES) {
    const int64_t n = std::min(LANES, head.n_queries - first);
    for (int64_t d = 0; d < width; d += LANES) {
      float* to = queries + d * LANES;
      for (int64_t q = 0; q < LANES; q++) {  // behind the end the last one is repeated
        lanes(to + q * LANES) = lanes(head.queries[first + std::min(q, n - 1)] + d);
      }
      transpose16x16(to);
    }
    score(queries, keys, count, width, scores);
    for (int64_t k = 0; head.bias.numbers && k < count; k++) {
      lanes(scores + k * LANES) += lanes(bias + first - k + count - 1);
    }
    const Lanes sum = exp_weights(scores, count, head.scale);
    for (int64_t d = 0; d < width; d += LANES) {
      weighted_values(scores, {values.first + d, values.stride}, count, sum, tile);
      transpose16x16(tile);
      float* to = context + first * inner + d;
      for (int64_t q = 0; q < n; q++, to += inner) {
        if (width - d >= LANES) {
          lanes(to) = lanes(tile + q * LANES);
        } else {
          std::memcpy(to, tile + q * LANES, (width - d) * sizeof(float));
        }
      }
    }
  }
}

// Texts without padding: text i has the rows from starts[i] to starts[i + 1]. Segments may be null
// where all are 0, and ids too where the program starts from hidden states.
struct Texts {
  const int64_t *ids, *segments, *starts;
  int64_t count;

  int64_t start(int64_t text) const { return starts[text] - starts[0]; }

  int64_t rows() const { return start(count); }

  Texts part(int64_t first, int64_t last) const {
    const int64_t at = starts[first] - starts[0];
    return {ids ? ids + at : nullptr, segments ? segments + at : nullptr, starts + first,
            last - first};
  }
};

// Texts that are computed together, and their registers.
struct TextBatch {
  const Program* program;
  float* hidden;
  Texts texts;
  std::vector<float*> registers;
  Rows buffer;

  int64_t rows() const { return texts.rows(); }

  // Memory of the calling thread.
  void reserve() {
    static thread_local std::vector<float> memory;
    int64_t total = 0;
    for (int64_t i = 1; i < program->registers; i++) total += program->widths[i] * rows();
    float* next = scratch(memory, total + LANES);  // full lanes are read
    registers.assign(1, hidden);
    for (int64_t i = 1; i < program->registers; i++) {
      registers.push_back(next);
      next += program->widths[i] * rows();
    }
    buffer = buffer_for(rows(), program->widest);
  }

  // Of SELF, queries, keys and values are one register; of SELF_FIRST_TOKEN the queries of each
  // text's first token are one, keys and values another.
  void attention(const Op& op, Worker& worker) const {
    const int64_t inner = (int64_t)op.heads * op.head_dim;
    worker.share(texts.count * op.heads, [&](int64_t piece) {
      const int64_t text = piece / op.heads, at = piece % op.heads * op.head_dim;
      const int64_t first = texts.start(text), count = texts.start(text + 1) - first;
      if (op.kind == SELF) {
        const float* packed_qkv = registers[op.source] + first * 3 * inner + at;
        const StridedRows queries{packed_qkv, 3 * inner}, keys{packed_qkv + inner, 3 * inner};
        const StridedRows values{packed_qkv + 2 * inner, 3 * inner};
        attend_text({queries, keys, values, count, count, op.head_dim, op.number,
                     bias_of(op, piece % op.heads)},
                    registers[op.target] + first * inner + at, inner);
      } else {
        const float* packed_kv = registers[op.other] + first * 2 * inner + at;
        const StridedRows queries{registers[op.source] + text * inner + at, inner};
        const StridedRows keys{packed_kv, 2 * inner}, values{packed_kv + inner, 2 * inner};
        attend_text({queries, keys, values, std::min<int64_t>(1, count), count, op.head_dim,
                     op.number, {nullptr, 0}},
                    registers[op.target] + text * inner + at, inner);
      }
    });
  }

  // The first row of each text; zeros where it has none.
  void first_rows(const Op& op, Worker& worker) const {
    const int64_t width = program->widths[op.source];
    worker.share(1, [&](int64_t) {
      for (int64_t text = 0; text < texts.count; text++) {
        const bool has_tokens = texts.start(text + 1) > texts.start(text);
        const float* x = registers[op.source] + texts.start(text) * width;
        float* y = registers[op.target] + text * width;
        has_tokens ? (void)std::copy_n(x, width, y) : (void)std::fill_n(y, width, 0.0f);
      }
    });
  }

  // Moves the row of each text, of which there is one, to the text's first row. The last one moves
  // first, since all move towards the end.
  void put_first(Worker& worker) const {
    const int64_t width = program->widths[0];
    worker.share(1, [&](int64_t) {
      for (int64_t text = texts.count - 1; text >= 0; text--) {
        if (texts.start(text) == rows()) continue;  // without tokens, behind the end
        std::memmove(hidden + texts.start(text) * width, hidden + text * width,
                     width * sizeof(float));
      }
    });
  }

  // Rows of a matrix or a table for ids, segments or positions.
  void look_up(const Op& op, Worker& worker) const {
    const int64_t* ids = op.heads ? texts.segments : texts.ids;
    const int64_t width = program->widths[op.target];
    worker.share(texts.count, [&](int64_t text) {
      const int64_t first = texts.start(text), end = texts.start(text + 1);
      int64_t tokens = 0;  // that are not padding
      for (int64_t row = first; row < end; row++) {
        float* y = registers[op.target] + row * width;
        int64_t at = ids ? ids[row] : 0;
        if (op.kind == POSITIONS) at = row - first;
        if (op.kind == TOKEN_POSITIONS) at = at == op.layer ? op.layer : op.layer + ++tokens;
        if (op.kind == EMBEDDING) {
          copy_row(*op.matrix, at, y);
        } else {
          std::memcpy(y, op.table + at * width, width * sizeof(float));
        }
      }
    });
  }

  void rowwise(const Op& op, int64_t rows, Worker& worker) const {
    const int64_t width = program->widths[op.target], pieces = worker.pieces(rows, 8);
    const int64_t source_width = program->widths[op.source];
    worker.share(pieces, [&](int64_t piece) {
      const Share share(rows, piece, pieces);
      for (int64_t row = share.begin; row < share.end; row++) {
        const float* x = registers[op.source] + row * source_width;
        float* y = registers[op.target] + row * width;
        if (op.kind == NORM) {
          normalize(x, y, width, op.gain, op.bias, op.number);
        } else if (op.kind == RMS_NORM) {
          normalize_rms(x, y, width, op.gain, op.number);
        } else if (op.kind == GATED) {
          gate(op.activation, x, y, width);
        } else if (op.kind == SCALE) {
#pragma omp simd
          for (int64_t i = 0; i < width; i++) y[i] = x[i] * op.number;
        } else {
          const float* other = registers[op.other] + row * width;
#pragma omp simd
          for (int64_t i = 0; i < width; i++) y[i] = x[i] + other[i];
        }
      }
    });
  }

  void pass(Worker& worker) const {
    std::vector<bool> by_text(registers.size());  // those with one row for each text
    for (int64_t i = 0; i < program->count; i++) {
      const Op& op = program->ops[i];
      by_text[op.target] = op.kind == FIRST_TOKEN || (op.source >= 0 && by_text[op.source]);
      const int64_t op_rows = by_text[op.target] ? texts.count : rows();
      if (op.kind == LINEAR) {
        const float* add = op.other < 0 ? nullptr : registers[op.other];
        product(*op.matrix, registers[op.source], op_rows,
                {registers[op.target], op.activation, add}, buffer, worker);
      } else if (op.kind == SELF || op.kind == SELF_FIRST_TOKEN) {
        attention(op, worker);
      } else if (op.kind == FIRST_TOKEN) {
        first_rows(op, worker);
      } else if (op.source < 0) {
        look_up(op, worker);
      } else {
        rowwise(op, op_rows, worker);
      }
    }
    if (by_text[0]) put_first(worker);
  }
};

void encode_batch(void* data, Worker worker) { ((TextBatch*)data)->pass(worker); }

// All texts, in batches.
struct Encoding {
  const Program* program;
  float* hidden;
  Texts texts;
  std::vector<int64_t> cuts;  // the first text of each batch, and the end

  void cut() {
    cuts.assign(1, 0);
    for (int64_t i = 1; i < texts.count; i++) {
      if (texts.starts[i + 1] - texts.starts[cuts.back()] > BATCH_ROWS) cuts.push_back(i);
    }
    cuts.push_back(texts.count);
  }

  int64_t batches() const { return (int64_t)cuts.size() - 1; }

  TextBatch batch(int64_t i) const {
    const int64_t first = texts.starts[cuts[i]] - *texts.starts;
    TextBatch found{program, hidden + first * program->widths[0], texts.part(cuts[i], cuts[i + 1]),
                    {}, {}};
    found.reserve();
    return found;
  }
};

// Throws where ids, segments or positions are out of range. `end` is how many tokens there are.
void check(const Program& program, const Texts& texts, int64_t end) {
  using boundary::raise_error;
  boundary::check_offsets("starts", texts.starts, texts.count, end);
  if (texts.rows() != end) raise_error("`starts` must end at %lld", (long long)end);
  int64_t longest = 0;
  for (int64_t i = 0; i < texts.count; i++) {
    longest = std::max(longest, texts.start(i + 1) - texts.start(i));
  }
  for (int64_t i = 0; i < program.count; i++) {
    const Op& op = program.ops[i];
    if (op.kind == EMBEDDING || op.kind == TABLE || op.kind == TOKEN_POSITIONS) {
      const int64_t* ids = op.heads ? texts.segments : texts.ids;
      const bool counted = op.kind == TOKEN_POSITIONS;
      if (ids && !counted && boundary::count_outside(ids, end, op.rows)) {
        raise_error("%s must be from 0 to %d", op.heads ? "segments" : "ids", op.rows - 1);
      }
    }
    const int64_t added = op.kind == TOKEN_POSITIONS ? op.layer + 1 : 0;
    if ((op.kind == POSITIONS || op.kind == TOKEN_POSITIONS) && longest + added > op.rows) {
      raise_error("texts must have at most %lld tokens, but one has %lld",
                  (long long)(op.rows - added), (long long)longest);
    }
  }
}

// Each thread computes batches of its own.
void encode_batches(void* data, Worker worker) {
  const Encoding& all = *(Encoding*)data;
  worker.share(all.batches(), [&](int64_t i) {
    Worker alone{0, 1};
    all.batch(i).pass(alone);
  });
}

}  // namespace
