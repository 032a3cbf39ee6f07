// Products of all kinds: of one weight in every format, of stacked ones, of experts and of heads.
#include <memory>

#include "check.h"

namespace checks {
namespace {

// A weight of random numbers, or codes, packed in two parts, the later one first, or in one.
struct Packed {
  octavo_weight* weight;

  Packed(const Handles& own, int32_t format, int32_t activation, int64_t in, int64_t out, uint64_t seed,
         bool in_one = false) {
    Random random(seed);
    const int64_t group = format == OCTAVO_INT8_A8 ? 64 : format >= OCTAVO_INT4_A16 ? 32 : 0;
    const int64_t cut = in_one ? 0 : random.integer(0, out);
    weight = octavo_weight_new(own.context, format, group, scale_of(format), offset_of(format), activation, in, out);
    for (const bool tail : {true, false}) {
      const int64_t first = tail ? cut : 0, count = tail ? out - cut : cut;
      if (format < OCTAVO_GROUPED_INT8_A16) pack(own, random, format < 3 ? format : OCTAVO_BFLOAT16, in, first, count);
      else if (count > 0) put(own, random, format, in, first, count);
    }
    const std::vector<float> bias = random.reals(out);
    if (seed % 2) ok(octavo_weight_bias(weight, bias.data()), "bias", own.isa);
  }
  void pack(const Handles& own, Random& random, int32_t dtype, int64_t in, int64_t first, int64_t count) {
    const std::vector<char> rows = random.elements(count * in, dtype);
    ok(octavo_weight_pack(own.context, weight, rows.data(), dtype, first, count), "pack", own.isa);
  }
  void put(const Handles& own, Random& random, int32_t format, int64_t in, int64_t first, int64_t count) {
    const bool has_offsets = offset_of(format) != OCTAVO_NO_OFFSET;
    const bool has_factors = scale_of(format) == OCTAVO_BYTES_AND_FACTORS;
    const int64_t groups = in / 32, blocks = (in + 255) / 256 * (offset_of(format) == OCTAVO_LEAST ? 2 : 1);
    const int64_t bits = format == OCTAVO_FLOAT8         ? 0xf7
                         : format >= OCTAVO_FLOAT4_A16 ? 15
                         : format >= OCTAVO_INT6_A16   ? 63
                         : has_factors                 ? 31
                                                       : 255;
    const std::vector<uint8_t> codes = bytes(random, count * in, bits), offsets = bytes(random, count * groups, 255);
    const std::vector<uint8_t> byte_scales = bytes(random, count * groups, 255);
    const std::vector<char> scales = random.elements(count * groups, OCTAVO_BFLOAT16);
    const std::vector<char> factors = random.elements(count * blocks, OCTAVO_FLOAT16);
    ok(octavo_weight_put(own.context, weight, codes.data(),
                         has_factors ? static_cast<const void*>(byte_scales.data()) : scales.data(),
                         has_offsets ? offsets.data() : nullptr, has_factors ? factors.data() : nullptr, groups,
                         first, count),
       "put", own.isa);
  }
  static std::vector<uint8_t> bytes(Random& random, int64_t count, int64_t bits) {
    std::vector<uint8_t> found;
    for (int64_t i = 0; i < count; ++i) found.push_back(static_cast<uint8_t>(random.integer(0, 255) & bits));
    return found;
  }
  // Codes of 5 bits are as GGUF's Q5_K has them, those of 6 as Q6_K.
  static int32_t scale_of(int32_t format) {
    if (format < OCTAVO_INT4_A16) return OCTAVO_FLOAT32;
    if (format < OCTAVO_GROUPED_INT8_A16) return OCTAVO_FLOAT16;
    if (format < OCTAVO_INT5_A16 || format >= OCTAVO_FLOAT4_A16) return OCTAVO_BFLOAT16;
    return OCTAVO_BYTES_AND_FACTORS;
  }
  static int32_t offset_of(int32_t format) {
    if (format < OCTAVO_INT4_A16 || format >= OCTAVO_INT6_A16) return OCTAVO_NO_OFFSET;
    return format == OCTAVO_GROUPED_INT8_A16 || format == OCTAVO_GROUPED_INT8_A8 ? OCTAVO_ZERO : OCTAVO_LEAST;
  }
  ~Packed() { octavo_weight_free(weight); }
};

void one_product(const char* isa, int32_t format, uint64_t seed) {
  Random random(seed);
  const int64_t unit = format < 3 ? 1 : 64;
  const int64_t in = unit * random.integer(1, 130 / unit), out = 2 * random.integer(1, 75);
  const int64_t rows = random.integer(1, seed % 2 ? 70 : 250);
  constexpr int32_t kKinds[] = {OCTAVO_NO_ACTIVATION, OCTAVO_SILU, OCTAVO_CLAMPED_SILU, OCTAVO_GELU,
                                OCTAVO_UNGATED | OCTAVO_GELU_TANH, OCTAVO_UNGATED | OCTAVO_RELU};
  const int32_t activation = kKinds[seed % 6];
  const bool gated = activation != OCTAVO_NO_ACTIVATION && activation < OCTAVO_UNGATED;
  const std::vector<float> x = random.reals(rows * in), y0 = random.reals(rows * (gated ? out / 2 : out));
  same_bits("linear", isa, [&](const Handles& own) {
    const Packed packed(own, format, activation, in, out, seed);
    std::vector<float> y = y0;
    ok(octavo_linear(own.context, packed.weight, x.data(), rows, y.data(), seed % 3 == 0), "linear", isa);
    if (gated) return y;
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < rows; ++i) ids.push_back(static_cast<int32_t>(i * 7 % out));
    std::vector<float> looked_up(static_cast<size_t>(rows * in), 1.0f);
    ok(octavo_embedding(own.context, packed.weight, ids.data(), rows, seed % 5 ? 1.0f : 0.3f, looked_up.data(),
                        seed % 7 == 0),
       "embedding", isa);
    y.insert(y.end(), looked_up.begin(), looked_up.end());
    return y;
  });
}

// A panel's gates and ups in one call, which is long enough for several threads.
void gates(const char* isa, int32_t format) {
  constexpr int64_t kIn = 8192, kOut = 32;
  const std::vector<float> x = Random(1).reals(kIn);
  same_bits("gates", isa, [&](const Handles& own) {
    const Packed packed(own, format, OCTAVO_SILU, kIn, kOut, 1, true);
    std::vector<float> y(kOut / 2);
    ok(octavo_linear(own.context, packed.weight, x.data(), 1, y.data(), 0), "linear", isa);
    return y;
  });
}

// Two formats below each other, the second with its inputs in an order of its own.
void stacked(const char* isa, int32_t format, uint64_t seed) {
  Random random(seed);
  const int64_t in = 64 * random.integer(1, 3), out = random.integer(1, 75), rows = random.integer(1, 40);
  const std::vector<float> x = random.reals(rows * in);
  std::vector<int32_t> order;
  for (int64_t i = 0; i < in; ++i) order.push_back(static_cast<int32_t>((i * 5 + 3) % in));  // in has no factor 5
  same_bits("stack", isa, [&](const Handles& own) {
    const Packed first(own, OCTAVO_BFLOAT16, OCTAVO_NO_ACTIVATION, in, out, seed);
    const Packed second(own, format, OCTAVO_NO_ACTIVATION, in, out, seed + 1);
    if (format >= OCTAVO_INT4_A16) ok(octavo_weight_order(second.weight, order.data()), "order", isa);
    const octavo_weight* const pieces[] = {first.weight, second.weight};
    octavo_weight* stack = octavo_weight_stack(pieces, 2);
    std::vector<float> y(static_cast<size_t>(rows * 2 * out));
    ok(octavo_linear(own.context, stack, x.data(), rows, y.data(), 0), "linear", isa);
    octavo_weight_free(stack);
    return y;
  });
}

void experts(const char* isa, int32_t format, uint64_t seed) {
  Random random(seed);
  const int64_t unit = format < 3 ? 1 : 64;
  const int64_t width = unit * random.integer(1, 130 / unit), inner = unit * random.integer(1, 130 / unit);
  const int64_t count = random.integer(1, 6), rows = random.integer(1, 80) * (seed % 2 ? 3 : 1);
  const int64_t chosen = random.integer(1, count);
  const std::vector<float> x = random.reals(rows * width), logits = random.reals(rows * count);
  const std::vector<float> y0 = random.reals(rows * width);
  same_bits("experts", isa, [&](const Handles& own) {
    std::vector<std::unique_ptr<Packed>> kept;
    std::vector<const octavo_weight*> gate_up, down;
    for (int64_t e = 0; e < count; ++e) {
      kept.push_back(std::make_unique<Packed>(own, format, OCTAVO_SILU, width, 2 * inner, seed + e));
      gate_up.push_back(kept.back()->weight);
      kept.push_back(std::make_unique<Packed>(own, format, OCTAVO_NO_ACTIVATION, inner, width, seed + e));
      down.push_back(kept.back()->weight);
    }
    std::vector<float> routing(logits.size()), y = y0;
    ok(octavo_route(own.context, logits.data(), rows, count, seed % 2, 1, 1, 1, chosen, seed % 3 == 0, 1.5f,
                    seed % 5 == 0 ? nullptr : logits.data(), routing.data()),
       "route", isa);
    ok(octavo_experts(own.context, gate_up.data(), down.data(), count, x.data(), rows, width, routing.data(), y.data(),
                      seed % 3 == 0),
       "experts", isa);
    y.insert(y.end(), routing.begin(), routing.end());
    return y;
  });
}

void heads(const char* isa, int32_t format, uint64_t seed) {
  Random random(seed);
  const int64_t unit = format < 3 ? 1 : 64;
  const int64_t in = unit * random.integer(1, 130 / unit), out = random.integer(1, 90), rows = random.integer(1, 250);
  const int64_t count = random.integer(1, 5);
  const std::vector<float> x = random.reals(rows * count * in);
  same_bits("heads", isa, [&](const Handles& own) {
    std::vector<std::unique_ptr<Packed>> kept;
    std::vector<const octavo_weight*> weights;
    for (int64_t head = 0; head < count; ++head) {
      kept.push_back(std::make_unique<Packed>(own, format, OCTAVO_NO_ACTIVATION, in, out, seed + head));
      weights.push_back(kept.back()->weight);
    }
    std::vector<float> y(static_cast<size_t>(rows * count * out)), wide(static_cast<size_t>(rows * (count * out + 7)));
    ok(octavo_linear_heads(own.context, weights.data(), count, x.data(), rows, y.data()), "heads", isa);
    ok(octavo_copy_columns(own.context, y.data(), rows, count * out, wide.data(), count * out + 7, 5), "columns", isa);
    return wide;
  });
}

}  // namespace

void products(const char* isa, uint64_t seeds) {
  for (int32_t format = 0; format <= OCTAVO_FLOAT8; ++format) {
    for (uint64_t seed = 0; seed < seeds; ++seed) {
      one_product(isa, format, seed);
      stacked(isa, format, seed);
      experts(isa, format, seed);
      heads(isa, format, seed);
    }
    gates(isa, format);
  }
}

}  // namespace checks
