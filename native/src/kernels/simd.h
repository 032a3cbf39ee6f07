// `Floats`: sixteen floats in as many registers as the instruction set needs, so that every kernel is written once.
//
// Each kernel source is compiled once per instruction set, with OCTAVO_ISA as the name of its namespace. Nothing in here
// may be an ordinary inline function with external linkage: the linker would keep one copy for all instruction sets.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define INLINE [[gnu::always_inline]] static inline
#define INLINE_MEMBER [[gnu::always_inline]] inline
#define UNROLL _Pragma("GCC unroll 64")

namespace octavo::OCTAVO_ISA {

// Twice the number that each code of E2M1 is, and 12.
alignas(64) static constexpr uint8_t kFloat4Bytes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

#if defined(__AVX512F__)
#include "registers_avx512.h"
#elif defined(__AVX2__)
#include "registers_avx2.h"
#else
#include "registers_generic.h"
#endif

constexpr int kLanes = 16;
constexpr int kRegisters = kLanes / kRegisterLanes;

struct Floats {
  Register part[kRegisters];
};

// Sixteen integers, or 64 bytes.
struct Ints {
  IntRegister part[kRegisters];
};

template <class Function>
INLINE Floats for_parts(Function function) {
  Floats result;
  UNROLL for (int i = 0; i < kRegisters; ++i) result.part[i] = function(i);
  return result;
}

INLINE Floats set(float x) {
  return for_parts([=](int) __attribute__((always_inline)) { return register_set(x); });
}
INLINE Floats load(const float* p) {
  return for_parts([=](int i) __attribute__((always_inline)) { return register_load(p + i * kRegisterLanes); });
}
INLINE Floats load_bf16(const uint16_t* p) {
  return for_parts([=](int i) __attribute__((always_inline)) { return register_load_bf16(p + i * kRegisterLanes); });
}
INLINE Floats load_f16(const uint16_t* p) {
  return for_parts([=](int i) __attribute__((always_inline)) { return register_load_f16(p + i * kRegisterLanes); });
}
INLINE Floats load_i8(const int8_t* p) {
  return for_parts([=](int i) __attribute__((always_inline)) { return register_load_i8(p + i * kRegisterLanes); });
}
INLINE Floats load_e4m3(const uint8_t* p) {
  return for_parts([=](int i) __attribute__((always_inline)) { return register_load_e4m3(p + i * kRegisterLanes); });
}
INLINE void store(float* p, Floats a) {
  UNROLL for (int i = 0; i < kRegisters; ++i) register_store(p + i * kRegisterLanes, a.part[i]);
}
INLINE void store_bf16(uint16_t* p, Floats a) {
  UNROLL for (int i = 0; i < kRegisters; ++i) register_store_bf16(p + i * kRegisterLanes, a.part[i]);
}
INLINE void store_f16(uint16_t* p, Floats a) {
  UNROLL for (int i = 0; i < kRegisters; ++i) register_store_f16(p + i * kRegisterLanes, a.part[i]);
}
// Rounded to nearest even, at most +-127: adding 1.5 * 2^23 leaves the whole number in the low bits.
INLINE void store_i8(int8_t* p, Floats a) {
  alignas(64) uint32_t bits[kLanes];
  UNROLL for (int i = 0; i < kRegisters; ++i) {
    const Register bounded = register_min(register_max(a.part[i], register_set(-127.0f)), register_set(127.0f));
    register_store(reinterpret_cast<float*>(bits) + i * kRegisterLanes, register_add(bounded, register_set(12582912.0f)));
  }
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<int8_t>(bits[i]);
}
// E4M3 without infinities (Micikevicius et al., 2022), rounded to nearest even; beyond 448: 448. A NaN stays one.
INLINE void store_e4m3(uint8_t* p, Floats a) {
  alignas(64) uint32_t bits[kLanes], shifted[kLanes];  // shifted: where adding 2^14 rounds a subnormal result
  UNROLL for (int i = 0; i < kRegisters; ++i) {
    const Register magnitude = register_max(a.part[i], register_subtract(register_set(0.0f), a.part[i]));
    register_store(reinterpret_cast<float*>(bits) + i * kRegisterLanes, a.part[i]);
    register_store(reinterpret_cast<float*>(shifted) + i * kRegisterLanes,
                   register_add(register_min(magnitude, register_set(1.0f)), register_set(16384.0f)));
  }
  for (int i = 0; i < kLanes; ++i) {
    const uint32_t magnitude = bits[i] & 0x7fffffffu;
    const uint32_t normal = (magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20;
    const uint32_t small = shifted[i] - 0x46800000u;
    const uint32_t rounded = magnitude < 0x3c800000u ? small : normal - (120u << 3);
    const uint32_t bounded = magnitude > 0x43e00000u ? 0x7eu : rounded;
    p[i] = static_cast<uint8_t>((magnitude > 0x7f800000u ? 0x7fu : bounded) | (bits[i] >> 24 & 0x80u));
  }
}
#define LANEWISE(name, operation)                                                                            \
  INLINE Floats name(Floats a, Floats b) {                                                                   \
    return for_parts([&](int i) __attribute__((always_inline)) { return operation(a.part[i], b.part[i]); }); \
  }
LANEWISE(add, register_add)
LANEWISE(subtract, register_subtract)
LANEWISE(multiply, register_multiply)
LANEWISE(divide, register_divide)
LANEWISE(minimum, register_min)
LANEWISE(maximum, register_max)
#undef LANEWISE
// a * b + c
INLINE Floats fma(Floats a, Floats b, Floats c) {
  return for_parts([&](int i) __attribute__((always_inline)) { return register_fma(a.part[i], b.part[i], c.part[i]); });
}
// c - a * b
INLINE Floats fnma(Floats a, Floats b, Floats c) {
  return for_parts([&](int i) __attribute__((always_inline)) { return register_fnma(a.part[i], b.part[i], c.part[i]); });
}
// value where index <= last, else other
INLINE Floats select_up_to(Floats index, Floats last, Floats value, Floats other) {
  return for_parts([&](int i) __attribute__((always_inline)) {
    return register_select_up_to(index.part[i], last.part[i], value.part[i], other.part[i]);
  });
}

// Whether any lane of a is larger than b's.
INLINE bool any_above(Floats a, Floats b) {
  bool any = false;
  UNROLL for (int i = 0; i < kRegisters; ++i) any |= register_any_above(a.part[i], b.part[i]);
  return any;
}

// Halves are added in a fixed order: lane i to lane i + 8, then + 4, + 2, + 1.
INLINE float sum(Floats a) {
  for (int width = kRegisters / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) a.part[i] = register_add(a.part[i], a.part[i + width]);
  return register_sum(a.part[0]);
}
INLINE float largest(Floats a) {
  for (int width = kRegisters / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) a.part[i] = register_max(a.part[i], a.part[i + width]);
  return register_largest(a.part[0]);
}

// e^x with a relative error below 3e-7; e^0 is exactly 1, below ln(2^-126) exactly 0, above 127.5 ln 2 infinite, NaN
// stays NaN. x = n ln 2 + r (Cody and Waite's two-part ln 2), then the polynomial of degree 5 with p(0) = 1 that has the
// smallest relative error (9.2e-8) over |r| <= ln 2 / 2.
INLINE Register register_exp(Register x) {
  const Register low = register_set(-87.33654f);
  const Register round = register_set(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const Register bounded = register_max(low, register_min(register_set(89.0f), x));
  const Register shifted = register_fma(bounded, register_set(1.44269504f), round);
  const Register n = register_subtract(shifted, round);
  Register r = register_fnma(n, register_set(0.693359375f), bounded);
  r = register_fnma(n, register_set(-2.12194440e-4f), r);
  Register p = register_set(0.00829027214f);
  p = register_fma(p, r, register_set(0.0418981598f));
  p = register_fma(p, r, register_set(0.166676381f));
  p = register_fma(p, r, register_set(0.499991478f));
  p = register_fma(p, r, register_set(0.999999706f));
  p = register_fma(p, r, register_set(1.0f));
  return register_zero_below(x, low, register_multiply(p, register_power_of_two(shifted)));
}
INLINE Floats exp(Floats x) {
  return for_parts([&](int i) __attribute__((always_inline)) { return register_exp(x.part[i]); });
}

// 2^x, with the same error: x = n + r, and that polynomial of r ln 2. 2^0 is exactly 1; a result below 2^-149 (without
// AVX-512 2^-126) is 0, of -infinity exactly, NaN stays NaN.
INLINE Register register_exp2(Register x) {
#if defined(__AVX512F__)
  const Register r = register_fraction(x);
#else
  const Register low = register_set(-126.0f);
  const Register round = register_set(12582912.0f);
  const Register bounded = register_max(low, register_min(register_set(128.4f), x));
  const Register shifted = register_add(bounded, round);
  const Register r = register_subtract(bounded, register_subtract(shifted, round));
#endif
  Register p = register_set(0.00132646591f);
  p = register_fma(p, r, register_set(0.00967156585f));
  p = register_fma(p, r, register_set(0.0555073438f));
  p = register_fma(p, r, register_set(0.240222412f));
  p = register_fma(p, r, register_set(0.693146977f));
  p = register_fma(p, r, register_set(1.0f));
#if defined(__AVX512F__)
  return register_scale(p, register_subtract(x, r));
#else
  return register_zero_below(x, low, register_multiply(p, register_power_of_two(shifted)));
#endif
}
INLINE Floats exp2(Floats x) {
  return for_parts([&](int i) __attribute__((always_inline)) { return register_exp2(x.part[i]); });
}

// The first `count` (at most 16) of p, the rest 0; and back.
INLINE Floats load_some(const float* p, int64_t count) {
  alignas(64) float lane[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) lane[i] = p[i];
  return load(lane);
}
INLINE void store_some(float* p, Floats a, int64_t count) {
  alignas(64) float lane[kLanes];
  store(lane, a);
  for (int64_t i = 0; i < count; ++i) p[i] = lane[i];
}

// The largest magnitude of x [size], and 0, or NaN if anything in x is not finite.
struct Magnitude {
  float largest, poison;
};
INLINE Magnitude magnitude(const float* x, int64_t size) {
  Floats top = set(0.0f), poison = set(0.0f);
  for (int64_t i = 0; i < size; i += kLanes) {
    const Floats value = size - i < kLanes ? load_some(x + i, size - i) : load(x + i);
    top = maximum(top, maximum(value, subtract(set(0.0f), value)));
    poison = add(poison, multiply(value, set(0.0f)));
  }
  return {largest(top), sum(poison)};
}

}  // namespace octavo::OCTAVO_ISA
