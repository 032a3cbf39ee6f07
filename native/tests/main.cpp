// Every function of octavo.h over random shapes, for each instruction set: the same bits with one thread and with several.
// Buffers are exactly as large as the header says, so that the sanitizers see any access beyond them.
#include <algorithm>
#include <cstdlib>

#include "check.h"
#include "kernels/table.h"
#include "octavo.h"

using checks::check;
using checks::Handles;
using checks::ok;
using checks::Random;
using checks::same_bits;

namespace {

const char* const kIsas[] = {"amx", "avx512_bf16", "avx512", "avx2", "generic", "amx_emulated"};

void rows_alone(const char* isa, uint64_t seed) {
  Random random(seed);
  const int64_t rows = random.integer(1, 300), width = random.integer(1, 200);
  const std::vector<float> x = random.reals(rows * width), weight = random.reals(width);
  const std::vector<float> pairs = random.reals(rows * 2 * width);
  same_bits("rows", isa, [&](const Handles& own) {
    std::vector<float> y(static_cast<size_t>(rows * width)), z = y;
    std::vector<int32_t> chosen;
    for (int64_t i = 0; i < rows; i += 3) chosen.push_back(static_cast<int32_t>(rows - 1 - i));
    ok(octavo_layer_norm(own.context, x.data(), weight.data(), seed % 2 ? nullptr : weight.data(), rows, width, 1e-5f,
                         y.data()),
       "layer norm", isa);
    ok(octavo_rms_norm(own.context, x.data(), weight.data(), rows, width, 1e-5f, y.data(), seed % 2), "norm", isa);
    ok(octavo_soft_cap(own.context, y.data(), rows, width, 3.0f), "soft cap", isa);
    ok(octavo_rms_norm_columns(own.context, y.data(), rows, width, width / 3, 2, weight.data(), width / 3, 1e-5f), "columns",
       isa);
    ok(octavo_silu_and_multiply(own.context, pairs.data(), rows, width, z.data()), "silu", isa);
    std::vector<float> some(chosen.size() * static_cast<size_t>(width));
    ok(octavo_select_rows(own.context, x.data(), rows, width, chosen.data(), static_cast<int64_t>(chosen.size()),
                          some.data()),
       "select", isa);
    for (const std::vector<float>* part : {&z, &some}) y.insert(y.end(), part->begin(), part->end());
    return y;
  });
}

void attention(const char* isa, int32_t dtype, uint64_t seed) {
  Random random(seed);
  const int64_t block_size = 16 * random.integer(1, 3), kv_heads = random.integer(1, 3), group = random.integer(1, 9);
  const int64_t head_size = random.integer(1, 100), heads = kv_heads * group, width = (heads + 2 * kv_heads) * head_size;
  const int64_t window = seed % 3 ? INT32_MAX : random.integer(1, 700);
  std::vector<int32_t> lengths, starts{0};
  int64_t table_width = 1, blocks = 0;
  for (int64_t s = random.integer(1, 4); s > 0; --s) {
    lengths.push_back(static_cast<int32_t>(random.integer(1, seed % 2 ? 1300 : 80)));
    starts.push_back(starts.back() + static_cast<int32_t>(std::min<int64_t>(lengths.back(), random.integer(1, 30))));
    table_width = std::max(table_width, octavo::ceil_div(lengths.back(), block_size));
    blocks += octavo::ceil_div(lengths.back(), block_size);
  }
  const auto sequences = static_cast<int64_t>(lengths.size());
  std::vector<int32_t> tables(static_cast<size_t>(sequences * table_width), -1);
  std::vector<int64_t> slots;
  for (int64_t s = 0, next = blocks; s < sequences; ++s) {
    for (int64_t b = 0; b < octavo::ceil_div(lengths[s], block_size); ++b)
      tables[s * table_width + b] = static_cast<int32_t>(--next);
    for (int64_t t = 0; t < lengths[s]; ++t)
      slots.push_back(tables[s * table_width + t / block_size] * block_size + t % block_size);
  }
  const auto tokens = static_cast<int64_t>(slots.size());
  const std::vector<float> written = random.reals(tokens * width), queries = random.reals(starts.back() * width);
  const int64_t rotary = random.integer(0, head_size / 2) * 2;
  const std::vector<float> sinks = random.reals(heads), table = random.reals(50 * rotary);
  std::vector<int32_t> positions;
  for (int64_t t = 0; t < tokens; ++t) positions.push_back(static_cast<int32_t>(t % 50));
  same_bits("attention", isa, [&](const Handles& own) {
    octavo_cache* cache = octavo_cache_new(own.context, 2, blocks + 1, block_size, kv_heads, head_size, dtype);
    std::vector<float> rows = written;
    ok(octavo_cache_write(own.context, cache, 1, rows.data(), heads, slots.data(), tokens, seed % 2 ? nullptr : table.data(),
                          50, rotary, positions.data(), seed % 3 == 0),
       "write", isa);
    std::vector<float> out(static_cast<size_t>(starts.back() * heads * head_size));
    const auto attend = [&] {
      ok(octavo_attention(own.context, cache, 1, queries.data(), heads, starts.back(), starts.data(), lengths.data(),
                          sequences, tables.data(), table_width, 0.2f, window, seed % 5 ? 0.0f : 3.0f,
                          seed % 4 ? nullptr : sinks.data(), seed % 3 != 2, out.data()),
         "attention", isa);
    };
    attend();
    const std::vector<float> before = out;
    const int32_t pair[] = {tables[0], static_cast<int32_t>(blocks)};
    ok(octavo_cache_copy(cache, pair, 1), "copy", isa);
    const int32_t original = tables[0];
    tables[0] = static_cast<int32_t>(blocks);
    attend();
    check(std::memcmp(before.data(), out.data(), out.size() * sizeof(float)) == 0, "a copied block", isa);
    std::vector<char> host(static_cast<size_t>(2 * octavo_cache_block_bytes(cache)));
    const int32_t out_pair[] = {static_cast<int32_t>(blocks), 1}, in_pair[] = {1, original};
    ok(octavo_cache_swap_out(cache, out_pair, 1, host.data(), 2), "swap out", isa);
    ok(octavo_cache_swap_in(cache, in_pair, 1, host.data(), 2), "swap in", isa);
    tables[0] = original;
    attend();
    check(std::memcmp(before.data(), out.data(), out.size() * sizeof(float)) == 0, "a swapped block", isa);
    octavo_cache_free(cache);
    out.insert(out.end(), rows.begin(), rows.end());
    return out;
  });
}

void dequantized(const char* isa) {
  Random random(1);
  int64_t types = 0;
  for (int32_t type = 0; type < 64; ++type) {
    const octavo::BlockSize block = octavo::find_kernels(isa)->block_size(type);
    if (block.values == 0) continue;
    ++types;
    const int64_t blocks = random.integer(1, 700);
    std::vector<char> raw(static_cast<size_t>(blocks * block.bytes));
    for (char& byte : raw) byte = static_cast<char>(random.integer(0, 59));  // no infinite scale
    for (int32_t dtype = 0; dtype < 3; ++dtype)
      same_bits("dequantize", isa, [&](const Handles& own) {
        std::vector<char> out(static_cast<size_t>(blocks * block.values * (dtype == 0 ? 4 : 2)));
        ok(octavo_dequantize(own.context, raw.data(), static_cast<int64_t>(raw.size()), type, blocks * block.values, dtype,
                             out.data()),
           "dequantize", isa);
        return std::vector<float>(out.begin(), out.end());
      });
  }
  check(types > 10, "GGUF types", isa, types);
}

// y = x W^T, recorded and run twice.
void recorded(const char* isa) {
  const Handles own(isa, 2);
  Random random(5);
  const std::vector<char> rows = random.elements(20 * 30, 0);
  octavo_weight* weight = octavo_weight_new(own.context, OCTAVO_FLOAT32, 0, OCTAVO_FLOAT32, OCTAVO_NO_OFFSET,
                                            OCTAVO_NO_ACTIVATION, 30, 20);
  ok(octavo_weight_pack(own.context, weight, rows.data(), OCTAVO_FLOAT32, 0, 20), "pack", isa);
  const std::vector<float> x = random.reals(4 * 30);
  std::vector<float> expected(80), y(80);
  ok(octavo_linear(own.context, weight, x.data(), 4, expected.data(), 0), "linear", isa);
  octavo_program* program = octavo_program_new();
  const auto word = [](const void* pointer) { return static_cast<int64_t>(reinterpret_cast<intptr_t>(pointer)); };
  const octavo_argument arguments[] = {{1, 0}, {word(weight), -1}, {word(x.data()), -1}, {1, 1}, {1, 2}, {0, -1}};
  ok(octavo_program_add(program, "octavo_linear", arguments, 6), "record", isa);
  const int64_t variables[] = {word(own.context), 4, word(y.data())};
  for (int round = 0; round < 2; ++round) ok(octavo_program_run(program, variables, 3), "run", isa);
  check(y == expected, "a recorded product", isa);
  octavo_program_free(program);
  octavo_weight_free(weight);
}

}  // namespace

// The argument: how many random shapes of each kind.
int main(int count, char** arguments) {
  const uint64_t seeds = count > 1 ? std::strtoul(arguments[1], nullptr, 10) : 6;
  checks::pool();
  for (const char* isa : kIsas) {
    if (!octavo_isa_supported(isa)) continue;
    checks::products(isa, seeds);
    for (uint64_t seed = 0; seed < seeds; ++seed) {
      for (int32_t dtype = 0; dtype <= OCTAVO_CACHE_FLOAT8; ++dtype) attention(isa, dtype, seed);
      rows_alone(isa, seed);
    }
    checks::sampling(isa, seeds);
    dequantized(isa);
    recorded(isa);
  }
  std::printf("%d passed, %d failed\n", checks::passed, checks::failed);
  return checks::failed == 0 ? 0 : 1;
}
