// Binds gat_backward.inl; ops/attention.py describes the operators.
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

#define GB_KERNEL_FILE "gat_backward.inl"
#include "for_each_variant.h"

namespace gb {

static void gat_backward(const Indptr& indptr, const VectorArray& indices, const Indptr& t_indptr,
                         const VectorArray& t_indices, const Indptr& perm, const Matrix& src,
                         const Matrix& src_logit, const Matrix& dst_logit, double slope, int64_t num_loops,
                         double p, uint64_t seed, const Matrix& out, const Matrix& lse, const Matrix& grad,
                         const Matrix& grad_src, const Matrix& grad_src_logit, const Matrix& grad_dst_logit,
                         const std::optional<Matrix>& above, const std::optional<Matrix>& share,
                         const FirstKeys& first_keys, const OptionalMatrix& edge_logit,
                         const OptionalMatrix& grad_edge_logit) {
  AttentionBackwardArgs b;
  b.forward = common_args(indptr, indices, src, slope, num_loops, p, seed, out, lse);
  const AttentionArgs& a = b.forward;
  add_keys(b.forward, first_keys);
  add_gat(b.forward, src_logit, dst_logit);
  need(above.has_value(), "the forward must have kept above and share");
  add_above(b.forward, above, share);
  b.forward.edge_logit = edge_logits(a, edge_logit, "edge_logit");
  b.grad_edge_logit = edge_logits(a, grad_edge_logit, "grad_edge_logit");
  need(edge_logit.has_value() == grad_edge_logit.has_value(), "edge_logit and its gradient go together");
  b.narrow = a.heads > 1 && static_cast<int64_t>(grad.shape(1)) == a.channels;
  add_backward(b, t_indptr, t_indices, perm, grad, grad_src);
  b.grad_src_logit = checked(grad_src_logit, a.num_src, a.heads, sum_dtype(a.dtype), "grad_src_logit");
  b.grad_dst_logit = checked(grad_dst_logit, a.num_dst, a.heads, sum_dtype(a.dtype), "grad_dst_logit");
  nb::gil_scoped_release release;
  GB_PICK(gat_backward)(b);
}

void bind_gat_backward(nb::module_& m) {
  m.def("gat_backward", &gat_backward, array_arg("indptr"), array_arg("indices"), array_arg("t_indptr"),
        array_arg("t_indices"), array_arg("perm"), array_arg("src"), array_arg("src_logit"),
        array_arg("dst_logit"), nb::arg("slope"), nb::arg("num_loops"), nb::arg("p"), nb::arg("seed"),
        array_arg("out"), array_arg("lse"), array_arg("grad"), array_arg("grad_src"),
        array_arg("grad_src_logit"), array_arg("grad_dst_logit"), optional_arg("above"),
        optional_arg("share"), optional_arg("first_keys"), optional_arg("edge_logit"),
        optional_arg("grad_edge_logit"));
}

}  // namespace gb
