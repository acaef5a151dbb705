// Binds gatv2_backward.inl; ops/attention.py describes the operators.
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

#define GB_KERNEL_FILE "gatv2_backward.inl"
#include "for_each_variant.h"

namespace gb {

static void gatv2_backward(const Indptr& indptr, const VectorArray& indices, const Indptr& t_indptr,
                           const VectorArray& t_indices, const Indptr& perm, const Matrix& src,
                           const Matrix& dst, const Matrix& att, double slope, int64_t num_loops, double p,
                           uint64_t seed, const Matrix& out, const Matrix& lse, const Matrix& grad,
                           const Matrix& grad_src, const Matrix& grad_dst, const Matrix& grad_att,
                           const FirstKeys& first_keys, const OptionalRows& edge_features,
                           const OptionalRows& loop_features, const OptionalMatrix& edge_weight,
                           const OptionalMatrix& grad_edge_weight) {
  AttentionBackwardArgs b;
  b.forward = common_args(indptr, indices, src, slope, num_loops, p, seed, out, lse);
  const AttentionArgs& a = b.forward;
  add_keys(b.forward, first_keys);
  add_gatv2(b.forward, dst, att);
  add_edge_features(b.forward, edge_features, loop_features, edge_weight);
  add_backward(b, t_indptr, t_indices, perm, grad, grad_src);
  b.grad_dst = checked(grad_dst, a.num_dst, a.heads * a.channels, a.dtype, "grad_dst");
  b.grad_att = checked(grad_att, a.heads, a.channels, sum_dtype(a.dtype), "grad_att");
  if (grad_edge_weight) {
    need(a.edge_weight, "grad_edge_weight goes with edge_weight");
    b.grad_edge_weight = checked(*grad_edge_weight, a.edge_channels, a.heads * a.channels, sum_dtype(a.dtype),
                                 "grad_edge_weight");
  }
  nb::gil_scoped_release release;
  GB_PICK(gatv2_backward)(b);
}

void bind_gatv2_backward(nb::module_& m) {
  m.def("gatv2_backward", &gatv2_backward, array_arg("indptr"), array_arg("indices"), array_arg("t_indptr"),
        array_arg("t_indices"), array_arg("perm"), array_arg("src"), array_arg("dst"), array_arg("att"),
        nb::arg("slope"), nb::arg("num_loops"), nb::arg("p"), nb::arg("seed"), array_arg("out"),
        array_arg("lse"), array_arg("grad"), array_arg("grad_src"), array_arg("grad_dst"),
        array_arg("grad_att"), optional_arg("first_keys"), optional_arg("edge_features"),
        optional_arg("loop_features"), optional_arg("edge_weight"), optional_arg("grad_edge_weight"));
}

}  // namespace gb
