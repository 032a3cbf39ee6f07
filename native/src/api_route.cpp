// Which experts a row goes through, and with what weight.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "context.h"

namespace octavo {
namespace {

constexpr int64_t kSmallRouting = 1 << 13;  // logits below which waking threads costs more than it brings
constexpr float kTiny = 1e-20f;             // beside a sum that may be 0

struct Choice {
  int64_t experts, scoring, groups, chosen_groups, group_best, chosen;
  bool normalise;
  float scale;
  const float* bias;

  int check() const {
    if (chosen < 1 || chosen > experts)
      return fail(OCTAVO_INVALID, "%lld of %lld experts cannot be chosen", number(chosen), number(experts));
    if (groups < 1 || experts % groups != 0 || chosen_groups < 1 || chosen_groups > groups || group_best < 1 ||
        group_best > experts / groups || chosen > chosen_groups * (experts / groups))
      return fail(OCTAVO_INVALID, "%lld of %lld experts in %lld of %lld groups by their %lld best", number(chosen),
                  number(experts), number(chosen_groups), number(groups), number(group_best));
    return OCTAVO_OK;
  }
};

// One row after the other, in memory of its own.
class Router {
 public:
  explicit Router(const Choice& choice)
      : choice_(choice),
        scores_(static_cast<size_t>(choice.experts)),
        ranked_(static_cast<size_t>(choice.experts)),
        order_(static_cast<size_t>(choice.experts)),
        groups_(static_cast<size_t>(choice.groups)),
        worth_(static_cast<size_t>(choice.groups)) {}

  void route(const float* logits, float* routing) {
    const int64_t chosen = choice_.chosen;
    std::fill_n(routing, choice_.experts, 0.0f);
    if (std::any_of(logits, logits + choice_.experts, [](float logit) { return std::isnan(logit); })) {
      std::fill_n(routing, chosen, std::numeric_limits<float>::quiet_NaN());
      return;
    }
    const float total = score(logits);
    rank(logits, total);
    std::iota(order_.begin(), order_.end(), 0);
    sort_first(order_, chosen, ranked_);
    float kept = 0.0f;
    for (int64_t i = 0; i < chosen; ++i) kept += scores_[order_[i]];
    const float divisor = choice_.normalise ? kept + kTiny : total;
    for (int64_t i = 0; i < chosen; ++i) routing[order_[i]] = scores_[order_[i]] / divisor * choice_.scale;
  }

 private:
  // Gives what the scores are to be divided by.
  float score(const float* logits) {
    if (choice_.scoring == OCTAVO_SIGMOID) {
      for (int64_t e = 0; e < choice_.experts; ++e) scores_[e] = 1.0f / (1.0f + std::exp(-logits[e]));
      return 1.0f;
    }
    const float top = *std::max_element(logits, logits + choice_.experts);
    float total = 0.0f;
    for (int64_t e = 0; e < choice_.experts; ++e) total += scores_[e] = std::exp(logits[e] - top);
    return total;
  }

  // By what the experts are chosen. Without the scores' roundings where nothing is added to them: both functions keep the
  // order of the logits.
  void rank(const float* logits, float total) {
    for (int64_t e = 0; e < choice_.experts; ++e) {
      const bool by_logit = choice_.bias == nullptr && choice_.group_best == 1;
      ranked_[e] = by_logit ? logits[e] : scores_[e] / total + (choice_.bias == nullptr ? 0.0f : choice_.bias[e]);
    }
    if (choice_.chosen_groups < choice_.groups) limit_to_groups();
  }

  void limit_to_groups() {
    const int64_t size = choice_.experts / choice_.groups;
    for (int64_t g = 0; g < choice_.groups; ++g) {
      const float* members = ranked_.data() + g * size;
      best_.assign(members, members + size);
      std::partial_sort(best_.begin(), best_.begin() + choice_.group_best, best_.end(), std::greater<float>());
      worth_[g] = std::accumulate(best_.begin(), best_.begin() + choice_.group_best, 0.0f);
    }
    std::iota(groups_.begin(), groups_.end(), 0);
    sort_first(groups_, choice_.chosen_groups, worth_);
    for (int64_t i = choice_.chosen_groups; i < choice_.groups; ++i)
      std::fill_n(ranked_.begin() + groups_[i] * size, size, -std::numeric_limits<float>::infinity());
  }

  // The `count` largest first, of equal ones the first.
  static void sort_first(std::vector<int64_t>& order, int64_t count, const std::vector<float>& values) {
    std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int64_t a, int64_t b) {
      return values[a] > values[b] || (values[a] == values[b] && a < b);
    });
  }

  const Choice& choice_;
  std::vector<float> scores_, ranked_;
  std::vector<int64_t> order_, groups_;
  std::vector<float> worth_, best_;
};

}  // namespace
}  // namespace octavo

using namespace octavo;

int octavo_route(octavo_context* context, const float* logits, int64_t rows, int64_t experts, int32_t scoring,
                 int64_t groups, int64_t chosen_groups, int64_t group_best, int64_t chosen, int32_t normalise, float scale,
                 const float* bias, float* routing) {
  if (missing(context)) return closed();
  const Choice choice{experts, scoring, groups, chosen_groups, group_best, chosen, normalise != 0, scale, bias};
  if (const int status = choice.check(); status != OCTAVO_OK) return status;
  return guarded([&] {
    if (rows == 0) return static_cast<int>(OCTAVO_OK);
    const int threads = threads_for(*context, rows * experts, kSmallRouting);
    const int64_t chunk = threads == 1 ? rows : ceil_div(rows, 4 * threads);
    std::vector<Router> routers(static_cast<size_t>(threads), Router(choice));
    pool::parallel(threads, ceil_div(rows, chunk), [&](int64_t item, int worker) {
      for (int64_t row = item * chunk; row < std::min(rows, (item + 1) * chunk); ++row)
        routers[worker].route(logits + row * experts, routing + row * experts);
    });
    return static_cast<int>(OCTAVO_OK);
  });
}
