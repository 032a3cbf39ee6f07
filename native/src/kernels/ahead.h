// What a product asks memory for while it computes: the panel that it is in, or the next one.
#pragma once

#include "simd.h"
#include "table.h"

namespace octavo::OCTAVO_ISA {

// Few rows are met as quickly as memory brings a panel. What they read once need not stay in any cache, where it would take
// the place of what is read again: the keys and values, and all that the engine does between two steps. For more rows the
// second-level cache is near enough, and has room for a panel.
constexpr int kFewRows = 4;
constexpr int64_t kFewRowsAhead = 4096, kAhead = 16384;  // bytes
enum Locality { kNowhere = 0, kSecondLevel = 2 };
// Of a block of so many rows, which may be the only one.
template <int kRows, bool kAlone>
constexpr Locality kLocality = kAlone && kRows <= kFewRows ? kNowhere : kSecondLevel;

// From `next` on, `stride` bytes with each step.
struct Ahead {
  const char* next;
  int64_t stride;
};

// A block that meets a panel alone asks for it some way ahead, at its end for the beginning of the next one. Where there are
// several blocks, each asks for an equal part of the next panel: else memory would rest while all but the first compute, and
// the first would wait for it.
INLINE Ahead ahead_of(const LinearTask& task, const Portion& portion, int64_t block, int64_t steps, int64_t step_bytes) {
  const Weight& weight = *task.weight;
  const char* codes = weight.panel(portion.panel) + weight.codes;
  if (task.blocks == 1 || (!portion.is_fetched && block == 0))
    return {codes + (task.rows <= kFewRows ? kFewRowsAhead : kAhead), step_bytes};
  if (portion.is_last) return {codes, 0};
  const int64_t part = portion.is_fetched ? block : block - 1, parts = portion.is_fetched ? task.blocks : task.blocks - 1;
  const int64_t stride = ceil_div(weight.panel_bytes, parts * steps);
  return {weight.panel(portion.panel + 1) + part * steps * stride, stride};
}

template <Locality kPlace, int64_t kBytes>
INLINE void ask(Ahead& ahead) {
  UNROLL for (int64_t line = 0; line < kBytes; line += 64) __builtin_prefetch(ahead.next + line, 0, kPlace);
  ahead.next += ahead.stride;
}

}  // namespace octavo::OCTAVO_ISA
