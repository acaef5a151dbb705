// Makes an order of the nodes in which neighbours stand close, and counts the reads of rows that a cache
// answers in an order. graph/orders.py returns the order; fullgraph/lowering/locality.py decides by the
// reads. The twins are community_order in graph/orders_reference.py and cached_reads in
// fullgraph/lowering/locality.py.
//
// Bound by cache misses on the nodes' states, not by instructions: one text for every processor, no variants.
// The doubles are those of the twin: this file is compiled without fused multiply-add.
#include <nanobind/stl/pair.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "arguments/binding.h"

namespace gb {
namespace {

// Communities by incremental aggregation (Arai et al., "Rabbit Order", IPDPS 2016). Nodes take turns, those
// of few edges first. Each joins the neighbouring community that raises the modularity most. Unlike the
// paper's, it runs on one thread, so that the order is always the same, and reads in-edges alone.
//
// A node that joined another keeps its edges to communities in a list. The other node takes the lists of the
// nodes that joined it when its own turn comes. All lists are in one pool. When it is full, the lists that
// were taken are removed: it never holds more than twice the edges.
template <typename Node>
class Communities {
 public:
  Communities(const int64_t* indptr, const Node* indices, int64_t num_nodes)
      : indptr_(indptr), indices_(indices), num_nodes_(num_nodes), state_(num_nodes), lists_(num_nodes) {
    for (int64_t v = 0; v < num_nodes; ++v) {
      state_[v].root = static_cast<Node>(v);
      state_[v].strength = static_cast<double>(degree(v));
    }
  }

  // Writes the nodes, community by community: a node, then the nodes that joined it, each with its own.
  void order(int64_t* out) {
    std::vector<Node> visits(num_nodes_);
    by_degree(visits);
    const double total = static_cast<double>(indptr_[num_nodes_]);
    pool_.reserve(std::max<int64_t>(indptr_[num_nodes_] / 4, 1024));
    for (int64_t i = 0; i < num_nodes_; ++i) visit(visits, i, total);
    std::vector<Node>().swap(visits);
    std::vector<Edge>().swap(pool_);
    write(out);
  }

 private:
  using Weight = std::make_unsigned_t<Node>;
  static constexpr Node kNone = -1;

  struct Edge {
    Node community;
    Weight weight;
  };
  struct State {
    Node root;            // the next node on the way to the community, which is the node that has its own id
    Weight gathered = 0;  // weight of the edges from this community to the node whose turn it is
    double strength;      // number of edges that end in the community
  };
  struct List {
    int64_t begin = 0;
    Weight count = 0;
    Node first_child = kNone, next_sibling = kNone;
    bool had_turn = false, joined = false;
  };

  int64_t degree(int64_t v) const { return indptr_[v + 1] - indptr_[v]; }

  void by_degree(std::vector<Node>& visits) const {
    std::iota(visits.begin(), visits.end(), Node{0});
    std::stable_sort(visits.begin(), visits.end(), [this](Node a, Node b) { return degree(a) < degree(b); });
  }

  Node community(Node v) {
    while (state_[v].root != v) {
      state_[v].root = state_[state_[v].root].root;  // path halving: later searches are shorter
      v = state_[v].root;
    }
    return v;
  }

  void gather(Node own, Node neighbour, Weight weight) {
    const Node found = community(neighbour);
    if (found == own) return;
    Weight& sum = state_[found].gathered;
    if (sum == 0) met_.push_back(found);
    sum =
        weight > std::numeric_limits<Weight>::max() - sum ? std::numeric_limits<Weight>::max() : sum + weight;
  }

  void visit(const std::vector<Node>& visits, int64_t turn, double total) {
    constexpr int64_t kAhead = 16;
    const Node v = visits[turn];
    const int64_t end = indptr_[v + 1];
    met_.clear();
    for (int64_t e = indptr_[v]; e < end; ++e) {
      if (e + kAhead < end) __builtin_prefetch(&state_[indices_[e + kAhead]]);
      gather(v, indices_[e], 1);
    }
    for (Node child = lists_[v].first_child; child != kNone; child = lists_[child].next_sibling) {
      List& list = lists_[child];
      for (int64_t i = list.begin; i < list.begin + static_cast<int64_t>(list.count); ++i)
        gather(v, pool_[i].community, pool_[i].weight);
      list.count = 0;
    }
    lists_[v].had_turn = true;
    const Node best = best_community(v, total);
    if (best != kNone) join(visits, turn, v, best);
    for (const Node met : met_) state_[met].gathered = 0;
  }

  // The community whose joining raises the modularity most, the first of equals; kNone if none raises it.
  Node best_community(Node v, double total) const {
    Node best = kNone;
    double most = 0;
    for (const Node met : met_) {
      const double gain =
          static_cast<double>(state_[met].gathered) * total - state_[v].strength * state_[met].strength;
      if (gain > most) {
        most = gain;
        best = met;
      }
    }
    return best;
  }

  void join(const std::vector<Node>& visits, int64_t turn, Node v, Node best) {
    state_[v].root = best;
    state_[best].strength += state_[v].strength;
    lists_[v].joined = true;
    lists_[v].next_sibling = lists_[best].first_child;
    lists_[best].first_child = v;
    if (lists_[best].had_turn) return;  // its turn is over, so nobody would read the list
    make_room(visits, turn, met_.size());
    lists_[v].begin = static_cast<int64_t>(pool_.size());
    lists_[v].count = static_cast<Weight>(met_.size());
    for (const Node met : met_) pool_.push_back({met, state_[met].gathered});
  }

  // Lists are in the pool in the order of their nodes' turns, so that each moves to the front, over no other.
  void make_room(const std::vector<Node>& visits, int64_t turn, size_t count) {
    if (pool_.size() + count <= pool_.capacity()) return;
    int64_t end = 0;
    for (int64_t i = 0; i < turn; ++i) {
      List& list = lists_[visits[i]];
      if (list.count == 0) continue;
      const auto from = pool_.begin() + list.begin;
      std::copy(from, from + static_cast<int64_t>(list.count), pool_.begin() + end);
      list.begin = end;
      end += static_cast<int64_t>(list.count);
    }
    pool_.resize(end);
    if (2 * (pool_.size() + count) > pool_.capacity()) pool_.reserve(2 * pool_.capacity() + count);
  }

  void write(int64_t* out) const {
    std::vector<Node> open;
    for (int64_t v = 0; v < num_nodes_; ++v) {
      if (lists_[v].joined) continue;
      open.push_back(static_cast<Node>(v));
      while (!open.empty()) {
        const Node next = open.back();
        open.pop_back();
        *out++ = next;
        for (Node c = lists_[next].first_child; c != kNone; c = lists_[c].next_sibling) open.push_back(c);
      }
    }
  }

  const int64_t* indptr_;
  const Node* indices_;
  int64_t num_nodes_;
  std::vector<State> state_;
  std::vector<List> lists_;
  std::vector<Edge> pool_;
  std::vector<Node> met_;
};

// A cache of rows: sets of 16 places, which evict the least recently read row. A hash gives each row its set.
// Only one set in `every` is simulated, and its share of hits stands for all.
class RowCache {
 public:
  RowCache(int64_t capacity, int64_t every)
      : num_sets_(std::max<uint64_t>(1, capacity / kWays)),
        kept_sets_(std::max<uint64_t>(1, num_sets_ / every)),
        rows_(kept_sets_ * kWays, int64_t{-1}) {}

  void read(int64_t row) {
    const uint64_t hash = (static_cast<uint64_t>(row) * 0x9E3779B97F4A7C15u) >> 32;
    const uint64_t set = (hash * num_sets_) >> 32;
    if (set >= kept_sets_) return;
    ++reads;
    int64_t* rows = rows_.data() + set * kWays;  // most recently read first
    int place = 0;
    while (place < kWays && rows[place] != row) ++place;
    hits += place < kWays;
    for (int i = std::min(place, kWays - 1); i > 0; --i) rows[i] = rows[i - 1];
    rows[0] = row;
  }

  int64_t reads = 0, hits = 0;

 private:
  static constexpr int kWays = 16;
  uint64_t num_sets_, kept_sets_;
  std::vector<int64_t> rows_;
};

// indptr (num_nodes + 1,), indices (num_edges,) in [0, num_nodes): a CSC; out (num_nodes,) written: the nodes
void community_order(const Indptr& indptr, const Ids& indices, const Array1<int64_t>& out) {
  const int64_t num_nodes = rows_between(indptr, indices.length());
  need_length(out, num_nodes);
  nb::gil_scoped_release release;
  with_ids(indices, [&]<typename Node>(const Node* nodes) {
    Communities<Node>(indptr.data(), nodes, num_nodes).order(out.data());
  });
}

// indptr, indices: a CSC; nodes (num_rows,): the rows that are summed, in this order, None for all as they
// stand. Returns how many reads of source rows were simulated and how many a cache of `capacity` rows
// answers.
std::pair<int64_t, int64_t> cached_reads(const Indptr& indptr, const Ids& indices, const OptionalIds& nodes,
                                         int64_t capacity, int64_t every) {
  const int64_t num_all = rows_between(indptr, indices.length());
  const int64_t* ptr = indptr.data();
  const int64_t num_rows = nodes ? nodes->length() : num_all;
  need_count(capacity, 0, kMostItems, "capacity");
  need_count(every, 1, kMostItems, "every");
  const int64_t* ids = data_or_null(nodes);
  nb::gil_scoped_release release;
  RowCache cache(capacity, every);
  with_ids(indices, [&](const auto* source) {
    for (int64_t r = 0; r < num_rows; ++r) {
      const int64_t v = ids == nullptr ? r : ids[r];
      for (int64_t e = ptr[v]; e < ptr[v + 1]; ++e) cache.read(source[e]);
    }
  });
  return {cache.reads, cache.hits};
}

}  // namespace

void bind_locality(nb::module_& m) {
  using namespace nb::literals;
  def_native(m, "community_order", &community_order, "indptr"_a, "indices"_a, "out"_a);
  def_native(m, "cached_reads", &cached_reads, "indptr"_a, "indices"_a, "nodes"_a, "capacity"_a, "every"_a);
}

}  // namespace gb
