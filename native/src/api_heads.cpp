// Products of which every head has its own, and columns put side by side: what latent attention is made of.
#include <algorithm>

#include "portions.h"

namespace octavo {
namespace {

constexpr int64_t kSmallCopy = 1 << 15;  // floats

// An item is one head and a run of rows: their parts are gathered and packed by one thread in memory of its own.
class HeadProducts {
 public:
  HeadProducts(octavo_context& context, const octavo_weight* const* weights, int64_t heads)
      : context_(context),
        weights_(weights),
        heads_(heads),
        view_(weights[0]->view),
        kernels_(*context.kernels->linear[view_.format]) {}

  void run(const float* x, int64_t rows, float* y) {
    const int threads = threads_for(context_, heads_ * rows * view_.in * view_.out, kSmallProduct);
    const int64_t run = std::min(rows, std::max<int64_t>(1, kPortionRows / kernels_.max_rows) * kernels_.max_rows);
    packed_bytes_ = ceil_div(run * view_.row_bytes, 64) * 64;
    floats_ = kernels_.max_rows * view_.in;
    packed_ = static_cast<char*>(context_.activations.reserve(static_cast<size_t>(threads * packed_bytes_ + 64)));
    own_ = static_cast<float*>(context_.gathered.reserve(static_cast<size_t>(threads * floats_) * sizeof(float)));
    pool::parallel(threads, heads_ * ceil_div(rows, run), [&](int64_t item, int worker) {
      const int64_t first = item / heads_ * run;
      multiply(item % heads_, x, first, std::min(run, rows - first), y, worker);
    });
  }

 private:
  void multiply(int64_t head, const float* x, int64_t first, int64_t rows, float* y, int worker) const {
    const Weight& weight = weights_[head]->view;
    const int64_t in = view_.in, out = view_.columns();
    float* gathered = own_ + worker * floats_;
    char* packed = packed_ + worker * packed_bytes_;
    float* result = y + (first * heads_ + head) * out;
    const LinearTask task{&weight, packed, rows, ceil_div(rows, kernels_.max_rows), result, heads_ * out, false};
    for (int64_t block = 0; block < task.blocks; ++block) {
      const int64_t start = task.first_row(block), count = task.first_row(block + 1) - start;
      for (int64_t r = 0; r < count; ++r)
        std::copy_n(x + ((first + start + r) * heads_ + head) * in, in, gathered + r * in);
      kernels_.pack_rows(weight, gathered, count, packed + start * view_.row_bytes);
    }
    Portions(kernels_, &task, 1, 1).run();
  }

  octavo_context& context_;
  const octavo_weight* const* weights_;
  const int64_t heads_;
  const Weight& view_;  // of any head: all have this shape
  const LinearKernels& kernels_;
  int64_t packed_bytes_ = 0, floats_ = 0;  // of a thread
  char* packed_ = nullptr;
  float* own_ = nullptr;
};

}  // namespace
}  // namespace octavo

using namespace octavo;

int octavo_linear_heads(octavo_context* context, const octavo_weight* const* weights, int64_t heads, const float* x,
                        int64_t rows, float* y) {
  if (missing(context)) return closed();
  if (heads < 1) return fail(OCTAVO_INVALID, "%lld heads", number(heads));
  for (int64_t head = 0; head < heads; ++head) {
    if (missing(weights[head])) return closed();
    const Weight& own = weights[head]->view;
    if (!alike(own, weights[0]->view) || own.order != nullptr || !weights[head]->pieces.empty())
      return fail(OCTAVO_INVALID, "head %lld: [%lld, %lld] is not like the other heads", number(head), number(own.out),
                  number(own.in));
  }
  return guarded([&] {
    std::lock_guard<std::mutex> lock(context->mutex);
    if (rows > 0) HeadProducts(*context, weights, heads).run(x, rows, y);
    return static_cast<int>(OCTAVO_OK);
  });
}

int octavo_copy_columns(octavo_context* context, const float* x, int64_t rows, int64_t width, float* y, int64_t stride,
                        int64_t first) {
  if (missing(context)) return closed();
  if (first < 0 || width < 0 || first + width > stride)
    return fail(OCTAVO_OUT_OF_RANGE, "columns %lld + %lld of %lld", number(first), number(width), number(stride));
  for_rows(*context, rows, rows * width, kSmallCopy, [&](int64_t start, int64_t count) {
    for (int64_t row = start; row < start + count; ++row) std::copy_n(x + row * width, width, y + row * stride + first);
  });
  return OCTAVO_OK;
}
