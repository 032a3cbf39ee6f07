// Sixteen integers at once, as `Floats` are sixteen floats: what products of quantized weights are made of.
#pragma once

#include "simd.h"

namespace octavo::OCTAVO_ISA {

template <class Function>
INLINE Ints for_int_parts(Function function) {
  Ints result;
  UNROLL for (int i = 0; i < kRegisters; ++i) result.part[i] = function(i);
  return result;
}

INLINE Ints set_int(int32_t x) {
  return for_int_parts([=](int) __attribute__((always_inline)) { return register_int_set(x); });
}
// 64 bytes.
INLINE Ints load_bytes(const void* p) {
  return for_int_parts([=](int i) __attribute__((always_inline)) {
    return register_int_load(static_cast<const char*>(p) + i * kRegisterLanes * 4);
  });
}
INLINE Ints add(Ints a, Ints b) {
  return for_int_parts([&](int i) __attribute__((always_inline)) { return register_int_add(a.part[i], b.part[i]); });
}
template <int kBits>
INLINE Ints shift_left(Ints a) {
  return for_int_parts([&](int i) __attribute__((always_inline)) { return register_shift_left<kBits>(a.part[i]); });
}
template <int kBits>
INLINE Ints shift_right(Ints a) {
  return for_int_parts([&](int i) __attribute__((always_inline)) { return register_shift_right<kBits>(a.part[i]); });
}
// The low and the high halves of all bytes.
INLINE Ints low_nibbles(Ints a) {
  return for_int_parts([&](int i) __attribute__((always_inline)) { return register_nibbles(a.part[i]); });
}
INLINE Ints high_nibbles(Ints a) { return low_nibbles(shift_right<4>(a)); }
// Of bytes that are codes of E2M1: kFloat4Bytes.
INLINE Ints float4_bytes(Ints a) {
  return for_int_parts([&](int i) __attribute__((always_inline)) { return register_float4_bytes(a.part[i]); });
}
// Words with those bits of `bits` that are in `mask`; the words have none there.
INLINE Ints merge_bits(Ints words, Ints bits, Ints mask) {
  return for_int_parts([&](int i) __attribute__((always_inline)) {
    return register_merge_bits(words.part[i], bits.part[i], mask.part[i]);
  });
}
INLINE Floats to_floats(Ints a) {
  return for_parts([&](int i) __attribute__((always_inline)) { return register_to_float(a.part[i]); });
}
// The lowest byte of each.
INLINE void store_low_bytes(uint8_t* p, Ints a) {
  UNROLL for (int i = 0; i < kRegisters; ++i) register_store_bytes(p + i * kRegisterLanes, a.part[i]);
}

// x rounded to the nearest integers, ties to even; |x| below 2^21.
INLINE Ints round_to_ints(Floats x) {
  const Floats shifted = add(x, set(12582912.0f));  // 1.5 * 2^23: the integer is in the low bits
  return for_int_parts([&](int i) __attribute__((always_inline)) {
    return register_shift_right<10>(register_shift_left<10>((IntRegister)register_bits(shifted.part[i])));
  });
}

// Four signed bytes in every lane.
struct Four {
  FourRegister all;
};
INLINE Four set_four(uint32_t bytes) { return {register_four(bytes)}; }
// sum + the dot products of the four unsigned bytes in each lane with the four signed ones.
INLINE Ints dot(Ints sum, Ints unsigned_bytes, Four signed_bytes) {
  return for_int_parts([&](int i) __attribute__((always_inline)) {
    return register_dot(sum.part[i], unsigned_bytes.part[i], signed_bytes.all);
  });
}

}  // namespace octavo::OCTAVO_ISA
