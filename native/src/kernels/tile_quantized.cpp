// Products with quantized weights in tile registers: a step is four neighbouring inputs of every output. The second plane of
// 16-bit activations takes the second row tile.
#include <algorithm>
#include <cstring>

#include "epilogue.h"
#include "parts.h"
#include "quantized.h"
#include "tile_blocks.h"

namespace octavo::OCTAVO_ISA {
namespace {

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
                                           row_products<Stored, kPlanes>(sums, head.numbers, rows, r, half), total[r][half]);
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
    kMaxRows<kPlanes>,        lay_out<Stored, kPlanes>,   pack_quantized<Stored>,
    unpack_quantized<Stored>, pack_rows<Stored, kPlanes>, multiply_tiles<Stored, kPlanes>,
};

}  // namespace

extern const LinearKernels quantized_kernels[kFormats - kDTypes] = {
    kernels_of<Bytes, 2>,
    kernels_of<Bytes, 1>,
    kernels_of<Nibbles, 2>,
    kernels_of<Nibbles, 1>,
};

}  // namespace octavo::OCTAVO_ISA
