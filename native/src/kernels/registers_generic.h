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
