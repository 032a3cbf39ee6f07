// Products with E4M3 weights in tile registers: two column tiles of codes at a time are widened to bfloat16 in memory.
#include <algorithm>
#include <cstring>

#include "epilogue.h"
#include "float8.h"
#include "parts.h"
#include "tile_blocks.h"

namespace octavo::OCTAVO_ISA {
namespace {

struct Columns {
  alignas(64) uint16_t half[2][kTileRows][kTileBytes / 2];  // pairs of 16 outputs, two inputs in each row
};

INLINE void widen_columns(const char* codes, Columns& columns) {
  for (int64_t r = 0; r < kTileRows; ++r, codes += kTileBytes) {
#if defined(__AVX512BF16__)
    __m512i first, second;
    widen_pairs(codes, first, second);
    _mm512_store_si512(columns.half[0][r], first);
    _mm512_store_si512(columns.half[1][r], second);
#else
    for (int64_t i = 0; i < kTileBytes; ++i) {
      uint32_t bits;
      const float value = float8_value(static_cast<uint8_t>(codes[i]));
      std::memcpy(&bits, &value, sizeof bits);
      columns.half[i / 8 % 2][r][i / 16 * 8 + i % 8] = static_cast<uint16_t>(bits >> 16);
    }
#endif
  }
}

INLINE void block(const LinearTask& task, int64_t panel, int64_t row, Split split, bool streams) {
  const Weight& weight = *task.weight;
  const int64_t rows = split.first + split.second, inputs = float8_group_inputs(weight);
  const char* head = weight.panel(panel);
  const char* w = head + weight.codes;
  const char* a = task.packed + row * weight.row_bytes;
  alignas(64) float sums[kBlockRows][kPanel];
  Floats total[kBlockRows][2];
  Columns columns;
  for (int64_t r = 0; r < rows; ++r) total[r][0] = total[r][1] = set(0.0f);
  for (int64_t start = 0; start < weight.in; start += inputs, head += head_bytes(weight)) {
    zero_sums();
    for (int64_t i = start; i < std::min(start + inputs, weight.in); i += kFloat8Unit) {
      if (streams) prefetch(w + kPrefetchBytes, kTileRows * kTileBytes);
      widen_columns(w, columns);
      load_row_tiles(split, a, kTileBytes);
      load_column_tiles(reinterpret_cast<const char*>(columns.half[0]), reinterpret_cast<const char*>(columns.half[1]),
                        kTileBytes);
      tile_dot_bf16(0, 4, 6);
      tile_dot_bf16(1, 4, 7);
      if (split.second != 0) {
        tile_dot_bf16(2, 5, 6);
        tile_dot_bf16(3, 5, 7);
      }
      w += kTileRows * kTileBytes;
      a += rows * kTileBytes;
    }
    store_sums(split, sums);
    for (int half = 0; half < 2; ++half) {
      const Floats scales = load_scales(weight, head, half);
      for (int64_t r = 0; r < rows; ++r)
        total[r][half] = fma(scales, load(sums[r] + half * kLanes), total[r][half]);
    }
  }
  for (int64_t r = 0; r < rows; ++r) finish(task, row + r, panel, total[r][0], total[r][1]);
}

void multiply_float8(const LinearTask& task, const Portion& portion) {
  for_blocks(task, portion, kTileBytes, split_rows,
             [&](int64_t panel, int64_t row, Split split, bool streams)
                 __attribute__((always_inline)) { block(task, panel, row, split, streams); });
}

void lay_out(Weight& weight) {
  lay_out_float8(weight);
  weight.row_bytes = 2 * float8_inputs(weight);
}

void pack_rows(const Weight& weight, const float* x, int64_t rows, void* block) {
  tile_bf16_kernels.pack_rows(weight, x, rows, block);
}

}  // namespace

extern const LinearKernels float8_kernels = {
    kBlockRows, lay_out, pack_float8, pack_float8_codes, unpack_float8, pack_rows, multiply_float8,
};

}  // namespace octavo::OCTAVO_ISA
