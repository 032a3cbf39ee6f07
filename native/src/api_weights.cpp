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

// The outputs [first, last) that lie side by side in a panel from `lane` on.
struct Run {
  int64_t panel, lane, first, last;
};

// Of the outputs [first, last), each panel's: of a gated weight its gates, then its ups.
template <class Function>
void for_runs(const Weight& weight, int64_t panel, int64_t first, int64_t last, Function&& function) {
  const int64_t columns = weight.columns(), width = weight.gated() ? weight.panel_width / 2 : weight.panel_width;
  for (int64_t half = 0; half * columns < weight.out; ++half) {
    const int64_t start = half * columns + panel * width, end = half * columns + std::min(columns, (panel + 1) * width);
    const int64_t from = std::max(first, start), to = std::min(last, end);
    if (from < to) function(Run{panel, half * width + from - start, from, to});
  }
}

// What a weight cannot have, and the number that says so; without a name there is such a weight.
struct Misfit {
  const char* name;
  int64_t value;
};
Misfit misfit(const Weight& shape) {
  constexpr int64_t kGroupUnit = 16, kFloat8GroupUnit = 32;
  const bool is_float8 = shape.format == kFloat8, is_int8 = shape.format == kInt8A16 || shape.format == kInt8A8;
  const bool has_factors = shape.scale == kBytesAndFactors;
  const Misfit none{nullptr, 0}, groups{"groups", shape.group}, offsets{"offsets", shape.offset};
  if (has_factors && (shape.format < kInt4A16 || shape.format >= kFloat4A16)) return {"scales", shape.scale};
  if (shape.format < kDTypes) return shape.group == 0 ? none : groups;
  if (is_int8) return shape.group == (shape.format == kInt8A8 ? 64 : 0) ? none : groups;
  if (shape.group < 0 || shape.group % (is_float8 ? kFloat8GroupUnit : kGroupUnit) != 0) return groups;
  if (has_factors && (shape.group == 0 || kBlockInputs % shape.group != 0)) return groups;
  if (has_factors && shape.offset == kZero) return offsets;
  return shape.format >= kFloat4A16 && shape.offset != kNoOffset ? offsets : none;
}

octavo_weight* new_weight(octavo_context& context, const Weight& shape) {
  auto weight = std::make_unique<octavo_weight>();
  Weight& view = weight->view = shape;
  context.kernels->linear[view.format]->lay_out(view);
  weight->memory = context.weights.allocate(static_cast<size_t>(view.panels * view.panel_bytes));
  view.data = weight->memory.data;
  return weight.release();
}

// Whether rows of numbers can become this format.
bool rounds(const Weight& view) {
  if (view.format == kInt4A16 || view.format == kInt4A8) return view.scale == kFloat16 && view.offset == kLeast;
  if (view.format >= kGroupedInt8A16 && view.format <= kFloat4A8) return false;
  const bool is_plain = view.scale == kFloat32 && view.offset == kNoOffset && (view.format != kFloat8 || view.group == 0);
  return view.format < kDTypes || is_plain;
}

// Threads take whole panels, as gates and ups share lines of memory, and in some formats bytes.
template <class Put>
void for_panels(octavo_context& context, const Weight& view, int64_t first, int64_t count, int64_t bytes, Put&& put) {
  pool::parallel(threads_for(context, bytes, 64 * 1024), view.panels,
                 [&](int64_t panel, int) { for_runs(view, panel, first, first + count, put); });
}

void pack(octavo_context& context, const Weight& view, const char* rows, int32_t dtype, int64_t first, int64_t count) {
  const LinearKernels& linear = *context.kernels->linear[view.format];
  const int64_t row_bytes = view.in * element_bytes(dtype);
  for_panels(context, view, first, count, count * row_bytes, [&](const Run& run) {
    linear.pack_weight(view, rows + (run.first - first) * row_bytes, dtype, run.panel, run.lane, run.last - run.first);
  });
}

void put(octavo_context& context, const Weight& view, const CodedRows& rows, int64_t first, int64_t count) {
  const LinearKernels& linear = *context.kernels->linear[view.format];
  for_panels(context, view, first, count, count * view.in, [&](const Run& run) {
    linear.pack_codes(view, rows.from(run.first - first, view), run.panel, run.lane, run.last - run.first);
  });
}

constexpr int64_t kMaxQuantizedInputs = 131072;   // so that sums of products fit into 32 bits
constexpr int64_t kMaxCodedInputs = 65536;        // the same with codes up to 255
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

octavo_weight* octavo_weight_new(octavo_context* context, int32_t format, int64_t group, int32_t scale, int32_t offset,
                                 int32_t activation, int64_t in, int64_t out) {
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
    if (scale < 0 || scale >= kScales || offset < 0 || offset >= kOffsets)
      return fail(OCTAVO_INVALID, "unknown scales %d or offsets %d", scale, offset);
    if (format >= kDTypes && format != kFloat8 && in > kMaxQuantizedInputs)
      return fail(OCTAVO_INVALID, "a quantized weight has at most %lld inputs, not %lld", number(kMaxQuantizedInputs),
                  number(in));
    Weight shape{};
    shape.format = format;
    shape.activation = activation;
    shape.group = group;
    shape.scale = scale;
    shape.offset = offset;
    shape.in = in;
    shape.out = out;
    if (const Misfit found = misfit(shape); found.name != nullptr)
      return fail(OCTAVO_INVALID, "a weight of format %d cannot have %s of %lld", format, found.name, number(found.value));
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
  if (!rounds(view)) return fail(OCTAVO_INVALID, "rows are not rounded to a weight of format %d like this", view.format);
  if (first < 0 || count < 0 || first + count > view.out)
    return fail(OCTAVO_OUT_OF_RANGE, "rows %lld + %lld of a weight with %lld", number(first), number(count),
                number(view.out));
  return guarded([&] {
    if (count > 0) pack(*context, view, static_cast<const char*>(rows), dtype, first, count);
    return static_cast<int>(OCTAVO_OK);
  });
}

int octavo_weight_put(octavo_context* context, octavo_weight* weight, const uint8_t* codes, const void* scales,
                      const void* offsets, const void* factors, int64_t groups, int64_t first, int64_t count) {
  if (missing(context) || missing(weight)) return closed();
  const Weight& view = weight->view;
  const bool one_group = view.group == 0 || view.format == kInt8A8;
  if (!weight->pieces.empty() || context->kernels->linear[view.format]->pack_codes == nullptr)
    return fail(OCTAVO_INVALID, "codes in a weight of format %d", view.format);
  if (groups != (one_group ? 1 : ceil_div(view.in, view.group)) || (offsets != nullptr) != (view.offset != kNoOffset) ||
      (factors != nullptr) != (view.scale == kBytesAndFactors))
    return fail(OCTAVO_INVALID, "%lld scales an output, or offsets or factors, do not fit a weight of format %d",
                number(groups), view.format);
  if (one_group && view.format != kFloat8 && view.in > kMaxCodedInputs)
    return fail(OCTAVO_INVALID, "integers with one scale have at most %lld inputs, not %lld", number(kMaxCodedInputs),
                number(view.in));
  if (first < 0 || count < 0 || first + count > view.out)
    return fail(OCTAVO_OUT_OF_RANGE, "rows %lld + %lld of a weight with %lld", number(first), number(count),
                number(view.out));
  return guarded([&] {
    const CodedRows rows{codes, static_cast<const char*>(scales), static_cast<const char*>(offsets),
                         static_cast<const char*>(factors), groups};
    if (count > 0) put(*context, view, rows, first, count);
    return static_cast<int>(OCTAVO_OK);
  });
}

int octavo_weight_order(octavo_weight* weight, const int32_t* order) {
  if (missing(weight)) return closed();
  return guarded([&] {
    const int64_t in = weight->view.in;
    std::vector<bool> seen(static_cast<size_t>(in), false);
    for (int64_t i = 0; i < in; ++i) {
      if (order[i] < 0 || order[i] >= in || seen[order[i]])
        return fail(OCTAVO_INVALID, "%d at %lld: not every input has one place in the order", order[i], number(i));
      seen[order[i]] = true;
    }
    weight->order = std::make_unique<int32_t[]>(in);
    std::copy_n(order, in, weight->order.get());
    weight->view.order = weight->order.get();
    return static_cast<int>(OCTAVO_OK);
  });
}

octavo_weight* octavo_weight_stack(const octavo_weight* const* pieces, int64_t count) {
  octavo_weight* stack = nullptr;
  guarded([&] {
    auto made = std::make_unique<octavo_weight>();
    for (int64_t i = 0; i < count; ++i) {
      if (missing(pieces[i])) return closed();
      const Weight& view = pieces[i]->view;
      if (view.in != pieces[0]->view.in || view.gated() || !pieces[i]->pieces.empty())
        return fail(OCTAVO_INVALID, "piece %lld of a stack does not fit the others", number(i));
      made->view.out += view.out;
      made->pieces.push_back(pieces[i]);
    }
    if (count < 1) return fail(OCTAVO_INVALID, "a stack of nothing");
    made->view.in = pieces[0]->view.in;
    stack = made.release();
    return static_cast<int>(OCTAVO_OK);
  });
  return stack;
}

int octavo_weight_bias(octavo_weight* weight, const float* bias) {
  if (missing(weight)) return closed();
  return guarded([&] {
    Weight& view = weight->view;
    weight->bias = std::make_unique<float[]>(view.panels * view.panel_width);
    for (int64_t panel = 0; panel < view.panels; ++panel)
      for_runs(view, panel, 0, view.out, [&](const Run& run) {
        std::copy(bias + run.first, bias + run.last, &weight->bias[panel * view.panel_width + run.lane]);
      });
    view.bias = weight->bias.get();
    return static_cast<int>(OCTAVO_OK);
  });
}

int64_t octavo_weight_bytes(const octavo_weight* weight) {
  int64_t bytes = weight->view.panels * weight->view.panel_bytes;
  for (const octavo_weight* piece : weight->pieces) bytes += octavo_weight_bytes(piece);
  return bytes;
}
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
