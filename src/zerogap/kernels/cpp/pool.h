// The threads of all kernels of a process.
//
// Threads take work in small pieces: a thread that loses its core to another job takes fewer, and no thread waits for
// one that has not begun. The caller always works itself; helpers join it when they are free. Results must not depend
// on which thread does what.
//
// Several threads may call kernels at once and share the helpers. A call uses up to torch.get_num_threads() threads of
// the calling thread, itself included, and fewer while helpers work for others.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

namespace zg {

constexpr int64_t MOST_THREADS = 256;

// Memory of one thread for one purpose, kept between calls: new memory would page-fault every time.
struct Buffer {
  std::vector<float> storage;
  float* floats(int64_t n) {
    if (int64_t(storage.size()) < n + 16) storage.resize(n + 16);
    return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(storage.data()) + 63) / 64 * 64);
  }
};

// Threads that a region of this caller may use: torch.get_num_threads().
int64_t num_threads();

// work(data, thread) here, as thread 0, and on up to `threads` - 1 helpers, each with a number below `threads`.
// Returns when every thread that began has ended; helpers that are busy elsewhere never begin.
void run_on_threads(int64_t threads, void (*work)(void* data, int64_t thread), void* data);

// Calls f(thread) on up to `threads` threads at once, as above.
template <class F>
void on_threads(int64_t threads, F f) {
  if (threads <= 1) return f(int64_t(0));
  run_on_threads(threads, [](void* data, int64_t thread) { (*static_cast<F*>(data))(thread); }, &f);
}

// Pieces of [0, count), a contiguous share for each thread: the next kernel finds in a core's cache what the last one
// left there. A thread that has finished its own share takes pieces of the others'.
class Shares {
 public:
  Shares(int64_t count, int64_t piece, int64_t shares) : piece_(piece), shares_(shares) {
    for (int64_t i = 0; i < shares; ++i) {
      share_[i].next.store(count * i / shares, std::memory_order_relaxed);
      share_[i].end = count * (i + 1) / shares;
    }
  }

  // f(begin, end, end of the share) for pieces until none is left.
  template <class F>
  void work(int64_t thread, F f) {
    for (int64_t i = 0; i < shares_; ++i) {
      Share& share = share_[(thread + i) % shares_];
      while (share.next.load(std::memory_order_relaxed) < share.end) {
        const int64_t begin = share.next.fetch_add(piece_, std::memory_order_relaxed);
        if (begin < share.end) f(begin, std::min(begin + piece_, share.end), share.end);
      }
    }
  }

 private:
  struct alignas(64) Share {
    std::atomic<int64_t> next;
    int64_t end;
  };
  int64_t piece_, shares_;
  Share share_[MOST_THREADS];
};

// f(begin, end) for pieces of [0, count) of at most `piece`, on all threads.
template <class F>
void for_pieces(int64_t count, int64_t piece, F f) {
  const int64_t threads = std::min(num_threads(), (count + piece - 1) / piece);
  if (threads <= 1) {
    if (count) f(int64_t(0), count);
    return;
  }
  Shares shares(count, piece, threads);
  on_threads(threads, [&](int64_t thread) {
    shares.work(thread, [&](int64_t begin, int64_t end, int64_t) { f(begin, end); });
  });
}

// f(row) for each of `count` rows; a thread takes `piece` neighbours at a time.
template <class F>
void for_rows(int64_t count, int64_t piece, F f) {
  for_pieces(count, piece, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i);
  });
}

// Waits for another thread: awake for a moment, since it has usually almost finished; then in short sleeps.
class Patience {
 public:
  void wait();

 private:
  int64_t turns_ = 0, began_ns_ = 0;
};

template <class F>
void wait_until(F is_done) {
  Patience patience;
  while (!is_done()) patience.wait();
}

}  // namespace zg
