// Elementwise functions, and the norm of a row.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "vectors.h"

namespace {

// e^x by 2^n times a polynomial, without a branch; NaN stays NaN.
inline float exponential(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float magic = 12582912.0f;  // adding it rounds to a whole number
  float shifted = x * 1.44269504f + magic;
  float n = shifted - magic;
  float r = x - n * 0.693359375f + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  int32_t bits;
  std::memcpy(&bits, &shifted, 4);
  bits = (int32_t)((uint32_t)bits << 23) + 0x3f800000;
  float power;
  std::memcpy(&power, &bits, 4);
  return p * power;
}

inline float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

// The error function, to 3e-7: z times a polynomial in z^2, which is moved to -1 ... 1. Behind 3.9
// it stays. It was fitted by least squares at Chebyshev's points.
constexpr float ERF_END = 3.9f;
constexpr float ERF_POWERS[] = {
    1.567653931e-03f,  -4.050347576e-03f, 3.074359119e-03f,  -3.466252729e-03f, 1.207771637e-02f,
    -2.215592382e-02f, 3.008637861e-02f,  -4.178929018e-02f, 5.759946449e-02f,  -7.399474788e-02f,
    9.071649506e-02f,  -1.095162287e-01f, 1.346884660e-01f,  -1.810114731e-01f, 3.625839964e-01f};
inline float error_function(float x) {
  const float z = x < -ERF_END ? -ERF_END : x > ERF_END ? ERF_END : x;  // NaN stays NaN
  const float u = z * z * (2.0f / (ERF_END * ERF_END)) - 1.0f;
  float sum = ERF_POWERS[0];
#pragma GCC unroll 16
  for (int i = 1; i < 15; i++) sum = sum * u + ERF_POWERS[i];
  return z * sum;
}

enum Activation { LINEAR_, RELU, GELU, GELU_TANH, QUICK_GELU, SWISH, RELU_SQUARED, TANH, SIGMOID };

template <class F>
inline void each(float* x, int64_t count, F f) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) x[i] = f(x[i]);
}

#if WIDE

// Vectors that are computed at once: in each a product waits for the one before it.
constexpr int TOGETHER = 4;
using Several = Floats[TOGETHER];

// x = 1 / (1 + e^-x), to 3e-7: compilers divide, and clamp, with more instructions.
inline void sigmoid(Several& x) {
  Several whole, sum;
  EACH(i, TOGETHER) {
    const Floats power = _mm512_mul_ps(x[i], filled(-1.44269504f));
    x[i] = _mm512_min_ps(filled(126.0f), _mm512_max_ps(filled(-126.0f), power));  // NaN stays NaN
    whole[i] = _mm512_roundscale_ps(x[i], 0);
    x[i] = _mm512_sub_ps(x[i], whole[i]);
    sum[i] = filled(1.326697064e-03f);
  }
  // 2^x by least squares at Chebyshev's points of -1/2 ... 1/2
  for (float c : {9.675459936e-03f, 5.550742522e-02f, 2.402212173e-01f, 6.931469440e-01f, 1.0f}) {
    EACH(i, TOGETHER) sum[i] = times_plus(sum[i], x[i], filled(c));
  }
  EACH(i, TOGETHER) {
    const Floats below = plus(_mm512_scalef_ps(sum[i], whole[i]), filled(1.0f));
    const Floats nearly = _mm512_rcp14_ps(below);
    const Floats error = _mm512_fnmadd_ps(below, nearly, filled(1.0f));
    x[i] = times_plus(nearly, error, nearly);
  }
}

// x = the error function of x: see that of a number.
inline void error_function(Several& x) {
  Several square, sum;
  EACH(i, TOGETHER) {
    x[i] = _mm512_min_ps(filled(ERF_END), _mm512_max_ps(filled(-ERF_END), x[i]));
    const Floats product = _mm512_mul_ps(x[i], x[i]);
    square[i] = times_plus(product, filled(2.0f / (ERF_END * ERF_END)), filled(-1.0f));
    sum[i] = filled(ERF_POWERS[0]);
  }
#pragma GCC unroll 16
  for (int power = 1; power < 15; power++) {
    EACH(i, TOGETHER) sum[i] = times_plus(sum[i], square[i], filled(ERF_POWERS[power]));
  }
  EACH(i, TOGETHER) x[i] = _mm512_mul_ps(x[i], sum[i]);
}

// x = x f(x), where f changes several vectors.
template <class F>
inline void each_gated(float* x, int64_t count, F f) {
  constexpr int64_t STEP = TOGETHER * VECTOR;
  for (; count > 0; x += STEP, count -= STEP) {
    float last[STEP] = {};
    const bool all = count >= STEP;
    if (!all) std::memcpy(last, x, count * sizeof(float));
    float* at = all ? x : last;
    Several v, gates;
    EACH(i, TOGETHER) gates[i] = v[i] = load(at + i * VECTOR);
    f(gates);
    EACH(i, TOGETHER) store(at + i * VECTOR, _mm512_mul_ps(v[i], gates[i]));
    if (!all) std::memcpy(x, last, count * sizeof(float));
  }
}

inline void scale(Several& x, float factor) {
  EACH(i, TOGETHER) x[i] = _mm512_mul_ps(x[i], filled(factor));
}

// The activations x f(x). Returns whether this is one.
inline bool activate_gated(int kind, float* x, int64_t count) {
  if (kind == GELU) {
    each_gated(x, count, [](Several& v) {
      scale(v, 0.70710678f);
      error_function(v);
      EACH(i, TOGETHER) v[i] = times_plus(v[i], filled(0.5f), filled(0.5f));
    });
  } else if (kind == GELU_TANH) {  // 0.5 (1 + tanh u) is sigmoid(2 u)
    each_gated(x, count, [](Several& v) {
      EACH(i, TOGETHER) {
        const Floats square = _mm512_mul_ps(v[i], v[i]);
        v[i] = _mm512_mul_ps(v[i], times_plus(square, filled(0.0713548163f), filled(1.5957691216f)));
      }
      sigmoid(v);
    });
  } else if (kind == QUICK_GELU) {
    each_gated(x, count, [](Several& v) {
      scale(v, 1.702f);
      sigmoid(v);
    });
  } else if (kind == SWISH) {
    each_gated(x, count, [](Several& v) { sigmoid(v); });
  } else {
    return false;
  }
  return true;
}

#else

inline bool activate_gated(int, float*, int64_t) { return false; }

#endif

void activate(int kind, float* x, int64_t count) {
  if (activate_gated(kind, x, count)) return;
  switch (kind) {
    case RELU: return each(x, count, [](float v) { return v < 0.0f ? 0.0f : v; });
    case GELU:
      return each(x, count, [](float v) {
        return 0.5f * v * (1.0f + error_function(v * 0.70710678f));
      });
    case GELU_TANH:  // 0.5 (1 + tanh u) is sigmoid(2 u)
      return each(x, count, [](float v) {
        return v * sigmoid(1.5957691216f * (v + 0.044715f * v * v * v));
      });
    case QUICK_GELU: return each(x, count, [](float v) { return v * sigmoid(1.702f * v); });
    case SWISH: return each(x, count, [](float v) { return v * sigmoid(v); });
    case RELU_SQUARED:
      return each(x, count, [](float v) { return v < 0.0f ? 0.0f : v * v; });
    case TANH: return each(x, count, [](float v) { return 2.0f * sigmoid(2.0f * v) - 1.0f; });
    case SIGMOID: return each(x, count, [](float v) { return sigmoid(v); });
  }
}

void normalize(const float* x, float* y, int64_t width, const float* gain, const float* bias,
               float eps) {
  float sum = 0.0f, squares = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < width; i++) sum += x[i];
  float mean = sum / width;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < width; i++) squares += (x[i] - mean) * (x[i] - mean);
  float scale = 1.0f / std::sqrt(squares / width + eps);
#pragma omp simd
  for (int64_t i = 0; i < width; i++) {
    y[i] = (x[i] - mean) * scale * gain[i] + (bias ? bias[i] : 0.0f);
  }
}

// The same without subtracting the mean.
void normalize_rms(const float* x, float* y, int64_t width, const float* gain, float eps) {
  float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < width; i++) squares += x[i] * x[i];
  const float scale = 1.0f / std::sqrt(squares / width + eps);
#pragma omp simd
  for (int64_t i = 0; i < width; i++) y[i] = x[i] * scale * gain[i];
}

// activation(x[0 ... width - 1]) times x[width ... 2 width - 1].
void gate(int kind, const float* x, float* y, int64_t width) {
  std::copy_n(x, width, y);
  if (kind != LINEAR_) activate(kind, y, width);
#pragma omp simd
  for (int64_t i = 0; i < width; i++) y[i] *= x[width + i];
}

// Rotates the pairs (x[i], x[width / 2 + i]) by angles: their cosines, then their sines.
void rotate(const float* angles, float* x, int64_t width) {
  const int64_t half = width / 2;
  const float *cosine = angles, *sine = angles + half;
#pragma omp simd
  for (int64_t i = 0; i < half; i++) {
    const float first = x[i], second = x[half + i];
    x[i] = first * cosine[i] - second * sine[i];
    x[half + i] = second * cosine[i] + first * sine[i];
  }
}

}  // namespace
