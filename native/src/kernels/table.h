// What one instruction set offers: plain functions over ranges of work, without threads, allocation or exceptions.
//
// An instruction set is a namespace, named in CMakeLists.txt, in table.cpp and in octavo/kernels/cpu/library.py; where it
// multiplies in its own way (AMX tiles, say), it brings its own LinearKernels, whose packing only it reads. Functions here
// are always inlined: the linker would keep one copy for all instruction sets.
#pragma once

#include <cstdint>

#include "octavo.h"

namespace octavo {

enum DType : int32_t { kFloat32 = OCTAVO_FLOAT32, kBFloat16 = OCTAVO_BFLOAT16, kFloat16 = OCTAVO_FLOAT16, kDTypes = 3 };

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t element_bytes(int32_t dtype) { return dtype == kFloat32 ? 4 : 2; }

// ---- linear ------------------------------------------------------------------------------------------------------
// How a weight is stored and multiplied: the three dtypes as they are; integers of 8 bits with a scale for each output;
// integers of 4, 5, 6 or 8 bits with scales for each output and group of inputs, all of these multiplied by activations that
// are rounded to 16 or 8 bits; E2M1, counted in halves, in the same way; and E4M3 with scales for groups, multiplied as
// bfloat16 or float32.
enum Format : int32_t {
  kInt8A16 = OCTAVO_INT8_A16,
  kInt8A8 = OCTAVO_INT8_A8,
  kInt4A16 = OCTAVO_INT4_A16,
  kInt4A8 = OCTAVO_INT4_A8,
  kGroupedInt8A16 = OCTAVO_GROUPED_INT8_A16,
  kGroupedInt8A8 = OCTAVO_GROUPED_INT8_A8,
  kInt5A16 = OCTAVO_INT5_A16,
  kInt5A8 = OCTAVO_INT5_A8,
  kInt6A16 = OCTAVO_INT6_A16,
  kInt6A8 = OCTAVO_INT6_A8,
  kFloat4A16 = OCTAVO_FLOAT4_A16,
  kFloat4A8 = OCTAVO_FLOAT4_A8,
  kFloat8 = OCTAVO_FLOAT8,
  kFormats = 16
};
// What a code of 0 stands for: scale * -128 (or -8, -16, -32), scale * -zero with a zero of 8 bits, or a float16 of its own
// (a byte where there are factors).
enum Offset : int32_t { kNoOffset = OCTAVO_NO_OFFSET, kZero = OCTAVO_ZERO, kLeast = OCTAVO_LEAST, kOffsets = 3 };
// Scales are of a dtype; or they, and least values, are signed bytes by a float16 factor for each block of inputs.
enum Scale : int32_t { kBytesAndFactors = OCTAVO_BYTES_AND_FACTORS, kScales = 4 };
constexpr int64_t kBlockInputs = 256;
[[gnu::always_inline]] constexpr int64_t scale_bytes(int32_t scale) {
  return scale == kBytesAndFactors ? 1 : element_bytes(scale);
}
[[gnu::always_inline]] constexpr int64_t offset_bytes(int32_t scale, int32_t offset) {
  return offset == kNoOffset ? 0 : offset == kZero || scale == kBytesAndFactors ? 1 : 2;
}
enum Activation : int32_t {
  kNoActivation = OCTAVO_NO_ACTIVATION,
  kSilu = OCTAVO_SILU,
  kGelu = OCTAVO_GELU,
  kGeluTanh = OCTAVO_GELU_TANH,
  kRelu = OCTAVO_RELU,
  kClampedSilu = OCTAVO_CLAMPED_SILU,
  kActivations = 6,
  kUngated = OCTAVO_UNGATED
};

// A weight [out, in] is stored in panels of `panel_width` outputs. A panel is a list of steps over `in`; a step holds
// some neighbouring inputs of every output of the panel. Lanes are outputs, so an output is one chain of products over
// all of `in` from first to last, whatever the number of rows: its bits depend on nothing else.
//
// With a gating activation, the first half of the outputs is activated and multiplied by the second: a panel holds 16 of the
// first (gate) and the same 16 of the second (up), and y has out / 2 columns.
struct Weight {
  int32_t format;
  int32_t activation;  // kUngated is added where it gates nothing
  int64_t in, out;
  int64_t group;  // inputs that share a scale, of activations and (kInt8A8 excepted) of weights; 0: all of them
  int32_t scale;  // of the scales: a dtype or kBytesAndFactors
  int32_t offset;
  const int32_t* order;  // [in]: the input that is multiplied by column i; null: input i
  // What LinearKernels::lay_out works out:
  int64_t panel_width;
  int64_t panels;
  int64_t panel_bytes;
  int64_t steps;      // of a panel
  int64_t codes;      // bytes of factors, scales and offsets at a panel's beginning, before the steps
  int64_t row_bytes;  // of one packed row of activations
  char* data;
  const float* bias;  // [panels * panel_width], in the order of the panels' lanes, or null

  [[gnu::always_inline]] bool gated() const { return activation > kNoActivation && activation < kUngated; }
  [[gnu::always_inline]] int64_t columns() const { return gated() ? out / 2 : out; }
  [[gnu::always_inline]] char* panel(int64_t index) const { return data + index * panel_bytes; }
  // Of a block of inputs: one of scales, and one of least values where there are any; and of all blocks of an output.
  [[gnu::always_inline]] int64_t block_factors() const {
    return scale != kBytesAndFactors ? 0 : offset == kLeast ? 2 : 1;
  }
  [[gnu::always_inline]] int64_t row_factors() const { return block_factors() * ceil_div(in, kBlockInputs); }
};

// Activations are packed in row blocks of at most `max_rows`: block b holds rows [first_row(b), first_row(b + 1)) and
// begins at first_row(b) * row_bytes.
struct LinearTask {
  const Weight* weight;
  char* packed;
  int64_t rows;
  int64_t blocks;  // ceil(rows / max_rows), of nearly equal size
  float* y;        // [rows, columns]
  int64_t stride;  // floats from a row of y to the next
  bool accumulate;

  [[gnu::always_inline]] int64_t first_row(int64_t block) const { return rows * block / blocks; }
};

// What is computed at once: a panel by some of the task's row blocks.
struct Portion {
  int64_t panel, first_block, last_block;
  bool is_fetched;  // the panel was asked for during the one before it, by the same thread
  bool is_last;     // else the next panel comes next, and may be asked for meanwhile
};

struct CodedRows {
  const uint8_t* codes;
  const char* scales;
  const char* offsets;  // uint8, float16 or int8, or null
  const char* factors;  // float16, each block's own side by side, or null
  int64_t groups;

  // From row `first` on.
  [[gnu::always_inline]] CodedRows from(int64_t first, const Weight& weight) const {
    const int64_t skipped = first * groups;
    return {codes + first * weight.in, scales + skipped * scale_bytes(weight.scale),
            offsets == nullptr ? nullptr : offsets + skipped * offset_bytes(weight.scale, weight.offset),
            factors == nullptr ? nullptr : factors + first * weight.row_factors() * 2, groups};
  }
};

struct LinearKernels {
  int64_t max_rows;
  void (*lay_out)(Weight& weight);
  // `count` rows [in] of a dtype become the lanes `lane` .. of a panel, rounded where the format is another one.
  void (*pack_weight)(const Weight& weight, const void* rows, int32_t dtype, int64_t panel, int64_t lane, int64_t count);
  // The same of rows of codes [in], one byte each, with the scales and offsets [groups] of each row; null: no such rows.
  void (*pack_codes)(const Weight& weight, const CodedRows& rows, int64_t panel, int64_t lane, int64_t count);
  void (*unpack_weight)(const Weight& weight, int64_t panel, int64_t lane, float* row);
  void (*pack_rows)(const Weight& weight, const float* x, int64_t rows, void* block);
  void (*multiply)(const LinearTask& task, const Portion& portion);
};

// ---- the paged cache ---------------------------------------------------------------------------------------------
// [layers][blocks][kv_heads][block_size / 16] tiles of 16 tokens. A tile is K transposed, [key_rows / depth][16 tokens]
// [depth], then V, [16 / depth tokens][value_columns][depth]; key_rows is the head size rounded up to `depth`,
// value_columns rounded up to 16. In an int8 cache 16 float32 scales, one for each token, follow K, and 16 follow V.
enum CacheDType : int32_t {
  kCacheFloat32 = OCTAVO_FLOAT32,
  kCacheBFloat16 = OCTAVO_BFLOAT16,
  kCacheFloat16 = OCTAVO_FLOAT16,
  kCacheInt8 = OCTAVO_CACHE_INT8,
  kCacheFloat8 = OCTAVO_CACHE_FLOAT8,  // E4M3 without infinities
  kCacheDTypes = 5
};
constexpr int64_t cache_element_bytes(int32_t dtype) { return dtype == kCacheFloat32 ? 4 : dtype >= kCacheInt8 ? 1 : 2; }

constexpr int64_t kTileTokens = 16;
constexpr int64_t kTilesPerStep = 4;    // keys that share one softmax update: 64
constexpr int64_t kSplitTokens = 512;   // keys that are reduced on their own, then merged in order
constexpr int64_t kAttentionRows = 24;  // query rows (position and head) that share a pass over the keys

struct CacheShape {
  int32_t dtype;
  int64_t layers, blocks, block_size, kv_heads, head_size;
  int64_t key_rows, value_columns;
  int64_t key_bytes, tile_bytes;  // of one tile: its K part, and both, with their scales

  [[gnu::always_inline]] int64_t key_elements() const { return key_rows * kTileTokens; }
  [[gnu::always_inline]] int64_t value_elements() const { return value_columns * kTileTokens; }
  [[gnu::always_inline]] int64_t block_bytes() const { return kv_heads * (block_size / kTileTokens) * tile_bytes; }
  [[gnu::always_inline]] int64_t layer_bytes() const { return blocks * block_bytes(); }
};

// One sequence's part of an attention call. Its query rows are numbered position by position, the heads of a group
// side by side: row r is position first_position + r / group, head kv_head * group + r % group.
struct AttentionTask {
  const CacheShape* shape;
  const char* layer;  // first block of the layer
  const float* q;     // the sequence's first row of qkv
  int64_t q_stride;   // floats from token to token
  float* out;         // the sequence's first row of the output
  int64_t out_stride;
  const int32_t* table;  // blocks of the sequence
  int64_t length;        // keys in the cache
  int64_t first_position;
  int64_t group;  // query heads of one KV head
  int64_t kv_head;
  int64_t first_row, last_row;  // at most kAttentionRows
  float scale;
  int64_t window;      // keys that a query sees, its own the last of them
  float soft_cap;      // scores become soft_cap * tanh(score / soft_cap); 0: they stay
  const float* sinks;  // per head of the group: a score that takes part in the softmax and has no value; or null
  bool causal;         // a query sees no key behind its own

  [[gnu::always_inline]] int64_t rows() const { return last_row - first_row; }
  [[gnu::always_inline]] int64_t position(int64_t row) const { return first_position + (first_row + row) / group; }
  // The first key that a query at `position` sees.
  [[gnu::always_inline]] int64_t first_key(int64_t position) const {
    return position < window ? 0 : position - window + 1;
  }
  // And the last one.
  [[gnu::always_inline]] int64_t last_key(int64_t position) const { return causal ? position : length - 1; }
  [[gnu::always_inline]] int64_t first_split() const { return first_key(position(0)) / kSplitTokens; }
  [[gnu::always_inline]] int64_t end_split() const { return last_key(position(rows() - 1)) / kSplitTokens + 1; }
  [[gnu::always_inline]] int64_t splits() const { return end_split() - first_split(); }
};

struct AttentionKernels {
  int64_t depth;
  // Over all keys: writes `out`. Over one split, numbered from position 0: writes partial_floats to `partial`.
  void (*attend)(const AttentionTask& task, void* scratch);
  void (*attend_split)(const AttentionTask& task, int64_t split, void* scratch, float* partial);
  // Merge the partial results of the task's splits, in order, and write `out`.
  void (*merge)(const AttentionTask& task, void* scratch, float* partials);
};

// k and v [kv_heads * head_size] of one token into its slot.
using CacheWrite = void (*)(const CacheShape& shape, char* layer, int64_t slot, const float* k, const float* v);

// Floats of a partial result: per row the reference, 16 partial sums of the weights, and the weighted values.
[[gnu::always_inline]] inline int64_t partial_floats(const CacheShape& shape) {
  return 32 + kAttentionRows * (kTileTokens + shape.value_columns);
}
// Bytes that `attend` and `merge` need for themselves: queries, scores, two accumulators, one V tile, and the keys and
// values of a step where they are widened.
[[gnu::always_inline]] inline int64_t attention_scratch_bytes(const CacheShape& shape) {
  const int64_t scores = kAttentionRows * kTileTokens * kTilesPerStep;
  const int64_t widened = shape.dtype < kCacheInt8 ? 0 : kTilesPerStep * (shape.key_elements() + shape.value_elements());
  const int64_t queries = kAttentionRows * shape.key_rows, accumulators = 2 * partial_floats(shape);
  return 4 * (queries + scores + accumulators + shape.value_elements() + widened) + 1024;
}

// ---- sampling ----------------------------------------------------------------------------------------------------
constexpr int64_t kSamplingBlock = 256;  // weights are summed in blocks of so many

// ---- GGUF --------------------------------------------------------------------------------------------------------
// Values and bytes of one block; 0 if the type is not known.
struct BlockSize {
  int64_t values, bytes;
};

// ---- all of it ---------------------------------------------------------------------------------------------------
struct Kernels {
  const char* name;
  const LinearKernels* const* linear;  // [kFormats]
  const AttentionKernels* attention;   // [kCacheDTypes]
  const CacheWrite* cache_writes;      // [kCacheDTypes]
  void (*rms_norm)(const float* x, const float* weight, int64_t rows, int64_t width, float epsilon, float* y,
                   bool accumulate);
  void (*layer_norm)(const float* x, const float* weight, const float* bias, int64_t rows, int64_t width, float epsilon,
                     float* y);
  void (*silu_and_multiply)(const float* x, int64_t rows, int64_t width, float* y);
  void (*soft_cap)(float* x, int64_t count, float cap);
  // y [count] = scale * x, or y += that.
  void (*put_scaled)(const float* x, int64_t count, float scale, float* y, bool accumulate);
  void (*rotate)(float* row, int64_t heads, int64_t head_size, const float* cos_sin, int64_t rotary, bool interleaved);
  // GGUF blocks of a ggml type for which `block_size` is not 0.
  BlockSize (*block_size)(int32_t type);
  void (*dequantize)(int32_t type, const uint8_t* raw, int64_t blocks, int32_t dtype, void* out);
  // The token of a row, or OCTAVO_TOKEN_*; logprobs. `scratch` has sampling_scratch_bytes(vocab_size).
  int64_t (*sampling_scratch_bytes)(int64_t vocab_size);
  int64_t (*sample_row)(const octavo_sampling_row& row, void* scratch);
  void (*score_row)(const octavo_score& score, void* scratch);
};

// The best supported instruction set first; null if `name` is unknown, not compiled in or not supported here.
const Kernels* find_kernels(const char* name);

// Whether products of the instruction set, if it was compiled in, run in a child process and come out right; the processor
// need not have it.
bool try_kernels(const char* name);

}  // namespace octavo
