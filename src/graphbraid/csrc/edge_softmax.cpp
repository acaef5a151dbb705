// Binds edge_softmax.inl; ops/edge_softmax.py describes the operator.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "attention_args.h"
#include "balance.h"
#include "buffer.h"
#include "dropout.h"
#include "variants.h"
#include "x86.h"

#define GB_KERNEL_FILE "edge_softmax.inl"
#include "for_each_variant.h"

namespace gb {

static EdgeSoftmaxArgs softmax_args(const Indptr& indptr, const Matrix& logits, const Matrix& out) {
  EdgeSoftmaxArgs a;
  const DType dtype = dtype_of(logits, "logits");
  need(dtype == sum_dtype(dtype), "logits must be float32 or float64");
  a.is_double = dtype == DType::kFloat64;
  a.indptr = indptr.data();
  a.num_dst = rows_between(indptr, static_cast<int64_t>(logits.shape(0)));
  a.heads = static_cast<int64_t>(logits.shape(1));
  a.logits = logits.data();
  a.out = checked(out, static_cast<int64_t>(logits.shape(0)), a.heads, dtype, "out");
  return a;
}

static void edge_softmax(const Indptr& indptr, const Matrix& logits, const Matrix& out) {
  const EdgeSoftmaxArgs a = softmax_args(indptr, logits, out);
  if (a.heads == 0) return;
  nb::gil_scoped_release release;
  GB_PICK(edge_softmax)(a);
}

static void edge_softmax_backward(const Indptr& indptr, const Matrix& alpha, const Matrix& grad,
                                  const Matrix& out) {
  EdgeSoftmaxArgs a = softmax_args(indptr, alpha, out);
  a.grad = checked(grad, static_cast<int64_t>(alpha.shape(0)), a.heads, dtype_of(alpha, "alpha"), "grad");
  if (a.heads == 0) return;
  nb::gil_scoped_release release;
  GB_PICK(edge_softmax_backward)(a);
}

void bind_edge_softmax(nb::module_& m) {
  m.def("edge_softmax", &edge_softmax, array_arg("indptr"), array_arg("logits"), array_arg("out"));
  m.def("edge_softmax_backward", &edge_softmax_backward, array_arg("indptr"), array_arg("alpha"),
        array_arg("grad"), array_arg("out"));
}

}  // namespace gb
