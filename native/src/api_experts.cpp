// A mixture of experts: every row goes through the experts that its routing weights choose, in products grouped by expert.
#include <algorithm>
#include <vector>

#include "portions.h"

namespace octavo {
namespace {

constexpr int64_t kSmallSum = 1 << 14;  // floats
constexpr int64_t kAssignments = 4096;  // (row, expert) pairs whose results are in memory at once

// The assignments of some rows, sorted by expert and in it by row.
struct Assignments {
  std::vector<int64_t> rows;    // of x
  std::vector<float> weights;   // their share in the result
  std::vector<int64_t> starts;  // [experts + 1]
  std::vector<int64_t> of_row;  // a row's assignments, in order of the experts, one row after the other
  std::vector<int64_t> row_starts;

  // As many of the rows from `first` on as stay below kAssignments, at least one; gives the first one left out.
  int64_t take(const float* routing, int64_t first, int64_t end, int64_t experts) {
    std::vector<int64_t> counts(static_cast<size_t>(experts + 1), 0);
    int64_t total = 0, row = first;
    for (; row < end; ++row) {
      int64_t chosen = 0;
      for (int64_t e = 0; e < experts; ++e) chosen += routing[row * experts + e] != 0.0f;
      if (row > first && total + chosen > kAssignments) break;
      for (int64_t e = 0; e < experts; ++e) counts[e + 1] += routing[row * experts + e] != 0.0f;
      total += chosen;
    }
    for (int64_t e = 0; e < experts; ++e) counts[e + 1] += counts[e];
    starts = counts;
    rows.resize(static_cast<size_t>(total));
    weights.resize(static_cast<size_t>(total));
    of_row.clear();
    row_starts.assign(1, 0);
    for (int64_t r = first; r < row; ++r) {
      for (int64_t e = 0; e < experts; ++e) {
        const float weight = routing[r * experts + e];
        if (weight == 0.0f) continue;
        const int64_t place = counts[e]++;
        rows[place] = r;
        weights[place] = weight;
        of_row.push_back(place);
      }
      row_starts.push_back(static_cast<int64_t>(of_row.size()));
    }
    return row;
  }

  int64_t count() const { return static_cast<int64_t>(rows.size()); }
};

// y [assignments, columns] = the assignments' inputs times the weight of their expert; all experts in one parallel run.
class GroupedProduct {
 public:
  GroupedProduct(octavo_context& context, const octavo_weight* const* weights, const Assignments& assignments)
      : context_(context),
        view_(weights[0]->view),
        kernels_(*context.kernels->linear[view_.format]),
        count_(assignments.count()),
        threads_(threads_for(context, count_ * view_.in * view_.out, kSmallProduct)) {
    packed_ = static_cast<char*>(context.activations.reserve(static_cast<size_t>(count_ * view_.row_bytes + 64)));
    for (size_t e = 0; e + 1 < assignments.starts.size(); ++e) {
      const int64_t start = assignments.starts[e], rows = assignments.starts[e + 1] - start;
      if (rows > 0) groups_.push_back({&weights[e]->view, start, rows, ceil_div(rows, kernels_.max_rows)});
    }
  }

  // x [.., in]: the input of assignment i is row sources[i], or i where there are no sources. `gathered` has room for
  // max_rows inputs of each thread.
  void run(const float* x, const int64_t* sources, float* gathered, float* y) {
    std::vector<LinearTask> tasks;
    for (const Group& group : groups_)
      tasks.push_back({group.weight, packed_ + group.start * view_.row_bytes, group.rows, group.blocks,
                       y + group.start * view_.columns(), view_.columns(), false});
    pack(tasks, x, sources, gathered);
    Portions(kernels_, tasks.data(), static_cast<int64_t>(tasks.size()), threads_).run();
  }

  int64_t gathered_floats() const { return context_.threads * kernels_.max_rows * view_.in; }

 private:
  struct Group {
    const Weight* weight;
    int64_t start, rows, blocks;
  };
  struct Item {
    size_t group;
    int64_t block;
  };

  void pack(const std::vector<LinearTask>& tasks, const float* x, const int64_t* sources, float* gathered) const {
    std::vector<Item> items;
    for (size_t g = 0; g < tasks.size(); ++g)
      for (int64_t block = 0; block < tasks[g].blocks; ++block) items.push_back({g, block});
    const int64_t share = view_.order == nullptr ? 0 : kernels_.max_rows * view_.in;  // of a thread, for rows in order
    float* ordered = static_cast<float*>(context_.ordered.reserve(static_cast<size_t>(context_.threads * share) * 4));
    pool::parallel(threads_, static_cast<int64_t>(items.size()), [&](int64_t index, int worker) {
      const Item& item = items[index];
      const LinearTask& task = tasks[item.group];
      const int64_t first = task.first_row(item.block), rows = task.first_row(item.block + 1) - first;
      const int64_t start = groups_[item.group].start + first;
      const float* inputs = x + start * view_.in;
      if (sources != nullptr) {
        float* own = gathered + worker * kernels_.max_rows * view_.in;
        for (int64_t r = 0; r < rows; ++r) std::copy_n(x + sources[start + r] * view_.in, view_.in, own + r * view_.in);
        inputs = own;
      }
      inputs = order_inputs(*task.weight, inputs, rows, ordered + worker * share);
      kernels_.pack_rows(*task.weight, inputs, rows, task.packed + first * view_.row_bytes);
    });
  }

  octavo_context& context_;
  const Weight& view_;  // of any expert: all have this shape
  const LinearKernels& kernels_;
  const int64_t count_;
  const int threads_;
  char* packed_;
  std::vector<Group> groups_;
};

struct Experts {
  octavo_context& context;
  const octavo_weight* const* gate_up;
  const octavo_weight* const* down;
  int64_t count;

  int check(int64_t width) const {
    for (int64_t e = 0; e < count; ++e) {
      if (missing(gate_up[e]) || missing(down[e])) return closed();
      if (!gate_up[e]->pieces.empty() || !down[e]->pieces.empty())
        return fail(OCTAVO_INVALID, "expert %lld has a weight of several formats", number(e));
      const Weight &first = gate_up[e]->view, &second = down[e]->view;
      if (first.in != width || second.out != width || second.in != first.columns() || second.activation != kNoActivation ||
          !alike(first, gate_up[0]->view) || !alike(second, down[0]->view))
        return fail(OCTAVO_INVALID, "expert %lld: [%lld, %lld] and [%lld, %lld] do not fit together or the other experts",
                    number(e), number(first.out), number(first.in), number(second.out), number(second.in));
    }
    return OCTAVO_OK;
  }

  void run(const float* x, int64_t rows, const float* routing, float* y) const {
    Assignments assignments;
    for (int64_t row = 0; row < rows;) {
      const int64_t end = assignments.take(routing, row, rows, count);
      if (assignments.count() > 0) pass(x, assignments, row, end, y);
      row = end;
    }
  }

 private:
  void pass(const float* x, const Assignments& assignments, int64_t first, int64_t end, float* y) const {
    const int64_t inner = down[0]->view.in, width = down[0]->view.out, total = assignments.count();
    GroupedProduct up(context, gate_up, assignments);
    const int64_t floats = up.gathered_floats() + total * (inner + width);
    float* gathered = static_cast<float*>(context.gathered.reserve(static_cast<size_t>(floats) * sizeof(float)));
    float* activated = gathered + up.gathered_floats();
    float* results = activated + total * inner;
    up.run(x, assignments.rows.data(), gathered, activated);
    GroupedProduct(context, down, assignments).run(activated, nullptr, nullptr, results);
    for_rows(context, end - first, total * width, kSmallSum, [&](int64_t start, int64_t rows) {
      for (int64_t r = start; r < start + rows; ++r)
        for (int64_t i = assignments.row_starts[r]; i < assignments.row_starts[r + 1]; ++i) {
          const int64_t place = assignments.of_row[i];
          add(results + place * width, assignments.weights[place], width, y + (first + r) * width);
        }
    });
  }

  static void add(const float* result, float weight, int64_t width, float* y) {
    for (int64_t i = 0; i < width; ++i) y[i] += weight * result[i];
  }
};

}  // namespace
}  // namespace octavo

using namespace octavo;

int octavo_experts(octavo_context* context, const octavo_weight* const* gate_up, const octavo_weight* const* down,
                   int64_t experts, const float* x, int64_t rows, int64_t width, const float* routing, float* y,
                   int32_t accumulate) {
  if (missing(context)) return closed();
  return guarded([&] {
    if (experts < 1) return fail(OCTAVO_INVALID, "%lld experts", number(experts));
    const Experts all{*context, gate_up, down, experts};
    if (const int status = all.check(width); status != OCTAVO_OK) return status;
    std::lock_guard<std::mutex> lock(context->mutex);
    if (accumulate == 0) std::fill_n(y, rows * width, 0.0f);
    all.run(x, rows, routing, y);
    return static_cast<int>(OCTAVO_OK);
  });
}
