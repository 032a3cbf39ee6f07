// Products with E4M3 weights in vector registers: codes are widened there, once for all rows of a block, and each group's sums
// are scaled as they are added to the total.
#include "float8.h"

#include <utility>

#include "epilogue.h"
#include "parts.h"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int64_t kPrefetchBytes = 4096;  // ahead in the stream of codes
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
INLINE void total_of(const LinearTask& task, int64_t panel, int vector, int64_t row, bool streams,
                     Floats (&total)[kRows][kLinearVectors]) {
  const Weight& weight = *task.weight;
  const int64_t inputs = float8_group_inputs(weight);
  const char* head = weight.panel(panel);
  const char* w = head + weight.codes + vector * float8_inputs(weight) * kLanes;
  const char* next = w + (streams ? kPrefetchBytes : 0);
  const int64_t stride = streams ? kStepBytes : 0;
  const Wide::Scalar* a = reinterpret_cast<const Wide::Scalar*>(task.packed + row * weight.row_bytes);
  UNROLL for (int r = 0; r < kRows; ++r) UNROLL for (int v = 0; v < kLinearVectors; ++v) total[r][v] = set(0.0f);
  for (int64_t start = 0; start < weight.in; start += inputs, head += head_bytes(weight)) {
    const int64_t left = weight.in - start, steps = ceil_div(left < inputs ? left : inputs, Wide::depth);
    Floats sum[kRows][kLinearVectors];
    UNROLL for (int r = 0; r < kRows; ++r) UNROLL for (int v = 0; v < kLinearVectors; ++v) sum[r][v] = set(0.0f);
    for (int64_t s = 0; s < steps; ++s) {
      __builtin_prefetch(next);
      next += stride;
      Wide::Vector weights[kLinearVectors];
      widen_step(w, weights);
      UNROLL for (int r = 0; r < kRows; ++r) UNROLL for (int v = 0; v < kLinearVectors; ++v)
          Wide::multiply_add(sum[r][v], a[r], weights[v]);
      w += kStepBytes;
      a += kRows;
    }
    for (int v = 0; v < kLinearVectors; ++v) {
      const Floats scales = load_scales(weight, head, vector + v);
      UNROLL for (int r = 0; r < kRows; ++r) total[r][v] = fma(scales, sum[r][v], total[r][v]);
    }
  }
}

template <int kRows>
void block(const LinearTask& task, int64_t panel, int64_t row, bool streams) {
  Floats total[kRows][kLinearVectors];
  total_of<kRows>(task, panel, 0, row, streams, total);
  if constexpr (kLinearVectors == 2) {
    for (int r = 0; r < kRows; ++r) finish(task, row + r, panel, total[r][0], total[r][1]);
  } else {
    Floats second[kRows][kLinearVectors];
    total_of<kRows>(task, panel, 1, row, streams, second);
    for (int r = 0; r < kRows; ++r) finish(task, row + r, panel, total[r][0], second[r][0]);
  }
}

using Block = void (*)(const LinearTask&, int64_t, int64_t, bool);

template <int... kIndex>
Block select_block(int64_t rows, std::integer_sequence<int, kIndex...>) {
  static constexpr Block blocks[] = {block<kIndex + 1>...};
  return blocks[rows - 1];
}

void multiply_float8(const LinearTask& task, int64_t first_panel, int64_t last_panel, int64_t first_block,
                     int64_t last_block) {
  for (int64_t panel = first_panel; panel < last_panel; ++panel) {
    for (int64_t b = first_block; b < last_block; ++b) {
      const int64_t row = task.first_row(b), rows = task.first_row(b + 1) - row;
      fetch_results(task, panel, row, rows);
      select_block(rows, std::make_integer_sequence<int, kLinearRows>{})(task, panel, row, b == first_block);
    }
  }
}

// Activations are those of the wider format.
constexpr int32_t kWide = Wide::depth == 2 ? kBFloat16 : kFloat32;

void lay_out(Weight& weight) {
  lay_out_float8(weight);
  weight.row_bytes = ceil_div(weight.in, Wide::depth) * static_cast<int64_t>(sizeof(Wide::Scalar));
}

void pack_rows(const Weight& weight, const float* x, int64_t rows, void* block) {
  linear_kernels[kWide]->pack_rows(weight, x, rows, block);
}

}  // namespace

extern const LinearKernels float8_kernels = {
    kLinearRows, lay_out, pack_float8, pack_float8_codes, unpack_float8, pack_rows, multiply_float8,
};

}  // namespace octavo::OCTAVO_ISA
