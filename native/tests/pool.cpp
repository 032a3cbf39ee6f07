// The thread pool: every item once, callers in turn, and nobody waits for a worker that has lost its core.
#include "pool.h"

#include <atomic>
#include <thread>
#include <vector>

#include "check.h"

namespace checks {
namespace {

using octavo::pool::parallel;

void every_item_runs_once(int threads) {
  Random random(static_cast<uint64_t>(threads));
  for (int round = 0; round < 300; ++round) {
    const int64_t items = random.integer(0, 40);
    std::vector<int> seen(static_cast<size_t>(items), 0);  // plain: a race would be one of the pool's
    std::vector<int64_t> workers(static_cast<size_t>(threads), 0);
    parallel(threads, items, [&](int64_t item, int worker) {
      ++seen[static_cast<size_t>(item)];
      ++workers[static_cast<size_t>(worker)];
    });
    int64_t total = 0;
    for (const int64_t count : workers) total += count;
    bool once = total == items;
    for (const int count : seen) once = once && count == 1;
    check(once, "every item runs once", "pool", items);
  }
}

// Item 0 is held until all others are done: whoever took it might as well have been descheduled.
void a_stalled_thread_holds_up_its_own_item_alone(int threads) {
  constexpr int64_t kItems = 50;
  std::atomic<int64_t> others{0};
  parallel(threads, kItems, [&](int64_t item, int) {
    if (item != 0) {
      others.fetch_add(1);
      return;
    }
    while (others.load() != kItems - 1) std::this_thread::yield();
  });
  check(others.load() == kItems - 1, "the others do the rest", "pool", threads);
}

void callers_take_turns() {
  std::vector<std::thread> callers;
  std::atomic<int64_t> total{0};
  for (int caller = 0; caller < 3; ++caller)
    callers.emplace_back([&] {
      for (int round = 0; round < 100; ++round) {
        int64_t sum = 0;
        std::atomic<int64_t> own{0};
        parallel(3, 10, [&](int64_t item, int) { own.fetch_add(item); });
        sum += own.load();
        total.fetch_add(sum);
      }
    });
  for (std::thread& caller : callers) caller.join();
  check(total.load() == 3 * 100 * 45, "callers take turns", "pool");
}

}  // namespace

void pool() {
  for (int life = 0; life < 3; ++life) {  // workers end with the last user, and others begin with the next
    octavo::pool::retain();
    for (int threads = 1; threads <= 4; ++threads) every_item_runs_once(threads);
    for (int threads = 2; threads <= 4; ++threads) a_stalled_thread_holds_up_its_own_item_alone(threads);
    callers_take_turns();
    octavo::pool::release();
  }
}

}  // namespace checks
