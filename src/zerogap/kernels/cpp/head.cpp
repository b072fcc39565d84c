// The head's statistics and the sampler. One function computes a chunk's (max, mass) for both, so that the
// trainer's log-prob of a token and the engine's have the same bits.
#include <algorithm>
#include <vector>

#include "pool.h"
#include "vec.h"

using namespace zg;

namespace {

constexpr float NOT_A_NUMBER = std::numeric_limits<float>::quiet_NaN();

struct Stats {
  float peak, mass, moment;  // max z, sum exp(z - max), sum exp(z - max) * (z - max)
};

inline float scaled(float logit, float temperature) { return logit / temperature; }

inline vec scaled_lanes(const float* logits, int64_t i, int64_t n, vec temperature) {
  vec z = n - i >= W ? load(logits + i) : load_partial(logits + i, int(n - i), NEG_INF);
  return div(z, temperature);
}

Stats chunk_stats(const float* logits, int64_t n, float temperature) {
  const vec T = set1(temperature);
  vec top = set1(NEG_INF);
  for (int64_t i = 0; i < n; i += W) top = vmax(top, scaled_lanes(logits, i, n, T));
  const float peak = max_lanes(top);
  if (peak == NEG_INF) {
    // vmax may drop a NaN. If any logit is finite, the sums below turn NaN; otherwise look for a NaN here.
    const bool has_nan = std::any_of(logits, logits + n, [](float x) { return std::isnan(x); });
    return {has_nan ? NOT_A_NUMBER : NEG_INF, 0.0f, 0.0f};
  }
  const vec p = set1(peak);
  vec mass = set1(0.0f), moment = set1(0.0f);
  for (int64_t i = 0; i < n; i += W) {
    vec d = sub(scaled_lanes(logits, i, n, T), p);
    vec e = exp(d);
    mass = add(mass, e);
    // e is 0 where d is -inf; the clamp avoids 0 * -inf, which is NaN.
    moment = fma(e, vmax(d, set1(-128.0f)), moment);
  }
  return {peak, sum_lanes(mass), sum_lanes(moment)};
}

inline float exp1(float x) {
  float t[W];
  store(t, zg::exp(set1(x)));
  return t[0];
}

void merge(float& peak, float& mass, float& moment, const Stats& c) {
  if (c.peak == NEG_INF) return;
  if (peak == NEG_INF) {
    peak = c.peak, mass = c.mass, moment = c.moment;
    return;
  }
  const float top = peak > c.peak ? peak : c.peak;
  const float da = peak - top, db = c.peak - top, a = exp1(da), b = exp1(db);
  moment = a * (moment + mass * da) + b * (c.moment + c.mass * db);
  mass = a * mass + b * c.mass;
  peak = top;
}

inline float log_sum_exp(float peak, float mass) { return peak + float(std::log(double(mass))); }

constexpr int64_t CHUNK = 4096;  // constants.VOCAB_CHUNK

// Logits of one row, chunk by chunk: [chunks][M][CHUNK], the last chunk packed to its own width.
struct Row {
  float* base;
  int64_t r, M, V;
  int64_t num_chunks() const { return (V + CHUNK - 1) / CHUNK; }
  int64_t width(int64_t c) const { return std::min(CHUNK, V - c * CHUNK); }
  float* chunk(int64_t c) const { return base + c * M * CHUNK + r * width(c); }
  float& at(int64_t id) const { return chunk(id / CHUNK)[id % CHUNK]; }
};

struct Candidate {
  float z;
  int32_t id;
};

inline bool before(const Candidate& a, const Candidate& b) {
  return a.z > b.z || (a.z == b.z && a.id < b.id);
}

void keep_top_k(std::vector<Candidate>& kept, int64_t k) {
  if (k >= int64_t(kept.size())) return;
  std::nth_element(kept.begin(), kept.begin() + (k - 1), kept.end(), before);
  const float edge = kept[k - 1].z;
  // All ties at the edge are kept: a choice among them would depend on the sort.
  kept.erase(std::remove_if(kept.begin(), kept.end(), [&](const Candidate& c) { return c.z < edge; }),
             kept.end());
}

double mass_of(const std::vector<Candidate>& kept, float lse) {
  double total = 0.0;
  for (const auto& c : kept) total += std::exp(double(c.z - lse));
  return total;
}

// Keeps the fewest likeliest tokens that hold a mass of `need`; at least one.
void keep_mass(std::vector<Candidate>& kept, double need, float lse) {
  std::sort(kept.begin(), kept.end(), before);
  double sum = 0.0;
  size_t n = 0;
  while (n < kept.size() && sum < need) sum += std::exp(double(kept[n++].z - lse));
  kept.resize(std::max<size_t>(n, 1));
}

// The tokens to draw from, by ascending id.
std::vector<Candidate> kept_set(const Row& row, float T, float peak, float lse, int64_t top_k, float top_p,
                                float min_p) {
  // With top_p but no top_k, tokens below (1 - top_p) / V together hold less than 1 - top_p: none is needed.
  float floor = NEG_INF;
  if (top_k < 0 && top_p < 1.0f) floor = lse + std::log((1.0 - double(top_p)) / double(row.V)) - 1e-3;
  if (min_p > 0.0f && top_k < 0 && top_p >= 1.0f) floor = peak + std::log(double(min_p)) - 1e-3;
  std::vector<Candidate> kept;
  kept.reserve(1024);
  for (int64_t c = 0; c < row.num_chunks(); ++c) {
    const float* logits = row.chunk(c);
    for (int64_t i = 0; i < row.width(c); ++i) {
      const float z = scaled(logits[i], T);
      if (z >= floor && z != NEG_INF) kept.push_back({z, int32_t(c * CHUNK + i)});
    }
  }
  if (top_k > 0) keep_top_k(kept, top_k);
  if (top_p < 1.0f) {
    // With a floor, top_p is a share of the whole vocabulary's mass, 1, not of the candidates' mass.
    const double whole = floor == NEG_INF ? mass_of(kept, lse) : 1.0;
    keep_mass(kept, double(top_p) * whole, lse);
  }
  if (min_p > 0.0f) {
    const float edge = float(std::log(double(min_p)));
    kept.erase(
        std::remove_if(kept.begin(), kept.end(), [&](const Candidate& c) { return !(c.z - peak >= edge); }),
        kept.end());
  }
  std::sort(kept.begin(), kept.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  return kept;
}

int64_t draw_kept(const std::vector<Candidate>& kept, float lse, double uniform, double total) {
  const double target = uniform * total;
  double sum = 0.0;
  for (const auto& c : kept) {
    sum += std::exp(double(c.z - lse));
    if (sum > target) return c.id;
  }
  return kept.back().id;
}

// Exactly 0 if no token of the chunk has mass: the likeliest token's mass is the same exp1.
inline double chunk_mass(const Stats& s, float lse) { return double(s.mass) * double(exp1(s.peak - lse)); }

// Inverse CDF over the whole vocabulary: chunk by mass, then 16 tokens by mass, then the token.
int64_t draw_full(const Row& row, float T, const std::vector<Stats>& stats, float lse, double uniform) {
  double total = 0.0;
  for (const auto& s : stats) total += chunk_mass(s, lse);
  double target = uniform * total;
  int64_t c = 0, last = 0;
  for (; c < int64_t(stats.size()); ++c) {
    const double m = chunk_mass(stats[c], lse);
    if (m > 0.0) last = c;
    if (target < m) break;
    target -= m;
  }
  if (c == int64_t(stats.size())) c = last, target = std::numeric_limits<double>::max();
  const float* logits = row.chunk(c);
  const int64_t n = row.width(c);
  const vec t = set1(T), l = set1(lse);
  int64_t fallback = -1;
  for (int64_t i = 0; i < n; i += W) {
    float e[W];
    store(e, zg::exp(sub(scaled_lanes(logits, i, n, t), l)));
    double block = 0.0;
    for (int j = 0; j < W; ++j) block += e[j];
    if (target >= block) {
      target -= block;
      for (int j = W - 1; j >= 0; --j)
        if (e[j] > 0.0f) {
          fallback = c * CHUNK + i + j;
          break;
        }
      continue;
    }
    for (int j = 0; j < W; ++j) {
      if (e[j] > 0.0f) fallback = c * CHUNK + i + j;
      if (target < e[j]) return c * CHUNK + i + j;
      target -= e[j];
    }
    break;
  }
  return fallback;  // rounding left a remainder past the last token: take the last one that has mass
}

// Replaces the logits of a row by factor(log-prob) * probability.
template <class Factor>
inline void gradient_row(float* row, int64_t n, vec temperature, vec lse, Factor factor) {
  for (int64_t i = 0; i < n; i += W) {
    const vec log_prob = sub(scaled_lanes(row, i, n, temperature), lse);
    const vec d = mul(factor(log_prob), zg::exp(log_prob));
    n - i >= W ? store(row + i, d) : store_partial(row + i, d, int(n - i));
  }
}

int64_t argmax(const Row& row) {
  int64_t best = 0;
  float top = NEG_INF;
  for (int64_t c = 0; c < row.num_chunks(); ++c) {
    const float* logits = row.chunk(c);
    for (int64_t i = 0; i < row.width(c); ++i)
      if (logits[i] > top) top = logits[i], best = c * CHUNK + i;
  }
  return best;
}

}  // namespace

extern "C" {

// Adds one chunk [R, n] to the running statistics.
void zg_add_chunk(const float* logits, int64_t R, int64_t n, const float* temperature, float* peak, float* mass,
                  float* moment) {
  for_rows(R, 1, [&](int64_t r) {
    merge(peak[r], mass[r], moment[r], chunk_stats(logits + r * n, n, temperature[r]));
  });
}

void zg_log_sum_exp(const float* peak, const float* mass, float* lse, int64_t R) {
  for (int64_t r = 0; r < R; ++r) lse[r] = log_sum_exp(peak[r], mass[r]);
}

// d(sum_r grad_entropy[r] * entropy[r] - grad[r] * log_sum_exp[r]) / d logits of one chunk, in place; without the
// entropy's term if its pointers are null.
void zg_logits_gradient(float* logits, int64_t R, int64_t n, const float* temperature, const float* lse,
                        const float* grad, const float* entropy, const float* grad_entropy) {
  for_rows(R, 1, [&](int64_t r) {
    float* row = logits + r * n;
    const vec T = set1(temperature[r]), l = set1(lse[r]), g = set1(-(grad[r] / temperature[r]));
    if (entropy) {
      const vec H = set1(entropy[r]), h = set1(-(grad_entropy[r] / temperature[r]));
      gradient_row(row, n, T, l, [&](vec log_prob) {
        // The probability is 0 where the clamp acts, and 0 * -inf would be NaN.
        return fma(h, add(vmax(log_prob, set1(-128.0f)), H), g);
      });
    } else {
      gradient_row(row, n, T, l, [&](vec) { return g; });
    }
  });
}

// logits: [chunks][M][CHUNK]; draw r reads row which[r]. Edits change logits in place, so only one draw may read a row
// with edits. A row without a distribution gets token -1 and NaN.
void zg_sample(float* logits, const int64_t* which, int64_t R, int64_t M, int64_t V, const float* temperature,
               const uint8_t* greedy, const int32_t* top_k, const float* top_p, const float* min_p,
               const double* uniform, const int64_t* edit_offsets, const int32_t* edit_ids,
               const float* edit_scale, const float* edit_add, int64_t* token, float* log_prob,
               float* kept_log_mass) {
  for_rows(R, 1, [&](int64_t r) {
    const Row row{logits, which[r], M, V};
    for (int64_t e = edit_offsets[r]; e < edit_offsets[r + 1]; ++e) {
      if (edit_ids[e] >= V) continue;
      float& x = row.at(edit_ids[e]);
      x = (x > 0.0f ? x / edit_scale[e] : x * edit_scale[e]) + edit_add[e];
    }
    const float T = temperature[r];
    std::vector<Stats> stats(row.num_chunks());
    float peak = NEG_INF, mass = 0.0f, moment = 0.0f;
    for (int64_t c = 0; c < row.num_chunks(); ++c) {
      stats[c] = chunk_stats(row.chunk(c), row.width(c), T);
      merge(peak, mass, moment, stats[c]);
    }
    const float lse = log_sum_exp(peak, mass);
    if (!std::isfinite(lse)) {  // NaN, infinity or nothing left to draw: the caller raises
      token[r] = -1, log_prob[r] = kept_log_mass[r] = NOT_A_NUMBER;
      return;
    }
    kept_log_mass[r] = 0.0f;
    const bool cuts = (top_k[r] > 0 && top_k[r] < V) || top_p[r] < 1.0f || min_p[r] > 0.0f;
    if (greedy[r]) {
      token[r] = argmax(row);
    } else if (cuts) {
      const auto kept = kept_set(row, T, peak, lse, top_k[r], top_p[r], min_p[r]);
      const double total = mass_of(kept, lse);
      token[r] = draw_kept(kept, lse, uniform[r], total);
      kept_log_mass[r] = float(std::log(total));
    } else {
      token[r] = draw_full(row, T, stats, lse, uniform[r]);
    }
    log_prob[r] = scaled(row.at(token[r]), T) - lse;
    if (greedy[r]) kept_log_mass[r] = log_prob[r];
  });
}

}  // extern "C"
