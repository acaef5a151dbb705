// The arguments that attention's kernels share.
#pragma once

#include "attention/attention.h"
#include "base/dropout.h"
#include "cpu_kernels.h"

namespace program {

// above and share may be empty: nothing is kept then.
inline gb::AttentionArgs attention_args(const Edges& edges, ConstMatrix x, ConstMatrix src_logit,
                                        ConstMatrix dst_logit, const Attention& how, Matrix out, Matrix lse,
                                        Matrix above, Matrix share) {
  gb::AttentionArgs a;
  a.wide_indices = edges.wide;
  a.indptr = edges.indptr;
  a.indices = edges.indices;
  a.num_dst = edges.num_rows;
  a.num_edges = edges.num_edges;
  a.num_src = x.rows;
  a.heads = lse.columns;
  a.channels = x.columns / lse.columns;
  a.slope = how.slope;
  a.num_loops = how.num_loops;
  a.threshold = gb::drop_threshold(how.p);
  a.keep_scale = 1.0 / (1.0 - how.p);
  a.seed = how.seed;
  a.first_keys = how.first_keys;
  a.src = x.data;
  a.src_logit = src_logit.data;
  a.dst_logit = dst_logit.data;
  a.out = out.data;
  a.lse = lse.data;
  a.above = above.data;
  a.share = share.data;
  return a;
}

}  // namespace program
