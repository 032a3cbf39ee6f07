#include "cpu.h"

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace octavo {
namespace {

#if defined(__x86_64__)

struct Registers {
  uint32_t a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(uint32_t leaf, uint32_t subleaf) {
  Registers r;
  if (!__get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d)) return {};
  return r;
}

bool bit(uint32_t word, int index) { return (word >> index & 1) != 0; }

// Which registers the operating system saves on a context switch.
uint64_t enabled_state() {
  uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

// Linux gives a process the tile registers only when it asks for them (arch_prctl(2), ARCH_REQ_XCOMP_PERM of
// XFEATURE_XTILEDATA); threads and forked children then have them too.
bool ask_for_tiles() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

// Bit numbers: Intel SDM volume 2, CPUID; XCR0: volume 1, chapter 13.
CpuFeatures detect() {
  CpuFeatures features;
  const Registers one = cpuid(1, 0);
  if (!bit(one.c, 27)) return features;  // OSXSAVE: xgetbv may be used
  const uint64_t state = enabled_state();
  const Registers seven = cpuid(7, 0);
  const bool ymm = (state & 0x6) == 0x6;
  const bool zmm = (state & 0xe6) == 0xe6;
  features.avx2 = ymm && bit(seven.b, 5) && bit(one.c, 12) && bit(one.c, 29);
  features.avx512 = features.avx2 && zmm && bit(seven.b, 16) && bit(seven.b, 17) && bit(seven.b, 30) && bit(seven.b, 31);
  features.avx512_bf16 = features.avx512 && bit(seven.c, 11) && bit(cpuid(7, 1).a, 5);
  const bool tiles = (state & 0x60000) == 0x60000 && bit(seven.d, 22) && bit(seven.d, 24) && bit(seven.d, 25);
  features.amx = features.avx512_bf16 && tiles && ask_for_tiles();
  return features;
}

#else

CpuFeatures detect() { return {}; }

#endif

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

}  // namespace octavo
