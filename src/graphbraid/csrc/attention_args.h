// Checks of the attention kernels' arguments, shared by their bindings.
#pragma once

#include <algorithm>

#include "attention.h"
#include "rows.h"

namespace gb {

using Matrix = nb::ndarray<nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Indptr = Array1<const int64_t>;

// Data of a matrix that must have the given shape and dtype.
inline void* checked(const Matrix& matrix, int64_t rows, int64_t columns, DType dtype, const char* name) {
  need_shape(matrix, rows, columns, name);
  if (dtype_of(matrix, name) != dtype) refuse(std::string(name) + " has the wrong dtype");
  return matrix.data();
}

inline AttentionArgs common_args(const Indptr& indptr, const VectorArray& indices, const Matrix& src,
                                 double slope, int64_t num_loops, double p, uint64_t seed, const Matrix& out,
                                 const Matrix& lse) {
  const Topology topology = topology_of(indptr, indices);
  AttentionArgs a;
  a.dtype = dtype_of(src, "src");
  a.wide_indices = topology.wide;
  a.indptr = topology.indptr;
  a.indices = topology.indices;
  a.num_dst = topology.num_dst;
  a.num_edges = topology.num_edges;
  a.num_src = static_cast<int64_t>(src.shape(0));
  a.heads = static_cast<int64_t>(lse.shape(1));
  const int64_t width = static_cast<int64_t>(src.shape(1));
  need(a.heads > 0 && width > 0 && width % a.heads == 0, "the width must be a multiple of the heads");
  a.channels = width / a.heads;
  a.slope = slope;
  need_count(num_loops, 0, std::min(a.num_src, a.num_dst), "num_loops");
  a.num_loops = num_loops;
  need(p >= 0 && p < 1, "p must lie in [0, 1)");
  a.threshold = static_cast<uint32_t>(p * 4294967296.0);
  a.keep_scale = 1.0 / (1.0 - p);
  a.seed = seed;
  a.src = src.data();
  a.out = checked(out, a.num_dst, width, a.dtype, "out");
  a.lse = checked(lse, a.num_dst, a.heads, sum_dtype(a.dtype), "lse");
  return a;
}

using FirstKeys = std::optional<Array1<const int64_t>>;

inline void add_keys(AttentionArgs& a, const FirstKeys& first_keys) {
  if (!first_keys) return;
  need_length(*first_keys, a.num_dst, "first_keys");
  a.first_keys = first_keys->data();
}

inline void add_gat(AttentionArgs& a, const Matrix& src_logit, const Matrix& dst_logit) {
  a.src_logit = checked(src_logit, a.num_src, a.heads, sum_dtype(a.dtype), "src_logit");
  a.dst_logit = checked(dst_logit, a.num_dst, a.heads, sum_dtype(a.dtype), "dst_logit");
}

using OptionalMatrix = std::optional<Matrix>;

// GAT: what edges add of their own; the implicit self-loops' last.
inline void* edge_logits(const AttentionArgs& a, const OptionalMatrix& logits, const char* name) {
  return logits ? checked(*logits, a.num_edges + a.num_loops, a.heads, sum_dtype(a.dtype), name) : nullptr;
}

// What GAT's forward keeps for its backward; both or none.
inline void add_above(AttentionArgs& a, const std::optional<Matrix>& above,
                      const std::optional<Matrix>& share) {
  need(above.has_value() == share.has_value(), "above and share go together");
  if (!above) return;
  a.above = checked(*above, a.num_dst, a.heads * a.channels, sum_dtype(a.dtype), "above");
  a.share = checked(*share, a.num_dst, a.heads, sum_dtype(a.dtype), "share");
}

inline void add_gatv2(AttentionArgs& a, const Matrix& dst, const Matrix& att) {
  a.dst = checked(dst, a.num_dst, a.heads * a.channels, a.dtype, "dst");
  a.att = checked(att, a.heads, a.channels, sum_dtype(a.dtype), "att");
}

using OptionalRows = std::optional<RowArray>;

// GATv2: the features of edges and of implicit self-loops, whose rows may be one, and their map. All or none.
inline void add_edge_features(AttentionArgs& a, const OptionalRows& features, const OptionalRows& loops,
                              const OptionalMatrix& weight) {
  need(features.has_value() == weight.has_value() && features.has_value() == loops.has_value(),
       "edge_features, loop_features and edge_weight go together");
  if (!features) return;
  const DType dtype = sum_dtype(a.dtype);
  a.edge_channels = static_cast<int64_t>(weight->shape(0));
  need(a.edge_channels > 0, "edge_weight must have rows");
  const auto rows = [&](const RowArray& array, int64_t count, const char* name) {
    need_shape(array, count, a.edge_channels, name);
    if (dtype_of(array, name) != dtype) refuse(std::string(name) + " has the wrong dtype");
    return rows_of(array);
  };
  a.edge_features = rows(*features, a.num_edges, "edge_features");
  a.loop_features = rows(*loops, a.num_loops, "loop_features");
  a.edge_weight = checked(*weight, a.edge_channels, a.heads * a.channels, dtype, "edge_weight");
}

inline void add_backward(AttentionBackwardArgs& b, const Indptr& t_indptr, const VectorArray& t_indices,
                         const Indptr& perm, const Matrix& grad, const Matrix& grad_src) {
  const AttentionArgs& a = b.forward;
  const Topology transposed = topology_of(t_indptr, t_indices);
  need(transposed.num_dst == a.num_src && transposed.num_edges == a.num_edges &&
           transposed.wide == a.wide_indices,
       "the transpose does not fit the graph");
  // Without dropout and what edges have of their own no edge's id is asked for.
  const bool has_ids = static_cast<int64_t>(perm.shape(0)) == a.num_edges;
  need(has_ids || (a.threshold == 0 && !a.edge_logit && !a.edge_weight),
       "perm must have one number per edge");
  b.t_indptr = transposed.indptr;
  b.t_indices = transposed.indices;
  b.perm = perm.data();
  b.grad = checked(grad, a.num_dst, b.narrow ? a.channels : a.heads * a.channels, a.dtype, "grad");
  b.grad_src = checked(grad_src, a.num_src, a.heads * a.channels, a.dtype, "grad_src");
}

}  // namespace gb
