// Edge list to CSC, and the transpose. Both keep a fixed order: by destination, then by source, then as
// given.
#include "graph/topology.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "arguments/binding.h"

namespace gb {
namespace {

// One edge between the two passes of coo_to_csc: its destination and its position in the input.
#pragma pack(push, 4)
template <typename Node, typename Count>
struct Halfway {
  Node destination;
  Count id;
};
#pragma pack(pop)

// Refuses more edges than 32-bit counters can count, unless `wide`.
void need_wide(bool wide, int64_t num_edges) {
  if (!wide) need_count(num_edges, 0, std::numeric_limits<uint32_t>::max(), "edges with 32-bit counters");
}

// Fewer edges are not worth waking a thread for.
constexpr int64_t kEdgesWorthAThread = 1 << 18;

const auto kNoCursor = [](int64_t) { return 0; };

template <typename T>
int64_t first_unsorted(const T* values, int64_t n) {
  return first_where(n - 1, [=](int64_t i) { return values[i] > values[i + 1]; });
}

// Likewise to be written. Both are for graphs of 2^32 edges or more, which need no code for each width.
struct AnyWrittenIds {
  using Node = int64_t;
  void* data;
  bool wide;
  void put(int64_t i, int64_t id) const {
    if (wide)
      static_cast<int64_t*>(data)[i] = id;
    else
      static_cast<int32_t*>(data)[i] = static_cast<int32_t>(id);
  }
  explicit operator bool() const { return data != nullptr; }
};
// Ids of a width that the compiler knows.
template <typename Id>
struct WrittenIds {
  using Node = Id;
  Id* data;
  void put(int64_t i, int64_t id) const { data[i] = static_cast<Id>(id); }
  explicit operator bool() const { return data != nullptr; }
};

// Edges that are already in rising order of source, as PyG's usually are, need the pass by destination alone.
template <typename Count, typename In, typename Out>
void csc_from_sorted_sources(In src, In dst, int64_t num_edges, int64_t num_dst, int64_t* indptr, Out indices,
                             int64_t* perm) {
  counting_scatter<Count>(
      num_edges, num_dst, indptr, [=](int64_t e) { return dst[e]; }, kNoCursor,
      [=](int64_t e, int64_t place, int) {
        indices.put(place, src[e]);
        if (perm != nullptr) perm[place] = e;
      });
}

// Two passes, by source and then by destination. Between them an edge is its destination and its position, or
// its destination alone if positions are not wanted.
template <typename Count, typename In, typename Out>
void csc_from_any(In src, In dst, int64_t num_edges, int64_t num_src, int64_t num_dst, int64_t* indptr,
                  Out indices, int64_t* perm) {
  using Node = typename Out::Node;
  std::unique_ptr<int64_t[]> by_source(new int64_t[num_src + 1]);
  const auto row_cursor = [&](int64_t first) { return RowCursor(by_source.get(), num_src, first); };
  const auto source = [=](int64_t e) { return src[e]; };
  if (perm == nullptr) {
    std::unique_ptr<Node[]> half(new Node[num_edges]);
    use_huge_pages(half.get(), num_edges);
    counting_scatter<Count>(num_edges, num_src, by_source.get(), source, kNoCursor,
                            [&](int64_t e, int64_t place, int) { half[place] = static_cast<Node>(dst[e]); });
    counting_scatter<Count>(
        num_edges, num_dst, indptr, [&](int64_t i) { return half[i]; }, row_cursor,
        [=](int64_t i, int64_t place, RowCursor& row) { indices.put(place, row.row_of(i)); });
    return;
  }
  std::unique_ptr<Halfway<Node, Count>[]> half(new Halfway<Node, Count>[num_edges]);
  use_huge_pages(half.get(), num_edges);
  counting_scatter<Count>(num_edges, num_src, by_source.get(), source, kNoCursor,
                          [&](int64_t e, int64_t place, int) {
                            half[place] = {static_cast<Node>(dst[e]), static_cast<Count>(e)};
                          });
  counting_scatter<Count>(
      num_edges, num_dst, indptr, [&](int64_t i) { return half[i].destination; }, row_cursor,
      [&](int64_t i, int64_t place, RowCursor& row) {
        indices.put(place, row.row_of(i));
        perm[place] = half[i].id;
      });
}

// src, dst  (num_edges,)    int32 or int64, checked to lie in [0, num_src) and [0, num_dst)
// indptr    (num_dst + 1,)  written
// indices   (num_edges,)    int32 or int64, written: sources, rising within each destination
// perm      (num_edges,)    written unless None: position of each edge in the input, rising among equal edges
// wide: count in 64 bits, for 2^32 edges or more
void coo_to_csc(const Ids& src, const Ids& dst, int64_t num_src, const Array1<int64_t>& indptr,
                const Array1<Id>& indices, const std::optional<Array1<int64_t>>& perm, bool wide) {
  const int64_t num_edges = src.length(), num_dst = indptr.length() - 1;
  const int64_t most_nodes = is_wide(indices) ? kMostItems : std::numeric_limits<int32_t>::max();
  need_dtype_of(dst, src);
  need_length(dst, num_edges);
  need_count(num_src, 0, most_nodes, "num_src");
  need_count(num_dst, 0, most_nodes, "the length of indptr less one");
  need_length(indices, num_edges);
  need_length(perm, num_edges);
  need_wide(wide, num_edges);
  int64_t* p = data_or_null(perm);
  nb::gil_scoped_release release;
  use_huge_pages(p, num_edges);
  with_ids(indices, [&](auto* nodes) { use_huge_pages(nodes, num_edges); });
  with_ids(src, [&](const auto* s) {
    const auto* d = static_cast<decltype(s)>(dst.data());
    const bool sorted = first_unsorted(s, num_edges) < 0;
    const auto build = [&](auto count, auto from, auto to, auto nodes) {
      using Count = decltype(count);
      sorted ? csc_from_sorted_sources<Count>(from, to, num_edges, num_dst, indptr.data(), nodes, p)
             : csc_from_any<Count>(from, to, num_edges, num_src, num_dst, indptr.data(), nodes, p);
    };
    if (wide)
      return build(int64_t{}, any_ids(src), any_ids(dst), AnyWrittenIds{indices.data(), is_wide(indices)});
    with_ids(indices, [&](auto* nodes) { build(uint32_t{}, s, d, WrittenIds{nodes}); });
  });
}

// The transpose for one dtype of ids and one of positions; see transpose_csc.
template <typename Count, typename In, typename Out, typename Perm>
void transpose(const int64_t* indptr, In sources, int64_t num_edges, int64_t num_dst, int64_t num_src,
               int64_t* out_indptr, Out destinations, Perm perm) {
  const auto key = [=](int64_t e) { return sources[e]; };
  const auto row_cursor = [=](int64_t first) { return RowCursor(indptr, num_dst, first); };
  const auto emit = [=](int64_t e, int64_t place, RowCursor& row) {
    destinations.put(place, row.row_of(e));
    if (perm) perm.put(place, e);
  };
  counting_scatter<Count>(num_edges, num_src, out_indptr, key, row_cursor, emit);
}

// indptr (num_dst + 1,), indices (num_edges,) in [0, num_src): a CSC. Written: out_indptr (num_src + 1,),
// out_indices (num_edges,) the destinations of each source's out-edges in rising order, and unless None perm
// (num_edges,), int32 or int64, where each stood in `indices`.
void transpose_csc(const Indptr& indptr, const Ids& indices, const Array1<int64_t>& out_indptr,
                   const Array1<Id>& out_indices, const std::optional<Array1<Id>>& perm, bool wide) {
  const int64_t num_edges = indices.length(), num_dst = rows_between(indptr, num_edges);
  const int64_t num_src = out_indptr.length() - 1;
  need_count(num_src, 0, kMostItems, "the length of out_indptr less one");
  need_dtype_of(out_indices, indices);
  need_length(out_indices, num_edges);
  need_length(perm, num_edges);
  if (perm && !is_wide(*perm))
    need_count(num_edges, 0, std::numeric_limits<int32_t>::max(), "edges by an int32 perm");
  need_wide(wide, num_edges);
  const auto run = [&](auto count, auto sources, auto destinations, auto positions) {
    transpose<decltype(count)>(indptr.data(), sources, num_edges, num_dst, num_src, out_indptr.data(),
                               destinations, positions);
  };
  const bool wide_perm = !perm || is_wide(*perm);
  void* const positions = perm ? perm->data() : nullptr;
  nb::gil_scoped_release release;
  with_ids(out_indices, [&](auto* destinations) { use_huge_pages(destinations, num_edges); });
  if (perm) with_ids(*perm, [&](auto* place) { use_huge_pages(place, num_edges); });
  if (wide)
    return run(int64_t{}, any_ids(indices), AnyWrittenIds{out_indices.data(), is_wide(out_indices)},
               AnyWrittenIds{positions, wide_perm});
  with_ids(indices, [&]<typename Node>(const Node* sources) {
    const WrittenIds<Node> destinations{static_cast<Node*>(out_indices.data())};
    wide_perm ? run(uint32_t{}, sources, destinations, WrittenIds{static_cast<int64_t*>(positions)})
              : run(uint32_t{}, sources, destinations, WrittenIds{static_cast<int32_t*>(positions)});
  });
}

// The position of the first id outside [0, bound), or -1.
int64_t first_out_of_range(const Ids& ids, int64_t bound) {
  const int64_t n = ids.length();
  nb::gil_scoped_release release;
  if (bound <= 0) return n > 0 ? 0 : -1;
  return with_ids(ids, [=]<typename T>(const T* values) {
    using U = std::make_unsigned_t<T>;
    // As an unsigned number, a negative id is beyond any bound.
    const U most = static_cast<U>(std::min<int64_t>(bound - 1, std::numeric_limits<T>::max()));
    return first_where_fast(n, [=](int64_t i) { return static_cast<U>(values[i]) > most; });
  });
}

// The position of the first value below `least`, or -1.
int64_t first_below(const Array1<const int64_t>& values, int64_t least) {
  const int64_t* v = values.data();
  const int64_t n = values.length();
  nb::gil_scoped_release release;
  return first_where_fast(n, [=](int64_t i) { return v[i] < least; });
}

// The first row v with indptr[v] > indptr[v + 1], or -1.
int64_t first_fall(const Indptr& indptr) {
  const int64_t* ptr = indptr.data();
  const int64_t num_rows = indptr.length() - 1;
  nb::gil_scoped_release release;
  return first_where_fast(num_rows, [=](int64_t v) { return ptr[v] > ptr[v + 1]; });
}

// The position of the first value that is not finite, or that is below `least`; else -1.
int64_t first_unsound_weight(const Array1<const float>& values, bool may_be_negative) {
  const float* v = values.data();
  const int64_t n = values.length();
  constexpr float kMost = std::numeric_limits<float>::max();
  const float least = may_be_negative ? -kMost : 0.0f;
  nb::gil_scoped_release release;
  return first_where_fast(n, [=](int64_t i) {
    return !(v[i] >= least) | !(v[i] <= kMost);  // false for NaN
  });
}

// The position of the first edge that comes before its predecessor in the order (destination, source), or -1.
int64_t first_out_of_order(const Ids& src, const Ids& dst) {
  const int64_t n = src.length();
  need_dtype_of(dst, src);
  need_length(dst, n);
  nb::gil_scoped_release release;
  const int64_t before = with_ids(src, [&](const auto* s) {
    const auto* d = static_cast<decltype(s)>(dst.data());
    return first_where(n - 1,
                       [=](int64_t i) { return d[i] > d[i + 1] || (d[i] == d[i + 1] && s[i] > s[i + 1]); });
  });
  return before < 0 ? -1 : before + 1;
}

// The first row whose sources do not rise, or -1.
int64_t first_unsorted_row(const Indptr& indptr, const Ids& indices) {
  const int64_t num_rows = rows_between(indptr, indices.length());
  const int64_t* ptr = indptr.data();
  nb::gil_scoped_release release;
  return with_ids(indices, [=](const auto* source) {
    return first_where(num_rows, [=](int64_t v) {
      for (int64_t e = ptr[v] + 1; e < ptr[v + 1]; ++e)
        if (source[e - 1] > source[e]) return true;
      return false;
    });
  });
}

// out (num_edges,) written: the row in whose range each position lies.
void fill_rows(const Indptr& indptr, const Array1<Id>& out) {
  const int64_t num_edges = out.length(), num_rows = rows_between(indptr, num_edges);
  const int64_t* ptr = indptr.data();
  nb::gil_scoped_release release;
  with_ids(out, [=]<typename T>(T* rows) {
    parallel_static(num_edges, kEdgesWorthAThread, [=](int64_t begin, int64_t end) {
      RowCursor row(ptr, num_rows, begin);
      for (int64_t e = begin; e < end; ++e) rows[e] = static_cast<T>(row.row_of(e));
    });
  });
}

// out (num_nodes,) written: 1 / sqrt(loop + number of the node's in-edges), or 0 if the sum is 0. Nodes after
// the rows have no in-edges. If loop is not 0, stored self-loops do not count: loop replaces them. Returns
// whether there are any.
bool gcn_scale(const Indptr& indptr, const Ids& indices, double loop, const Array1<float>& out) {
  const int64_t num_rows = rows_between(indptr, indices.length());
  need_count(out.length(), num_rows, kMostItems, "the length of out");
  const int64_t *ptr = indptr.data(), num_nodes = out.length();
  std::atomic<bool> found = false;
  float* scale = out.data();
  nb::gil_scoped_release release;
  with_ids(indices, [&](const auto* source) {
    parallel_static(num_nodes, kEdgesWorthAThread, [&](int64_t begin, int64_t end) {
      for (int64_t v = begin; v < end; ++v) {
        int64_t degree = v < num_rows ? ptr[v + 1] - ptr[v] : 0;
        if (loop != 0 && degree > 0) {
          const int64_t own = std::count(source + ptr[v], source + ptr[v + 1], v);
          degree -= own;
          if (own > 0) found = true;
        }
        const float total = static_cast<float>(degree) + static_cast<float>(loop);
        scale[v] = total == 0 ? 0.0f : 1.0f / std::sqrt(total);
      }
    });
  });
  return found;
}

// rows (num_edges,) in rising order, in [0, num_rows); indptr (num_rows + 1,) written: where each row begins.
void rows_to_indptr(const Ids& rows, const Array1<int64_t>& indptr) {
  const int64_t num_rows = indptr.length() - 1, num_edges = rows.length();
  need_count(num_rows, 0, kMostItems, "the length of indptr less one");
  int64_t* ptr = indptr.data();
  with_ids(rows, [=](const auto* row) {
    if (num_edges > 0) {
      need_count(row[0], 0, num_rows - 1, "rows[0]");
      need_count(row[num_edges - 1], 0, num_rows - 1, "rows[-1]");
    }
    nb::gil_scoped_release release;
    // Edge e opens the rows after that of edge e - 1, up to its own; "edge" num_edges opens all the rest.
    parallel_static(num_edges + 1, kEdgesWorthAThread, [=](int64_t begin, int64_t end) {
      for (int64_t e = begin; e < end; ++e) {
        const int64_t first = e == 0 ? 0 : static_cast<int64_t>(row[e - 1]) + 1;
        const int64_t last = e == num_edges ? num_rows : static_cast<int64_t>(row[e]);
        for (int64_t r = first; r <= last; ++r) ptr[r] = e;
      }
    });
  });
}

// All relations of a small batch in one call: to each its lists, as coo_to_csc makes them. Of a list that is
// ordered by destination, rows keep their order of sources, unless there is an edge_type.
//
//   lists      (2, num_edges) of each relation; or one, with edge_type (num_edges,), the relation of each
//   edge ends       the node types of each relation's sources and destinations hops       of each node type
//   the number of nodes up to each hop, of which the last has all indptr     (num_dst + 1,) of each relation,
//   one after the other;  indices  likewise
//
// Returns each relation's number of edges, and whether the edges into the nodes of a hop come from these and
// the next hop alone; nothing if an id or a relation is out of range. Bound by Python where it is not used.
using EdgeList = Array<const int64_t, 2, Layout::kAny>;
std::optional<std::tuple<std::vector<int64_t>, bool>> few_edges(std::vector<EdgeList> lists,
                                                                const std::vector<std::pair<int, int>>& ends,
                                                                const std::vector<std::vector<int64_t>>& hops,
                                                                const OptionalIds& edge_type,
                                                                const Array1<int64_t>& indptr,
                                                                const Array1<int32_t>& indices) {
  const size_t num_relations = ends.size();
  need(lists.size() == (edge_type ? 1 : num_relations), "there is a list for each relation");
  const auto last_type = static_cast<int64_t>(hops.size()) - 1;
  for (const std::vector<int64_t>& of_type : hops) {
    need(!of_type.empty() && of_type.size() == hops[0].size(), "each type has nodes up to each hop");
    need_count(of_type.back(), 0, std::numeric_limits<int32_t>::max(), "the number of nodes");
  }
  int64_t num_edges = 0, num_rows = 0;
  for (EdgeList& list : lists) {
    list.take("lists");
    need_length(list, 2);
    num_edges += list.num_columns();
  }
  for (const auto& [source, destination] : ends) {
    need_count(source, 0, last_type, "a source's type");
    need_count(destination, 0, last_type, "a destination's type");
    num_rows += hops[destination].back() + 1;
  }
  need_length(indices, num_edges);
  need_length(indptr, num_rows);
  need_length(edge_type, num_edges);
  const auto each_edge = [&](const auto& edge) {
    for (size_t l = 0; l < lists.size(); ++l) {
      const int64_t *source = lists[l].data(), *destination = source + lists[l].stride(0);
      for (int64_t e = 0; e < lists[l].num_columns(); ++e) {
        const int64_t relation = edge_type ? edge_type->data()[e] : static_cast<int64_t>(l);
        const int64_t place = e * lists[l].stride(1);
        if (!edge(static_cast<size_t>(relation), source[place], destination[place])) return false;
      }
    }
    return true;
  };
  // Counts of rows; each stands one place late, so that they become the begins of rows.
  std::vector<int64_t*> begins;
  int64_t* next_begin = indptr.data();
  for (const auto& one : ends) {
    begins.push_back(next_begin);
    next_begin += hops[one.second].back() + 1;
  }
  std::fill_n(indptr.data(), num_rows, 0);
  std::vector<int64_t> counts(num_relations, 0), last(num_relations, 0);
  std::vector<bool> is_sorted(num_relations, !edge_type);
  bool are_closed = true;
  const bool are_known = each_edge([&](size_t relation, int64_t source, int64_t destination) {
    if (relation >= num_relations) return false;
    const std::vector<int64_t>&from = hops[ends[relation].first], &to = hops[ends[relation].second];
    if (source < 0 || source >= from.back() || destination < 0 || destination >= to.back()) return false;
    size_t hop = 0;
    while (destination >= to[hop]) ++hop;
    if (hop + 1 < from.size() && source >= from[hop + 1]) are_closed = false;
    if (destination < last[relation]) is_sorted[relation] = false;
    last[relation] = destination;
    ++counts[relation];
    ++begins[relation][destination + 1];
    return true;
  });
  if (!are_known) return std::nullopt;
  std::vector<int32_t*> sources;
  int32_t* next_sources = indices.data();
  for (size_t r = 0; r < num_relations; next_sources += counts[r++]) {
    sources.push_back(next_sources);
    for (int64_t v = 0; v < hops[ends[r].second].back(); ++v) begins[r][v + 1] += begins[r][v];
  }
  std::vector<int64_t> places(indptr.data(), indptr.data() + num_rows);
  each_edge([&](size_t relation, int64_t source, int64_t destination) {
    int64_t& place = places[begins[relation] - indptr.data() + destination];
    sources[relation][place++] = static_cast<int32_t>(source);
    return true;
  });
  for (size_t r = 0; r < num_relations; ++r)
    for (int64_t v = 0; !is_sorted[r] && v < hops[ends[r].second].back(); ++v)
      std::sort(sources[r] + begins[r][v], sources[r] + begins[r][v + 1]);
  return std::tuple(std::move(counts), are_closed);
}

// out (num_rows, num_cols), zeros on entry, gets the CSR's values added.
void csr_to_dense(const Indptr& indptr, const Array1<const int32_t>& indices,
                  const Array1<const float>& values, const Array2<float>& out) {
  const int64_t num_rows = rows_between(indptr, indices.length()), num_cols = out.num_columns();
  need_length(values, indices.length());
  need_length(out, num_rows);
  const int64_t* ptr = indptr.data();
  const int32_t* column = indices.data();
  const float* value = values.data();
  float* dense = out.data();
  nb::gil_scoped_release release;
  constexpr int64_t kRowsPerTask = 256;
  parallel_dynamic(num_rows, kRowsPerTask, [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t i = ptr[r]; i < ptr[r + 1]; ++i) dense[r * num_cols + column[i]] += value[i];
  });
}

}  // namespace

void bind_topology(nb::module_& m) {
  using namespace nb::literals;
  def_native(m, "coo_to_csc", &coo_to_csc, "src"_a, "dst"_a, "num_src"_a, "indptr"_a, "indices"_a, "perm"_a,
             "wide"_a);
  def_native(m, "transpose_csc", &transpose_csc, "indptr"_a, "indices"_a, "out_indptr"_a, "out_indices"_a,
             "perm"_a, "wide"_a);
  def_native(m, "first_out_of_range", &first_out_of_range, "ids"_a, "bound"_a);
  def_native(m, "first_below", &first_below, "values"_a, "least"_a);
  def_native(m, "first_fall", &first_fall, "indptr"_a);
  def_native(m, "first_unsound_weight", &first_unsound_weight, "values"_a, "may_be_negative"_a);
  def_native(m, "first_out_of_order", &first_out_of_order, "src"_a, "dst"_a);
  def_native(m, "first_unsorted_row", &first_unsorted_row, "indptr"_a, "indices"_a);
  def_native(m, "fill_rows", &fill_rows, "indptr"_a, "out"_a);
  def_native(m, "gcn_scale", &gcn_scale, "indptr"_a, "indices"_a, "loop"_a, "out"_a);
  def_native(m, "rows_to_indptr", &rows_to_indptr, "rows"_a, "indptr"_a);
  def_native(m, "few_edges", &few_edges, "lists"_a, "ends"_a, "hops"_a, "edge_type"_a.none(), "indptr"_a,
             "indices"_a);
  def_native(m, "csr_to_dense", &csr_to_dense, "indptr"_a, "indices"_a, "values"_a, "out"_a);
}

}  // namespace gb
