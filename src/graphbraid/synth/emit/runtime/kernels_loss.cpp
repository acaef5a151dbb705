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

double cross_entropy(const CrossEntropy& a) {
  if (a.nodes.count < a.grad.rows) set_zero(a.grad);
  const double total = static_cast<double>(a.nodes.total);
  gb::CrossEntropyArgs c;
  c.num_rows = a.nodes.count;
  c.num_classes = a.outputs.columns;
  c.logits = a.outputs.data;
  c.logits_stride = a.outputs.row_stride;
  c.rows = a.nodes.rows;
  c.labels = a.nodes.labels;
  c.ignored = -1;  // no class: every row counts
  c.mass = total;
  c.grad = a.grad.data;
  c.grad_stride = a.grad.row_stride;
  return GB_PICK(cross_entropy)(c) / total;
}

int64_t num_right(ConstMatrix outputs, const LabelledRows& nodes) {
  int64_t right = 0;
  for (int64_t i = 0; i < nodes.count; ++i) {
    const float* from = outputs.data + nodes.rows[i] * outputs.row_stride;
    right += std::max_element(from, from + outputs.columns) - from == nodes.labels[i];
  }
  return right;
}

}  // namespace program
