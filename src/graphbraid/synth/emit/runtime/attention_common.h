// The arguments that attention's kernels share.
#pragma once

#include "attention/attention.h"
#include "base/dropout.h"
#include "cpu_kernels.h"

namespace program {

// The arguments that the forward and backward passes of GAT and of GATv2 have in common.
template <typename Call>
gb::AttentionArgs attention_args(const Call& c) {
  gb::AttentionArgs a;
  take_edges(c.edges, a);
  a.num_src = c.x.rows;
  a.heads = c.lse.columns;
  a.channels = c.x.columns / c.lse.columns;
  a.slope = c.how.slope;
  a.num_loops = c.how.num_loops;
  a.threshold = gb::drop_threshold(c.how.p);
  a.keep_scale = 1.0 / (1.0 - c.how.p);
  a.seed = c.how.seed;
  a.first_keys = c.how.first_keys;
  a.src = c.x.data;
  a.out = c.out.data;
  a.lse = c.lse.data;
  if constexpr (requires { c.src_logit; }) {  // GAT; GATv2 has no logits of rows
    a.src_logit = c.src_logit.data;
    a.dst_logit = c.dst_logit.data;
    a.above = c.above.data;
    a.share = c.share.data;
  } else {
    a.dst = c.own.data;
    a.att = c.vectors.data;
  }
  return a;
}

// The same for the backward passes, with the arguments that these two have in common.
template <typename Call>
gb::AttentionBackwardArgs attention_backward_args(const Call& c) {
  gb::AttentionBackwardArgs b;
  b.forward = attention_args(c);
  b.t_indptr = c.by_source.indptr;
  b.t_indices = c.by_source.indices;
  b.perm = c.perm;
  b.grad = c.grad.data;
  b.grad_src = c.grad_x.data;
  return b;
}

}  // namespace program
