// Vectors of numbers as products use them, of VECTOR lanes of 32 bits: AVX-512's, AVX2's, or those
// that a compiler makes for any processor.
#pragma once

#include <cstdint>
#include <cstring>

#include "processor.h"

namespace {

#if WIDE

using Floats = __m512;
using Ints = __m512i;
constexpr int VECTOR = 16;

inline Floats filled(float x) { return _mm512_set1_ps(x); }
inline Ints filled(int32_t x) { return _mm512_set1_epi32(x); }
inline Floats load(const float* x) { return _mm512_loadu_ps(x); }
inline void store(float* x, Floats v) { _mm512_storeu_ps(x, v); }
inline Ints load_ints(const void* x) { return _mm512_loadu_si512(x); }
inline Floats plus(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats times_plus(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats as_floats(Ints v) { return _mm512_cvtepi32_ps(v); }
inline Floats not_negative(Floats v) { return _mm512_max_ps(_mm512_setzero_ps(), v); }

// The same four bytes in all lanes. This and the sums below are written out, since compilers
// surround the intrinsics with copies of the sums.
inline Ints repeated(const void* four) {
  typedef int32_t __attribute__((may_alias, aligned(1))) Any;
  Ints v;
  asm("vpbroadcastd %1, %0" : "=v"(v) : "m"(*(const Any*)four));
  return v;
}

// Sums += four bytes without sign times four with.
inline void add_fours(Ints& sum, Ints a, Ints b) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
}

// Sums += two bfloat16 times two others, the second first.
inline void add_pairs(Floats& sum, Ints a, Ints b) {
#if defined(__AVX512BF16__)
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
#else
  const Ints high = _mm512_set1_epi32((int)0xffff0000);
  const Ints second = _mm512_and_si512(a, high), first = _mm512_slli_epi32(a, 16);
  sum = _mm512_fmadd_ps(_mm512_castsi512_ps(second),
                        _mm512_castsi512_ps(_mm512_and_si512(b, high)), sum);
  sum = _mm512_fmadd_ps(_mm512_castsi512_ps(first),
                        _mm512_castsi512_ps(_mm512_slli_epi32(b, 16)), sum);
#endif
}

#else

// The same four bytes in all lanes.
inline int32_t word(const void* four) {
  int32_t bits;
  std::memcpy(&bits, four, sizeof(bits));
  return bits;
}

#if HALF_WIDE

using Floats = __m256;
using Ints = __m256i;
constexpr int VECTOR = 8;

inline Floats filled(float x) { return _mm256_set1_ps(x); }
inline Ints filled(int32_t x) { return _mm256_set1_epi32(x); }
inline Floats load(const float* x) { return _mm256_loadu_ps(x); }
inline void store(float* x, Floats v) { _mm256_storeu_ps(x, v); }
inline Ints load_ints(const void* x) { return _mm256_loadu_si256((const __m256i*)x); }
inline Floats plus(Floats a, Floats b) { return _mm256_add_ps(a, b); }
inline Floats times_plus(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Floats as_floats(Ints v) { return _mm256_cvtepi32_ps(v); }
inline Floats not_negative(Floats v) { return _mm256_max_ps(_mm256_setzero_ps(), v); }

inline void add_fours(Ints& sum, Ints a, Ints b) {
#if defined(__AVXVNNI__)
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
#else
  // In 16 bits, the even and the odd ones: products of 8 bits could overflow in pairs.
  const Ints even = _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8), odd = _mm256_srai_epi16(b, 8);
  const Ints low = _mm256_and_si256(a, _mm256_set1_epi16(0xff)), high = _mm256_srli_epi16(a, 8);
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(low, even));
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(high, odd));
#endif
}

inline void add_pairs(Floats& sum, Ints a, Ints b) {
  const Ints high = _mm256_set1_epi32((int)0xffff0000);
  const Ints second = _mm256_and_si256(a, high), first = _mm256_slli_epi32(a, 16);
  sum = _mm256_fmadd_ps(_mm256_castsi256_ps(second),
                        _mm256_castsi256_ps(_mm256_and_si256(b, high)), sum);
  sum = _mm256_fmadd_ps(_mm256_castsi256_ps(first),
                        _mm256_castsi256_ps(_mm256_slli_epi32(b, 16)), sum);
}

#else

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef int16_t Shorts __attribute__((vector_size(64)));
constexpr int VECTOR = 16;

inline Floats filled(float x) { return Floats{} + x; }
inline Ints filled(int32_t x) { return Ints{} + x; }
inline Floats load(const float* x) {
  Floats v;
  std::memcpy(&v, x, sizeof(v));
  return v;
}
inline void store(float* x, Floats v) { std::memcpy(x, &v, sizeof(v)); }
inline Ints load_ints(const void* x) {
  Ints v;
  std::memcpy(&v, x, sizeof(v));
  return v;
}
inline Floats plus(Floats a, Floats b) { return a + b; }
inline Floats times_plus(Floats a, Floats b, Floats c) { return a * b + c; }
inline Floats as_floats(Ints v) { return __builtin_convertvector(v, Floats); }
inline Floats not_negative(Floats v) { return v < 0.0f ? Floats{} : v; }

inline void add_fours(Ints& sum, Ints a, Ints b) {
  // Products of 8 bits fit into 16; those of the even and of the odd bytes lie in pairs.
  const Ints even = (Ints)((Shorts)(a & 0xff00ff) * ((Shorts)b << 8 >> 8));
  const Ints odd = (Ints)((Shorts)(a >> 8 & 0xff00ff) * ((Shorts)b >> 8));
  sum += (even << 16 >> 16) + (even >> 16) + (odd << 16 >> 16) + (odd >> 16);
}

inline void add_pairs(Floats& sum, Ints a, Ints b) {
  const int32_t high = (int32_t)0xffff0000;
  sum += (Floats)(a & high) * (Floats)(b & high);
  sum += (Floats)(a << 16) * (Floats)(b << 16);
}

#endif

inline Ints repeated(const void* four) { return filled(word(four)); }

#endif

// As many numbers as there are, zeros behind them.
inline Floats load_some(const float* x, int64_t count) {
  if (count >= VECTOR) return load(x);
  float all[VECTOR] = {};
  if (count > 0) std::memcpy(all, x, count * sizeof(float));
  return load(all);
}

inline void store_some(float* x, Floats v, int64_t count) {
  if (count >= VECTOR) return store(x, v);
  float all[VECTOR];
  store(all, v);
  if (count > 0) std::memcpy(x, all, count * sizeof(float));
}

}  // namespace
