// How products are divided among threads.
#pragma once

#include <algorithm>
#include <atomic>

#include "context.h"

namespace octavo {

constexpr int64_t kSmallProduct = 1 << 15;  // multiply-adds below which waking threads costs more than it brings
constexpr int64_t kPortionRows = 96;        // whose packed activations stay in a core's own cache

// Whether products with both weights can be divided as one list, and their rows packed alike.
inline bool alike(const Weight& a, const Weight& b) {
  return a.in == b.in && a.out == b.out && a.format == b.format && a.activation == b.activation && a.group == b.group &&
         a.scale == b.scale && a.offset == b.offset && (a.order == nullptr) == (b.order == nullptr);
}

// Products with weights that are alike. Threads claim runs of neighbouring portions, each of which asks for the panel of the
// next: long ones at first, as memory is read best, and single ones at the end, so that all end together.
class Portions {
 public:
  Portions(const LinearKernels& kernels, const LinearTask* tasks, int64_t products, int threads)
      : kernels_(kernels), tasks_(tasks), threads_(threads), blocks_(std::max<int64_t>(1, kPortionRows / kernels.max_rows)) {
    const Weight& weight = *tasks->weight;
    for (int64_t t = 0; t < products; ++t) count_ += count_of(tasks[t]);
    longest_ = std::max<int64_t>(1, kRunBytes / weight.panel_bytes) * (count_ / (products * weight.panels));
  }

  void run() {
    if (threads_ == 1) return multiply(0, count_);
    pool::parallel(threads_, threads_, [&](int64_t, int) {
      int64_t first = 0, last = 0;
      while (claim(first, last)) multiply(first, last);
    });
  }

 private:
  static constexpr int64_t kRunBytes = 1 << 19;  // of weights: nobody waits long for a thread that lost its core

  // Of a panel; and of all.
  int64_t row_portions(const LinearTask& task) const { return ceil_div(task.blocks, blocks_); }
  int64_t count_of(const LinearTask& task) const { return task.weight->panels * row_portions(task); }

  // Nothing but the counter is shared: what the product reads was there before the pool was called.
  bool claim(int64_t& first, int64_t& last) {
    first = next_.load(std::memory_order_relaxed);
    do {
      if (first == count_) return false;
      last = first + std::clamp<int64_t>((count_ - first) / (2 * threads_), 1, longest_);
    } while (!next_.compare_exchange_weak(first, last, std::memory_order_relaxed));
    return true;
  }

  void multiply(int64_t first, int64_t last) const {
    for (const LinearTask* task = tasks_; last > 0; ++task) {
      const int64_t count = count_of(*task);
      if (first < count) multiply(*task, first, std::min(last, count));
      first = std::max<int64_t>(0, first - count);
      last -= count;
    }
  }

  void multiply(const LinearTask& task, int64_t first, int64_t last) const {
    const int64_t portions = row_portions(task), first_panel = first / portions, last_panel = (last - 1) / portions;
    for (int64_t i = first; i < last; ++i) {
      const int64_t panel = i / portions, block = i % portions * blocks_;
      const int64_t end = std::min(block + blocks_, task.blocks);
      kernels_.multiply(task, {panel, block, end, panel > first_panel, panel == last_panel});
    }
  }

  const LinearKernels& kernels_;
  const LinearTask* const tasks_;
  const int threads_;
  const int64_t blocks_;  // of rows, at most, in a portion
  int64_t count_ = 0, longest_ = 0;
  std::atomic<int64_t> next_{0};
};

}  // namespace octavo
