// A program is a list of operations over registers, each a matrix of float32 with a line for every
// token that is read: those of a row follow each other. All threads run the whole program together;
// each operation is cut into pieces, claimed by free threads; what is too small to be cut is done by the
// last thread to arrive.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "attention.h"
#include "boundary.h"
#include "cells.h"
#include "products.h"
#include "words.h"

extern "C" {

// LINES and TABLE begin with the ids of tokens, PLACES with their positions. In encoders alone:
// COUNTED begins with positions behind `layer`, where what has that id stands; FIRST is the first
// token of each text, and SELF_FIRST what it reads of keys and values, which lie side by side. In steps
// of recurrent layers alone: BEFORE is part `layer` of the state, which AFTER replaces; JOINED lays two
// registers side by side; STATE is what `next_state` gives for the kind `activation`. KEEP is what SELF
// does to the cache, and nothing more.
enum Kind {
  NORM = 0, LINEAR = 1, SELF = 2, CROSS = 3, ADD = 4, LINES = 5, TABLE = 6, PLACES = 7, SCALED = 8,
  COUNTED = 9, FIRST = 10, SELF_FIRST = 11, BEFORE = 12, AFTER = 13, JOINED = 14, STATE = 15,
  KEEP = 16
};

// target = f(source), numbers of registers; `other` is added where it is not negative.
struct Op {
  int32_t kind, target, source, other;
  int32_t layer, heads, head_dim, activation;
  float number;   // the scale of scores or states, or the epsilon of a norm
  int32_t lines;  // of the matrix, or the table
  const Matrix* matrix;
  const float *gain, *bias;  // of a norm
  const float* table;
};

// A part of a recurrent state before a step and after it: rows that lie so many numbers apart.
struct Part {
  const float* before;
  int64_t before_step;
  float* after;
  int64_t after_step;
};

struct Program {
  const Op* ops;
  int64_t count;
  const int64_t* widths;  // of the registers; the first is what comes in and goes out
  int64_t registers, widest;
};
}

namespace {

struct Call {
  const Program* program;
  const int64_t* ids;
  int64_t rows, tokens;  // tokens of each row
  const Memory *cache, *source;
  std::vector<float*> registers;
  Rows rooms[2];   // for quantized rows, of every other operation
  float* weights;  // of attention, for each thread
  int64_t most;    // positions
  const Part* parts;

  int64_t lines() const { return rows * tokens; }

  // For what a product reads.
  const Rows& room(const Op& op) const { return rooms[(&op - program->ops) % 2]; }

  // The product that alone reads what an operation gives, in whole groups of numbers; or null.
  const Op* reader(const Op& op) const {
    const Op* next = &op + 1;
    if (next == program->ops + program->count || next->kind != LINEAR) return nullptr;
    if (op.kind == AFTER) return nullptr;
    if ((op.kind == SELF || op.kind == CROSS) && op.head_dim % GROUP != 0) return nullptr;
    return next->source == op.target ? next : nullptr;
  }

  // Rounds some groups of some lines for a product, if there is one.
  void round(const Op* op, Share lines, Share groups) const {
    if (!op) return;
    const Matrix& w = *op->matrix;
    round_part(w.weights == INT8, registers[op->source], w.k, room(*op), lines, groups.begin,
               groups.end);
  }

  float* room_of(int thread) const { return weights + thread * READERS * most; }
};

// Item i of an attention's heads of rows, or of memories.
Place place_of(const Op& op, int64_t i) { return {op.layer, i / op.heads, i % op.heads}; }

Share groups_of_head(const Op& op, Place place) {
  const int64_t count = op.head_dim / GROUP;
  return {place.head * count, (place.head + 1) * count};
}

// One head of one row: all keys and values go into the cache, then each token reads those before it.
void self_attention(const Op& op, const Call& call, Share share, int thread) {
  const int64_t width = op.head_dim, inner = op.heads * width;
  const Memory& cache = *call.cache;
  for (int64_t i = share.begin; i < share.end; i++) {
    const Place place = place_of(op, i), next = place_of(op, std::min(i + 1, share.end - 1));
    const int64_t line = place.row * call.tokens, before = cache.lengths[place.row];
    const float* query = call.registers[op.source] + line * 3 * inner + place.head * width;
    for (int64_t t = 0; t < call.tokens; t++) {
      const float* key = query + t * 3 * inner + inner;
      keep(cache, place, before + t, key, key + inner, width);
    }
    if (op.kind == KEEP) continue;
    float* context = call.registers[op.target] + line * inner + place.head * width;
    attend({cache, place, next, {query, 3 * inner, call.tokens}, before + 1, 1, width, op.number,
            call.room_of(thread), call.most, {context, inner, call.tokens}});
    call.round(call.reader(op), {line, line + call.tokens}, groups_of_head(op, place));
  }
}

// One head of all tokens that read the same memory.
void cross_attention(const Op& op, const Call& call, Share share, int thread) {
  const int64_t width = op.head_dim, inner = op.heads * width;
  const Memory& source = *call.source;
  const int64_t readers = source.sharing * call.tokens;
  for (int64_t i = share.begin; i < share.end; i++) {
    const Place place = place_of(op, i), next = place_of(op, std::min(i + 1, share.end - 1));
    const int64_t at = place.row * readers * inner + place.head * width;
    attend({source, place, next, {call.registers[op.source] + at, inner, readers},
            source.lengths[place.row], 0, width, op.number, call.room_of(thread), call.most,
            {call.registers[op.target] + at, inner, readers}});
    const int64_t line = place.row * readers;
    call.round(call.reader(op), {line, line + readers}, groups_of_head(op, place));
  }
}

// What begins with a token, and not with a register.
void first_line(const Op& op, const Call& call, int64_t line, float* y) {
  const int64_t width = call.program->widths[op.target];
  if (op.kind == LINES) return line_of(*op.matrix, call.ids[line], y);
  if (op.kind == BEFORE) {
    const Part& part = call.parts[op.layer];
    return (void)std::copy_n(part.before + line * part.before_step, width, y);
  }
  int64_t at;
  if (op.kind == TABLE) {
    at = call.ids[line];
  } else {
    at = call.cache->lengths[line / call.tokens] + line % call.tokens;
  }
  std::memcpy(y, op.table + at * width, width * sizeof(float));
}

void rowwise(const Op& op, const Call& call, Share share) {
  const int64_t width = call.program->widths[op.target];
  for (int64_t line = share.begin; line < share.end; line++) {
    float* y = call.registers[op.target] + line * width;
    if (op.source < 0) {
      first_line(op, call, line, y);
      continue;
    }
    const int64_t wide = call.program->widths[op.source];
    const float* x = call.registers[op.source] + line * wide;
    if (op.kind == AFTER) {
      const Part& part = call.parts[op.layer];
      std::copy_n(x, width, part.after + line * part.after_step);
    } else if (op.kind == JOINED) {
      std::copy_n(x, wide, y);
      std::copy_n(call.registers[op.other] + line * (width - wide), width - wide, y + wide);
    } else if (op.kind == STATE) {
      const int64_t more = op.activation == GRU_CELL ? 4 * width : width;
      const float* state = op.other < 0 ? nullptr : call.registers[op.other] + line * more;
      next_state(op.activation, x, state, width, y);
    } else if (op.kind == NORM) {
      normalize(x, y, width, op.gain, op.bias, op.number);
    } else if (op.kind == SCALED) {
#pragma omp simd
      for (int64_t i = 0; i < width; i++) y[i] = x[i] * op.number;
    } else {
      const float* other = call.registers[op.other] + line * width;
#pragma omp simd
      for (int64_t i = 0; i < width; i++) y[i] = x[i] + other[i];
    }
  }
}

// Whole lines, and their rounding.
void pass_lines(const Op& op, const Call& call, Share share) {
  rowwise(op, call, share);
  if (const Op* reader = call.reader(op)) call.round(reader, share, {0, groups_of(reader->matrix->k)});
}

// Sharing a stage of so few numbers takes longer than its work.
constexpr int64_t FEW = 8192;

bool few(const Call& call, int64_t width) { return call.lines() * width <= FEW; }

// Whether what a product reads is rounded when it begins: by whom it was made, or, since it is
// little, by one thread.
bool rounded_before(const Op& op, const Call& call) {
  const bool made = &op > call.program->ops && call.reader((&op)[-1]);
  return made || few(call, op.matrix->k);
}

bool is_small(const Op& op, const Call& call) {
  const bool heads = op.kind == SELF || op.kind == CROSS || op.kind == KEEP;
  return !heads && op.kind != LINEAR && few(call, call.program->widths[op.target]);
}

// The small operations from `op` on, and the rounding of what comes behind them, where it is small
// too. Gives what comes behind them.
const Op* next_stage(const Op* op, const Call& call, bool run) {
  const Op *begin = call.program->ops, *end = begin + call.program->count;
  for (; op < end && is_small(*op, call); op++) {
    if (run) pass_lines(*op, call, {0, call.lines()});
  }
  if (run && op < end && op->kind == LINEAR && few(call, op->matrix->k)) {
    const bool made = op > begin && call.reader(op[-1]);
    if (!made) call.round(op, {0, call.lines()}, {0, groups_of(op->matrix->k)});
  }
  return op;
}

template <class After>
void stage(const Op& op, const Call& call, Worker& worker, After after) {
  const Op* reader = call.reader(op);
  if (op.kind == LINEAR) {
    const float* x = call.registers[op.source];
    const float* add = op.other < 0 ? nullptr : call.registers[op.other];
    if (!rounded_before(op, call)) round_together(*op.matrix, x, call.room(op), worker);
    const Result to{call.registers[op.target], op.activation, add};
    auto made = [&](Share lines, Share groups) { call.round(reader, lines, groups); };
    return multiply(*op.matrix, to, call.room(op), worker, made, after);
  }
  int64_t parts = call.lines();  // those of operations on whole lines
  if (op.kind == SELF || op.kind == KEEP) parts = call.rows * op.heads;
  if (op.kind == CROSS) parts = call.rows / call.source->sharing * op.heads;
  const int64_t pieces = worker.pieces(parts, 1);
  auto work = [&](int64_t piece) {
    const Share share(parts, piece, pieces);
    if (op.kind == SELF || op.kind == KEEP) {
      self_attention(op, call, share, worker.thread);
    } else if (op.kind == CROSS) {
      cross_attention(op, call, share, worker.thread);
    } else {
      pass_lines(op, call, share);
    }
  };
  worker.share(pieces, work, after);
}

void execute(void* data, Worker worker) {
  const Call& call = *(Call*)data;
  const Op* end = call.program->ops + call.program->count;
  for (const Op* op = next_stage(call.program->ops, call, false); op < end;) {
    const Op* next = next_stage(op + 1, call, false);
    stage(*op, call, worker, [&] { next_stage(op + 1, call, true); });
    op = next;
  }
}

// Tokens that the vocabulary does not have.
int64_t missing(const Call& call) {
  int64_t count = 0;
  for (int64_t i = 0; i < call.program->count; i++) {
    const Op& op = call.program->ops[i];
    if (op.kind != LINES && op.kind != TABLE) continue;
    for (int64_t line = 0; line < call.lines(); line++) {
      count += call.ids[line] < 0 || call.ids[line] >= op.lines;
    }
  }
  return count;
}

// Throws where the keys and values of these rows are outside the memory; at most the last position
// of a row is new. `end` is how many positions of a row are read.
void check_memory(const char* name, const Memory& memory, int64_t rows, int64_t more) {
  using boundary::raise_error;
  if (memory.sharing < 1 || memory.rows * memory.sharing != rows) {
    raise_error("the %s must have %lld rows, but has %lld, each read by %lld", name,
                (long long)rows, (long long)memory.rows, (long long)memory.sharing);
  }
  if (memory.longest < 0 || memory.longest + more > memory.positions) {
    raise_error("the %s must have a capacity of %lld positions, but has %lld", name,
                (long long)(memory.longest + more), (long long)memory.positions);
  }
  if ((!memory.origin || more) && memory.lines < memory.rows) {
    raise_error("the %s must have %lld lines, but has %lld", name, (long long)memory.rows,
                (long long)memory.lines);
  }
  for (int64_t row = 0; row < memory.rows; row++) {
    const int64_t length = memory.lengths[row];
    if (length < 0 || length > memory.longest) {
      raise_error("the lengths of the %s must be from 0 to %lld, but one is %lld", name,
                  (long long)memory.longest, (long long)length);
    }
    const int64_t* origin = memory.origin ? memory.origin + row * memory.origin_row : nullptr;
    for (int64_t s = 0; origin && s < (memory.origin_position ? length + more : 1); s++) {
      const int64_t line = origin[s * memory.origin_position];
      if (line < 0 || line >= memory.lines) {
        raise_error("the origins of the %s must be from 0 to %lld, but one is %lld", name,
                    (long long)memory.lines - 1, (long long)line);
      }
    }
  }
}

// Throws where an operation would read or write outside its arguments.
void check_op(const Op& op, const Call& call) {
  using boundary::raise_error;
  const bool own = op.kind == SELF || op.kind == KEEP;
  if (own || op.kind == CROSS) {
    const Memory* memory = own ? call.cache : call.source;
    const char* name = own ? "cache" : "source";
    if (!memory) raise_error("the program needs a %s, but none is given", name);
    if (op.layer >= memory->layers || op.heads > memory->heads || op.head_dim != memory->width) {
      raise_error("the %s must have layer %d with %d heads of width %d, but has %lld layers with "
                  "%lld heads of width %lld",
                  name, op.layer, op.heads, op.head_dim, (long long)memory->layers,
                  (long long)memory->heads, (long long)memory->width);
    }
  }
  if ((op.kind == LINES || op.kind == TABLE) && !call.ids) {
    raise_error("the program needs ids, but none are given");
  }
  if (op.kind == PLACES) {
    if (!call.cache) raise_error("the program needs positions of a cache, but none is given");
    if (call.cache->longest + call.tokens > op.lines) {
      raise_error("positions must be below %d, but the cache has %lld and %lld are added", op.lines,
                  (long long)call.cache->longest, (long long)call.tokens);
    }
  }
  if ((op.kind == BEFORE || op.kind == AFTER) && !call.parts) {
    raise_error("the program needs a state, but none is given");
  }
}

// Throws where a call would read or write outside its arrays.
void check(const Call& call) {
  if (call.rows < 0 || call.tokens < 0) {
    boundary::raise_error("the numbers of rows and of tokens must not be negative");
  }
  if (call.cache) check_memory("cache", *call.cache, call.rows, call.tokens);
  if (call.source) check_memory("source", *call.source, call.rows, 0);
  for (int64_t i = 0; i < call.program->count; i++) check_op(call.program->ops[i], call);
}

// Memory of the calling thread for what happens between the operations.
void reserve(Call& call, float* hidden, int64_t threads) {
  static thread_local std::vector<float> kept, weights;
  const Program& program = *call.program;
  int64_t total = 0;
  for (int64_t i = 1; i < program.registers; i++) total += program.widths[i] * call.lines();
  float* next = scratch(kept, total);
  call.registers.assign(1, hidden);
  for (int64_t i = 1; i < program.registers; i++) {
    call.registers.push_back(next);
    next += program.widths[i] * call.lines();
  }
  const int64_t own = call.cache ? call.cache->longest + call.tokens : 0;
  call.most = std::max(own, call.source ? call.source->longest : 0);
  call.most += BLOCK;
  call.weights = scratch(weights, READERS * call.most * threads);
  call.rooms[0] = room_for(call.lines(), program.widest);
  call.rooms[1] = room_for<1>(call.lines(), program.widest);
}

// The whole program.
void execute(Call& call, int64_t threads) {
  next_stage(call.program->ops, call, true);
  run(threads, execute, &call);
}

}  // namespace
