// Eight registers of up to 16 rows of 64 bytes, and the dot products of one with another (Intel SDM volume 1, chapter 18),
// in two forms with one interface: the processor's own (AMX), and plain C++ that computes the same bit for bit, on which the
// kernels written over it can be tested anywhere. Registers are named by literal numbers.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AMX_TILE__)
#include <immintrin.h>
#endif

namespace octavo::OCTAVO_ISA {

// Palette 1: what LDTILECFG reads.
struct TileShapes {
  uint8_t palette = 1, start_row = 0;
  uint8_t unused[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int64_t tile_rows, int64_t bytes) {
    rows[tile] = static_cast<uint8_t>(tile_rows);
    row_bytes[tile] = static_cast<uint16_t>(bytes);
  }
};
static_assert(sizeof(TileShapes) == 64);

#if defined(__AMX_TILE__)

// GCC's intrinsics do not say what memory they read.
#define TILE_BARRIER() asm volatile("" ::: "memory")

// Sets the shapes and clears all registers.
[[gnu::always_inline]] static inline void tile_configure(const TileShapes& shapes) {
  asm volatile("" : : "r"(&shapes) : "memory");
  _tile_loadconfig(&shapes);
  TILE_BARRIER();
}
[[gnu::always_inline]] static inline void tile_release() { _tile_release(); }
#define tile_zero(tile) _tile_zero(tile)
#define tile_load(tile, source, stride) \
  do {                                  \
    TILE_BARRIER();                     \
    _tile_loadd(tile, source, stride);  \
  } while (0)
#define tile_store(tile, target, stride) _tile_stored(tile, target, stride)
// c += a b over pairs of bfloat16.
#define tile_dot_bf16(c, a, b) _tile_dpbf16ps(c, a, b)
// c += a b over fours of signed (a) and unsigned (b) bytes.
#define tile_dot_bytes(c, a, b) _tile_dpbsud(c, a, b)

#else

struct Tile {
  uint8_t row[16][64];
};

struct TileState {
  TileShapes shapes;
  Tile tile[8];
};

// Of this thread, as the registers are. A function's local, so that each namespace has its own.
static inline TileState& tile_state() {
  thread_local TileState state{};
  return state;
}

static inline void tile_configure(const TileShapes& shapes) {
  tile_state() = TileState{};
  tile_state().shapes = shapes;
}
static inline void tile_release() { tile_state() = TileState{}; }
static inline void tile_zero(int tile) { tile_state().tile[tile] = Tile{}; }
static inline void tile_load(int tile, const void* source, int64_t stride) {
  TileState& state = tile_state();
  state.tile[tile] = Tile{};
  for (int r = 0; r < state.shapes.rows[tile]; ++r)
    std::memcpy(state.tile[tile].row[r], static_cast<const char*>(source) + r * stride, state.shapes.row_bytes[tile]);
}
static inline void tile_store(int tile, void* target, int64_t stride) {
  const TileState& state = tile_state();
  for (int r = 0; r < state.shapes.rows[tile]; ++r)
    std::memcpy(static_cast<char*>(target) + r * stride, state.tile[tile].row[r], state.shapes.row_bytes[tile]);
}

// Shapes that do not fit each other fault, as they do on the processor.
static inline void tile_check(const TileShapes& shapes, int c, int a, int b) {
  const bool fits = shapes.palette == 1 && shapes.rows[c] != 0 && shapes.rows[a] == shapes.rows[c] &&
                    shapes.row_bytes[a] == 4 * shapes.rows[b] && shapes.row_bytes[b] == shapes.row_bytes[c];
  if (!fits || c == a || a == b || b == c) __builtin_trap();
}

// Numbers below the normal ones count as 0, in and out.
static inline float tile_flush(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }
static inline float tile_bf16(const uint8_t* bytes) {
  uint16_t half;
  std::memcpy(&half, bytes, sizeof half);
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return tile_flush(value);
}

// Even and odd products are summed apart from 0, then together, then into c, each with one rounding.
static inline void tile_dot_bf16(int c, int a, int b) {
  TileState& state = tile_state();
  tile_check(state.shapes, c, a, b);
  for (int m = 0; m < state.shapes.rows[c]; ++m) {
    for (int n = 0; n < state.shapes.row_bytes[c] / 4; ++n) {
      float sums[2] = {};
      for (int k = 0; k < state.shapes.row_bytes[a] / 4; ++k)
        for (int odd = 0; odd < 2; ++odd)
          sums[odd] = tile_flush(std::fma(tile_bf16(&state.tile[a].row[m][4 * k + 2 * odd]),
                                          tile_bf16(&state.tile[b].row[k][4 * n + 2 * odd]), sums[odd]));
      float value;
      std::memcpy(&value, &state.tile[c].row[m][4 * n], sizeof value);
      value = tile_flush(tile_flush(value) + tile_flush(sums[0] + sums[1]));
      std::memcpy(&state.tile[c].row[m][4 * n], &value, sizeof value);
    }
  }
}

static inline void tile_dot_bytes(int c, int a, int b) {
  TileState& state = tile_state();
  tile_check(state.shapes, c, a, b);
  for (int m = 0; m < state.shapes.rows[c]; ++m) {
    for (int n = 0; n < state.shapes.row_bytes[c] / 4; ++n) {
      uint32_t sum;  // wraps round
      std::memcpy(&sum, &state.tile[c].row[m][4 * n], sizeof sum);
      for (int k = 0; k < state.shapes.row_bytes[a] / 4; ++k)
        for (int i = 0; i < 4; ++i)
          sum += static_cast<uint32_t>(static_cast<int8_t>(state.tile[a].row[m][4 * k + i]) *
                                       static_cast<int>(state.tile[b].row[k][4 * n + i]));
      std::memcpy(&state.tile[c].row[m][4 * n], &sum, sizeof sum);
    }
  }
}

#endif

}  // namespace octavo::OCTAVO_ISA
