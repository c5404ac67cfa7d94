// Beam search with a program, all its steps in one call: regard/decoding/beam.py with nobody asking
// Python between the steps. That file says what a search is; this does the same in its order.
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

// What is looked for, and what is found, of A sentences.
struct Beams {
  int64_t sentences, size, wanted;  // running hypotheses a sentence; finished ones that are asked for
  int64_t count;                    // continuations of a sentence that are looked at
  int64_t stopping;
  int64_t bits, first_bits;       // that hold the place of a continuation; those of the first step
  int64_t most;                   // tokens of any hypothesis
  int64_t n_ends, n_never;        // tokens that end a hypothesis; those that may not come
  int64_t normalized;             // whether the others have the probability 1 together
  int64_t forced;                 // whether every hypothesis at its limit gets an end, which counts 0
  const int64_t *ends, *never;    // (n_ends,), (n_never,)
  const int64_t* limits;          // (A,) tokens of a hypothesis
  const double *now, *soon;       // penalties of n tokens, and of n as a length to come: (most + 2,)
  const double* last;             // (A,) those of the limits
  int64_t work, threads;          // multiplications of a row; and how many threads there are
  int64_t a_threads_work;         // multiplications that pay for a further thread
  int64_t* counts;                // (A,) finished hypotheses
  double *scores, *log_probs;     // (A, size), best first
  int64_t *ended, *lengths;       // (A, size) whether with `eos`; how many tokens
  int64_t* tokens;                // (A, size, most)
};
}

namespace {

constexpr double NEVER = -std::numeric_limits<double>::infinity();

// A continuation of a hypothesis of a sentence. Of sums that are nearly equal the first is better.
struct Next {
  int64_t rank;
  double log_prob;
  int64_t parent, token;
  bool operator<(const Next& other) const { return rank > other.rank; }
};

// The bits of a number order as it does; the lowest give way to a place.
inline int64_t rank_of(double sum, int64_t bits, int64_t place) {
  int64_t key;
  std::memcpy(&key, &sum, sizeof(key));
  key ^= (key >> 63) & std::numeric_limits<int64_t>::max();
  const int64_t low = ((int64_t)1 << bits) - 1;
  return (key & ~low) | (low - place);
}

// Keys and values of rows, which grow. A row that goes on as several leaves what it read where it is:
// `origin` says in which line each position of a row lies, (lines, places).
class Cache {
 public:
  std::vector<int64_t> origin;

  // Numbers of this type; each line has so many heads in all layers, each layer some of them.
  Cache(int64_t numbers, int64_t lines, int64_t layers, int64_t heads, int64_t width)
      : numbers(numbers), lines(lines), layers(layers), heads(heads), width(width) {}

  // Room for a position behind the first `length`.
  void reserve(int64_t length) {
    if (length < places) return;
    const int64_t room = places + std::max<int64_t>(16, places / 2);
    const int64_t size = (numbers == FLOAT16 ? 2 : 4) * heads * width, strips = layers * lines;
    for (auto* part : {&keys, &values}) {
      std::unique_ptr<char[]> grown(new char[strips * room * size]);
      for (int64_t i = 0; i < strips && length; i++) {
        std::memcpy(&grown[i * room * size], &(*part)[i * places * size], length * size);
      }
      part->swap(grown);
    }
    std::vector<int64_t> table(lines * room);
    for (int64_t row = 0; row < lines; row++) {
      std::copy_n(origin.data() + row * places, length, table.data() + row * room);
    }
    origin.swap(table);
    places = room;
  }

  // Of rows that have read `length` tokens each, and now read one more, each into its own line.
  Memory of(int64_t rows, int64_t length) {
    lengths.assign(rows, length);
    for (int64_t row = 0; row < rows; row++) origin[row * places + length] = row;
    const int64_t position = heads * width, line = places * position;
    return {keys.get(), values.get(),   numbers, line,   lines * line,  width, position,
            lengths.data(), 1, length, origin.data(), places, 1,
            rows, lines, layers, heads, places, width};
  }

  // From now on row i reads what row rows[i] has read.
  void select(const std::vector<int64_t>& rows, int64_t length) {
    std::vector<int64_t>& table = other;
    table.resize(origin.size());
    for (size_t i = 0; i < rows.size(); i++) {
      std::copy_n(origin.data() + rows[i] * places, length, table.data() + i * places);
    }
    origin.swap(table);
  }

 private:
  int64_t numbers, lines, layers, heads, width, places = 0;
  std::unique_ptr<char[]> keys, values;
  std::vector<int64_t> lengths, other;
};

// Throws where a search would write outside its results or read outside its arguments.
void check(const Beams& beams, int64_t words, const Memory& source) {
  using boundary::raise_error;
  if (beams.size < 1 || beams.count < beams.size || beams.count > words) {
    raise_error("a vocabulary of %lld cannot give %lld continuations for %lld hypotheses",
                (long long)words, (long long)beams.count, (long long)beams.size);
  }
  for (int64_t i = 0; i < beams.n_never; i++) {
    if (beams.never[i] < 0 || beams.never[i] >= words) {
      raise_error("`never` must be below %lld, but one is %lld", (long long)words,
                  (long long)beams.never[i]);
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
    if (beams.limits[i] < 1 || beams.limits[i] > beams.most) {
      raise_error("`limits` must be from 1 to %lld, but one is %lld", (long long)beams.most,
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
      here.sentences.push_back(i);
      here.entries.push_back(source.origin ? source.origin[i * source.origin_row] : i);
      here.lengths.push_back(source.lengths[i]);
    }
    here.running.assign(count, 0.0);
    here.last.assign(first, first + count);
    std::fill_n(beams.counts, count, 0);
    std::fill_n(beams.scores, count * beams.size, NEVER);
  }

  // Gives whether all is found.
  bool run() {
    while (!here.sentences.empty()) {
      if (!look()) return false;
      advance();
    }
    return true;
  }

 private:
  // Sentences, which entry of the source's memory each reads, and how long it is; and their rows,
  // `width` each.
  struct Going {
    std::vector<int64_t> sentences, entries, lengths;
    std::vector<double> running;
    std::vector<int64_t> last;    // tokens, which are read next
    std::vector<int64_t> tokens;  // all so far: (rows, length)
    std::vector<int64_t> rows;    // which of the rows before they continue

    void clear() {
      for (auto* part : {&sentences, &entries, &lengths, &last, &tokens, &rows}) part->clear();
      running.clear();
    }
  };

  // The best words after each row, by the model. Gives whether they are all there.
  bool look() {
    const int64_t rows = here.last.size(), count = beams.count;
    const int64_t paying = std::max<int64_t>(1, rows * beams.work / beams.a_threads_work);
    const int64_t threads = std::min(beams.threads, paying);
    cache.reserve(length);
    const Memory own = cache.of(rows, length);
    Memory read = source;
    read.lengths = here.lengths.data(), read.sharing = width;
    read.origin = here.entries.data(), read.origin_row = 1, read.origin_position = 0;
    read.rows = here.lengths.size();
    Call call{&inner, here.last.data(), rows, 1, &own, &read, {}, {}, nullptr, 0, nullptr};
    check(call);
    if (missing(call)) return false;
    reserve(call, nullptr, threads);
    execute(call, threads);
    words.resize(rows * count), log_probs.resize(rows * count);
    const Leaders to{count, words.data(), log_probs.data(), beams.never, beams.n_never,
                     beams.normalized != 0};
    const float* x = call.registers[output.source];
    if (!find_leaders(*output.matrix, x, call.rooms[0], to, threads)) return false;
    auto possible = [](float x) { return x > 0.5f * FORBIDDEN; };
    return std::all_of(log_probs.begin(), log_probs.end(), possible);
  }

  void advance() {
    next.clear();
    for (size_t at = 0; at < here.sentences.size(); at++) expand(at);
    length++, width = beams.size;
    std::swap(here, next);
    cache.select(here.rows, length);
  }

  void expand(int64_t at) {
    const int64_t sentence = here.sentences[at];
    const bool full = beams.limits[sentence] <= length + 1;
    if (full && beams.forced) return end_all(at, sentence);
    const int64_t count = beams.count, bits = length ? beams.bits : beams.first_bits;
    best.clear();
    for (int64_t i = 0; i < width * count; i++) {
      const int64_t from = at * width * count + i;
      const double sum = (double)log_probs[from] + here.running[at * width + i / count];
      best.push_back({rank_of(sum, bits, i), sum, at * width + i / count, words[from]});
    }
    std::partial_sort(best.begin(), best.begin() + count, best.end());
    auto ends = [&](const Next& one) {
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
    next.sentences.push_back(sentence);
    next.entries.push_back(here.entries[at]), next.lengths.push_back(here.lengths[at]);
    for (int64_t i = 0; i < beams.size; i++) {
      const int64_t* before = here.tokens.data() + best[i].parent * length;
      next.running.push_back(best[i].log_prob), next.rows.push_back(best[i].parent);
      next.tokens.insert(next.tokens.end(), before, before + length);
      next.tokens.push_back(best[i].token), next.last.push_back(best[i].token);
    }
  }

  // At the limit of a sentence every running hypothesis gets an end.
  void end_all(int64_t at, int64_t sentence) {
    for (int64_t i = at * width; i < (at + 1) * width; i++) {
      finish(sentence, {0, here.running[i], i, 0}, false, false);
    }
  }

  // One more finished hypothesis, its last token written or not. Among equal scores the one that
  // was first stays first.
  void finish(int64_t sentence, const Next& one, bool ended, bool written) {
    const int64_t first = sentence * beams.size;
    const double score = one.log_prob / beams.now[length + 1];
    int64_t place = 0, &count = beams.counts[sentence];
    while (place < count && beams.scores[first + place] >= score) place++;
    if (place == beams.size) return;
    count = std::min(count + 1, beams.size);
    for (int64_t i = first + count - 1; i > first + place; i--) {
      for (auto* part : {beams.scores, beams.log_probs}) part[i] = part[i - 1];
      for (auto* part : {beams.ended, beams.lengths}) part[i] = part[i - 1];
      std::copy_n(beams.tokens + (i - 1) * beams.most, beams.most, beams.tokens + i * beams.most);
    }
    const int64_t to = first + place;
    beams.scores[to] = score, beams.log_probs[to] = one.log_prob, beams.ended[to] = ended;
    beams.lengths[to] = length + written;
    int64_t* tokens = beams.tokens + to * beams.most;
    std::copy_n(here.tokens.data() + one.parent * length, length, tokens);
    if (written) tokens[length] = one.token;
  }

  // Whether a sentence is done, of whose running hypotheses this is the best.
  bool is_over(int64_t sentence, double log_prob) const {
    const double* scores = beams.scores + sentence * beams.size;
    const double worst = scores[beams.size - 1];
    if (beams.stopping == BEAM_FINISHED) return std::isfinite(worst);
    if (beams.stopping == CURRENT_LENGTH) return log_prob / beams.now[length + 1] <= worst;
    const double longest = std::max(beams.last[sentence], beams.soon[length + 2]);
    return log_prob / longest <= scores[beams.wanted - 1];
  }

  const Beams& beams;
  Program inner;      // without its last operation,
  const Op& output;   // which is the product that gives scores
  const Memory& source;
  Cache& cache;
  int64_t length = 0, width = 1;
  Going here, next;
  std::vector<int64_t> words;  // (rows, count), best first
  std::vector<float> log_probs;
  std::vector<Next> best;
};

}  // namespace
