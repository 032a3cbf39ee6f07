// How activations are packed that vectors multiply as floats: in chunks of some steps, in each of them one row behind the
// other, so that a row is stored as it comes and its place is a constant distance from the first one's.
#pragma once

#include "simd.h"
#include "table.h"

namespace octavo::OCTAVO_ISA {

constexpr int64_t kChunkSteps = 64;

template <class Scalar>
INLINE int64_t packed_row_bytes(int64_t steps) {
  return ceil_div(steps, kChunkSteps) * kChunkSteps * static_cast<int64_t>(sizeof(Scalar));
}

// The first of `rows` rows at a step; the others are kChunkSteps further each. And how many steps up to `last`, which is not
// one of them, lie side by side from there on.
template <class Scalar>
INLINE const Scalar* place_of(const Scalar* block, int64_t rows, int64_t step) {
  return block + (step - step % kChunkSteps) * rows + step % kChunkSteps;
}
INLINE int64_t steps_until(int64_t step, int64_t last) {
  const int64_t in_chunk = kChunkSteps - step % kChunkSteps;
  return in_chunk < last - step ? in_chunk : last - step;
}

}  // namespace octavo::OCTAVO_ISA
