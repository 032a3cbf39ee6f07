// How weights, cached keys and cached values are stored and multiplied. `depth` neighbouring inputs make one step;
// `Scalar` is one step of one activation row; a step's 16 outputs are one `Vector` in registers.
#pragma once

#include <cstring>

#include "simd.h"

namespace octavo::OCTAVO_ISA {

struct Float32 {
  using Compute = Float32;
  static constexpr bool scaled = false, integer = false;
  static constexpr int depth = 1;
  using Element = float;
  using Scalar = float;
  using Vector = Floats;
  INLINE Vector load_step(const Element* p) { return load(p); }
  INLINE void multiply_add(Floats& sum, Scalar a, Vector b) { sum = fma(set(a), b, sum); }
  INLINE void put_steps(Scalar* p, Floats a) { store(p, a); }
  INLINE Floats load_elements(const Element* p) { return load(p); }
  INLINE void put_elements(Element* p, Floats a) { store(p, a); }
  INLINE Floats power(Floats x) { return exp2(x); }
};

struct Float16 {
  using Compute = Float16;
  static constexpr bool scaled = false, integer = false;
  static constexpr int depth = 1;
  using Element = uint16_t;
  using Scalar = float;
  using Vector = Floats;
  INLINE Vector load_step(const Element* p) { return load_f16(p); }
  INLINE void multiply_add(Floats& sum, Scalar a, Vector b) { sum = fma(set(a), b, sum); }
  INLINE void put_steps(Scalar* p, Floats a) { store(p, a); }
  INLINE Floats load_elements(const Element* p) { return load_f16(p); }
  INLINE void put_elements(Element* p, Floats a) { store_f16(p, a); }
  INLINE Floats power(Floats x) { return exp2(x); }
};

#if defined(__AVX512BF16__)

// Pairs of inputs for VDPBF16PS: the activations are rounded to bfloat16 too, products accumulate in float32.
struct BFloat16 {
  using Compute = BFloat16;
  static constexpr bool scaled = false, integer = false;
  static constexpr int depth = 2;
  using Element = uint16_t;
  using Scalar = uint32_t;
  using Vector = __m512bh;
  INLINE Vector load_step(const Element* p) { return (__m512bh)_mm512_loadu_si512(p); }
  INLINE void multiply_add(Floats& sum, Scalar a, Vector b) {
    sum.part[0] = _mm512_dpbf16_ps(sum.part[0], (__m512bh)_mm512_set1_epi32(static_cast<int>(a)), b);
  }
  INLINE void put_steps(Scalar* p, Floats a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(a.part[0]));
  }
  INLINE Floats load_elements(const Element* p) { return load_bf16(p); }
  INLINE void put_elements(Element* p, Floats a) { store_bf16(p, a); }
  // 2^x to within 8.6e-5 of it, for what is rounded to bfloat16 (2e-3) afterwards: the polynomial of degree 3 with p(0) = 1
  // over [0, 1), and the whole number below x. 2^0 is exactly 1, of -infinity it is 0, NaN stays NaN.
  INLINE Floats power(Floats x) {
    const Register r = register_fraction_above(x.part[0]);
    Register p = register_set(0.0770670474f);
    p = register_fma(p, r, register_set(0.227644995f));
    p = register_fma(p, r, register_set(0.695116758f));
    p = register_fma(p, r, register_set(1.0f));
    return {register_scale(p, x.part[0])};
  }
};

#else

struct BFloat16 {
  using Compute = BFloat16;
  static constexpr bool scaled = false, integer = false;
  static constexpr int depth = 1;
  using Element = uint16_t;
  using Scalar = float;
  using Vector = Floats;
  INLINE Vector load_step(const Element* p) { return load_bf16(p); }
  INLINE void multiply_add(Floats& sum, Scalar a, Vector b) { sum = fma(set(a), b, sum); }
  INLINE void put_steps(Scalar* p, Floats a) { store(p, a); }
  INLINE Floats load_elements(const Element* p) { return load_bf16(p); }
  INLINE void put_elements(Element* p, Floats a) { store_bf16(p, a); }
  INLINE Floats power(Floats x) { return exp2(x); }
};

#endif

// What a cache may hold beside these: bytes, that are widened in registers where few rows share them, else, exactly alike,
// to `Compute` in memory, a step of keys at a time. `scaled`: each token's K and V have a scale of their own.
#if defined(__AVX512BF16__)
using Wide = BFloat16;
#else
using Wide = Float32;
#endif

template <class Format>
INLINE void widen_elements(const typename Format::Element* p, int64_t count, typename Format::Compute::Element* target) {
  constexpr int64_t kStep = kLanes * Format::depth;
  for (int64_t i = 0; i < count; i += kStep) {
    const typename Format::Vector step = Format::load_step(p + i);
    std::memcpy(target + i, &step, sizeof step);
  }
}

#if defined(__AVX512BF16__)

// Pairs of inputs for VPDPWSSD: queries and softmax weights become whole numbers up to `levels`, with a scale for each row;
// sums are 32-bit integers, which Floats carry as bits until `result`.
struct Int8 {
  using Compute = Int8;
  static constexpr bool scaled = true, integer = true;
  static constexpr int depth = 2;
  using Element = int8_t;
  using Scalar = uint32_t;
  using Vector = __m512i;
  // Of rows whose products with `count` elements are added up.
  INLINE int64_t levels(int64_t count) { return INT32_MAX / (127 * count) < 32767 ? INT32_MAX / (127 * count) : 32767; }
  INLINE Vector load_step(const Element* p) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  INLINE void multiply_add(Floats& sum, Scalar a, Vector b) {
    sum.part[0] = _mm512_castsi512_ps(
        _mm512_dpwssd_epi32(_mm512_castps_si512(sum.part[0]), _mm512_set1_epi32(static_cast<int>(a)), b));
  }
  INLINE Floats result(Floats sum) { return {_mm512_cvtepi32_ps(_mm512_castps_si512(sum.part[0]))}; }
  INLINE void put_steps(Scalar* p, Floats a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(a.part[0])));
  }
  INLINE void put_elements(Element* p, Floats a) { store_i8(p, a); }
  INLINE Floats power(Floats x) { return exp2(x); }
};

// The magnitudes of E4M3 as bfloat16.
struct Float8Magnitudes {
  uint16_t bits[128] = {};
  constexpr Float8Magnitudes() {
    for (int m = 8; m < 127; ++m) bits[m] = static_cast<uint16_t>((m << 4) + (120 << 7));
    for (int m = 1; m < 8; ++m) {  // subnormal: m / 512
      const int top = m >= 4 ? 2 : m >= 2 ? 1 : 0;
      bits[m] = static_cast<uint16_t>((118 + top) << 7 | ((m << (7 - top)) & 0x7f));
    }
    bits[127] = 0x7fc0;
  }
};
alignas(64) static constexpr Float8Magnitudes kFloat8Magnitudes{};

struct Float8 : Wide {
  using Element = uint8_t;
  INLINE Vector load_step(const Element* p) {
    const uint16_t* table = kFloat8Magnitudes.bits;
    const __m512i index = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    const __mmask32 upper = _mm512_test_epi16_mask(index, _mm512_set1_epi16(0x40));
    const __m512i low = _mm512_permutex2var_epi16(_mm512_load_si512(table), index, _mm512_load_si512(table + 32));
    const __m512i high = _mm512_permutex2var_epi16(_mm512_load_si512(table + 64), index, _mm512_load_si512(table + 96));
    const __m512i sign = _mm512_and_si512(_mm512_slli_epi16(index, 8), _mm512_set1_epi16(static_cast<short>(0x8000)));
    return (Vector)_mm512_or_si512(_mm512_mask_mov_epi16(low, upper, high), sign);
  }
  INLINE void put_elements(Element* p, Floats a) { store_e4m3(p, a); }
};

#else

struct Int8 : Wide {
  static constexpr bool scaled = true;
  using Element = int8_t;
  INLINE Vector load_step(const Element* p) { return load_i8(p); }
  INLINE void put_elements(Element* p, Floats a) { store_i8(p, a); }
};

struct Float8 : Wide {
  using Element = uint8_t;
  INLINE Vector load_step(const Element* p) { return load_e4m3(p); }
  INLINE void put_elements(Element* p, Floats a) { store_e4m3(p, a); }
};

#endif

// Register blocking: rows times 16-wide vectors of accumulators that stay in registers.
#if defined(__AVX512F__)
constexpr int kLinearRows = 12, kLinearVectors = 2;
constexpr int kAttentionBlockRows = 6, kAttentionVectors = 4;
#elif defined(__AVX2__)
constexpr int kLinearRows = 6, kLinearVectors = 1;
constexpr int kAttentionBlockRows = 3, kAttentionVectors = 2;
#elif defined(__aarch64__)
constexpr int kLinearRows = 6, kLinearVectors = 1;
constexpr int kAttentionBlockRows = 6, kAttentionVectors = 1;
#else
constexpr int kLinearRows = 2, kLinearVectors = 1;
constexpr int kAttentionBlockRows = 2, kAttentionVectors = 1;
#endif

}  // namespace octavo::OCTAVO_ISA
