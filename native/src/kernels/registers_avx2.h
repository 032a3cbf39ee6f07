// One AVX2 register of 8 floats, and what the kernels do with it. Included inside the instruction set's namespace.
using Register = __m256;
constexpr int kRegisterLanes = 8;

INLINE Register register_set(float x) { return _mm256_set1_ps(x); }
INLINE Register register_load(const float* p) { return _mm256_loadu_ps(p); }
INLINE void register_store(float* p, Register a) { _mm256_storeu_ps(p, a); }
INLINE Register register_add(Register a, Register b) { return _mm256_add_ps(a, b); }
INLINE Register register_subtract(Register a, Register b) { return _mm256_sub_ps(a, b); }
INLINE Register register_multiply(Register a, Register b) { return _mm256_mul_ps(a, b); }
INLINE Register register_divide(Register a, Register b) { return _mm256_div_ps(a, b); }
INLINE Register register_fma(Register a, Register b, Register c) { return _mm256_fmadd_ps(a, b, c); }
INLINE Register register_fnma(Register a, Register b, Register c) { return _mm256_fnmadd_ps(a, b, c); }
// If either is NaN: the second.
INLINE Register register_min(Register a, Register b) { return _mm256_min_ps(a, b); }
INLINE Register register_max(Register a, Register b) { return _mm256_max_ps(a, b); }

// 2^n of the integers in the low mantissa bits of t.
INLINE Register register_power_of_two(Register t) {
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_slli_epi32(_mm256_castps_si256(t), 23), _mm256_set1_epi32(127 << 23)));
}
// value, but 0 where x < low.
INLINE Register register_zero_below(Register x, Register low, Register value) {
  return _mm256_and_ps(_mm256_cmp_ps(x, low, _CMP_NLT_UQ), value);
}
// value where index <= last, else other.
INLINE Register register_select_up_to(Register index, Register last, Register value, Register other) {
  return _mm256_blendv_ps(other, value, _mm256_cmp_ps(index, last, _CMP_LE_OQ));
}

INLINE Register register_load_bf16(const uint16_t* p) {
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
INLINE Register register_load_f16(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
INLINE void register_store_f16(uint16_t* p, Register a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
// Rounds to nearest even; a NaN stays one.
INLINE void register_store_bf16(uint16_t* p, Register a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  const __m256i wide = _mm256_blendv_epi8(rounded, quiet, nan);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(wide, wide), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}

// Lane i and lane i + 4, then + 2, + 1.
#define FOLD(name, narrow, single)                                                      \
  INLINE float name(Register a) {                                                       \
    const __m128 four = narrow(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1)); \
    const __m128 two = narrow(four, _mm_movehl_ps(four, four));                         \
    return _mm_cvtss_f32(single(two, _mm_movehdup_ps(two)));                            \
  }
FOLD(register_sum, _mm_add_ps, _mm_add_ss)
FOLD(register_largest, _mm_max_ps, _mm_max_ss)
#undef FOLD
