// Readers of the attention kernels' arguments, shared by their bindings.
#pragma once

#include <algorithm>

#include "arguments/edge_rows.h"
#include "attention/attention.h"
#include "base/dropout.h"

namespace gb {

using OptionalMatrix = std::optional<Matrix>;
using OptionalWrittenMatrix = std::optional<WrittenMatrix>;
using OptionalRows = std::optional<RowArray>;

// Data of a matrix that must have the given shape and dtype: that of src (as_src) or of the sums (as_sums).
template <typename Given>
auto shaped(const Given& matrix, int64_t rows, int64_t columns, DType dtype, const char* what) {
  need_shape(matrix, rows, columns);
  need_dtype(matrix, dtype, what);
  return matrix.data();
}
template <typename Given>
auto as_src(const AttentionArgs& a, const Given& matrix, int64_t rows, int64_t columns) {
  return shaped(matrix, rows, columns, a.dtype, "src");
}
template <typename Given>
auto as_sums(const AttentionArgs& a, const Given& matrix, int64_t rows, int64_t columns) {
  return shaped(matrix, rows, columns, sum_dtype(a.dtype), "the sums");
}

// AttentionArgs has one field for what the forward writes and the backward reads: so const is cast away.
inline void* either_way(const void* data) { return const_cast<void*>(data); }

// Forward: out and lse are written; backward: they are read.
template <typename Given>
AttentionArgs common_args(const Indptr& indptr, const Ids& indices, const Matrix& src, double slope,
                          int64_t num_loops, double p, uint64_t seed, const Given& out, const Given& lse) {
  const Topology topology = topology_of(indptr, indices);
  AttentionArgs a;
  a.dtype = dtype_of(src);
  a.wide_indices = topology.wide;
  a.indptr = topology.indptr;
  a.indices = topology.indices;
  a.num_dst = topology.num_dst;
  a.num_edges = topology.num_edges;
  a.num_src = src.num_rows();
  a.heads = lse.num_columns();
  const int64_t width = src.num_columns();
  need(a.heads > 0 && width > 0 && width % a.heads == 0,
       "the columns of src must be a multiple of those of lse, the heads");
  a.channels = width / a.heads;
  a.slope = slope;
  need_count(num_loops, 0, std::min(a.num_src, a.num_dst), "num_loops");
  a.num_loops = num_loops;
  need(p >= 0 && p < 1, "p must lie in [0, 1)");
  a.threshold = drop_threshold(p);
  a.keep_scale = 1.0 / (1.0 - p);
  a.seed = seed;
  a.src = src.data();
  a.out = either_way(as_src(a, out, a.num_dst, width));
  a.lse = either_way(as_sums(a, lse, a.num_dst, a.heads));
  return a;
}

inline void add_keys(AttentionArgs& a, const OptionalIds& first_keys) {
  need_length(first_keys, a.num_dst);
  a.first_keys = data_or_null(first_keys);
}

template <typename Given>
void add_gat(AttentionArgs& a, const Given& src_logit, const Given& dst_logit) {
  a.src_logit = as_sums(a, src_logit, a.num_src, a.heads);
  a.dst_logit = as_sums(a, dst_logit, a.num_dst, a.heads);
}

// GAT: the vectors that make the logits, if they are given.
inline void add_vectors(AttentionArgs& a, const OptionalMatrix& att) {
  if (!att) return;
  need(a.num_dst <= a.num_src, "with att, destinations must be the first sources");
  a.att = as_sums(a, *att, 2, a.heads * a.channels);
}

// GAT: the edges' own logits, or their gradients. Those of implicit self-loops come last.
template <typename Given>
auto edge_logits(const AttentionArgs& a, const std::optional<Given>& logits) {
  return logits ? as_sums(a, *logits, a.num_edges + a.num_loops, a.heads) : nullptr;
}

// What GAT's forward keeps for its backward: both or none of them.
template <typename Given>
void add_above(AttentionArgs& a, const std::optional<Given>& above, const std::optional<Given>& share) {
  need(above.has_value() == share.has_value(), "above and share go together");
  if (!above) return;
  a.above = either_way(as_sums(a, *above, a.num_dst, a.heads * a.channels));
  a.share = either_way(as_sums(a, *share, a.num_dst, a.heads));
}

inline void add_gatv2(AttentionArgs& a, const Matrix& dst, const Matrix& att) {
  a.dst = as_src(a, dst, a.num_dst, a.heads * a.channels);
  a.att = as_sums(a, att, a.heads, a.channels);
}

// GATv2: features of edges and of implicit self-loops (one row, or a row each), and their map. All or none.
inline void add_edge_features(AttentionArgs& a, const OptionalRows& features, const OptionalRows& loops,
                              const OptionalMatrix& weight) {
  need(features.has_value() == weight.has_value() && features.has_value() == loops.has_value(),
       "edge_features, loop_features and edge_weight go together");
  if (!features) return;
  a.edge_channels = weight->num_rows();
  need(a.edge_channels > 0, "edge_weight must have rows");
  as_sums(a, *features, a.num_edges, a.edge_channels);
  as_sums(a, *loops, a.num_loops, a.edge_channels);
  a.edge_features = rows_of(*features);
  a.loop_features = rows_of(*loops);
  a.edge_weight = as_sums(a, *weight, a.edge_channels, a.heads * a.channels);
}

inline void add_transpose(AttentionBackwardArgs& b, const Indptr& t_indptr, const Ids& t_indices) {
  const AttentionArgs& a = b.forward;
  const Topology transposed = topology_of(t_indptr, t_indices);
  need_length(t_indptr, a.num_src + 1);
  need_length(t_indices, a.num_edges);
  need(transposed.wide == a.wide_indices, "t_indices must have the dtype of indices");
  b.t_indptr = transposed.indptr;
  b.t_indices = transposed.indices;
}

inline void add_backward(AttentionBackwardArgs& b, const Indptr& t_indptr, const Ids& t_indices,
                         const Indptr& perm, const Matrix& grad, const WrittenMatrix& grad_src) {
  const AttentionArgs& a = b.forward;
  add_transpose(b, t_indptr, t_indices);
  // Only dropout and edges' own numbers need the edges' ids.
  if (a.threshold != 0 || a.edge_logit || a.edge_weight) need_length(perm, a.num_edges);
  b.perm = perm.data();
  b.grad = as_src(a, grad, a.num_dst, b.narrow ? a.channels : a.heads * a.channels);
  b.grad_src = as_src(a, grad_src, a.num_src, a.heads * a.channels);
}

}  // namespace gb
