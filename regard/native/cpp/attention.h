// Attention of one query over a cache or a memory.
#pragma once

#include <algorithm>
#include <cstdint>

#include "elementwise.h"

namespace {

// One query over `count` keys and values that lie `step` apart.
void attend(const float* query, const float* keys, const float* values, int64_t count,
            int64_t step, int64_t width, float scale, float* weights, float* context) {
  for (int64_t i = 0; i < width; i++) context[i] = 0.0f;
  if (count == 0) return;
  int64_t s = 0;
  for (; s + 4 <= count; s += 4) {
    const float *a = keys + s * step, *b = a + step, *c = b + step, *d = c + step;
    float p = 0.0f, q = 0.0f, r = 0.0f, t = 0.0f;
#pragma omp simd reduction(+ : p, q, r, t)
    for (int64_t i = 0; i < width; i++) {
      p += query[i] * a[i], q += query[i] * b[i], r += query[i] * c[i], t += query[i] * d[i];
    }
    weights[s] = p, weights[s + 1] = q, weights[s + 2] = r, weights[s + 3] = t;
  }
  for (; s < count; s++) {
    float p = 0.0f;
#pragma omp simd reduction(+ : p)
    for (int64_t i = 0; i < width; i++) p += query[i] * keys[s * step + i];
    weights[s] = p;
  }
  float most = weights[0], sum = 0.0f;
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < count; i++) most = std::max(most, weights[i]);
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; i++) {
    weights[i] = exponential((weights[i] - most) * scale);
    sum += weights[i];
  }
  for (s = 0; s + 4 <= count; s += 4) {
    const float *a = values + s * step, *b = a + step, *c = b + step, *d = c + step;
    const float p = weights[s], q = weights[s + 1], r = weights[s + 2], t = weights[s + 3];
#pragma omp simd
    for (int64_t i = 0; i < width; i++) context[i] += p * a[i] + q * b[i] + r * c[i] + t * d[i];
  }
  for (; s < count; s++) {
#pragma omp simd
    for (int64_t i = 0; i < width; i++) context[i] += weights[s] * values[s * step + i];
  }
#pragma omp simd
  for (int64_t i = 0; i < width; i++) context[i] /= sum;
}

}  // namespace
