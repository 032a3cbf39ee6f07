// Row by row: RMS norm, activation, rotation; and the table of all kernels of the instruction set.
#include <cmath>

#include "epilogue.h"
#include "parts.h"

namespace octavo::OCTAVO_ISA {
namespace {

// Four partial sums, so that the additions do not wait for each other; always the same ones for a width.
INLINE float sum_of_squares(const float* x, int64_t width) {
  Floats sums[4] = {set(0.0f), set(0.0f), set(0.0f), set(0.0f)};
  int64_t i = 0;
  for (; i + 4 * kLanes <= width; i += 4 * kLanes) {
    UNROLL for (int j = 0; j < 4; ++j) {
      const Floats value = load(x + i + j * kLanes);
      sums[j] = fma(value, value, sums[j]);
    }
  }
  for (; i < width; i += kLanes) {
    const Floats value = width - i < kLanes ? load_some(x + i, width - i) : load(x + i);
    sums[0] = fma(value, value, sums[0]);
  }
  return sum(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

// Neighbours are pairs (the form of the original paper, and of GPT-J).
void rotate_neighbours(float* row, int64_t heads, int64_t head_size, const float* cos_sin, int64_t half) {
  for (int64_t head = 0; head < heads; ++head, row += head_size) {
    for (int64_t i = 0; i < half; ++i) {
      const float a = row[2 * i], b = row[2 * i + 1], cosine = cos_sin[i], sine = cos_sin[half + i];
      row[2 * i] = a * cosine - b * sine;
      row[2 * i + 1] = b * cosine + a * sine;
    }
  }
}

}  // namespace

void rms_norm(const float* x, const float* weight, int64_t rows, int64_t width, float epsilon, float* y, bool accumulate) {
  for (int64_t row = 0; row < rows; ++row, x += width, y += width) {
    const Floats scale = set(1.0f / std::sqrt(sum_of_squares(x, width) / static_cast<float>(width) + epsilon));
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) {
      const Floats normed = multiply(multiply(load(x + i), scale), load(weight + i));
      store(y + i, accumulate ? add(load(y + i), normed) : normed);
    }
    if (i < width) {
      const int64_t count = width - i;
      const Floats normed = multiply(multiply(load_some(x + i, count), scale), load_some(weight + i, count));
      store_some(y + i, accumulate ? add(load_some(y + i, count), normed) : normed, count);
    }
  }
}

void silu_and_multiply(const float* x, int64_t rows, int64_t width, float* y) {
  for (int64_t row = 0; row < rows; ++row, x += 2 * width, y += width) {
    const float* up = x + width;
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) store(y + i, multiply(silu(load(x + i)), load(up + i)));
    if (i < width) {
      const int64_t count = width - i;
      store_some(y + i, multiply(silu(load_some(x + i, count)), load_some(up + i, count)), count);
    }
  }
}

void rotate(float* row, int64_t heads, int64_t head_size, const float* cos_sin, int64_t rotary, bool interleaved) {
  const int64_t half = rotary / 2;
  if (interleaved) return rotate_neighbours(row, heads, head_size, cos_sin, half);
  for (int64_t head = 0; head < heads; ++head, row += head_size) {
    for (int64_t i = 0; i < half; i += kLanes) {
      const int64_t count = half - i < kLanes ? half - i : kLanes;
      const bool whole = count == kLanes;
      float* first = row + i;
      float* second = row + half + i;
      const Floats a = whole ? load(first) : load_some(first, count);
      const Floats b = whole ? load(second) : load_some(second, count);
      const Floats cosine = whole ? load(cos_sin + i) : load_some(cos_sin + i, count);
      const Floats sine = whole ? load(cos_sin + half + i) : load_some(cos_sin + half + i, count);
      const Floats turned_a = fnma(b, sine, multiply(a, cosine));
      const Floats turned_b = fma(a, sine, multiply(b, cosine));
      if (whole) {
        store(first, turned_a);
        store(second, turned_b);
      } else {
        store_some(first, turned_a, count);
        store_some(second, turned_b, count);
      }
    }
  }
}

extern const Kernels kernels = {
    OCTAVO_ISA_NAME,   linear_kernels, attention_kernels, cache_writes, rms_norm,
    layer_norm,        silu_and_multiply, soft_cap,       put_scaled,   rotate,
    block_size,        dequantize,     sampling_scratch_bytes, sample_row, score_row,
};

}  // namespace octavo::OCTAVO_ISA
