// The one thread pool of the process: persistent workers that pull items from a counter.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

namespace octavo::pool {

// `worker` is 0 for the caller, else 1 .. threads - 1: an index into per-thread scratch memory.
using Task = void (*)(void* context, int64_t item, int worker);

// Every user holds the pool from retain to release; the last release joins the workers.
void retain();
void release();

// Keep worker i, those of later calls too, on the processor cpus[i]; cpus[0], the caller's, is not looked at. Workers beyond
// the list go where the system likes, as all do at first. False where the system refuses or knows no such thing.
bool pin(std::vector<int> cpus);

// Run task(context, 0 .. items - 1, worker) on the caller and up to threads - 1 workers, which are started when first
// needed; returns when all is done. Callers in several threads take turns. Items are claimed in order.
void run(int threads, int64_t items, Task task, void* context);

template <class Function>
void parallel(int threads, int64_t items, Function&& function) {
  using Plain = std::remove_reference_t<Function>;
  if (threads <= 1 || items <= 1) {
    for (int64_t item = 0; item < items; ++item) function(item, 0);
    return;
  }
  run(
      threads, items, [](void* context, int64_t item, int worker) { (*static_cast<Plain*>(context))(item, worker); },
      const_cast<void*>(static_cast<const void*>(&function)));
}

}  // namespace octavo::pool
