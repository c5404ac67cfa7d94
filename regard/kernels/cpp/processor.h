// What this processor can do.
#pragma once

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && \
    defined(__AVX512VNNI__) && defined(__AVX512VL__) && !defined(PORTABLE)
#define WIDE 1
#else
#define WIDE 0
#endif
#if defined(__AVX2__) && defined(__FMA__) && !defined(PORTABLE)
#define HALF_WIDE 1
#else
#define HALF_WIDE 0
#endif
#if WIDE || HALF_WIDE
#include <immintrin.h>
#endif

// Sums lie in registers where the loops over them are unrolled early.
#define EACH(i, count) _Pragma("GCC unroll 8") for (int i = 0; i < count; i++)
