// Four floats through the compiler's vector extensions (SSE2, NEON, or whatever the target has), and what the kernels do
// with them. Included inside the instruction set's namespace.
using Register = float __attribute__((vector_size(16)));
using RegisterBits = uint32_t __attribute__((vector_size(16)));
using RegisterHalves = uint16_t __attribute__((vector_size(8)));
constexpr int kRegisterLanes = 4;

INLINE Register register_set(float x) { return Register{x, x, x, x}; }
INLINE Register register_load(const float* p) {
  Register a;
  __builtin_memcpy(&a, p, sizeof a);
  return a;
}
INLINE void register_store(float* p, Register a) { __builtin_memcpy(p, &a, sizeof a); }
INLINE Register register_add(Register a, Register b) { return a + b; }
INLINE Register register_subtract(Register a, Register b) { return a - b; }
INLINE Register register_multiply(Register a, Register b) { return a * b; }
INLINE Register register_divide(Register a, Register b) { return a / b; }
#if defined(__ARM_NEON) && defined(__aarch64__)
INLINE Register register_fma(Register a, Register b, Register c) {
  return (Register)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
INLINE Register register_fnma(Register a, Register b, Register c) {
  return (Register)vfmsq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
#else
INLINE Register register_fma(Register a, Register b, Register c) { return a * b + c; }
INLINE Register register_fnma(Register a, Register b, Register c) { return c - a * b; }
#endif

INLINE RegisterBits register_bits(Register a) { return (RegisterBits)a; }
INLINE Register register_choose(RegisterBits mask, Register yes, Register no) {
  return (Register)((mask & register_bits(yes)) | (~mask & register_bits(no)));
}
// If either is NaN: the second.
INLINE Register register_min(Register a, Register b) { return register_choose((RegisterBits)(a < b), a, b); }
INLINE Register register_max(Register a, Register b) { return register_choose((RegisterBits)(a > b), a, b); }

// 2^n of the integers in the low mantissa bits of t.
INLINE Register register_power_of_two(Register t) { return (Register)((register_bits(t) << 23) + (127u << 23)); }
// value, but 0 where x < low.
INLINE Register register_zero_below(Register x, Register low, Register value) {
  return (Register)(~(RegisterBits)(x < low) & register_bits(value));
}
// value where index <= last, else other.
INLINE Register register_select_up_to(Register index, Register last, Register value, Register other) {
  return register_choose((RegisterBits)(index <= last), value, other);
}

// Whether any lane of a is larger than b's.
INLINE bool register_any_above(Register a, Register b) {
  const RegisterBits above = (RegisterBits)(a > b);
  return (above[0] | above[1] | above[2] | above[3]) != 0;
}

INLINE RegisterBits register_load_halves(const uint16_t* p) {
  RegisterHalves halves;
  __builtin_memcpy(&halves, p, sizeof halves);
  return __builtin_convertvector(halves, RegisterBits);
}
INLINE void register_store_halves(uint16_t* p, RegisterBits bits) {
  const RegisterHalves halves = __builtin_convertvector(bits, RegisterHalves);
  __builtin_memcpy(p, &halves, sizeof halves);
}
INLINE Register register_load_bf16(const uint16_t* p) { return (Register)(register_load_halves(p) << 16); }

INLINE Register register_load_i8(const int8_t* p) {
  using Integers = int32_t __attribute__((vector_size(16)));
  int8_t bytes __attribute__((vector_size(4)));
  __builtin_memcpy(&bytes, p, sizeof bytes);
  return __builtin_convertvector(__builtin_convertvector(bytes, Integers), Register);
}
// Subnormals get the smallest normal exponent, and lose its value again.
INLINE Register register_load_e4m3(const uint8_t* p) {
  uint8_t bytes __attribute__((vector_size(4)));
  __builtin_memcpy(&bytes, p, sizeof bytes);
  const RegisterBits byte = __builtin_convertvector(bytes, RegisterBits);
  const RegisterBits magnitude = byte & 0x7fu;
  const RegisterBits subnormal = (RegisterBits)(magnitude < 8u);
  const RegisterBits shifted = (magnitude << 20) + (120u << 23) + (subnormal & 1u << 23);
  const RegisterBits value = register_bits((Register)shifted - (Register)(subnormal & 0x3c800000u));  // 2^-6
  const RegisterBits nan = (RegisterBits)(magnitude == 0x7fu) & 0x7fc00000u;
  return (Register)(value | nan | (byte & 0x80u) << 24);
}

// The exponent is rebiased by a multiplication, which also normalises subnormal halves; infinities and NaNs are put back.
INLINE Register register_load_f16(const uint16_t* p) {
  const RegisterBits half = register_load_halves(p);
  const RegisterBits magnitude = (half & 0x7fffu) << 13;
  const RegisterBits scaled = register_bits((Register)magnitude * register_set(0x1p112f));
  const RegisterBits special = (RegisterBits)((half & 0x7c00u) == 0x7c00u) & 0x7f800000u;
  return (Register)(scaled | special | (half & 0x8000u) << 16);
}
// Normal results round in the integer domain; for subnormal ones, adding 0.5 lets the addition round at the right bit.
INLINE void register_store_f16(uint16_t* p, Register a) {
  const RegisterBits bits = register_bits(a);
  const RegisterBits sign = bits >> 16 & 0x8000u;
  const RegisterBits magnitude = bits & 0x7fffffffu;
  const RegisterBits normal = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13;
  const RegisterBits subnormal = register_bits((Register)magnitude + register_set(0.5f)) - 0x3f000000u;
  const RegisterBits small = (RegisterBits)(magnitude < 0x38800000u);   // below 2^-14
  const RegisterBits large = (RegisterBits)(magnitude >= 0x477ff000u);  // rounds to 65536 or more
  const RegisterBits nan = (RegisterBits)(magnitude > 0x7f800000u);
  RegisterBits result = (small & subnormal) | (~small & normal);
  result = (large & 0x7c00u) | (~large & result);
  result = (nan & 0x7e00u) | (~nan & result);
  register_store_halves(p, result | sign);
}
// Rounds to nearest even; a NaN stays one.
INLINE void register_store_bf16(uint16_t* p, Register a) {
  const RegisterBits bits = register_bits(a);
  const RegisterBits rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  const RegisterBits nan = (RegisterBits)(a != a);
  register_store_halves(p, (nan & (bits >> 16 | 0x40u)) | (~nan & rounded));
}

// Lane i and lane i + 2, then + 1.
INLINE float register_sum(Register a) { return (a[0] + a[2]) + (a[1] + a[3]); }
INLINE float register_largest(Register a) {
  const float even = a[0] > a[2] ? a[0] : a[2];
  const float odd = a[1] > a[3] ? a[1] : a[3];
  return even > odd ? even : odd;
}

// The same register as 4 integers, or as 16 bytes: four neighbouring inputs in each lane.
using IntRegister = int32_t __attribute__((vector_size(16)));

INLINE IntRegister register_int_set(int32_t x) { return IntRegister{x, x, x, x}; }
INLINE IntRegister register_int_load(const void* p) {
  IntRegister a;
  __builtin_memcpy(&a, p, sizeof a);
  return a;
}
// Sums wrap round, as they do in the other instruction sets.
INLINE IntRegister register_int_add(IntRegister a, IntRegister b) {
  return (IntRegister)((RegisterBits)a + (RegisterBits)b);
}
INLINE Register register_to_float(IntRegister a) { return __builtin_convertvector(a, Register); }
template <int kBits>
INLINE IntRegister register_shift_left(IntRegister a) {
  return (IntRegister)((RegisterBits)a << kBits);
}
template <int kBits>
INLINE IntRegister register_shift_right(IntRegister a) {  // with the sign
  return a >> kBits;
}
INLINE IntRegister register_nibbles(IntRegister a) { return a & 0x0f0f0f0f; }
INLINE IntRegister register_merge_bits(IntRegister words, IntRegister bits, IntRegister mask) {
  return words | (bits & mask);
}
// Without a table: beyond 4 the steps between numbers grow. Comparisons give -1 where they hold.
INLINE IntRegister register_float4_bytes(IntRegister a) {
  using Bytes16 = int8_t __attribute__((vector_size(16)));
  const Bytes16 code = (Bytes16)a, number = code & 7, sign = (Bytes16)(code > 7);
  const Bytes16 doubled = number - (Bytes16)(number > 4) - (Bytes16)(number > 5) + ((Bytes16)(number > 6) & 3);
  return (IntRegister)((doubled ^ sign) - sign + 12);
}
// The lowest byte of each lane.
INLINE void register_store_bytes(uint8_t* p, IntRegister a) {
  for (int i = 0; i < kRegisterLanes; ++i) p[i] = static_cast<uint8_t>(a[i]);
}

// Four signed bytes in every lane, to be multiplied by four unsigned ones and added up.
#if defined(__SSE2__)
struct FourRegister {
  __m128i even, odd;
};
INLINE FourRegister register_four(uint32_t bytes) {
  const __m128i all = _mm_set1_epi32(static_cast<int>(bytes));
  return {_mm_srai_epi16(_mm_slli_epi16(all, 8), 8), _mm_srai_epi16(all, 8)};
}
INLINE IntRegister register_dot(IntRegister sum, IntRegister unsigned_bytes, FourRegister signed_bytes) {
  const __m128i even = _mm_and_si128((__m128i)unsigned_bytes, _mm_set1_epi16(0xff));
  const __m128i odd = _mm_srli_epi16((__m128i)unsigned_bytes, 8);
  const __m128i products = _mm_add_epi32(_mm_madd_epi16(even, signed_bytes.even), _mm_madd_epi16(odd, signed_bytes.odd));
  return register_int_add(sum, (IntRegister)products);
}
#else
struct FourRegister {
  IntRegister input[4];
};
INLINE FourRegister register_four(uint32_t bytes) {
  FourRegister four;
  for (int i = 0; i < 4; ++i) four.input[i] = register_int_set(static_cast<int8_t>(bytes >> 8 * i));
  return four;
}
INLINE IntRegister register_dot(IntRegister sum, IntRegister unsigned_bytes, FourRegister signed_bytes) {
  IntRegister products = (unsigned_bytes & 0xff) * signed_bytes.input[0];
  for (int i = 1; i < 4; ++i) products += (unsigned_bytes >> 8 * i & 0xff) * signed_bytes.input[i];
  return register_int_add(sum, products);
}
#endif
