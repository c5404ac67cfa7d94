// The best words of many rows at the output of a decoder. A part of the words after the other is
// multiplied and looked at while its scores are in the cache, so that no score goes to memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "products.h"
#include "words.h"

namespace {

struct Output {
  const Matrix& w;
  const float* x;
  Rows rows;  // room for them
  Leaders to;
  int64_t pieces;  // each has some of the parts
  Peak* peaks;     // of each row: (rows, parts)
  Candidates* all;  // of each piece: (pieces, rows)
  int64_t* done;    // of each row: whether no word is missing

  static constexpr int64_t MOST = 96 / ROWS;  // tiles whose scores stay in the cache

  int64_t parts() const { return parts_of(w.n); }
  int64_t panels() const { return (w.n + PANEL - 1) / PANEL; }

  static Share between(int64_t begin, int64_t end) {
    Share share(0, 0, 1);
    share.begin = begin, share.end = end;
    return share;
  }

  // The scores of a part, of some tiles of rows.
  void look(int64_t piece, int64_t part, Share tiles, float* scores) const {
    const int64_t first = rows.first(tiles.begin), end = rows.first(tiles.end);
    const int64_t panel = part * (PART / PANEL);
    const Share here = between(panel, std::min(panel + PART / PANEL, panels()));
    const int64_t word = part * PART, size = std::min(PART, w.n - word);
    const Result to_scores{scores - first * PART - word, LINEAR_, nullptr, PART};
    Sweep{w, rows, to_scores, here}.run(tiles);
    for (int64_t row = first; row < end; row++) {
      float* own = scores + (row - first) * PART;
      if (to.normalized) to.forbid(own, size, word);
      const Peak found = peaks[row * parts() + part] = peak(own, size);
      if (!to.normalized) to.forbid(own, size, word);
      all[piece * rows.count + row].add(own, size, word, found.most, to.count);
    }
  }

  void some_parts(int64_t piece) const {
    static thread_local std::vector<float> kept;
    const int64_t tiles = rows.tiles(), blocks = (tiles + MOST - 1) / MOST;
    float* scores = scratch(kept, MOST * ROWS * PART);
    const Share mine(parts(), piece, pieces);
    for (int64_t row = 0; row < rows.count; row++) all[piece * rows.count + row].clear();
    for (int64_t part = mine.begin; part < mine.end; part++) {
      for (int64_t block = 0; block < blocks; block++) {
        look(piece, part, Share(tiles, block, blocks), scores);
      }
    }
  }

  void choose(int64_t row) const {
    Candidates& first = all[row];
    for (int64_t piece = 1; piece < pieces; piece++) first.add(all[piece * rows.count + row]);
    done[row] = choose_leaders(to, row, peaks + row * parts(), parts(), first);
  }
};

void find(void* data, Worker worker) {
  const Output& out = *(Output*)data;
  round_together(out.w, out.x, out.rows, worker);
  worker.share(out.pieces, [&](int64_t piece) { out.some_parts(piece); });
  worker.share(out.rows.count, [&](int64_t row) { out.choose(row); });
}

// Gives whether no word is missing.
bool find_leaders(const Matrix& w, const float* x, Rows rows, const Leaders& to, int64_t threads) {
  static thread_local std::vector<Peak> peaks;
  static thread_local std::vector<Candidates> all;
  static thread_local std::vector<int64_t> done;
  const int64_t parts = parts_of(w.n), pieces = threads == 1 ? 1 : std::min(4 * threads, parts);
  Output out{w, x, rows, to, pieces, scratch(peaks, rows.count * parts),
             scratch(all, rows.count * pieces), scratch(done, rows.count)};
  run(threads, find, &out);
  return std::find(out.done, out.done + rows.count, 0) == out.done + rows.count;
}

}  // namespace
