// Finds the kernels of an instruction set by name, if they were compiled in and the processor can run them.
#include "kernels/table.h"

#include <cstring>

#include "cpu.h"

namespace octavo {

#define DECLARE(isa)            \
  namespace isa {               \
  extern const Kernels kernels; \
  }
#if defined(OCTAVO_HAS_amx)
DECLARE(amx)
#endif
#if defined(OCTAVO_HAS_avx512_bf16)
DECLARE(avx512_bf16)
#endif
#if defined(OCTAVO_HAS_avx512)
DECLARE(avx512)
#endif
#if defined(OCTAVO_HAS_avx2)
DECLARE(avx2)
#endif
DECLARE(generic)
DECLARE(amx_emulated)

const Kernels* find_kernels(const char* name) {
  const CpuFeatures& cpu = cpu_features();
#if defined(OCTAVO_HAS_amx)
  if (std::strcmp(name, "amx") == 0) return cpu.amx ? &amx::kernels : nullptr;
#endif
#if defined(OCTAVO_HAS_avx512_bf16)
  if (std::strcmp(name, "avx512_bf16") == 0) return cpu.avx512_bf16 ? &avx512_bf16::kernels : nullptr;
#endif
#if defined(OCTAVO_HAS_avx512)
  if (std::strcmp(name, "avx512") == 0) return cpu.avx512 ? &avx512::kernels : nullptr;
#endif
#if defined(OCTAVO_HAS_avx2)
  if (std::strcmp(name, "avx2") == 0) return cpu.avx2 ? &avx2::kernels : nullptr;
#endif
  static_cast<void>(cpu);
  if (std::strcmp(name, "amx_emulated") == 0) return &amx_emulated::kernels;
  return std::strcmp(name, "generic") == 0 ? &generic::kernels : nullptr;
}

}  // namespace octavo
