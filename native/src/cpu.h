// Which instruction sets this processor and operating system support.
#pragma once

namespace octavo {

struct CpuFeatures {
  bool avx2 = false;         // AVX2, FMA and F16C
  bool avx512 = false;       // F, BW, DQ and VL
  bool avx512_bf16 = false;  // the above, VDPBF16PS and VNNI
  bool amx = false;          // the above and tiles of bfloat16 and int8, which the system lets this process use
};

const CpuFeatures& cpu_features();

}  // namespace octavo
