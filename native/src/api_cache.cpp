// The paged cache: memory, copies, and writes with the rotation before them.
#include <cstring>

#include "context.h"

namespace octavo {
namespace {

constexpr int64_t kSmallWrite = 1 << 13;  // floats

CacheShape make_shape(const octavo_context& context, int64_t layers, int64_t blocks, int64_t block_size, int64_t kv_heads,
                      int64_t head_size, int32_t dtype) {
  const int64_t depth = context.kernels->attention[dtype].depth;
  const int64_t scale_bytes = dtype == kCacheInt8 ? kTileTokens * static_cast<int64_t>(sizeof(float)) : 0;
  CacheShape shape{dtype, layers, blocks, block_size, kv_heads, head_size, 0, 0, 0, 0};
  shape.key_rows = ceil_div(head_size, depth) * depth;
  shape.value_columns = ceil_div(head_size, 16) * 16;
  shape.key_bytes = shape.key_elements() * cache_element_bytes(dtype) + scale_bytes;
  shape.tile_bytes = shape.key_bytes + shape.value_elements() * cache_element_bytes(dtype) + scale_bytes;
  return shape;
}

// OCTAVO_OK if the numbers at pairs[first], pairs[first + 2], ... are below `limit`.
int check_range(const int32_t* pairs, int64_t count, int64_t first, int64_t limit, const char* what) {
  for (int64_t i = first; i < 2 * count; i += 2)
    if (pairs[i] < 0 || pairs[i] >= limit) return fail(OCTAVO_OUT_OF_RANGE, "%s %d of %lld", what, pairs[i], number(limit));
  return OCTAVO_OK;
}

// Calls move(part of the block in a layer, that part's place in the slot, bytes) for each pair and layer.
template <class Move>
int swap(const octavo_cache* cache, const int32_t* pairs, int64_t count, int64_t slots, int64_t block_at, Move&& move) {
  if (missing(cache)) return closed();
  const CacheShape& shape = cache->shape;
  if (int status = check_range(pairs, count, block_at, shape.blocks, "block")) return status;
  if (int status = check_range(pairs, count, 1 - block_at, slots, "slot")) return status;
  const int64_t bytes = shape.block_bytes();
  for (int64_t i = 0; i < count; ++i)
    for (int64_t layer = 0; layer < shape.layers; ++layer)
      move(cache->layer(layer) + pairs[2 * i + block_at] * bytes,
           (pairs[2 * i + 1 - block_at] * shape.layers + layer) * bytes, static_cast<size_t>(bytes));
  return OCTAVO_OK;
}

}  // namespace
}  // namespace octavo

using namespace octavo;

octavo_cache* octavo_cache_new(octavo_context* context, int64_t layers, int64_t blocks, int64_t block_size, int64_t kv_heads,
                               int64_t head_size, int32_t dtype) {
  if (missing(context)) {
    closed();
    return nullptr;
  }
  octavo_cache* cache = nullptr;
  guarded([&] {
    if (dtype < 0 || dtype >= kCacheDTypes) return fail(OCTAVO_INVALID, "unknown cache dtype %d", dtype);
    if (block_size < kTileTokens || block_size % kTileTokens != 0)
      return fail(OCTAVO_INVALID, "block_size must be a multiple of 16, not %lld", number(block_size));
    const int64_t limit = INT32_MAX;
    for (const int64_t size : {layers, blocks, block_size, kv_heads, head_size})
      if (size < 1 || size > limit) return fail(OCTAVO_INVALID, "a cache dimension cannot be %lld", number(size));
    const CacheShape shape = make_shape(*context, layers, blocks, block_size, kv_heads, head_size, dtype);
    int64_t bytes = shape.tile_bytes;
    for (const int64_t factor : {block_size / kTileTokens, kv_heads, blocks, layers})
      if (__builtin_mul_overflow(bytes, factor, &bytes)) throw std::bad_alloc();
    cache = new octavo_cache(shape);
    return static_cast<int>(OCTAVO_OK);
  });
  return cache;
}

int64_t octavo_cache_bytes(const octavo_cache* cache) { return cache->shape.layers * cache->shape.layer_bytes(); }
void octavo_cache_free(octavo_cache* cache) { delete cache; }

int octavo_cache_copy(octavo_cache* cache, const int32_t* pairs, int64_t count) {
  if (missing(cache)) return closed();
  const CacheShape& shape = cache->shape;
  for (const int64_t first : {0, 1})
    if (int status = check_range(pairs, count, first, shape.blocks, "block")) return status;
  for (int64_t i = 0; i < count; ++i)
    for (int64_t layer = 0; layer < shape.layers; ++layer)
      std::memmove(cache->layer(layer) + pairs[2 * i + 1] * shape.block_bytes(),
                   cache->layer(layer) + pairs[2 * i] * shape.block_bytes(), static_cast<size_t>(shape.block_bytes()));
  return OCTAVO_OK;
}

int64_t octavo_cache_block_bytes(const octavo_cache* cache) { return cache->shape.layers * cache->shape.block_bytes(); }

int octavo_cache_swap_out(const octavo_cache* cache, const int32_t* pairs, int64_t count, char* host, int64_t slots) {
  return swap(cache, pairs, count, slots, 0,
              [&](const char* part, int64_t place, size_t bytes) { std::memcpy(host + place, part, bytes); });
}

int octavo_cache_swap_in(octavo_cache* cache, const int32_t* pairs, int64_t count, const char* host, int64_t slots) {
  return swap(cache, pairs, count, slots, 1,
              [&](char* part, int64_t place, size_t bytes) { std::memcpy(part, host + place, bytes); });
}

int octavo_cache_write(octavo_context* context, octavo_cache* cache, int64_t layer, float* qkv, int64_t heads,
                       const int64_t* slots, int64_t tokens, const float* cos_sin, int64_t table_rows, int64_t rotary,
                       const int32_t* positions, int32_t interleaved) {
  if (missing(context) || missing(cache)) return closed();
  const CacheShape& shape = cache->shape;
  if (layer < 0 || layer >= shape.layers)
    return fail(OCTAVO_OUT_OF_RANGE, "layer %lld of %lld", number(layer), number(shape.layers));
  const int64_t limit = shape.blocks * shape.block_size;
  for (int64_t t = 0; t < tokens; ++t)
    if (slots[t] < 0 || slots[t] >= limit)
      return fail(OCTAVO_OUT_OF_RANGE, "slot %lld of %lld", number(slots[t]), number(limit));
  const bool turns = cos_sin != nullptr;
  if (turns && (rotary < 0 || rotary % 2 != 0 || rotary > shape.head_size))
    return fail(OCTAVO_INVALID, "a rotary part of %lld in heads of %lld", number(rotary), number(shape.head_size));
  for (int64_t t = 0; turns && t < tokens; ++t)
    if (positions[t] < 0 || positions[t] >= table_rows)
      return fail(OCTAVO_OUT_OF_RANGE, "position %d at index %lld is not below %lld", positions[t], number(t),
                  number(table_rows));
  const Kernels& kernels = *context->kernels;
  const CacheWrite write = kernels.cache_writes[shape.dtype];
  const int64_t size = shape.kv_heads * shape.head_size;
  const int64_t width = heads * shape.head_size + 2 * size;
  for_rows(*context, tokens, tokens * width, kSmallWrite, [&](int64_t first, int64_t count) {
    for (int64_t t = first; t < first + count; ++t) {
      float* row = qkv + t * width;
      if (turns)
        kernels.rotate(row, heads + shape.kv_heads, shape.head_size, cos_sin + positions[t] * rotary, rotary,
                       interleaved != 0);
      const float* k = row + heads * shape.head_size;
      write(shape, cache->layer(layer), slots[t], k, k + size);
    }
  });
  return OCTAVO_OK;
}
