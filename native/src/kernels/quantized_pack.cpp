// Rounds weights (once, at load), puts codes into panels, and reads both back.
#include <cstring>

#include "parts.h"
#include "quantized.h"

namespace octavo::OCTAVO_ISA {
namespace {

// To nearest, ties to even: q = (w - least) * inverse, w = scale * q + least.
struct Rounding {
  float scale, inverse, least;
};

// Sixteen values; behind the end the last one again.
template <class Source>
INLINE Floats load_repeated(const typename Source::Element* row, int64_t start, int64_t end) {
  if (start + kLanes <= end) return Source::load_elements(row + start);
  typename Source::Element some[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) some[i] = row[start + i < end ? start + i : end - 1];
  return Source::load_elements(some);
}

template <class Source>
INLINE void extremes(const typename Source::Element* row, int64_t start, int64_t end, float& low, float& high) {
  Floats negated = set(-3.4e38f), values = set(-3.4e38f);
  for (int64_t i = start; i < end; i += kLanes) {
    const Floats value = load_repeated<Source>(row, i, end);
    values = maximum(values, value);
    negated = maximum(negated, subtract(set(0.0f), value));
  }
  low = -largest(negated);
  high = largest(values);
}

INLINE float to_half(float value, uint16_t* bits) {
  const float bounded = value > 65504.0f ? 65504.0f : value < -65504.0f ? -65504.0f : value;
  uint16_t halves[kLanes];
  alignas(64) float back[kLanes];
  store_f16(halves, set(bounded));
  store(back, load_f16(halves));
  *bits = halves[0];
  return back[0];
}

// Keeps what a group's (in int8 the whole row's) values are rounded by in `head`: scales of float32, or scales and least
// values of float16.
INLINE Rounding keep_rounding(Bytes, char* head, int64_t lane, float low, float high) {
  const float most = -low > high ? -low : high;
  const float scale = most / 127.0f;
  reinterpret_cast<float*>(head)[lane] = scale;
  return {scale, most > 0 ? 127.0f / most : 0.0f, 0.0f};
}
INLINE Rounding keep_rounding(Nibbles, char* head, int64_t lane, float low, float high) {
  uint16_t* halves = reinterpret_cast<uint16_t*>(head);
  const float scale = to_half((high - low) / 15.0f, halves + lane);
  const float least = to_half(low, halves + kHeadPanel + lane);
  return {scale, scale > 0 ? 1.0f / scale : 0.0f, least};
}

INLINE Ints as_stored(Bytes, Floats q) {
  return add(round_to_ints(minimum(set(127.0f), maximum(set(-127.0f), q))), set_int(Bytes::centre));
}
INLINE Ints as_stored(Nibbles, Floats q) { return round_to_ints(minimum(set(15.0f), maximum(set(0.0f), q))); }

// Four inputs of one output; `steps` is where the memory of step 0 begins.
INLINE void store_inputs(Bytes, char* steps, int64_t step, int64_t lane, const uint8_t* inputs) {
  std::memcpy(steps + step * Bytes::step_bytes + lane * kStepInputs, inputs, kStepInputs);
}
// Some bits of four inputs from bit `shift` of four bytes on.
INLINE void store_bits(char* target, int shift, int mask, const uint8_t* inputs, int from) {
  uint8_t* bytes = reinterpret_cast<uint8_t*>(target);
  for (int64_t i = 0; i < kStepInputs; ++i)
    bytes[i] = static_cast<uint8_t>((bytes[i] & ~(mask << shift)) | (inputs[i] >> from & mask) << shift);
}
INLINE void store_inputs(Nibbles, char* steps, int64_t step, int64_t lane, const uint8_t* inputs) {
  store_bits(steps + step * Nibbles::step_bytes + lane % kLanes * kStepInputs, lane < kLanes ? 0 : 4, 15, inputs, 0);
}
INLINE int load_input(Bytes, const char* steps, int64_t step, int64_t lane, int64_t input) {
  return static_cast<uint8_t>(steps[step * Bytes::step_bytes + lane * kStepInputs + input]);
}
INLINE int load_input(Nibbles, const char* steps, int64_t step, int64_t lane, int64_t input) {
  const char* bytes = steps + step * Nibbles::step_bytes + lane % kLanes * kStepInputs;
  return static_cast<uint8_t>(bytes[input]) >> (lane < kLanes ? 0 : 4) & 15;
}
INLINE int load_input(Float4, const char* steps, int64_t step, int64_t lane, int64_t input) {
  return kFloat4Bytes[load_input(Nibbles{}, steps, step, lane, input)];
}

// Where an output has the parts of a step in its chunk.
template <class Byte, int kBits>
struct ChunkPlace {
  using Codes = NibblesAndBits<kBits>;
  Byte* bits;
  int shift;
  Byte* nibbles;  // of the chunk's first step
  int64_t step;

  INLINE_MEMBER ChunkPlace(Byte* steps, int64_t index, int64_t lane) : step(index % Codes::chunk_steps) {
    Byte* chunk = steps + index / Codes::chunk_steps * kChunkBytes<Codes>;
    const int64_t first = (2 * step + (lane < kLanes ? 0 : 1)) * kBits;
    bits = chunk + first / 8 * 64 + lane % kLanes * kStepInputs;
    shift = static_cast<int>(first % 8);
    nibbles = chunk + kBits * 64;
  }
};
template <int kBits>
INLINE void store_inputs(NibblesAndBits<kBits>, char* steps, int64_t step, int64_t lane, const uint8_t* inputs) {
  const ChunkPlace<char, kBits> place(steps, step, lane);
  store_bits(place.bits, place.shift, NibblesAndBits<kBits>::mask, inputs, 4);
  store_inputs(Nibbles{}, place.nibbles, place.step, lane, inputs);
}
template <int kBits>
INLINE int load_input(NibblesAndBits<kBits>, const char* steps, int64_t step, int64_t lane, int64_t input) {
  const ChunkPlace<const char, kBits> place(steps, step, lane);
  const int bits = static_cast<uint8_t>(place.bits[input]) >> place.shift & NibblesAndBits<kBits>::mask;
  return bits << 4 | load_input(Nibbles{}, place.nibbles, place.step, lane, input);
}

template <class Codes, class Source>
void pack_group(const typename Source::Element* row, int64_t start, int64_t end, int64_t inputs, Rounding to, char* steps,
                int64_t lane) {
  for (int64_t i = start; i < start + inputs; i += kLanes) {
    const Floats value = i < end ? load_part<Source>(row, i, end) : set(0.0f);
    uint8_t bytes[kLanes];
    store_low_bytes(bytes, as_stored(Codes{}, multiply(subtract(value, set(to.least)), set(to.inverse))));
    for (int64_t s = 0; s < kLanes / kStepInputs; ++s)
      store_inputs(Codes{}, steps, i / kStepInputs + s, lane, bytes + s * kStepInputs);
  }
}

// Of a weight without groups one range is the whole row.
template <class Codes, bool kGrouped, class Source>
void pack_row(const Weight& weight, const typename Source::Element* row, char* panel, int64_t lane) {
  const int64_t inputs = kGrouped ? inputs_of_group(weight) : weight.steps * kStepInputs;
  char* head = panel;
  for (int64_t start = 0; start < weight.in; start += inputs, head += head_bytes(weight)) {
    const int64_t end = start + inputs < weight.in ? start + inputs : weight.in;
    float low, high;
    extremes<Source>(row, start, end, low, high);
    const Rounding to = keep_rounding(Codes{}, head, lane, low, high);
    pack_group<Codes, Source>(row, start, end, inputs, to, panel + weight.codes, lane);
  }
}

template <class Codes, bool kGrouped, class Source>
void pack_rows_of(const Weight& weight, const void* rows, int64_t panel, int64_t lane, int64_t count) {
  const typename Source::Element* row = static_cast<const typename Source::Element*>(rows);
  for (int64_t r = 0; r < count; ++r)
    pack_row<Codes, kGrouped, Source>(weight, row + r * weight.in, weight.panel(panel), lane + r);
}

}  // namespace

template <class Codes, bool kGrouped>
void pack_quantized(const Weight& weight, const void* rows, int32_t dtype, int64_t panel, int64_t lane, int64_t count) {
  switch (dtype) {
    case kFloat32: return pack_rows_of<Codes, kGrouped, Float32>(weight, rows, panel, lane, count);
    case kBFloat16: return pack_rows_of<Codes, kGrouped, BFloat16>(weight, rows, panel, lane, count);
    default: return pack_rows_of<Codes, kGrouped, Float16>(weight, rows, panel, lane, count);
  }
}

template <class Codes, bool kGrouped>
void pack_coded(const Weight& weight, const CodedRows& rows, int64_t panel, int64_t lane, int64_t count) {
  char* start = weight.panel(panel);
  for (int64_t r = 0; r < count; ++r) {
    const CodedRows row = rows.from(r, weight);
    put_heads(weight, row, start, lane + r);
    for (int64_t i = 0; i < weight.in; i += kStepInputs) {
      const int64_t left = weight.in - i;
      uint8_t inputs[kStepInputs] = {};
      std::memcpy(inputs, row.codes + i, static_cast<size_t>(left < kStepInputs ? left : kStepInputs));
      store_inputs(Codes{}, start + weight.codes, i / kStepInputs, lane + r, inputs);
    }
  }
}

template <class Codes, bool kGrouped>
void unpack_quantized(const Weight& weight, int64_t panel, int64_t lane, float* row) {
  const int64_t inputs = kGrouped ? inputs_of_group(weight) : weight.steps * kStepInputs;
  const float centre = static_cast<float>(Codes::centre);
  const char* heads = weight.panel(panel);
  const char* steps = heads + weight.codes;
  for (int64_t start = 0; start < weight.in; start += inputs) {
    const int64_t end = start + inputs < weight.in ? start + inputs : weight.in;
    const LaneHead lanes = lane_head(weight, heads, start / inputs, lane, centre);
    for (int64_t i = start; i < end; ++i) {
      const int q = load_input(Codes{}, steps, i / kStepInputs, lane, i % kStepInputs);
      row[i] = lanes.scale * (static_cast<float>(q) - lanes.zero) + lanes.least;
    }
  }
}

#define INSTANTIATE(Codes, kGrouped)                                                                        \
  template void pack_coded<Codes, kGrouped>(const Weight&, const CodedRows&, int64_t, int64_t, int64_t);         \
  template void unpack_quantized<Codes, kGrouped>(const Weight&, int64_t, int64_t, float*);
#define INSTANTIATE_ROUNDING(Codes, kGrouped) \
  INSTANTIATE(Codes, kGrouped)                \
  template void pack_quantized<Codes, kGrouped>(const Weight&, const void*, int32_t, int64_t, int64_t, int64_t);
INSTANTIATE_ROUNDING(Bytes, false)
INSTANTIATE_ROUNDING(Bytes, true)
INSTANTIATE_ROUNDING(Nibbles, true)
INSTANTIATE(FiveBits, true)
INSTANTIATE(SixBits, true)
INSTANTIATE(Float4, true)

}  // namespace octavo::OCTAVO_ISA
