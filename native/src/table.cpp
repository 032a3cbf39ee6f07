// Finds the kernels of an instruction set by name, if they were compiled in and the processor can run them.
#include "kernels/table.h"

#include <cstring>

#include "cpu.h"

namespace octavo {

#define DECLARE(isa)          \
  namespace isa {             \
  extern const Kernels kernels; \
  }
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

const Kernels* find_kernels(const char* name) {
  const CpuFeatures& cpu = cpu_features();
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
  return std::strcmp(name, "generic") == 0 ? &generic::kernels : nullptr;
}

// The ggml type numbers of the GGUF specification.
BlockSize gguf_block_size(int32_t type) {
  switch (type) {
    case 0: return {1, 4};       // F32
    case 1: return {1, 2};       // F16
    case 2: return {32, 18};     // Q4_0
    case 3: return {32, 20};     // Q4_1
    case 6: return {32, 22};     // Q5_0
    case 7: return {32, 24};     // Q5_1
    case 8: return {32, 34};     // Q8_0
    case 10: return {256, 84};   // Q2_K
    case 11: return {256, 110};  // Q3_K
    case 12: return {256, 144};  // Q4_K
    case 13: return {256, 176};  // Q5_K
    case 14: return {256, 210};  // Q6_K
    case 30: return {1, 2};      // BF16
    default: return {0, 0};
  }
}

}  // namespace octavo
