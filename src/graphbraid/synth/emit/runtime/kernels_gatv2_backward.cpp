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

void gatv2_backward(const Gatv2Backward& a) {
  gb::AttentionBackwardArgs b = attention_backward_args(a);
  b.grad_dst = a.grad_own.data;
  b.grad_att = a.grad_vectors.data;
  GB_PICK(gatv2_backward)(b);
}

}  // namespace program
