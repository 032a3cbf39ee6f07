// What becomes of a product's sums while they are in registers: bias, activation and multiplication, addition to y.
#pragma once

#include "simd.h"
#include "table.h"

namespace octavo::OCTAVO_ISA {

INLINE Floats silu(Floats x) { return divide(x, add(set(1.0f), exp(subtract(set(0.0f), x)))); }

// x Phi(x) (Hendrycks and Gimpel, 2016), with Abramowitz and Stegun's 7.1.26 for the normal distribution's tail: 7.5e-8.
INLINE Floats gelu(Floats x) {
  const Floats zero = set(0.0f), magnitude = maximum(x, subtract(zero, x));
  const Floats t = divide(set(1.0f), fma(magnitude, set(0.3275911f * 0.70710678f), set(1.0f)));
  Floats tail = set(0.5f * 1.061405429f);
  tail = fma(tail, t, set(0.5f * -1.453152027f));
  tail = fma(tail, t, set(0.5f * 1.421413741f));
  tail = fma(tail, t, set(0.5f * -0.284496736f));
  tail = fma(tail, t, set(0.5f * 0.254829592f));
  tail = multiply(multiply(tail, t), exp(multiply(multiply(x, x), set(-0.5f))));
  return subtract(maximum(x, zero), multiply(magnitude, tail));
}

// The same by tanh: x / 2 (1 + tanh(u)) = x / (1 + e^(-2u)).
INLINE Floats gelu_tanh(Floats x) {
  const Floats cube = multiply(multiply(x, x), multiply(x, set(0.044715f)));
  return divide(x, add(set(1.0f), exp(multiply(add(x, cube), set(-2.0f * 0.79788456f)))));
}

// x sigmoid(1.702 x) of x up to 7 (gpt-oss).
INLINE Floats clamped_silu(Floats x) {
  x = minimum(set(7.0f), x);
  return divide(x, add(set(1.0f), exp(multiply(x, set(-1.702f)))));
}

// Apart from the products' loops, which have no registers to spare.
[[gnu::noinline, maybe_unused]] static void activate_otherwise(int32_t function, Floats& x) {
  if (function == kGelu) x = gelu(x);
  else if (function == kGeluTanh) x = gelu_tanh(x);
  else if (function == kClampedSilu) x = clamped_silu(x);
  else x = maximum(set(0.0f), x);
}

INLINE Floats activate(int32_t function, Floats x) {
  if (function == kSilu) return silu(x);
  activate_otherwise(function, x);
  return x;
}

// What an activated gate is multiplied by.
INLINE Floats gated(int32_t function, Floats up) {
  return function == kClampedSilu ? add(minimum(set(7.0f), maximum(set(-7.0f), up)), set(1.0f)) : up;
}

INLINE Floats activate_ungated(const Weight& weight, Floats x) {
  return weight.activation == kNoActivation ? x : activate(weight.activation - kUngated, x);
}

// Where a block's results of a panel go: by the time that they are there so are the lines, for which the stores would have
// to wait. Those of few rows are in the cache as it is.
INLINE void fetch_results(const LinearTask& task, int64_t panel, int64_t row, int64_t rows) {
  if (task.blocks < 4) return;
  const Weight& weight = *task.weight;
  const int64_t width = weight.gated() ? weight.panel_width / 2 : weight.panel_width;
  const float* y = task.y + row * task.stride + panel * width;
  for (int64_t r = 0; r < rows; ++r, y += task.stride)
    for (int64_t c = 0; c < width; c += kLanes) __builtin_prefetch(y + c, 1);
}

// Sixteen columns of y, or as many as there are.
INLINE void put(const LinearTask& task, int64_t row, int64_t column, Floats value) {
  const int64_t count = task.weight->columns() - column;
  float* y = task.y + row * task.stride + column;
  if (count >= kLanes) {
    store(y, task.accumulate ? add(load(y), value) : value);
  } else if (count > 0) {
    store_some(y, task.accumulate ? add(load_some(y, count), value) : value, count);
  }
}

INLINE Floats with_bias(const Weight& weight, int64_t panel, int64_t lane, Floats value) {
  return weight.bias == nullptr ? value : add(value, load(weight.bias + panel * weight.panel_width + lane));
}

// The sums of a panel's first 16 lanes, for a weight whose panels have no more.
INLINE void finish(const LinearTask& task, int64_t row, int64_t panel, Floats sums) {
  put(task, row, panel * kLanes, activate_ungated(*task.weight, with_bias(*task.weight, panel, 0, sums)));
}

// The sums of all 32 lanes of a panel.
INLINE void finish(const LinearTask& task, int64_t row, int64_t panel, Floats first, Floats second) {
  const Weight& weight = *task.weight;
  first = with_bias(weight, panel, 0, first);
  second = with_bias(weight, panel, kLanes, second);
  if (weight.gated()) {
    put(task, row, panel * kLanes, multiply(activate(weight.activation, first), gated(weight.activation, second)));
  } else {
    put(task, row, panel * 2 * kLanes, activate_ungated(weight, first));
    put(task, row, panel * 2 * kLanes + kLanes, activate_ungated(weight, second));
  }
}

}  // namespace octavo::OCTAVO_ISA
