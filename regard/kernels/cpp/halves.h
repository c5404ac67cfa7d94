// Numbers of 16 bits (IEEE 754 binary16: 1 sign, 5 exponent, 10 fraction).
#pragma once

#include <cstdint>
#include <cstring>

#include "processor.h"

namespace {

inline float as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline uint32_t as_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

inline float from_half(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000) << 16, size = half & 0x7fff;
  const uint32_t finite = as_bits(as_float(size << 13) * 0x1p112f);  // the exponents' difference
  return as_float(sign | (size < 0x7c00 ? finite : 0x7f800000 | size << 13));
}

// To the nearest, and of two the even one; what is too large becomes infinite.
inline uint16_t to_half(float value) {
  const uint32_t bits = as_bits(value), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
  const uint32_t tiny = as_bits(as_float(size) + 0.5f) - as_bits(0.5f);  // the sum is rounded
  const uint32_t usual = (size + 0xfff + (size >> 13 & 1) - (112u << 23)) >> 13;
  const uint32_t huge = size > 0x7f800000 ? 0x7e00 : 0x7c00;
  return (uint16_t)(sign | (size >= 0x47800000 ? huge : size < 0x38800000 ? tiny : usual));
}

inline void copy_numbers(const float* from, float* to, int64_t count) {
  std::memcpy(to, from, count * sizeof(float));
}

inline void copy_numbers(const float* from, uint16_t* to, int64_t count) {
  int64_t i = 0;
#if WIDE
  for (; i + 16 <= count; i += 16) {
    const __m512 numbers = _mm512_loadu_ps(from + i);
    _mm256_storeu_si256((__m256i*)(to + i), _mm512_cvtps_ph(numbers, _MM_FROUND_TO_NEAREST_INT));
  }
#endif
#pragma omp simd
  for (int64_t j = i; j < count; j++) to[j] = to_half(from[j]);
}

}  // namespace
