// GGUF blocks to numbers, with the same float32 operations in the same order as the gguf library's own dequantisation:
// the values are equal to its values, bit for bit, before they are rounded to the wanted type.
#include <cstring>

#include "parts.h"
#include "simd.h"

namespace octavo::OCTAVO_ISA {
namespace {

INLINE float half_at(const uint8_t* p) {
  uint16_t bits[kLanes] = {};
  std::memcpy(bits, p, 2);
  alignas(64) float lane[kLanes];
  store(lane, load_f16(bits));
  return lane[0];
}

INLINE uint32_t word_at(const uint8_t* p) {
  uint32_t word;
  std::memcpy(&word, p, 4);
  return word;
}

// Each type: how many bytes hold how many values, and the values of one block.
struct Q4_0 {
  static constexpr int type = 2, values = 32, bytes = 18;
  INLINE void unpack(const uint8_t* __restrict raw, float* __restrict out) {
    const float d = half_at(raw);
    for (int i = 0; i < 16; ++i) {
      out[i] = d * static_cast<float>((raw[2 + i] & 15) - 8);
      out[16 + i] = d * static_cast<float>((raw[2 + i] >> 4) - 8);
    }
  }
};

struct Q4_1 {
  static constexpr int type = 3, values = 32, bytes = 20;
  INLINE void unpack(const uint8_t* __restrict raw, float* __restrict out) {
    const float d = half_at(raw), m = half_at(raw + 2);
    for (int i = 0; i < 16; ++i) {
      out[i] = d * static_cast<float>(raw[4 + i] & 15) + m;
      out[16 + i] = d * static_cast<float>(raw[4 + i] >> 4) + m;
    }
  }
};

struct Q5_0 {
  static constexpr int type = 6, values = 32, bytes = 22;
  INLINE void unpack(const uint8_t* __restrict raw, float* __restrict out) {
    const float d = half_at(raw);
    const uint32_t high = word_at(raw + 2);
    for (int i = 0; i < 16; ++i) {
      out[i] = d * static_cast<float>(static_cast<int>((raw[6 + i] & 15) | (high >> i & 1) << 4) - 16);
      out[16 + i] = d * static_cast<float>(static_cast<int>((raw[6 + i] >> 4) | (high >> (16 + i) & 1) << 4) - 16);
    }
  }
};

struct Q5_1 {
  static constexpr int type = 7, values = 32, bytes = 24;
  INLINE void unpack(const uint8_t* __restrict raw, float* __restrict out) {
    const float d = half_at(raw), m = half_at(raw + 2);
    const uint32_t high = word_at(raw + 4);
    for (int i = 0; i < 16; ++i) {
      out[i] = d * static_cast<float>(static_cast<int>((raw[8 + i] & 15) | (high >> i & 1) << 4)) + m;
      out[16 + i] = d * static_cast<float>(static_cast<int>((raw[8 + i] >> 4) | (high >> (16 + i) & 1) << 4)) + m;
    }
  }
};

struct Q8_0 {
  static constexpr int type = 8, values = 32, bytes = 34;
  INLINE void unpack(const uint8_t* __restrict raw, float* __restrict out) {
    const float d = half_at(raw);
    for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(static_cast<int8_t>(raw[2 + i])) * d;
  }
};

struct Q2_K {
  static constexpr int type = 10, values = 256, bytes = 84;
  INLINE void unpack(const uint8_t* __restrict raw, float* __restrict out) {
    const uint8_t* scales = raw;
    const uint8_t* quants = raw + 16;
    const float d = half_at(raw + 80), minimum = half_at(raw + 82);
    for (int group = 0; group < 16; ++group) {
      const float scale = d * static_cast<float>(scales[group] & 15);
      const float offset = minimum * static_cast<float>(scales[group] >> 4);
      const uint8_t* q = quants + group / 8 * 32 + group % 2 * 16;
      const int shift = group / 2 % 4 * 2;
      for (int i = 0; i < 16; ++i) out[group * 16 + i] = scale * static_cast<float>(q[i] >> shift & 3) - offset;
    }
  }
};

struct Q3_K {
  static constexpr int type = 11, values = 256, bytes = 110;
  INLINE void unpack(const uint8_t* __restrict raw, float* __restrict out) {
    const uint8_t* high = raw;
    const uint8_t* quants = raw + 32;
    const uint8_t* scales = raw + 96;
    const float d = half_at(raw + 108);
    for (int group = 0; group < 16; ++group) {
      const int low_bits = scales[group % 8] >> (group / 8 * 4) & 15;
      const int high_bits = scales[8 + group % 4] >> (group / 4 * 2) & 3;
      const float scale = d * static_cast<float>((low_bits | high_bits << 4) - 32);
      const int start = group % 2 * 16;
      const uint8_t* q = quants + group / 8 * 32 + start;
      const int shift = group / 2 % 4 * 2, bit = group / 2;
      for (int i = 0; i < 16; ++i) {
        const int value = (q[i] >> shift & 3) - ((high[start + i] >> bit & 1) ^ 1) * 4;  // a clear bit subtracts 4
        out[group * 16 + i] = scale * static_cast<float>(value);
      }
    }
  }
};

// Eight 6-bit scales and minima in 12 bytes: the first four whole, the others' upper two bits in the first eight bytes.
INLINE void six_bit_pair(const uint8_t* packed, int group, int& scale, int& minimum) {
  if (group < 4) {
    scale = packed[group] & 63;
    minimum = packed[4 + group] & 63;
  } else {
    scale = (packed[4 + group] & 15) | (packed[group - 4] >> 2 & 0x30);
    minimum = (packed[4 + group] >> 4) | (packed[group] >> 2 & 0x30);
  }
}

struct Q4_K {
  static constexpr int type = 12, values = 256, bytes = 144;
  INLINE void unpack(const uint8_t* __restrict raw, float* __restrict out) {
    const float d = half_at(raw), dmin = half_at(raw + 2);
    for (int group = 0; group < 8; ++group) {
      int scale, minimum;
      six_bit_pair(raw + 4, group, scale, minimum);
      const float factor = d * static_cast<float>(scale), offset = dmin * static_cast<float>(minimum);
      const uint8_t* q = raw + 16 + group / 2 * 32;
      const int shift = group % 2 * 4;
      for (int i = 0; i < 32; ++i) out[group * 32 + i] = factor * static_cast<float>(q[i] >> shift & 15) - offset;
    }
  }
};

struct Q5_K {
  static constexpr int type = 13, values = 256, bytes = 176;
  INLINE void unpack(const uint8_t* __restrict raw, float* __restrict out) {
    const float d = half_at(raw), dmin = half_at(raw + 2);
    const uint8_t* high = raw + 16;
    for (int group = 0; group < 8; ++group) {
      int scale, minimum;
      six_bit_pair(raw + 4, group, scale, minimum);
      const float factor = d * static_cast<float>(scale), offset = dmin * static_cast<float>(minimum);
      const uint8_t* q = raw + 48 + group / 2 * 32;
      const int shift = group % 2 * 4;
      for (int i = 0; i < 32; ++i) {
        const int value = (q[i] >> shift & 15) | (high[i] >> group & 1) << 4;
        out[group * 32 + i] = factor * static_cast<float>(value) - offset;
      }
    }
  }
};

struct Q6_K {
  static constexpr int type = 14, values = 256, bytes = 210;
  INLINE void unpack(const uint8_t* __restrict raw, float* __restrict out) {
    const uint8_t* low = raw;
    const uint8_t* high = raw + 128;
    const int8_t* scales = reinterpret_cast<const int8_t*>(raw + 192);
    const float d = half_at(raw + 208);
    for (int group = 0; group < 16; ++group) {
      const float scale = d * static_cast<float>(scales[group]);
      const int half = group / 8, inside = group % 8 * 16;  // 128 values share 64 bytes of low and 32 of high bits
      const uint8_t* l = low + half * 64 + inside % 64;
      const uint8_t* h = high + half * 32 + inside % 32;
      const int low_shift = inside / 64 * 4, high_shift = inside / 32 * 2;
      for (int i = 0; i < 16; ++i) {
        const int value = ((l[i] >> low_shift & 15) | (h[i] >> high_shift & 3) << 4) - 32;
        out[group * 16 + i] = scale * static_cast<float>(value);
      }
    }
  }
};

// Plain numbers, sixteen at a time.
template <int kType, int kBytes>
struct Plain {
  static constexpr int type = kType, values = 1, bytes = kBytes;
};
using F32 = Plain<0, 4>;
using F16 = Plain<1, 2>;
using BF16 = Plain<30, 2>;

INLINE Floats load_plain(F32, const uint8_t* p) { return load(reinterpret_cast<const float*>(p)); }
INLINE Floats load_plain(F16, const uint8_t* p) { return load_f16(reinterpret_cast<const uint16_t*>(p)); }
INLINE Floats load_plain(BF16, const uint8_t* p) { return load_bf16(reinterpret_cast<const uint16_t*>(p)); }

struct ToFloat32 {
  using Element = float;
  INLINE void put(float* out, Floats a) { store(out, a); }
};
struct ToBFloat16 {
  using Element = uint16_t;
  INLINE void put(uint16_t* out, Floats a) { store_bf16(out, a); }
};
struct ToFloat16 {
  using Element = uint16_t;
  INLINE void put(uint16_t* out, Floats a) { store_f16(out, a); }
};

template <class Target, class Block>
void unpack(const uint8_t* raw, int64_t blocks, typename Target::Element* out) {
  alignas(64) float values[Block::values];
  for (int64_t b = 0; b < blocks; ++b, raw += Block::bytes, out += Block::values) {
    Block::unpack(raw, values);
    for (int i = 0; i < Block::values; i += kLanes) Target::put(out + i, load(values + i));
  }
}

template <class Target, class Block>
void unpack_plain(const uint8_t* raw, int64_t count, typename Target::Element* out) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) Target::put(out + i, load_plain(Block{}, raw + i * Block::bytes));
  if (i == count) return;
  alignas(64) uint8_t source[kLanes * 4] = {};
  typename Target::Element target[kLanes];
  std::memcpy(source, raw + i * Block::bytes, (count - i) * Block::bytes);
  Target::put(target, load_plain(Block{}, source));
  std::memcpy(out + i, target, (count - i) * sizeof(target[0]));
}

// Calls `function` with a value of the block's type; false if the ggml type is not among these.
template <class Function>
bool with_block(int32_t type, Function function) {
  switch (type) {
    case F32::type: function(F32{}); return true;
    case F16::type: function(F16{}); return true;
    case BF16::type: function(BF16{}); return true;
    case Q4_0::type: function(Q4_0{}); return true;
    case Q4_1::type: function(Q4_1{}); return true;
    case Q5_0::type: function(Q5_0{}); return true;
    case Q5_1::type: function(Q5_1{}); return true;
    case Q8_0::type: function(Q8_0{}); return true;
    case Q2_K::type: function(Q2_K{}); return true;
    case Q3_K::type: function(Q3_K{}); return true;
    case Q4_K::type: function(Q4_K{}); return true;
    case Q5_K::type: function(Q5_K{}); return true;
    case Q6_K::type: function(Q6_K{}); return true;
    default: return false;
  }
}

template <class Target>
void dequantize_to(int32_t type, const uint8_t* raw, int64_t blocks, void* out) {
  auto* target = static_cast<typename Target::Element*>(out);
  with_block(type, [=](auto block) {
    using Block = decltype(block);
    if constexpr (Block::values == 1) unpack_plain<Target, Block>(raw, blocks, target);
    else unpack<Target, Block>(raw, blocks, target);
  });
}

}  // namespace

BlockSize block_size(int32_t type) {
  BlockSize size{0, 0};
  with_block(type, [&](auto block) { size = {block.values, block.bytes}; });
  return size;
}

void dequantize(int32_t type, const uint8_t* raw, int64_t blocks, int32_t dtype, void* out) {
  if (dtype == kFloat32) return dequantize_to<ToFloat32>(type, raw, blocks, out);
  if (dtype == kBFloat16) return dequantize_to<ToBFloat16>(type, raw, blocks, out);
  return dequantize_to<ToFloat16>(type, raw, blocks, out);
}

}  // namespace octavo::OCTAVO_ISA
