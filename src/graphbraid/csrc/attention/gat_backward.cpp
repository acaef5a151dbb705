// Binds gat_backward.inl; ops/attention.py describes the operators.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "attention/attention_args.h"
#include "base/buffer.h"
#include "base/dropout.h"
#include "threads/balance.h"
#include "variants/variants.h"
#include "variants/x86.h"

#define GB_KERNEL_FILE "attention/gat_backward.inl"
#include "variants/for_each_variant.h"

namespace gb {

void run_gat_backward(const AttentionBackwardArgs& b) { GB_PICK(gat_backward)(b); }

static void gat_backward(const Indptr& indptr, const Ids& indices, const Indptr& t_indptr,
                         const Ids& t_indices, const Indptr& perm, const Matrix& src, const Matrix& src_logit,
                         const Matrix& dst_logit, double slope, int64_t num_loops, double p, uint64_t seed,
                         const Matrix& out, const Matrix& lse, const Matrix& grad,
                         const WrittenMatrix& grad_src, const WrittenMatrix& grad_src_logit,
                         const WrittenMatrix& grad_dst_logit, const OptionalMatrix& above,
                         const OptionalMatrix& share, const OptionalIds& first_keys,
                         const OptionalMatrix& edge_logit, const OptionalWrittenMatrix& grad_edge_logit,
                         const OptionalMatrix& att, const OptionalWrittenMatrix& grad_att) {
  AttentionBackwardArgs b;
  b.forward = common_args(indptr, indices, src, slope, num_loops, p, seed, out, lse);
  const AttentionArgs& a = b.forward;
  add_keys(b.forward, first_keys);
  add_gat(b.forward, src_logit, dst_logit);
  need(above.has_value(), "the forward must have kept above and share");
  add_above(b.forward, above, share);
  b.forward.edge_logit = edge_logits(a, edge_logit);
  b.grad_edge_logit = edge_logits(a, grad_edge_logit);
  need(edge_logit.has_value() == grad_edge_logit.has_value(), "edge_logit and its gradient go together");
  need(att.has_value() == grad_att.has_value(), "att and its gradient go together");
  add_vectors(b.forward, att);
  if (att) b.grad_att = as_sums(a, *grad_att, 2, a.heads * a.channels);
  b.narrow = a.heads > 1 && grad.num_columns() == a.channels;
  add_backward(b, t_indptr, t_indices, perm, grad, grad_src);
  b.grad_src_logit = as_sums(a, grad_src_logit, a.num_src, a.heads);
  b.grad_dst_logit = as_sums(a, grad_dst_logit, a.num_dst, a.heads);
  nb::gil_scoped_release release;
  run_gat_backward(b);
}

void bind_gat_backward(nb::module_& m) {
  using namespace nb::literals;
  def_native(m, "gat_backward", &gat_backward, "indptr"_a, "indices"_a, "t_indptr"_a, "t_indices"_a, "perm"_a,
             "src"_a, "src_logit"_a, "dst_logit"_a, "slope"_a, "num_loops"_a, "p"_a, "seed"_a, "out"_a,
             "lse"_a, "grad"_a, "grad_src"_a, "grad_src_logit"_a, "grad_dst_logit"_a, "above"_a = nb::none(),
             "share"_a = nb::none(), "first_keys"_a = nb::none(), "edge_logit"_a = nb::none(),
             "grad_edge_logit"_a = nb::none(), "att"_a = nb::none(), "grad_att"_a = nb::none());
}

}  // namespace gb
