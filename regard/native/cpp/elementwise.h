// What is done to each number, or each row.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

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

enum Activation { LINEAR_, RELU, GELU, GELU_TANH, QUICK_GELU, SWISH, RELU_SQUARED, TANH, SIGMOID };

template <class F>
inline void each(float* x, int64_t count, F f) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) x[i] = f(x[i]);
}

void activate(int kind, float* x, int64_t count) {
  switch (kind) {
    case RELU: return each(x, count, [](float v) { return v < 0.0f ? 0.0f : v; });
    case GELU:
      return each(x, count, [](float v) { return 0.5f * v * (1.0f + erff(v * 0.70710678f)); });
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

}  // namespace
