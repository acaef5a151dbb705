// Renumbering nodes: moves the lists of an adjacency, and the values stored with them, to a new order of
// nodes.
//
//   order  (num_nodes,)          the node that comes i-th
//   indptr (num_nodes + 1,), values (num_values, ...)   the lists of all nodes, as stored
//   rows   (num_rows,)           the order, or a part of it
//     --->  out_indptr (num_rows + 1,), out (out_indptr[-1], ...)   the lists of `rows`, one after the other
//
// A graph larger than memory is renumbered by parts of its order. Ids are int32 or int64. Ids in `rows` are
// not checked: invert_order has scanned the whole order.
// features/reordering.py uses these functions. Their twins are in features/reference.py and
// graph/orders_reference.py.
//
// Lists are read at random, with prefetching, and written sequentially. Threads divide the edges evenly, and
// only input and output take memory in proportion to them. Bound by cache misses on the lists and on the new
// ids, not by instructions, so there are no variants per processor.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "arguments/binding.h"
#include "base/hugepages.h"
#include "graph/topology.h"
#include "threads/balance.h"
#include "threads/parallel.h"

namespace gb {
namespace {

constexpr int64_t kNodesPerTask = 1 << 14;
constexpr int64_t kBytesPerTask = 1 << 17;
// Prefetch distances, in lists, for the position of a list and then for the list itself.
constexpr int64_t kPlacesAhead = 48, kListsAhead = 24;
constexpr int64_t kLine = 64;

// ---- Inverting an order ----

// Returns the first position that repeats a node of an earlier one, or -1.
template <typename From, typename To>
int64_t first_repeated(const From* order, int64_t n, To* seen) {
  std::fill(seen, seen + n, To{-1});
  for (int64_t i = 0; i < n; ++i)
    if (std::exchange(seen[order[i]], To{0}) == 0) return i;
  return -1;
}

// order (num_nodes,), inverse (num_nodes,) written: inverse[order[i]] = i. Returns the first position that
// does not hold a node, or else the first that repeats one, or else -1.
int64_t invert_order(const Ids& order, const Array1<Id>& inverse) {
  const int64_t n = order.length();
  need_length(inverse, n);
  if (!is_wide(inverse)) need_count(n, 0, std::numeric_limits<int32_t>::max(), "nodes by an int32 inverse");
  nb::gil_scoped_release release;
  return with_ids(order, [&](const auto* node) {
    return with_ids(inverse, [&]<typename To>(To* place) {
      const int64_t wild = first_where_fast(n, [=](int64_t i) { return (node[i] < 0) | (node[i] >= n); });
      if (wild >= 0) return wild;
      use_huge_pages(place, n);
      // If two positions hold the same node, one of them does not find itself in `place` afterwards.
      parallel_dynamic(n, kNodesPerTask, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          std::atomic_ref<To>(place[node[i]]).store(static_cast<To>(i), std::memory_order_relaxed);
      });
      const int64_t lost = first_where(n, [=](int64_t i) { return place[node[i]] != static_cast<To>(i); });
      return lost < 0 ? int64_t{-1} : first_repeated(node, n, place);
    });
  });
}

// ---- The new indptr ----

// indptr (num_nodes + 1,), rows (num_rows,); out_indptr (num_rows + 1,) written: the prefix sum of the
// lengths of the rows' lists.
void count_lists(const Indptr& indptr, const Ids& rows, const Array1<int64_t>& out_indptr) {
  const int64_t num_rows = rows.length();
  need_length(out_indptr, num_rows + 1);
  need_count(indptr.length(), 1, kMostItems, "the length of indptr");
  const int64_t *ptr = indptr.data(), num_tasks = (num_rows + kNodesPerTask - 1) / kNodesPerTask;
  int64_t* out = out_indptr.data();
  nb::gil_scoped_release release;
  with_ids(rows, [=](const auto* row) {
    out[0] = 0;
    std::vector<int64_t> before(static_cast<size_t>(num_tasks) + 1, 0);
    const auto each_task = [=](const auto& body) {
      parallel_dynamic(num_tasks, 1, [&](int64_t first, int64_t last) {
        for (int64_t t = first; t < last; ++t)
          body(t, t * kNodesPerTask, std::min(num_rows, (t + 1) * kNodesPerTask));
      });
    };
    each_task([&](int64_t task, int64_t begin, int64_t end) {
      int64_t sum = 0;
      for (int64_t i = begin; i < end; ++i) {
        if (i + kPlacesAhead < end) __builtin_prefetch(ptr + row[i + kPlacesAhead]);
        sum += ptr[row[i] + 1] - ptr[row[i]];
        out[i + 1] = sum;
      }
      before[static_cast<size_t>(task) + 1] = sum;
    });
    for (size_t t = 1; t < before.size(); ++t) before[t] += before[t - 1];
    each_task([&](int64_t task, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) out[i + 1] += before[static_cast<size_t>(task)];
    });
  });
}

// ---- Lists ----

// Lists to move and their new places.
struct Moved {
  const int64_t* indptr;
  AnyIds rows;
  int64_t num_rows;
  const int64_t* out_indptr;

  int64_t length(int64_t row) const { return out_indptr[row + 1] - out_indptr[row]; }
  int64_t source(int64_t row) const { return indptr[rows[row]]; }
};

// Checks the lengths of lists with num_values values in total that are moved to num_out places.
Moved moved_lists(const Indptr& indptr, int64_t num_values, const Ids& rows, const Indptr& out_indptr,
                  int64_t num_out) {
  rows_between(indptr, num_values);
  need_length(out_indptr, rows.length() + 1);
  rows_between(out_indptr, num_out);
  return {indptr.data(), any_ids(rows), rows.length(), out_indptr.data()};
}

// Calls body(from, to, count) for each piece of a list within the new places [begin, end).
template <typename Body>
void walk_lists(const Moved& lists, const char* values, int64_t value_bytes, int64_t begin, int64_t end,
                const Body& body) {
  const int64_t* ends = lists.out_indptr;
  int64_t row = std::upper_bound(ends, ends + lists.num_rows + 1, begin) - ends - 1;
  for (; begin < end; ++row) {
    if (row + kPlacesAhead < lists.num_rows)
      __builtin_prefetch(lists.indptr + lists.rows[row + kPlacesAhead]);
    if (row + kListsAhead < lists.num_rows) {
      const char* list = values + lists.source(row + kListsAhead) * value_bytes;
      __builtin_prefetch(list);
      __builtin_prefetch(list + kLine);
    }
    const int64_t stop = std::min(end, ends[row + 1]);
    if (stop > begin) body(lists.source(row) + (begin - ends[row]), begin, stop - begin);
    begin = stop;
  }
}

// Like walk_lists, over all places, in parallel. Several threads may share the list of a hub.
template <typename Body>
void walk_all_lists(const Moved& lists, const void* values, int64_t value_bytes, const Body& body) {
  const int64_t grain = std::max<int64_t>(1, kBytesPerTask / std::max<int64_t>(1, value_bytes));
  parallel_dynamic(lists.out_indptr[lists.num_rows], grain, [&](int64_t begin, int64_t end) {
    walk_lists(lists, static_cast<const char*>(values), value_bytes, begin, end, body);
  });
}

// indptr (num_nodes + 1,), indices (num_edges,), rank (num_nodes,) the new id of each node; rows (num_rows,),
// out_indptr (num_rows + 1,) from count_lists; out (out_indptr[-1],) written: the sources of the rows'
// in-edges by their new ids, in the stored order or sorted.
void rename_lists(const Indptr& indptr, const Ids& indices, const Ids& rank, const Ids& rows,
                  const Indptr& out_indptr, const Array1<Id>& out, bool rising) {
  const Moved lists = moved_lists(indptr, indices.length(), rows, out_indptr, out.length());
  need_length(rank, indptr.length() - 1);
  need_dtype_of(out, indices);
  nb::gil_scoped_release release;
  with_ids(indices, [&]<typename Node>(const Node* node) {
    Node* to = static_cast<Node*>(out.data());
    use_huge_pages(to, out.length());
    with_ids(rank, [&](const auto* new_id) {
      walk_all_lists(lists, node, sizeof(Node), [=](int64_t from, int64_t place, int64_t count) {
        for (int64_t i = 0; i < count; ++i) to[place + i] = static_cast<Node>(new_id[node[from + i]]);
      });
    });
    if (!rising) return;
    parallel_rows(lists.out_indptr, lists.num_rows, 8, [=](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        std::sort(to + lists.out_indptr[row], to + lists.out_indptr[row + 1]);
    });
  });
}

// Copies the values of each list sorted by the new ids of its sources, stably.
void move_rising(const Moved& lists, const char* from, int64_t value_bytes, const AnyIds& nodes,
                 const AnyIds& rank, char* to) {
  parallel_rows(lists.out_indptr, lists.num_rows, 16, [=](int64_t begin, int64_t end) {
    std::vector<std::pair<int64_t, int64_t>> edges;
    for (int64_t row = begin; row < end; ++row) {
      edges.clear();
      for (int64_t e = lists.source(row), last = e + lists.length(row); e < last; ++e)
        edges.emplace_back(rank[nodes[e]], e);
      std::sort(edges.begin(), edges.end());
      char* place = to + lists.out_indptr[row] * value_bytes;
      for (const auto& edge : edges) {
        std::memcpy(place, from + edge.second * value_bytes, static_cast<size_t>(value_bytes));
        place += value_bytes;
      }
    }
  });
}

// indptr (num_nodes + 1,), values (num_values, width) of any dtype, one row for each list entry; rows and
// out_indptr as for rename_lists; out (out_indptr[-1], width) written. indices and rank are given if
// rename_lists sorted the lists by them, so that the values follow their edges; else both are None.
void move_lists(const Indptr& indptr, const Array<const Anything, 2>& values, const Ids& rows,
                const Indptr& out_indptr, const Array<Anything, 2>& out, const std::optional<Ids>& indices,
                const std::optional<Ids>& rank) {
  const Moved lists = moved_lists(indptr, values.num_rows(), rows, out_indptr, out.num_rows());
  need_columns(out, values.num_columns());
  need(out.element_bytes() == values.element_bytes(), "out must have elements of as many bytes as values");
  need(indices.has_value() == rank.has_value(), "indices and rank go together");
  need_length(indices, values.num_rows());
  need_length(rank, indptr.length() - 1);
  const int64_t bytes = values.num_columns() * values.element_bytes();
  const char* from = static_cast<const char*>(values.data());
  char* to = static_cast<char*>(out.data());
  if (bytes == 0) return;
  nb::gil_scoped_release release;
  use_huge_pages(to, out.num_rows() * bytes);
  if (indices) return move_rising(lists, from, bytes, any_ids(*indices), any_ids(*rank), to);
  walk_all_lists(lists, from, bytes, [=](int64_t source, int64_t place, int64_t count) {
    std::memcpy(to + place * bytes, from + source * bytes, static_cast<size_t>(count * bytes));
  });
}

}  // namespace

void bind_reorder(nb::module_& m) {
  using namespace nb::literals;
  def_native(m, "invert_order", &invert_order, "order"_a, "inverse"_a);
  def_native(m, "count_lists", &count_lists, "indptr"_a, "rows"_a, "out_indptr"_a);
  def_native(m, "rename_lists", &rename_lists, "indptr"_a, "indices"_a, "rank"_a, "rows"_a, "out_indptr"_a,
             "out"_a, "rising"_a);
  def_native(m, "move_lists", &move_lists, "indptr"_a, "values"_a, "rows"_a, "out_indptr"_a, "out"_a,
             "indices"_a, "rank"_a);
}

}  // namespace gb
