// The gradient of GATv2's attention, compiled from csrc/attention/gatv2_backward.inl.
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

#define GB_KERNEL_FILE "attention/gatv2_backward.inl"
#include "variants/for_each_variant.h"

namespace program {

void gatv2_backward(const Edges& edges, const Edges& by_source, const int64_t* perm, ConstMatrix x,
                    ConstMatrix own, ConstMatrix vectors, const Attention& how, Matrix out, Matrix lse,
                    ConstMatrix grad, Matrix grad_x, Matrix grad_own, Matrix grad_vectors) {
  gb::AttentionBackwardArgs b;
  b.forward = attention_args(edges, x, {}, {}, how, out, lse, {}, {});
  b.forward.dst = own.data;
  b.forward.att = vectors.data;
  b.t_indptr = by_source.indptr;
  b.t_indices = by_source.indices;
  b.perm = perm;
  b.grad = grad.data;
  b.grad_src = grad_x.data;
  b.grad_dst = grad_own.data;
  b.grad_att = grad_vectors.data;
  GB_PICK(gatv2_backward)(b);
}

}  // namespace program
