// Binds cross_entropy.inl; ops/cross_entropy.py describes the operator.
#include "rowwise/cross_entropy.h"

#include <nanobind/stl/pair.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "arguments/binding.h"
#include "threads/worth.h"
#include "variants/variants.h"
#include "variants/x86.h"

#define GB_KERNEL_FILE "rowwise/cross_entropy.inl"
#include "variants/for_each_variant.h"

namespace gb {

// The sum of the weights of the rows' classes.
static double mass_of(const CrossEntropyArgs& a) {
  double mass = 0;
  for (int64_t v = 0; v < a.num_rows; ++v) {
    const int64_t label = a.labels[v];
    if (label == a.ignored) continue;
    need(label >= 0 && label < a.num_classes, "labels must name columns of logits");
    mass += a.weights ? static_cast<double>(a.weights[label]) : 1.0;
  }
  return mass;
}

static std::pair<double, double> cross_entropy(const Array2<const float>& logits,
                                               const Array1<const int64_t>& labels,
                                               const std::optional<Array1<const float>>& weights,
                                               int64_t ignored, const std::optional<Array2<float>>& grad) {
  CrossEntropyArgs a;
  a.num_rows = logits.num_rows();
  a.num_classes = a.logits_stride = a.grad_stride = logits.num_columns();
  a.logits = logits.data();
  need_length(labels, a.num_rows);
  a.labels = labels.data();
  a.ignored = ignored;
  need_length(weights, a.num_classes);
  if (weights) a.weights = weights->data();
  if (grad) {
    need_shape(*grad, a.num_rows, a.num_classes);
    a.grad = grad->data();
  }
  nb::gil_scoped_release release;
  a.mass = mass_of(a);
  return {GB_PICK(cross_entropy)(a), a.mass};
}

void bind_cross_entropy(nb::module_& m) {
  using namespace nb::literals;
  def_native(m, "cross_entropy", &cross_entropy, "logits"_a, "labels"_a, "weights"_a, "ignored"_a, "grad"_a);
}

}  // namespace gb
