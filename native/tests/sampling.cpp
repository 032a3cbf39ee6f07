// From logits to tokens: rows with everything that can be asked of one.
#include "check.h"

namespace checks {
namespace {

// `count` ascending ids below `limit`.
std::vector<int64_t> ascending(Random& random, int64_t count, int64_t limit) {
  std::vector<int64_t> ids;
  for (int64_t id = 0; id < limit; ++id)
    if (random.integer(0, limit - 1) < count) ids.push_back(id);
  return ids;
}

struct Row {
  std::vector<float> bias_values;
  std::vector<int64_t> counted, counts, stops, banned, biased;
  std::vector<uint8_t> mask;
  octavo_sampling_row row{};

  Row(Random& random, int64_t vocab_size)
      : counted(ascending(random, vocab_size / 3, vocab_size)),
        stops(ascending(random, 2, vocab_size)),
        banned(ascending(random, 3, vocab_size)),
        biased(ascending(random, 4, vocab_size)) {
    for (size_t i = 0; i < counted.size(); ++i) counts.push_back(random.integer(0, 4));
    bias_values = random.reals(static_cast<int64_t>(biased.size()));
    for (int64_t i = 0; i < (vocab_size + 7) / 8; ++i) mask.push_back(static_cast<uint8_t>(random.integer(0, 255)));
    row.vocab_size = vocab_size;
    row.is_greedy = random.integer(0, 2) == 0;
    row.has_seed = 1;
    row.seed = random.integer(0, 1000);
    row.temperature = 0.7;
    row.top_p = random.integer(0, 1) ? 1.0 : 0.8;
    row.min_p = random.integer(0, 1) ? 0.0 : 0.05;
    row.top_k = random.integer(0, 1) ? 0 : random.integer(1, vocab_size);
    row.repetition_penalty = 1.2;
    row.frequency_penalty = 0.3;
    row.presence_penalty = -0.2;
    row.counted_ids = counted.data();
    row.counts = counts.data();
    row.num_counted = static_cast<int64_t>(counted.size());
    row.stop_ids = stops.data();
    row.num_stops = static_cast<int64_t>(stops.size());
    row.min_tokens = random.integer(0, 9);
    row.banned_ids = banned.data();
    row.num_banned = static_cast<int64_t>(banned.size());
    row.bias_ids = biased.data();
    row.bias_values = bias_values.data();
    row.num_biases = static_cast<int64_t>(biased.size());
    if (random.integer(0, 1)) {
      row.masks[0] = mask.data();
      row.mask_bytes[0] = static_cast<int64_t>(mask.size());
    }
  }
};

void draws(const char* isa, uint64_t seed) {
  Random random(seed);
  std::vector<Row> rows;
  const int64_t vocab_size = random.integer(1, seed % 2 ? 50 : 70000);
  rows.reserve(5);
  for (int i = 0; i < 5; ++i) rows.emplace_back(random, vocab_size);
  std::vector<octavo_sampling_row> plain;
  std::vector<int64_t> positions;
  for (const Row& row : rows) {
    plain.push_back(row.row);
    positions.push_back(random.integer(0, 9));
  }
  const auto count = static_cast<int64_t>(plain.size());
  const std::vector<float> logits = random.reals(count * vocab_size);
  const int64_t top = random.integer(0, vocab_size < 20 ? vocab_size : 20);
  same_bits("draw", isa, [&](const Handles& own) {
    std::vector<int64_t> tokens(plain.size()), ids(plain.size() * (1 + top)), ranks(plain.size());
    std::vector<double> logprobs(ids.size());
    ok(octavo_sample(own.context, logits.data(), vocab_size, positions.data(), plain.data(), count, tokens.data()), "sample",
       isa);
    std::vector<octavo_score> scores;
    for (size_t i = 0; i < plain.size(); ++i)
      scores.push_back({&logits[i * vocab_size], vocab_size, 0, top,
                        &ids[i * (1 + top)], &logprobs[i * (1 + top)], &ranks[i]});
    ok(octavo_score_rows(own.context, scores.data(), static_cast<int64_t>(scores.size())), "score", isa);
    std::vector<float> result(tokens.begin(), tokens.end());
    result.insert(result.end(), ids.begin(), ids.end());
    result.insert(result.end(), ranks.begin(), ranks.end());
    for (const double logprob : logprobs) result.push_back(static_cast<float>(logprob));
    return result;
  });
}

}  // namespace

void sampling(const char* isa, uint64_t seeds) {
  for (uint64_t seed = 0; seed < seeds; ++seed) draws(isa, seed);
}

}  // namespace checks
