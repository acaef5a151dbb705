// Readers of the arguments of kernels over a graph and rows of numbers.
#pragma once

#include "arguments/binding.h"
#include "arguments/rows.h"

namespace gb {

struct Topology {
  const int64_t* indptr;
  const void* indices;
  bool wide;
  int64_t num_dst, num_edges;
};

inline Topology topology_of(const Indptr& indptr, const Ids& indices) {
  const int64_t num_edges = indices.length();
  return {indptr.data(), indices.data(), is_wide(indices), rows_between(indptr, num_edges), num_edges};
}

inline Rows rows_of(const AnyArray& rows, const void* data) { return {data, rows.stride(0)}; }
template <typename Given>
Rows rows_of(const Given& rows) {
  return rows_of(rows, rows.data());
}

// `count` rows of the dtype and width of `like`.
template <typename Given>
Rows rows_like(const EdgeRows& like, const Given& rows, int64_t count) {
  need_dtype(rows, like.dtype, "the other rows");
  need_shape(rows, count, like.width);
  return rows_of(rows);
}

// The data of a vector of the given length, in the dtype in which rows of `dtype` are summed.
template <typename Element>
auto in_sums(const Array<Element, 1>& vector, DType dtype, int64_t length) {
  need_dtype(vector, sum_dtype(dtype), "the sums");
  need_length(vector, length);
  return vector.data();
}
// The same, or null for no vector.
template <typename Given>
auto in_sums(const std::optional<Given>& vector, DType dtype, int64_t length) {
  return vector ? in_sums(*vector, dtype, length) : nullptr;
}

// The graph, the rows and the weights of an aggregation.
inline EdgeRows edge_rows_of(const Indptr& indptr, const Ids& indices, const RowArray& x,
                             const OptionalVector& weight = std::nullopt) {
  const Topology topology = topology_of(indptr, indices);
  EdgeRows a;
  a.dtype = dtype_of(x);
  a.wide_indices = topology.wide;
  a.indptr = topology.indptr;
  a.indices = topology.indices;
  a.num_dst = topology.num_dst;
  a.num_edges = topology.num_edges;
  a.width = x.num_columns();
  a.x = rows_of(x);
  a.weight = in_sums(weight, a.dtype, topology.num_edges);
  return a;
}

}  // namespace gb
