// Products in tile registers: two row tiles by two column tiles of 16 by 16 sums, over 64 bytes of inputs at a time.
//
// Column tiles are the two halves of a panel's steps, as the vector kernels store them (a tile row: a step of 16 outputs);
// row tiles hold 64 bytes of each row. Registers 0 to 3 are the sums, 4 and 5 the row tiles, 6 and 7 the column tiles.
#pragma once

#include <algorithm>

#include "simd.h"
#include "table.h"
#include "tiles.h"

namespace octavo::OCTAVO_ISA {

constexpr int64_t kTileRows = 16, kTileBytes = 64;
constexpr int64_t kBlockRows = 2 * kTileRows;
constexpr int64_t kPanel = 2 * kTileRows;
constexpr int64_t kStepBytes = 4 * kPanel;
constexpr int64_t kPrefetchBytes = 16 * kTileRows * kTileBytes;  // ahead in the stream of panels

// Rows of the two row tiles of a block.
struct Split {
  int64_t first, second;
  bool operator==(const Split& other) const { return first == other.first && second == other.second; }
};

// `depth`: bytes of a row tile's row.
INLINE void configure(Split split, int64_t depth) {
  TileShapes shapes;
  for (int i = 0; i < 2; ++i) {
    const int64_t rows = i == 0 ? split.first : std::max<int64_t>(1, split.second);  // a shape without rows faults
    for (int j = 0; j < 2; ++j) shapes.set(2 * i + j, rows, kTileBytes);
    shapes.set(4 + i, rows, depth);
    shapes.set(6 + i, depth / 4, kTileBytes);
  }
  tile_configure(shapes);
}

INLINE void zero_sums() {
  tile_zero(0);
  tile_zero(1);
  tile_zero(2);
  tile_zero(3);
}

// Of [kBlockRows][kPanel], one row tile below the other.
INLINE void store_sums(Split split, void* sums) {
  char* target = static_cast<char*>(sums);
  tile_store(0, target, 4 * kPanel);
  tile_store(1, target + kTileBytes, 4 * kPanel);
  if (split.second == 0) return;
  target += split.first * 4 * kPanel;
  tile_store(2, target, 4 * kPanel);
  tile_store(3, target + kTileBytes, 4 * kPanel);
}

INLINE void load_row_tiles(Split split, const char* rows, int64_t depth) {
  tile_load(4, rows, depth);
  if (split.second != 0) tile_load(5, rows + split.first * depth, depth);
}

INLINE void load_column_tiles(const char* first, const char* second, int64_t stride) {
  tile_load(6, first, stride);
  tile_load(7, second, stride);
}

INLINE void prefetch(const char* next, int64_t bytes) {
  for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(next + line);
}

// Calls `block` for each row block of a portion, with the registers shaped for it.
template <class SplitOf, class Block>
INLINE void for_blocks(const LinearTask& task, const Portion& portion, int64_t depth, SplitOf split_of, Block block) {
  Split configured{0, 0};
  for (int64_t b = portion.first_block; b < portion.last_block; ++b) {
    const int64_t row = task.first_row(b);
    const Split split = split_of(task.first_row(b + 1) - row);
    if (!(split == configured)) configure(split, depth);
    configured = split;
    block(portion.panel, row, split, b == portion.first_block);
  }
  tile_release();
}

INLINE Split split_rows(int64_t rows) { return {std::min(rows, kTileRows), std::max<int64_t>(0, rows - kTileRows)}; }

}  // namespace octavo::OCTAVO_ISA
