// Walks over edges that score nodes by how often their rows are read. Each destination gives a share to the
// source of each of its in-edges, and a source sums the shares that it gets. features/scores/walks.py
// describes the scores; features/reference.py has the twins.
//
// Shares are whole numbers of a small unit: the order of additions changes no bit, so all threads add to one
// array, atomically, 8 bytes a node. Floats in a fixed order would need the transpose, 4 or 8 bytes an edge,
// or an array per thread. Bound by the cache misses of the additions, which are prefetched.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <optional>

#include "arguments/binding.h"
#include "threads/parallel.h"

namespace gb {
namespace {

constexpr int64_t kEdgesPerChunk = 1 << 16;
constexpr int64_t kNodesPerThread = 1 << 14;
constexpr int64_t kAhead = 16;  // edges between a prefetch and its use

// Adds to the sums of sources. A graph of one chunk has one thread, so it needs no atomic additions.
class Sums {
 public:
  Sums(int64_t* sums, int64_t num_edges) : sums_(sums), is_shared_(num_edges > kEdgesPerChunk) {}

  void prefetch(int64_t source) const { __builtin_prefetch(sums_ + source, 1); }
  void add(int64_t source, int64_t share) const {
    if (is_shared_)
      std::atomic_ref<int64_t>(sums_[source]).fetch_add(share, std::memory_order_relaxed);
    else
      sums_[source] += share;
  }
  // Like add, but leaves a sum that has reached `most`. Each thread may pass `most` once, at the same time.
  void add_below(int64_t source, int64_t share, int64_t most) const {
    if (std::atomic_ref<int64_t>(sums_[source]).load(std::memory_order_relaxed) < most) add(source, share);
  }

 private:
  int64_t* sums_;
  bool is_shared_;
};

void clear(int64_t* sums, int64_t num_nodes) {
  parallel_static(num_nodes, kNodesPerThread,
                  [=](int64_t begin, int64_t end) { std::fill(sums + begin, sums + end, int64_t{0}); });
}

// Calls body(row, begin, end) for the edges of each row that lie in a chunk. A chunk is a range of edges, so
// that several threads share a hub.
template <typename Body>
void parallel_edges(const int64_t* indptr, int64_t num_rows, int64_t num_edges, const Body& body) {
  parallel_dynamic(num_edges, kEdgesPerChunk, [&](int64_t first, int64_t last) {
    int64_t row = std::upper_bound(indptr, indptr + num_rows + 1, first) - indptr - 1;
    for (int64_t begin = first; begin < last; ++row) {
      const int64_t end = std::min(last, indptr[row + 1]);
      if (begin < end) body(row, begin, end);
      begin = end;
    }
  });
}

// indptr (num_nodes + 1,), indices (num_edges,): a CSC. shares (num_nodes,), not negative, such that no sum
// reaches 2^63; sums (num_nodes,) written: for each source, the sum of the shares of its destinations.
void push_shares(const Indptr& indptr, const Ids& indices, const Array1<const int64_t>& shares,
                 const Array1<int64_t>& sums) {
  const int64_t num_edges = indices.length(), num_nodes = rows_between(indptr, num_edges);
  need_length(shares, num_nodes);
  need_length(sums, num_nodes);
  const int64_t* ptr = indptr.data();
  const int64_t* share = shares.data();
  const Sums to(sums.data(), num_edges);
  nb::gil_scoped_release release;
  clear(sums.data(), num_nodes);
  with_ids(indices, [=](const auto* source) {
    parallel_edges(ptr, num_nodes, num_edges, [=](int64_t row, int64_t begin, int64_t end) {
      for (int64_t e = begin; e < end; ++e) {
        if (e + kAhead < num_edges) to.prefetch(source[e + kAhead]);
        to.add(source[e], share[row]);
      }
    });
  });
}

// ---- The chance that a node is drawn ----

// The chance that none of several independent draws takes a node is the product of their chances to miss it.
// So logarithms are summed. A node whose chance to be missed is e^-40 counts as in every batch.
constexpr double kUnitsPerNat = 0x1p46;
constexpr double kMostNats = 40.0;
constexpr int64_t kMostUnits = static_cast<int64_t>(kMostNats * kUnitsPerNat);  // times 1025 threads: < 2^63

int64_t units_of_missing(double chance) {
  if (!(chance < 1.0)) return kMostUnits;
  const double nats = -std::log1p(-chance);
  return nats < kMostNats ? std::llround(nats * kUnitsPerNat) : kMostUnits;
}

// The chance that at least one of `fanout` draws with replacement takes an edge that one takes with `share`.
double chance_in_draws(double share, int64_t fanout) {
  return share < 1.0 ? -std::expm1(static_cast<double>(fanout) * std::log1p(-share)) : 1.0;
}

// The way a row draws among its edges. fanout is not 0.
struct Draws {
  int64_t fanout;
  bool replace;

  // The exact chance of each edge in a row of this degree.
  double of_degree(int64_t degree) const {
    if (fanout < 0 || (!replace && degree <= fanout)) return 1.0;
    const double share = 1.0 / static_cast<double>(degree);
    return replace ? chance_in_draws(share, fanout) : static_cast<double>(fanout) * share;
  }

  // Calls f(edge, chance) for the edges of a row that is drawn by weight.
  template <typename F>
  void by_weight(const float* weight, int64_t begin, int64_t end, const F& f) const {
    double total = 0.0;
    int64_t runners = 0;
    for (int64_t e = begin; e < end; ++e) {
      total += weight[e] > 0.0f ? static_cast<double>(weight[e]) : 0.0;
      runners += weight[e] > 0.0f;
    }
    const bool takes_all = fanout < 0 || (!replace && runners <= fanout);
    const double time = takes_all || replace ? 0.0 : end_of_race(weight, begin, end, total);
    for (int64_t e = begin; e < end; ++e) {
      if (!(weight[e] > 0.0f)) continue;
      const double w = static_cast<double>(weight[e]);
      f(e, takes_all ? 1.0 : replace ? chance_in_draws(w / total, fanout) : -std::expm1(-w * time));
    }
  }

  // Without replacement the sampler takes the first `fanout` edges of a race; edge e arrives at rate
  // weight[e]. An edge's chance is near that to arrive before the time t when `fanout` arrivals are expected.
  // The expected number is concave in time, so Newton's steps from below rise to t and never pass it.
  double end_of_race(const float* weight, int64_t begin, int64_t end, double total) const {
    double time = static_cast<double>(fanout) / total;
    for (int step = 0; step < 64; ++step) {
      double missing = static_cast<double>(fanout), rate = 0.0;
      for (int64_t e = begin; e < end; ++e) {
        if (!(weight[e] > 0.0f)) continue;
        const double w = static_cast<double>(weight[e]), runs = std::exp(-w * time);
        missing -= 1.0 - runs;
        rate += w * runs;
      }
      if (!(rate > 0.0) || !(missing > 1e-12 * static_cast<double>(fanout))) break;
      time += missing / rate;
    }
    return time;
  }
};

void push_uniform(const int64_t* indptr, const Ids& indices, const double* chance, int64_t num_nodes,
                  const Draws& draws, const Sums& to) {
  const int64_t num_edges = indices.length();
  with_ids(indices, [=](const auto* source) {
    parallel_edges(indptr, num_nodes, num_edges, [=](int64_t row, int64_t begin, int64_t end) {
      if (!(chance[row] > 0.0)) return;
      const int64_t units = units_of_missing(chance[row] * draws.of_degree(indptr[row + 1] - indptr[row]));
      for (int64_t e = begin; e < end; ++e) {
        if (e + kAhead < num_edges) to.prefetch(source[e + kAhead]);
        to.add_below(source[e], units, kMostUnits);
      }
    });
  });
}

void push_weighted(const int64_t* indptr, const Ids& indices, const float* weight, const double* chance,
                   int64_t num_nodes, const Draws& draws, const Sums& to) {
  constexpr int64_t kRowsPerChunk = 256;
  with_ids(indices, [=](const auto* source) {
    parallel_dynamic(num_nodes, kRowsPerChunk, [=](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        if (!(chance[row] > 0.0)) continue;
        draws.by_weight(weight, indptr[row], indptr[row + 1], [=](int64_t e, double drawn) {
          to.add_below(source[e], units_of_missing(chance[row] * drawn), kMostUnits);
        });
      }
    });
  });
}

// One hop of the sampler, in expectation.
//
//   indptr, indices  (num_nodes + 1,), (num_edges,)  a CSC
//   weight           (num_edges,)  float32 odds of the edges, or None: all alike
//   chance           (num_nodes,)  float64, that a node draws among its in-edges, in [0, 1]
//   fanout, replace  as in SamplerConfig
//   sums             (num_nodes,)  int64, written: minus the logarithm of the chance that no draw takes the
//                                  node, draws taken as independent, in 2^-46; 40 * 2^46 or more: it is taken
//   missed           (num_nodes,)  float64, multiplied by that chance
void push_draws(const Indptr& indptr, const Ids& indices, const std::optional<Array1<const float>>& weight,
                const Array1<const double>& chance, int64_t fanout, bool replace, const Array1<int64_t>& sums,
                const Array1<double>& missed) {
  const int64_t num_edges = indices.length(), num_nodes = rows_between(indptr, num_edges);
  need_length(weight, num_edges);
  need_length(chance, num_nodes);
  need_length(sums, num_nodes);
  need_length(missed, num_nodes);
  need_count(fanout, replace ? 0 : -1, kMostItems, "fanout");
  int64_t* sum = sums.data();
  double* miss = missed.data();
  const Draws draws{fanout, replace};
  // Draws by weight have chunks of rows, so that several threads share even a graph of few edges.
  const Sums to(sum, weight ? kMostItems : num_edges);
  nb::gil_scoped_release release;
  clear(sum, num_nodes);
  if (fanout == 0) return;
  if (weight)
    push_weighted(indptr.data(), indices, weight->data(), chance.data(), num_nodes, draws, to);
  else
    push_uniform(indptr.data(), indices, chance.data(), num_nodes, draws, to);
  parallel_static(num_nodes, kNodesPerThread, [=](int64_t begin, int64_t end) {
    for (int64_t v = begin; v < end; ++v)
      if (sum[v] > 0) miss[v] *= std::exp(static_cast<double>(-std::min(sum[v], kMostUnits)) / kUnitsPerNat);
  });
}

// ids (num_ids,): nodes that a batch reads; counts (num_nodes,): 1 is added for each of them.
void count_ids(const Indptr& ids, const Array1<int64_t>& counts) {
  const int64_t num_ids = ids.length();
  const uint64_t num_nodes = static_cast<uint64_t>(counts.length());
  const int64_t* id = ids.data();
  int64_t* count = counts.data();
  bool fits = true;
  {
    nb::gil_scoped_release release;
    for (int64_t i = 0; i < num_ids; ++i) {
      if (i + kAhead < num_ids && static_cast<uint64_t>(id[i + kAhead]) < num_nodes)
        __builtin_prefetch(count + id[i + kAhead], 1);
      if (static_cast<uint64_t>(id[i]) >= num_nodes) {
        fits = false;
        break;
      }
      ++count[id[i]];
    }
  }
  need(fits, "ids must be nodes that counts has");
}

}  // namespace

void bind_scores(nb::module_& m) {
  using namespace nb::literals;
  def_native(m, "push_shares", &push_shares, "indptr"_a, "indices"_a, "shares"_a, "sums"_a);
  def_native(m, "push_draws", &push_draws, "indptr"_a, "indices"_a, "weight"_a, "chance"_a, "fanout"_a,
             "replace"_a, "sums"_a, "missed"_a);
  def_native(m, "count_ids", &count_ids, "ids"_a, "counts"_a);
}

}  // namespace gb
