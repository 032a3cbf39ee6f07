// Causal attention over the paged cache, with the online softmax of Milakov and Gimelshein (2018).
//
// A query row meets the keys in steps of 64 from position 0; every 512 keys its reference (what weights are relative to),
// sum and weighted values are set aside and merged, in order. Keys that the row does not see (after its position, or before
// its window) contribute exact zeros. All of that is the same whether the row is alone (decode), in a tile of a long prompt,
// or spread over threads, and so are the row's bits.
#include <cmath>
#include <cstring>
#include <type_traits>

#include "formats.h"
#include "parts.h"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int64_t kStepTokens = kTileTokens * kTilesPerStep;
constexpr float kNone = -INFINITY;     // the reference of no keys
constexpr float kLog2E = 1.44269504f;  // scores are in powers of two
constexpr float kSlack = 8.0f;         // by which a score may exceed its row's reference: 2^8 loses nothing in a float
static_assert(kTileTokens == kLanes && kSplitTokens % kStepTokens == 0 && kAttentionRows <= 2 * kLanes);

// What is kept of the keys seen so far, for each query row.
struct Rows {
  float* references;  // [32]: what weights are relative to, see softmax
  float* totals;      // [rows][16]: sums of weights, powers of two, lane by lane
  float* values;      // [rows][value_columns]: V times the weights

  explicit Rows(float* data) : references(data), totals(data + 32), values(data + 32 + kAttentionRows * kLanes) {}
};

template <int kCount>
struct Count {
  static constexpr int value = kCount;
};

// What is stored as `Storage` is multiplied as `Format`.
template <class Storage, class Format>
class Attention {
  using Element = typename Format::Element;
  using Scalar = typename Format::Scalar;
  static constexpr int64_t kDepth = Format::depth;
  static constexpr bool kWidens = !std::is_same_v<Format, Storage>;
  static constexpr int64_t kStoredStep = kLanes * kDepth * sizeof(typename Storage::Element);  // bytes of 16 outputs
  static constexpr int64_t kStepScalars = kStepTokens * sizeof(float) / sizeof(Scalar);  // from row to row of scores_

 public:
  Attention(const AttentionTask& task, void* scratch)
      : task_(task),
        shape_(*task.shape),
        rows_(task.rows()),
        columns_(shape_.value_columns),
        scale_(task.soft_cap > 0.0f ? task.scale : kLog2E * task.scale),
        last_key_(task.last_key(task.position(rows_ - 1))),
        tiles_per_block_(static_cast<uint32_t>(shape_.block_size / kTileTokens)),
        part_(static_cast<float*>(scratch)),
        total_(static_cast<float*>(scratch) + partial_floats(shape_)),
        scores_(static_cast<float*>(scratch) + 2 * partial_floats(shape_)),
        queries_(reinterpret_cast<Scalar*>(scores_ + kAttentionRows * kStepTokens)),
        last_values_(reinterpret_cast<Element*>(queries_ + kAttentionRows * shape_.key_rows)),
        widened_(last_values_ + shape_.value_elements()) {
    for (int64_t r = 0; r < rows_; ++r) {
      first_seen_[r] = task_.first_key(task_.position(r));
      last_seen_[r] = task_.last_key(task_.position(r));
    }
  }

  void attend() {
    load_queries();
    if (task_.splits() == 1) {
      walk_split(task_.first_split(), part_);
      finish(part_);
      return;
    }
    clear(total_);
    for (int64_t split = task_.first_split(); split < task_.end_split(); ++split) {
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
    for (int64_t i = 0; i < task_.splits(); ++i) merge_into_total(Rows(partials + i * partial_floats(shape_)));
    finish(total_);
  }

 private:
  const char* tile(int64_t token) const {
    const auto index = static_cast<uint32_t>(token / kTileTokens);
    const uint32_t entry = index / tiles_per_block_;
    const int64_t head = static_cast<int64_t>(task_.table[entry]) * shape_.kv_heads + task_.kv_head;
    return task_.layer + (head * tiles_per_block_ + (index - entry * tiles_per_block_)) * shape_.tile_bytes;
  }

  void clear(Rows rows) const {
    for (int64_t i = 0; i < 2 * kLanes; ++i) rows.references[i] = kNone;
    std::memset(rows.totals, 0, rows_ * kLanes * sizeof(float));
    std::memset(rows.values, 0, rows_ * columns_ * sizeof(float));
  }

  // Scaled and rounded as the format wants them, [row][key_rows / depth].
  void load_queries() {
    const int64_t size = shape_.head_size;
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t row = task_.first_row + r;
      const float* q =
          task_.q + row / task_.group * task_.q_stride + (task_.kv_head * task_.group + row % task_.group) * size;
      Floats factor = set(scale_);
      if constexpr (Format::integer) factor = set(scale_ * query_factor(r, q, size));
      Scalar* target = queries_ + r * (shape_.key_rows / kDepth);
      int64_t i = 0;
      for (; i + kLanes <= size; i += kLanes) Format::put_steps(target + i / kDepth, multiply(load(q + i), factor));
      if (i < size) {
        Scalar some[kLanes];
        Format::put_steps(some, multiply(load_some(q + i, size - i), factor));
        std::memcpy(target + i / kDepth, some, (size - i + kDepth - 1) / kDepth * sizeof(Scalar));
      }
    }
  }

  // By what an integer format multiplies a query beside the scale, which it remembers.
  INLINE_MEMBER float query_factor(int64_t r, const float* q, int64_t size) {
    const Magnitude top = magnitude(q, size);
    const float levels = static_cast<float>(Format::levels(size)), scaled = top.largest * std::fabs(scale_);
    query_scales_[r] = scaled / levels + top.poison;
    return scaled > 1e-33f ? levels / scaled : 0.0f;
  }

  void walk_split(int64_t split, Rows rows) {
    clear(rows);
    const int64_t end = (split + 1) * kSplitTokens;
    const int64_t first = first_seen_[0] / kStepTokens * kStepTokens;
    int64_t key = split * kSplitTokens;
    for (key = key < first ? first : key; key < end && key <= last_key_; key += kStepTokens) step(key, rows);
  }

  // The tiles of a step that any row sees, as the format multiplies them.
  struct Step {
    int64_t first_tile, end_tile;
    const Element* keys[kTilesPerStep];
    const Element* values[kTilesPerStep];
    const char* next[kTilesPerStep];  // the same tiles of the next step
    // Of a scaled format, 0 for keys that are not there; 0 times all of the values' scales, which is NaN if one is.
    alignas(64) float key_scales[kStepTokens], value_scales[kStepTokens];
    float poison;
  };

  // Keys [key, key + 64): scores, softmax update, values.
  void step(int64_t key, Rows rows) {
    Step step;
    load_step(key, step);
    for_row_blocks([&](auto count, int64_t row) __attribute__((always_inline)) {
      score<decltype(count)::value>(row, step);
      for (int64_t r = row; r < row + decltype(count)::value; ++r) softmax(r, key, rows, step);
      weigh<decltype(count)::value>(row, step, rows);
    });
  }

  INLINE_MEMBER void load_step(int64_t key, Step& step) {
    const int64_t left = last_key_ + 1 - key;
    const int64_t first = first_seen_[0] - key;
    step.first_tile = first > 0 ? first / kTileTokens : 0;  // the blocks of those before may be gone
    step.end_tile = left < kStepTokens ? (left + kTileTokens - 1) / kTileTokens : kTilesPerStep;
    for (int64_t t = step.first_tile; t < step.end_tile; ++t) {
      const int64_t token = key + t * kTileTokens, next = token + kStepTokens;
      load_tile(tile(token), t, step);
      step.next[t] = tile(next <= last_key_ ? next : token);
    }
    for (int64_t t = 0; t < kTilesPerStep; ++t) {
      if (t >= step.first_tile && t < step.end_tile) continue;
      step.keys[t] = step.keys[step.first_tile];  // these scores will be masked
      step.next[t] = step.next[step.first_tile];
      if constexpr (Storage::scaled) {
        std::memset(step.key_scales + t * kLanes, 0, kLanes * sizeof(float));
        std::memset(step.value_scales + t * kLanes, 0, kLanes * sizeof(float));
      }
    }
    const int64_t present = task_.length - key - (step.end_tile - 1) * kTileTokens;
    if (present < kTileTokens) remove_stale_tokens(step, present);
    if constexpr (Format::integer) {
      Floats scales = set(0.0f);
      for (int64_t i = 0; i < kStepTokens; i += kLanes) scales = add(scales, load(step.value_scales + i));
      step.poison = sum(multiply(scales, set(0.0f)));
    }
  }

  INLINE_MEMBER void load_tile(const char* tile, int64_t t, Step& step) {
    using Stored = typename Storage::Element;
    const Stored* keys = reinterpret_cast<const Stored*>(tile);
    const Stored* values = reinterpret_cast<const Stored*>(tile + shape_.key_bytes);
    if constexpr (kWidens) {
      Element* target = widened_ + t * (shape_.key_elements() + shape_.value_elements());
      widen_elements<Storage>(keys, shape_.key_elements(), target);
      widen_elements<Storage>(values, shape_.value_elements(), target + shape_.key_elements());
      step.keys[t] = target;
      step.values[t] = target + shape_.key_elements();
    } else {
      step.keys[t] = keys;
      step.values[t] = values;
    }
    if constexpr (Storage::scaled) {
      std::memcpy(step.key_scales + t * kLanes, keys + shape_.key_elements(), kLanes * sizeof(float));
      std::memcpy(step.value_scales + t * kLanes, values + shape_.value_elements(), kLanes * sizeof(float));
    }
  }

  // The first rows of a step ask on their way for the same place in the next one, whose tiles lie anywhere and are too short
  // for the processor's own prefetcher. Into the second-level cache: the first can wait for few lines at a time, and those
  // are needed now.
  INLINE_MEMBER static void fetch(const char* next) { __builtin_prefetch(next, 0, 2); }

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

  // Of the tiles that no row sees nothing is computed, as far as registers are filled without them.
  template <int kCount>
  void score(int64_t row, const Step& step) {
    constexpr int64_t kWide = kAttentionVectors;
    const int64_t count = step.end_tile - step.first_tile;
    if (kWide > 2 && count == 1) return score_tiles<kCount, 1>(row, step, step.first_tile);
    if (kWide > 2 && count == 2) return score_tiles<kCount, 2>(row, step, step.first_tile);
    for (int64_t t = step.first_tile / kWide * kWide; t < step.end_tile; t += kWide)
      score_tiles<kCount, kWide>(row, step, t);
  }

  template <int kCount, int kVectors>
  INLINE_MEMBER void score_tiles(int64_t row, const Step& step, int64_t first) {
    const int64_t steps = shape_.key_rows / kDepth;
    const bool fetches = row == 0;
    const Scalar* q = queries_ + row * steps;
    float* target = scores_ + row * kStepTokens + first * kLanes;
    Floats sums[kCount][kVectors];
    UNROLL for (int r = 0; r < kCount; ++r) UNROLL for (int v = 0; v < kVectors; ++v) sums[r][v] = set(0.0f);
    const Element* k[kVectors];
    const char* next[kVectors];
    UNROLL for (int v = 0; v < kVectors; ++v) {
      k[v] = step.keys[first + v];
      next[v] = step.next[first + v];
    }
    for (int64_t s = 0; s < steps; ++s) {
      if (fetches) UNROLL for (int v = 0; v < kVectors; ++v) fetch(next[v] + s * kStoredStep);
      typename Format::Vector b[kVectors];
      UNROLL for (int v = 0; v < kVectors; ++v) b[v] = Format::load_step(k[v] + s * kLanes * kDepth);
      UNROLL for (int r = 0; r < kCount; ++r) UNROLL for (int v = 0; v < kVectors; ++v)
          Format::multiply_add(sums[r][v], q[r * steps + s], b[v]);
    }
    UNROLL for (int r = 0; r < kCount; ++r) UNROLL for (int v = 0; v < kVectors; ++v) {
      if constexpr (Format::integer) sums[r][v] = multiply(Format::result(sums[r][v]), set(query_scales_[row + r]));
      if constexpr (Storage::scaled) sums[r][v] = multiply(sums[r][v], load(step.key_scales + (first + v) * kLanes));
      store(target + r * kStepTokens + v * kLanes, sums[r][v]);
    }
  }

  Scalar* probabilities(int64_t row) const { return reinterpret_cast<Scalar*>(scores_) + row * kStepScalars; }

  // Scores become powers of two (in place, as the format's scalars) relative to the row's reference, which is the largest
  // score so far or at most kSlack less: where it has to rise, totals and values are rescaled to it.
  INLINE_MEMBER void softmax(int64_t row, int64_t key, Rows rows, const Step& step) {
    Floats s[kTilesPerStep];
    UNROLL for (int t = 0; t < kTilesPerStep; ++t) s[t] = load(scores_ + row * kStepTokens + t * kLanes);
    if (task_.soft_cap > 0.0f) UNROLL for (int t = 0; t < kTilesPerStep; ++t) s[t] = cap(s[t]);
    const int64_t first = first_seen_[row] - key, last = last_seen_[row] - key;
    if (first > 0 || last < kStepTokens - 1) mask(s, first, last);
    const Floats top = maximum(maximum(s[0], s[1]), maximum(s[2], s[3]));
    if (any_above(top, set(rows.references[row] + kSlack))) raise(rows, row, largest(top));
    exponentiate(rows, row, s, step);
  }

  // Puts -inf in place of scores before the `first` and after the `last` key that the row sees of this step.
  INLINE_MEMBER static void mask(Floats (&s)[kTilesPerStep], int64_t first, int64_t last) {
    alignas(64) static constexpr float kIndex[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    UNROLL for (int t = 0; t < kTilesPerStep; ++t) {
      const Floats seen = select_up_to(load(kIndex), index_limit(last, t), s[t], set(kNone));
      s[t] = select_up_to(load(kIndex), index_limit(first - 1, t), set(kNone), seen);
    }
  }
  // The index in tile `t` of the step's token `index`, which may lie in another tile.
  INLINE_MEMBER static Floats index_limit(int64_t index, int64_t t) { return set(static_cast<float>(index - t * kLanes)); }

  // soft_cap * tanh(score / soft_cap), by tanh(x) = 1 - 2 / (e^(2x) + 1), in powers of two.
  INLINE_MEMBER Floats cap(Floats score) const {
    const Floats power = exp2(multiply(score, set(2.0f * kLog2E / task_.soft_cap)));
    return multiply(set(kLog2E * task_.soft_cap), subtract(set(1.0f), divide(set(2.0f), add(power, set(1.0f)))));
  }

  INLINE_MEMBER void exponentiate(Rows rows, int64_t row, const Floats (&s)[kTilesPerStep], const Step& step) {
    const Floats reference = set(rows.references[row] == kNone ? 0.0f : rows.references[row]);
    Floats weight[kTilesPerStep];
    UNROLL for (int t = 0; t < kTilesPerStep; ++t) weight[t] = Format::power(subtract(s[t], reference));
    float* total = rows.totals + row * kLanes;
    store(total, add(load(total), add(add(weight[0], weight[1]), add(weight[2], weight[3]))));
    if constexpr (Storage::scaled)
      UNROLL for (int t = 0; t < kTilesPerStep; ++t) weight[t] = multiply(weight[t], load(step.value_scales + t * kLanes));
    if constexpr (Format::integer) {
      const float top = largest(maximum(maximum(weight[0], weight[1]), maximum(weight[2], weight[3])));
      const auto levels = static_cast<float>(Format::levels(kStepTokens));
      const Floats factor = set(top > 1e-33f ? levels / top : 0.0f);  // whose inverse would overflow
      UNROLL for (int t = 0; t < kTilesPerStep; ++t) weight[t] = multiply(weight[t], factor);
      weight_scales_[row] = top / levels + step.poison;
    }
    UNROLL for (int t = 0; t < kTilesPerStep; ++t) Format::put_steps(probabilities(row) + t * kLanes / kDepth, weight[t]);
  }

  [[gnu::noinline]] void raise(Rows rows, int64_t row, float reference) const {
    const float before = rows.references[row];
    rows.references[row] = reference;
    if (before == kNone) return;  // there is nothing yet
    const Floats factor = exp2(subtract(set(before), set(reference)));
    float* total = rows.totals + row * kLanes;
    store(total, multiply(load(total), factor));
    float* values = rows.values + row * columns_;
    for (int64_t c = 0; c < columns_; c += kLanes) store(values + c, multiply(load(values + c), factor));
  }

  // A block's slots after the sequence's end may hold anything from an earlier use, and 0 * inf is NaN.
  void remove_stale_tokens(Step& step, int64_t present) {
    const int64_t tile = step.end_tile - 1;
    const Element* values = step.values[tile];
    const int64_t whole = present / kDepth * kDepth;
    std::memset(last_values_, 0, shape_.value_elements() * sizeof(Element));
    std::memcpy(last_values_, values, whole * columns_ * sizeof(Element));
    if (whole < present)
      for (int64_t i = whole * columns_; i < (whole + kDepth) * columns_; i += kDepth) last_values_[i] = values[i];
    step.values[tile] = last_values_;
    if constexpr (Storage::scaled)
      for (int64_t i = present; i < kTileTokens; ++i) step.value_scales[tile * kTileTokens + i] = 0.0f;
  }

  template <int kCount>
  void weigh(int64_t row, const Step& step, Rows rows) {
    int64_t c = 0;
    for (; c + kAttentionVectors * kLanes <= columns_; c += kAttentionVectors * kLanes)
      weigh_columns<kCount, kAttentionVectors>(row, step, rows, c);
    for (; c < columns_; c += kLanes) weigh_columns<kCount, 1>(row, step, rows, c);
  }

  template <int kCount, int kVectors>
  INLINE_MEMBER void weigh_columns(int64_t row, const Step& step, Rows rows, int64_t column) {
    const int64_t columns = columns_;  // which a store could have changed, for all that the compiler knows
    float* target = rows.values + row * columns + column;
    const bool fetches = row == 0;
    Floats sums[kCount][kVectors];
    UNROLL for (int r = 0; r < kCount; ++r) UNROLL for (int v = 0; v < kVectors; ++v) sums[r][v] =
        Format::integer ? set(0.0f) : load(target + r * columns + v * kLanes);
    for (int64_t t = step.first_tile; t < step.end_tile; ++t) {
      const Element* value = step.values[t] + column * kDepth;
      const char* next = step.next[t] + shape_.key_bytes + column / kLanes * kStoredStep;
      const Scalar* p = probabilities(row) + t * kTileTokens / kDepth;
      for (int64_t s = 0; s < kTileTokens / kDepth; ++s) {
        if (fetches) UNROLL for (int v = 0; v < kVectors; ++v) fetch(next + v * kStoredStep);
        next += columns / kLanes * kStoredStep;
        typename Format::Vector b[kVectors];
        UNROLL for (int v = 0; v < kVectors; ++v) b[v] = Format::load_step(value + v * kLanes * kDepth);
        UNROLL for (int r = 0; r < kCount; ++r) UNROLL for (int v = 0; v < kVectors; ++v)
            Format::multiply_add(sums[r][v], p[r * kStepScalars + s], b[v]);
        value += columns * kDepth;
      }
    }
    UNROLL for (int r = 0; r < kCount; ++r) UNROLL for (int v = 0; v < kVectors; ++v) {
      float* place = target + r * columns + v * kLanes;
      if constexpr (Format::integer)
        sums[r][v] = fma(Format::result(sums[r][v]), set(weight_scales_[row + r]), load(place));
      store(place, sums[r][v]);
    }
  }

  // total = total and part, each rescaled to the larger reference. A part without keys changes nothing.
  void merge_into_total(Rows part) {
    alignas(64) float old_factor[2 * kLanes], new_factor[2 * kLanes];
    alignas(64) float before[2 * kLanes];
    for (int i = 0; i < 2 * kLanes; i += kLanes) {
      const Floats old = load(total_.references + i), added = load(part.references + i);
      const Floats now = maximum(old, added);
      store(before + i, old);
      store(old_factor + i, exp2(subtract(old, now)));
      store(new_factor + i, exp2(subtract(added, now)));
      store(total_.references + i, now);
    }
    for (int64_t r = 0; r < rows_; ++r) {
      if (sum(load(part.totals + r * kLanes)) == 0.0f) continue;  // not by its reference: scores may all be NaN
      const Floats old = set(before[r] == kNone ? 0.0f : old_factor[r]), added = set(new_factor[r]);
      float* totals = total_.totals + r * kLanes;
      store(totals, fma(load(part.totals + r * kLanes), added, multiply(load(totals), old)));
      float* values = total_.values + r * columns_;
      for (int64_t c = 0; c < columns_; c += kLanes)
        store(values + c, fma(load(part.values + r * columns_ + c), added, multiply(load(values + c), old)));
    }
  }

  // The sink's exponential beside those of the keys; infinite where they are nothing beside it.
  INLINE_MEMBER static float sink_weight(float sink, float reference) {
    alignas(64) float lanes[kLanes];
    store(lanes, exp2(subtract(set(kLog2E * sink), set(reference))));
    return lanes[0];
  }

  void finish(Rows rows) const {
    const int64_t size = shape_.head_size;
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t row = task_.first_row + r;
      float* out =
          task_.out + row / task_.group * task_.out_stride + (task_.kv_head * task_.group + row % task_.group) * size;
      float sum_of_weights = sum(load(rows.totals + r * kLanes));
      if (task_.sinks != nullptr) sum_of_weights += sink_weight(task_.sinks[row % task_.group], rows.references[r]);
      const Floats total = set(sum_of_weights);
      for (int64_t c = 0; c < size; c += kLanes) {
        const Floats value = divide(load(rows.values + r * columns_ + c), total);
        if (size - c < kLanes) store_some(out + c, value, size - c);
        else store(out + c, value);
      }
    }
  }

  const AttentionTask& task_;
  const CacheShape& shape_;
  const int64_t rows_, columns_;
  const float scale_;  // of the scores, which capping turns into powers of two otherwise
  const int64_t last_key_;
  int64_t first_seen_[kAttentionRows], last_seen_[kAttentionRows];  // by each row: neither falls from row to row
  const uint32_t tiles_per_block_;
  const Rows part_, total_;  // of the split at hand, and of all splits before it
  float* const scores_;      // [rows][64]
  Scalar* const queries_;
  Element* const last_values_;
  Element* const widened_;  // [tiles of a step][K, V]
  // Of an integer format: what a whole number of each row stands for.
  float query_scales_[kAttentionRows], weight_scales_[kAttentionRows];
};

// Calls `function` with the computation of a task: few rows widen what they read in registers, many share what was widened
// once. The values are the same, and so are the bits.
template <class Storage, class Function>
INLINE void compute(const AttentionTask& task, void* scratch, Function function) {
  using Format = typename Storage::Compute;
  if (std::is_same_v<Storage, Format> || task.rows() > kAttentionBlockRows) {
    Attention<Storage, Format> attention(task, scratch);
    function(attention);
  } else {
    Attention<Storage, Storage> attention(task, scratch);
    function(attention);
  }
}

template <class Storage>
void attend(const AttentionTask& task, void* scratch) {
  compute<Storage>(task, scratch, [](auto& attention) { attention.attend(); });
}

template <class Storage>
void attend_split(const AttentionTask& task, int64_t split, void* scratch, float* partial) {
  compute<Storage>(task, scratch, [=](auto& attention) { attention.attend_split(split, partial); });
}

template <class Storage>
void merge(const AttentionTask& task, void* scratch, float* partials) {
  compute<Storage>(task, scratch, [=](auto& attention) { attention.merge(partials); });
}

template <class Storage>
constexpr AttentionKernels kernels_of() {
  return {Storage::depth, attend<Storage>, attend_split<Storage>, merge<Storage>};
}

}  // namespace

extern const AttentionKernels attention_kernels[kCacheDTypes] = {
    kernels_of<Float32>(), kernels_of<BFloat16>(), kernels_of<Float16>(), kernels_of<Int8>(), kernels_of<Float8>()};

}  // namespace octavo::OCTAVO_ISA
