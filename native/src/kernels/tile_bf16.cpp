// Products with bfloat16 weights in tile registers: a step is two neighbouring inputs of every output.
#include <algorithm>
#include <cstring>

#include "epilogue.h"
#include "formats.h"
#include "parts.h"
#include "quantized.h"
#include "tile_blocks.h"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int64_t kTileInputs = kTileBytes / 2;

void lay_out_bf16(Weight& weight) {
  weight.panel_width = kPanel;
  weight.panels = ceil_div(weight.out, kPanel);
  weight.steps = ceil_div(weight.in, kTileInputs) * kTileRows;
  weight.panel_bytes = weight.steps * kStepBytes;
  weight.row_bytes = weight.steps / kTileRows * kTileBytes;
}

// 64 bytes of every row in turn keep the strided side in the first-level cache.
void pack_bf16(const Weight& weight, const void* rows, int32_t, int64_t panel, int64_t lane, int64_t count) {
  const char* source = static_cast<const char*>(rows);
  char* target = weight.panel(panel) + lane * 4;
  const int64_t row_bytes = weight.in * 2;
  for (int64_t start = 0; start < row_bytes; start += kTileBytes) {
    const int64_t end = std::min(start + kTileBytes, row_bytes);
    for (int64_t r = 0; r < count; ++r)
      for (int64_t i = start; i < end; i += 4)
        std::memcpy(target + i / 4 * kStepBytes + r * 4, source + r * row_bytes + i, std::min<int64_t>(4, end - i));
  }
}

void unpack_bf16(const Weight& weight, int64_t panel, int64_t lane, float* row) {
  const char* source = weight.panel(panel) + lane * 4;
  for (int64_t i = 0; i < weight.in; ++i) {
    uint16_t half;
    std::memcpy(&half, source + i / 2 * kStepBytes + i % 2 * 2, sizeof half);
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    std::memcpy(row + i, &bits, sizeof bits);
  }
}

// For each tile of inputs, the rows one below the other.
void pack_rows_bf16(const Weight& weight, const float* x, int64_t rows, void* block) {
  uint16_t* target = static_cast<uint16_t*>(block);
  for (int64_t start = 0; start < weight.in; start += kTileInputs) {
    for (int64_t r = 0; r < rows; ++r, target += kTileInputs) {
      for (int64_t i = 0; i < kTileInputs; i += kLanes) {
        const bool inside = start + i < weight.in;
        store_bf16(target + i, inside ? load_part<Float32>(x + r * weight.in, start + i, weight.in) : set(0.0f));
      }
    }
  }
}

INLINE void block_bf16(const LinearTask& task, int64_t panel, int64_t row, Split split, bool streams) {
  const Weight& weight = *task.weight;
  const char* w = weight.panel(panel);
  const char* a = task.packed + row * weight.row_bytes;
  const int64_t rows = split.first + split.second;
  zero_sums();
  for (int64_t step = 0; step < weight.steps; step += kTileRows) {
    if (streams) prefetch(w + kPrefetchBytes, kTileRows * kStepBytes);
    load_row_tiles(split, a, kTileBytes);
    load_column_tiles(w, w + kTileBytes, kStepBytes);
    tile_dot_bf16(0, 4, 6);
    tile_dot_bf16(1, 4, 7);
    if (split.second != 0) {
      tile_dot_bf16(2, 5, 6);
      tile_dot_bf16(3, 5, 7);
    }
    w += kTileRows * kStepBytes;
    a += rows * kTileBytes;
  }
  alignas(64) float sums[kBlockRows][kPanel];
  store_sums(split, sums);
  for (int64_t r = 0; r < rows; ++r) finish(task, row + r, panel, load(sums[r]), load(sums[r] + kLanes));
}

void multiply_bf16(const LinearTask& task, const Portion& portion) {
  for_blocks(task, portion, kTileBytes, split_rows,
             [&](int64_t panel, int64_t row, Split split, bool streams)
                 __attribute__((always_inline)) { block_bf16(task, panel, row, split, streams); });
}

}  // namespace

extern const LinearKernels tile_bf16_kernels = {
    kBlockRows, lay_out_bf16, pack_bf16, nullptr, unpack_bf16, pack_rows_bf16, multiply_bf16,
};

}  // namespace octavo::OCTAVO_ISA
