// The operations of a step that work on rows alone: products, lookup, norm, activation.
#include <algorithm>
#include <memory>

#include "portions.h"

namespace octavo {
namespace {

constexpr int64_t kSmallRows = 1 << 14;  // floats, or as much work as so many
constexpr int64_t kRowsPerPass = 512;    // packed activations of a pass stay in the shared cache

struct Product {
  octavo_context& context;
  const octavo_weight& weight;
  const LinearKernels& kernels;

  void pack(LinearTask& task, const float* x, char* packed, int threads) const {
    const Weight& view = weight.view;
    task.packed = packed;
    const int64_t share = view.order == nullptr ? 0 : kernels.max_rows * view.in;  // of a thread, for rows in order
    float* ordered = static_cast<float*>(context.ordered.reserve(static_cast<size_t>(context.threads * share) * 4));
    pool::parallel(task.blocks > 4 ? threads : 1, task.blocks, [&](int64_t block, int worker) {
      const int64_t first = task.first_row(block), rows = task.first_row(block + 1) - first;
      const float* inputs = order_inputs(view, x + first * view.in, rows, ordered + worker * share);
      kernels.pack_rows(view, inputs, rows, packed + first * view.row_bytes);
    });
  }

  // `stride`: floats from a row of y to the next.
  void run(const float* x, int64_t rows, float* y, int64_t stride, bool accumulate) const {
    const Weight& view = weight.view;
    const int threads = threads_for(context, rows * view.in * view.out, kSmallProduct);
    char* packed = static_cast<char*>(context.activations.reserve(std::min(rows, kRowsPerPass) * view.row_bytes + 64));
    for (int64_t row = 0; row < rows; row += kRowsPerPass) {
      const int64_t count = std::min(kRowsPerPass, rows - row);
      LinearTask task{&view, nullptr, count, ceil_div(count, kernels.max_rows), y + row * stride, stride, accumulate};
      pack(task, x + row * view.in, packed, threads);
      Portions(kernels, &task, 1, threads).run();
    }
  }
};

// One row of a weight, its inputs in the order of the model.
void look_up(const LinearKernels& linear, const Weight& view, int64_t id, float* row) {
  linear.unpack_weight(view, id / view.panel_width, id % view.panel_width, row);
  if (view.order == nullptr) return;
  const std::vector<float> stored(row, row + view.in);
  for (int64_t i = 0; i < view.in; ++i) row[view.order[i]] = stored[i];
}

}  // namespace
}  // namespace octavo

using namespace octavo;

int octavo_linear(octavo_context* context, const octavo_weight* weight, const float* x, int64_t rows, float* y,
                  int32_t accumulate) {
  if (missing(context) || missing(weight)) return closed();
  return guarded([&] {
    if (rows < 1) return static_cast<int>(OCTAVO_OK);
    std::lock_guard<std::mutex> lock(context->mutex);
    const int64_t stride = weight->view.columns();
    if (weight->pieces.empty())
      Product{*context, *weight, *context->kernels->linear[weight->view.format]}.run(x, rows, y, stride, accumulate != 0);
    for (const octavo_weight* piece : weight->pieces) {
      Product{*context, *piece, *context->kernels->linear[piece->view.format]}.run(x, rows, y, stride, accumulate != 0);
      y += piece->view.out;
    }
    return static_cast<int>(OCTAVO_OK);
  });
}

int octavo_embedding(octavo_context* context, const octavo_weight* weight, const int32_t* ids, int64_t count, float scale,
                     float* y, int32_t accumulate) {
  if (missing(context) || missing(weight)) return closed();
  const Weight& view = weight->view;
  for (int64_t i = 0; i < count; ++i)
    if (ids[i] < 0 || ids[i] >= view.out)
      return fail(OCTAVO_OUT_OF_RANGE, "token id %d at index %lld is not below %lld", ids[i], number(i), number(view.out));
  if (view.gated() || !weight->pieces.empty())
    return fail(OCTAVO_INVALID, "a weight with gates or of several pieces has no rows to look up");
  const LinearKernels& linear = *context->kernels->linear[view.format];
  const bool plain = scale == 1.0f && accumulate == 0;
  for_rows(*context, count, count * 16 * view.in, kSmallRows, [&](int64_t first, int64_t rows) {
    std::unique_ptr<float[]> row(plain ? nullptr : new float[view.in]);
    for (int64_t i = first; i < first + rows; ++i) {
      float* target = y + i * view.in;
      look_up(linear, view, ids[i], plain ? target : row.get());
      if (!plain) context->kernels->put_scaled(row.get(), view.in, scale, target, accumulate != 0);
    }
  });
  return OCTAVO_OK;
}

int octavo_select_rows(octavo_context* context, const float* x, int64_t rows, int64_t width, const int32_t* indices,
                       int64_t count, float* y) {
  if (missing(context)) return closed();
  for (int64_t i = 0; i < count; ++i)
    if (indices[i] < 0 || indices[i] >= rows)
      return fail(OCTAVO_OUT_OF_RANGE, "row %d at index %lld is not below %lld", indices[i], number(i), number(rows));
  for (int64_t i = 0; i < count; ++i) std::copy_n(x + indices[i] * width, width, y + i * width);
  return OCTAVO_OK;
}

int octavo_rms_norm(octavo_context* context, const float* x, const float* weight, int64_t rows, int64_t width, float epsilon,
                    float* y, int32_t accumulate) {
  if (missing(context)) return closed();
  for_rows(*context, rows, rows * width, kSmallRows, [&](int64_t first, int64_t count) {
    context->kernels->rms_norm(x + first * width, weight, count, width, epsilon, y + first * width, accumulate != 0);
  });
  return OCTAVO_OK;
}

int octavo_rms_norm_columns(octavo_context* context, float* x, int64_t rows, int64_t stride, int64_t first, int64_t count,
                            const float* weight, int64_t width, float epsilon) {
  if (missing(context)) return closed();
  if (first < 0 || count < 0 || first + count * width > stride)
    return fail(OCTAVO_INVALID, "columns %lld + %lld * %lld of %lld", number(first), number(count), number(width),
                number(stride));
  for_rows(*context, rows, rows * count * width, kSmallRows, [&](int64_t from, int64_t some) {
    for (int64_t row = from; row < from + some; ++row) {
      float* run = x + row * stride + first;
      context->kernels->rms_norm(run, weight, count, width, epsilon, run, false);
    }
  });
  return OCTAVO_OK;
}

int octavo_layer_norm(octavo_context* context, const float* x, const float* weight, const float* bias, int64_t rows,
                      int64_t width, float epsilon, float* y) {
  if (missing(context)) return closed();
  for_rows(*context, rows, rows * 2 * width, kSmallRows, [&](int64_t first, int64_t count) {
    context->kernels->layer_norm(x + first * width, weight, bias, count, width, epsilon, y + first * width);
  });
  return OCTAVO_OK;
}

int octavo_soft_cap(octavo_context* context, float* x, int64_t rows, int64_t width, float cap) {
  if (missing(context)) return closed();
  for_rows(*context, rows, rows * 4 * width, kSmallRows,
           [&](int64_t first, int64_t count) { context->kernels->soft_cap(x + first * width, count * width, cap); });
  return OCTAVO_OK;
}

int octavo_silu_and_multiply(octavo_context* context, const float* x, int64_t rows, int64_t width, float* y) {
  if (missing(context)) return closed();
  for_rows(*context, rows, rows * 4 * width, kSmallRows, [&](int64_t first, int64_t count) {
    context->kernels->silu_and_multiply(x + first * 2 * width, count, width, y + first * width);
  });
  return OCTAVO_OK;
}
