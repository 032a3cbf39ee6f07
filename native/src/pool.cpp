#include "pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace octavo::pool {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kSpin = std::chrono::microseconds(50);  // a worker without work spins this long, then sleeps
constexpr auto kTurns = std::chrono::microseconds(5);  // more than 32 turns take: the rest of a gap was others' time or work
constexpr int kLimitShift = 32;

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Pool {
 public:
  void stop() {
    std::lock_guard<std::mutex> turn(turn_);
    {
      std::lock_guard<std::mutex> lock(sleep_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
    workers_.clear();
    cpus_.clear();
    stopping_ = false;
  }

  bool pin(std::vector<int> cpus) {
    std::lock_guard<std::mutex> turn(turn_);
    cpus_ = std::move(cpus);
    bool all = true;
    for (size_t id = 1; id <= workers_.size(); ++id) all = pin_worker(id) && all;
    return all;
  }

  void run(int threads, int64_t items, Task task, void* context) {
    std::lock_guard<std::mutex> turn(turn_);
    grow(threads);
    task_ = task;
    context_ = context;
    items_ = items;
    finished_.store(0, std::memory_order_relaxed);
    ticket_.store(static_cast<uint64_t>(threads) << kLimitShift | static_cast<uint64_t>(items));
    if (sleepers_.load() > 0) {
      {
        std::lock_guard<std::mutex> lock(sleep_);
      }  // a worker between its last look and its wait must get the call
      wake_.notify_all();
    }
    while (claim_and_run(0)) {
    }
    wait_for_workers(items);
  }

 private:
  // Where the system refuses a thread, the others do the work.
  void grow(int threads) {
    try {
      for (int id = static_cast<int>(workers_.size()) + 1; id < threads; ++id) {
        workers_.emplace_back([this, id] { work(id); });
        pin_worker(static_cast<size_t>(id));
      }
    } catch (const std::system_error&) {
    }
  }

  bool pin_worker(size_t id) {
    if (id >= cpus_.size()) return true;
#if defined(__linux__)
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpus_[id], &set);
    return pthread_setaffinity_np(workers_[id - 1].native_handle(), sizeof set, &set) == 0;
#else
    return false;
#endif
  }

  static uint64_t limit_of(uint64_t ticket) { return ticket >> kLimitShift; }
  static uint64_t unclaimed(uint64_t ticket) { return ticket & ((uint64_t{1} << kLimitShift) - 1); }

  bool has_work(int id, uint64_t ticket) const {
    return unclaimed(ticket) != 0 && static_cast<uint64_t>(id) < limit_of(ticket);
  }

  // A claimed item keeps its job alive, so the job's fields are read only after the claim.
  bool claim_and_run(int id) {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    while (has_work(id, ticket)) {
      if (ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
        task_(context_, items_ - static_cast<int64_t>(unclaimed(ticket)), id);
        finished_.fetch_add(1, std::memory_order_release);
        return true;
      }
    }
    return false;
  }

  void wait_for_workers(int64_t items) {
    for (int turn = 0; finished_.load(std::memory_order_acquire) != items; ++turn) {
      if (turn < 2000) pause();
      else std::this_thread::yield();  // a worker lost its core in the middle of an item
    }
  }

  void work(int id) {
    Clock::duration spun{0};
    Clock::time_point seen = Clock::now();
    for (int turn = 0; !stopping_.load(std::memory_order_relaxed); ++turn) {
      while (claim_and_run(id)) spun = Clock::duration{0};
      pause();
      if (turn % 32 != 0) continue;
      const Clock::time_point now = Clock::now();
      spun += std::min<Clock::duration>(now - seen, kTurns);
      seen = now;
      if (spun < kSpin) continue;
      sleep_until_work(id);
      spun = Clock::duration{0};
    }
  }

  void sleep_until_work(int id) {
    std::unique_lock<std::mutex> lock(sleep_);
    sleepers_.fetch_add(1);
    wake_.wait(lock, [&] { return stopping_ || has_work(id, ticket_.load()); });
    sleepers_.fetch_sub(1);
  }

  std::mutex turn_;  // one job at a time
  std::vector<int> cpus_;
  Task task_ = nullptr;
  void* context_ = nullptr;
  int64_t items_ = 0;
  alignas(64) std::atomic<uint64_t> ticket_{0};  // threads that may take part << 32 | items not yet claimed
  alignas(64) std::atomic<int64_t> finished_{0};
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> stopping_{false};
  std::mutex sleep_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

Pool* pool = nullptr;  // leaked at exit on purpose: sleeping workers must not meet a destroyed condition variable
int users = 0;
std::mutex users_mutex;

// The workers do not live on in a forked child: it starts with a new pool.
void after_fork_in_child() {
  new (&users_mutex) std::mutex;
  pool = new Pool;
}

}  // namespace

void retain() {
  std::lock_guard<std::mutex> lock(users_mutex);
  if (pool == nullptr) {
    pool = new Pool;
    pthread_atfork(nullptr, nullptr, after_fork_in_child);
  }
  ++users;
}

void release() {
  std::lock_guard<std::mutex> lock(users_mutex);
  if (--users == 0) pool->stop();
}

bool pin(std::vector<int> cpus) { return pool->pin(std::move(cpus)); }
void run(int threads, int64_t items, Task task, void* context) { pool->run(threads, items, task, context); }

}  // namespace octavo::pool
