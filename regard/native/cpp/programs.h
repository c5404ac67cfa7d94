// A program is a list of operations over registers, each a matrix of float32 with a line for every
// row that is being decoded. All threads run the whole program together; each operation is cut into
// pieces, which go to whoever is free.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "attention.h"
#include "products.h"

extern "C" {

enum Kind { NORM = 0, LINEAR = 1, SELF = 2, CROSS = 3, ADD = 4 };

// target = f(source), numbers of registers; `other` is added where it is not negative.
struct Op {
  int32_t kind, target, source, other;
  int32_t layer, heads, head_dim, activation;
  float number, unused;  // the scale of scores, or the epsilon of a norm
  const Matrix* matrix;
  const float *gain, *bias;  // of a norm
};

// Keys and values (rows, layers, heads, positions, width), with the steps of the first four.
struct Memory {
  float *keys, *values;
  int64_t row, layer, head, position;
  const int64_t* lengths;  // how many positions each row has; in a cache before this token
  int64_t sharing;         // rows that read the same memory
  int64_t longest;         // no length is above it
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
  int64_t rows;
  const Memory *cache, *source;
  std::vector<float*> registers;
  Rows room;
  float* weights;  // of attention, for each thread
  int64_t most;    // positions
};

void self_attention(const Op& op, const Call& call, Share share, int thread) {
  const int64_t inner = (int64_t)op.heads * op.head_dim;
  const Memory& cache = *call.cache;
  for (int64_t i = share.begin; i < share.end; i++) {
    const int64_t row = i / op.heads, head = i % op.heads;
    const float* query = call.registers[op.source] + row * 3 * inner + head * op.head_dim;
    const int64_t at = row * cache.row + op.layer * cache.layer + head * cache.head;
    float *keys = cache.keys + at, *values = cache.values + at;
    const int64_t end = cache.lengths[row];
    std::memcpy(keys + end * cache.position, query + inner, op.head_dim * sizeof(float));
    std::memcpy(values + end * cache.position, query + 2 * inner, op.head_dim * sizeof(float));
    attend(query, keys, values, end + 1, cache.position, op.head_dim, op.number,
           call.weights + thread * call.most,
           call.registers[op.target] + row * inner + head * op.head_dim);
  }
}

void cross_attention(const Op& op, const Call& call, Share share, int thread) {
  const int64_t inner = (int64_t)op.heads * op.head_dim;
  const Memory& source = *call.source;
  for (int64_t i = share.begin; i < share.end; i++) {
    const int64_t row = i / op.heads, head = i % op.heads, memory = row / source.sharing;
    const int64_t at = memory * source.row + op.layer * source.layer + head * source.head;
    const int64_t here = row * inner + head * op.head_dim;
    attend(call.registers[op.source] + here, source.keys + at, source.values + at,
           source.lengths[memory], source.position, op.head_dim, op.number,
           call.weights + thread * call.most, call.registers[op.target] + here);
  }
}

void rowwise(const Op& op, const Call& call, Share share) {
  const int64_t width = call.program->widths[op.source];
  for (int64_t row = share.begin; row < share.end; row++) {
    const float* x = call.registers[op.source] + row * width;
    float* y = call.registers[op.target] + row * width;
    if (op.kind == NORM) {
      normalize(x, y, width, op.gain, op.bias, op.number);
    } else {
      const float* other = call.registers[op.other] + row * width;
#pragma omp simd
      for (int64_t i = 0; i < width; i++) y[i] = x[i] + other[i];
    }
  }
}

void execute(void* data, Worker worker) {
  const Call& call = *(Call*)data;
  for (int64_t i = 0; i < call.program->count; i++) {
    const Op& op = call.program->ops[i];
    if (op.kind == LINEAR) {
      const float* add = op.other < 0 ? nullptr : call.registers[op.other];
      product(*op.matrix, call.registers[op.source], call.rows,
              {call.registers[op.target], op.activation, add}, call.room, worker);
      continue;
    }
    const bool attention = op.kind == SELF || op.kind == CROSS;
    const int64_t parts = attention ? call.rows * op.heads : call.rows;
    const int64_t pieces = worker.pieces(parts, 1);
    worker.share(pieces, [&](int64_t piece) {
      const Share share(parts, piece, pieces);
      if (op.kind == SELF) {
        self_attention(op, call, share, worker.thread);
      } else if (op.kind == CROSS) {
        cross_attention(op, call, share, worker.thread);
      } else {
        rowwise(op, call, share);
      }
    });
  }
}

}  // namespace
