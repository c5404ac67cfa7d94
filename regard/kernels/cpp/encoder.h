// A program over texts that lie end to end, without padding: every token of a text sees all of its
// text and nothing else. Few texts pass all operations before the next do, so that what they make
// stays in the cache; a text's numbers do not depend on its neighbours.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "programs.h"

namespace {

constexpr int64_t TOGETHER = 96;  // rows that pass a program together, unless one text has more
constexpr int64_t FAR = 64;  // keys of which so many do not stay in the cache where they lie
constexpr int64_t LANES = 16;

typedef float Lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

inline Lanes& lanes(float* at) { return *(Lanes*)at; }
inline const Lanes& lanes(const float* at) { return *(const Lanes*)at; }

inline int64_t filled_up(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

// 16 lines of 16 numbers become columns: blocks of 8, 4, 2, 1 change places across the diagonal.
inline void transpose16x16(float* tile) {
#if WIDE
  __m512 line[LANES];
#pragma GCC unroll 16
  for (int i = 0; i < LANES; i++) line[i] = _mm512_loadu_ps(tile + i * LANES);
  const __m512i every = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
#pragma GCC unroll 4
  for (int half = LANES / 2; half; half /= 2) {
    const __m512i by = _mm512_set1_epi32(half);
    const __mmask16 upper = _mm512_test_epi32_mask(every, by);
    // Lines lie behind each other for the choice: lane l of the second one is number 16 + l.
    const __m512i far = _mm512_add_epi32(every, _mm512_set1_epi32(LANES));
    const __m512i first = _mm512_mask_sub_epi32(every, upper, far, by);
    const __m512i second = _mm512_mask_mov_epi32(_mm512_add_epi32(every, by), upper, far);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) {
      if (i & half) continue;
      const __m512 a = line[i], b = line[i + half];
      line[i] = _mm512_permutex2var_ps(a, first, b);
      line[i + half] = _mm512_permutex2var_ps(a, second, b);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < LANES; i++) _mm512_storeu_ps(tile + i * LANES, line[i]);
#else
  for (int i = 0; i < LANES; i++) {
    for (int j = 0; j < i; j++) std::swap(tile[i * LANES + j], tile[j * LANES + i]);
  }
#endif
}

// Lines of numbers that lie `step` apart.
struct Spread {
  const float* first;
  int64_t step;
  const float* operator[](int64_t i) const { return first + i * step; }
};

// Scores of 16 queries, which lie side by side (width, 16), with all keys: (count, 16).
inline void score(const float* queries, Spread keys, int64_t count, int64_t width, float* scores) {
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

// Scores (count, 16) become weights that are not yet divided by their sum, which is given back.
inline Lanes weigh(float* scores, int64_t count, float scale) {
  Lanes most = lanes(scores), sum = {};
  for (int64_t k = 1; k < count; k++) {
    const Lanes next = lanes(scores + k * LANES);
    most = most > next ? most : next;
  }
  for (int64_t k = 0; k < count; k++) {
    Lanes& here = lanes(scores + k * LANES);
    Lanes x = (here - most) * scale;
#pragma omp simd
    for (int l = 0; l < LANES; l++) ((float*)&x)[l] = exponential(((float*)&x)[l]);
    sum += here = x;
  }
  return sum;
}

// 16 columns of what 16 queries read of the values: (16 columns, 16 queries).
inline void mix(const float* weights, Spread values, int64_t count, Lanes sum, float* tile) {
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

// Lines of `wide` numbers, closer together.
inline Spread packed(Spread from, int64_t count, int64_t wide, float* to) {
  for (int64_t i = 0; i < count; i++) {
    for (int64_t d = 0; d < wide; d += LANES) lanes(to + i * wide + d) = lanes(from[i] + d);
  }
  return {to, wide};
}

// What one head reads of one text: so many queries, all keys and values.
struct Head {
  Spread queries, keys, values;
  int64_t asked, count, width;
  float scale;
};

// Contexts (asked, width), which lie `inner` apart. The lanes are queries, so that each is by itself.
// Whole lanes are read, also behind `width` numbers.
void attend_text(const Head& head, float* context, int64_t inner) {
  static thread_local std::vector<float> kept;
  const int64_t count = head.count, width = head.width, wide = filled_up(width);
  float* queries = scratch(kept, LANES * (wide + count) + 2 * count * wide + LANES * LANES);
  float *scores = queries + LANES * wide, *room = scores + LANES * count;
  float* tile = room + 2 * count * wide;
  Spread keys = head.keys, values = head.values;
  if (count > FAR) {
    keys = packed(keys, count, wide, room);
    values = packed(values, count, wide, room + count * wide);
  }
  for (int64_t first = 0; first < head.asked; first += LANES) {
    const int64_t here = std::min(LANES, head.asked - first);
    for (int64_t d = 0; d < width; d += LANES) {
      float* to = queries + d * LANES;
      for (int64_t q = 0; q < LANES; q++) {  // behind the end the last one again
        lanes(to + q * LANES) = lanes(head.queries[first + std::min(q, here - 1)] + d);
      }
      transpose16x16(to);
    }
    score(queries, keys, count, width, scores);
    const Lanes sum = weigh(scores, count, head.scale);
    for (int64_t d = 0; d < width; d += LANES) {
      mix(scores, {values.first + d, values.step}, count, sum, tile);
      transpose16x16(tile);
      float* to = context + first * inner + d;
      for (int64_t q = 0; q < here; q++, to += inner) {
        if (width - d >= LANES) {
          lanes(to) = lanes(tile + q * LANES);
        } else {
          std::memcpy(to, tile + q * LANES, (width - d) * sizeof(float));
        }
      }
    }
  }
}

// Texts end to end: text i has the rows from starts[i] to starts[i + 1]. Segments may be null where
// all are 0, and both where the program begins with states.
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

// Texts that pass a program together, and their states.
struct Together {
  const Program* program;
  float* hidden;
  Texts texts;
  std::vector<float*> registers;
  Rows room;

  int64_t rows() const { return texts.rows(); }

  // Memory of the calling thread.
  void reserve() {
    static thread_local std::vector<float> kept;
    int64_t total = 0;
    for (int64_t i = 1; i < program->registers; i++) total += program->widths[i] * rows();
    float* next = scratch(kept, total + LANES);  // whole lanes are read
    registers.assign(1, hidden);
    for (int64_t i = 1; i < program->registers; i++) {
      registers.push_back(next);
      next += program->widths[i] * rows();
    }
    room = room_for(rows(), program->widest);
  }

  // Queries, keys and values lie side by side; or the queries, of each text's first token alone, by
  // themselves, and keys and values side by side.
  void attention(const Op& op, Worker& worker) const {
    const int64_t inner = (int64_t)op.heads * op.head_dim;
    worker.share(texts.count * op.heads, [&](int64_t piece) {
      const int64_t text = piece / op.heads, at = piece % op.heads * op.head_dim;
      const int64_t first = texts.start(text), count = texts.start(text + 1) - first;
      if (op.kind == SELF) {
        const float* joined = registers[op.source] + first * 3 * inner + at;
        const Spread queries{joined, 3 * inner}, keys{joined + inner, 3 * inner};
        const Spread values{joined + 2 * inner, 3 * inner};
        attend_text({queries, keys, values, count, count, op.head_dim, op.number},
                    registers[op.target] + first * inner + at, inner);
      } else {
        const float* joined = registers[op.other] + first * 2 * inner + at;
        const Spread queries{registers[op.source] + text * inner + at, inner};
        const Spread keys{joined, 2 * inner}, values{joined + inner, 2 * inner};
        attend_text({queries, keys, values, std::min<int64_t>(1, count), count, op.head_dim,
                     op.number},
                    registers[op.target] + text * inner + at, inner);
      }
    });
  }

  // The first row of each text; zeros where it has none.
  void first_rows(const Op& op, Worker& worker) const {
    const int64_t width = program->widths[op.source];
    worker.share(1, [&](int64_t) {
      for (int64_t text = 0; text < texts.count; text++) {
        const bool some = texts.start(text + 1) > texts.start(text);
        const float* x = registers[op.source] + texts.start(text) * width;
        float* y = registers[op.target] + text * width;
        some ? (void)std::copy_n(x, width, y) : (void)std::fill_n(y, width, 0.0f);
      }
    });
  }

  // A line for each text goes to where the text's first row is. The last goes first, since none
  // moves up.
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

  // What begins with texts: lines of a matrix or a table for their ids or segments, or for places.
  void look_up(const Op& op, Worker& worker) const {
    const int64_t* asked = op.heads ? texts.segments : texts.ids;
    const int64_t width = program->widths[op.target];
    worker.share(texts.count, [&](int64_t text) {
      const int64_t first = texts.start(text), end = texts.start(text + 1);
      int64_t tokens = 0;  // but for padding
      for (int64_t row = first; row < end; row++) {
        float* y = registers[op.target] + row * width;
        int64_t at = asked ? asked[row] : 0;
        if (op.kind == PLACES) at = row - first;
        if (op.kind == COUNTED) at = at == op.layer ? op.layer : op.layer + ++tokens;
        if (op.kind == LINES) {
          line_of(*op.matrix, at, y);
        } else {
          std::memcpy(y, op.table + at * width, width * sizeof(float));
        }
      }
    });
  }

  void rowwise(const Op& op, int64_t rows, Worker& worker) const {
    const int64_t width = program->widths[op.source], pieces = worker.pieces(rows, 8);
    worker.share(pieces, [&](int64_t piece) {
      const Share share(rows, piece, pieces);
      for (int64_t row = share.begin; row < share.end; row++) {
        const float* x = registers[op.source] + row * width;
        float* y = registers[op.target] + row * width;
        if (op.kind == NORM) {
          normalize(x, y, width, op.gain, op.bias, op.number);
        } else if (op.kind == SCALED) {
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
    std::vector<bool> few(registers.size());  // those that have a line for each text
    for (int64_t i = 0; i < program->count; i++) {
      const Op& op = program->ops[i];
      few[op.target] = op.kind == FIRST || (op.source >= 0 && few[op.source]);
      const int64_t lines = few[op.target] ? texts.count : rows();
      if (op.kind == LINEAR) {
        const float* add = op.other < 0 ? nullptr : registers[op.other];
        product(*op.matrix, registers[op.source], lines,
                {registers[op.target], op.activation, add}, room, worker);
      } else if (op.kind == SELF || op.kind == SELF_FIRST) {
        attention(op, worker);
      } else if (op.kind == FIRST) {
        first_rows(op, worker);
      } else if (op.source < 0) {
        look_up(op, worker);
      } else {
        rowwise(op, lines, worker);
      }
    }
    if (few[0]) put_first(worker);
  }
};

void pass_together(void* data, Worker worker) { ((Together*)data)->pass(worker); }

// All texts, some of them together.
struct Encoding {
  const Program* program;
  float* hidden;
  Texts texts;
  std::vector<int64_t> cuts;  // numbers of texts

  void cut() {
    cuts.assign(1, 0);
    for (int64_t i = 1; i < texts.count; i++) {
      if (texts.starts[i + 1] - texts.starts[cuts.back()] > TOGETHER) cuts.push_back(i);
    }
    cuts.push_back(texts.count);
  }

  int64_t parts() const { return (int64_t)cuts.size() - 1; }

  Together part(int64_t i) const {
    const int64_t first = texts.starts[cuts[i]] - *texts.starts;
    Together made{program, hidden + first * program->widths[0], texts.part(cuts[i], cuts[i + 1]),
                  {}, {}};
    made.reserve();
    return made;
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
    if (op.kind == LINES || op.kind == TABLE || op.kind == COUNTED) {
      const int64_t* asked = op.heads ? texts.segments : texts.ids;
      const bool counted = op.kind == COUNTED;
      if (asked && !counted && boundary::count_outside(asked, end, op.lines)) {
        raise_error("%s must be from 0 to %d", op.heads ? "segments" : "ids", op.lines - 1);
      }
    }
    const int64_t more = op.kind == COUNTED ? op.layer + 1 : 0;
    if ((op.kind == PLACES || op.kind == COUNTED) && longest + more > op.lines) {
      raise_error("texts must have at most %lld tokens, but one has %lld",
                  (long long)(op.lines - more), (long long)longest);
    }
  }
}

// Each thread takes parts of its own.
void encode_apart(void* data, Worker worker) {
  const Encoding& all = *(Encoding*)data;
  worker.share(all.parts(), [&](int64_t i) {
    Worker alone{0, 1};
    all.part(i).pass(alone);
  });
}

}  // namespace
