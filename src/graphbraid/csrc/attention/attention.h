// Arguments of the fused attention kernels (attention.inl), checked by attention.cpp.
#pragma once

#include <cstdint>

#include "arguments/rows.h"

namespace gb {

struct AttentionArgs {
  DType dtype = DType::kFloat32;  // of rows; all else has the dtype of the sums
  bool wide_indices = false;
  const int64_t* indptr = nullptr;
  const void* indices = nullptr;
  int64_t num_dst = 0, num_src = 0, num_edges = 0;
  int64_t heads = 1, channels = 1;
  double slope = 0.2;
  int64_t num_loops = 0;   // so many first rows have an implicit self-loop; if any, stored ones are left out
  uint32_t threshold = 0;  // a coefficient is dropped if its 32 random bits are below; 0: no dropout
  double keep_scale = 1;   // 1 / (1 - p)
  uint64_t seed = 0;
  const int64_t* first_keys = nullptr;  // (num_dst,) or null: the mask's key of each row's first edge

  const void* src = nullptr;         // (num_src, heads * channels): what is summed
  const void* src_logit = nullptr;   // GAT: (num_src, heads)
  const void* dst_logit = nullptr;   // GAT: (num_dst, heads)
  const void* edge_logit = nullptr;  // GAT: (num_edges + num_loops, heads), the loops' last; or null
  const void* dst = nullptr;         // GATv2, dot products: (num_dst, heads * channels)
  const void* key = nullptr;         // dot products: (num_src, heads * channels)
  double scale = 1;                  // dot products: the factor of logits
  // GATv2: (heads * channels,). GAT: null, or (2, heads * channels), the vectors whose products with src are
  // the logits of sources and of destinations, which forward then writes. Destinations are the first sources.
  const void* att = nullptr;

  // GATv2 and dot products, where edges have features: these and their map; else null.
  Rows edge_features = {};            // (num_edges, edge_channels), dtype of the sums
  Rows loop_features = {};            // GATv2: (num_loops, edge_channels): of the implicit self-loops
  const void* edge_weight = nullptr;  // (edge_channels, heads * channels)
  int64_t edge_channels = 0;
  bool edge_bias = false;  // dot products: whether the map's last row is a bias, whose feature is 1

  void* out = nullptr;  // (num_dst, heads * channels)
  // (num_dst, heads): lse is the log of the sum of exponentials of the row's logits. For dot products it is
  // the largest logit, and log is the log of the sum of exp(logit - largest).
  void* lse = nullptr;
  void* log = nullptr;
  void* mixed = nullptr;  // dot products: see dot_attention.inl; null: not asked for
  // GAT, written for backward, or null: of the edges with z > 0,
  void* above = nullptr;  // (num_dst, heads * channels), dtype of the sums: their part of out
  void* share = nullptr;  // (num_dst, heads): the sum of their coefficients before dropout
  // GAT that sums first: (num_edges + num_loops, heads), written for backward, or null. `channels` are those
  // of src, which all heads share: (num_src, channels). out is (num_dst, heads * channels).
  void* alpha = nullptr;
};

struct AttentionBackwardArgs {
  AttentionArgs forward;  // out and lse as the forward left them
  const int64_t* t_indptr = nullptr;
  const void* t_indices = nullptr;
  const int64_t* perm = nullptr;
  const void* grad = nullptr;        // (num_dst, heads * channels), or (num_dst, channels)
  bool narrow = false;               // GAT: all heads have the same gradient, given once
  void* grad_src = nullptr;          // (num_src, heads * channels)
  void* grad_src_logit = nullptr;    // GAT
  void* grad_dst_logit = nullptr;    // GAT
  void* grad_edge_logit = nullptr;   // GAT, with edge_logit
  void* grad_dst = nullptr;          // GATv2, dot products
  void* grad_key = nullptr;          // dot products
  void* grad_logit = nullptr;        // dot products: (num_edges, heads), with perm; or null
  bool adds = true;                  // dot products: whether gradients are added to, or written
  void* grad_att = nullptr;          // as att
  void* grad_edge_weight = nullptr;  // (edge_channels, heads * channels), or null: not asked for
};

// By the variant in use.
void run_attention(const AttentionArgs& a);
void run_dot_attention(const AttentionArgs& a);
void run_dot_backward(const AttentionBackwardArgs& b);
void run_gat_backward(const AttentionBackwardArgs& b);
void run_gat_sums(const AttentionArgs& a);
void run_gat_sums_backward(const AttentionBackwardArgs& b);
void run_gatv2_backward(const AttentionBackwardArgs& b);

struct EdgeSoftmaxArgs {
  bool is_double = false;
  const int64_t* indptr = nullptr;
  int64_t num_dst = 0;
  int64_t heads = 1;
  const void* logits = nullptr;  // (num_edges, heads); backward: the coefficients
  const void* grad = nullptr;    // backward: their gradient
  void* out = nullptr;           // (num_edges, heads)
};

}  // namespace gb
