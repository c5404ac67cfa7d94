// Beam search with a program, all its steps in one call, without Python code between them. The
// search is that of regard/decoding/beam.py, step by step.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "output.h"
#include "programs.h"

extern "C" {

enum Stopping { BEAM_FINISHED = 0, CURRENT_LENGTH = 1, EXACT_BOUND = 2 };

// The options and the results of a search for A sentences.
struct Beams {
  int64_t sentences, size, wanted;  // active hypotheses of a sentence; finished ones to return
  int64_t count;                    // tokens that are considered after each hypothesis
  int64_t stopping;
  int64_t bits, first_bits;         // for the index of a continuation; the same in the first step
  int64_t max_tokens;               // of any hypothesis
  int64_t n_ends, n_forbidden;
  int64_t normalized;               // whether the tokens that are not forbidden have probability 1
  int64_t forced;                   // whether hypotheses at their limit end, with log-probability 0
  const int64_t *ends, *forbidden;  // (n_ends,) tokens that end a hypothesis, (n_forbidden,)
  const int64_t* limits;            // (A,) tokens of a hypothesis
  // Length penalties of n tokens, and of n as a bound of the length: (max_tokens + 2,)
  const double *penalties, *bound_penalties;
  const double* limit_penalties;    // (A,) those of the limits
  int64_t work, threads;            // multiplications of a row; the number of threads
  int64_t work_per_thread;          // multiplications from which a further thread pays
  int64_t* counts;                  // (A,) finished hypotheses
  double *scores, *log_probs;       // (A, size), best first
  int64_t *ended, *lengths;         // (A, size) whether with an end; number of tokens
  int64_t* tokens;                  // (A, size, max_tokens)
};
}

namespace {

constexpr double MINUS_INFINITY = -std::numeric_limits<double>::infinity();

// A hypothesis with one more token. Of nearly equal sums the first ranks higher.
struct Continuation {
  int64_t rank;
  double log_prob;
  int64_t parent, token;
  bool operator<(const Continuation& other) const { return rank > other.rank; }
};

// An integer that orders as the sum does; its lowest bits hold the index, a lower one first.
inline int64_t rank_of(double sum, int64_t bits, int64_t index) {
  int64_t key;
  std::memcpy(&key, &sum, sizeof(key));
  key ^= (key >> 63) & std::numeric_limits<int64_t>::max();
  const int64_t low = ((int64_t)1 << bits) - 1;
  return (key & ~low) | (low - index);
}

// The growing keys and values of hypotheses. Where one is continued several times its keys and
// values are not copied: `origin` is the slot of each position of a row, (slots, capacity).
class Cache {
 public:
  std::vector<int64_t> origin;

  // `heads` of each layer.
  Cache(int64_t dtype, int64_t slots, int64_t layers, int64_t heads, int64_t width)
      : dtype(dtype), slots(slots), layers(layers), heads(heads), width(width) {}

  // Makes the capacity at least `length` + 1.
  void reserve(int64_t length) {
    if (length < capacity) return;
    const int64_t grown_capacity = capacity + std::max<int64_t>(16, capacity / 2);
    const int64_t size = (dtype == FLOAT16 ? 2 : 4) * heads * width, blocks = layers * slots;
    for (auto* part : {&keys, &values}) {
      std::unique_ptr<char[]> grown(new char[blocks * grown_capacity * size]);
      for (int64_t i = 0; i < blocks && length; i++) {
        const int64_t from = i * capacity * size, to = i * grown_capacity * size;
        std::memcpy(&grown[to], &(*part)[from], length * size);
      }
      part->swap(grown);
    }
    std::vector<int64_t> table(slots * grown_capacity);
    for (int64_t row = 0; row < slots; row++) {
      std::copy_n(origin.data() + row * capacity, length, table.data() + row * grown_capacity);
    }
    origin.swap(table);
    capacity = grown_capacity;
  }

  // The memory of rows with `length` positions each, and one more that goes into the row's own
  // slot.
  Memory memory(int64_t rows, int64_t length) {
    lengths.assign(rows, length);
    for (int64_t row = 0; row < rows; row++) origin[row * capacity + length] = row;
    const int64_t position = heads * width, slot = capacity * position;
    return {keys.get(), values.get(), dtype, slot, slots * slot, width, position,
            lengths.data(), 1, length, origin.data(), capacity, 1, 0, -1,
            rows, slots, layers, heads, capacity, width};
  }

  // Row i continues row rows[i].
  void select(const std::vector<int64_t>& rows, int64_t length) {
    std::vector<int64_t>& table = reordered;
    table.resize(origin.size());
    for (size_t i = 0; i < rows.size(); i++) {
      std::copy_n(origin.data() + rows[i] * capacity, length, table.data() + i * capacity);
    }
    origin.swap(table);
  }

 private:
  int64_t dtype, slots, layers, heads, width, capacity = 0;
  std::unique_ptr<char[]> keys, values;
  std::vector<int64_t> lengths, reordered;
};

// Throws where a search would write outside its results or read outside its arguments.
void check(const Beams& beams, int64_t vocab_size, const Memory& source) {
  using boundary::raise_error;
  if (beams.size < 1 || beams.count < beams.size || beams.count > vocab_size) {
    raise_error("a vocabulary of %lld cannot give %lld continuations for %lld hypotheses",
                (long long)vocab_size, (long long)beams.count, (long long)beams.size);
  }
  for (int64_t i = 0; i < beams.n_forbidden; i++) {
    if (beams.forbidden[i] < 0 || beams.forbidden[i] >= vocab_size) {
      raise_error("`never` must be below %lld, but one is %lld", (long long)vocab_size,
                  (long long)beams.forbidden[i]);
    }
  }
  if (beams.wanted < 1 || beams.wanted > beams.size) {
    raise_error("`wanted` must be from 1 to %lld, but is %lld", (long long)beams.size,
                (long long)beams.wanted);
  }
  if (source.rows != beams.sentences || source.sharing != 1) {
    raise_error("the source must have %lld sentences, but has %lld", (long long)beams.sentences,
                (long long)source.rows);
  }
  if (std::min(beams.bits, beams.first_bits) < 0 || std::max(beams.bits, beams.first_bits) > 62) {
    raise_error("`bits` and `first_bits` must be from 0 to 62");
  }
  for (int64_t i = 0; i < beams.sentences; i++) {
    if (beams.limits[i] < 1 || beams.limits[i] > beams.max_tokens) {
      raise_error("`limits` must be from 1 to %lld, but one is %lld", (long long)beams.max_tokens,
                  (long long)beams.limits[i]);
    }
  }
  check_memory("source", source, beams.sentences, 0);
}

class Search {
 public:
  Search(const Beams& beams, const Program& program, const Memory& source, Cache& cache,
         const int64_t* first)
      : beams(beams), inner(program), output(program.ops[program.count - 1]), source(source),
        cache(cache) {
    inner.count--;
    const int64_t count = beams.sentences;
    for (int64_t i = 0; i < count; i++) {
      active.sentences.push_back(i);
      active.slots.push_back(source.origin ? source.origin[i * source.origin_row_stride] : i);
      active.lengths.push_back(source.lengths[i]);
    }
    active.running.assign(count, 0.0);
    active.last.assign(first, first + count);
    std::fill_n(beams.counts, count, 0);
    std::fill_n(beams.scores, count * beams.size, MINUS_INFINITY);
  }

  // Returns false where a step cannot be computed here: the search must then be done in Python.
  bool run() {
    while (!active.sentences.empty()) {
      if (!score()) return false;
      advance();
    }
    return true;
  }

 private:
  // The sentences that are not finished, with the slot of the source's memory and the length of
  // each; and their hypotheses, `width` each.
  struct Active {
    std::vector<int64_t> sentences, slots, lengths;
    std::vector<double> running;  // log-probabilities
    std::vector<int64_t> last;    // tokens: the input of the next step
    std::vector<int64_t> tokens;  // (rows, length)
    std::vector<int64_t> rows;    // that they continue

    void clear() {
      for (auto* part : {&sentences, &slots, &lengths, &last, &tokens, &rows}) part->clear();
      running.clear();
    }
  };

  // The most probable tokens after each row. Returns whether all are found.
  bool score() {
    const int64_t rows = active.last.size(), count = beams.count;
    const int64_t useful = std::max<int64_t>(1, rows * beams.work / beams.work_per_thread);
    const int64_t threads = std::min(beams.threads, useful);
    cache.reserve(length);
    const Memory own = cache.memory(rows, length);
    Memory read = source;
    read.lengths = active.lengths.data(), read.sharing = width;
    read.origin = active.slots.data();
    read.origin_row_stride = 1, read.origin_stride = 0;
    read.rows = active.lengths.size();
    Call call{&inner, active.last.data(), rows, 1, &own, &read, {}, {}, nullptr, 0, nullptr};
    check(call);
    if (count_missing(call)) return false;
    reserve(call, nullptr, threads);
    execute(call, threads);
    tokens.resize(rows * count), log_probs.resize(rows * count);
    const TopK to{count, tokens.data(), log_probs.data(), beams.forbidden, beams.n_forbidden,
                  beams.normalized != 0};
    const float* x = call.registers[output.source];
    if (!find_topk(*output.matrix, x, call.buffers[0], to, threads)) return false;
    auto possible = [](float x) { return x > 0.5f * FORBIDDEN; };
    return std::all_of(log_probs.begin(), log_probs.end(), possible);
  }

  void advance() {
    following.clear();
    for (size_t at = 0; at < active.sentences.size(); at++) expand(at);
    length++, width = beams.size;
    std::swap(active, following);
    cache.select(active.rows, length);
  }

  void expand(int64_t at) {
    const int64_t sentence = active.sentences[at];
    const bool full = beams.limits[sentence] <= length + 1;
    if (full && beams.forced) return end_all(at, sentence);
    const int64_t count = beams.count, bits = length ? beams.bits : beams.first_bits;
    best.clear();
    for (int64_t i = 0; i < width * count; i++) {
      const int64_t from = at * width * count + i;
      const double sum = (double)log_probs[from] + active.running[at * width + i / count];
      best.push_back({rank_of(sum, bits, i), sum, at * width + i / count, tokens[from]});
    }
    std::partial_sort(best.begin(), best.begin() + count, best.end());
    auto ends = [&](const Continuation& one) {
      return std::find(beams.ends, beams.ends + beams.n_ends, one.token) !=
             beams.ends + beams.n_ends;
    };
    for (int64_t i = 0; i < beams.size; i++) {
      const bool ended = ends(best[i]);
      if (full || ended) finish(sentence, best[i], ended, !ended);
    }
    best.resize(count);
    best.erase(std::remove_if(best.begin(), best.end(), ends), best.end());
    if (full || is_over(sentence, best[0].log_prob)) return;
    following.sentences.push_back(sentence);
    following.slots.push_back(active.slots[at]);
    following.lengths.push_back(active.lengths[at]);
    for (int64_t i = 0; i < beams.size; i++) {
      const int64_t* before = active.tokens.data() + best[i].parent * length;
      following.running.push_back(best[i].log_prob), following.rows.push_back(best[i].parent);
      following.tokens.insert(following.tokens.end(), before, before + length);
      following.tokens.push_back(best[i].token), following.last.push_back(best[i].token);
    }
  }

  // Ends every active hypothesis of a sentence at its limit.
  void end_all(int64_t at, int64_t sentence) {
    for (int64_t i = at * width; i < (at + 1) * width; i++) {
      finish(sentence, {0, active.running[i], i, 0}, false, false);
    }
  }

  // Inserts a finished hypothesis, with its last token or without. Of equal scores the earlier one
  // stays first.
  void finish(int64_t sentence, const Continuation& one, bool ended, bool with_token) {
    const int64_t first = sentence * beams.size;
    const double score = one.log_prob / beams.penalties[length + 1];
    int64_t index = 0, &count = beams.counts[sentence];
    while (index < count && beams.scores[first + index] >= score) index++;
    if (index == beams.size) return;
    count = std::min(count + 1, beams.size);
    for (int64_t i = first + count - 1; i > first + index; i--) {
      for (auto* part : {beams.scores, beams.log_probs}) part[i] = part[i - 1];
      for (auto* part : {beams.ended, beams.lengths}) part[i] = part[i - 1];
      int64_t* row = beams.tokens + i * beams.max_tokens;
      std::copy_n(row - beams.max_tokens, beams.max_tokens, row);
    }
    const int64_t to = first + index;
    beams.scores[to] = score, beams.log_probs[to] = one.log_prob, beams.ended[to] = ended;
    beams.lengths[to] = length + with_token;
    int64_t* tokens = beams.tokens + to * beams.max_tokens;
    std::copy_n(active.tokens.data() + one.parent * length, length, tokens);
    if (with_token) tokens[length] = one.token;
  }

  // Whether a sentence is finished; log_prob is that of its best active hypothesis.
  bool is_over(int64_t sentence, double log_prob) const {
    const double* scores = beams.scores + sentence * beams.size;
    const double worst = scores[beams.size - 1];
    if (beams.stopping == BEAM_FINISHED) return std::isfinite(worst);
    if (beams.stopping == CURRENT_LENGTH) return log_prob / beams.penalties[length + 1] <= worst;
    const double penalty =
        std::max(beams.limit_penalties[sentence], beams.bound_penalties[length + 2]);
    return log_prob / penalty <= scores[beams.wanted - 1];
  }

  const Beams& beams;
  Program inner;     // without its last operation
  const Op& output;  // which is the product that gives the logits
  const Memory& source;
  Cache& cache;
  int64_t length = 0, width = 1;
  Active active, following;
  std::vector<int64_t> tokens;  // (rows, count), best first
  std::vector<float> log_probs;
  std::vector<Continuation> best;
};

}  // namespace
