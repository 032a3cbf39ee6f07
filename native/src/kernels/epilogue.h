// What becomes of a product's sums while they are in registers: bias, activation and multiplication, addition to y.
#pragma once

#include "simd.h"
#include "table.h"

namespace octavo::OCTAVO_ISA {

INLINE Floats silu(Floats x) { return divide(x, add(set(1.0f), exp(subtract(set(0.0f), x)))); }

// Sixteen columns of y, or as many as there are.
INLINE void put(const LinearTask& task, int64_t row, int64_t column, Floats value) {
  const int64_t columns = task.weight->columns();
  const int64_t count = columns - column;
  float* y = task.y + row * columns + column;
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
  put(task, row, panel * kLanes, with_bias(*task.weight, panel, 0, sums));
}

// The sums of all 32 lanes of a panel.
INLINE void finish(const LinearTask& task, int64_t row, int64_t panel, Floats first, Floats second) {
  const Weight& weight = *task.weight;
  first = with_bias(weight, panel, 0, first);
  second = with_bias(weight, panel, kLanes, second);
  if (weight.activation == kSilu) {
    put(task, row, panel * kLanes, multiply(silu(first), second));
  } else {
    put(task, row, panel * 2 * kLanes, first);
    put(task, row, panel * 2 * kLanes + kLanes, second);
  }
}

}  // namespace octavo::OCTAVO_ISA
