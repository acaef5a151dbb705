// The gradient of GAT's attention, compiled from csrc/attention/gat_backward.inl.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "attention_common.h"
#include "base/buffer.h"
#include "threads/balance.h"
#include "variants/variants.h"
#include "variants/x86.h"

#define GB_KERNEL_FILE "attention/gat_backward.inl"
#include "variants/for_each_variant.h"

namespace program {

void gat_backward(const Edges& edges, const Edges& by_source, const int64_t* perm, ConstMatrix x,
                  ConstMatrix src_logit, ConstMatrix dst_logit, const Attention& how, Matrix out, Matrix lse,
                  ConstMatrix grad, Matrix grad_x, Matrix grad_src_logit, Matrix grad_dst_logit, Matrix above,
                  Matrix share) {
  gb::AttentionBackwardArgs b;
  b.forward = attention_args(edges, x, src_logit, dst_logit, how, out, lse, above, share);
  b.t_indptr = by_source.indptr;
  b.t_indices = by_source.indices;
  b.perm = perm;
  b.grad = grad.data;
  b.narrow = b.forward.heads > 1 && grad.columns == b.forward.channels;
  b.grad_src = grad_x.data;
  b.grad_src_logit = grad_src_logit.data;
  b.grad_dst_logit = grad_dst_logit.data;
  GB_PICK(gat_backward)(b);
}

}  // namespace program
