// How a product is divided among threads.
#pragma once

#include <algorithm>
#include <atomic>

#include "context.h"

namespace octavo {

// Some panels by some row blocks, on the calling thread.
inline void multiply_panels(const LinearKernels& kernels, const LinearTask& task, int64_t first_panel, int64_t last_panel,
                            int64_t first_block, int64_t last_block) {
  for (int64_t panel = first_panel; panel < last_panel; ++panel)
    kernels.multiply(task, {panel, first_block, last_block, panel > first_panel, panel + 1 == last_panel});
}

// Threads claim runs of neighbouring portions, each of which asks for the panel of the next: long ones at first, as memory
// is read best, and single ones at the end, so that all end together.
class Portions {
 public:
  Portions(const LinearKernels& kernels, const LinearTask& task, int threads)
      : kernels_(kernels),
        task_(task),
        threads_(threads),
        blocks_(std::max<int64_t>(1, kRows / kernels.max_rows)),
        row_portions_(ceil_div(task.blocks, blocks_)),
        longest_(std::max<int64_t>(1, kRunBytes / task.weight->panel_bytes) * row_portions_),
        count_(task.weight->panels * row_portions_) {}

  void run() {
    pool::parallel(static_cast<int>(threads_), threads_, [&](int64_t, int) {
      int64_t first = 0, last = 0;
      while (claim(first, last)) multiply(first, last);
    });
  }

 private:
  static constexpr int64_t kRows = 96;           // whose packed activations stay in a core's own cache
  static constexpr int64_t kRunBytes = 1 << 19;  // of weights: nobody waits long for a thread that lost its core

  bool claim(int64_t& first, int64_t& last) {
    first = next_.load(std::memory_order_relaxed);
    do {
      if (first == count_) return false;
      last = first + std::clamp<int64_t>((count_ - first) / (2 * threads_), 1, longest_);
    } while (!next_.compare_exchange_weak(first, last, std::memory_order_relaxed));
    return true;
  }

  void multiply(int64_t first, int64_t last) const {
    const int64_t first_panel = first / row_portions_, last_panel = (last - 1) / row_portions_;
    int64_t panel = first_panel, block = first % row_portions_ * blocks_;
    for (int64_t i = first; i < last; ++i) {
      const int64_t end = std::min(block + blocks_, task_.blocks);
      kernels_.multiply(task_, {panel, block, end, panel > first_panel, panel == last_panel});
      if (end < task_.blocks) {
        block = end;
      } else {
        block = 0;
        ++panel;
      }
    }
  }

  const LinearKernels& kernels_;
  const LinearTask& task_;
  const int64_t threads_, blocks_, row_portions_, longest_, count_;
  std::atomic<int64_t> next_{0};
};

}  // namespace octavo
