// Contexts, packed weights, dequantisation.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "context.h"

namespace octavo {
namespace {

thread_local char last_error[256] = "";

constexpr int kMaxThreads = 1024;
constexpr int kMaxCpus = 1024;  // bits of cpu_set_t

// Where an output lies, and how many from there on lie side by side.
struct Place {
  int64_t panel, lane, run;
};

Place place_of(const Weight& weight, int64_t output) {
  const int64_t width = weight.gated() ? weight.panel_width / 2 : weight.panel_width;
  const bool up = weight.gated() && output >= weight.columns();
  const int64_t index = up ? output - weight.columns() : output;
  const int64_t limit = weight.columns() - index;
  return {index / width, index % width + (up ? width : 0), std::min(width - index % width, limit)};
}

bool fits(int32_t format, int64_t group) {
  if (format == kInt4A16 || format == kInt4A8) return group == 32 || group == 64;
  return group == (format == kInt8A8 ? 64 : 0);
}

octavo_weight* new_weight(octavo_context& context, const Weight& shape) {
  auto weight = std::make_unique<octavo_weight>();
  Weight& view = weight->view = shape;
  context.kernels->linear[view.format]->lay_out(view);
  weight->memory = context.weights.allocate(static_cast<size_t>(view.panels * view.panel_bytes));
  view.data = weight->memory.data;
  return weight.release();
}

// Threads take whole panels: the rows of one call that fall into a panel.
void pack(octavo_context& context, octavo_weight& weight, const char* rows, int32_t dtype, int64_t first, int64_t count) {
  const Weight& view = weight.view;
  const LinearKernels& linear = *context.kernels->linear[view.format];
  const int64_t row_bytes = view.in * element_bytes(dtype);
  std::vector<int64_t> starts;
  for (int64_t row = first; row < first + count; row += place_of(view, row).run) starts.push_back(row);
  pool::parallel(threads_for(context, count * row_bytes, 64 * 1024), static_cast<int64_t>(starts.size()),
                 [&](int64_t item, int) {
                   const Place place = place_of(view, starts[item]);
                   linear.pack_weight(view, rows + (starts[item] - first) * row_bytes, dtype, place.panel, place.lane,
                                      std::min(place.run, first + count - starts[item]));
                 });
}

constexpr int64_t kMaxQuantizedInputs = 131072;   // so that sums of products fit into 32 bits
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

int octavo_isa_trial(const char* isa) { return try_kernels(isa) ? 1 : 0; }

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

int octavo_pin(octavo_context* context, const int32_t* cpus, int64_t count) {
  if (missing(context)) return closed();
  return guarded([&] {
    for (int64_t i = 0; i < count; ++i)
      if (cpus[i] < 0 || cpus[i] >= kMaxCpus) return fail(OCTAVO_OUT_OF_RANGE, "processor %d", cpus[i]);
    if (!pool::pin({cpus, cpus + count})) return fail(OCTAVO_INVALID, "the system does not let threads be pinned");
    return static_cast<int>(OCTAVO_OK);
  });
}

octavo_weight* octavo_weight_new(octavo_context* context, int32_t format, int64_t group, int32_t activation, int64_t in,
                                 int64_t out) {
  if (missing(context)) {
    closed();
    return nullptr;
  }
  octavo_weight* weight = nullptr;
  guarded([&] {
    if (format < 0 || format >= kFormats) return fail(OCTAVO_INVALID, "unknown weight format %d", format);
    const int32_t function = activation & ~kUngated;
    if (activation < 0 || function >= kActivations || activation == kUngated)
      return fail(OCTAVO_INVALID, "unknown activation %d", activation);
    if (in < 1 || out < 1 || in > INT32_MAX || out > INT32_MAX)
      return fail(OCTAVO_INVALID, "a weight cannot be [%lld, %lld]", number(out), number(in));
    if (activation == function && function != kNoActivation && out % 2 != 0)
      return fail(OCTAVO_INVALID, "%lld outputs are no pairs of gate and up", number(out));
    if (!fits(format, group))
      return fail(OCTAVO_INVALID, "a weight of format %d cannot have groups of %lld", format, number(group));
    if (format >= kDTypes && in > kMaxQuantizedInputs)
      return fail(OCTAVO_INVALID, "a quantized weight has at most %lld inputs, not %lld", number(kMaxQuantizedInputs),
                  number(in));
    Weight shape{};
    shape.format = format;
    shape.activation = activation;
    shape.group = group;
    shape.in = in;
    shape.out = out;
    weight = new_weight(*context, shape);
    return static_cast<int>(OCTAVO_OK);
  });
  return weight;
}

int octavo_weight_pack(octavo_context* context, octavo_weight* weight, const void* rows, int32_t dtype, int64_t first,
                       int64_t count) {
  if (missing(context) || missing(weight)) return closed();
  const Weight& view = weight->view;
  if (dtype < 0 || dtype >= kDTypes || (view.format < kDTypes && dtype != view.format))
    return fail(OCTAVO_INVALID, "rows of dtype %d in a weight of format %d", dtype, view.format);
  if (first < 0 || count < 0 || first + count > view.out)
    return fail(OCTAVO_OUT_OF_RANGE, "rows %lld + %lld of a weight with %lld", number(first), number(count),
                number(view.out));
  return guarded([&] {
    if (count > 0) pack(*context, *weight, static_cast<const char*>(rows), dtype, first, count);
    return static_cast<int>(OCTAVO_OK);
  });
}

int octavo_weight_bias(octavo_weight* weight, const float* bias) {
  if (missing(weight)) return closed();
  return guarded([&] {
    Weight& view = weight->view;
    weight->bias = std::make_unique<float[]>(view.panels * view.panel_width);
    for (int64_t output = 0; output < view.out; ++output) {
      const Place place = place_of(view, output);
      weight->bias[place.panel * view.panel_width + place.lane] = bias[output];
    }
    view.bias = weight->bias.get();
    return static_cast<int>(OCTAVO_OK);
  });
}

int64_t octavo_weight_bytes(const octavo_weight* weight) { return weight->view.panels * weight->view.panel_bytes; }
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
