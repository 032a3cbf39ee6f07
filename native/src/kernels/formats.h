// How weights, cached keys and cached values are stored and multiplied. `depth` neighbouring inputs make one step;
// `Scalar` is one step of one activation row; a step's 16 outputs are one `Vector` in registers.
#pragma once

#include "simd.h"

namespace octavo::OCTAVO_ISA {

struct Float32 {
  static constexpr int depth = 1;
  using Element = float;
  using Scalar = float;
  using Vector = Floats;
  INLINE Vector load_step(const Element* p) { return load(p); }
  INLINE void multiply_add(Floats& sum, Scalar a, Vector b) { sum = fma(set(a), b, sum); }
  INLINE void put_steps(Scalar* p, Floats a) { store(p, a); }
  INLINE Floats load_elements(const Element* p) { return load(p); }
  INLINE void put_elements(Element* p, Floats a) { store(p, a); }
};

struct Float16 {
  static constexpr int depth = 1;
  using Element = uint16_t;
  using Scalar = float;
  using Vector = Floats;
  INLINE Vector load_step(const Element* p) { return load_f16(p); }
  INLINE void multiply_add(Floats& sum, Scalar a, Vector b) { sum = fma(set(a), b, sum); }
  INLINE void put_steps(Scalar* p, Floats a) { store(p, a); }
  INLINE Floats load_elements(const Element* p) { return load_f16(p); }
  INLINE void put_elements(Element* p, Floats a) { store_f16(p, a); }
};

#if defined(__AVX512BF16__)

// Pairs of inputs for VDPBF16PS: the activations are rounded to bfloat16 too, products accumulate in float32.
struct BFloat16 {
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
};

#else

struct BFloat16 {
  static constexpr int depth = 1;
  using Element = uint16_t;
  using Scalar = float;
  using Vector = Floats;
  INLINE Vector load_step(const Element* p) { return load_bf16(p); }
  INLINE void multiply_add(Floats& sum, Scalar a, Vector b) { sum = fma(set(a), b, sum); }
  INLINE void put_steps(Scalar* p, Floats a) { store(p, a); }
  INLINE Floats load_elements(const Element* p) { return load_bf16(p); }
  INLINE void put_elements(Element* p, Floats a) { store_bf16(p, a); }
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
