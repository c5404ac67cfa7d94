// Sixteen numbers at once, read and written as float32 or bfloat16 and computed in float32; and the
// random numbers of dropout. Compilers split the lanes where the processor's registers are
// narrower.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "processor.h"

namespace learning {

constexpr int64_t LANES = 16;

typedef float Lanes __attribute__((vector_size(64)));
typedef int32_t IntLanes __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));

struct bfloat16 {
  uint16_t bits;
};

inline Lanes lanes(float x) { return Lanes{} + x; }

inline IntLanes widened(Halves x) {
#if WIDE
  return (IntLanes)_mm512_cvtepu16_epi32((__m256i)x);
#else
  return __builtin_convertvector(x, IntLanes);
#endif
}

// Rounds to nearest, ties to even; NaN stays NaN.
inline Halves to_halves(Lanes x) {
#if defined(__AVX512BF16__) && WIDE
  return (Halves)_mm512_cvtneps_pbh((__m512)x);
#else
  typedef uint32_t Bits __attribute__((vector_size(64)));
  const Bits bits = (Bits)x, rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return __builtin_convertvector(x == x ? rounded : Bits{} + 0x7fc0, Halves);
#endif
}

// The first `count` numbers; zeros in the lanes behind them.
inline Lanes load(const float* x, int64_t count) {
  Lanes found = {};
  std::memcpy(&found, x, count * 4);
  return found;
}

inline Lanes load(const bfloat16* x, int64_t count) {
  Halves found = {};
  std::memcpy(&found, x, count * 2);
  return (Lanes)(widened(found) << 16);
}

inline void store(Lanes x, float* to, int64_t count) { std::memcpy(to, &x, count * 4); }

inline void store(Lanes x, bfloat16* to, int64_t count) {
  const Halves half = to_halves(x);
  std::memcpy(to, &half, count * 2);
}

// Calls f(index, number of lanes): 16 lanes, fewer at the end.
template <class F>
inline void by_lanes(int64_t count, F f) {
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) f(i, LANES);
  if (i < count) f(i, count - i);
}

// Zeros in the lanes from `count` on.
inline Lanes first_lanes(Lanes x, int64_t count) {
  return count == LANES ? x : load((float*)&x, count);
}

inline float sum_of(Lanes x) {
  float sum = 0.0f;
  for (int64_t i = 0; i < LANES; i++) sum += x[i];
  return sum;
}

inline Lanes root(Lanes x) {
#if WIDE
  return (Lanes)_mm512_sqrt_ps((__m512)x);
#else
  for (int64_t i = 0; i < LANES; i++) x[i] = std::sqrt(x[i]);
  return x;
#endif
}

inline float max_of(Lanes x) {
  float largest = x[0];
  for (int64_t i = 1; i < LANES; i++) largest = std::max(largest, x[i]);
  return largest;
}

inline Lanes clamped(Lanes x, float low, float high) {
  x = x < low ? lanes(low) : x;  // NaN stays NaN
  return x > high ? lanes(high) : x;
}

// As `exponential` of one number; 0.0 below -87.
inline Lanes exponential(Lanes x) {
  const float magic = 12582912.0f;
  const Lanes z = clamped(x, -87.0f, 88.0f), shifted = z * 1.44269504f + magic, n = shifted - magic;
  const Lanes r = z - n * 0.693359375f + n * 2.12194440e-4f;
  Lanes p = lanes(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const Lanes power = (Lanes)(((IntLanes)shifted << 23) + 0x3f800000);
  return x < -87.0f ? Lanes{} : p * power;
}

// An element is dropped where 15 bits of its random number are below the threshold; 0 drops none.
struct Drop {
  uint64_t seed;
  int64_t threshold;
};

constexpr int64_t DRAWS = 1 << 15;  // values of 15 bits
constexpr int64_t PER_DRAW = 4;     // elements that one random number of 64 bits decides over

// Draw number `n` of Steele et al. 2014, "Fast splittable pseudorandom number generators".
inline uint64_t draw(uint64_t seed, uint64_t n) {
  uint64_t z = seed + (n + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

// Random numbers for `count` elements, from draw `first` on, and for up to 127 more.
void draw_all(uint64_t seed, uint64_t first, uint16_t* out, int64_t count) {
  constexpr int64_t CHUNK = 32;
  for (int64_t at = 0; at < count; at += CHUNK * PER_DRAW, first += CHUNK) {
    uint64_t draws[CHUNK];
#pragma omp simd
    for (int64_t i = 0; i < CHUNK; i++) draws[i] = draw(seed, first + i);
    std::memcpy(out + at, draws, sizeof draws);
  }
}

constexpr int64_t draws_capacity(int64_t count) { return count + 127; }

// Dropout: elements that are not dropped are scaled, the others become 0.
struct DropMask {
  int32_t threshold;
  float scale;
  explicit DropMask(Drop drop)
      : threshold((int32_t)drop.threshold),
        scale((float)DRAWS / (float)(DRAWS - drop.threshold)) {}

  // True in the lanes of elements that are not dropped.
  inline IntLanes keep_lanes(const uint16_t* draws) const {
    Halves bits;
    std::memcpy(&bits, draws, sizeof bits);
    return (widened(bits) & (int32_t)(DRAWS - 1)) >= threshold;
  }

  inline Lanes apply(Lanes x, const uint16_t* draws) const {
    return keep_lanes(draws) ? x * scale : Lanes{};
  }
};

}  // namespace learning
