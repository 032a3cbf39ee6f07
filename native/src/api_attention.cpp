// Attention: checked arguments, and the work list that the threads pull from.
#include <algorithm>
#include <atomic>
#include <vector>

#include "context.h"

namespace octavo {
namespace {

// The arguments of one attention call, checked before anything is read through them.
struct Call {
  octavo_context& context;
  const octavo_cache& cache;
  int64_t layer;
  const float* qkv;
  int64_t heads, tokens;
  const int32_t* query_starts;
  const int32_t* lengths;
  int64_t sequences;
  const int32_t* tables;
  int64_t table_width;
  float scale;
  int64_t window;
  float soft_cap;
  const float* sinks;
  bool causal;
  float* out;

  int64_t group() const { return heads / cache.shape.kv_heads; }
  int64_t queries(int64_t sequence) const { return query_starts[sequence + 1] - query_starts[sequence]; }

  int check() const {
    const CacheShape& shape = cache.shape;
    if (layer < 0 || layer >= shape.layers)
      return fail(OCTAVO_OUT_OF_RANGE, "layer %lld of %lld", number(layer), number(shape.layers));
    if (heads < 1 || heads % shape.kv_heads != 0)
      return fail(OCTAVO_INVALID, "%lld heads do not share %lld KV heads evenly", number(heads), number(shape.kv_heads));
    if (window < 1) return fail(OCTAVO_INVALID, "a window of %lld keys", number(window));
    if (!(soft_cap >= 0.0f)) return fail(OCTAVO_INVALID, "a soft cap of %g", static_cast<double>(soft_cap));
    if (query_starts[0] != 0 || query_starts[sequences] != tokens)
      return fail(OCTAVO_INVALID, "query_starts must go from 0 to %lld", number(tokens));
    for (int64_t s = 0; s < sequences; ++s) {
      const int64_t length = lengths[s];
      if (queries(s) < 0 || length < queries(s))
        return fail(OCTAVO_INVALID, "sequence %lld: %lld queries, %lld keys", number(s), number(queries(s)), number(length));
      if (queries(s) == 0) continue;
      const int64_t blocks = ceil_div(length, shape.block_size);
      if (blocks > table_width)
        return fail(OCTAVO_OUT_OF_RANGE, "sequence %lld: %lld keys in a table of %lld blocks", number(s), number(length),
                    number(table_width));
      // Blocks that lie before the window of the first query are not looked at.
      const int64_t first_position = length - queries(s);
      const int64_t first_key = first_position < window ? 0 : first_position - window + 1;
      for (int64_t b = first_key / shape.block_size; b < blocks; ++b) {
        const int32_t id = tables[s * table_width + b];
        if (id < 0 || id >= shape.blocks)
          return fail(OCTAVO_OUT_OF_RANGE, "sequence %lld: block %d of %lld", number(s), id, number(shape.blocks));
      }
    }
    return OCTAVO_OK;
  }

  AttentionTask task(int64_t sequence, int64_t kv_head, int64_t first_row) const {
    const CacheShape& shape = cache.shape;
    const int64_t size = shape.head_size;
    const int64_t stride = (heads + 2 * shape.kv_heads) * size;
    const int64_t start = query_starts[sequence];
    const int64_t rows = queries(sequence) * group();
    return {&shape,
            cache.layer(layer),
            qkv + start * stride,
            stride,
            out + start * heads * size,
            heads * size,
            tables + sequence * table_width,
            lengths[sequence],
            lengths[sequence] - queries(sequence),
            group(),
            kv_head,
            first_row,
            std::min(first_row + kAttentionRows, rows),
            scale,
            window,
            soft_cap,
            sinks == nullptr ? nullptr : sinks + kv_head * group(),
            causal};
  }
};

// A tile of query rows over all of its keys, or one split of a tile whose splits are spread over threads.
struct Item {
  int32_t sequence, kv_head;
  int64_t first_row;
  int32_t split;   // -1: all of them
  int32_t shared;  // which of the spread tiles
};

// Tiles that hold more than a fair share of the keys are spread by splits; what they leave is merged by whoever ends last.
class WorkList {
 public:
  explicit WorkList(const Call& call) : call_(call) {
    int64_t keys = 0;
    for_tiles([&](int64_t, int64_t, int64_t, const AttentionTask& task) { keys += task.splits(); });
    const int64_t threads = call.context.threads;
    const int64_t fair = threads == 1 ? INT64_MAX : std::max<int64_t>(1, keys / (4 * threads));
    for_tiles([&](int64_t sequence, int64_t kv_head, int64_t row, const AttentionTask& task) {
      const int64_t splits = task.splits();
      if (splits > fair) spread(sequence, kv_head, row, splits);
    });
    for_tiles([&](int64_t sequence, int64_t kv_head, int64_t row, const AttentionTask& task) {
      if (task.splits() <= fair)
        items_.push_back({static_cast<int32_t>(sequence), static_cast<int32_t>(kv_head), row, -1, -1});
    });
  }

  void run() {
    octavo_context& context = call_.context;
    const CacheShape& shape = call_.cache.shape;
    const AttentionKernels& kernels = context.kernels->attention[shape.dtype];
    const int64_t scratch_bytes = ceil_div(attention_scratch_bytes(shape), 4096) * 4096;
    const int threads = items_.size() > 1 ? context.threads : 1;
    char* scratch = static_cast<char*>(context.attention.reserve(static_cast<size_t>(scratch_bytes * threads)));
    const int64_t floats = partial_floats(shape);
    float* partials =
        static_cast<float*>(context.partials.reserve(static_cast<size_t>(partial_count_ * floats + 1) * sizeof(float)));
    std::vector<std::atomic<int32_t>> done(shared_.size());
    pool::parallel(threads, static_cast<int64_t>(items_.size()), [&](int64_t index, int worker) {
      const Item& item = items_[index];
      const AttentionTask task = call_.task(item.sequence, item.kv_head, item.first_row);
      void* own = scratch + worker * scratch_bytes;
      if (item.split < 0) {
        kernels.attend(task, own);
        return;
      }
      const Shared& shared = shared_[item.shared];
      float* first = partials + shared.first_partial * floats;
      kernels.attend_split(task, task.first_split() + item.split, own, first + item.split * floats);
      if (done[item.shared].fetch_add(1) + 1 == shared.splits) kernels.merge(task, own, first);
    });
  }

 private:
  struct Shared {
    int64_t first_partial, splits;
  };

  template <class Function>
  void for_tiles(Function function) const {
    for (int64_t s = 0; s < call_.sequences; ++s)
      for (int64_t head = 0; head < call_.cache.shape.kv_heads; ++head)
        for (int64_t row = 0; row < call_.queries(s) * call_.group(); row += kAttentionRows)
          function(s, head, row, call_.task(s, head, row));
  }

  void spread(int64_t sequence, int64_t kv_head, int64_t row, int64_t splits) {
    const auto shared = static_cast<int32_t>(shared_.size());
    for (int64_t split = 0; split < splits; ++split)
      items_.push_back(
          {static_cast<int32_t>(sequence), static_cast<int32_t>(kv_head), row, static_cast<int32_t>(split), shared});
    shared_.push_back({partial_count_, splits});
    partial_count_ += splits;
  }

  const Call& call_;
  std::vector<Item> items_;
  std::vector<Shared> shared_;
  int64_t partial_count_ = 0;
};

}  // namespace
}  // namespace octavo

using namespace octavo;

int octavo_attention(octavo_context* context, const octavo_cache* cache, int64_t layer, const float* qkv, int64_t heads,
                     int64_t tokens, const int32_t* query_starts, const int32_t* lengths, int64_t sequences,
                     const int32_t* tables, int64_t table_width, float scale, int64_t window, float soft_cap,
                     const float* sinks, int32_t causal, float* out) {
  if (missing(context) || missing(cache)) return closed();
  return guarded([&] {
    const Call call{*context, *cache,      layer, qkv,    heads,    tokens, query_starts, lengths, sequences,
                    tables,   table_width, scale, window, soft_cap, sinks,  causal != 0,  out};
    if (const int status = call.check(); status != OCTAVO_OK) return status;
    std::lock_guard<std::mutex> lock(context->mutex);
    WorkList(call).run();
    return static_cast<int>(OCTAVO_OK);
  });
}
