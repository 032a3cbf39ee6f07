// What this machine can do at most: floats read from memory, and multiply-adds
// from registers, per thread. Compiled by kernels.py for the processor at hand;
// prints "read_gbs fma_gflops bf16_gflops int8_gops" (0 without VDPBF16PS, VNNI).
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include <sys/mman.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

using Vector = float __attribute__((vector_size(64)));

double seconds() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Units per second of all threads together, in the best of many short windows:
// other programs' turns do not count. `work(id)` does `units` in some
// milliseconds.
template <class Function>
double best_rate(int threads, double units, Function work) {
  double best = 0;
  for (int window = 0; window < 60; ++window) {
    std::atomic<int> ready{0};
    std::vector<double> begin(threads), end(threads);
    std::vector<std::thread> workers;
    for (int id = 0; id < threads; ++id)
      workers.emplace_back([&, id] {
        for (++ready; ready < threads;)
          std::this_thread::yield();
        begin[id] = seconds();
        work(id);
        end[id] = seconds();
      });
    for (auto &worker : workers)
      worker.join();
    const double start = *std::min_element(begin.begin(), begin.end());
    best =
        std::max(best, threads * units /
                           (*std::max_element(end.begin(), end.end()) - start));
  }
  return best;
}

double read_bandwidth(int threads) {
  const size_t bytes =
      size_t{768}
      << 20; // walked in windows, so that each finds its part out of the caches
  void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
#ifdef MADV_HUGEPAGE
  madvise(memory, bytes, MADV_HUGEPAGE);
#endif
  Vector *data = static_cast<Vector *>(memory);
  const size_t total = bytes / sizeof(Vector),
               count = (size_t{32} << 20) / sizeof(Vector);
  for (size_t i = 0; i < total; ++i)
    data[i] = Vector{};
  std::atomic<size_t> next{0};
  const double rate =
      best_rate(threads, static_cast<double>(count * sizeof(Vector)), [&](int) {
        const Vector *p = data + next.fetch_add(count) % total;
        Vector sums[4] = {};
        for (size_t i = 0; i < count; i += 4)
          for (int j = 0; j < 4; ++j) {
            __builtin_prefetch(p + i + j + 64);
            sums[j] += p[i + j];
          }
        for (auto &sum : sums)
          asm volatile("" : : "m"(sum));
      });
  munmap(memory, bytes);
  return rate / 1e9;
}

constexpr int kChains = 12;
constexpr long kTurns = 500'000;

#if defined(__AVX512F__)
void fma_chains(int) {
  __m512 a[kChains];
#pragma GCC unroll 16
  for (auto &x : a)
    x = _mm512_setzero_ps();
  __m512 b = _mm512_set1_ps(1e-9f);
  for (long i = 0; i < kTurns; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kChains; ++j)
      a[j] = _mm512_fmadd_ps(b, b, a[j]);
#pragma GCC unroll 16
    for (int j = 0; j < kChains; ++j)
      asm volatile("" : "+v"(a[j]));
  }
}
constexpr double kFmaWork = 2.0 * 16 * kChains * kTurns;
#elif defined(__AVX2__)
void fma_chains(int) {
  __m256 a[kChains];
#pragma GCC unroll 16
  for (auto &x : a)
    x = _mm256_setzero_ps();
  __m256 b = _mm256_set1_ps(1e-9f);
  for (long i = 0; i < kTurns; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kChains; ++j)
      a[j] = _mm256_fmadd_ps(b, b, a[j]);
#pragma GCC unroll 16
    for (int j = 0; j < kChains; ++j)
      asm volatile("" : "+x"(a[j]));
  }
}
constexpr double kFmaWork = 2.0 * 8 * kChains * kTurns;
#else
void fma_chains(int) {}
constexpr double kFmaWork = 0;
#endif

#if defined(__AVX512BF16__)
void bf16_chains(int) {
  __m512 a[kChains];
#pragma GCC unroll 16
  for (auto &x : a)
    x = _mm512_setzero_ps();
  __m512bh b = (__m512bh)_mm512_set1_epi32(0x3f803f80);
  for (long i = 0; i < kTurns; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kChains; ++j)
      a[j] = _mm512_dpbf16_ps(a[j], b, b);
#pragma GCC unroll 16
    for (int j = 0; j < kChains; ++j)
      asm volatile("" : "+v"(a[j]));
  }
}
constexpr double kBf16Work = 4.0 * 16 * kChains * kTurns;
#else
void bf16_chains(int) {}
constexpr double kBf16Work = 0;
#endif

#if defined(__AVX512VNNI__)
void int8_chains(int) {
  __m512i a[kChains];
#pragma GCC unroll 16
  for (auto &x : a)
    x = _mm512_setzero_si512();
  __m512i b = _mm512_set1_epi8(1);
  for (long i = 0; i < kTurns; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kChains; ++j)
      a[j] = _mm512_dpbusd_epi32(a[j], b, b);
#pragma GCC unroll 16
    for (int j = 0; j < kChains; ++j)
      asm volatile("" : "+v"(a[j]));
  }
}
constexpr double kInt8Work = 8.0 * 16 * kChains * kTurns;
#else
void int8_chains(int) {}
constexpr double kInt8Work = 0;
#endif

} // namespace

int main(int, char **arguments) {
  const int threads = std::atoi(arguments[1]);
  const double read = read_bandwidth(threads);
  const double fma = best_rate(threads, kFmaWork, fma_chains) / 1e9;
  const double bf16 = best_rate(threads, kBf16Work, bf16_chains) / 1e9;
  const double int8 = best_rate(threads, kInt8Work, int8_chains) / 1e9;
  std::printf("%.2f %.1f %.1f %.1f\n", read, fma, bf16, int8);
}
