// Binds edge_softmax.inl; ops/attention.py describes the operator.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "arguments/binding.h"
#include "attention/attention.h"
#include "base/buffer.h"
#include "base/dropout.h"
#include "threads/balance.h"
#include "variants/variants.h"
#include "variants/x86.h"

#define GB_KERNEL_FILE "attention/edge_softmax.inl"
#include "variants/for_each_variant.h"

namespace gb {

static EdgeSoftmaxArgs softmax_args(const Indptr& indptr, const Matrix& logits, const WrittenMatrix& out) {
  need(sum_dtype(dtype_of(logits)) == dtype_of(logits), "the edges' numbers must be float32 or float64");
  EdgeSoftmaxArgs a;
  a.is_double = dtype_of(logits) == DType::kFloat64;
  a.indptr = indptr.data();
  a.num_dst = rows_between(indptr, logits.num_rows());
  a.heads = logits.num_columns();
  a.logits = logits.data();
  need_dtype_of(out, logits);
  need_shape(out, logits.num_rows(), a.heads);
  a.out = out.data();
  return a;
}

static void edge_softmax(const Indptr& indptr, const Matrix& logits, const WrittenMatrix& out) {
  const EdgeSoftmaxArgs a = softmax_args(indptr, logits, out);
  if (a.heads == 0) return;
  nb::gil_scoped_release release;
  GB_PICK(edge_softmax)(a);
}

static void edge_softmax_backward(const Indptr& indptr, const Matrix& alpha, const Matrix& grad,
                                  const WrittenMatrix& out) {
  EdgeSoftmaxArgs a = softmax_args(indptr, alpha, out);
  need_dtype_of(grad, alpha);
  need_shape(grad, alpha.num_rows(), a.heads);
  a.grad = grad.data();
  if (a.heads == 0) return;
  nb::gil_scoped_release release;
  GB_PICK(edge_softmax_backward)(a);
}

void bind_edge_softmax(nb::module_& m) {
  using namespace nb::literals;
  def_native(m, "edge_softmax", &edge_softmax, "indptr"_a, "logits"_a, "out"_a);
  def_native(m, "edge_softmax_backward", &edge_softmax_backward, "indptr"_a, "alpha"_a, "grad"_a, "out"_a);
}

}  // namespace gb
