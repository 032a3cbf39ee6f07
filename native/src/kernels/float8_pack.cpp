// Rounds weights to E4M3, puts codes into panels, and reads them back.
#include <vector>

#include "float8.h"
#include "parts.h"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr float kLargestCode = 448.0f;

// A row's codes, and the scale that makes its largest magnitude the largest code.
template <class Source>
float round_row(const typename Source::Element* row, int64_t in, uint8_t* codes) {
  alignas(64) float values[kLanes];
  float most = 0.0f;
  for (int64_t i = 0; i < in; i += kLanes) {
    typename Source::Element some[kLanes] = {};
    std::memcpy(some, row + i, sizeof(*row) * static_cast<size_t>(in - i < kLanes ? in - i : kLanes));
    store(values, Source::load_elements(some));
    for (const float value : values) most = __builtin_fabsf(value) > most ? __builtin_fabsf(value) : most;
  }
  const float scale = most / kLargestCode;
  const Floats inverse = set(most > 0.0f ? kLargestCode / most : 0.0f);
  for (int64_t i = 0; i < in; i += kLanes) {
    const size_t count = static_cast<size_t>(in - i < kLanes ? in - i : kLanes);
    typename Source::Element some[kLanes] = {};
    uint8_t rounded[kLanes];
    std::memcpy(some, row + i, sizeof(*row) * count);
    store_e4m3(rounded, multiply(Source::load_elements(some), inverse));
    std::memcpy(codes + i, rounded, count);
  }
  return scale;
}

template <class Source>
void pack_rows_of(const Weight& weight, const void* rows, int64_t panel, int64_t lane, int64_t count) {
  const typename Source::Element* row = static_cast<const typename Source::Element*>(rows);
  std::vector<uint8_t> codes(static_cast<size_t>(weight.in));
  for (int64_t r = 0; r < count; ++r) {
    const float scale = round_row<Source>(row + r * weight.in, weight.in, codes.data());
    const CodedRows coded{codes.data(), reinterpret_cast<const char*>(&scale), nullptr, nullptr, 1};
    pack_float8_codes(weight, coded, panel, lane + r, 1);
  }
}

}  // namespace

void lay_out_float8(Weight& weight) {
  weight.panel_width = kHeadPanel;
  weight.panels = ceil_div(weight.out, kHeadPanel);
  weight.steps = float8_inputs(weight);
  weight.codes = heads_bytes(weight, float8_groups(weight));
  weight.panel_bytes = weight.codes + float8_inputs(weight) * kHeadPanel;
}

void pack_float8(const Weight& weight, const void* rows, int32_t dtype, int64_t panel, int64_t lane, int64_t count) {
  switch (dtype) {
    case kFloat32: return pack_rows_of<Float32>(weight, rows, panel, lane, count);
    case kBFloat16: return pack_rows_of<BFloat16>(weight, rows, panel, lane, count);
    default: return pack_rows_of<Float16>(weight, rows, panel, lane, count);
  }
}

void pack_float8_codes(const Weight& weight, const CodedRows& rows, int64_t panel, int64_t lane, int64_t count) {
  char* start = weight.panel(panel);
  for (int64_t r = 0; r < count; ++r) {
    const CodedRows row = rows.from(r, weight);
    put_heads(weight, row, start, lane + r);
    char* codes = start + weight.codes;
    for (int64_t i = 0; i < weight.in; ++i) codes[float8_place(weight, lane + r, i)] = static_cast<char>(row.codes[i]);
  }
}

void unpack_float8(const Weight& weight, int64_t panel, int64_t lane, float* row) {
  const int64_t inputs = float8_group_inputs(weight);
  const char* heads = weight.panel(panel);
  const char* codes = heads + weight.codes;
  for (int64_t start = 0; start < weight.in; start += inputs) {
    const float scale = lane_head(weight, heads, start / inputs, lane, 0.0f).scale;
    for (int64_t i = start; i < start + inputs && i < weight.in; ++i)
      row[i] = scale * float8_value(static_cast<uint8_t>(codes[float8_place(weight, lane, i)]));
  }
}

}  // namespace octavo::OCTAVO_ISA
