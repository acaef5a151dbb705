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

void gat_backward(const GatBackward& a) {
  gb::AttentionBackwardArgs b = attention_backward_args(a);
  b.narrow = b.forward.heads > 1 && a.grad.columns == b.forward.channels;
  b.grad_src_logit = a.grad_src_logit.data;
  b.grad_dst_logit = a.grad_dst_logit.data;
  GB_PICK(gat_backward)(b);
}

}  // namespace program
