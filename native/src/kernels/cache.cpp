// Writes tokens into the paged cache, in the layout of table.h.
#include <cstring>

#include "formats.h"
#include "parts.h"

namespace octavo::OCTAVO_ISA {
namespace {

// One head of one token: x [size] into target(0), target(1), ... Where the format has a scale, what is stored is x / scale,
// the largest magnitude as 127; anything that is not finite makes the scale NaN, and so all of the token's values.
template <class Format, class Target>
INLINE void put(const float* x, int64_t size, char* scale, Target target) {
  float divisor = 1.0f;
  if constexpr (Format::scaled) {
    const Magnitude top = magnitude(x, size);
    const float own = top.largest / 127.0f + top.poison;
    std::memcpy(scale, &own, sizeof own);
    if (own != 0.0f) divisor = own;
  }
  for (int64_t i = 0; i < size; i += kLanes) {
    const int64_t count = size - i < kLanes ? size - i : kLanes;
    Floats value = count == kLanes ? load(x + i) : load_some(x + i, count);
    if constexpr (Format::scaled) value = divide(value, set(divisor));
    typename Format::Element element[kLanes];
    Format::put_elements(element, value);
    for (int64_t j = 0; j < count; ++j) *target(i + j) = element[j];
  }
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
    char* tile = layer + index * shape.tile_bytes;
    Element* keys = reinterpret_cast<Element*>(tile) + token * kDepth;
    Element* values = reinterpret_cast<Element*>(tile + shape.key_bytes);
    char* key_scales = tile + shape.key_elements() * sizeof(Element);
    char* value_scales = tile + shape.key_bytes + shape.value_elements() * sizeof(Element);
    values += token / kDepth * shape.value_columns * kDepth + token % kDepth;
    put<Format>(k + head * shape.head_size, shape.head_size, key_scales + token * sizeof(float),
                [=](int64_t i) { return keys + i / kDepth * kTileTokens * kDepth + i % kDepth; });
    put<Format>(v + head * shape.head_size, shape.head_size, value_scales + token * sizeof(float),
                [=](int64_t i) { return values + i * kDepth; });
  }
}

}  // namespace

extern const CacheWrite cache_writes[kCacheDTypes] = {write<Float32>, write<BFloat16>, write<Float16>, write<Int8>,
                                                      write<Float8>};

}  // namespace octavo::OCTAVO_ISA
