// Causal attention over the paged cache, with the online softmax of Milakov and Gimelshein (2018).
//
// A query row meets the keys in steps of 64 from position 0; every 512 keys the running maximum, sum and weighted values
// are set aside and merged, in order. Keys after the row's position contribute exact zeros. All of that is the same
// whether the row is alone (decode), in a tile of a long prompt, or spread over threads, and so are the row's bits.
#include <cmath>
#include <cstring>

#include "formats.h"
#include "parts.h"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int64_t kStepTokens = kTileTokens * kTilesPerStep;
constexpr float kNone = -INFINITY;
static_assert(kTileTokens == kLanes && kSplitTokens % kStepTokens == 0);

// One accumulator per query row: maximum, sum of exponentials, weighted values.
struct Rows {
  float* data;
  int64_t width;  // partial_width

  float& maximum(int64_t row) const { return data[row * width]; }
  float& total(int64_t row) const { return data[row * width + 1]; }
  float* values(int64_t row) const { return data + row * width + kPartialHeader; }
};

INLINE float exp_of(float x) {
  alignas(64) float lane[kLanes];
  store(lane, exp(set(x)));
  return lane[0];
}

template <class Format>
class Attention {
  using Element = typename Format::Element;
  using Scalar = typename Format::Scalar;
  static constexpr int64_t kDepth = Format::depth;

 public:
  Attention(const AttentionTask& task, void* scratch) : task_(task), shape_(*task.shape) {
    rows_ = task.last_row - task.first_row;
    width_ = partial_width(shape_);
    char* next = static_cast<char*>(scratch);
    auto take = [&next](int64_t bytes) {
      char* piece = next;
      next += (bytes + 63) / 64 * 64;
      return piece;
    };
    running_ = {reinterpret_cast<float*>(take(4 * kAttentionRows * width_)), width_};
    total_ = {reinterpret_cast<float*>(take(4 * kAttentionRows * width_)), width_};
    scores_ = reinterpret_cast<float*>(take(4 * kAttentionRows * kStepTokens));
    queries_ = reinterpret_cast<Scalar*>(take(4 * kAttentionRows * (shape_.key_rows + 1)));
    last_values_ = reinterpret_cast<Element*>(take(4 * kTileTokens * shape_.value_columns));
  }

  void attend(int64_t first_split, int64_t last_split, float* partial) {
    load_queries();
    clear(total_);
    for (int64_t split = first_split; split < last_split; ++split) {
      current_ = partial != nullptr ? Rows{partial, width_} : running_;
      clear(current_);
      const int64_t end = (split + 1) * kSplitTokens;
      for (int64_t key = split * kSplitTokens; key < end && key <= last_position(); key += kStepTokens) step(key);
      if (partial == nullptr) merge_into_total(current_);
    }
    if (partial == nullptr) finish();
  }

  void merge(int64_t splits, const float* partials) {
    clear(total_);
    for (int64_t split = 0; split < splits; ++split)
      merge_into_total({const_cast<float*>(partials) + split * kAttentionRows * width_, width_});
    finish();
  }

 private:
  int64_t position(int64_t row) const { return task_.first_position + (task_.first_row + row) / task_.group; }
  int64_t last_position() const { return position(rows_ - 1); }

  const char* tile(int64_t token) const {
    const int64_t block = task_.table[token / shape_.block_size];
    const int64_t inside = token % shape_.block_size / kTileTokens;
    const int64_t tiles = shape_.block_size / kTileTokens;
    return task_.layer + ((block * shape_.kv_heads + task_.kv_head) * tiles + inside) * shape_.tile_bytes;
  }

  void clear(Rows rows) const {
    for (int64_t r = 0; r < rows_; ++r) {
      rows.maximum(r) = kNone;
      rows.total(r) = 0;
      for (int64_t c = 0; c < shape_.value_columns; c += kLanes) store(rows.values(r) + c, set(0.0f));
    }
  }

  // Scaled and rounded as the format wants them, [row][key_rows / depth].
  void load_queries() {
    const int64_t size = shape_.head_size;
    const Floats scale = set(task_.scale);
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t row = task_.first_row + r;
      const float* q = task_.q + row / task_.group * task_.q_stride + (task_.kv_head * task_.group + row % task_.group) * size;
      Scalar* target = queries_ + r * (shape_.key_rows / kDepth);
      for (int64_t i = 0; i < size; i += kLanes) {
        const int64_t count = size - i < kLanes ? size - i : kLanes;
        alignas(64) Scalar some[kLanes];
        Format::put_steps(some, multiply(count == kLanes ? load(q + i) : load_some(q + i, count), scale));
        for (int64_t s = 0; s < (count + kDepth - 1) / kDepth; ++s) target[i / kDepth + s] = some[s];
      }
    }
  }

  // Keys [key, key + 64): scores, softmax update, values.
  void step(int64_t key) {
    const int64_t left = last_position() + 1 - key;
    const int64_t tiles = left < kStepTokens ? (left + kTileTokens - 1) / kTileTokens : kTilesPerStep;
    const Element* keys[kTilesPerStep];
    const Element* values[kTilesPerStep];
    for (int64_t t = 0; t < kTilesPerStep; ++t) {
      const char* data = tile(key + (t < tiles ? t : 0) * kTileTokens);  // the scores of missing tiles are masked
      keys[t] = reinterpret_cast<const Element*>(data);
      values[t] = reinterpret_cast<const Element*>(data + shape_.key_bytes);
    }
    for_row_blocks([&](auto count, int64_t row) { score<decltype(count)::value>(row, keys); });
    softmax(key);
    const int64_t present = task_.length - key - (tiles - 1) * kTileTokens;
    if (present < kTileTokens) values[tiles - 1] = without_stale_tokens(values[tiles - 1], present);
    for_row_blocks([&](auto count, int64_t row) { weigh<decltype(count)::value>(row, values, tiles); });
  }

  template <int kCount>
  struct Count {
    static constexpr int value = kCount;
  };

  template <class Function>
  void for_row_blocks(Function function) const {
    int64_t row = 0;
    for (; row + kAttentionBlockRows <= rows_; row += kAttentionBlockRows) function(Count<kAttentionBlockRows>{}, row);
    rest<kAttentionBlockRows - 1>(rows_ - row, row, function);
  }
  template <int kCount, class Function>
  static void rest(int64_t left, int64_t row, Function function) {
    if constexpr (kCount > 0) {
      if (left == kCount) function(Count<kCount>{}, row);
      else rest<kCount - 1>(left, row, function);
    }
  }

  template <int kCount>
  void score(int64_t row, const Element* const* keys) {
    const int64_t steps = shape_.key_rows / kDepth;
    const Scalar* q = queries_ + row * steps;
    for (int64_t t = 0; t < kTilesPerStep; t += kAttentionVectors) {
      Floats sum[kCount][kAttentionVectors];
      UNROLL for (int r = 0; r < kCount; ++r)
        UNROLL for (int v = 0; v < kAttentionVectors; ++v) sum[r][v] = set(0.0f);
      const Element* k[kAttentionVectors];
      UNROLL for (int v = 0; v < kAttentionVectors; ++v) k[v] = keys[t + v];
      for (int64_t s = 0; s < steps; ++s) {
        typename Format::Vector b[kAttentionVectors];
        UNROLL for (int v = 0; v < kAttentionVectors; ++v) b[v] = Format::load_step(k[v] + s * kLanes * kDepth);
        UNROLL for (int r = 0; r < kCount; ++r)
          UNROLL for (int v = 0; v < kAttentionVectors; ++v) Format::multiply_add(sum[r][v], q[r * steps + s], b[v]);
      }
      UNROLL for (int r = 0; r < kCount; ++r)
        UNROLL for (int v = 0; v < kAttentionVectors; ++v) store(scores_ + (row + r) * kStepTokens + (t + v) * kLanes, sum[r][v]);
    }
  }

  // Scores become exponentials (in place, as the format's scalars); maximum, total and values are rescaled.
  void softmax(int64_t key) {
    alignas(64) static constexpr float kIndex[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const Floats index = load(kIndex);
    for (int64_t r = 0; r < rows_; ++r) {
      float* row = scores_ + r * kStepTokens;
      const int64_t last = position(r) - key;  // the last key of this step that the row may see
      if (last < 0) {
        for (int64_t t = 0; t < kTilesPerStep; ++t) Format::put_steps(probabilities(r) + t * kLanes / kDepth, set(0.0f));
        continue;
      }
      Floats score[kTilesPerStep];
      UNROLL for (int t = 0; t < kTilesPerStep; ++t) {
        const Floats limit = set(static_cast<float>(last < kStepTokens ? last - t * kLanes : kStepTokens));
        score[t] = select_up_to(index, limit, load(row + t * kLanes), set(kNone));
      }
      const float here = largest(maximum(maximum(score[0], score[1]), maximum(score[2], score[3])));
      const float before = current_.maximum(r);
      const float now = before > here ? before : here;
      if (now != before) rescale(r, exp_of(before - now));
      current_.maximum(r) = now;
      Floats weight[kTilesPerStep];
      UNROLL for (int t = 0; t < kTilesPerStep; ++t) weight[t] = exp(subtract(score[t], set(now)));
      current_.total(r) += sum(add(add(weight[0], weight[1]), add(weight[2], weight[3])));
      UNROLL for (int t = 0; t < kTilesPerStep; ++t) Format::put_steps(probabilities(r) + t * kLanes / kDepth, weight[t]);
    }
  }

  Scalar* probabilities(int64_t row) const { return reinterpret_cast<Scalar*>(scores_ + row * kStepTokens); }

  void rescale(int64_t row, float factor) {
    current_.total(row) *= factor;
    float* values = current_.values(row);
    for (int64_t c = 0; c < shape_.value_columns; c += kLanes) store(values + c, multiply(load(values + c), set(factor)));
  }

  // A block's slots after the sequence's end may hold anything from an earlier use, and 0 * inf is NaN.
  const Element* without_stale_tokens(const Element* values, int64_t present) {
    const int64_t columns = shape_.value_columns;
    const int64_t whole = present / kDepth * kDepth;
    std::memset(last_values_, 0, kTileTokens * columns * sizeof(Element));
    std::memcpy(last_values_, values, whole * columns * sizeof(Element));
    if (whole < present)
      for (int64_t i = whole * columns; i < (whole + kDepth) * columns; i += kDepth) last_values_[i] = values[i];
    return last_values_;
  }

  template <int kCount>
  void weigh(int64_t row, const Element* const* values, int64_t tiles) {
    const int64_t columns = shape_.value_columns;
    int64_t c = 0;
    for (; c + kAttentionVectors * kLanes <= columns; c += kAttentionVectors * kLanes)
      weigh_columns<kCount, kAttentionVectors>(row, values, tiles, c);
    for (; c < columns; c += kLanes) weigh_columns<kCount, 1>(row, values, tiles, c);
  }

  template <int kCount, int kVectors>
  void weigh_columns(int64_t row, const Element* const* values, int64_t tiles, int64_t column) {
    Floats sum[kCount][kVectors];
    UNROLL for (int r = 0; r < kCount; ++r)
      UNROLL for (int v = 0; v < kVectors; ++v) sum[r][v] = load(current_.values(row + r) + column + v * kLanes);
    for (int64_t t = 0; t < tiles; ++t) {
      const Element* value = values[t] + column * kDepth;
      const Scalar* p = probabilities(row) + t * kTileTokens / kDepth;
      for (int64_t s = 0; s < kTileTokens / kDepth; ++s) {
        typename Format::Vector b[kVectors];
        UNROLL for (int v = 0; v < kVectors; ++v) b[v] = Format::load_step(value + v * kLanes * kDepth);
        UNROLL for (int r = 0; r < kCount; ++r)
          UNROLL for (int v = 0; v < kVectors; ++v) Format::multiply_add(sum[r][v], p[r * kStepTokens + s], b[v]);
        value += shape_.value_columns * kDepth;
      }
    }
    UNROLL for (int r = 0; r < kCount; ++r)
      UNROLL for (int v = 0; v < kVectors; ++v) store(current_.values(row + r) + column + v * kLanes, sum[r][v]);
  }

  // total = total and part, each rescaled to the larger maximum. A part without keys changes nothing.
  void merge_into_total(Rows part) {
    for (int64_t r = 0; r < rows_; ++r) {
      if (part.maximum(r) == kNone && part.total(r) == 0) continue;
      const float before = total_.maximum(r);
      const float now = before > part.maximum(r) ? before : part.maximum(r);
      const float old_factor = before == kNone ? 0.0f : exp_of(before - now);
      const float new_factor = exp_of(part.maximum(r) - now);
      total_.maximum(r) = now;
      total_.total(r) = total_.total(r) * old_factor + part.total(r) * new_factor;
      float* sums = total_.values(r);
      for (int64_t c = 0; c < shape_.value_columns; c += kLanes)
        store(sums + c, fma(load(part.values(r) + c), set(new_factor), multiply(load(sums + c), set(old_factor))));
    }
  }

  void finish() const {
    const int64_t size = shape_.head_size;
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t row = task_.first_row + r;
      float* out = task_.out + row / task_.group * task_.out_stride + (task_.kv_head * task_.group + row % task_.group) * size;
      const Floats total = set(total_.total(r));
      for (int64_t c = 0; c < size; c += kLanes) {
        const Floats value = divide(load(total_.values(r) + c), total);
        if (size - c < kLanes) store_some(out + c, value, size - c);
        else store(out + c, value);
      }
    }
  }

  const AttentionTask& task_;
  const CacheShape& shape_;
  int64_t rows_, width_;
  Rows running_, total_, current_;  // one split's, all splits', and where the split at hand goes
  float* scores_;
  Scalar* queries_;
  Element* last_values_;
};

template <class Format>
void attend(const AttentionTask& task, int64_t first_split, int64_t last_split, void* scratch, float* partial) {
  Attention<Format>(task, scratch).attend(first_split, last_split, partial);
}

template <class Format>
void merge(const AttentionTask& task, int64_t splits, void* scratch, const float* partials) {
  Attention<Format>(task, scratch).merge(splits, partials);
}

template <class Format>
void write(const CacheShape& shape, char* layer, int64_t slot, const float* k, const float* v) {
  using Element = typename Format::Element;
  constexpr int64_t kDepth = Format::depth;
  const int64_t tiles = shape.block_size / kTileTokens;
  const int64_t inside = slot % shape.block_size;
  const int64_t token = inside % kTileTokens;
  for (int64_t head = 0; head < shape.kv_heads; ++head) {
    const int64_t index = (slot / shape.block_size * shape.kv_heads + head) * tiles + inside / kTileTokens;
    Element* keys = reinterpret_cast<Element*>(layer + index * shape.tile_bytes);
    Element* values = reinterpret_cast<Element*>(layer + index * shape.tile_bytes + shape.key_bytes);
    values += token / kDepth * shape.value_columns * kDepth + token % kDepth;
    for (int64_t i = 0; i < shape.head_size; i += kLanes) {
      const int64_t count = shape.head_size - i < kLanes ? shape.head_size - i : kLanes;
      Element key[kLanes], value[kLanes];
      Format::put_elements(key, load_some(k + head * shape.head_size + i, count));
      Format::put_elements(value, load_some(v + head * shape.head_size + i, count));
      for (int64_t j = 0; j < count; ++j) {
        keys[((i + j) / kDepth * kTileTokens + token) * kDepth + (i + j) % kDepth] = key[j];
        values[(i + j) * kDepth] = value[j];
      }
    }
  }
}

template <class Format>
constexpr AttentionKernels kernels_of() {
  return {Format::depth, attend<Format>, merge<Format>, write<Format>};
}

}  // namespace

extern const AttentionKernels attention_kernels[kDTypes] = {kernels_of<Float32>(), kernels_of<BFloat16>(),
                                                            kernels_of<Float16>()};

}  // namespace octavo::OCTAVO_ISA
