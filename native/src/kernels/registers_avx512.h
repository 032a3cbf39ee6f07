// One AVX-512 register of 16 floats, and what the kernels do with it. Included inside the instruction set's namespace.
using Register = __m512;
constexpr int kRegisterLanes = 16;

INLINE Register register_set(float x) { return _mm512_set1_ps(x); }
INLINE Register register_load(const float* p) { return _mm512_loadu_ps(p); }
INLINE void register_store(float* p, Register a) { _mm512_storeu_ps(p, a); }
INLINE Register register_add(Register a, Register b) { return _mm512_add_ps(a, b); }
INLINE Register register_subtract(Register a, Register b) { return _mm512_sub_ps(a, b); }
INLINE Register register_multiply(Register a, Register b) { return _mm512_mul_ps(a, b); }
INLINE Register register_divide(Register a, Register b) { return _mm512_div_ps(a, b); }
INLINE Register register_fma(Register a, Register b, Register c) { return _mm512_fmadd_ps(a, b, c); }
INLINE Register register_fnma(Register a, Register b, Register c) { return _mm512_fnmadd_ps(a, b, c); }
// If either is NaN: the second.
INLINE Register register_min(Register a, Register b) { return _mm512_min_ps(a, b); }
INLINE Register register_max(Register a, Register b) { return _mm512_max_ps(a, b); }

// 2^n of the integers in the low mantissa bits of t.
INLINE Register register_power_of_two(Register t) {
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_slli_epi32(_mm512_castps_si512(t), 23), _mm512_set1_epi32(127 << 23)));
}
// value, but 0 where x < low.
INLINE Register register_zero_below(Register x, Register low, Register value) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, low, _CMP_NLT_UQ), value);
}
// value where index <= last, else other.
INLINE Register register_select_up_to(Register index, Register last, Register value, Register other) {
  return _mm512_mask_mov_ps(other, _mm512_cmp_ps_mask(index, last, _CMP_LE_OQ), value);
}

// Whether any lane of a is larger than b's.
INLINE bool register_any_above(Register a, Register b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }
// x less the nearest integer; 0 of an infinity.
INLINE Register register_fraction(Register x) { return _mm512_reduce_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// x less the integer below it; 0 of an infinity.
INLINE Register register_fraction_above(Register x) {
  return _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}
// value * 2^n of the integer n at or below each lane.
INLINE Register register_scale(Register value, Register n) { return _mm512_scalef_ps(value, n); }

INLINE Register register_load_bf16(const uint16_t* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
INLINE Register register_load_f16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
INLINE Register register_load_i8(const int8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
// As float16 with the exponent's bias still that of E4M3, which a multiplication by 2^8 puts right, subnormals included.
INLINE Register register_load_e4m3(const uint8_t* p) {
  const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i magnitude = _mm256_and_si256(wide, _mm256_set1_epi16(0x7f));
  const __m256i sign = _mm256_slli_epi16(_mm256_xor_si256(wide, magnitude), 8);
  const __m256i half = _mm256_or_si256(_mm256_slli_epi16(magnitude, 7), sign);
  const __m256i nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f));
  return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(half, _mm256_and_si256(nan, _mm256_set1_epi16(0x7e00)))),
                       _mm512_set1_ps(256.0f));
}
INLINE void register_store_f16(uint16_t* p, Register a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
// Rounds to nearest even; a NaN stays one.
INLINE void register_store_bf16(uint16_t* p, Register a) {
  const __m512i bits = _mm512_castps_si512(a);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
  const __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, nan, quiet)));
}

// Lane i and lane i + 8, then + 4, + 2, + 1.
#define FOLD(name, wide, narrow, single)                                                        \
  INLINE float name(Register a) {                                                               \
    const __m256 eight = wide(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));         \
    const __m128 four = narrow(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1)); \
    const __m128 two = narrow(four, _mm_movehl_ps(four, four));                                 \
    return _mm_cvtss_f32(single(two, _mm_movehdup_ps(two)));                                    \
  }
FOLD(register_sum, _mm256_add_ps, _mm_add_ps, _mm_add_ss)
FOLD(register_largest, _mm256_max_ps, _mm_max_ps, _mm_max_ss)
#undef FOLD

// The same register as 16 integers, or as 64 bytes: four neighbouring inputs in each lane.
using IntRegister = __m512i;

INLINE IntRegister register_int_set(int32_t x) { return _mm512_set1_epi32(x); }
INLINE IntRegister register_int_load(const void* p) { return _mm512_loadu_si512(p); }
INLINE IntRegister register_int_add(IntRegister a, IntRegister b) { return _mm512_add_epi32(a, b); }
INLINE IntRegister register_bits(Register a) { return _mm512_castps_si512(a); }
INLINE Register register_to_float(IntRegister a) { return _mm512_cvtepi32_ps(a); }
template <int kBits>
INLINE IntRegister register_shift_left(IntRegister a) {
  return _mm512_slli_epi32(a, kBits);
}
template <int kBits>
INLINE IntRegister register_shift_right(IntRegister a) {  // with the sign
  return _mm512_srai_epi32(a, kBits);
}
INLINE IntRegister register_nibbles(IntRegister a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
INLINE IntRegister register_merge_bits(IntRegister words, IntRegister bits, IntRegister mask) {
  return _mm512_ternarylogic_epi32(words, bits, mask, 0xf8);
}
INLINE IntRegister register_float4_bytes(IntRegister a) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kFloat4Bytes))), a);
}
// The lowest byte of each lane.
INLINE void register_store_bytes(uint8_t* p, IntRegister a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a));
}

// Four signed bytes in every lane, to be multiplied by four unsigned ones and added up.
#if defined(__AVX512VNNI__)
using FourRegister = __m512i;
INLINE FourRegister register_four(uint32_t bytes) { return _mm512_set1_epi32(static_cast<int>(bytes)); }
INLINE IntRegister register_dot(IntRegister sum, IntRegister unsigned_bytes, FourRegister signed_bytes) {
  // In place of the intrinsic, of whose sums GCC 12 keeps copies, more than there are registers.
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(unsigned_bytes), "v"(signed_bytes));
  return sum;
}
#else
struct FourRegister {
  __m512i even, odd;
};
INLINE FourRegister register_four(uint32_t bytes) {
  const __m512i all = _mm512_set1_epi32(static_cast<int>(bytes));
  return {_mm512_srai_epi16(_mm512_slli_epi16(all, 8), 8), _mm512_srai_epi16(all, 8)};
}
INLINE IntRegister register_dot(IntRegister sum, IntRegister unsigned_bytes, FourRegister signed_bytes) {
  const __m512i even = _mm512_and_si512(unsigned_bytes, _mm512_set1_epi16(0xff));
  const __m512i odd = _mm512_srli_epi16(unsigned_bytes, 8);
  return _mm512_add_epi32(
      sum, _mm512_add_epi32(_mm512_madd_epi16(even, signed_bytes.even), _mm512_madd_epi16(odd, signed_bytes.odd)));
}
#endif
