// See pool.h. A caller opens one of a few places; helpers that are awake look for open ones.
#include "pool.h"

#include <omp.h>
#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <thread>

namespace zg {
namespace {

constexpr int64_t PLACES = 16;  // this many callers at once get helpers; others work alone

// How long a thread stays awake while it waits: a helper for the next call, a caller for the helpers' last pieces. Most
// waits of a decode step or a layer are shorter. A waiting thread yields its core all the time and finally sleeps, so
// that the scheduler can move a thread here that waits behind another process on its own core.
constexpr int64_t AWAKE_US = 300;

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Whether f() holds within the time that a waiting thread stays awake.
template <class F>
bool soon(F f) {
  if (f()) return true;
  const int64_t end = now_ns() + AWAKE_US * 1000;
  do {
    for (int i = 0; i < 32; ++i) {
      if (f()) return true;
      relax();
    }
    // Returns at once unless another thread waits for this core.
    std::this_thread::yield();
  } while (now_ns() < end);
  return f();
}

// Holds one caller's work at a time. One atomic word has the number of helpers inside and the flags, so that a helper
// can enter only while there is work.
struct alignas(64) Place {
  static constexpr uint32_t TAKEN = 1u << 31, OPEN = 1u << 30, ASLEEP = 1u << 29, HELPERS = ASLEEP - 1;
  std::atomic<uint32_t> state{0};
  int64_t threads = 0;
  void (*work)(void*, int64_t) = nullptr;
  void* data = nullptr;
};

struct Pool {
  Place places[PLACES];
  alignas(64) std::atomic<uint64_t> calls{0};  // number of times a place was opened
  alignas(64) std::atomic<int64_t> asleep{0};
  std::atomic<int64_t> helpers{0};
  std::mutex mutex;
  std::condition_variable called, ended;

  void add_helpers(int64_t wanted) {
    if (helpers.load(std::memory_order_relaxed) >= wanted) return;
    const std::lock_guard<std::mutex> lock(mutex);
    while (helpers < wanted) {
      const int64_t number = ++helpers;
      std::thread([this, number] { help(number); }).detach();
    }
  }

  Place* take() {
    static thread_local int64_t last = 0;
    for (int64_t i = 0; i < PLACES; ++i) {
      const int64_t at = (last + i) % PLACES;
      uint32_t free = 0;
      if (places[at].state.compare_exchange_strong(free, Place::TAKEN, std::memory_order_acquire)) {
        last = at;
        return &places[at];
      }
    }
    return nullptr;
  }

  void call(Place& place) {
    place.state.store(Place::TAKEN | Place::OPEN, std::memory_order_release);
    calls.fetch_add(1);
    if (asleep.load() == 0) return;
    { const std::lock_guard<std::mutex> lock(mutex); }
    called.notify_all();
  }

  // No helper enters any more; waits for those inside.
  void close(Place& place) {
    place.state.fetch_and(~Place::OPEN);
    const auto is_empty = [&] { return (place.state.load(std::memory_order_acquire) & Place::HELPERS) == 0; };
    if (!soon(is_empty)) {
      std::unique_lock<std::mutex> lock(mutex);
      place.state.fetch_or(Place::ASLEEP);
      ended.wait(lock, is_empty);
    }
    place.state.store(0, std::memory_order_release);
  }

  void enter(Place& place, int64_t number) {
    uint32_t state = place.state.load(std::memory_order_relaxed);
    do {
      if (!(state & Place::OPEN)) return;
    } while (!place.state.compare_exchange_weak(state, state + 1, std::memory_order_acquire));
    if (number < place.threads) place.work(place.data, number);
    const uint32_t left = place.state.fetch_sub(1, std::memory_order_acq_rel) - 1;
    if (left == (Place::TAKEN | Place::ASLEEP)) {
      { const std::lock_guard<std::mutex> lock(mutex); }
      ended.notify_all();
    }
  }

  [[noreturn]] void help(int64_t number) {
    while (true) {
      const uint64_t seen = calls.load();
      for (Place& place : places) enter(place, number);
      const auto is_called = [&] { return calls.load() != seen; };
      if (soon(is_called)) continue;
      std::unique_lock<std::mutex> lock(mutex);
      ++asleep;
      called.wait(lock, is_called);
      --asleep;
    }
  }
};

// Never destroyed: helpers sleep in it when the process ends. A forked child has no helpers and gets a new pool.
Pool& pool() {
  alignas(Pool) static char memory[sizeof(Pool)];
  static Pool* made = [] {
    pthread_atfork(nullptr, nullptr, [] { new (memory) Pool; });
    return new (memory) Pool;
  }();
  return *made;
}

}  // namespace

int64_t num_threads() { return std::min<int64_t>(omp_get_max_threads(), MOST_THREADS); }

void run_on_threads(int64_t threads, void (*work)(void*, int64_t), void* data) {
  Pool& p = pool();
  Place* place = p.take();
  if (place == nullptr) return work(data, 0);
  p.add_helpers(threads - 1);
  place->threads = threads, place->work = work, place->data = data;
  p.call(*place);
  work(data, 0);
  p.close(*place);
}

void Patience::wait() {
  if (turns_++ == 0) began_ns_ = now_ns();
  if (turns_ % 32) return relax();
  if (now_ns() - began_ns_ < AWAKE_US * 1000) {
    std::this_thread::yield();
    return;
  }
  std::this_thread::sleep_for(std::chrono::microseconds(50));
}

}  // namespace zg
