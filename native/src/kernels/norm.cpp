// Row by row: layer norm, soft cap, scaled rows.
#include <cmath>

#include "parts.h"
#include "simd.h"

namespace octavo::OCTAVO_ISA {
namespace {

INLINE Floats load_up_to(const float* p, int64_t count) { return count < kLanes ? load_some(p, count) : load(p); }
INLINE void store_up_to(float* p, Floats a, int64_t count) {
  if (count < kLanes) store_some(p, a, count);
  else store(p, a);
}

// Lanes behind the end stay out of both sums.
INLINE float mean_of(const float* x, int64_t width) {
  Floats total = set(0.0f);
  for (int64_t i = 0; i < width; i += kLanes) total = add(total, load_up_to(x + i, width - i));
  return sum(total) / static_cast<float>(width);
}

INLINE float variance_of(const float* x, int64_t width, float mean) {
  Floats total = set(0.0f);
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    const Floats difference = subtract(load(x + i), set(mean));
    total = fma(difference, difference, total);
  }
  float rest = 0.0f;
  for (; i < width; ++i) rest += (x[i] - mean) * (x[i] - mean);
  return (sum(total) + rest) / static_cast<float>(width);
}

}  // namespace

void layer_norm(const float* x, const float* weight, const float* bias, int64_t rows, int64_t width, float epsilon,
                float* y) {
  for (int64_t row = 0; row < rows; ++row, x += width, y += width) {
    const float mean = mean_of(x, width);
    const Floats scale = set(1.0f / std::sqrt(variance_of(x, width, mean) + epsilon));
    for (int64_t i = 0; i < width; i += kLanes) {
      const int64_t count = width - i;
      const Floats normed = multiply(subtract(load_up_to(x + i, count), set(mean)), scale);
      const Floats shift = bias == nullptr ? set(0.0f) : load_up_to(bias + i, count);
      store_up_to(y + i, fma(normed, load_up_to(weight + i, count), shift), count);
    }
  }
}

// By tanh(x) = 1 - 2 / (e^(2x) + 1).
void soft_cap(float* x, int64_t count, float cap) {
  const Floats one = set(1.0f), two = set(2.0f);
  for (int64_t i = 0; i < count; i += kLanes) {
    const Floats power = exp(multiply(load_up_to(x + i, count - i), set(2.0f / cap)));
    store_up_to(x + i, multiply(set(cap), subtract(one, divide(two, add(power, one)))), count - i);
  }
}

void put_scaled(const float* x, int64_t count, float scale, float* y, bool accumulate) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const Floats value = multiply(load_up_to(x + i, count - i), set(scale));
    store_up_to(y + i, accumulate ? add(load_up_to(y + i, count - i), value) : value, count - i);
  }
}

}  // namespace octavo::OCTAVO_ISA
