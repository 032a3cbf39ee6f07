// The layout of quantized weights and of the activations that meet them, and how activations are rounded.
//
// Everything is a product of unsigned bytes by signed ones, summed exactly. Codes of weights are q in [0, 2^bits), and
// w = scale (q - centre), scale (q - zero) or scale q + least, with scale, zero and least of an output and a group of
// inputs; a weight that is not `grouped` has one scale for each output. Activations are rounded within each group to 8
// bits, or to 16 that are stored as two signed bytes 256 h + l: `planes`. The groups of a weight that has none are those of
// its activations alone: 64 inputs in 8 bits, all of them in 16.
//
// A panel holds 32 outputs: first factors where there are any and a head for each group, of 32 scales and 32 offsets, then
// steps, each of four neighbouring inputs of every output; bytes of 4-bit steps hold output i in the low half and i + 16 in
// the high one. Codes of 5 and 6 bits are such nibbles behind the further bits of four steps: a chunk. A packed row block
// holds for each group what RowHead says, and the activations.
#pragma once

#include <cstring>
#include <type_traits>

#include "formats.h"
#include "heads.h"
#include "integers.h"
#include "table.h"

namespace octavo::OCTAVO_ISA {

constexpr int64_t kStepInputs = 4;
constexpr int64_t kInputsUnit = 64;  // inputs are filled up to a multiple: a tile's depth

// What a step holds; halves of a panel have 16 outputs. A chunk, of one step where nothing else is said, is what is read at
// once.
struct Bytes {
  static constexpr int64_t step_bytes = 128, chunk_steps = 1;
  static constexpr int centre = 128;
  INLINE void load_step(const char* p, Ints (&weights)[2]) {
    weights[0] = load_bytes(p);
    weights[1] = load_bytes(p + 64);
  }
};

struct Nibbles {
  static constexpr int64_t step_bytes = 64, chunk_steps = 1;
  static constexpr int centre = 8;
  INLINE void load_step(const char* p, Ints (&weights)[2]) {
    const Ints both = load_bytes(p);
    weights[0] = low_nibbles(both);
    weights[1] = high_nibbles(both);
  }
};

// E2M1 in the same places. Twice such a number is whole, so q is that and 12.
struct Float4 : Nibbles {
  static constexpr int centre = 12;
  INLINE void load_step(const char* p, Ints (&weights)[2]) {
    Nibbles::load_step(p, weights);
    for (Ints& half : weights) half = float4_bytes(half);
  }
};

// 4 + kBits bits: the further bits, kBits lines of 64 bytes for the nibbles of four steps. A byte holds kBits of both halves
// of the first step, then of the next.
template <int kBits>
struct NibblesAndBits {
  static constexpr int64_t chunk_steps = 4, step_bytes = (chunk_steps + kBits) * 64 / chunk_steps;
  static constexpr int centre = 8 << kBits;
  static constexpr int mask = (1 << kBits) - 1;
};

using FiveBits = NibblesAndBits<1>;
using SixBits = NibblesAndBits<2>;

template <class Codes>
constexpr int64_t kChunkBytes = Codes::chunk_steps * Codes::step_bytes;

// The steps of a chunk, one after the other.
template <class Codes>
class Chunk {
 public:
  INLINE_MEMBER explicit Chunk(const char* p) : p_(p) {}
  INLINE_MEMBER void next(Ints (&weights)[2]) { Codes::load_step(p_, weights); }

 private:
  const char* p_;
};

template <int kBits>
class Chunk<NibblesAndBits<kBits>> {
 public:
  INLINE_MEMBER explicit Chunk(const char* p) : p_(p), bits_(load_bytes(p)) {}
  INLINE_MEMBER void next(Ints (&weights)[2]) {
    if (left_ == 0) {
      bits_ = load_bytes(p_ + 64);
      left_ = 8;
    }
    const Ints mask = set_int(NibblesAndBits<kBits>::mask * 0x10101010);
    Nibbles::load_step(p_ + (kBits + step_) * 64, weights);
    weights[0] = merge_bits(weights[0], shift_left<4>(bits_), mask);
    weights[1] = merge_bits(weights[1], shift_left<4 - kBits>(bits_), mask);
    bits_ = shift_right<2 * kBits>(bits_);
    left_ -= 2 * kBits;
    ++step_;
  }

 private:
  const char* p_;
  Ints bits_;
  int step_ = 0, left_ = 8;  // bits of each byte
};

INLINE int64_t groups_of(const Weight& weight) { return weight.group == 0 ? 1 : ceil_div(weight.in, weight.group); }
INLINE int64_t inputs_of_group(const Weight& weight) {
  return weight.group == 0 ? ceil_div(weight.in, kInputsUnit) * kInputsUnit : weight.group;
}
INLINE int64_t steps_of_group(const Weight& weight) { return inputs_of_group(weight) / kStepInputs; }

// Everything of a weight's layout. `planes`: of its activations.
template <class Codes, bool kGrouped>
INLINE void lay_out_quantized(Weight& weight, int64_t planes) {
  weight.panel_width = kHeadPanel;
  weight.panels = ceil_div(weight.out, kHeadPanel);
  weight.steps = groups_of(weight) * steps_of_group(weight);
  weight.codes = heads_bytes(weight, kGrouped ? groups_of(weight) : 1);
  weight.panel_bytes = weight.codes + weight.steps * Codes::step_bytes;
  weight.row_bytes = groups_of(weight) * (8 + 4 * planes + planes * inputs_of_group(weight));
}

// The code of 0 that products are freed of as integers; offsets are added as floats instead.
template <class Codes>
INLINE int centre_of(const Weight& weight) {
  return weight.offset == kNoOffset ? Codes::centre : 0;
}

// The numbers of a group of a packed row block.
struct RowHead {
  float* scales;      // [rows]
  float* row_sums;    // [rows]: of the activations
  int32_t* first;     // [planes * rows]: what sums of products begin with, which takes the centre off
  char* activations;

  INLINE_MEMBER RowHead(char* group, int64_t rows, int64_t planes)
      : scales(reinterpret_cast<float*>(group)),
        row_sums(scales + rows),
        first(reinterpret_cast<int32_t*>(row_sums + rows)),
        activations(reinterpret_cast<char*>(first + planes * rows)) {}
};

// total + a group's products with the activations of a row, whose scale and sum are given; not grouped: without the weights'
// scales.
template <bool kGrouped>
INLINE Floats add_group(const Head& head, int half, float scale, float row_sum, Floats products, Floats total) {
  if constexpr (!kGrouped) return fma(set(scale), products, total);
  total = fma(multiply(head.scales[half], set(scale)), products, total);
  return head.has_least ? fma(head.least[half], set(row_sum), total) : total;
}

// Of quantized_pack.cpp.
template <class Codes, bool kGrouped>
void pack_quantized(const Weight& weight, const void* rows, int32_t dtype, int64_t panel, int64_t lane, int64_t count);
template <class Codes, bool kGrouped>
constexpr auto packing_of() -> decltype(LinearKernels::pack_weight) {
  if constexpr (std::is_same_v<Codes, Bytes> || std::is_same_v<Codes, Nibbles>) return pack_quantized<Codes, kGrouped>;
  else return nullptr;  // nothing is rounded to these
}
template <class Codes, bool kGrouped>
void pack_coded(const Weight& weight, const CodedRows& rows, int64_t panel, int64_t lane, int64_t count);
template <class Codes, bool kGrouped>
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
  INLINE_MEMBER void put_numbers(const RowHead& head, int64_t rows, int64_t index, int centre) const {
    const int32_t sums[2] = {sum(0), kPlanes == 2 ? sum(kPlanes - 1) : 0};
    const float total = static_cast<float>(sums[0]) * (kPlanes == 2 ? 256.0f : 1.0f) + static_cast<float>(sums[1]);
    head.scales[index] = scale_;
    head.row_sums[index] = scale_ * total;
    for (int64_t p = 0; p < kPlanes; ++p) head.first[p * rows + index] = -centre * sums[p];
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
