// Matrix products with packed weights.
#include <cstring>
#include <type_traits>
#include <utility>

#include "ahead.h"
#include "epilogue.h"
#include "formats.h"
#include "parts.h"
#include "rows.h"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int64_t kPanel = kLanes * kLinearVectors;
template <class Format>
constexpr int64_t kStepBytes = kPanel * Format::depth * static_cast<int64_t>(sizeof(typename Format::Element));
// With each step. One of several blocks asks for half a step or less of the next panel (ahead.h), which is one line; of a
// panel that nobody asked for that is every other line.
template <class Format, bool kAlone>
constexpr int64_t kAsked = kAlone ? kStepBytes<Format> : 64;

template <class Format, int kRows, bool kAlone>
INLINE void tile(const typename Format::Scalar* block, const typename Format::Element* w, int64_t steps, Ahead& ahead,
                 Floats (&sum)[kRows][kLinearVectors]) {
  UNROLL for (int r = 0; r < kRows; ++r) UNROLL for (int v = 0; v < kLinearVectors; ++v) sum[r][v] = set(0.0f);
  Ahead asked = ahead;
  for (int64_t step = 0; step < steps; step += kChunkSteps) {
    const typename Format::Scalar* a = place_of(block, kRows, step);
    for (const auto* end = a + steps_until(step, steps); a != end; ++a) {
      ask<kLocality<kRows, kAlone>, kAsked<Format, kAlone>>(asked);
      typename Format::Vector b[kLinearVectors];
      UNROLL for (int v = 0; v < kLinearVectors; ++v) b[v] = Format::load_step(w + v * kLanes * Format::depth);
      UNROLL for (int r = 0; r < kRows; ++r) UNROLL for (int v = 0; v < kLinearVectors; ++v)
          Format::multiply_add(sum[r][v], a[r * kChunkSteps], b[v]);
      w += kPanel * Format::depth;
    }
  }
  ahead = asked;
}

// kPanel lanes of a panel: all of it, or with a gating activation, where kPanel is 16, first its gates and then its ups.
template <class Format, int kRows, bool kAlone>
INLINE void half(const LinearTask& task, int64_t panel, int64_t lane, int64_t row, Ahead& ahead,
                 Floats (&sum)[kRows][kLinearVectors]) {
  const Weight& weight = *task.weight;
  const char* w = weight.panel(panel) + lane / kPanel * weight.steps * kStepBytes<Format>;
  tile<Format, kRows, kAlone>(
      reinterpret_cast<const typename Format::Scalar*>(task.packed + row * weight.row_bytes),
      reinterpret_cast<const typename Format::Element*>(w), weight.steps, ahead, sum);
}

template <class Format, int kRows, bool kAlone>
void block(const LinearTask& task, int64_t panel, int64_t row, Ahead ahead) {
  Floats sum[kRows][kLinearVectors];
  half<Format, kRows, kAlone>(task, panel, 0, row, ahead, sum);
  if constexpr (kLinearVectors == 2) {
    for (int r = 0; r < kRows; ++r) finish(task, row + r, panel, sum[r][0], sum[r][1]);
  } else if (!task.weight->gated()) {
    for (int r = 0; r < kRows; ++r) finish(task, row + r, panel, sum[r][0]);
  } else {
    Floats up[kRows][kLinearVectors];
    half<Format, kRows, kAlone>(task, panel, kPanel, row, ahead, up);
    for (int r = 0; r < kRows; ++r) finish(task, row + r, panel, sum[r][0], up[r][0]);
  }
}

using Block = void (*)(const LinearTask&, int64_t, int64_t, Ahead);

template <class Format, bool kAlone, int... kIndex>
Block select_block(int64_t rows, std::integer_sequence<int, kIndex...>) {
  static constexpr Block blocks[] = {block<Format, kIndex + 1, kAlone>...};
  return blocks[rows - 1];
}

template <class Format>
void multiply(const LinearTask& task, const Portion& portion) {
  using Rows = std::make_integer_sequence<int, kLinearRows>;
  const int64_t steps = task.weight->panel_bytes / kStepBytes<Format>;
  for (int64_t b = portion.first_block; b < portion.last_block; ++b) {
    const int64_t row = task.first_row(b), rows = task.first_row(b + 1) - row;
    fetch_results(task, portion.panel, row, rows);
    const Block compute = task.blocks == 1 ? select_block<Format, true>(rows, Rows{})
                                           : select_block<Format, false>(rows, Rows{});
    compute(task, portion.panel, row, ahead_of(task, portion, b, steps, kStepBytes<Format>));
  }
}

// One step of one output: what moves as a whole from the row to its column.
template <class Format>
using Step = std::conditional_t<Format::depth * sizeof(typename Format::Element) == 4, uint32_t, uint16_t>;

template <class Format>
INLINE Step<Format>* column(const Weight& weight, int64_t panel, int64_t lane) {
  char* start = weight.panel(panel) + lane / kPanel * weight.steps * kStepBytes<Format>;
  return reinterpret_cast<Step<Format>*>(start) + lane % kPanel;
}

// 64 bytes of every row in turn keep the strided side in the first-level cache.
template <class Format>
void pack_weight(const Weight& weight, const void* rows, int32_t, int64_t panel, int64_t lane, int64_t count) {
  using Unit = Step<Format>;
  const int64_t in = weight.in;
  constexpr int64_t kChunk = 64 / sizeof(Unit);
  const int64_t whole = in / Format::depth;
  const int64_t row_bytes = in * sizeof(typename Format::Element);
  const char* source = static_cast<const char*>(rows);
  Unit* target = column<Format>(weight, panel, lane);
  for (int64_t start = 0; start < whole; start += kChunk) {
    const int64_t end = start + kChunk < whole ? start + kChunk : whole;
    for (int64_t r = 0; r < count; ++r)
      for (int64_t s = start; s < end; ++s)
        std::memcpy(target + s * kPanel + r, source + r * row_bytes + s * sizeof(Unit), sizeof(Unit));
  }
  if (whole * Format::depth == in) return;
  for (int64_t r = 0; r < count; ++r)  // a last step of fewer inputs: the rest stays 0
    std::memcpy(target + whole * kPanel + r, source + r * row_bytes + whole * sizeof(Unit),
                row_bytes - whole * sizeof(Unit));
}

template <class Format>
void unpack_weight(const Weight& weight, int64_t panel, int64_t lane, float* row) {
  using Element = typename Format::Element;
  constexpr int64_t kSteps = kLanes / Format::depth;  // of 16 inputs
  const Step<Format>* source = column<Format>(weight, panel, lane);
  for (int64_t start = 0; start < weight.in; start += kLanes) {
    const int64_t count = weight.in - start < kLanes ? weight.in - start : kLanes;
    Element some[kLanes] = {};
    for (int64_t s = 0; s < (count + Format::depth - 1) / Format::depth; ++s)
      std::memcpy(some + s * Format::depth, source + (start / kLanes * kSteps + s) * kPanel, sizeof(*source));
    const Floats value = Format::load_elements(some);
    if (count == kLanes) store(row + start, value);
    else store_some(row + start, value, count);
  }
}

template <class Format>
void pack_rows(const Weight& weight, const float* x, int64_t rows, void* block) {
  constexpr int64_t kChunk = kChunkSteps * Format::depth;  // inputs
  typename Format::Scalar* target = static_cast<typename Format::Scalar*>(block);
  for (int64_t start = 0; start < weight.in; start += kChunk) {
    const int64_t count = weight.in - start < kChunk ? weight.in - start : kChunk;
    for (int64_t r = 0; r < rows; ++r, target += kChunkSteps) {
      const float* source = x + r * weight.in + start;
      int64_t i = 0;
      for (; i + kLanes <= count; i += kLanes) Format::put_steps(target + i / Format::depth, load(source + i));
      if (i < count) Format::put_steps(target + i / Format::depth, load_some(source + i, count - i));
    }
  }
}

template <class Format>
void lay_out(Weight& weight) {
  const int64_t halves = !weight.gated() || kLinearVectors == 2 ? 1 : 2;
  weight.panel_width = halves * kPanel;
  weight.panels = ceil_div(weight.out, weight.panel_width);
  weight.steps = ceil_div(weight.in, Format::depth);
  weight.panel_bytes = halves * weight.steps * kStepBytes<Format>;
  weight.row_bytes = packed_row_bytes<typename Format::Scalar>(weight.steps);
}

template <class Format>
constexpr LinearKernels kernels_of{
    kLinearRows,           lay_out<Format>,   pack_weight<Format>, nullptr,
    unpack_weight<Format>, pack_rows<Format>, multiply<Format>,
};

#if defined(OCTAVO_TILES)
constexpr const LinearKernels* kBFloat16Kernels = &tile_bf16_kernels;
#else
constexpr const LinearKernels* kBFloat16Kernels = &kernels_of<BFloat16>;
#endif

}  // namespace

extern const LinearKernels* const linear_kernels[kFormats] = {
    &kernels_of<Float32>,  kBFloat16Kernels,      &kernels_of<Float16>,  &quantized_kernels[0], &quantized_kernels[1],
    &quantized_kernels[2], &quantized_kernels[3], &quantized_kernels[4], &quantized_kernels[5], &quantized_kernels[6],
    &quantized_kernels[7], &quantized_kernels[8], &quantized_kernels[9], &quantized_kernels[10], &quantized_kernels[11],
    &float8_kernels,
};

}  // namespace octavo::OCTAVO_ISA
