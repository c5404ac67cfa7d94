// A program is a list of operations over registers, each a float32 matrix with a row for every
// token: (rows, tokens, width). All threads run the whole program together: each operation is split
// into work items claimed dynamically; small operations run on the last thread to arrive.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "attention.h"
#include "boundary.h"
#include "cells.h"
#include "products.h"
#include "vocabulary.h"

extern "C" {

// EMBEDDING (a quantized matrix) and TABLE (float32) look up token ids, POSITIONS looks up
// positions. In encoders: TOKEN_POSITIONS looks up layer + 1, layer + 2, ... for tokens other than
// padding, and `layer` for padding, whose id is `layer` too; FIRST_TOKEN is the first token of each
// text, and SELF_FIRST_TOKEN its self-attention, with keys and values in one register. In steps of
// recurrent layers: READ_STATE is part `layer` of the state, which WRITE_STATE replaces; CONCAT
// concatenates two registers; CELL is `next_state` of the kind `activation`. CACHE_ONLY stores keys
// and values as SELF does, and computes nothing. The table of SELF holds `rows` numbers for each
// head, a `DistanceBias`. GATED is `gate` of the kind `activation`. GROUPED is self-attention whose
// queries (`source`) have more heads than its keys and values (`other`); both are rotated by the
// angles of their positions, rows of the table. CACHE_ONLY with `other` stores what GROUPED does.
enum Kind {
  NORM = 0, LINEAR = 1, SELF = 2, CROSS = 3, ADD = 4, EMBEDDING = 5, TABLE = 6, POSITIONS = 7,
  SCALE = 8, TOKEN_POSITIONS = 9, FIRST_TOKEN = 10, SELF_FIRST_TOKEN = 11, READ_STATE = 12,
  WRITE_STATE = 13, CONCAT = 14, CELL = 15, CACHE_ONLY = 16, RMS_NORM = 17, GATED = 18,
  GROUPED = 19
};

// target = f(source), numbers of registers; `other` is added where it is not negative.
struct Op {
  int32_t kind, target, source, other;
  int32_t layer, heads, head_dim, activation;
  float number;   // the scale of scores or states, or the epsilon of a norm
  int32_t rows;   // of the matrix, or the table
  int32_t window, unused;  // how many positions a token sees in SELF; 0: all
  const Matrix* matrix;
  const float *gain, *bias;  // of a norm
  const float* table;
};

// A tensor of a recurrent state before a step and after it, and the strides of its rows.
struct Part {
  const float* before;
  int64_t before_stride;
  float* after;
  int64_t after_stride;
};

struct Program {
  const Op* ops;
  int64_t count;
  const int64_t* widths;  // of the registers; the first is what comes in and goes out
  int64_t registers, widest;
};
}

namespace {

bool is_attention(const Op& op) {
  return op.kind == SELF || op.kind == CROSS || op.kind == CACHE_ONLY || op.kind == GROUPED;
}

bool is_grouped(const Op& op) {
  return op.kind == GROUPED || (op.kind == CACHE_ONLY && op.other >= 0);
}

struct Call {
  const Program* program;
  const int64_t* ids;
  int64_t rows, tokens;  // tokens of each row
  const Memory *cache, *source;
  std::vector<float*> registers;
  Rows buffers[2];   // for quantized inputs: operations alternate between them
  float* weights;    // of attention, for each thread
  int64_t capacity;  // of the weights of a query
  const Part* parts;

  int64_t token_count() const { return rows * tokens; }

  // For the quantized input of a product.
  const Rows& buffer(const Op& op) const { return buffers[(&op - program->ops) % 2]; }

  // The product that follows an operation and reads its result, if that is made in whole groups of
  // numbers; or null.
  const Op* consumer(const Op& op) const {
    const Op* next = &op + 1;
    if (next == program->ops + program->count || next->kind != LINEAR) return nullptr;
    if (op.kind == WRITE_STATE) return nullptr;
    if (is_attention(op) && op.head_dim % GROUP != 0) return nullptr;
    return next->source == op.target ? next : nullptr;
  }

  // Quantizes groups of tokens for a product, if there is one.
  void round(const Op* op, Share tokens, Share groups) const {
    if (!op) return;
    const Matrix& w = *op->matrix;
    round_part(w.weights == INT8, registers[op->source], w.k, buffer(*op), tokens, groups.begin,
               groups.end);
  }

  // Heads of keys and values of an operation that `is_grouped`.
  int64_t shared_heads(const Op& op) const { return program->widths[op.other] / (2 * op.head_dim); }

  float* weights_of(int thread) const { return weights + thread * QUERIES * capacity; }
};

// Of one head; without numbers where there is no table.
DistanceBias bias_of(const Op& op, int64_t head) {
  return {op.table ? op.table + head * op.rows : nullptr, (op.rows - 1) / 2};
}

// Head i of all rows, or of all memories, of an attention.
HeadIndex head_index(const Op& op, int64_t i) { return {op.layer, i / op.heads, i % op.heads}; }

Share groups_of_head(const Op& op, HeadIndex index) {
  const int64_t count = op.head_dim / GROUP;
  return {index.head * count, (index.head + 1) * count};
}

// One head of one row: all keys and values go into the cache, then each token attends to those up
// to its own.
void self_attention(const Op& op, const Call& call, Share share, int thread) {
  const int64_t width = op.head_dim, inner = op.heads * width;
  const Memory& cache = *call.cache;
  for (int64_t i = share.begin; i < share.end; i++) {
    const HeadIndex index = head_index(op, i);
    const HeadIndex next = head_index(op, std::min(i + 1, share.end - 1));
    const int64_t token = index.row * call.tokens, before = cache.lengths[index.row];
    const float* query = call.registers[op.source] + token * 3 * inner + index.head * width;
    for (int64_t t = 0; t < call.tokens; t++) {
      const float* key = query + t * 3 * inner + inner;
      store_kv(cache, index, before + t, key, key + inner, width);
    }
    if (op.kind == CACHE_ONLY) continue;
    float* context = call.registers[op.target] + token * inner + index.head * width;
    attend({cache, index, next, {query, 3 * inner, call.tokens}, before + 1, 1, width, op.number,
            call.weights_of(thread), call.capacity, {context, inner, call.tokens},
            bias_of(op, index.head), op.window});
    call.round(call.consumer(op), {token, token + call.tokens}, groups_of_head(op, index));
  }
}

// One head of keys and values of one row, and the heads of queries that read it. These are computed
// together for each token; where there is only one, for all tokens.
void grouped_attention(const Op& op, const Call& call, Share share, int thread) {
  const int64_t width = op.head_dim, inner = op.heads * width;
  const int64_t shared = call.shared_heads(op), readers = op.heads / shared;
  const int64_t key_stride = 2 * shared * width;
  const Memory& cache = *call.cache;
  for (int64_t i = share.begin; i < share.end; i++) {
    const int64_t following = std::min(i + 1, share.end - 1);
    const HeadIndex index{op.layer, i / shared, i % shared};
    const HeadIndex next{op.layer, following / shared, following % shared};
    const int64_t token = index.row * call.tokens, before = cache.lengths[index.row];
    float* queries = call.registers[op.source] + token * inner + index.head * readers * width;
    float* keys = call.registers[op.other] + token * key_stride + index.head * width;
    for (int64_t t = 0; t < call.tokens; t++) {
      const float* angles = op.table + (before + t) * width;
      float* key = keys + t * key_stride;
      rotate(angles, key, width);
      store_kv(cache, index, before + t, key, key + shared * width, width);
      for (int64_t r = 0; r < readers; r++) rotate(angles, queries + t * inner + r * width, width);
    }
    if (op.kind == CACHE_ONLY) continue;
    float* context = call.registers[op.target] + token * inner + index.head * readers * width;
    const bool alone = readers == 1;
    for (int64_t t = 0; t < (alone ? 1 : call.tokens); t++) {
      const int64_t stride = alone ? inner : width, count = alone ? call.tokens : readers;
      attend({cache, index, next, {queries + t * inner, stride, count}, before + t + 1, alone,
              width, op.number, call.weights_of(thread), call.capacity,
              {context + t * inner, stride, count}, {nullptr, 0}, 0});
    }
    const int64_t groups = readers * width / GROUP;
    call.round(call.consumer(op), {token, token + call.tokens},
               {index.head * groups, (index.head + 1) * groups});
  }
}

// One head of all tokens that attend to the same memory.
void cross_attention(const Op& op, const Call& call, Share share, int thread) {
  const int64_t width = op.head_dim, inner = op.heads * width;
  const Memory& source = *call.source;
  const int64_t queries = source.sharing * call.tokens;
  for (int64_t i = share.begin; i < share.end; i++) {
    const HeadIndex index = head_index(op, i);
    const HeadIndex next = head_index(op, std::min(i + 1, share.end - 1));
    const int64_t at = index.row * queries * inner + index.head * width;
    attend({source, index, next, {call.registers[op.source] + at, inner, queries},
            source.lengths[index.row], 0, width, op.number, call.weights_of(thread), call.capacity,
            {call.registers[op.target] + at, inner, queries}, {nullptr, 0}, 0});
    const int64_t token = index.row * queries;
    call.round(call.consumer(op), {token, token + queries}, groups_of_head(op, index));
  }
}

// An operation that reads no register, for one token.
void read_input(const Op& op, const Call& call, int64_t token, float* y) {
  const int64_t width = call.program->widths[op.target];
  if (op.kind == EMBEDDING) return copy_row(*op.matrix, call.ids[token], y);
  if (op.kind == READ_STATE) {
    const Part& part = call.parts[op.layer];
    return (void)std::copy_n(part.before + token * part.before_stride, width, y);
  }
  int64_t at;
  if (op.kind == TABLE) {
    at = call.ids[token];
  } else {
    at = call.cache->lengths[token / call.tokens] + token % call.tokens;
  }
  std::memcpy(y, op.table + at * width, width * sizeof(float));
}

void rowwise(const Op& op, const Call& call, Share share) {
  const int64_t width = call.program->widths[op.target];
  for (int64_t token = share.begin; token < share.end; token++) {
    float* y = call.registers[op.target] + token * width;
    if (op.source < 0) {
      read_input(op, call, token, y);
      continue;
    }
    const int64_t source_width = call.program->widths[op.source];
    const float* x = call.registers[op.source] + token * source_width;
    if (op.kind == WRITE_STATE) {
      const Part& part = call.parts[op.layer];
      std::copy_n(x, width, part.after + token * part.after_stride);
    } else if (op.kind == CONCAT) {
      const int64_t other_width = width - source_width;
      const float* other = call.registers[op.other] + token * other_width;
      std::copy_n(x, source_width, y);
      std::copy_n(other, other_width, y + source_width);
    } else if (op.kind == CELL) {
      const int64_t state_width = op.activation == GRU_CELL ? 4 * width : width;
      const float* state =
          op.other < 0 ? nullptr : call.registers[op.other] + token * state_width;
      next_state(op.activation, x, state, width, y);
    } else if (op.kind == NORM) {
      normalize(x, y, width, op.gain, op.bias, op.number);
    } else if (op.kind == RMS_NORM) {
      normalize_rms(x, y, width, op.gain, op.number);
    } else if (op.kind == GATED) {
      gate(op.activation, x, y, width);
    } else if (op.kind == SCALE) {
#pragma omp simd
      for (int64_t i = 0; i < width; i++) y[i] = x[i] * op.number;
    } else {
      const float* other = call.registers[op.other] + token * width;
#pragma omp simd
      for (int64_t i = 0; i < width; i++) y[i] = x[i] + other[i];
    }
  }
}

// An operation on whole tokens, and the rounding for the product that reads it.
void run_tokens(const Op& op, const Call& call, Share share) {
  rowwise(op, call, share);
  const Op* consumer = call.consumer(op);
  if (consumer) call.round(consumer, share, {0, groups_of(consumer->matrix->k)});
}

// Numbers up to which splitting a stage takes longer than its work.
constexpr int64_t SMALL = 8192;

bool is_small_work(const Call& call, int64_t width) { return call.token_count() * width <= SMALL; }

// Whether the input of a product is quantized before it starts: by the operation that computes it,
// or, if it is small, by one thread.
bool is_rounded_before(const Op& op, const Call& call) {
  const bool by_producer = &op > call.program->ops && call.consumer((&op)[-1]);
  return by_producer || is_small_work(call, op.matrix->k);
}

bool is_small(const Op& op, const Call& call) {
  return !is_attention(op) && op.kind != LINEAR && is_small_work(call, call.program->widths[op.target]);
}

// Skips the small operations from `op` on, or runs them, and the rounding for the product behind
// them, if it is small too. Returns the operation behind them.
const Op* next_stage(const Op* op, const Call& call, bool run) {
  const Op *begin = call.program->ops, *end = begin + call.program->count;
  for (; op < end && is_small(*op, call); op++) {
    if (run) run_tokens(*op, call, {0, call.token_count()});
  }
  if (run && op < end && op->kind == LINEAR && is_small_work(call, op->matrix->k)) {
    const bool by_producer = op > begin && call.consumer(op[-1]);
    if (!by_producer) call.round(op, {0, call.token_count()}, {0, groups_of(op->matrix->k)});
  }
  return op;
}

template <class After>
void stage(const Op& op, const Call& call, Worker& worker, After after) {
  const Op* consumer = call.consumer(op);
  if (op.kind == LINEAR) {
    const float* x = call.registers[op.source];
    const float* add = op.other < 0 ? nullptr : call.registers[op.other];
    if (!is_rounded_before(op, call)) round_all(*op.matrix, x, call.buffer(op), worker);
    const Result to{call.registers[op.target], op.activation, add};
    auto done = [&](Share tokens, Share groups) { call.round(consumer, tokens, groups); };
    return multiply(*op.matrix, to, call.buffer(op), worker, done, after);
  }
  int64_t parts = call.token_count();  // of operations on whole tokens
  if (op.kind == SELF || op.kind == CACHE_ONLY) parts = call.rows * op.heads;
  if (is_grouped(op)) parts = call.rows * call.shared_heads(op);
  if (op.kind == CROSS) parts = call.rows / call.source->sharing * op.heads;
  const int64_t pieces = worker.pieces(parts, 1);
  auto work = [&](int64_t piece) {
    const Share share(parts, piece, pieces);
    if (is_grouped(op)) {
      grouped_attention(op, call, share, worker.thread);
    } else if (op.kind == SELF || op.kind == CACHE_ONLY) {
      self_attention(op, call, share, worker.thread);
    } else if (op.kind == CROSS) {
      cross_attention(op, call, share, worker.thread);
    } else {
      run_tokens(op, call, share);
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

// How many ids are not in the vocabulary.
int64_t count_missing(const Call& call) {
  int64_t count = 0;
  for (int64_t i = 0; i < call.program->count; i++) {
    const Op& op = call.program->ops[i];
    if (op.kind != EMBEDDING && op.kind != TABLE) continue;
    for (int64_t token = 0; token < call.token_count(); token++) {
      count += call.ids[token] < 0 || call.ids[token] >= op.rows;
    }
  }
  return count;
}

// Throws where keys and values of `rows` rows, to each of which `added` positions are added, are
// outside the memory.
void check_memory(const char* name, const Memory& memory, int64_t rows, int64_t added) {
  using boundary::raise_error;
  if (memory.sharing < 1 || memory.rows * memory.sharing != rows) {
    raise_error("the %s must have %lld rows, but has %lld, each read by %lld", name,
                (long long)rows, (long long)memory.rows, (long long)memory.sharing);
  }
  if (memory.longest < 0 || memory.longest + added > memory.capacity) {
    raise_error("the %s must have a capacity of %lld positions, but has %lld", name,
                (long long)(memory.longest + added), (long long)memory.capacity);
  }
  if (!memory.origin && memory.slots < memory.rows) {
    raise_error("the %s must have %lld slots, but has %lld", name, (long long)memory.rows,
                (long long)memory.slots);
  }
  for (int64_t row = 0; row < memory.rows; row++) {
    const int64_t length = memory.lengths[row];
    if (length < 0 || length > memory.longest) {
      raise_error("the lengths of the %s must be from 0 to %lld, but one is %lld", name,
                  (long long)memory.longest, (long long)length);
    }
    const int64_t* origin =
        memory.origin ? memory.origin + row * memory.origin_row_stride : nullptr;
    const int64_t last = (length + added - 1) >> memory.origin_shift;
    for (int64_t at = 0; origin && at <= (memory.origin_stride ? last : 0); at++) {
      const int64_t slot = origin[at * memory.origin_stride];
      if (slot < 0 || slot >= memory.slots) {
        raise_error("the origins of the %s must be from 0 to %lld, but one is %lld", name,
                    (long long)memory.slots - 1, (long long)slot);
      }
    }
  }
}

// Throws where an operation would read or write outside its arguments.
void check_op(const Op& op, const Call& call) {
  using boundary::raise_error;
  const bool own = op.kind != CROSS;
  if (is_attention(op)) {
    const int64_t heads = is_grouped(op) ? call.shared_heads(op) : op.heads;
    const Memory* memory = own ? call.cache : call.source;
    const char* name = own ? "cache" : "source";
    if (!memory) raise_error("the program needs a %s, but none is given", name);
    if (op.layer >= memory->layers || heads > memory->heads || op.head_dim != memory->width) {
      raise_error("the %s must have layer %d with %lld heads of width %d, but has %lld layers "
                  "with %lld heads of width %lld",
                  name, op.layer, (long long)heads, op.head_dim, (long long)memory->layers,
                  (long long)memory->heads, (long long)memory->width);
    }
  }
  if ((op.kind == EMBEDDING || op.kind == TABLE) && !call.ids) {
    raise_error("the program needs ids, but none are given");
  }
  if (op.kind == POSITIONS || is_grouped(op)) {
    if (!call.cache) raise_error("the program needs positions of a cache, but none is given");
    if (call.cache->longest + call.tokens > op.rows) {
      raise_error("positions must be below %d, but the cache has %lld and %lld are added", op.rows,
                  (long long)call.cache->longest, (long long)call.tokens);
    }
  }
  if ((op.kind == READ_STATE || op.kind == WRITE_STATE) && !call.parts) {
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

// Memory of the calling thread for registers, attention weights and quantized inputs.
void reserve(Call& call, float* hidden, int64_t threads) {
  static thread_local std::vector<float> memory, weights;
  const Program& program = *call.program;
  int64_t total = 0;
  for (int64_t i = 1; i < program.registers; i++) total += program.widths[i] * call.token_count();
  float* next = scratch(memory, total);
  call.registers.assign(1, hidden);
  for (int64_t i = 1; i < program.registers; i++) {
    call.registers.push_back(next);
    next += program.widths[i] * call.token_count();
  }
  const int64_t own = call.cache ? call.cache->longest + call.tokens : 0;
  call.capacity = std::max(own, call.source ? call.source->longest : 0) + BLOCK;
  call.weights = scratch(weights, QUERIES * call.capacity * threads);
  call.buffers[0] = buffer_for(call.token_count(), program.widest);
  call.buffers[1] = buffer_for<1>(call.token_count(), program.widest);
}

// The whole program.
void execute(Call& call, int64_t threads) {
  next_stage(call.program->ops, call, true);
  run(threads, execute, &call);
}

}  // namespace
