// Products with E4M3 weights in vector registers: codes are widened there, once for all rows of a block, and each group's
// sums are scaled as they are added to the total.
#include "float8.h"

#include <utility>

#include "ahead.h"
#include "epilogue.h"
#include "parts.h"
#include "rows.h"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int64_t kStepBytes = Wide::depth * kLanes * kLinearVectors;

// A step of a register block: Wide::depth inputs of 16 outputs in each vector.
INLINE void widen_step(const char* p, Wide::Vector (&weights)[kLinearVectors]) {
#if defined(__AVX512BF16__)
  __m512i first, second;
  widen_pairs(p, first, second);
  weights[0] = (Wide::Vector)first;
  weights[1] = (Wide::Vector)second;
#else
  UNROLL for (int v = 0; v < kLinearVectors; ++v) weights[v] = load_e4m3(reinterpret_cast<const uint8_t*>(p) + v * kLanes);
#endif
}

// The totals of some rows with kLinearVectors * 16 outputs, from `vector` * 16 on.
template <int kRows>
INLINE void total_of(const LinearTask& task, int64_t panel, int vector, int64_t row, Ahead& ahead,
                     Floats (&total)[kRows][kLinearVectors]) {
  const Weight& weight = *task.weight;
  const int64_t inputs = float8_group_inputs(weight);
  const char* head = weight.panel(panel);
  const char* w = head + weight.codes + vector * float8_inputs(weight) * kLanes;
  Ahead asked = ahead;
  const Wide::Scalar* block = reinterpret_cast<const Wide::Scalar*>(task.packed + row * weight.row_bytes);
  UNROLL for (int r = 0; r < kRows; ++r) UNROLL for (int v = 0; v < kLinearVectors; ++v) total[r][v] = set(0.0f);
  for (int64_t start = 0; start < weight.in; start += inputs, head += head_bytes(weight)) {
    const int64_t end = ceil_div(weight.in - start < inputs ? weight.in : start + inputs, Wide::depth);
    Floats sum[kRows][kLinearVectors];
    UNROLL for (int r = 0; r < kRows; ++r) UNROLL for (int v = 0; v < kLinearVectors; ++v) sum[r][v] = set(0.0f);
    for (int64_t step = start / Wide::depth; step < end; step += steps_until(step, end)) {
      const Wide::Scalar* a = place_of(block, kRows, step);
      for (const Wide::Scalar* last = a + steps_until(step, end); a != last; ++a) {
        ask<kSecondLevel, kStepBytes>(asked);
        Wide::Vector weights[kLinearVectors];
        widen_step(w, weights);
        UNROLL for (int r = 0; r < kRows; ++r) UNROLL for (int v = 0; v < kLinearVectors; ++v)
            Wide::multiply_add(sum[r][v], a[r * kChunkSteps], weights[v]);
        w += kStepBytes;
      }
    }
    for (int v = 0; v < kLinearVectors; ++v) {
      const Floats scales = load_scales(weight, head, vector + v);
      UNROLL for (int r = 0; r < kRows; ++r) total[r][v] = fma(scales, sum[r][v], total[r][v]);
    }
  }
  ahead = asked;
}

template <int kRows>
void block(const LinearTask& task, int64_t panel, int64_t row, Ahead ahead) {
  Floats total[kRows][kLinearVectors];
  total_of<kRows>(task, panel, 0, row, ahead, total);
  if constexpr (kLinearVectors == 2) {
    for (int r = 0; r < kRows; ++r) finish(task, row + r, panel, total[r][0], total[r][1]);
  } else {
    Floats second[kRows][kLinearVectors];
    total_of<kRows>(task, panel, 1, row, ahead, second);
    for (int r = 0; r < kRows; ++r) finish(task, row + r, panel, total[r][0], second[r][0]);
  }
}

using Block = void (*)(const LinearTask&, int64_t, int64_t, Ahead);

template <int... kIndex>
Block select_block(int64_t rows, std::integer_sequence<int, kIndex...>) {
  static constexpr Block blocks[] = {block<kIndex + 1>...};
  return blocks[rows - 1];
}

void multiply_float8(const LinearTask& task, const Portion& portion) {
  using Rows = std::make_integer_sequence<int, kLinearRows>;
  const Weight& weight = *task.weight;
  const int64_t steps = (weight.panel_bytes - weight.codes) / kStepBytes;
  for (int64_t b = portion.first_block; b < portion.last_block; ++b) {
    const int64_t row = task.first_row(b), rows = task.first_row(b + 1) - row;
    fetch_results(task, portion.panel, row, rows);
    select_block(rows, Rows{})(task, portion.panel, row, ahead_of(task, portion, b, steps, kStepBytes));
  }
}

// Activations are those of the wider format.
constexpr int32_t kWide = Wide::depth == 2 ? kBFloat16 : kFloat32;

void lay_out(Weight& weight) {
  lay_out_float8(weight);
  weight.row_bytes = packed_row_bytes<Wide::Scalar>(ceil_div(weight.in, Wide::depth));
}

void pack_rows(const Weight& weight, const float* x, int64_t rows, void* block) {
  linear_kernels[kWide]->pack_rows(weight, x, rows, block);
}

}  // namespace

extern const LinearKernels float8_kernels = {
    kLinearRows, lay_out, pack_float8, pack_float8_codes, unpack_float8, pack_rows, multiply_float8,
};

}  // namespace octavo::OCTAVO_ISA
