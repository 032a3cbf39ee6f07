// A trial run of an instruction set's products in a child process: whether they run at all, and give what the generic ones
// give.
#include "trial.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>

#include "memory.h"
#include "portions.h"

namespace octavo {
namespace {

constexpr int64_t kInputs = 128, kOutputs = 44;
constexpr int64_t kRowCounts[] = {1, 19, 33};  // one row; a whole and a partial row tile; two row blocks
constexpr int64_t kMaxRows = 33;
constexpr float kTolerance = 0.02f;  // of the largest result: activations are rounded to 8 bits in some formats

int64_t group_of(int32_t format) {
  if (format == kInt4A16 || format == kInt4A8) return 32;
  return format == kInt8A8 ? 64 : 0;
}

// Numbers in [-1, 1] that bfloat16 holds exactly, by a linear congruential generator.
void fill(float* values, int64_t count, uint32_t seed) {
  for (int64_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    values[i] = static_cast<float>(static_cast<int32_t>(seed >> 24) - 128) / 128.0f;
  }
}

// `rows` as the stored dtype of the format, in place of them or beside them.
const void* stored_rows(int32_t format, const float* rows, uint16_t* halves) {
  if (format != kBFloat16) return rows;
  for (int64_t i = 0; i < kInputs * kOutputs; ++i) {
    uint32_t bits;
    std::memcpy(&bits, rows + i, sizeof bits);
    halves[i] = static_cast<uint16_t>(bits >> 16);
  }
  return halves;
}

// y [rows, kOutputs] of the same product for every instruction set.
void multiply(const LinearKernels& kernels, int32_t format, const float* x, int64_t rows, const float* weights, float* y) {
  Weight weight{};
  weight.format = format;
  weight.in = kInputs;
  weight.out = kOutputs;
  weight.group = group_of(format);
  const bool is_int4 = format == kInt4A16 || format == kInt4A8;
  weight.scale = is_int4 ? kFloat16 : kFloat32;
  weight.offset = is_int4 ? kLeast : kNoOffset;
  kernels.lay_out(weight);
  Mapping data(static_cast<size_t>(weight.panels * weight.panel_bytes));
  Mapping packed(static_cast<size_t>(rows * weight.row_bytes + 64));
  Mapping halves(sizeof(uint16_t) * kInputs * kOutputs);
  weight.data = data.data();
  const int32_t dtype = format < kDTypes ? format : static_cast<int32_t>(kFloat32);
  const char* source = static_cast<const char*>(stored_rows(format, weights, reinterpret_cast<uint16_t*>(halves.data())));
  for (int64_t panel = 0; panel < weight.panels; ++panel) {
    const int64_t first = panel * weight.panel_width, count = std::min(weight.panel_width, kOutputs - first);
    kernels.pack_weight(weight, source + first * kInputs * element_bytes(dtype), dtype, panel, 0, count);
  }
  LinearTask task{&weight, packed.data(), rows, ceil_div(rows, kernels.max_rows), y, kOutputs, false};
  for (int64_t b = 0; b < task.blocks; ++b) {
    const int64_t row = task.first_row(b);
    kernels.pack_rows(weight, x + row * kInputs, task.first_row(b + 1) - row, task.packed + row * weight.row_bytes);
  }
  Portions(kernels, &task, 1, 1).run();
}

bool are_close(const float* values, const float* expected, int64_t count) {
  float largest = 0.0f;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(expected[i]));
  for (int64_t i = 0; i < count; ++i)
    if (!(std::fabs(values[i] - expected[i]) <= kTolerance * largest)) return false;
  return true;
}

bool agree(const Kernels& kernels, const Kernels& expected) {
  static float x[kMaxRows * kInputs], weights[kOutputs * kInputs], values[2][kMaxRows * kOutputs];
  fill(x, kMaxRows * kInputs, 1);
  fill(weights, kOutputs * kInputs, 2);
  for (const int32_t format : {int32_t{kBFloat16}, int32_t{kInt8A16}, int32_t{kInt8A8}, int32_t{kInt4A16}, int32_t{kInt4A8},
                               int32_t{kFloat8}}) {
    for (const int64_t rows : kRowCounts) {
      multiply(*kernels.linear[format], format, x, rows, weights, values[0]);
      multiply(*expected.linear[format], format, x, rows, weights, values[1]);
      if (!are_close(values[0], values[1], rows * kOutputs)) return false;
    }
  }
  return true;
}

// Dies of its signals in silence: no handler of the parent's, no core.
[[noreturn]] void run_child(const Kernels& kernels, const Kernels& expected, int answer) {
  for (const int number : {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGTRAP}) std::signal(number, SIG_DFL);
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  if (agree(kernels, expected)) static_cast<void>(write(answer, "1", 1) + 1);
  _exit(0);
}

}  // namespace

bool passes_trial(const Kernels& kernels, const Kernels& expected) {
  int ends[2];
#if defined(__linux__)
  if (pipe2(ends, O_CLOEXEC) != 0) return false;  // a process that another thread starts meanwhile must not keep it open
#else
  if (pipe(ends) != 0) return false;
#endif
  const pid_t child = fork();
  if (child == 0) run_child(kernels, expected, ends[1]);
  close(ends[1]);
  char answer = 0;
  ssize_t got = -1;
  while (child > 0 && (got = read(ends[0], &answer, 1)) < 0 && errno == EINTR) continue;
  close(ends[0]);
  while (child > 0 && waitpid(child, nullptr, 0) < 0 && errno == EINTR) continue;
  return got == 1 && answer == '1';
}

}  // namespace octavo
