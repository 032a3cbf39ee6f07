// Finds the kernels of an instruction set by name, if they were compiled in and the processor can run them.
#include "kernels/table.h"

#include <cstring>

#include "cpu.h"
#include "trial.h"

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
#if defined(OCTAVO_HAS_amx_emulated)
DECLARE(amx_emulated)
#endif
DECLARE(generic)

namespace {

// What was compiled in, and whether the processor has it.
struct Entry {
  const Kernels* kernels;
  bool has;
};

Entry find(const char* name) {
  const CpuFeatures& cpu = cpu_features();
#if defined(OCTAVO_HAS_amx)
  if (std::strcmp(name, "amx") == 0) return {&amx::kernels, cpu.amx};
#endif
#if defined(OCTAVO_HAS_avx512_bf16)
  if (std::strcmp(name, "avx512_bf16") == 0) return {&avx512_bf16::kernels, cpu.avx512_bf16};
#endif
#if defined(OCTAVO_HAS_avx512)
  if (std::strcmp(name, "avx512") == 0) return {&avx512::kernels, cpu.avx512};
#endif
#if defined(OCTAVO_HAS_avx2)
  if (std::strcmp(name, "avx2") == 0) return {&avx2::kernels, cpu.avx2};
#endif
#if defined(OCTAVO_HAS_amx_emulated)
  if (std::strcmp(name, "amx_emulated") == 0) return {&amx_emulated::kernels, true};
#endif
  static_cast<void>(cpu);
  if (std::strcmp(name, "generic") == 0) return {&generic::kernels, true};
  return {nullptr, false};
}

// Tiles are what hypervisors get wrong, and the one instruction set whose kernels a machine for tests may lack.
bool tiles_work(const Kernels& kernels) {
  static const bool works = passes_trial(kernels, generic::kernels);
  return works;
}

}  // namespace

const Kernels* find_kernels(const char* name) {
  const Entry entry = find(name);
  if (!entry.has || (std::strcmp(name, "amx") == 0 && !tiles_work(*entry.kernels))) return nullptr;
  return entry.kernels;
}

bool try_kernels(const char* name) {
  const Entry entry = find(name);
  return entry.kernels != nullptr && passes_trial(*entry.kernels, generic::kernels);
}

}  // namespace octavo
