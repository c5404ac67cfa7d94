// The most probable tokens of many rows at the output of a decoder. The vocabulary is processed
// part by part while its logits are in the cache, so that no logits are written to memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "products.h"
#include "vocabulary.h"

namespace {

struct Output {
  const Matrix& w;
  const float* x;
  Rows rows;         // a buffer for the quantized x
  TopK to;
  int64_t pieces;    // work items: each is a range of parts
  ExpSum* sums;      // (rows, parts)
  Candidates* all;   // (pieces, rows)
  int64_t* complete;  // of each row: whether no candidate is missing

  static constexpr int64_t TILES = 96 / ROWS;  // whose logits stay in the cache

  int64_t parts() const { return parts_of(w.n); }
  int64_t panels() const { return (w.n + PANEL - 1) / PANEL; }

  // The logits of a part, for tiles of rows.
  void score_part(int64_t piece, int64_t part, Share tiles, float* logits) const {
    const int64_t first = rows.first(tiles.begin), end = rows.first(tiles.end);
    const int64_t panel = part * (PART / PANEL);
    const Share part_panels(panel, std::min(panel + PART / PANEL, panels()));
    const int64_t token = part * PART, size = std::min(PART, w.n - token);
    const Result to_logits{logits - first * PART - token, LINEAR_, nullptr, PART};
    Sweep{w, rows, to_logits, part_panels}.run(tiles);
    for (int64_t row = first; row < end; row++) {
      float* own = logits + (row - first) * PART;
      if (to.normalized) to.forbid(own, size, token);
      const ExpSum found = sums[row * parts() + part] = exp_sum(own, size);
      if (!to.normalized) to.forbid(own, size, token);
      all[piece * rows.count + row].add(own, size, token, found.largest, to.count);
    }
  }

  void score_parts(int64_t piece) const {
    static thread_local std::vector<float> memory;
    const int64_t tiles = rows.tiles(), blocks = (tiles + TILES - 1) / TILES;
    float* logits = scratch(memory, TILES * ROWS * PART);
    const Share own(parts(), piece, pieces);
    for (int64_t row = 0; row < rows.count; row++) all[piece * rows.count + row].clear();
    for (int64_t part = own.begin; part < own.end; part++) {
      for (int64_t block = 0; block < blocks; block++) {
        score_part(piece, part, Share(tiles, block, blocks), logits);
      }
    }
  }

  void select(int64_t row) const {
    Candidates& first = all[row];
    for (int64_t piece = 1; piece < pieces; piece++) first.add(all[piece * rows.count + row]);
    complete[row] = select_topk(to, row, sums + row * parts(), parts(), first);
  }
};

void output_topk(void* data, Worker worker) {
  const Output& out = *(Output*)data;
  round_all(out.w, out.x, out.rows, worker);
  worker.share(out.pieces, [&](int64_t piece) { out.score_parts(piece); });
  worker.share(out.rows.count, [&](int64_t row) { out.select(row); });
}

// Returns whether no token is missing.
bool find_topk(const Matrix& w, const float* x, Rows rows, const TopK& to, int64_t threads) {
  static thread_local std::vector<ExpSum> sums;
  static thread_local std::vector<Candidates> all;
  static thread_local std::vector<int64_t> complete;
  const int64_t parts = parts_of(w.n), pieces = threads == 1 ? 1 : std::min(4 * threads, parts);
  Output out{w, x, rows, to, pieces, scratch(sums, rows.count * parts),
             scratch(all, rows.count * pieces), scratch(complete, rows.count)};
  run(threads, output_topk, &out);
  return std::find(out.complete, out.complete + rows.count, 0) == out.complete + rows.count;
}

}  // namespace
