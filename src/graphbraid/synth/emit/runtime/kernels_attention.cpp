// The attention of GAT and GATv2, compiled from csrc/attention/attention.inl.
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

#define GB_KERNEL_FILE "attention/attention.inl"
#include "variants/for_each_variant.h"

namespace program {

void gat_forward(const GatForward& a) { GB_PICK(attention_forward)(attention_args(a)); }

void gatv2_forward(const Gatv2Forward& a) { GB_PICK(attention_forward)(attention_args(a)); }

}  // namespace program
