// Scales and offsets of quantized weights as they were published: for each group of inputs of a panel of 32 outputs a head
// of 32 scales (float32, bfloat16 or float16) and then 32 offsets: none, zeros of 8 bits, or least values of float16. Or
// scales and least values of signed bytes, for which 32 float16 factors of scales, and as many of least values, stand for
// each block of 256 inputs.
//
// A panel begins with its factors, then its heads lie side by side before its codes, so that codes of every kind begin at a
// cache line.
#pragma once

#include <cstring>

#include "simd.h"
#include "table.h"

namespace octavo::OCTAVO_ISA {

constexpr int64_t kHeadPanel = 2 * kLanes;
constexpr int64_t kHeadAlignment = 64;
constexpr int64_t kFactorsBytes = 2 * kHeadPanel;  // of a block's factors of scales, or of least values

INLINE int64_t head_bytes(const Weight& weight) {
  return kHeadPanel * (scale_bytes(weight.scale) + offset_bytes(weight.scale, weight.offset));
}
// Of all factors and heads of a panel.
INLINE int64_t heads_bytes(const Weight& weight, int64_t heads) {
  return ceil_div(weight.row_factors() * kFactorsBytes + heads * head_bytes(weight), kHeadAlignment) * kHeadAlignment;
}

// The factors and the head of group `group` of a panel.
template <class Byte>
struct HeadPlace {
  Byte* factors;
  Byte* head;
};
template <class Byte>
INLINE HeadPlace<Byte> head_place(const Weight& weight, Byte* panel, int64_t group) {
  return {panel + group * weight.group / kBlockInputs * weight.block_factors() * kFactorsBytes,
          panel + weight.row_factors() * kFactorsBytes + group * head_bytes(weight)};
}

// Not of signed bytes, which have factors.
INLINE Floats load_scales(const Weight& weight, const char* head, int half) {
  const int64_t first = half * kLanes;
  switch (weight.scale) {
    case kFloat32: return load(reinterpret_cast<const float*>(head) + first);
    case kBFloat16: return load_bf16(reinterpret_cast<const uint16_t*>(head) + first);
    default: return load_f16(reinterpret_cast<const uint16_t*>(head) + first);
  }
}

// Half a head's signed bytes, or half of the least values of such a head, by their factors: exact in float32.
INLINE Floats load_products(const char* bytes, const char* factors, int half) {
  return multiply(load_f16(reinterpret_cast<const uint16_t*>(factors) + half * kLanes),
                  load_i8(reinterpret_cast<const int8_t*>(bytes) + half * kLanes));
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

INLINE Head load_head(const Weight& weight, const char* panel, int64_t group) {
  Head loaded;
  loaded.has_least = weight.offset != kNoOffset;
  const auto [factors, head] = head_place(weight, panel, group);
  const char* offsets = head + kHeadPanel * scale_bytes(weight.scale);
  UNROLL for (int half = 0; half < 2; ++half) {
    if (weight.scale == kBytesAndFactors) {
      loaded.scales[half] = load_products(head, factors, half);
      loaded.least[half] = loaded.has_least ? load_products(offsets, factors + kFactorsBytes, half) : set(0.0f);
      continue;
    }
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

// The heads of one row of coded ones.
INLINE void put_heads(const Weight& weight, const CodedRows& row, char* panel, int64_t lane) {
  const int64_t bytes = scale_bytes(weight.scale), least_bytes = offset_bytes(weight.scale, weight.offset);
  for (int64_t group = 0; group < row.groups; ++group) {
    char* head = head_place(weight, panel, group).head;
    std::memcpy(head + lane * bytes, row.scales + group * bytes, static_cast<size_t>(bytes));
    char* offsets = head + kHeadPanel * bytes;
    if (weight.offset == kZero) offsets[lane] = static_cast<char>(row.offsets[group] ^ 0x80);
    if (weight.offset == kLeast) std::memcpy(offsets + lane * least_bytes, row.offsets + group * least_bytes, least_bytes);
  }
  for (int64_t i = 0; i < weight.row_factors(); ++i)
    std::memcpy(panel + i * kFactorsBytes + lane * 2, row.factors + i * 2, 2);
}

// What one lane's codes stand for: scale * (q - zero), or scale * q + least.
struct LaneHead {
  float scale, zero, least;
};

INLINE LaneHead lane_head(const Weight& weight, const char* panel, int64_t group, int64_t lane, float centre) {
  const int half = static_cast<int>(lane / kLanes);
  const auto of_lane = [&](const Floats& values) __attribute__((always_inline)) {
    alignas(64) float all[kLanes];
    store(all, values);
    return all[lane % kLanes];
  };
  const Head head = load_head(weight, panel, group);
  const float scale = of_lane(head.scales[half]);
  if (weight.offset == kLeast) return {scale, 0.0f, of_lane(head.least[half])};
  if (weight.offset == kNoOffset) return {scale, centre, 0.0f};
  const char* offsets = head_place(weight, panel, group).head + kHeadPanel * scale_bytes(weight.scale);
  return {scale, of_lane(load_zeros(offsets, half)), 0.0f};
}

}  // namespace octavo::OCTAVO_ISA
