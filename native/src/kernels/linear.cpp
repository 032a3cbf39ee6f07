// Matrix products with packed weights.
#include <cstring>
#include <type_traits>
#include <utility>

#include "formats.h"
#include "parts.h"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int64_t kPanel = kLanes * kLinearVectors;
constexpr int64_t kPrefetchBytes = 4096;  // ahead in the stream of panels

template <class Format, int kRows>
INLINE void tile(const typename Format::Scalar* a, const typename Format::Element* w, int64_t steps, const char* next,
                 int64_t next_stride, Floats (&sum)[kRows][kLinearVectors]) {
  constexpr int64_t kStep = kPanel * Format::depth;
  UNROLL for (int r = 0; r < kRows; ++r) UNROLL for (int v = 0; v < kLinearVectors; ++v) sum[r][v] = set(0.0f);
  for (int64_t s = 0; s < steps; ++s) {
    for (int64_t line = 0; line < kStep * static_cast<int64_t>(sizeof(*w)); line += 64) __builtin_prefetch(next + line);
    next += next_stride;
    typename Format::Vector b[kLinearVectors];
    UNROLL for (int v = 0; v < kLinearVectors; ++v) b[v] = Format::load_step(w + v * kLanes * Format::depth);
    UNROLL for (int r = 0; r < kRows; ++r) UNROLL for (int v = 0; v < kLinearVectors; ++v)
        Format::multiply_add(sum[r][v], a[r], b[v]);
    w += kStep;
    a += kRows;
  }
}

template <int kRows>
INLINE void finish(const LinearTask& task, int64_t row, int64_t panel, Floats (&sum)[kRows][kLinearVectors]) {
  const int64_t out = task.weight->out;
  for (int r = 0; r < kRows; ++r) {
    UNROLL for (int v = 0; v < kLinearVectors; ++v) {
      const int64_t column = panel * kPanel + v * kLanes;
      if (column >= out) break;
      const int64_t count = out - column < kLanes ? out - column : kLanes;
      float* y = task.y + (row + r) * out + column;
      Floats value = sum[r][v];
      if (task.weight->bias != nullptr) value = add(value, load(task.weight->bias + column));
      if (count == kLanes) {
        store(y, task.accumulate ? add(load(y), value) : value);
      } else {
        store_some(y, task.accumulate ? add(load_some(y, count), value) : value, count);
      }
    }
  }
}

template <class Format, int kRows>
void block(const LinearTask& task, int64_t panel, int64_t row, int64_t prefetch_from, int64_t prefetch_stride) {
  using Scalar = typename Format::Scalar;
  using Element = typename Format::Element;
  const Weight& weight = *task.weight;
  const char* w = weight.panels + panel * weight.panel_bytes;
  Floats sum[kRows][kLinearVectors];
  tile<Format, kRows>(reinterpret_cast<const Scalar*>(task.packed) + row * weight.steps, reinterpret_cast<const Element*>(w),
                      weight.steps, w + prefetch_from, prefetch_stride, sum);
  finish<kRows>(task, row, panel, sum);
}

using Block = void (*)(const LinearTask&, int64_t, int64_t, int64_t, int64_t);

template <class Format, int... kIndex>
Block select_block(int64_t rows, std::integer_sequence<int, kIndex...>) {
  static constexpr Block blocks[] = {block<Format, kIndex + 1>...};
  return blocks[rows - 1];
}

template <class Format>
void multiply(const LinearTask& task, int64_t first_panel, int64_t last_panel, int64_t first_block, int64_t last_block) {
  constexpr int64_t kStepBytes = kPanel * Format::depth * sizeof(typename Format::Element);
  for (int64_t panel = first_panel; panel < last_panel; ++panel) {
    for (int64_t b = first_block; b < last_block; ++b) {
      const int64_t row = task.first_row(b);
      const int64_t rows = task.first_row(b + 1) - row;
      // The first block streams the panel in; the others find it in the cache and must not fetch it again.
      const bool streams = b == first_block;
      select_block<Format>(rows, std::make_integer_sequence<int, kLinearRows>{})(
          task, panel, row, streams ? kPrefetchBytes : 0, streams ? kStepBytes : 0);
    }
  }
}

// One step of one output: what moves as a whole from the row to its column.
template <class Format>
using Step = std::conditional_t<Format::depth * sizeof(typename Format::Element) == 4, uint32_t, uint16_t>;

// 64 bytes of every row in turn keep the strided side in the first-level cache.
template <class Format>
void pack_weight(const void* rows, int64_t in, int64_t lane, int64_t count, void* panel) {
  using Unit = Step<Format>;
  constexpr int64_t kChunk = 64 / sizeof(Unit);
  const int64_t whole = in / Format::depth;
  const int64_t row_bytes = in * sizeof(typename Format::Element);
  const char* source = static_cast<const char*>(rows);
  Unit* target = static_cast<Unit*>(panel) + lane;
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
void unpack_weight(const void* panel, int64_t in, int64_t lane, float* row) {
  using Element = typename Format::Element;
  constexpr int64_t kSteps = kLanes / Format::depth;  // of 16 inputs
  const Step<Format>* column = static_cast<const Step<Format>*>(panel) + lane;
  for (int64_t start = 0; start < in; start += kLanes) {
    const int64_t count = in - start < kLanes ? in - start : kLanes;
    Element some[kLanes] = {};
    for (int64_t s = 0; s < (count + Format::depth - 1) / Format::depth; ++s)
      std::memcpy(some + s * Format::depth, column + (start / kLanes * kSteps + s) * kPanel, sizeof(*column));
    const Floats value = Format::load_elements(some);
    if (count == kLanes) store(row + start, value);
    else store_some(row + start, value, count);
  }
}

template <class Format>
void pack_rows(const float* x, int64_t in, int64_t rows, void* block) {
  using Scalar = typename Format::Scalar;
  constexpr int64_t kSteps = kLanes / Format::depth;  // of 16 inputs
  Scalar* target = static_cast<Scalar*>(block);
  alignas(64) Scalar chunk[kLinearRows][kSteps];
  for (int64_t start = 0; start < in; start += kLanes) {
    const int64_t count = in - start < kLanes ? in - start : kLanes;
    for (int64_t r = 0; r < rows; ++r) {
      const float* source = x + r * in + start;
      Format::put_steps(chunk[r], count == kLanes ? load(source) : load_some(source, count));
    }
    const int64_t steps = (count + Format::depth - 1) / Format::depth;
    for (int64_t s = 0; s < steps; ++s)
      for (int64_t r = 0; r < rows; ++r) *target++ = chunk[r][s];
  }
}

template <class Format>
constexpr LinearKernels kernels_of() {
  return {kPanel,
          kLinearRows,
          Format::depth,
          sizeof(typename Format::Scalar),
          pack_weight<Format>,
          unpack_weight<Format>,
          pack_rows<Format>,
          multiply<Format>};
}

}  // namespace

extern const LinearKernels linear_kernels[kDTypes] = {kernels_of<Float32>(), kernels_of<BFloat16>(), kernels_of<Float16>()};

}  // namespace octavo::OCTAVO_ISA
