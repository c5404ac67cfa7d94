// Rows of numbers, quantized like the weights that they are multiplied with.
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
constexpr int64_t STEPS = 16;  // four bytes of a row each: what is read of it at once
constexpr int64_t STRETCH = STEPS * 4;
#if WIDE
constexpr int ROWS = 8;  // that are multiplied together, at most: their sums lie in registers
#else
constexpr int ROWS = 4;
#endif

inline int64_t groups_of(int64_t k) { return (k + GROUP - 1) / GROUP; }

// Quantized rows. They lie as they are read: those of a tile are multiplied together, and of all of
// them comes the first stretch of 64 bytes, then the second. Tiles are as equal as can be. Groups
// of 8-bit numbers have a scale, and what their dot products begin with, in the same order.
struct Rows {
  int8_t* data;
  float* scale;
  int32_t* start;
  int64_t count;

  int64_t tiles() const { return (count + ROWS - 1) / ROWS; }
  int64_t first(int64_t tile) const { return count * tile / tiles(); }
  int64_t tile(int64_t row) const { return ((row + 1) * tiles() - 1) / count; }
};

// One group. Infinity and NaN make its scale NaN.
inline void quantize(const float* x, int8_t* y, float* scale, int32_t* start) {
  // Sizes of floats are ordered as their bits are; infinity and NaN stand above all others.
  int32_t bits = 0;
#if WIDE
  const __m512i size = _mm512_set1_epi32(0x7fffffff);
  __m512i sizes = _mm512_setzero_si512(), sums = sizes;
  EACH(i, 4) sizes = _mm512_max_epi32(sizes, _mm512_and_si512(load_ints(x + 16 * i), size));
  bits = _mm512_reduce_max_epi32(sizes);
#else
#pragma omp simd reduction(max : bits)
  for (int64_t i = 0; i < GROUP; i++) {
    int32_t here;
    std::memcpy(&here, x + i, sizeof(here));
    bits = std::max(bits, here & 0x7fffffff);
  }
#endif
  const bool wrong = bits >= 0x7f800000;
  float most;
  std::memcpy(&most, &bits, sizeof(most));
  *scale = wrong ? NAN : most / 127.0f;
  if (wrong || most < 1e-30f) {  // too small for the inverse
    std::memset(y, 0, GROUP);
    *start = 0;
    return;
  }
  const float inverse = 127.0f / most;
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
  *start = -128 * sum;  // what the 128 in w + 128 will add
}

// Some numbers as bfloat16, of two that are equally near the even one.
inline void shorten(const float* x, int64_t count, int8_t* to) {
  for (int64_t i = 0; i < count; i++) {
    uint32_t bits;
    std::memcpy(&bits, x + i, sizeof(bits));
    const uint32_t even = bits + 0x7fff + (bits >> 16 & 1), none = bits | 0x400000;
    const uint32_t high = ((bits & 0x7fffffff) > 0x7f800000 ? none : even) >> 16;
    const uint16_t half = (uint16_t)high;
    std::memcpy(to + 2 * i, &half, sizeof(half));
  }
}

// A group, of which there are `left` numbers, of row m of a tile of so many. It is number `at` of
// all groups, as they lie.
inline void round_group(bool bytes, const float* from, int64_t left, const Rows& room, int64_t at,
                        int64_t m, int64_t height) {
  float padded[GROUP] = {};
  if (left < GROUP) {
    std::memcpy(padded, from, left * sizeof(float));
    from = padded;
  }
  if (bytes) {
    quantize(from, room.data + at * STRETCH, room.scale + at, room.start + at);
  } else {
    int8_t* to = room.data + (2 * at - m) * STRETCH;  // stretch 2 g of row m
    shorten(from, GROUP / 2, to);
    shorten(from + GROUP / 2, GROUP / 2, to + height * STRETCH);
  }
}

// Some groups of rows (count, K) into `room`, counted as they lie there: threads that write side by
// side would wait for each other.
inline void round_groups(bool bytes, const float* x, int64_t k, const Rows& room, Share share) {
  const int64_t groups = groups_of(k);
  int64_t at = share.begin;
  while (at < share.end) {
    const int64_t tile = room.tile(at / groups), first = room.first(tile);
    const int64_t height = room.first(tile + 1) - first;
    for (; at < std::min(share.end, (first + height) * groups); at++) {
      const int64_t g = (at - first * groups) / height, m = (at - first * groups) % height;
      const float* from = x + (first + m) * k + g * GROUP;
      round_group(bytes, from, k - g * GROUP, room, at, m, height);
    }
  }
}

// The groups from one to before another, of some rows (count, K).
inline void round_part(bool bytes, const float* x, int64_t k, const Rows& room, Share rows,
                       int64_t begin, int64_t end) {
  const int64_t groups = groups_of(k);
  for (int64_t row = rows.begin; row < rows.end; row++) {
    const int64_t tile = room.tile(row), first = room.first(tile), m = row - first;
    const int64_t height = room.first(tile + 1) - first;
    for (int64_t g = begin; g < end; g++) {
      const float* from = x + row * k + g * GROUP;
      round_group(bytes, from, k - g * GROUP, room, first * groups + g * height + m, m, height);
    }
  }
}

// Room for so many quantized rows, of the calling thread, which has two such rooms.
template <int WHICH = 0>
Rows room_for(int64_t rows, int64_t k) {
  static thread_local std::vector<int8_t> data;
  static thread_local std::vector<float> scale;
  static thread_local std::vector<int32_t> start;
  const int64_t groups = rows * groups_of(k);
  int8_t* room = scratch(data, groups * GROUP * 2 + STRETCH);
  room += -(uintptr_t)room % STRETCH;
  return {room, scratch(scale, groups), scratch(start, groups), rows};
}

}  // namespace
