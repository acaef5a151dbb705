// The loss, compiled from csrc/rowwise/cross_entropy.inl, and the number of right answers.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/dtypes.h"
#include "cpu_kernels.h"
#include "rowwise/cross_entropy.h"
#include "threads/parallel.h"
#include "threads/worth.h"
#include "variants/variants.h"
#include "variants/x86.h"

#define GB_KERNEL_FILE "rowwise/cross_entropy.inl"
#include "variants/for_each_variant.h"

namespace program {

double cross_entropy(ConstMatrix outputs, const int64_t* rows, const int64_t* labels, int64_t count,
                     int64_t total, Matrix grad) {
  if (count < grad.rows) set_zero(grad);
  gb::CrossEntropyArgs a;
  a.num_rows = count;
  a.num_classes = outputs.columns;
  a.logits = outputs.data;
  a.logits_stride = outputs.row_stride;
  a.rows = rows;
  a.labels = labels;
  a.ignored = -1;  // no class: every row counts
  a.mass = static_cast<double>(total);
  a.grad = grad.data;
  a.grad_stride = grad.row_stride;
  return GB_PICK(cross_entropy)(a) / static_cast<double>(total);
}

int64_t num_right(ConstMatrix outputs, const int64_t* rows, const int64_t* labels, int64_t count) {
  int64_t right = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float* from = outputs.data + rows[i] * outputs.row_stride;
    right += std::max_element(from, from + outputs.columns) - from == labels[i];
  }
  return right;
}

}  // namespace program
