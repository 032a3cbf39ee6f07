// Contexts, packed weights, dequantisation.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "context.h"

namespace octavo {
namespace {

thread_local char last_error[256] = "";

constexpr int kMaxThreads = 1024;

int64_t panels_of(const octavo_context& context, int64_t out, int32_t dtype) {
  return ceil_div(out, context.kernels->linear[dtype].panel_width);
}

octavo_weight* new_weight(octavo_context& context, int32_t dtype, int64_t in, int64_t out) {
  const LinearKernels& linear = context.kernels->linear[dtype];
  auto weight = std::make_unique<octavo_weight>();
  Weight& view = weight->view;
  view.dtype = dtype;
  view.in = in;
  view.out = out;
  view.steps = ceil_div(in, linear.depth);
  view.panel_bytes = view.steps * linear.depth * linear.panel_width * element_bytes(dtype);
  weight->panels = panels_of(context, out, dtype);
  weight->bytes = weight->panels * view.panel_bytes;
  weight->memory = context.weights.allocate(static_cast<size_t>(weight->bytes));
  view.panels = weight->memory.data;
  view.bias = nullptr;
  return weight.release();
}

// Threads take whole panels: the rows of one part that fall into a panel.
void pack(octavo_context& context, octavo_weight& weight, const char* rows, int64_t first, int64_t count) {
  const Weight& view = weight.view;
  const LinearKernels& linear = context.kernels->linear[view.dtype];
  const int64_t row_bytes = view.in * element_bytes(view.dtype);
  const int64_t first_panel = first / linear.panel_width;
  const int64_t panels = ceil_div(first + count, linear.panel_width) - first_panel;
  pool::parallel(threads_for(context, count * row_bytes, 64 * 1024), panels, [&](int64_t item, int) {
    const int64_t start = (first_panel + item) * linear.panel_width;
    const int64_t begin = std::max(start, first);
    const int64_t end = std::min(start + linear.panel_width, first + count);
    linear.pack_weight(rows + (begin - first) * row_bytes, view.in, begin - start, end - begin,
                       view.panels + (first_panel + item) * view.panel_bytes);
  });
}

constexpr int64_t kDequantizeValues = 64 * 1024;  // per item

}  // namespace

int fail(int status, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(last_error, sizeof last_error, format, arguments);
  va_end(arguments);
  return status;
}

}  // namespace octavo

using namespace octavo;

int octavo_abi_version(void) { return OCTAVO_ABI_VERSION; }
const char* octavo_last_error(void) { return last_error; }
int octavo_isa_supported(const char* isa) { return find_kernels(isa) != nullptr ? 1 : 0; }

octavo_context* octavo_open(const char* isa, int32_t threads) {
  octavo_context* context = nullptr;
  guarded([&] {
    const Kernels* kernels = find_kernels(isa);
    if (kernels == nullptr) return fail(OCTAVO_INVALID, "instruction set %s is not supported", isa);
    if (threads < 1 || threads > kMaxThreads) return fail(OCTAVO_INVALID, "threads must be 1 to %d", kMaxThreads);
    context = new octavo_context(kernels, threads);
    return static_cast<int>(OCTAVO_OK);
  });
  return context;
}

void octavo_close(octavo_context* context) { delete context; }

octavo_weight* octavo_weight_new(octavo_context* context, int32_t dtype, int64_t in, int64_t out) {
  if (missing(context)) {
    closed();
    return nullptr;
  }
  octavo_weight* weight = nullptr;
  guarded([&] {
    if (dtype < 0 || dtype >= kDTypes) return fail(OCTAVO_INVALID, "unknown dtype %d", dtype);
    if (in < 1 || out < 1 || in > INT32_MAX || out > INT32_MAX)
      return fail(OCTAVO_INVALID, "a weight cannot be [%lld, %lld]", number(out), number(in));
    weight = new_weight(*context, dtype, in, out);
    return static_cast<int>(OCTAVO_OK);
  });
  return weight;
}

int octavo_weight_pack(octavo_context* context, octavo_weight* weight, const void* rows, int64_t first, int64_t count) {
  if (missing(context) || missing(weight)) return closed();
  if (first < 0 || count < 0 || first + count > weight->view.out)
    return fail(OCTAVO_OUT_OF_RANGE, "rows %lld + %lld of a weight with %lld", number(first), number(count),
                number(weight->view.out));
  if (count > 0) pack(*context, *weight, static_cast<const char*>(rows), first, count);
  return OCTAVO_OK;
}

int octavo_weight_bias(octavo_weight* weight, const float* bias) {
  if (missing(weight)) return closed();
  return guarded([&] {
    const int64_t lanes = weight->view.out + 64;  // vectors may read past the last output
    weight->bias = std::make_unique<float[]>(lanes);
    std::memcpy(weight->bias.get(), bias, weight->view.out * sizeof(float));
    weight->view.bias = weight->bias.get();
    return static_cast<int>(OCTAVO_OK);
  });
}

int64_t octavo_weight_bytes(const octavo_weight* weight) { return weight->bytes; }
void octavo_weight_free(octavo_weight* weight) { delete weight; }

int octavo_dequantize(octavo_context* context, const void* raw, int64_t raw_bytes, int32_t type, int64_t count,
                      int32_t dtype, void* out) {
  if (missing(context)) return closed();
  const BlockSize block = context->kernels->block_size(type);
  if (block.values == 0) return fail(OCTAVO_INVALID, "GGUF type %d cannot be dequantized", type);
  if (dtype < 0 || dtype >= kDTypes) return fail(OCTAVO_INVALID, "unknown dtype %d", dtype);
  if (count < 0 || count % block.values != 0 || raw_bytes != count / block.values * block.bytes)
    return fail(OCTAVO_INVALID, "%lld bytes are not %lld values of GGUF type %d", number(raw_bytes), number(count), type);
  const int64_t blocks = count / block.values;
  const int64_t chunk = kDequantizeValues / block.values;
  const int64_t out_bytes = element_bytes(dtype) * block.values;
  pool::parallel(context->threads, ceil_div(blocks, chunk), [&](int64_t item, int) {
    const int64_t first = item * chunk;
    context->kernels->dequantize(type, static_cast<const uint8_t*>(raw) + first * block.bytes,
                                 std::min(chunk, blocks - first), dtype, static_cast<char*>(out) + first * out_bytes);
  });
  return OCTAVO_OK;
}
