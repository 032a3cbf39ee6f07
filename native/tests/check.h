// What the native tests share: counted checks, reproducible random numbers, and an array whose end the sanitizers guard.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>

#include "octavo.h"

namespace checks {

inline int passed = 0, failed = 0;

inline bool check(bool holds, const char* what, const char* isa = "", int64_t detail = 0) {
  holds ? ++passed : ++failed;
  if (!holds) std::fprintf(stderr, "FAILED: %s (%s, %lld)\n", what, isa, static_cast<long long>(detail));
  return holds;
}

// xorshift64* (Vigna, 2016)
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  uint64_t bits() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545f4914f6cdd1du;
  }
  int64_t integer(int64_t first, int64_t last) {
    return first + static_cast<int64_t>((bits() >> 11) % static_cast<uint64_t>(last - first + 1));
  }
  float real() { return static_cast<float>(static_cast<int64_t>(bits() >> 40) - (1 << 23)) / (1 << 22); }  // [-2, 2)
  std::vector<float> reals(int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = real();
    return values;
  }
  // Of a dtype of octavo.h, as bytes.
  std::vector<char> elements(int64_t count, int32_t dtype) {
    std::vector<char> data(static_cast<size_t>(count * (dtype == 0 ? 4 : 2)));
    for (int64_t i = 0; i < count; ++i) {
      const float value = real();
      uint32_t word;
      std::memcpy(&word, &value, sizeof word);
      if (dtype == 0) std::memcpy(&data[i * 4], &word, 4);
      const auto half = static_cast<uint16_t>(dtype == 1 ? word >> 16 : (word >> 16 & 0x8000u) | integer(0x3000, 0x3c00));
      if (dtype != 0) std::memcpy(&data[i * 2], &half, 2);
    }
    return data;
  }

 private:
  uint64_t state_;
};

constexpr int kThreads[] = {1, 2, 3};

struct Handles {
  octavo_context* context;
  const char* isa;

  Handles(const char* isa, int threads) : context(octavo_open(isa, threads)), isa(isa) {}
  ~Handles() { octavo_close(context); }
};

inline bool ok(int status, const char* what, const char* isa) {
  if (status != OCTAVO_OK) std::fprintf(stderr, "%s\n", octavo_last_error());
  return check(status == OCTAVO_OK, what, isa);
}

// `body` gives its results as floats; they have to be the same whatever the number of threads.
inline void same_bits(const char* what, const char* isa, const std::function<std::vector<float>(const Handles&)>& body) {
  std::vector<float> first;
  for (const int threads : kThreads) {
    const Handles handles(isa, threads);
    const std::vector<float> result = body(handles);
    if (threads == 1) first = result;
    check(result.size() == first.size() && std::memcmp(result.data(), first.data(), first.size() * sizeof(float)) == 0, what,
          isa, threads);
  }
}

void pool();
// `seeds`: how many random shapes of each kind.
void products(const char* isa, uint64_t seeds);
void sampling(const char* isa, uint64_t seeds);

}  // namespace checks
