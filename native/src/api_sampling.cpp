// From logits to tokens: the rows of a step, shared among the threads.
#include <algorithm>

#include "context.h"

namespace octavo {
namespace {

constexpr int64_t kTokensPerItem = 1 << 16;  // of the vocabulary: rows of a small one go together

// Calls function(row, scratch, number of the row) for every row.
template <class Row, class Function>
void for_each_row(octavo_context& context, const Row* rows, int64_t count, Function&& function) {
  int64_t vocab_size = 1;
  for (int64_t i = 0; i < count; ++i) vocab_size = std::max(vocab_size, rows[i].vocab_size);
  const int64_t chunk = std::max<int64_t>(1, kTokensPerItem / vocab_size);
  const int64_t items = ceil_div(count, chunk);
  const int threads = items > 1 ? context.threads : 1;
  const int64_t bytes = ceil_div(context.kernels->sampling_scratch_bytes(vocab_size), 4096) * 4096;
  std::lock_guard<std::mutex> lock(context.mutex);
  char* scratch = static_cast<char*>(context.sampling.reserve(static_cast<size_t>(bytes * threads)));
  pool::parallel(threads, items, [&](int64_t item, int worker) {
    const int64_t end = std::min(count, (item + 1) * chunk);
    for (int64_t i = item * chunk; i < end; ++i) function(rows[i], scratch + worker * bytes, i);
  });
}

template <class Row>
int check_vocabulary(const Row* rows, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t size = rows[i].vocab_size;
    if (size < 1 || size > INT32_MAX)
      return fail(OCTAVO_INVALID, "row %lld: a vocabulary of %lld", number(i), number(size));
  }
  return OCTAVO_OK;
}

}  // namespace
}  // namespace octavo

using namespace octavo;

int octavo_sample(octavo_context* context, const float* logits, int64_t width, const int64_t* positions,
                  octavo_sampling_row* rows, int64_t count, int64_t* tokens) {
  if (missing(context)) return closed();
  return guarded([&] {
    if (const int status = check_vocabulary(rows, count); status != OCTAVO_OK) return status;
    for (int64_t i = 0; i < count; ++i) {
      if (rows[i].vocab_size > width)
        return fail(OCTAVO_INVALID, "row %lld: a vocabulary of %lld in logits of %lld", number(i),
                    number(rows[i].vocab_size), number(width));
      rows[i].logits = logits + i * width;
      rows[i].position = positions[i];
    }
    for_each_row(*context, rows, count, [&](const octavo_sampling_row& row, void* scratch, int64_t i) {
      tokens[i] = context->kernels->sample_row(row, scratch);
    });
    return static_cast<int>(OCTAVO_OK);
  });
}

int octavo_score_rows(octavo_context* context, const octavo_score* rows, int64_t count) {
  if (missing(context)) return closed();
  return guarded([&] {
    if (const int status = check_vocabulary(rows, count); status != OCTAVO_OK) return status;
    for (int64_t i = 0; i < count; ++i)
      if (rows[i].token_id < 0 || rows[i].token_id >= rows[i].vocab_size || rows[i].top < 0 ||
          rows[i].top > rows[i].vocab_size)
        return fail(OCTAVO_OUT_OF_RANGE, "row %lld: token %lld, top %lld of %lld", number(i), number(rows[i].token_id),
                    number(rows[i].top), number(rows[i].vocab_size));
    for_each_row(*context, rows, count, [&](const octavo_score& row, void* scratch, int64_t) {
      context->kernels->score_row(row, scratch);
    });
    return static_cast<int>(OCTAVO_OK);
  });
}
