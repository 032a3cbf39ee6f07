// Scales and offsets of quantized weights as they were published: for each group of inputs of a panel of 32 outputs a head of
// 32 scales (float32, bfloat16 or float16) and then 32 offsets: none, zeros of 8 bits, or least values of float16.
//
// A panel's heads lie side by side before its codes, so that codes of every kind begin at a cache line.
#pragma once

#include <cstring>

#include "simd.h"
#include "table.h"

namespace octavo::OCTAVO_ISA {

constexpr int64_t kHeadPanel = 2 * kLanes;
constexpr int64_t kHeadAlignment = 64;

INLINE int64_t offset_bytes(const Weight& weight) {
  return weight.offset == kNoOffset ? 0 : weight.offset == kZero ? 1 : 2;
}
INLINE int64_t head_bytes(const Weight& weight) {
  return kHeadPanel * (element_bytes(weight.scale) + offset_bytes(weight));
}
// Of all heads of a panel.
INLINE int64_t heads_bytes(const Weight& weight, int64_t heads) {
  return ceil_div(heads * head_bytes(weight), kHeadAlignment) * kHeadAlignment;
}

INLINE Floats load_scales(const Weight& weight, const char* head, int half) {
  const int64_t first = half * kLanes;
  switch (weight.scale) {
    case kFloat32: return load(reinterpret_cast<const float*>(head) + first);
    case kBFloat16: return load_bf16(reinterpret_cast<const uint16_t*>(head) + first);
    default: return load_f16(reinterpret_cast<const uint16_t*>(head) + first);
  }
}

// Zeros are stored less 128, as signed bytes.
INLINE Floats load_zeros(const char* offsets, int half) {
  return add(load_i8(reinterpret_cast<const int8_t*>(offsets) + half * kLanes), set(128.0f));
}

// A head in registers; `least`: what a code of 0 stands for, where there are offsets.
struct Head {
  Floats scales[2], least[2];
  bool has_least;
};

INLINE Head load_head(const Weight& weight, const char* head) {
  Head loaded;
  loaded.has_least = weight.offset != kNoOffset;
  const char* offsets = head + kHeadPanel * element_bytes(weight.scale);
  UNROLL for (int half = 0; half < 2; ++half) {
    loaded.scales[half] = load_scales(weight, head, half);
    if (weight.offset == kLeast)
      loaded.least[half] = load_f16(reinterpret_cast<const uint16_t*>(offsets) + half * kLanes);
    else if (weight.offset == kZero)
      loaded.least[half] = multiply(loaded.scales[half], subtract(set(0.0f), load_zeros(offsets, half)));
    else
      loaded.least[half] = set(0.0f);
  }
  return loaded;
}

// Group `group` of one row of coded ones.
INLINE void put_head(const Weight& weight, const CodedRows& row, int64_t group, char* head, int64_t lane) {
  const int64_t bytes = element_bytes(weight.scale);
  std::memcpy(head + lane * bytes, row.scales + group * bytes, static_cast<size_t>(bytes));
  char* offsets = head + kHeadPanel * bytes;
  if (weight.offset == kZero) offsets[lane] = static_cast<char>(row.offsets[group] ^ 0x80);
  if (weight.offset == kLeast) std::memcpy(offsets + lane * 2, row.offsets + group * 2, 2);
}

// What one lane's codes stand for: scale * (q - zero), or scale * q + least.
struct LaneHead {
  float scale, zero, least;
};

INLINE LaneHead lane_head(const Weight& weight, const char* head, int64_t lane, float centre) {
  alignas(64) float values[kLanes];
  const int half = static_cast<int>(lane / kLanes);
  const char* offsets = head + kHeadPanel * element_bytes(weight.scale);
  store(values, load_scales(weight, head, half));
  LaneHead result{values[lane % kLanes], centre, 0.0f};
  if (weight.offset == kZero) {
    store(values, load_zeros(offsets, half));
    result.zero = values[lane % kLanes];
  } else if (weight.offset == kLeast) {
    store(values, load_f16(reinterpret_cast<const uint16_t*>(offsets) + half * kLanes));
    result.zero = 0.0f;
    result.least = values[lane % kLanes];
  }
  return result;
}

}  // namespace octavo::OCTAVO_ISA
