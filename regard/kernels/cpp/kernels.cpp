// The functions that Python calls.
//
// A function that fails returns boundary::INVALID_ARGUMENT or boundary::NO_MEMORY.

#include "beams.h"
#include "boundary.h"
#include "encoder.h"
#include "lstm.h"
#include "output.h"
#include "programs.h"
#include "recurrent.h"
#include "training.h"
#include "vocabulary.h"

using boundary::guarded;
using boundary::guarded_call;

extern "C" {

// The message of the last call of this thread that failed.
const char* regard_error_message() { return boundary::error_message(); }

// The sizes of the structures that Python passes, in the order of signatures.py; then 0.
extern const int64_t regard_sizes[];
const int64_t regard_sizes[] = {
    sizeof(Matrix), sizeof(Op), sizeof(Memory), sizeof(Part), sizeof(Program), sizeof(Beams),
    sizeof(learning::Drop), sizeof(learning::Dropping), sizeof(learning::AddNorm),
    sizeof(learning::Entropy),
    sizeof(learning::HeadsView), sizeof(learning::Attention),
    LSTM_LAYER_SIZE, 0};

// The functions of an OpenMP runtime; without them everything runs in one thread.
void regard_threads(decltype(Runtime::parallel) parallel, decltype(Runtime::number) number,
                    decltype(Runtime::size) size) {
  runtime = {parallel, number, size};
}

// x (M, K) -> y (M, N)
int64_t regard_linear(int64_t weights, int64_t n, int64_t k, const void* data, const float* scale,
                      const float* bias, const float* x, int64_t rows, float* y,
                      int64_t threads) {
  return guarded_call([&] {
    if (!rows || !n) return;
    Matrix w{weights, n, k, data, scale, bias};
    Product p{&w, x, rows, y, buffer_for(rows, k)};
    run(threads, one_product, &p);
  });
}

// A program for tokens behind those of the cache: `hidden` (rows, tokens, width) is its output, and
// its input where it reads no ids (rows, tokens). `ids`, `cache`, `source` and `parts` may be null.
// Returns how many ids are not in the vocabulary.
int64_t regard_run(const Program* program, float* hidden, const int64_t* ids, int64_t rows,
                   int64_t tokens, const Memory* cache, const Memory* source, const Part* parts,
                   int64_t threads) {
  return guarded([&]() -> int64_t {
    Call call{program, ids, rows, tokens, cache, source, {}, {}, nullptr, 0, parts};
    check(call);
    if (const int64_t count = count_missing(call)) return count;
    if (!call.token_count()) return 0;
    reserve(call, hidden, threads);
    execute(call, threads);
    return 0;
  });
}

// A whole search from the first tokens (A,) on. Keys and values of the decoder are (slots, layers,
// heads, positions, width) of this type. Returns whether the search was completed.
int64_t regard_beams(const Program* program, const Beams* beams, const int64_t* first,
                     const Memory* source, int64_t dtype, int64_t layers, int64_t heads,
                     int64_t width) {
  return guarded([&]() -> int64_t {
    check(*beams, program->ops[program->count - 1].matrix->n, *source);
    Cache cache(dtype, beams->sentences * beams->size, layers, heads, width);
    return Search(*beams, *program, *source, cache, first).run();
  });
}

// Texts without padding: text i has the rows from starts[i] to starts[i + 1] of `hidden` (rows,
// width), which is the output, and the input where there are no ids.
int64_t regard_encode(const Program* program, float* hidden, int64_t rows, const int64_t* ids,
                      const int64_t* segments, const int64_t* starts, int64_t texts,
                      int64_t threads) {
  return guarded_call([&] {
    Encoding all{program, hidden, {ids, segments, starts, texts}, {}};
    check(*program, all.texts, rows);
    if (!rows) return;
    all.cut();
    if (threads > 1 && all.batches() >= 3 * threads) return run(threads, encode_batches, &all);
    for (int64_t i = 0; i < all.batches(); i++) {
      TextBatch batch = all.batch(i);
      run(threads, encode_batch, &batch);
    }
  });
}

// W x + b (rows, tokens, N) -> hidden states y (rows, tokens, K); `hidden` and `cell` (rows, K) are
// those before the first token, and are overwritten by those after the last. `cell` may be null.
int64_t regard_recur(int64_t kind, int64_t weights, int64_t n, int64_t k, const void* data,
                     const float* scale, const float* bias, const float* gates, int64_t rows,
                     int64_t tokens, float* hidden, float* cell, float* y, int64_t threads) {
  return guarded_call([&] {
    static thread_local std::vector<float> recurrent;
    if (kind == LSTM_CELL && !cell) {
      boundary::raise_error("an LSTM needs a `cell`, but none is given");
    }
    if (!rows || !n) return;
    Matrix w{weights, n, k, data, scale, bias};
    Recurrence all{(int)kind, &w, gates, rows, tokens, hidden, cell, y, nullptr,
                   buffer_for(rows, k)};
    all.recurrent = scratch(recurrent, rows * n);
    run(threads, recur, &all);
  });
}

// Logits (rows, vocab_size) and targets (rows,) -> -log p(target). Returns how many targets are not
// in the vocabulary.
int64_t regard_nll(const float* logits, int64_t rows, int64_t vocab_size, const int64_t* targets,
                        double* found, int64_t threads) {
  return guarded([&]() -> int64_t {
    if (const int64_t missing = boundary::count_outside(targets, rows, vocab_size)) return missing;
    NegativeLogLikelihood call{logits, rows, vocab_size, targets, found};
    run(threads, nll_all, &call);
    return 0;
  });
}

// Logits (rows, vocab_size) -> the most probable tokens of each row, and their log-probabilities:
// (rows, count).
int64_t regard_topk(const float* logits, int64_t rows, int64_t vocab_size, int64_t count,
                       int64_t* best, float* log_prob, int64_t threads) {
  return guarded_call([&] {
    check_count(count, vocab_size);
    TopKCall call{logits, rows, vocab_size, {count, best, log_prob}};
    run(threads, topk_all, &call);
  });
}

// 0 if the products of this library are correct on this processor.
int regard_check() {
  constexpr int64_t n = 21, k = 200, rows = 5;
  const int64_t padded = (n + PANEL - 1) / PANEL * PANEL, columns = groups_of(k) * GROUP;
  std::vector<uint8_t> bytes(padded * columns, 128);
  std::vector<uint16_t> halves(padded * columns, 0x3f80);  // ones
  std::vector<float> x(rows * k), y(rows * n), scale(n, 0.5f);
  auto weight = [](int64_t row, int64_t column) { return (row * 7 + column) * 37 % 255 - 127; };
  for (int64_t row = 0; row < n; row++) {
    for (int64_t i = 0; i < k; i++) {
      const int64_t panel = row / PANEL * PANEL * columns;
      bytes[panel + (i / 4 * PANEL + row % PANEL) * 4 + i % 4] = weight(row, i) + 128;
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
