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

// Inputs and bytes: the largest power of two that divides a group.
INLINE int64_t tile_depth(const Weight& weight) {
  const int64_t inputs = inputs_of_group(weight), power = inputs & -inputs;
  return power < kTileBytes ? power : kTileBytes;
}

template <class Codes, bool kGrouped, int kPlanes>
void lay_out(Weight& weight) {
  lay_out_quantized<Codes, kGrouped>(weight, kPlanes);
}

// For each tile of inputs, the rows' first planes one below the other, and their second ones.
template <class Codes, int kPlanes>
void pack_rows(const Weight& weight, const float* x, int64_t rows, void* block) {
  const int64_t inputs = inputs_of_group(weight), depth = tile_depth(weight), units = kPlanes * rows;
  char* a = static_cast<char*>(block);
  for (int64_t start = 0; start < weight.in; start += inputs) {
    const RowHead head(a, rows, kPlanes);
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
      rounding.put_numbers(head, rows, r, centre_of<Codes>(weight));
    }
    a = head.activations + units * inputs;
  }
}

// The column tiles of `steps` steps.
INLINE void load_columns(Bytes, const char* w, int64_t) { load_column_tiles(w, w + kTileBytes, Bytes::step_bytes); }
template <class Codes>
INLINE void load_columns(Codes, const char* w, int64_t steps) {
  alignas(64) Ints unpacked[2][kTileRows];
  for (int64_t s = 0; s < steps; w += kChunkBytes<Codes>) {
    Chunk<Codes> chunk(w);
    UNROLL for (int64_t i = 0; i < Codes::chunk_steps; ++i, ++s) {
      Ints halves[2];
      chunk.next(halves);
      unpacked[0][s] = halves[0];
      unpacked[1][s] = halves[1];
    }
  }
  load_column_tiles(reinterpret_cast<const char*>(unpacked[0]), reinterpret_cast<const char*>(unpacked[1]), sizeof(Ints));
}

template <class Codes>
INLINE void sum_group(const Weight& weight, const char* w, const char* a, Split split, bool streams) {
  const int64_t depth = tile_depth(weight), steps = depth / kStepInputs, bytes = steps * Codes::step_bytes;
  zero_sums();
  for (int64_t s = 0; s < steps_of_group(weight); s += steps) {
    if (streams) prefetch(w + kPrefetchBytes, bytes);
    load_row_tiles(split, a, depth);
    load_columns(Codes{}, w, steps);
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
template <int kPlanes>
INLINE Floats row_products(const int32_t (*sums)[kPanel], const int32_t* first, int64_t rows, int64_t row, int half) {
  Floats plane[kPlanes];
  for (int p = 0; p < kPlanes; ++p) {
    const int64_t unit = p * rows + row;
    plane[p] = to_floats(add(load_bytes(sums[unit] + half * kLanes), set_int(first[unit])));
  }
  return kPlanes == 1 ? plane[0] : fma(plane[0], set(256.0f), plane[kPlanes - 1]);
}

template <class Codes, bool kGrouped, int kPlanes>
INLINE void block(const LinearTask& task, int64_t panel, int64_t row, Split split, bool streams) {
  const Weight& weight = *task.weight;
  const int64_t units = split.first + split.second, rows = units / kPlanes;
  const char* h = weight.panel(panel);
  const char* w = h + weight.codes;
  char* a = task.packed + row * weight.row_bytes;
  alignas(64) int32_t sums[kBlockRows][kPanel];
  Floats total[kBlockRows][2];
  for (int64_t r = 0; r < rows; ++r) total[r][0] = total[r][1] = set(0.0f);
  for (int64_t g = 0; g < groups_of(weight); ++g) {
    const RowHead row_head(a, rows, kPlanes);
    sum_group<Codes>(weight, w, row_head.activations, split, streams);
    store_sums(split, sums);
    Head head;
    if constexpr (kGrouped) head = load_head(weight, h, g);
    for (int half = 0; half < 2; ++half)
      for (int64_t r = 0; r < rows; ++r)
        total[r][half] = add_group<kGrouped>(head, half, row_head.scales[r], row_head.row_sums[r],
                                             row_products<kPlanes>(sums, row_head.first, rows, r, half), total[r][half]);
    w += steps_of_group(weight) * Codes::step_bytes;
    a = row_head.activations + units * inputs_of_group(weight);
  }
  for (int half = 0; half < 2 && !kGrouped; ++half) {
    const Floats scales = load_scales(weight, h, half);
    for (int64_t r = 0; r < rows; ++r) total[r][half] = multiply(scales, total[r][half]);
  }
  for (int64_t r = 0; r < rows; ++r) finish(task, row + r, panel, total[r][0], total[r][1]);
}

template <class Codes, bool kGrouped, int kPlanes>
void multiply_tiles(const LinearTask& task, const Portion& portion) {
  for_blocks(task, portion, tile_depth(*task.weight), split_units<kPlanes>,
             [&](int64_t panel, int64_t row, Split split, bool streams)
                 __attribute__((always_inline)) { block<Codes, kGrouped, kPlanes>(task, panel, row, split, streams); });
}

template <class Codes, bool kGrouped, int kPlanes>
constexpr LinearKernels kernels_of{
    kMaxRows<kPlanes>,
    lay_out<Codes, kGrouped, kPlanes>,
    packing_of<Codes, kGrouped>(),
    pack_coded<Codes, kGrouped>,
    unpack_quantized<Codes, kGrouped>,
    pack_rows<Codes, kPlanes>,
    multiply_tiles<Codes, kGrouped, kPlanes>,
};

}  // namespace

extern const LinearKernels quantized_kernels[kFloat8 - kDTypes] = {
    kernels_of<Bytes, false, 2>,   kernels_of<Bytes, false, 1>,   kernels_of<Nibbles, true, 2>,
    kernels_of<Nibbles, true, 1>,  kernels_of<Bytes, true, 2>,    kernels_of<Bytes, true, 1>,
    kernels_of<FiveBits, true, 2>, kernels_of<FiveBits, true, 1>, kernels_of<SixBits, true, 2>,
    kernels_of<SixBits, true, 1>,  kernels_of<Float4, true, 2>,   kernels_of<Float4, true, 1>,
};

}  // namespace octavo::OCTAVO_ISA
