// The layout of quantized weights and of the activations that meet them, and how activations are rounded.
//
// Everything is a product of unsigned bytes by signed ones, summed exactly. Weights: int8 is stored as q + 128, with one
// scale for each output; int4 as q in [0, 15], w = scale q + least, with both for each output and group of inputs.
// Activations are rounded within each group to 8 bits, or to 16 that are stored as two signed bytes 256 h + l: `planes`. The
// groups of int8 are those of its activations alone: 64 inputs in 8 bits, all of them in 16.
//
// A panel holds 32 outputs: in int8 their scales and then steps, each of four neighbouring inputs of every output; in int4
// for each group the scales, the least values and the group's steps, whose bytes hold output i in the low half and i + 16 in
// the high one. A packed row block holds for each group: a scale for each row; a number for each row and plane (see Bytes
// and Nibbles); and the activations.
#pragma once

#include <cstring>

#include "formats.h"
#include "integers.h"
#include "table.h"

namespace octavo::OCTAVO_ISA {

constexpr int64_t kQuantizedPanel = 32;
constexpr int64_t kStepInputs = 4;
constexpr int64_t kInputsUnit = 64;  // inputs are filled up to a multiple: a tile's depth

// Halves of a panel have 16 outputs.
struct Bytes {
  static constexpr int64_t panel_bytes = 128, group_bytes = 0, step_bytes = 128;  // scales; nothing; inputs
  static constexpr int offset = 128;
  INLINE void load_step(const char* p, Ints (&weights)[2]) {
    weights[0] = load_bytes(p);
    weights[1] = load_bytes(p + 64);
  }
  // A row's numbers are -128 times the sums of its planes: what products of q + 128 are to begin with.
  INLINE int32_t row_number(int32_t plane_sum, float, int64_t) { return -offset * plane_sum; }
  INLINE Ints first_sum(const int32_t* numbers, int unit) { return set_int(numbers[unit]); }
  INLINE Floats add_group(const char*, int, float scale, float, Floats products, Floats total) {
    return fma(set(scale), products, total);
  }
  INLINE Floats scaled(const char* panel, int half, Floats total) {
    return multiply(load(reinterpret_cast<const float*>(panel) + half * kLanes), total);
  }
};

struct Nibbles {
  static constexpr int64_t panel_bytes = 0, group_bytes = 128, step_bytes = 64;
  INLINE void load_step(const char* p, Ints (&weights)[2]) {
    const Ints both = load_bytes(p);
    weights[0] = low_nibbles(both);
    weights[1] = high_nibbles(both);
  }
  INLINE Floats scales(const char* group, int half) {
    return load_f16(reinterpret_cast<const uint16_t*>(group) + half * kLanes);
  }
  INLINE Floats least(const char* group, int half) {
    return load_f16(reinterpret_cast<const uint16_t*>(group) + (2 + half) * kLanes);
  }
  // A row's first number is the sum of its activations, a float's bits.
  INLINE int32_t row_number(int32_t row_sum, float scale, int64_t plane) {
    const float value = plane == 0 ? scale * static_cast<float>(row_sum) : 0.0f;
    int32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
  }
  INLINE Ints first_sum(const int32_t*, int) { return set_int(0); }
  INLINE Floats add_group(const char* group, int half, float scale, float row_sum, Floats products, Floats total) {
    total = fma(multiply(scales(group, half), set(scale)), products, total);
    return fma(least(group, half), set(row_sum), total);
  }
  INLINE Floats scaled(const char*, int, Floats total) { return total; }
};

INLINE int64_t groups_of(const Weight& weight) { return weight.group == 0 ? 1 : ceil_div(weight.in, weight.group); }
INLINE int64_t inputs_of_group(const Weight& weight) {
  return weight.group == 0 ? ceil_div(weight.in, kInputsUnit) * kInputsUnit : weight.group;
}
INLINE int64_t steps_of_group(const Weight& weight) { return inputs_of_group(weight) / kStepInputs; }

template <class Stored>
INLINE int64_t group_bytes(const Weight& weight) {
  return Stored::group_bytes + steps_of_group(weight) * Stored::step_bytes;
}

// Everything of a weight's layout. `planes`: of its activations.
template <class Stored>
INLINE void lay_out_quantized(Weight& weight, int64_t planes) {
  weight.panel_width = kQuantizedPanel;
  weight.panels = ceil_div(weight.out, kQuantizedPanel);
  weight.steps = groups_of(weight) * steps_of_group(weight);
  weight.panel_bytes = Stored::panel_bytes + groups_of(weight) * group_bytes<Stored>(weight);
  weight.row_bytes = groups_of(weight) * (4 + 4 * planes + planes * inputs_of_group(weight));
}

// The numbers of a group of a packed row block.
struct GroupHead {
  float* scales;     // [rows]
  int32_t* numbers;  // [planes * rows]
  char* activations;

  INLINE_MEMBER GroupHead(char* group, int64_t rows, int64_t planes)
      : scales(reinterpret_cast<float*>(group)),
        numbers(reinterpret_cast<int32_t*>(scales + rows)),
        activations(reinterpret_cast<char*>(numbers + planes * rows)) {}
};

// Of quantized_pack.cpp.
template <class Stored>
void pack_quantized(const Weight& weight, const void* rows, int32_t dtype, int64_t panel, int64_t lane, int64_t count);
template <class Stored>
void unpack_quantized(const Weight& weight, int64_t panel, int64_t lane, float* row);

// Sixteen values of a row from `start` on, those from `end` on as 0.
template <class Source>
INLINE Floats load_part(const typename Source::Element* row, int64_t start, int64_t end) {
  if (start + kLanes <= end) return Source::load_elements(row + start);
  typename Source::Element some[kLanes] = {};
  for (int64_t i = start; i < end; ++i) some[i - start] = row[i];
  return Source::load_elements(some);
}

// The largest |x|; NaN if any x is NaN or infinite, so that the whole row's result is.
INLINE float magnitude(const float* x, int64_t start, int64_t end) {
  Floats most = set(0.0f), zero_or_nan = set(0.0f);
  for (int64_t i = start; i < end; i += kLanes) {
    const Floats value = load_part<Float32>(x, i, end);
    most = maximum(most, maximum(value, subtract(set(0.0f), value)));
    zero_or_nan = fma(value, set(0.0f), zero_or_nan);
  }
  return largest(most) + sum(zero_or_nan);
}

// Rounds one group of one row of activations, sixteen at a time.
template <int kPlanes>
class RowRounding {
 public:
  // The values from `start` to `end` of a row.
  INLINE_MEMBER void begin(const float* row, int64_t start, int64_t end) {
    constexpr float kLargest = kPlanes == 1 ? 127.0f : 127.0f * 256.0f;
    const float most = magnitude(row, start, end);
    row_ = row;
    end_ = end;
    scale_ = most / kLargest;
    inverse_ = most > 0 ? kLargest / most : 0.0f;
    for (Ints& sum : sums_) sum = set_int(0);
  }

  // The bytes of the values from `i` on, plane by plane; behind the end they are 0.
  INLINE_MEMBER void next(int64_t i, uint8_t (&bytes)[kPlanes][kLanes]) {
    const Floats value = i < end_ ? load_part<Float32>(row_, i, end_) : set(0.0f);
    const Ints q = round_to_ints(multiply(value, set(inverse_)));
    store_low_bytes(bytes[kPlanes - 1], q);
    if constexpr (kPlanes == 1) {
      sums_[0] = add(sums_[0], q);
    } else {
      const Ints high = shift_right<8>(add(q, set_int(128)));
      store_low_bytes(bytes[0], high);
      sums_[0] = add(sums_[0], high);
      sums_[1] = add(sums_[1], shift_right<24>(shift_left<24>(q)));
    }
  }

  // What a group's head says of this row, number `index` of the block's `rows`.
  template <class Stored>
  INLINE_MEMBER void put_numbers(const GroupHead& head, int64_t rows, int64_t index) const {
    head.scales[index] = scale_;
    int32_t sums[2] = {sum(0), kPlanes == 2 ? sum(kPlanes - 1) : 0};
    if (Stored::panel_bytes == 0 && kPlanes == 2) sums[0] = 256 * sums[0] + sums[1];
    for (int64_t p = 0; p < kPlanes; ++p) head.numbers[p * rows + index] = Stored::row_number(sums[p], scale_, p);
  }

 private:
  INLINE_MEMBER int32_t sum(int64_t plane) const {
    int32_t lane[kLanes], total = 0;
    std::memcpy(lane, &sums_[plane], sizeof lane);
    for (const int32_t value : lane) total += value;
    return total;
  }

  const float* row_;
  int64_t end_;
  float scale_, inverse_;
  Ints sums_[kPlanes];
};

}  // namespace octavo::OCTAVO_ISA
