// Inputs of products, quantized like the weights that they are multiplied with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "threads.h"
#include "vectors.h"

namespace {

constexpr int64_t GROUP = 64;  // 8-bit numbers that share a scale
constexpr int64_t STEPS = 16;  // of four bytes, in a chunk of a row
constexpr int64_t CHUNK = STEPS * 4;
#if WIDE
constexpr int ROWS = 8;  // of a tile, at most: their sums are in registers
#else
constexpr int ROWS = 4;
#endif

inline int64_t groups_of(int64_t k) { return (k + GROUP - 1) / GROUP; }

// Quantized rows, stored in the order in which they are read: tile by tile, and in a tile the first
// chunk of 64 bytes of each of its rows, then the second. Tiles have equal numbers of rows, or one
// less. Groups of 8-bit numbers have a scale and the start value of their dot products, in the same
// order.
struct Rows {
  int8_t* data;
  float* scale;
  int32_t* start;
  int64_t count;

  int64_t tiles() const { return (count + ROWS - 1) / ROWS; }
  int64_t first(int64_t tile) const { return count * tile / tiles(); }
  int64_t tile(int64_t row) const { return ((row + 1) * tiles() - 1) / count; }
};

// Quantizes one group to 8 bits. Infinity and NaN make its scale NaN.
inline void quantize(const float* x, int8_t* y, float* scale, int32_t* start) {
  // Absolute values are ordered as their bits are, infinity and NaN above all others.
  int32_t bits = 0;
#if WIDE
  const __m512i size = _mm512_set1_epi32(0x7fffffff);
  __m512i sizes = _mm512_setzero_si512(), sums = sizes;
  EACH(i, 4) sizes = _mm512_max_epi32(sizes, _mm512_and_si512(load_ints(x + 16 * i), size));
  bits = _mm512_reduce_max_epi32(sizes);
#else
#pragma omp simd reduction(max : bits)
  for (int64_t i = 0; i < GROUP; i++) {
    int32_t one;
    std::memcpy(&one, x + i, sizeof(one));
    bits = std::max(bits, one & 0x7fffffff);
  }
#endif
  const bool not_finite = bits >= 0x7f800000;
  float largest;
  std::memcpy(&largest, &bits, sizeof(largest));
  *scale = not_finite ? NAN : largest / 127.0f;
  if (not_finite || largest < 1e-30f) {  // too small for the inverse
    std::memset(y, 0, GROUP);
    *start = 0;
    return;
  }
  const float inverse = 127.0f / largest;
  int32_t sum = 0;
#if WIDE
  EACH(i, 4) {
    const __m512 steps = _mm512_mul_ps(load(x + 16 * i), _mm512_set1_ps(inverse));
    const __m512i rounded = _mm512_cvtps_epi32(steps);
    _mm_storeu_si128((__m128i*)(y + 16 * i), _mm512_cvtepi32_epi8(rounded));
    sums = _mm512_add_epi32(sums, rounded);
  }
  sum = _mm512_reduce_add_epi32(sums);
#else
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < GROUP; i++) {
    const int32_t rounded = (int32_t)std::nearbyint(x[i] * inverse);
    y[i] = (int8_t)rounded;
    sum += rounded;
  }
#endif
  *start = -128 * sum;  // compensates the 128 in w + 128
}

// Rounds `count` numbers to bfloat16, ties to even.
inline void to_bfloat16(const float* x, int64_t count, int8_t* to) {
  for (int64_t i = 0; i < count; i++) {
    uint32_t bits;
    std::memcpy(&bits, x + i, sizeof(bits));
    const uint32_t even = bits + 0x7fff + (bits >> 16 & 1), nan = bits | 0x400000;
    const uint32_t high = ((bits & 0x7fffffff) > 0x7f800000 ? nan : even) >> 16;
    const uint16_t half = (uint16_t)high;
    std::memcpy(to + 2 * i, &half, sizeof(half));
  }
}

// Quantizes a group of row m of a tile of `height` rows. `left` numbers remain of the row; `at` is
// the index of the group in storage order.
inline void round_group(bool bytes, const float* from, int64_t left, const Rows& buffer, int64_t at,
                        int64_t m, int64_t height) {
  float padded[GROUP] = {};
  if (left < GROUP) {
    std::memcpy(padded, from, left * sizeof(float));
    from = padded;
  }
  if (bytes) {
    quantize(from, buffer.data + at * CHUNK, buffer.scale + at, buffer.start + at);
  } else {
    int8_t* to = buffer.data + (2 * at - m) * CHUNK;  // chunk 2 g of row m
    to_bfloat16(from, GROUP / 2, to);
    to_bfloat16(from + GROUP / 2, GROUP / 2, to + height * CHUNK);
  }
}

// Quantizes groups of rows (count, K); `share` counts them in storage order, so that threads do not
// write to the same cache lines.
inline void round_groups(bool bytes, const float* x, int64_t k, const Rows& buffer, Share share) {
  const int64_t groups = groups_of(k);
  int64_t at = share.begin;
  while (at < share.end) {
    const int64_t tile = buffer.tile(at / groups), first = buffer.first(tile);
    const int64_t height = buffer.first(tile + 1) - first;
    for (; at < std::min(share.end, (first + height) * groups); at++) {
      const int64_t g = (at - first * groups) / height, m = (at - first * groups) % height;
      const float* from = x + (first + m) * k + g * GROUP;
      round_group(bytes, from, k - g * GROUP, buffer, at, m, height);
    }
  }
}

// Quantizes the groups from `begin` to before `end` of `rows` of x (count, K).
inline void round_part(bool bytes, const float* x, int64_t k, const Rows& buffer, Share rows,
                       int64_t begin, int64_t end) {
  const int64_t groups = groups_of(k);
  for (int64_t row = rows.begin; row < rows.end; row++) {
    const int64_t tile = buffer.tile(row), first = buffer.first(tile), m = row - first;
    const int64_t height = buffer.first(tile + 1) - first;
    for (int64_t g = begin; g < end; g++) {
      const float* from = x + row * k + g * GROUP;
      round_group(bytes, from, k - g * GROUP, buffer, first * groups + g * height + m, m, height);
    }
  }
}

// A buffer of the calling thread for quantized rows; each thread has two, by WHICH.
template <int WHICH = 0>
Rows buffer_for(int64_t rows, int64_t k) {
  static thread_local std::vector<int8_t> data;
  static thread_local std::vector<float> scale;
  static thread_local std::vector<int32_t> start;
  const int64_t groups = rows * groups_of(k);
  int8_t* bytes = scratch(data, groups * GROUP * 2 + CHUNK);
  bytes += -(uintptr_t)bytes % CHUNK;
  return {bytes, scratch(scale, groups), scratch(start, groups), rows};
}

}  // namespace
