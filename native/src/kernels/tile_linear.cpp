// Products in tile registers: two row tiles by two column tiles of 16 by 16 sums, over 64 bytes of inputs at a time.
//
// Column tiles are the two halves of a panel's steps, as the vector kernels store them (tile row: a step of 16 outputs);
// row tiles hold 64 bytes of each row. Registers 0 to 3 are the sums, 4 and 5 the row tiles, 6 and 7 the column tiles.
#include <algorithm>
#include <cstring>

#include "epilogue.h"
#include "parts.h"
#include "quantized.h"
#include "tiles.h"

namespace octavo::OCTAVO_ISA {
namespace {

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

// Calls `block` for each panel and row block, with the registers shaped for it.
template <class SplitOf, class Block>
INLINE void for_blocks(const LinearTask& task, int64_t first_panel, int64_t last_panel, int64_t first_block,
                       int64_t last_block, int64_t depth, SplitOf split_of, Block block) {
  Split configured{0, 0};
  for (int64_t panel = first_panel; panel < last_panel; ++panel) {
    for (int64_t b = first_block; b < last_block; ++b) {
      const int64_t row = task.first_row(b);
      const Split split = split_of(task.first_row(b + 1) - row);
      if (!(split == configured)) configure(split, depth);
      configured = split;
      block(panel, row, split, b == first_block);
    }
  }
  tile_release();
}

INLINE Split split_rows(int64_t rows) { return {std::min(rows, kTileRows), std::max<int64_t>(0, rows - kTileRows)}; }

// ---- bfloat16: a step is two neighbouring inputs of every output -------------------------------------------------------

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

void multiply_bf16(const LinearTask& task, int64_t first_panel, int64_t last_panel, int64_t first_block,
                   int64_t last_block) {
  for_blocks(task, first_panel, last_panel, first_block, last_block, kTileBytes, split_rows,
             [&](int64_t panel, int64_t row, Split split, bool streams)
                 __attribute__((always_inline)) { block_bf16(task, panel, row, split, streams); });
}

// ---- integers: a step is four; the second plane of 16-bit activations takes the second row tile -----------------------

template <int kPlanes>
constexpr int64_t kMaxRows = kPlanes == 1 ? kBlockRows : kTileRows;

template <int kPlanes>
INLINE Split split_units(int64_t rows) {
  return kPlanes == 1 ? split_rows(rows) : Split{rows, rows};
}

INLINE int64_t tile_depth(const Weight& weight) { return weight.group == 32 ? 32 : kTileBytes; }  // inputs and bytes

template <class Stored, int kPlanes>
void lay_out(Weight& weight) {
  lay_out_quantized<Stored>(weight, kPlanes);
}

// For each tile of inputs, the rows' first planes one below the other, and their second ones.
template <class Stored, int kPlanes>
void pack_rows(const Weight& weight, const float* x, int64_t rows, void* block) {
  const int64_t inputs = inputs_of_group(weight), depth = tile_depth(weight), units = kPlanes * rows;
  char* a = static_cast<char*>(block);
  for (int64_t start = 0; start < weight.in; start += inputs) {
    const GroupHead head(a, rows, kPlanes);
    const int64_t end = std::min(start + inputs, weight.in);
    for (int64_t r = 0; r < rows; ++r) {
      RowRounding<kPlanes> rounding;
      rounding.begin(x + r * weight.in, start, end);
      for (int64_t i = 0; i < inputs; i += kLanes) {
        uint8_t bytes[kPlanes][kLanes];
        rounding.next(start + i, bytes);
        for (int64_t p = 0; p < kPlanes; ++p)
          std::memcpy(head.activations + (i / depth * units + p * rows + r) * depth + i % depth, bytes[p], kLanes);
      }
      rounding.template put_numbers<Stored>(head, rows, r);
    }
    a = head.activations + units * inputs;
  }
}

// The column tiles of `steps` steps.
INLINE void load_columns(Bytes, const char* w, int64_t) { load_column_tiles(w, w + kTileBytes, Bytes::step_bytes); }
INLINE void load_columns(Nibbles, const char* w, int64_t steps) {
  alignas(64) Ints unpacked[2][kTileRows];
  for (int64_t s = 0; s < steps; ++s) {
    Ints halves[2];
    Nibbles::load_step(w + s * Nibbles::step_bytes, halves);
    unpacked[0][s] = halves[0];
    unpacked[1][s] = halves[1];
  }
  load_column_tiles(reinterpret_cast<const char*>(unpacked[0]), reinterpret_cast<const char*>(unpacked[1]), sizeof(Ints));
}

template <class Stored>
INLINE void sum_group(const Weight& weight, const char* w, const char* a, Split split, bool streams) {
  const int64_t depth = tile_depth(weight), steps = depth / kStepInputs, bytes = steps * Stored::step_bytes;
  zero_sums();
  for (int64_t s = 0; s < steps_of_group(weight); s += steps) {
    if (streams) prefetch(w + kPrefetchBytes, bytes);
    load_row_tiles(split, a, depth);
    load_columns(Stored{}, w, steps);
    tile_dot_bytes(0, 4, 6);
    tile_dot_bytes(1, 4, 7);
    if (split.second != 0) {
      tile_dot_bytes(2, 5, 6);
      tile_dot_bytes(3, 5, 7);
    }
    w += bytes;
    a += (split.first + split.second) * depth;
  }
}

// A row's products with 16 outputs of a group, out of the sums of its planes.
template <class Stored, int kPlanes>
INLINE Floats row_products(const int32_t (*sums)[kPanel], const int32_t* numbers, int64_t rows, int64_t row, int half) {
  Floats plane[kPlanes];
  for (int p = 0; p < kPlanes; ++p) {
    const int64_t unit = p * rows + row;
    plane[p] = to_floats(add(load_bytes(sums[unit] + half * kLanes), Stored::first_sum(numbers, static_cast<int>(unit))));
  }
  return kPlanes == 1 ? plane[0] : fma(plane[0], set(256.0f), plane[kPlanes - 1]);
}

template <class Stored, int kPlanes>
INLINE void block(const LinearTask& task, int64_t panel, int64_t row, Split split, bool streams) {
  const Weight& weight = *task.weight;
  const int64_t units = split.first + split.second, rows = units / kPlanes;
  const char* w = weight.panel(panel) + Stored::panel_bytes;
  char* a = task.packed + row * weight.row_bytes;
  alignas(64) int32_t sums[kBlockRows][kPanel];
  Floats total[kBlockRows][2];
  for (int64_t r = 0; r < rows; ++r) total[r][0] = total[r][1] = set(0.0f);
  for (int64_t g = 0; g < groups_of(weight); ++g) {
    const GroupHead head(a, rows, kPlanes);
    const float* row_sums = reinterpret_cast<const float*>(head.numbers);
    sum_group<Stored>(weight, w + Stored::group_bytes, head.activations, split, streams);
    store_sums(split, sums);
    for (int half = 0; half < 2; ++half)
      for (int64_t r = 0; r < rows; ++r)
        total[r][half] = Stored::add_group(w, half, head.scales[r], row_sums[r],
                                           row_products<Stored, kPlanes>(sums, head.numbers, rows, r, half),
                                           total[r][half]);
    w += group_bytes<Stored>(weight);
    a = head.activations + units * inputs_of_group(weight);
  }
  const char* scales = weight.panel(panel);
  for (int64_t r = 0; r < rows; ++r)
    finish(task, row + r, panel, Stored::scaled(scales, 0, total[r][0]), Stored::scaled(scales, 1, total[r][1]));
}

template <class Stored, int kPlanes>
void multiply_tiles(const LinearTask& task, int64_t first_panel, int64_t last_panel, int64_t first_block,
                    int64_t last_block) {
  for_blocks(task, first_panel, last_panel, first_block, last_block, tile_depth(*task.weight), split_units<kPlanes>,
             [&](int64_t panel, int64_t row, Split split, bool streams)
                 __attribute__((always_inline)) { block<Stored, kPlanes>(task, panel, row, split, streams); });
}

template <class Stored, int kPlanes>
constexpr LinearKernels kernels_of{
    kMaxRows<kPlanes>,         lay_out<Stored, kPlanes>,   pack_quantized<Stored>,
    unpack_quantized<Stored>, pack_rows<Stored, kPlanes>, multiply_tiles<Stored, kPlanes>,
};

}  // namespace

extern const LinearKernels tile_kernels[kTileKernels] = {
    {kBlockRows, lay_out_bf16, pack_bf16, unpack_bf16, pack_rows_bf16, multiply_bf16},
    kernels_of<Bytes, 2>,
    kernels_of<Bytes, 1>,
    kernels_of<Nibbles, 2>,
    kernels_of<Nibbles, 1>,
};

}  // namespace octavo::OCTAVO_ISA
