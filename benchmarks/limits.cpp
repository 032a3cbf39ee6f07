// What this machine can do at most: floats read from memory, and multiply-adds from registers, per thread.
// Compiled by kernels.py for the processor at hand; prints "read_gbs fma_gflops bf16_gflops" (bf16 0 without VDPBF16PS).
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

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

template <class Function>
double on_all_threads(int threads, Function function) {
  const double start = seconds();
  std::vector<std::thread> workers;
  for (int i = 0; i < threads; ++i) workers.emplace_back(function, i);
  for (auto& worker : workers) worker.join();
  return seconds() - start;
}

double read_bandwidth(int threads) {
  const size_t bytes = size_t{1} << 30;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
#ifdef MADV_HUGEPAGE
  madvise(memory, bytes, MADV_HUGEPAGE);
#endif
  Vector* data = static_cast<Vector*>(memory);
  const size_t count = bytes / sizeof(Vector) / threads;
  auto touch = [&](int id) { for (size_t i = 0; i < count; ++i) data[id * count + i] = Vector{}; };
  auto read = [&](int id) {
    const Vector* p = data + id * count;
    Vector sums[4] = {};
    for (size_t i = 0; i < count; i += 4)
      for (int j = 0; j < 4; ++j) {
        __builtin_prefetch(p + i + j + 64);
        sums[j] += p[i + j];
      }
    for (auto& sum : sums) asm volatile("" : : "m"(sum));
  };
  on_all_threads(threads, touch);
  double best = 1e9;
  for (int i = 0; i < 5; ++i) best = std::min(best, on_all_threads(threads, read));
  munmap(memory, bytes);
  return static_cast<double>(bytes) / best / 1e9;
}

constexpr int kChains = 12;
constexpr long kTurns = 20'000'000;

#if defined(__AVX512F__)
void fma_chains(int) {
  __m512 a[kChains];
#pragma GCC unroll 16
  for (auto& x : a) x = _mm512_setzero_ps();
  __m512 b = _mm512_set1_ps(1e-9f);
  for (long i = 0; i < kTurns; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kChains; ++j) a[j] = _mm512_fmadd_ps(b, b, a[j]);
#pragma GCC unroll 16
    for (int j = 0; j < kChains; ++j) asm volatile("" : "+v"(a[j]));
  }
}
constexpr double kFmaWork = 2.0 * 16 * kChains * kTurns;
#elif defined(__AVX2__)
void fma_chains(int) {
  __m256 a[kChains];
#pragma GCC unroll 16
  for (auto& x : a) x = _mm256_setzero_ps();
  __m256 b = _mm256_set1_ps(1e-9f);
  for (long i = 0; i < kTurns; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kChains; ++j) a[j] = _mm256_fmadd_ps(b, b, a[j]);
#pragma GCC unroll 16
    for (int j = 0; j < kChains; ++j) asm volatile("" : "+x"(a[j]));
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
  for (auto& x : a) x = _mm512_setzero_ps();
  __m512bh b = (__m512bh)_mm512_set1_epi32(0x3f803f80);
  for (long i = 0; i < kTurns; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < kChains; ++j) a[j] = _mm512_dpbf16_ps(a[j], b, b);
#pragma GCC unroll 16
    for (int j = 0; j < kChains; ++j) asm volatile("" : "+v"(a[j]));
  }
}
constexpr double kBf16Work = 4.0 * 16 * kChains * kTurns;
#else
void bf16_chains(int) {}
constexpr double kBf16Work = 0;
#endif

}  // namespace

int main(int, char** arguments) {
  const int threads = std::atoi(arguments[1]);
  const double read = read_bandwidth(threads);
  const double fma = threads * kFmaWork / on_all_threads(threads, fma_chains) / 1e9;
  const double bf16 = threads * kBf16Work / on_all_threads(threads, bf16_chains) / 1e9;
  std::printf("%.2f %.1f %.1f\n", read, fma, bf16);
}
