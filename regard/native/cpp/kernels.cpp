// Decoding at the speed at which weights can be read: what Python calls.

#include "beams.h"
#include "encoder.h"
#include "lstm.h"
#include "output.h"
#include "programs.h"
#include "recurrent.h"
#include "words.h"
#include "training.h"

extern "C" {

// The functions of an OpenMP runtime; without them everything runs in one thread.
void regard_threads(decltype(Runtime::parallel) parallel, decltype(Runtime::number) number,
                    decltype(Runtime::size) size) {
  runtime = {parallel, number, size};
}

// x (M, K) -> y (M, N)
void regard_linear(int64_t weights, int64_t n, int64_t k, const void* data, const float* scale,
                   const float* bias, const float* x, int64_t rows, float* y, int64_t threads) {
  Matrix w{weights, n, k, data, scale, bias};
  Product p{&w, x, rows, y, room_for(rows, k)};
  run(threads, one_product, &p);
}

// Register 0 (rows, tokens, width), in and out, behind what the cache holds; or ids (rows, tokens)
// in and register 0 out. `ids`, `cache`, `source` and `parts` may be null. Gives how many ids there
// are not.
int64_t regard_run(const Program* program, float* hidden, const int64_t* ids, int64_t rows,
                   int64_t tokens, const Memory* cache, const Memory* source, const Part* parts,
                   int64_t threads) {
  Call call{program, ids, rows, tokens, cache, source, {}, {}, nullptr, 0, parts};
  if (const int64_t count = missing(call)) return count;
  reserve(call, hidden, threads);
  execute(call, threads);
  return 0;
}

// Ids (rows, tokens) -> of what the last product of the program would give the best words, and their
// log-probabilities: (rows, tokens, count). Gives how many ids there are not, or -1 where words may
// be missing.
int64_t regard_run_leading(const Program* program, const int64_t* ids, int64_t rows,
                           int64_t tokens, const Memory* cache, const Memory* source,
                           const Part* parts, int64_t count, int64_t* best, float* log_prob,
                           int64_t threads) {
  Program inner = *program;
  const Op& last = inner.ops[--inner.count];
  Call call{&inner, ids, rows, tokens, cache, source, {}, {}, nullptr, 0, parts};
  if (const int64_t none = missing(call)) return none;
  reserve(call, nullptr, threads);
  execute(call, threads);
  Rows room = call.rooms[0];
  const bool done = find_leaders(*last.matrix, call.registers[last.source], room,
                                 {count, best, log_prob}, threads);
  return done ? 0 : -1;
}

// A whole search from the first tokens (A,) on. Keys and values of the decoder are (rows, layers,
// heads, positions, width) of this type. Gives whether all is found.
int64_t regard_beams(const Program* program, const Beams* beams, const int64_t* first,
                     const Memory* source, int64_t numbers, int64_t layers, int64_t heads,
                     int64_t width) {
  Cache cache(numbers, beams->sentences * beams->size, layers, heads, width);
  return Search(*beams, *program, *source, cache, first).run();
}

// hidden (tokens, width), out, and in where there are no ids: texts end to end, text i from row
// starts[i] to starts[i + 1].
void regard_encode(const Program* program, float* hidden, const int64_t* ids,
                   const int64_t* segments, const int64_t* starts, int64_t texts,
                   int64_t threads) {
  Encoding all{program, hidden, {ids, segments, starts, texts}, {}};
  all.cut();
  if (threads > 1 && all.parts() >= 3 * threads) return run(threads, encode_apart, &all);
  for (int64_t i = 0; i < all.parts(); i++) {
    Together part = all.part(i);
    run(threads, pass_together, &part);
  }
}

// What the tokens say (rows, tokens, N) -> hidden states y (rows, tokens, K); `hidden` and `cell`
// (rows, K) are those before the first token, and then after the last. `cell` may be null.
void regard_recur(int64_t kind, int64_t weights, int64_t n, int64_t k, const void* data,
                  const float* scale, const float* bias, const float* gates, int64_t rows,
                  int64_t tokens, float* hidden, float* cell, float* y, int64_t threads) {
  static thread_local std::vector<float> again;
  Matrix w{weights, n, k, data, scale, bias};
  Recurrence all{(int)kind, &w, gates, rows, tokens, hidden, cell, y, nullptr, room_for(rows, k)};
  all.again = scratch(again, rows * n);
  run(threads, recur, &all);
}

// Lines of a matrix: ids (count,) -> y (count, K). Gives how many are not there.
int64_t regard_lines(int64_t weights, int64_t n, int64_t k, const void* data, const float* scale,
                     const int64_t* ids, int64_t count, float* y) {
  const Matrix w{weights, n, k, data, scale, nullptr};
  int64_t missing = 0;
  for (int64_t i = 0; i < count; i++) {
    if (ids[i] < 0 || ids[i] >= n) {
      missing++;
    } else {
      line_of(w, ids[i], y + i * k);
    }
  }
  return missing;
}

// Scores (rows, words) -> the best word of each row, and its log-probability.
void regard_best(const float* scores, int64_t rows, int64_t words, int64_t* best, float* log_prob,
                 int64_t threads) {
  static thread_local std::vector<Peak> peaks;
  Choice choice{scores, rows, words, best, log_prob, nullptr};
  choice.peaks = scratch(peaks, rows * choice.parts());
  run(threads, choose_all, &choice);
}

// Scores (rows, words), a word of each row -> minus its log-probability.
void regard_surprise(const float* scores, int64_t rows, int64_t words, const int64_t* asked,
                     double* found, int64_t threads) {
  Surprise surprise{scores, rows, words, asked, found};
  run(threads, surprise_all, &surprise);
}

// Scores (rows, words) -> the best words of each row, and their log-probabilities: (rows, count).
// Gives whether there are words enough for that.
int64_t regard_leading(const float* scores, int64_t rows, int64_t words, int64_t count,
                       int64_t* best, float* log_prob, int64_t threads) {
  if (words < count) return 0;
  Scores all{scores, rows, words, {count, best, log_prob}};
  run(threads, lead_all, &all);
  return 1;
}

// 0 if products of this library are right on this processor.
int regard_check() {
  constexpr int64_t n = 21, k = 200, rows = 5;
  const int64_t lines = (n + PANEL - 1) / PANEL * PANEL, columns = groups_of(k) * GROUP;
  std::vector<uint8_t> bytes(lines * columns, 128);
  std::vector<uint16_t> halves(lines * columns, 0x3f80);  // ones
  std::vector<float> x(rows * k), y(rows * n), scale(n, 0.5f);
  auto weight = [](int64_t line, int64_t column) { return (line * 7 + column) * 37 % 255 - 127; };
  for (int64_t line = 0; line < n; line++) {
    for (int64_t i = 0; i < k; i++) {
      const int64_t panel = line / PANEL * PANEL * columns;
      bytes[panel + (i / 4 * PANEL + line % PANEL) * 4 + i % 4] = weight(line, i) + 128;
    }
  }
  for (int64_t i = 0; i < rows * k; i++) x[i] = (float)(i % 64 == 0 ? 127 : i * 29 % 200 - 100);
  for (int64_t weights : {INT8, BFLOAT16}) {
    const void* data = weights == INT8 ? (void*)bytes.data() : (void*)halves.data();
    regard_linear(weights, n, k, data, scale.data(), nullptr, x.data(), rows, y.data(), 2);
    for (int64_t i = 0; i < rows * n; i++) {
      double sum = 0.0, size = 0.0;
      for (int64_t j = 0; j < k; j++) {
        double term = 0.5 * x[i / n * k + j] * (weights == INT8 ? weight(i % n, j) : 1);
        sum += term, size += std::fabs(term);
      }
      if (!(std::fabs(y[i] - sum) <= (weights == INT8 ? 1e-2 : 1e-5) * size)) return 1;
    }
  }
  return 0;
}
}
