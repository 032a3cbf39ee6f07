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
constexpr float kNone = -INFINITY;  // the maximum of no keys
static_assert(kTileTokens == kLanes && kSplitTokens % kStepTokens == 0 && kAttentionRows <= 2 * kLanes);

// What is kept of the keys seen so far, for each query row.
struct Rows {
  float* maxima;  // [32]
  float* totals;  // [rows][16]: sums of exponentials, lane by lane
  float* values;  // [rows][value_columns]: V weighted by the exponentials

  explicit Rows(float* data) : maxima(data), totals(data + 32), values(data + 32 + kAttentionRows * kLanes) {}
};

template <int kCount>
struct Count {
  static constexpr int value = kCount;
};

template <class Format>
class Attention {
  using Element = typename Format::Element;
  using Scalar = typename Format::Scalar;
  static constexpr int64_t kDepth = Format::depth;
  static constexpr int64_t kStepScalars = kStepTokens * sizeof(float) / sizeof(Scalar);  // from row to row of scores_

 public:
  Attention(const AttentionTask& task, void* scratch)
      : task_(task),
        shape_(*task.shape),
        rows_(task.rows()),
        columns_(shape_.value_columns),
        last_position_(task.position(rows_ - 1)),
        tiles_per_block_(static_cast<uint32_t>(shape_.block_size / kTileTokens)),
        part_(static_cast<float*>(scratch)),
        total_(static_cast<float*>(scratch) + partial_floats(shape_)),
        scores_(static_cast<float*>(scratch) + 2 * partial_floats(shape_)),
        queries_(reinterpret_cast<Scalar*>(scores_ + kAttentionRows * kStepTokens)),
        last_values_(reinterpret_cast<Element*>(queries_ + kAttentionRows * shape_.key_rows)) {}

  void attend() {
    load_queries();
    const int64_t splits = task_.splits();
    if (splits == 1) {
      walk_split(0, part_);
      finish(part_);
      return;
    }
    clear(total_);
    for (int64_t split = 0; split < splits; ++split) {
      walk_split(split, part_);
      merge_into_total(part_);
    }
    finish(total_);
  }

  void attend_split(int64_t split, float* partial) {
    load_queries();
    walk_split(split, Rows(partial));
  }

  void merge(float* partials) {
    clear(total_);
    for (int64_t split = 0; split < task_.splits(); ++split)
      merge_into_total(Rows(partials + split * partial_floats(shape_)));
    finish(total_);
  }

 private:
  const Element* tile(int64_t token) const {
    const auto index = static_cast<uint32_t>(token / kTileTokens);
    const uint32_t entry = index / tiles_per_block_;
    const int64_t head = static_cast<int64_t>(task_.table[entry]) * shape_.kv_heads + task_.kv_head;
    return reinterpret_cast<const Element*>(task_.layer + (head * tiles_per_block_ + (index - entry * tiles_per_block_)) *
                                                              shape_.tile_bytes);
  }

  void clear(Rows rows) const {
    for (int64_t i = 0; i < 2 * kLanes; ++i) rows.maxima[i] = kNone;
    std::memset(rows.totals, 0, rows_ * kLanes * sizeof(float));
    std::memset(rows.values, 0, rows_ * columns_ * sizeof(float));
  }

  // Scaled and rounded as the format wants them, [row][key_rows / depth].
  void load_queries() {
    const int64_t size = shape_.head_size;
    const Floats scale = set(task_.scale);
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t row = task_.first_row + r;
      const float* q =
          task_.q + row / task_.group * task_.q_stride + (task_.kv_head * task_.group + row % task_.group) * size;
      Scalar* target = queries_ + r * (shape_.key_rows / kDepth);
      int64_t i = 0;
      for (; i + kLanes <= size; i += kLanes) Format::put_steps(target + i / kDepth, multiply(load(q + i), scale));
      if (i < size) {
        Scalar some[kLanes];
        Format::put_steps(some, multiply(load_some(q + i, size - i), scale));
        std::memcpy(target + i / kDepth, some, (size - i + kDepth - 1) / kDepth * sizeof(Scalar));
      }
    }
  }

  void walk_split(int64_t split, Rows rows) {
    clear(rows);
    const int64_t end = (split + 1) * kSplitTokens;
    for (int64_t key = split * kSplitTokens; key < end && key <= last_position_; key += kStepTokens) step(key, rows);
  }

  // Keys [key, key + 64): scores, softmax update, values.
  void step(int64_t key, Rows rows) {
    const int64_t left = last_position_ + 1 - key;
    const int64_t tiles = left < kStepTokens ? (left + kTileTokens - 1) / kTileTokens : kTilesPerStep;
    const Element* keys[kTilesPerStep];
    const Element* values[kTilesPerStep];
    for (int64_t t = 0; t < tiles; ++t) {
      keys[t] = tile(key + t * kTileTokens);
      values[t] = keys[t] + shape_.key_rows * kTileTokens;
    }
    for (int64_t t = tiles; t < kTilesPerStep; ++t) keys[t] = keys[0];  // their scores will be masked
    prefetch_step(key + kStepTokens);
    for_row_blocks([&](auto count, int64_t row)
                       __attribute__((always_inline)) { score<decltype(count)::value>(row, keys); });
    softmax(key, rows);
    const int64_t present = task_.length - key - (tiles - 1) * kTileTokens;
    if (present < kTileTokens) values[tiles - 1] = without_stale_tokens(values[tiles - 1], present);
    for_row_blocks([&](auto count, int64_t row)
                       __attribute__((always_inline)) { weigh<decltype(count)::value>(row, values, tiles, rows); });
  }

  // The first line of every tile, after which the processor's own prefetcher follows. (Fetching more is slower.)
  INLINE_MEMBER void prefetch_step(int64_t key) const {
    for (int64_t token = key; token < key + kStepTokens && token <= last_position_; token += kTileTokens) {
      const char* keys = reinterpret_cast<const char*>(tile(token));
      __builtin_prefetch(keys);
      __builtin_prefetch(keys + shape_.key_bytes);
    }
  }

  template <class Function>
  INLINE_MEMBER void for_row_blocks(Function function) const {
    int64_t row = 0;
    for (; row + kAttentionBlockRows <= rows_; row += kAttentionBlockRows) function(Count<kAttentionBlockRows>{}, row);
    rest<kAttentionBlockRows - 1>(rows_ - row, row, function);
  }
  template <int kCount, class Function>
  INLINE_MEMBER static void rest(int64_t left, int64_t row, Function& function) {
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
      Floats sums[kCount][kAttentionVectors];
      UNROLL for (int r = 0; r < kCount; ++r) UNROLL for (int v = 0; v < kAttentionVectors; ++v) sums[r][v] = set(0.0f);
      const Element* k[kAttentionVectors];
      UNROLL for (int v = 0; v < kAttentionVectors; ++v) k[v] = keys[t + v];
      for (int64_t s = 0; s < steps; ++s) {
        typename Format::Vector b[kAttentionVectors];
        UNROLL for (int v = 0; v < kAttentionVectors; ++v) b[v] = Format::load_step(k[v] + s * kLanes * kDepth);
        UNROLL for (int r = 0; r < kCount; ++r) UNROLL for (int v = 0; v < kAttentionVectors; ++v)
            Format::multiply_add(sums[r][v], q[r * steps + s], b[v]);
      }
      UNROLL for (int r = 0; r < kCount; ++r) UNROLL for (int v = 0; v < kAttentionVectors; ++v)
          store(scores_ + (row + r) * kStepTokens + (t + v) * kLanes, sums[r][v]);
    }
  }

  Scalar* probabilities(int64_t row) const { return reinterpret_cast<Scalar*>(scores_) + row * kStepScalars; }

  // Scores become exponentials (in place, as the format's scalars); maxima, totals and values are rescaled to them.
  void softmax(int64_t key, Rows rows) {
    alignas(64) float before[2 * kLanes], now[2 * kLanes], factor[2 * kLanes];
    for (int i = 0; i < 2 * kLanes; i += kLanes) {
      store(before + i, load(rows.maxima + i));
      store(now + i, load(rows.maxima + i));
    }
    for (int64_t r = 0; r < rows_; ++r) {
      const float here = mask(r, task_.position(r) - key);
      now[r] = before[r] > here ? before[r] : here;
    }
    for (int i = 0; i < 2 * kLanes; i += kLanes) {
      store(rows.maxima + i, load(now + i));
      store(factor + i, exp(subtract(load(before + i), load(now + i))));
    }
    for (int64_t r = 0; r < rows_; ++r) {
      if (now[r] != before[r]) rescale(rows, r, factor[r]);
      exponentiate(rows, r, now[r] == kNone ? 0.0f : now[r]);
    }
  }

  // Puts -inf in place of the scores after the row's `last` key of this step; gives the largest score.
  INLINE_MEMBER float mask(int64_t row, int64_t last) {
    alignas(64) static constexpr float kIndex[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    float* score = scores_ + row * kStepTokens;
    Floats s[kTilesPerStep];
    UNROLL for (int t = 0; t < kTilesPerStep; ++t) s[t] = load(score + t * kLanes);
    if (last < kStepTokens - 1) {
      UNROLL for (int t = 0; t < kTilesPerStep; ++t) {
        s[t] = select_up_to(load(kIndex), set(static_cast<float>(last - t * kLanes)), s[t], set(kNone));
        store(score + t * kLanes, s[t]);
      }
    }
    return largest(maximum(maximum(s[0], s[1]), maximum(s[2], s[3])));
  }

  INLINE_MEMBER void exponentiate(Rows rows, int64_t row, float maximum) {
    const float* score = scores_ + row * kStepTokens;
    Floats weight[kTilesPerStep];
    UNROLL for (int t = 0; t < kTilesPerStep; ++t) weight[t] = exp(subtract(load(score + t * kLanes), set(maximum)));
    float* total = rows.totals + row * kLanes;
    store(total, add(load(total), add(add(weight[0], weight[1]), add(weight[2], weight[3]))));
    UNROLL for (int t = 0; t < kTilesPerStep; ++t) Format::put_steps(probabilities(row) + t * kLanes / kDepth, weight[t]);
  }

  void rescale(Rows rows, int64_t row, float factor) {
    float* total = rows.totals + row * kLanes;
    store(total, multiply(load(total), set(factor)));
    float* values = rows.values + row * columns_;
    for (int64_t c = 0; c < columns_; c += kLanes) store(values + c, multiply(load(values + c), set(factor)));
  }

  // A block's slots after the sequence's end may hold anything from an earlier use, and 0 * inf is NaN.
  const Element* without_stale_tokens(const Element* values, int64_t present) {
    const int64_t whole = present / kDepth * kDepth;
    std::memset(last_values_, 0, kTileTokens * columns_ * sizeof(Element));
    std::memcpy(last_values_, values, whole * columns_ * sizeof(Element));
    if (whole < present)
      for (int64_t i = whole * columns_; i < (whole + kDepth) * columns_; i += kDepth) last_values_[i] = values[i];
    return last_values_;
  }

  template <int kCount>
  void weigh(int64_t row, const Element* const* values, int64_t tiles, Rows rows) {
    int64_t c = 0;
    for (; c + kAttentionVectors * kLanes <= columns_; c += kAttentionVectors * kLanes)
      weigh_columns<kCount, kAttentionVectors>(row, values, tiles, rows, c);
    for (; c < columns_; c += kLanes) weigh_columns<kCount, 1>(row, values, tiles, rows, c);
  }

  template <int kCount, int kVectors>
  INLINE_MEMBER void weigh_columns(int64_t row, const Element* const* values, int64_t tiles, Rows rows, int64_t column) {
    float* target = rows.values + row * columns_ + column;
    Floats sums[kCount][kVectors];
    UNROLL for (int r = 0; r < kCount; ++r) UNROLL for (int v = 0; v < kVectors; ++v) sums[r][v] =
        load(target + r * columns_ + v * kLanes);
    for (int64_t t = 0; t < tiles; ++t) {
      const Element* value = values[t] + column * kDepth;
      const Scalar* p = probabilities(row) + t * kTileTokens / kDepth;
      for (int64_t s = 0; s < kTileTokens / kDepth; ++s) {
        typename Format::Vector b[kVectors];
        UNROLL for (int v = 0; v < kVectors; ++v) b[v] = Format::load_step(value + v * kLanes * kDepth);
        UNROLL for (int r = 0; r < kCount; ++r) UNROLL for (int v = 0; v < kVectors; ++v)
            Format::multiply_add(sums[r][v], p[r * kStepScalars + s], b[v]);
        value += columns_ * kDepth;
      }
    }
    UNROLL for (int r = 0; r < kCount; ++r) UNROLL for (int v = 0; v < kVectors; ++v)
        store(target + r * columns_ + v * kLanes, sums[r][v]);
  }

  // total = total and part, each rescaled to the larger maximum. A part without keys changes nothing.
  void merge_into_total(Rows part) {
    alignas(64) float old_factor[2 * kLanes], new_factor[2 * kLanes];
    alignas(64) float before[2 * kLanes];
    for (int i = 0; i < 2 * kLanes; i += kLanes) {
      const Floats old = load(total_.maxima + i), added = load(part.maxima + i);
      const Floats now = maximum(old, added);
      store(before + i, old);
      store(old_factor + i, exp(subtract(old, now)));
      store(new_factor + i, exp(subtract(added, now)));
      store(total_.maxima + i, now);
    }
    for (int64_t r = 0; r < rows_; ++r) {
      if (part.maxima[r] == kNone) continue;
      const Floats old = set(before[r] == kNone ? 0.0f : old_factor[r]), added = set(new_factor[r]);
      float* totals = total_.totals + r * kLanes;
      store(totals, fma(load(part.totals + r * kLanes), added, multiply(load(totals), old)));
      float* values = total_.values + r * columns_;
      for (int64_t c = 0; c < columns_; c += kLanes)
        store(values + c, fma(load(part.values + r * columns_ + c), added, multiply(load(values + c), old)));
    }
  }

  void finish(Rows rows) const {
    const int64_t size = shape_.head_size;
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t row = task_.first_row + r;
      float* out =
          task_.out + row / task_.group * task_.out_stride + (task_.kv_head * task_.group + row % task_.group) * size;
      const Floats total = set(sum(load(rows.totals + r * kLanes)));
      for (int64_t c = 0; c < size; c += kLanes) {
        const Floats value = divide(load(rows.values + r * columns_ + c), total);
        if (size - c < kLanes) store_some(out + c, value, size - c);
        else store(out + c, value);
      }
    }
  }

  const AttentionTask& task_;
  const CacheShape& shape_;
  const int64_t rows_, columns_, last_position_;
  const uint32_t tiles_per_block_;
  const Rows part_, total_;  // of the split at hand, and of all splits before it
  float* const scores_;      // [rows][64]
  Scalar* const queries_;
  Element* const last_values_;
};

template <class Format>
void attend(const AttentionTask& task, void* scratch) {
  Attention<Format>(task, scratch).attend();
}

template <class Format>
void attend_split(const AttentionTask& task, int64_t split, void* scratch, float* partial) {
  Attention<Format>(task, scratch).attend_split(split, partial);
}

template <class Format>
void merge(const AttentionTask& task, void* scratch, float* partials) {
  Attention<Format>(task, scratch).merge(partials);
}

template <class Format>
constexpr AttentionKernels kernels_of() {
  return {Format::depth, attend<Format>, attend_split<Format>, merge<Format>};
}

}  // namespace

extern const AttentionKernels attention_kernels[kDTypes] = {kernels_of<Float32>(), kernels_of<BFloat16>(),
                                                            kernels_of<Float16>()};

}  // namespace octavo::OCTAVO_ISA
