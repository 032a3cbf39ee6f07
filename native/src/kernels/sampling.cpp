// From a row of logits to a token, and logprobs. The reference, step by step the same, is octavo/sampling; results are equal
// to the last bit, in every instruction set: each number comes of single IEEE operations in a fixed order, and nothing is
// fused. Tokens are ordered by (larger logit, lower id).
//
// Standard algorithms are only used with types of this file, so that no instruction set gets another's copy (see simd.h).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "parts.h"
#include "simd.h"

namespace octavo::OCTAVO_ISA {
namespace {

constexpr int64_t kGroup = 64;            // tokens whose largest logit is kept, to skip the others by
constexpr int64_t kUsualNucleus = 1024;   // tokens in which a nucleus is looked for first
constexpr int64_t kOneBucket = 0x3f80;    // the upper half of 1.0f's bits: the largest weight
constexpr double kFloor = -9999.0;        // stands for minus infinity
constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <class T>
INLINE T smaller(T a, T b) {
  return b < a ? b : a;
}
template <class T>
INLINE T larger(T a, T b) {
  return a < b ? b : a;
}
template <class T>
INLINE void clear(T* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] = 0;
}

struct Descending {
  bool operator()(float a, float b) const { return a > b; }
};

struct Scratch {
  float* row;       // an edited copy of the logits
  float* weights;   // of all tokens, whole blocks
  float* maxima;    // of groups
  float* kept;      // weights of `ids`
  float* selected;  // for nth_element
  int32_t* ids;
  int32_t* order;
  double* sums;  // of blocks
  double* mass;  // of buckets

  Scratch(void* memory, int64_t vocab_size) {
    char* next = static_cast<char*>(memory);
    const int64_t padded = ceil_div(vocab_size, kSamplingBlock) * kSamplingBlock;
    sums = take<double>(next, padded / kSamplingBlock);
    mass = take<double>(next, kOneBucket + 1);
    row = take<float>(next, padded);
    weights = take<float>(next, padded);
    maxima = take<float>(next, padded / kGroup);
    kept = take<float>(next, padded);
    selected = take<float>(next, padded / kGroup);
    ids = take<int32_t>(next, padded);
    order = take<int32_t>(next, padded);
  }

 private:
  template <class T>
  static T* take(char*& next, int64_t count) {
    T* result = reinterpret_cast<T*>(next);
    next += count * static_cast<int64_t>(sizeof(T));
    return result;
  }
};

struct Row {
  const float* logits;
  int64_t size;
  float best;
  int64_t best_id;
};

// As `exp` of simd.h, but every operation rounds on its own: the bits are those of octavo/sampling/exponential.py.
INLINE Register register_plain_exp(Register x) {
  const Register low = register_set(-87.33654f);
  const Register round = register_set(12582912.0f);
  const Register bounded = register_max(low, x);
  const Register shifted = register_add(register_multiply(bounded, register_set(1.44269504f)), round);
  const Register n = register_subtract(shifted, round);
  Register r = register_subtract(bounded, register_multiply(n, register_set(0.693359375f)));
  r = register_subtract(r, register_multiply(n, register_set(-2.12194440e-4f)));
  Register p = register_set(0.00829027214f);
  for (const float coefficient : {0.0418981598f, 0.166676381f, 0.499991478f, 0.999999706f, 1.0f})
    p = register_add(register_multiply(p, r), register_set(coefficient));
  return register_zero_below(x, low, register_multiply(p, register_power_of_two(shifted)));
}

// exp((logit - best) * inverse) of 16 tokens.
INLINE Floats weights_of(Floats logits, float best, float inverse) {
  const Floats scaled = multiply(subtract(logits, set(best)), set(inverse));
  return for_parts([&](int i) __attribute__((always_inline)) { return register_plain_exp(scaled.part[i]); });
}

INLINE float largest_of_group(const float* group) {
  const Floats left = maximum(load(group), load(group + kLanes));
  const Floats right = maximum(load(group + 2 * kLanes), load(group + 3 * kLanes));
  return largest(maximum(left, right));
}

// Largest logits of all groups. Whether any logit is NaN.
bool find_maxima(const float* logits, int64_t size, float* maxima) {
  int nan = 0;
  for (int64_t first = 0; first < size; first += kGroup) {
    const float* group = logits + first;
    if (size - first >= kGroup) {
      maxima[first / kGroup] = largest_of_group(group);
      for (int i = 0; i < kGroup; ++i) nan |= group[i] != group[i];
      continue;
    }
    float most = -kInfinity;
    for (int64_t i = 0; i < size - first; ++i) {
      most = group[i] > most ? group[i] : most;
      nan |= group[i] != group[i];
    }
    maxima[first / kGroup] = most;
  }
  return nan != 0;
}

// Finds the first of the largest logits; OCTAVO_TOKEN_* where there is none that counts, else 0.
int find_best(Row& row, float* maxima) {
  if (find_maxima(row.logits, row.size, maxima)) return OCTAVO_TOKEN_NOT_FINITE;
  const int64_t groups = ceil_div(row.size, kGroup);
  int64_t best = 0;
  for (int64_t group = 1; group < groups; ++group)
    if (maxima[group] > maxima[best]) best = group;
  if (maxima[best] == -kInfinity) return OCTAVO_TOKEN_MASKED;
  if (maxima[best] == kInfinity) return OCTAVO_TOKEN_NOT_FINITE;
  row.best_id = best * kGroup;
  while (row.logits[row.best_id] != maxima[best]) ++row.best_id;
  row.best = row.logits[row.best_id];
  return 0;
}

void apply_mask(const uint8_t* mask, int64_t bytes, float* row, int64_t size) {
  for (int64_t byte = 0; byte * 8 < size; ++byte) {
    const unsigned bits = byte < bytes ? mask[byte] : 0;
    if (bits == 0xff) continue;
    const int64_t end = smaller<int64_t>(size - byte * 8, 8);
    for (int64_t bit = 0; bit < end; ++bit)
      if ((bits >> bit & 1) == 0) row[byte * 8 + bit] = -kInfinity;
  }
}

// Tokens that end the text are not drawn yet, unless the state says that they may be where no others are left.
void ban_stops(const octavo_sampling_row& state, float* row, float* saved) {
  for (int64_t i = 0; i < state.num_stops; ++i) {
    saved[i] = row[state.stop_ids[i]];
    row[state.stop_ids[i]] = -kInfinity;
  }
  if (!state.may_end) return;
  for (int64_t id = 0; id < state.vocab_size; ++id)
    if (row[id] != -kInfinity) return;
  for (int64_t i = 0; i < state.num_stops; ++i) row[state.stop_ids[i]] = saved[i];
}

void penalize(const octavo_sampling_row& state, float* row) {
  const double most = std::numeric_limits<float>::max();
  for (int64_t i = 0; i < state.num_counted; ++i) {
    float& logit = row[state.counted_ids[i]];
    if (logit == -kInfinity) continue;
    double value = logit;
    value = value > 0.0 ? value / state.repetition_penalty : value * state.repetition_penalty;
    value -= state.frequency_penalty * static_cast<double>(state.counts[i]);
    value -= state.presence_penalty * (state.counts[i] > 0 ? 1.0 : 0.0);
    if (value > most) value = most;
    if (value < -most) value = -most;
    logit = static_cast<float>(value);
  }
}

// The logits after masks, bans, bias and penalties: a copy where any of them is on.
const float* edited(const octavo_sampling_row& state, Scratch& scratch) {
  const bool must_go_on = state.position < state.min_tokens;
  const bool is_masked = state.masks[0] != nullptr || state.masks[1] != nullptr;
  if (!must_go_on && !is_masked && state.num_banned == 0 && state.num_biases == 0 && state.num_counted == 0)
    return state.logits;
  float* row = scratch.row;
  std::memcpy(row, state.logits, static_cast<size_t>(state.vocab_size) * sizeof(float));
  for (int i = 0; i < 2; ++i)
    if (state.masks[i] != nullptr) apply_mask(state.masks[i], state.mask_bytes[i], row, state.vocab_size);
  for (int64_t i = 0; i < state.num_banned; ++i) row[state.banned_ids[i]] = -kInfinity;
  if (must_go_on) ban_stops(state, row, scratch.kept);
  for (int64_t i = 0; i < state.num_biases; ++i) row[state.bias_ids[i]] += state.bias_values[i];
  penalize(state, row);
  return row;
}

// Philox4x32-10 (octavo/sampling/rng.py): a number in [0, 1) of 53 bits.
double uniform(int64_t seed, int64_t index, int64_t position) {
  uint64_t a = static_cast<uint32_t>(position), b = static_cast<uint32_t>(index), c = 0, d = 0;
  uint32_t low = static_cast<uint32_t>(seed), high = static_cast<uint32_t>(static_cast<uint64_t>(seed) >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = a * 0xd2511f53u, second = c * 0xcd9e8d57u;
    a = static_cast<uint32_t>(second >> 32) ^ b ^ low;
    b = static_cast<uint32_t>(second);
    c = static_cast<uint32_t>(first >> 32) ^ d ^ high;
    d = static_cast<uint32_t>(first);
    low += 0x9e3779b9u;
    high += 0xbb67ae85u;
  }
  return static_cast<double>((b << 32 | a) >> 11) * 0x1p-53;
}

// The first place at which the sum so far exceeds `share` of the whole sum, and how far behind the place's start that is.
struct Place {
  int64_t index;
  double rest;
};
template <class T>
Place locate(const T* weights, int64_t count, double target) {
  double total = 0.0;
  for (int64_t i = 0; i < count; ++i) total += weights[i];
  target = smaller(target, std::nextafter(total, 0.0));
  double before = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    const double through = before + weights[i];
    if (through > target) return {i, target - before};
    before = through;
  }
  return {count - 1, 0.0};  // not reached: the last sum is the total
}
template <class T>
double sum_in_order(const T* weights, int64_t count) {
  double total = 0.0;
  for (int64_t i = 0; i < count; ++i) total += weights[i];
  return total;
}

// Weights of all tokens, zeros behind them to the end of the last block, and the blocks' sums: 16 lanes, each in order,
// folded. Returns the sum of all.
double weigh_all(const Row& row, float inverse, Scratch& scratch) {
  const int64_t blocks = ceil_div(row.size, kSamplingBlock);
  float* weights = scratch.weights;
  int64_t i = 0;
  for (; i + kLanes <= row.size; i += kLanes) store(weights + i, weights_of(load(row.logits + i), row.best, inverse));
  if (i < row.size)
    store_some(weights + i, weights_of(load_some(row.logits + i, row.size - i), row.best, inverse), row.size - i);
  clear(weights + row.size, blocks * kSamplingBlock - row.size);
  for (int64_t block = 0; block < blocks; ++block) {
    const float* first = weights + block * kSamplingBlock;
    double lanes[kLanes] = {};
    for (int64_t step = 0; step < kSamplingBlock; step += kLanes)
      for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += first[step + lane];
    for (int half = kLanes / 2; half > 0; half /= 2)
      for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    scratch.sums[block] = lanes[0];
  }
  return sum_in_order(scratch.sums, blocks);
}

// Ids, rising, of the tokens that reach `bound`, into scratch.ids. How many there are.
int64_t at_least(const Row& row, float bound, Scratch& scratch) {
  int64_t count = 0;
  for (int64_t first = 0; first < row.size; first += kGroup) {
    if (scratch.maxima[first / kGroup] < bound) continue;
    const int64_t end = smaller(first + kGroup, row.size);
    for (int64_t id = first; id < end; ++id) {
      scratch.ids[count] = static_cast<int32_t>(id);
      count += row.logits[id] >= bound;
    }
  }
  return count;
}

struct Before {  // in the order of tokens
  const float* logits;
  bool operator()(int32_t a, int32_t b) const { return logits[a] > logits[b] || (logits[a] == logits[b] && a < b); }
};

// The first `wanted` tokens in order, into scratch.ids, in no order. How many there are.
int64_t take_largest(const Row& row, int64_t wanted, Scratch& scratch) {
  const int64_t groups = ceil_div(row.size, kGroup);
  float bound = -kInfinity;
  if (wanted <= groups) {  // at least so many tokens reach the wanted-th largest maximum
    std::memcpy(scratch.selected, scratch.maxima, static_cast<size_t>(groups) * sizeof(float));
    std::nth_element(scratch.selected, scratch.selected + wanted - 1, scratch.selected + groups, Descending{});
    bound = scratch.selected[wanted - 1];
  }
  const int64_t count = at_least(row, bound, scratch);
  if (count <= wanted) return count;
  std::nth_element(scratch.ids, scratch.ids + wanted, scratch.ids + count, Before{row.logits});
  return wanted;
}

// Weights of scratch.ids into scratch.kept.
void weigh_ids(const Row& row, float inverse, int64_t count, Scratch& scratch) {
  for (int64_t i = 0; i < count; ++i) scratch.kept[i] = row.logits[scratch.ids[i]];
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t some = smaller<int64_t>(kLanes, count - i);
    store_some(scratch.kept + i, weights_of(load_some(scratch.kept + i, some), row.best, inverse), some);
  }
}

INLINE int64_t bucket_of(float weight) {
  uint32_t bits;
  std::memcpy(&bits, &weight, sizeof bits);
  return kOneBucket - static_cast<int64_t>(bits >> 16);
}

// Where the sums of the buckets, cumulated from the largest weights on, reach what is wanted.
struct Reach {
  int64_t bucket;  // the last one if they never do
  double before;   // the sum of those before it
  bool is_reached;
};

// Sums the kept weights by bucket.
Reach reach(double wanted, int64_t count, Scratch& scratch) {
  int64_t buckets = 0;
  for (int64_t i = 0; i < count; ++i) buckets = larger(buckets, bucket_of(scratch.kept[i]) + 1);
  clear(scratch.mass, buckets);
  for (int64_t i = 0; i < count; ++i) scratch.mass[bucket_of(scratch.kept[i])] += scratch.kept[i];
  Reach result{0, 0.0, false};
  double sum = 0.0;
  for (int64_t bucket = 0; bucket < buckets && !result.is_reached; ++bucket) {
    const double through = sum + scratch.mass[bucket];
    result = {bucket, sum, through >= wanted};
    sum = through;
  }
  return result;
}

// Of the kept tokens, the fewest first ones whose weights reach `wanted`. How many they are.
int64_t cut_nucleus(const Row& row, double wanted, int64_t count, const Reach& reached, Scratch& scratch) {
  const int64_t last = reached.bucket;
  const double missing = wanted - reached.before;
  int64_t inside = 0;
  for (int64_t i = 0; i < count; ++i)
    if (bucket_of(scratch.kept[i]) == last) scratch.order[inside++] = static_cast<int32_t>(i);
  std::sort(scratch.order, scratch.order + inside, [&](int32_t a, int32_t b) {
    return Before{row.logits}(scratch.ids[a], scratch.ids[b]);
  });
  double sum = 0.0;
  int64_t taken = 0;
  while (taken < inside) {
    sum += scratch.kept[scratch.order[taken++]];
    if (sum >= missing) break;
  }
  for (int64_t i = taken; i < inside; ++i) scratch.kept[scratch.order[i]] = 0.0f;
  int64_t result = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (scratch.kept[i] == 0.0f || bucket_of(scratch.kept[i]) > last) continue;
    scratch.ids[result] = scratch.ids[i];
    scratch.kept[result++] = scratch.kept[i];
  }
  return result;
}

// top_p of the whole vocabulary.
int64_t nucleus_of_all(const octavo_sampling_row& state, const Row& row, float inverse, Scratch& scratch) {
  const double total = weigh_all(row, inverse, scratch);
  const double wanted = state.top_p * total;
  int64_t count = 0;
  Reach reached{};
  for (const int64_t size : {kUsualNucleus, row.size}) {
    const double share = (1.0 - state.top_p) * total / static_cast<double>(size) * (1.0 - 1e-3);
    const auto threshold = static_cast<float>(smaller(share, 1.0));
    count = 0;
    for (int64_t first = 0; first < row.size; first += kGroup) {  // the weights have zeros behind them
      if (largest_of_group(scratch.weights + first) < threshold) continue;
      for (int64_t id = first; id < smaller(first + kGroup, row.size); ++id) {
        scratch.ids[count] = static_cast<int32_t>(id);
        scratch.kept[count] = scratch.weights[id];
        count += scratch.weights[id] >= threshold;
      }
    }
    reached = reach(wanted, count, scratch);
    if (reached.is_reached) break;
  }
  return cut_nucleus(row, wanted, count, reached, scratch);
}

// What min_p, top_k and top_p leave: ids, rising, and weights. How many they are.
int64_t keep(const octavo_sampling_row& state, const Row& row, float inverse, Scratch& scratch) {
  int64_t count;
  if (state.top_k > 0 && state.top_k < row.size) {
    count = take_largest(row, state.top_k, scratch);
    std::sort(scratch.ids, scratch.ids + count);
  } else if (state.min_p > 0.0) {
    const double floor = static_cast<double>(row.best) + state.temperature * std::log(state.min_p);
    count = at_least(row, static_cast<float>(floor - 1e-4 * (1.0 + std::abs(floor))), scratch);
  } else {
    return nucleus_of_all(state, row, inverse, scratch);
  }
  weigh_ids(row, inverse, count, scratch);
  int64_t kept = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float weight = scratch.kept[i];
    if (weight > 0.0f && static_cast<double>(weight) >= state.min_p) {
      scratch.ids[kept] = scratch.ids[i];
      scratch.kept[kept++] = weight;
    }
  }
  if (state.top_p >= 1.0) return kept;
  const double wanted = state.top_p * sum_in_order(scratch.kept, kept);
  return cut_nucleus(row, wanted, kept, reach(wanted, kept, scratch), scratch);
}

int64_t draw(const octavo_sampling_row& state, const Row& row, Scratch& scratch) {
  const double number = uniform(state.seed, state.index, state.position);
  const auto inverse = static_cast<float>(1.0 / state.temperature);
  if (state.top_k <= 0 && state.top_p >= 1.0 && state.min_p <= 0.0) {
    const double total = weigh_all(row, inverse, scratch);
    const Place block = locate(scratch.sums, ceil_div(row.size, kSamplingBlock), number * total);
    const int64_t first = block.index * kSamplingBlock;
    return first + locate(scratch.weights + first, kSamplingBlock, block.rest).index;
  }
  const int64_t count = keep(state, row, inverse, scratch);
  return scratch.ids[locate(scratch.kept, count, number * sum_in_order(scratch.kept, count)).index];
}

}  // namespace

int64_t sampling_scratch_bytes(int64_t vocab_size) {
  const int64_t padded = ceil_div(vocab_size, kSamplingBlock) * kSamplingBlock;
  const int64_t doubles = padded / kSamplingBlock + kOneBucket + 1;
  return 8 * doubles + 4 * (5 * padded + 2 * (padded / kGroup));
}

int64_t sample_row(const octavo_sampling_row& state, void* memory) {
  Scratch scratch(memory, state.vocab_size);
  Row row{edited(state, scratch), state.vocab_size, 0.0f, 0};
  if (const int status = find_best(row, scratch.maxima); status != 0) return status;
  if (state.is_greedy) return row.best_id;
  if (!state.has_seed) return OCTAVO_TOKEN_NO_SEED;
  return draw(state, row, scratch);
}

void score_row(const octavo_score& score, void* memory) {
  Scratch scratch(memory, score.vocab_size);
  Row row{score.logits, score.vocab_size, 0.0f, 0};
  score.ids[0] = score.token_id;
  *score.rank = 1;
  if (find_best(row, scratch.maxima) != 0) {
    for (int64_t i = 0; i <= score.top; ++i) score.logprobs[i] = kFloor;
    for (int64_t i = 0; i < score.top; ++i) score.ids[i + 1] = i;
    return;
  }
  const double log_total = static_cast<double>(row.best) + std::log(weigh_all(row, 1.0f, scratch));
  const int64_t count = score.top > 0 ? take_largest(row, score.top, scratch) : 0;
  std::sort(scratch.ids, scratch.ids + count, Before{row.logits});
  for (int64_t i = 0; i < count; ++i) score.ids[i + 1] = scratch.ids[i];
  for (int64_t i = 0; i <= count; ++i) {
    const double logprob = static_cast<double>(row.logits[score.ids[i]]) - log_total;
    score.logprobs[i] = smaller(larger(logprob, kFloor), 0.0);
  }
  const float own = row.logits[score.token_id];
  int64_t ahead = 0;
  for (int64_t id = 0; id < row.size; ++id) ahead += row.logits[id] > own;
  *score.rank = 1 + ahead;
}

}  // namespace octavo::OCTAVO_ISA
