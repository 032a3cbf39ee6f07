// The layout of E4M3 weights, and how their codes become what is multiplied: pairs of bfloat16, or float32.
//
// A panel holds 32 outputs: heads (heads.h), then codes. As pairs 64 bytes are two inputs of all outputs, in an order in
// which two interleavings of 64 bytes with 64 others give the outputs' pairs side by side: bytes 16 q + 8 half + 2 (o % 4)
// are those of output 16 half + 4 q + o % 4. Else an input's codes lie side by side, of all outputs or, where a register
// block is narrower than the panel, of each half apart.
#pragma once

#include <cstring>

#include "formats.h"
#include "heads.h"
#include "table.h"

namespace octavo::OCTAVO_ISA {

#if defined(__AVX512BF16__) || defined(OCTAVO_TILES)
constexpr bool kFloat8Pairs = true;
#else
constexpr bool kFloat8Pairs = false;
#endif
constexpr int64_t kFloat8Unit = 32;  // inputs are filled up to a multiple: a tile's depth

INLINE int64_t float8_inputs(const Weight& weight) { return ceil_div(weight.in, kFloat8Unit) * kFloat8Unit; }
INLINE int64_t float8_groups(const Weight& weight) { return weight.group == 0 ? 1 : ceil_div(weight.in, weight.group); }
INLINE int64_t float8_group_inputs(const Weight& weight) {
  return weight.group == 0 ? float8_inputs(weight) : weight.group;
}

// Where the code of an output (of the panel) and an input lies, from the beginning of the panel's codes.
INLINE int64_t float8_place(const Weight& weight, int64_t lane, int64_t input) {
  const int64_t half = lane / kLanes, output = lane % kLanes;
  if (kFloat8Pairs) return input / 2 * 64 + output / 4 * 16 + half * 8 + output % 4 * 2 + input % 2;
  if (kLinearVectors == 2) return input * kHeadPanel + lane;
  return half * float8_inputs(weight) * kLanes + input * kLanes + output;
}

INLINE float float8_value(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 0x7f) == 0x7f) return __builtin_nanf("");
  const uint32_t bits = static_cast<uint32_t>((exponent > 0 ? exponent : 1) + 117) << 23;  // 2^(e - 10)
  float unit;
  std::memcpy(&unit, &bits, sizeof unit);
  const float value = unit * static_cast<float>(mantissa + (exponent > 0 ? 8 : 0));
  return code >= 128 ? -value : value;
}

// Everything of a weight's layout but row_bytes. Of float8_pack.cpp, as the three that follow.
void lay_out_float8(Weight& weight);
void pack_float8(const Weight& weight, const void* rows, int32_t dtype, int64_t panel, int64_t lane, int64_t count);
void pack_float8_codes(const Weight& weight, const CodedRows& rows, int64_t panel, int64_t lane, int64_t count);
void unpack_float8(const Weight& weight, int64_t panel, int64_t lane, float* row);

#if defined(__AVX512BF16__)

// 64 codes to the pairs of the panel's halves. A code s eeee mmm above the subnormal ones is the bfloat16 whose high byte
// follows from s eee alone (the exponent's bias grows by 120, an even number) and whose low byte is e mmm 0000; subnormal
// ones, m / 512, take their low byte from a table of mmm and correct the high one. Codes that are no numbers become +-480.
INLINE void widen_pairs(const char* p, __m512i& first, __m512i& second) {
  const __m512i high_table = _mm512_broadcast_i32x4(
      _mm_setr_epi8(60, 61, 62, 63, 64, 65, 66, 67, -68, -67, -66, -65, -64, -63, -62, -61));
  const __m512i low_table = _mm512_broadcast_i32x4(
      _mm_setr_epi8(0, 0, -128, -64, 0, 32, 64, 96, 0, 0, 0, 0, 0, 0, 0, 0));
  const __m512i correction = _mm512_broadcast_i32x4(_mm_setr_epi8(60, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
  const __m512i nibble = _mm512_set1_epi8(15);
  const __m512i codes = _mm512_loadu_si512(p);
  const __mmask64 subnormal = _mm512_testn_epi8_mask(codes, _mm512_set1_epi8(0x78));
  const __m512i low_half = _mm512_and_si512(codes, nibble);
  __m512i high = _mm512_shuffle_epi8(high_table, _mm512_and_si512(_mm512_srli_epi16(codes, 4), nibble));
  high = _mm512_sub_epi8(high, _mm512_maskz_shuffle_epi8(subnormal, correction, low_half));
  __m512i low = _mm512_slli_epi16(low_half, 4);
  low = _mm512_mask_shuffle_epi8(low, subnormal, low_table, low_half);
  first = _mm512_unpacklo_epi8(low, high);
  second = _mm512_unpackhi_epi8(low, high);
}

#endif

}  // namespace octavo::OCTAVO_ISA
