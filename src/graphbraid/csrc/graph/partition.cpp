// Dividing a graph among ranks: packs nodes by their loads, places nodes one after the other beside their
// neighbours, and splits the in-edges of a part into those from its own nodes and those from other parts'.
// distributed/ uses these functions; their twins are in distributed/partitioning/reference.py.
//
//   part_of (num_nodes,) int32   the part that owns each node, in [0, num_parts); -1 before it is placed
//   indptr, indices              a CSC: the in-edges of the nodes
//
// Packing and placing run on one thread: each step depends on the last. Bound by cache misses on part_of and
// the nodes' columns: one text for every processor. The doubles are those of the twin: this file is compiled
// without fused multiply-add.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <optional>
#include <queue>
#include <tuple>
#include <vector>

#include "arguments/binding.h"
#include "threads/balance.h"
#include "threads/parallel.h"

namespace gb {
namespace {

constexpr int64_t kMostParts = int64_t{1} << 20;
constexpr int64_t kAhead = 16;  // edges between a prefetch and its use
constexpr int64_t kEdgeWork = 1;

// ---- Packing by load ----

// order (num_items,) the items in the order they are packed, loads (num_items,) not negative; part_of
// (num_items,) written. Each item goes to the part with the least load so far. Among parts of equal load it
// goes to the one with the fewest items, and among these to the first.
void pack_by_load(const Array1<const int64_t>& order, const Array1<const int64_t>& loads, int64_t num_parts,
                  const Array1<int32_t>& part_of) {
  const int64_t num_items = order.length();
  need_length(loads, num_items);
  need_length(part_of, num_items);
  need_count(num_parts, 1, kMostParts, "num_parts");
  const int64_t *item = order.data(), *load = loads.data();
  int32_t* part = part_of.data();
  nb::gil_scoped_release release;
  using Place = std::tuple<int64_t, int64_t, int32_t>;  // load, number of items, part
  std::priority_queue<Place, std::vector<Place>, std::greater<>> places;
  for (int32_t p = 0; p < num_parts; ++p) places.emplace(0, 0, p);
  for (int64_t i = 0; i < num_items; ++i) {
    auto [sum, count, p] = places.top();
    places.pop();
    part[item[i]] = p;
    places.emplace(sum + load[item[i]], count + 1, p);
  }
}

// ---- Placing nodes beside their neighbours ----

// Finds the part with the least load, the first of equals, by a tournament over the parts.
class Lightest {
 public:
  Lightest(const int64_t* load, int64_t num_parts) : load_(load) {
    while (width_ < num_parts) width_ *= 2;
    winner_.assign(2 * width_, -1);
    for (int64_t p = 0; p < num_parts; ++p) winner_[width_ + p] = static_cast<int32_t>(p);
    for (int64_t at = width_ - 1; at > 0; --at) play(at);
  }

  int32_t part() const { return winner_[1]; }
  void update(int64_t part) {
    for (int64_t at = (width_ + part) / 2; at > 0; at /= 2) play(at);
  }

 private:
  void play(int64_t at) {
    const int32_t a = winner_[2 * at], b = winner_[2 * at + 1];
    // -1 fills the places right of all parts, so a < 0 only where b < 0.
    winner_[at] = b < 0 || load_[a] <= load_[b] ? a : b;
  }

  const int64_t* load_;
  int64_t width_ = 1;
  std::vector<int32_t> winner_;
};

// Fennel (Tsourakakis et al., WSDM 2014), gamma = 3/2, for loads of at most `most` instead of numbers of
// nodes. A node goes to the part with the most weight of its neighbours less price * load * sqrt(load of the
// part). It leaves its present part first, so that a second pass improves on the first.
template <typename Node>
class Placing {
 public:
  Placing(int64_t most, double price, int32_t* part_of, int64_t* part_loads, int64_t num_parts)
      : most_(most),
        price_(price),
        part_of_(part_of),
        part_loads_(part_loads),
        gathered_(num_parts, 0.0),
        lightest_(part_loads, num_parts) {}

  // Places node v with this load and these neighbours; weight may be null.
  // Returns whether the node's part changed.
  bool place(int64_t v, int64_t load, const Node* neighbour, const float* weight, int64_t count) {
    const int32_t before = part_of_[v];
    if (before >= 0) add(before, -load);
    gather(v, neighbour, weight, count);
    const int32_t after = best(before, load);
    for (const int32_t p : met_) gathered_[p] = 0.0;
    met_.clear();
    add(after, load);
    part_of_[v] = after;
    return after != before;
  }

 private:
  void add(int32_t part, int64_t load) {
    part_loads_[part] += load;
    lightest_.update(part);
  }

  void gather(int64_t v, const Node* neighbour, const float* weight, int64_t count) {
    for (int64_t e = 0; e < count; ++e) {
      if (e + kAhead < count) __builtin_prefetch(part_of_ + neighbour[e + kAhead]);
      const int32_t p = part_of_[neighbour[e]];
      if (p < 0 || neighbour[e] == v) continue;
      if (gathered_[p] == 0.0) met_.push_back(p);
      gathered_[p] += weight == nullptr ? 1.0 : static_cast<double>(weight[e]);
    }
  }

  // The present part is tried first, so the node stays if no part is better.
  int32_t best(int32_t before, int64_t load) const {
    const int32_t lightest = lightest_.part();
    int32_t found = -1;
    double most = 0.0;
    const auto consider = [&](int32_t p) {
      if (part_loads_[p] + load > most_) return;
      const double worth =
          gathered_[p] - price_ * static_cast<double>(load) * std::sqrt(static_cast<double>(part_loads_[p]));
      if (found >= 0 && worth <= most) return;
      found = p;
      most = worth;
    };
    if (before >= 0) consider(before);
    for (const int32_t p : met_) consider(p);
    consider(lightest);
    if (found >= 0) return found;
    return before >= 0 ? before : lightest;  // no part has room
  }

  int64_t most_;
  double price_;
  int32_t* part_of_;
  int64_t* part_loads_;
  std::vector<double> gathered_;
  std::vector<int32_t> met_;
  Lightest lightest_;
};

// nodes (num_rows,) int64, placed in this order; indptr (num_rows + 1,) and indices (num_edges,): their rows;
// weight (num_edges,) not negative, or None for 1; loads (num_rows,) not negative; part_of (num_nodes,) and
// part_loads (num_parts,) int64 updated. Returns how many nodes have another part than before.
int64_t place_nodes(const Indptr& nodes, const Indptr& indptr, const Ids& indices,
                    const std::optional<Array1<const float>>& weight, const Indptr& loads,
                    const Array1<int32_t>& part_of, const Array1<int64_t>& part_loads, int64_t most,
                    double price) {
  const int64_t num_rows = rows_between(indptr, indices.length()), num_parts = part_loads.length();
  need_length(nodes, num_rows);
  const int64_t *node = nodes.data(), *ptr = indptr.data(), *load = loads.data();
  need_length(weight, indices.length());
  need_length(loads, num_rows);
  need_count(num_parts, 1, kMostParts, "the length of part_loads");
  const float* w = data_or_null(weight);
  nb::gil_scoped_release release;
  return with_ids(indices, [&]<typename Node>(const Node* source) {
    Placing<std::remove_const_t<Node>> placing(most, price, part_of.data(), part_loads.data(), num_parts);
    int64_t moved = 0;
    for (int64_t i = 0; i < num_rows; ++i) {
      moved += placing.place(node[i], load[i], source + ptr[i], w == nullptr ? nullptr : w + ptr[i],
                             ptr[i + 1] - ptr[i]);
    }
    return moved;
  });
}

// The number of in-edges of the nodes [first, first + num_rows) that come from another part than the node's.
int64_t count_cut(const Indptr& indptr, const Ids& indices, int64_t first,
                  const Array1<const int32_t>& part_of) {
  const int64_t num_rows = rows_between(indptr, indices.length());
  need_count(first, 0, part_of.length() - num_rows, "first");
  const int64_t* ptr = indptr.data();
  const int32_t *part = part_of.data(), *own = part + first;
  nb::gil_scoped_release release;
  std::atomic<int64_t> cut{0};
  with_ids(indices, [&](const auto* node) {
    parallel_rows(ptr, num_rows, kEdgeWork, [&](int64_t begin, int64_t end) {
      int64_t count = 0;
      for (int64_t i = begin; i < end; ++i)
        for (int64_t e = ptr[i]; e < ptr[i + 1]; ++e) count += part[node[e]] != own[i];
      cut.fetch_add(count, std::memory_order_relaxed);
    });
  });
  return cut.load();
}

// ---- Local and remote edges of a part ----

constexpr int64_t kRowsPerTask = 1024;

// rows (num_rows,) int64, the nodes of `part`; local_indptr, remote_indptr (num_rows + 1,) written: in-edges
// from nodes of the part, and from other nodes; is_halo (num_nodes,) uint8: set to 1 for these other nodes.
void count_split(const Indptr& indptr, const Ids& indices, const Array1<const int32_t>& part_of,
                 const Indptr& rows, int64_t part, const Array1<int64_t>& local_indptr,
                 const Array1<int64_t>& remote_indptr, const Array1<uint8_t>& is_halo) {
  const int64_t num_nodes = rows_between(indptr, indices.length()), num_rows = rows.length();
  need_length(part_of, num_nodes);
  need_length(local_indptr, num_rows + 1);
  need_length(remote_indptr, num_rows + 1);
  need_length(is_halo, num_nodes);
  const int64_t *ptr = indptr.data(), *row = rows.data();
  const int32_t* owner = part_of.data();
  int64_t *local = local_indptr.data(), *remote = remote_indptr.data();
  uint8_t* halo = is_halo.data();
  nb::gil_scoped_release release;
  with_ids(indices, [&](const auto* node) {
    parallel_dynamic(num_rows, kRowsPerTask, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        int64_t count = 0;
        for (int64_t e = ptr[row[i]]; e < ptr[row[i] + 1]; ++e) {
          if (owner[node[e]] == part) continue;
          ++count;
          std::atomic_ref<uint8_t>(halo[node[e]]).store(1, std::memory_order_relaxed);
        }
        remote[i + 1] = count;
        local[i + 1] = ptr[row[i] + 1] - ptr[row[i]] - count;
      }
    });
  });
  local[0] = remote[0] = 0;
  for (int64_t i = 0; i < num_rows; ++i) {
    local[i + 1] += local[i];
    remote[i + 1] += remote[i];
  }
}

// column (num_nodes,) the local row of each node of the part, and the halo row of each node of its halo;
// local (local_indptr[-1],) and remote (remote_indptr[-1],) written: the sources' columns, in the stored
// order; local_edge and remote_edge, int64, written unless None: each edge's position in `indices`.
void write_split(const Indptr& indptr, const Ids& indices, const Array1<const int32_t>& part_of,
                 const Indptr& rows, int64_t part, const Ids& column, const Indptr& local_indptr,
                 const Indptr& remote_indptr, const Array1<Id>& local, const Array1<Id>& remote,
                 const std::optional<Array1<int64_t>>& local_edge,
                 const std::optional<Array1<int64_t>>& remote_edge) {
  const int64_t num_nodes = rows_between(indptr, indices.length()), num_rows = rows.length();
  need_length(part_of, num_nodes);
  need_length(column, num_nodes);
  need_length(local_indptr, num_rows + 1);
  need_length(remote_indptr, num_rows + 1);
  rows_between(local_indptr, local.length());
  rows_between(remote_indptr, remote.length());
  need_dtype_of(column, indices);
  need_dtype_of(local, indices);
  need_dtype_of(remote, indices);
  need(local_edge.has_value() == remote_edge.has_value(), "local_edge and remote_edge go together");
  need_length(local_edge, local.length());
  need_length(remote_edge, remote.length());
  const int64_t *ptr = indptr.data(), *row = rows.data();
  const int32_t* owner = part_of.data();
  const int64_t *local_ptr = local_indptr.data(), *remote_ptr = remote_indptr.data();
  const bool keeps_edges = local_edge.has_value();  // an empty array has no address
  int64_t *local_id = data_or_null(local_edge), *remote_id = data_or_null(remote_edge);
  nb::gil_scoped_release release;
  with_ids(indices, [&]<typename Node>(const Node* node) {
    using Plain = std::remove_const_t<Node>;
    const Plain* place = static_cast<const Plain*>(column.data());
    Plain *to_local = static_cast<Plain*>(local.data()), *to_remote = static_cast<Plain*>(remote.data());
    parallel_dynamic(num_rows, kRowsPerTask, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        int64_t at = local_ptr[i], far = remote_ptr[i];
        const int64_t last = ptr[row[i] + 1];
        for (int64_t e = ptr[row[i]]; e < last; ++e) {
          if (e + kAhead < last) __builtin_prefetch(place + node[e + kAhead]);
          const bool is_local = owner[node[e]] == part;
          (is_local ? to_local[at] : to_remote[far]) = place[node[e]];
          if (keeps_edges) (is_local ? local_id[at] : remote_id[far]) = e;
          (is_local ? at : far) += 1;
        }
      }
    });
  });
}

}  // namespace

void bind_partition(nb::module_& m) {
  using namespace nb::literals;
  def_native(m, "pack_by_load", &pack_by_load, "order"_a, "loads"_a, "num_parts"_a, "part_of"_a);
  def_native(m, "place_nodes", &place_nodes, "nodes"_a, "indptr"_a, "indices"_a, "weight"_a, "loads"_a,
             "part_of"_a, "part_loads"_a, "most"_a, "price"_a);
  def_native(m, "count_cut", &count_cut, "indptr"_a, "indices"_a, "first"_a, "part_of"_a);
  def_native(m, "count_split", &count_split, "indptr"_a, "indices"_a, "part_of"_a, "rows"_a, "part"_a,
             "local_indptr"_a, "remote_indptr"_a, "is_halo"_a);
  def_native(m, "write_split", &write_split, "indptr"_a, "indices"_a, "part_of"_a, "rows"_a, "part"_a,
             "column"_a, "local_indptr"_a, "remote_indptr"_a, "local"_a, "remote"_a, "local_edge"_a,
             "remote_edge"_a);
}

}  // namespace gb
