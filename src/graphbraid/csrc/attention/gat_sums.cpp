// Compiles gat_sums.inl, which segments call.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "attention/attention.h"
#include "base/buffer.h"
#include "base/dropout.h"
#include "threads/balance.h"
#include "variants/variants.h"
#include "variants/x86.h"

#define GB_KERNEL_FILE "attention/gat_sums.inl"
#include "variants/for_each_variant.h"

namespace gb {

void run_gat_sums(const AttentionArgs& a) { GB_PICK(gat_sums)(a); }
void run_gat_sums_backward(const AttentionBackwardArgs& b) { GB_PICK(gat_sums_backward)(b); }

}  // namespace gb
