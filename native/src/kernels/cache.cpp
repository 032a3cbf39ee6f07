// Writes tokens into the paged cache, in the layout of table.h.
#include "formats.h"
#include "parts.h"

namespace octavo::OCTAVO_ISA {
namespace {

template <class Format>
void write(const CacheShape& shape, char* layer, int64_t slot, const float* k, const float* v) {
  using Element = typename Format::Element;
  constexpr int64_t kDepth = Format::depth;
  const int64_t tiles = shape.block_size / kTileTokens;
  const int64_t inside = slot % shape.block_size;
  const int64_t token = inside % kTileTokens;
  for (int64_t head = 0; head < shape.kv_heads; ++head) {
    const int64_t index = (slot / shape.block_size * shape.kv_heads + head) * tiles + inside / kTileTokens;
    Element* keys = reinterpret_cast<Element*>(layer + index * shape.tile_bytes) + token * kDepth;
    Element* values = reinterpret_cast<Element*>(layer + index * shape.tile_bytes) + shape.key_rows * kTileTokens;
    values += token / kDepth * shape.value_columns * kDepth + token % kDepth;
    for (int64_t i = 0; i < shape.head_size; i += kLanes) {
      const int64_t count = shape.head_size - i < kLanes ? shape.head_size - i : kLanes;
      const float* k_row = k + head * shape.head_size + i;
      const float* v_row = v + head * shape.head_size + i;
      Element key[kLanes], value[kLanes];
      Format::put_elements(key, count == kLanes ? load(k_row) : load_some(k_row, count));
      Format::put_elements(value, count == kLanes ? load(v_row) : load_some(v_row, count));
      for (int64_t j = 0; j < count; ++j) {
        keys[(i + j) / kDepth * kTileTokens * kDepth + (i + j) % kDepth] = key[j];
        values[(i + j) * kDepth] = value[j];
      }
    }
  }
}

}  // namespace

extern const CacheWrite cache_writes[kDTypes] = {write<Float32>, write<BFloat16>, write<Float16>};

}  // namespace octavo::OCTAVO_ISA
