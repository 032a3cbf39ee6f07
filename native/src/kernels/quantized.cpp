// Products with quantized weights, as integers.
#include "quantized.h"

#include <cstring>
#include <utility>

#include "ahead.h"
#include "epilogue.h"
#include "parts.h"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int64_t kPrefetchHead = 512;  // ahead in the stream of a panel's heads

// Rows in registers: 2 vectors for each row and plane; with scales of weights for each group 2 more for a row's totals. Of
// weights that have none, a panel meets eight rows in one pass: its stream from memory hides behind all their products.
#if defined(__AVX512F__)
constexpr int kRegisterRows[2][2] = {{8, 6}, {6, 4}};  // [grouped][planes - 1]
#else
constexpr int kRegisterRows[2][2] = {{2, 1}, {1, 1}};
#endif

template <bool kGrouped, int kPlanes>
constexpr int kMaxRows = kRegisterRows[kGrouped][kPlanes - 1];

// The sums of one group over its steps.
template <class Codes, int kUnits, Locality kPlace>
INLINE void sum_group(const char* w, int64_t steps, const int32_t* first, const uint32_t* x, Ahead& ahead,
                      Ints (&sum)[kUnits][2]) {
  UNROLL for (int u = 0; u < kUnits; ++u) sum[u][0] = sum[u][1] = set_int(first[u]);
  Ahead asked = ahead;
  const char* end = w + steps * Codes::step_bytes;
  do {
    ask<kPlace, kChunkBytes<Codes>>(asked);
    Chunk<Codes> chunk(w);
    UNROLL for (int64_t s = 0; s < Codes::chunk_steps; ++s) {
      Ints weights[2];
      chunk.next(weights);
      UNROLL for (int u = 0; u < kUnits; ++u) {
        const Four four = set_four(x[u]);
        UNROLL for (int half = 0; half < 2; ++half) sum[u][half] = dot(sum[u][half], weights[half], four);
      }
      x += kUnits;
    }
    w += kChunkBytes<Codes>;
  } while (w != end);
  ahead = asked;
}

template <int kPlanes, int kRows>
INLINE Floats row_products(const Ints (&sum)[kPlanes * kRows][2], int row, int half) {
  const Floats low = to_floats(sum[(kPlanes - 1) * kRows + row][half]);
  if constexpr (kPlanes == 1) return low;
  else return fma(to_floats(sum[row][half]), set(256.0f), low);
}

template <class Codes, bool kGrouped, int kPlanes, bool kAlone, int kRows>
void block(const LinearTask& task, int64_t panel, int64_t row, Ahead ahead) {
  constexpr int kUnits = kPlanes * kRows;
  const Weight& weight = *task.weight;
  constexpr bool kOneGroup = kPlanes == 2 && !kGrouped;  // so that no totals need registers
  const int64_t groups = kOneGroup ? 1 : groups_of(weight), steps = steps_of_group(weight);
  const char* h = weight.panel(panel);
  const char* w = h + weight.codes;
  char* a = task.packed + row * weight.row_bytes;
  Floats total[kRows][2];
  UNROLL for (int r = 0; r < kRows; ++r) total[r][0] = total[r][1] = set(0.0f);
  for (int64_t g = 0; g < groups; ++g) {
    const RowHead rows(a, kRows, kPlanes);
    const uint32_t* x = reinterpret_cast<const uint32_t*>(rows.activations);
    Ints sum[kUnits][2];
    sum_group<Codes, kUnits, kLocality<kRows, kAlone>>(w, steps, rows.first, x, ahead, sum);
    Head head;
    if constexpr (kGrouped) {
      __builtin_prefetch(head_place(weight, h, g).head + kPrefetchHead);
      head = load_head(weight, h, g);
    }
    UNROLL for (int half = 0; half < 2; ++half) UNROLL for (int r = 0; r < kRows; ++r) total[r][half] =
        add_group<kGrouped>(head, half, rows.scales[r], rows.row_sums[r], row_products<kPlanes, kRows>(sum, r, half),
                            total[r][half]);
    w += steps * Codes::step_bytes;
    a = rows.activations + steps * kUnits * kStepInputs;
  }
  for (int half = 0; half < 2 && !kGrouped; ++half) {
    const Floats scales = load_scales(weight, h, half);
    UNROLL for (int r = 0; r < kRows; ++r) total[r][half] = multiply(scales, total[r][half]);
  }
  for (int r = 0; r < kRows; ++r) finish(task, row + r, panel, total[r][0], total[r][1]);
}

using Block = void (*)(const LinearTask&, int64_t, int64_t, Ahead);

template <class Codes, bool kGrouped, int kPlanes, bool kAlone, int... kIndex>
Block select_block(int64_t rows, std::integer_sequence<int, kIndex...>) {
  static constexpr Block blocks[] = {block<Codes, kGrouped, kPlanes, kAlone, kIndex + 1>...};
  return blocks[rows - 1];
}

template <class Codes, bool kGrouped, int kPlanes>
void multiply_quantized(const LinearTask& task, const Portion& portion) {
  using Rows = std::make_integer_sequence<int, kMaxRows<kGrouped, kPlanes>>;
  const int64_t chunks = task.weight->steps / Codes::chunk_steps;
  for (int64_t b = portion.first_block; b < portion.last_block; ++b) {
    const int64_t row = task.first_row(b), rows = task.first_row(b + 1) - row;
    fetch_results(task, portion.panel, row, rows);
    const Block compute = task.blocks == 1 ? select_block<Codes, kGrouped, kPlanes, true>(rows, Rows{})
                                           : select_block<Codes, kGrouped, kPlanes, false>(rows, Rows{});
    compute(task, portion.panel, row, ahead_of(task, portion, b, chunks, kChunkBytes<Codes>));
  }
}

template <class Codes, bool kGrouped, int kPlanes>
void pack_rows(const Weight& weight, const float* x, int64_t rows, void* block) {
  constexpr int64_t kPartSteps = kLanes / kStepInputs;
  const int64_t inputs = inputs_of_group(weight), units = kPlanes * rows;
  RowRounding<kPlanes> rounding[kMaxRows<kGrouped, kPlanes>];
  char* a = static_cast<char*>(block);
  for (int64_t start = 0; start < weight.in; start += inputs) {
    const RowHead head(a, rows, kPlanes);
    for (int64_t r = 0; r < rows; ++r)
      rounding[r].begin(x + r * weight.in, start, start + inputs < weight.in ? start + inputs : weight.in);
    a = head.activations;
    for (int64_t i = start; i < start + inputs; i += kLanes, a += kPartSteps * units * kStepInputs) {
      for (int64_t r = 0; r < rows; ++r) {
        uint8_t bytes[kPlanes][kLanes];
        rounding[r].next(i, bytes);
        for (int64_t s = 0; s < kPartSteps; ++s)
          for (int64_t p = 0; p < kPlanes; ++p)
            std::memcpy(a + (s * units + p * rows + r) * kStepInputs, bytes[p] + s * kStepInputs, kStepInputs);
      }
    }
    for (int64_t r = 0; r < rows; ++r) rounding[r].put_numbers(head, rows, r, centre_of<Codes>(weight));
  }
}

template <class Codes, bool kGrouped, int kPlanes>
void lay_out(Weight& weight) {
  lay_out_quantized<Codes, kGrouped>(weight, kPlanes);
}

template <class Codes, bool kGrouped, int kPlanes>
constexpr LinearKernels kernels_of{
    kMaxRows<kGrouped, kPlanes>,
    lay_out<Codes, kGrouped, kPlanes>,
    packing_of<Codes, kGrouped>(),
    pack_coded<Codes, kGrouped>,
    unpack_quantized<Codes, kGrouped>,
    pack_rows<Codes, kGrouped, kPlanes>,
    multiply_quantized<Codes, kGrouped, kPlanes>,
};

}  // namespace

extern const LinearKernels quantized_kernels[kFloat8 - kDTypes] = {
    kernels_of<Bytes, false, 2>,   kernels_of<Bytes, false, 1>,   kernels_of<Nibbles, true, 2>,
    kernels_of<Nibbles, true, 1>,  kernels_of<Bytes, true, 2>,    kernels_of<Bytes, true, 1>,
    kernels_of<FiveBits, true, 2>, kernels_of<FiveBits, true, 1>, kernels_of<SixBits, true, 2>,
    kernels_of<SixBits, true, 1>,  kernels_of<Float4, true, 2>,   kernels_of<Float4, true, 1>,
};

}  // namespace octavo::OCTAVO_ISA
