// What the handles of the C ABI stand for, and how a failure becomes a status and a message.
#pragma once

#include <algorithm>
#include <cstdarg>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "kernels/table.h"
#include "memory.h"
#include "octavo.h"
#include "pool.h"

struct octavo_context {
  const octavo::Kernels* kernels;
  int threads;
  std::mutex mutex;  // one call at a time uses the scratch memory
  octavo::Arena weights;
  octavo::Scratch activations;
  octavo::Scratch ordered;
  octavo::Scratch gathered;
  octavo::Scratch attention;
  octavo::Scratch partials;
  octavo::Scratch sampling;

  octavo_context(const octavo::Kernels* kernels, int threads) : kernels(kernels), threads(threads) {
    octavo::pool::retain();
  }
  ~octavo_context() { octavo::pool::release(); }
};

struct octavo_weight {
  octavo::Weight view;
  octavo::Arena::Piece memory;
  std::unique_ptr<float[]> bias;
  std::unique_ptr<int32_t[]> order;
  std::vector<const octavo_weight*> pieces;  // of a stack, which has a shape and nothing else of its own
};

struct octavo_cache {
  octavo::CacheShape shape;
  octavo::Mapping memory;

  explicit octavo_cache(const octavo::CacheShape& shape)
      : shape(shape), memory(static_cast<size_t>(shape.layers * shape.layer_bytes())) {}
  char* layer(int64_t index) const { return memory.data() + index * shape.layer_bytes(); }
};

namespace octavo {

// Remembers a printf-style message for octavo_last_error and gives the status back.
[[gnu::format(printf, 2, 3)]] int fail(int status, const char* format, ...);

// Rows of x [rows, in] in the order of a weight's inputs, in `room` [rows, in]; where it has none, x itself.
inline const float* order_inputs(const Weight& weight, const float* x, int64_t rows, float* room) {
  if (weight.order == nullptr) return x;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < weight.in; ++i) room[r * weight.in + i] = x[r * weight.in + weight.order[i]];
  return room;
}

// For printf's %lld.
inline long long number(int64_t value) { return value; }

// A handle that was closed, or never made, arrives as null.
inline bool missing(const void* handle) { return handle == nullptr; }
inline int closed() { return fail(OCTAVO_INVALID, "the backend, the weight or the cache is closed"); }

// Runs `body` (which returns a status); an allocation that fails becomes OCTAVO_NO_MEMORY.
template <class Body>
int guarded(Body&& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail(OCTAVO_NO_MEMORY, "out of memory");
  } catch (const std::exception& error) {  // a thread that cannot be started, for instance
    return fail(OCTAVO_INVALID, "%s", error.what());
  }
}

// How many threads a piece of work deserves: below `grain` units a thread costs more than it brings.
inline int threads_for(const octavo_context& context, int64_t units, int64_t grain) {
  return units < 2 * grain ? 1 : context.threads;
}

// Calls function(first, count) for ranges that together are all rows, in parallel where `units` of work in all deserve it.
template <class Function>
void for_rows(const octavo_context& context, int64_t rows, int64_t units, int64_t grain, Function&& function) {
  if (rows < 1) return;  // a step of prompt chunks alone has none for the final norm
  const int threads = threads_for(context, units, grain);
  const int64_t chunk = threads == 1 ? rows : ceil_div(rows, 4 * threads);
  pool::parallel(threads, ceil_div(rows, chunk),
                 [&](int64_t item, int) { function(item * chunk, std::min(chunk, rows - item * chunk)); });
}

}  // namespace octavo
