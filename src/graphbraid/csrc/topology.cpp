// Edge list to CSC, and the transpose. Both keep a fixed order: by destination, then by source, then as
// given.
#include "topology.h"

#include <nanobind/stl/optional.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <type_traits>

#include "arrays.h"

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

// Whether positions of edges go into 64-bit counters; 32 bits must suffice where they do not.
void need_wide(bool wide, int64_t num_edges) {
  if (!wide) need_count(num_edges, 0, std::numeric_limits<uint32_t>::max(), "edges with 32-bit counters");
}

const auto kNoCursor = [](int64_t) { return 0; };

template <typename T>
int64_t first_unsorted(const T* values, int64_t n) {
  return first_where(n - 1, [=](int64_t i) { return values[i] > values[i + 1]; });
}

// Edges already in rising order of source (as PyG's usually are) need only the pass by destination.
template <typename In, typename Node, typename Count>
void csc_from_sorted_sources(const In* src, const In* dst, int64_t num_edges, int64_t num_dst,
                             int64_t* indptr, Node* indices, int64_t* perm) {
  counting_scatter<Count>(
      num_edges, num_dst, indptr, [=](int64_t e) { return dst[e]; }, kNoCursor,
      [=](int64_t e, int64_t place, int) {
        indices[place] = static_cast<Node>(src[e]);
        if (perm != nullptr) perm[place] = e;
      });
}

// Two passes, by source and then by destination; between them an edge is a destination and its position, or,
// when the positions are not wanted, a destination alone.
template <typename In, typename Node, typename Count>
void csc_from_any(const In* src, const In* dst, int64_t num_edges, int64_t num_src, int64_t num_dst,
                  int64_t* indptr, Node* indices, int64_t* perm) {
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
        [=](int64_t i, int64_t place, RowCursor& row) { indices[place] = static_cast<Node>(row.row_of(i)); });
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
        indices[place] = static_cast<Node>(row.row_of(i));
        perm[place] = half[i].id;
      });
}

// src, dst  (num_edges,)    int32 or int64, checked to lie in [0, num_src) and [0, num_dst)
// indptr    (num_dst + 1,)  written
// indices   (num_edges,)    int32 or int64, written: sources, rising within each destination
// perm      (num_edges,)    written unless None: position of each edge in the input, rising among equal edges
// wide: count in 64 bits, for 2^32 edges or more
template <typename In, typename Node>
void coo_to_csc(Array1<const In> src, Array1<const In> dst, int64_t num_src, Array1<int64_t> indptr,
                Array1<Node> indices, std::optional<Array1<int64_t>> perm, bool wide) {
  const int64_t num_edges = src.size(), num_dst = static_cast<int64_t>(indptr.size()) - 1;
  constexpr int64_t kMostNodes = std::min<int64_t>(std::numeric_limits<Node>::max(), kMostItems);
  need_length(dst, num_edges, "dst");
  need_count(num_src, 0, kMostNodes, "num_src");
  need_count(num_dst, 0, kMostNodes, "the length of indptr less one");
  need_length(indices, num_edges, "indices");
  need_length(perm, num_edges, "perm");
  need_wide(wide, num_edges);
  const In *s = src.data(), *d = dst.data();
  int64_t* p = perm ? perm->data() : nullptr;
  nb::gil_scoped_release release;
  use_huge_pages(indices.data(), num_edges);
  use_huge_pages(p, num_edges);
  const bool sorted = first_unsorted(s, num_edges) < 0;
  if (sorted && wide) {
    csc_from_sorted_sources<In, Node, int64_t>(s, d, num_edges, num_dst, indptr.data(), indices.data(), p);
  } else if (sorted) {
    csc_from_sorted_sources<In, Node, uint32_t>(s, d, num_edges, num_dst, indptr.data(), indices.data(), p);
  } else if (wide) {
    csc_from_any<In, Node, int64_t>(s, d, num_edges, num_src, num_dst, indptr.data(), indices.data(), p);
  } else {
    csc_from_any<In, Node, uint32_t>(s, d, num_edges, num_src, num_dst, indptr.data(), indices.data(), p);
  }
}

// indptr (num_dst + 1,), indices (num_edges,) in [0, num_src): a CSC. Written: out_indptr (num_src + 1,),
// out_indices (num_edges,) the destinations of each source's out-edges in rising order, and unless None perm
// (num_edges,), int32 or int64, where each stood in `indices`.
template <typename Node, typename Perm>
void transpose_csc(Array1<const int64_t> indptr, Array1<const Node> indices, Array1<int64_t> out_indptr,
                   Array1<Node> out_indices, std::optional<Array1<Perm>> perm, bool wide) {
  const int64_t num_edges = indices.size(), num_dst = rows_between(indptr, num_edges);
  const int64_t num_src = static_cast<int64_t>(out_indptr.size()) - 1;
  need_count(num_src, 0, kMostItems, "the length of out_indptr less one");
  need_length(out_indices, num_edges, "out_indices");
  need_length(perm, num_edges, "perm");
  if (perm) need_count(num_edges, 0, std::numeric_limits<Perm>::max(), "edges by a perm of this dtype");
  need_wide(wide, num_edges);
  const Node* sources = indices.data();
  Node* destinations = out_indices.data();
  Perm* p = perm ? perm->data() : nullptr;
  const auto key = [=](int64_t e) { return sources[e]; };
  const auto row_cursor = [&](int64_t first) { return RowCursor(indptr.data(), num_dst, first); };
  const auto emit = [=](int64_t e, int64_t place, RowCursor& row) {
    destinations[place] = static_cast<Node>(row.row_of(e));
    if (p != nullptr) p[place] = static_cast<Perm>(e);
  };
  nb::gil_scoped_release release;
  use_huge_pages(destinations, num_edges);
  use_huge_pages(p, num_edges);
  if (wide) {
    counting_scatter<int64_t>(num_edges, num_src, out_indptr.data(), key, row_cursor, emit);
  } else {
    counting_scatter<uint32_t>(num_edges, num_src, out_indptr.data(), key, row_cursor, emit);
  }
}

// Position of the first id outside [0, bound), or -1.
template <typename T>
int64_t first_out_of_range(Array1<const T> ids, int64_t bound) {
  using U = std::make_unsigned_t<T>;
  const T* values = ids.data();
  const int64_t n = ids.size();
  nb::gil_scoped_release release;
  if (bound <= 0) return n > 0 ? 0 : -1;
  // As unsigned numbers negative ids are beyond any bound.
  const U most = static_cast<U>(std::min<int64_t>(bound - 1, std::numeric_limits<T>::max()));
  return first_where_fast(n, [=](int64_t i) { return static_cast<U>(values[i]) > most; });
}

// Position of the first value below `least`, or -1.
int64_t first_below(Array1<const int64_t> values, int64_t least) {
  const int64_t* v = values.data();
  nb::gil_scoped_release release;
  return first_where_fast(values.size(), [=](int64_t i) { return v[i] < least; });
}

// The first row v with indptr[v] > indptr[v + 1], or -1.
int64_t first_fall(Array1<const int64_t> indptr) {
  const int64_t* ptr = indptr.data();
  nb::gil_scoped_release release;
  return first_where_fast(static_cast<int64_t>(indptr.size()) - 1,
                          [=](int64_t v) { return ptr[v] > ptr[v + 1]; });
}

// Position of the first value that is not finite or, where asked for, negative; or -1.
int64_t first_unsound_weight(Array1<const float> values, bool may_be_negative) {
  const float* v = values.data();
  const float least = may_be_negative ? -std::numeric_limits<float>::max() : 0.0f;
  nb::gil_scoped_release release;
  return first_where_fast(values.size(), [=](int64_t i) {
    return !(v[i] >= least) | !(v[i] <= std::numeric_limits<float>::max());  // false for NaN
  });
}

// Position of the first edge that stands before its predecessor in the order (destination, source), or -1.
template <typename T>
int64_t first_out_of_order(Array1<const T> src, Array1<const T> dst) {
  need_length(dst, static_cast<int64_t>(src.size()), "dst");
  const T *s = src.data(), *d = dst.data();
  nb::gil_scoped_release release;
  const int64_t before = first_where(static_cast<int64_t>(src.size()) - 1, [=](int64_t i) {
    return d[i] > d[i + 1] || (d[i] == d[i + 1] && s[i] > s[i + 1]);
  });
  return before < 0 ? -1 : before + 1;
}

// The first row whose sources do not rise, or -1.
template <typename T>
int64_t first_unsorted_row(Array1<const int64_t> indptr, Array1<const T> indices) {
  const int64_t num_rows = rows_between(indptr, static_cast<int64_t>(indices.size()));
  const int64_t* ptr = indptr.data();
  const T* source = indices.data();
  nb::gil_scoped_release release;
  return first_where(num_rows, [=](int64_t v) {
    for (int64_t e = ptr[v] + 1; e < ptr[v + 1]; ++e)
      if (source[e - 1] > source[e]) return true;
    return false;
  });
}

// out (num_edges,): the row each position of indptr's ranges lies in.
template <typename T>
void fill_rows(Array1<const int64_t> indptr, Array1<T> out) {
  const int64_t num_edges = out.size(), num_rows = rows_between(indptr, num_edges);
  const int64_t* ptr = indptr.data();
  T* rows = out.data();
  nb::gil_scoped_release release;
  parallel_static(num_edges, 1 << 18, [=](int64_t begin, int64_t end) {
    RowCursor row(ptr, num_rows, begin);
    for (int64_t e = begin; e < end; ++e) rows[e] = static_cast<T>(row.row_of(e));
  });
}

// rows (num_edges,) in rising order, in [0, num_rows); indptr (num_rows + 1,) written: where each row begins.
template <typename T>
void rows_to_indptr(Array1<const T> rows, Array1<int64_t> indptr) {
  const int64_t num_rows = static_cast<int64_t>(indptr.size()) - 1, num_edges = rows.size();
  need_count(num_rows, 0, kMostItems, "the length of indptr less one");
  if (num_edges > 0) {
    need_count(static_cast<int64_t>(rows.data()[0]), 0, num_rows - 1, "rows[0]");
    need_count(static_cast<int64_t>(rows.data()[num_edges - 1]), 0, num_rows - 1, "rows[-1]");
  }
  const T* row = rows.data();
  int64_t* ptr = indptr.data();
  nb::gil_scoped_release release;
  // Edge e opens the rows after that of edge e - 1, up to its own; "edge" num_edges opens all the rest.
  parallel_static(num_edges + 1, 1 << 18, [=](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e) {
      const int64_t first = e == 0 ? 0 : static_cast<int64_t>(row[e - 1]) + 1;
      const int64_t last = e == num_edges ? num_rows : static_cast<int64_t>(row[e]);
      for (int64_t r = first; r <= last; ++r) ptr[r] = e;
    }
  });
}

// out (num_rows, num_cols), zeros on entry, gets the CSR's values added.
void csr_to_dense(Array1<const int64_t> indptr, Array1<const int32_t> indices, Array1<const float> values,
                  Array2<float> out) {
  const int64_t num_rows = rows_between(indptr, static_cast<int64_t>(indices.size()));
  const int64_t num_cols = out.shape(1);
  need_length(values, static_cast<int64_t>(indices.size()), "values");
  need_length(out, num_rows, "out");
  const int64_t* ptr = indptr.data();
  const int32_t* column = indices.data();
  const float* value = values.data();
  float* dense = out.data();
  nb::gil_scoped_release release;
  parallel_dynamic(num_rows, 256, [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t i = ptr[r]; i < ptr[r + 1]; ++i) dense[r * num_cols + column[i]] += value[i];
  });
}

template <typename In, typename Node>
void bind_coo_to_csc(nb::module_& m) {
  m.def("coo_to_csc", &coo_to_csc<In, Node>, array_arg("src"), array_arg("dst"), nb::arg("num_src"),
        array_arg("indptr"), array_arg("indices"), array_arg("perm").none(), nb::arg("wide"));
}

template <typename Node, typename Perm>
void bind_transpose(nb::module_& m) {
  m.def("transpose_csc", &transpose_csc<Node, Perm>, array_arg("indptr"), array_arg("indices"),
        array_arg("out_indptr"), array_arg("out_indices"), array_arg("perm").none(), nb::arg("wide"));
}

template <typename T>
void bind_scans(nb::module_& m) {
  m.def("first_out_of_range", &first_out_of_range<T>, array_arg("ids"), nb::arg("bound"));
  m.def("first_out_of_order", &first_out_of_order<T>, array_arg("src"), array_arg("dst"));
  m.def("first_unsorted_row", &first_unsorted_row<T>, array_arg("indptr"), array_arg("indices"));
  m.def("fill_rows", &fill_rows<T>, array_arg("indptr"), array_arg("out"));
  m.def("rows_to_indptr", &rows_to_indptr<T>, array_arg("rows"), array_arg("indptr"));
}

}  // namespace

void bind_topology(nb::module_& m) {
  bind_coo_to_csc<int32_t, int32_t>(m);
  bind_coo_to_csc<int32_t, int64_t>(m);
  bind_coo_to_csc<int64_t, int32_t>(m);
  bind_coo_to_csc<int64_t, int64_t>(m);
  bind_transpose<int32_t, int32_t>(m);
  bind_transpose<int32_t, int64_t>(m);
  bind_transpose<int64_t, int32_t>(m);
  bind_transpose<int64_t, int64_t>(m);
  bind_scans<int32_t>(m);
  bind_scans<int64_t>(m);
  m.def("first_below", &first_below, array_arg("values"), nb::arg("least"));
  m.def("first_fall", &first_fall, array_arg("indptr"));
  m.def("first_unsound_weight", &first_unsound_weight, array_arg("values"), nb::arg("may_be_negative"));
  m.def("csr_to_dense", &csr_to_dense, array_arg("indptr"), array_arg("indices"), array_arg("values"),
        array_arg("out"));
}

}  // namespace gb
