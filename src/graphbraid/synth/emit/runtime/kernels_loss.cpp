// The losses, compiled from csrc/rowwise/cross_entropy.inl, and the number of right predictions.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/dtypes.h"
#include "cpu_kernels.h"
#include "element_losses.h"
#include "rowwise/cross_entropy.h"
#include "threads/parallel.h"
#include "threads/worth.h"
#include "variants/variants.h"
#include "variants/x86.h"

#define GB_KERNEL_FILE "rowwise/cross_entropy.inl"
#include "variants/for_each_variant.h"

namespace program {
namespace {

// The sum of a loss over all outputs of the labelled rows. Its gradient times `share` is written to `grad`.
template <typename Loss>
double sum_of(const LossInput& a, float share) {
  double sum = 0;
  for (int64_t i = 0; i < a.nodes.count; ++i) {
    const int64_t row = a.nodes.rows[i], columns = a.outputs.columns;
    for (int64_t j = 0; j < columns; ++j) {
      const float output = a.outputs.data[row * a.outputs.row_stride + j];
      const ElementLoss found = Loss::of(output, a.nodes.targets[i * columns + j]);
      sum += static_cast<double>(found.loss);
      if (a.grad.data != nullptr) a.grad.data[row * a.grad.row_stride + j] = found.grad * share;
    }
  }
  return sum;
}

template <typename Loss>
double mean_of(const LossInput& a) {
  set_zero(a.grad);
  const double all = static_cast<double>(a.nodes.total * a.outputs.columns);
  return sum_of<Loss>(a, static_cast<float>(1.0 / all)) / all;
}

}  // namespace

double cross_entropy(const LossInput& a) {
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

double binary_cross_entropy(const LossInput& a) { return mean_of<BinaryLoss>(a); }

double mean_squared(const LossInput& a) { return mean_of<SquaredLoss>(a); }

int64_t num_right_signs(ConstMatrix outputs, const LabelledRows& nodes) {
  return static_cast<int64_t>(sum_of<RightSign>({outputs, nodes}, 0));
}

double squared_errors(ConstMatrix outputs, const LabelledRows& nodes) {
  return sum_of<SquaredLoss>({outputs, nodes}, 0);
}

}  // namespace program
