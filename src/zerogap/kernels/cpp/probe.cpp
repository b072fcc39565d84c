// The two limits of a roofline: fused multiply-adds per second from registers alone, and bytes per second read from
// memory. No kernel's result depends on them; benchmarks compare kernels with them.
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "vec.h"

using namespace zg;

namespace {

// Enough independent sums to hide the latency of two multiply-adders, and few enough to stay in registers.
#if defined(__AVX512F__)
constexpr int SUMS = 12;
#else
constexpr int SUMS = 6;
#endif

constexpr int STREAMS = 4;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// x = x / 2 + 1 / 2 has the fixed point 1: no overflow, no denormal numbers, whatever the number of rounds.
float multiply_add_rounds(int64_t rounds, float start) {
  const vec half = set1(0.5f);
  vec sums[SUMS];
  for (int i = 0; i < SUMS; ++i) sums[i] = set1(start + float(i));
  for (int64_t round = 0; round < rounds; ++round)
    for (int i = 0; i < SUMS; ++i) sums[i] = fma(sums[i], half, half);
  vec total = sums[0];
  for (int i = 1; i < SUMS; ++i) total = add(total, sums[i]);
  return sum_lanes(total);
}

// STREAMS runs of `part` floats side by side: several keep the memory busier than one.
float sum_streams(const float* x, int64_t part) {
  vec sums[STREAMS];
  for (int s = 0; s < STREAMS; ++s) sums[s] = set1(0.0f);
  for (int64_t i = 0; i < part; i += W)
    for (int s = 0; s < STREAMS; ++s) sums[s] = add(sums[s], load(x + s * part + i));
  return sum_lanes(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

}  // namespace

extern "C" {

// GFLOP/s of `threads` threads that each do `rounds` rounds; *sink keeps the compiler from removing the work.
double zg_fma_peak(int64_t rounds, int64_t threads, float* sink) {
  double seconds = 0.0;
  float total = 0.0f;
#pragma omp parallel num_threads(threads) reduction(+ : total)
  {
    total += multiply_add_rounds(rounds / 16, 2.0f);  // lets the processor's clock settle
#pragma omp barrier
    const Clock::time_point start = Clock::now();
    total += multiply_add_rounds(rounds, 2.0f);
    const double mine = seconds_since(start);
#pragma omp critical
    seconds = std::max(seconds, mine);
  }
  *sink = total;
  return 2.0 * W * SUMS * double(rounds) * double(threads) / seconds / 1e9;
}

// Best GB/s (10^9 bytes) of `samples` rounds in which `threads` threads sum a buffer of n floats, four streams per
// thread, from huge pages if the system has them; 0 if the buffer cannot be allocated.
double zg_read_bandwidth(int64_t n, int64_t samples, int64_t threads, float* sink) {
  constexpr size_t HUGE_PAGE = size_t(1) << 21;
  const int64_t part = n / (threads * STREAMS * W) * W, length = part * threads * STREAMS;
  const size_t bytes = (length * sizeof(float) + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
  float* x = static_cast<float*>(std::aligned_alloc(HUGE_PAGE, bytes));
  if (x == nullptr) return 0.0;
#if defined(__linux__)
  madvise(x, bytes, MADV_HUGEPAGE);
#endif
#pragma omp parallel for num_threads(threads)
  for (int64_t i = 0; i < length; ++i) x[i] = 1.0f;
  double best = 0.0;
  float total = 0.0f;
  for (int64_t sample = 0; sample < samples; ++sample) {
    const Clock::time_point start = Clock::now();
#pragma omp parallel num_threads(threads) reduction(+ : total)
    total += sum_streams(x + omp_get_thread_num() * STREAMS * part, part);
    best = std::max(best, double(length * sizeof(float)) / seconds_since(start) / 1e9);
  }
  *sink = total;
  std::free(x);
  return best;
}

}  // extern "C"
