// Binds gatv2_backward.inl; ops/attention.py describes the operators.
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

#define GB_KERNEL_FILE "attention/gatv2_backward.inl"
#include "variants/for_each_variant.h"

namespace gb {

void run_gatv2_backward(const AttentionBackwardArgs& b) { GB_PICK(gatv2_backward)(b); }

static void gatv2_backward(const Indptr& indptr, const Ids& indices, const Indptr& t_indptr,
                           const Ids& t_indices, const Indptr& perm, const Matrix& src, const Matrix& dst,
                           const Matrix& att, double slope, int64_t num_loops, double p, uint64_t seed,
                           const Matrix& out, const Matrix& lse, const Matrix& grad,
                           const WrittenMatrix& grad_src, const WrittenMatrix& grad_dst,
                           const WrittenMatrix& grad_att, const OptionalIds& first_keys,
                           const OptionalRows& edge_features, const OptionalRows& loop_features,
                           const OptionalMatrix& edge_weight, const OptionalWrittenMatrix& grad_edge_weight) {
  AttentionBackwardArgs b;
  b.forward = common_args(indptr, indices, src, slope, num_loops, p, seed, out, lse);
  const AttentionArgs& a = b.forward;
  add_keys(b.forward, first_keys);
  add_gatv2(b.forward, dst, att);
  add_edge_features(b.forward, edge_features, loop_features, edge_weight);
  add_backward(b, t_indptr, t_indices, perm, grad, grad_src);
  b.grad_dst = as_src(a, grad_dst, a.num_dst, a.heads * a.channels);
  b.grad_att = as_sums(a, grad_att, a.heads, a.channels);
  if (grad_edge_weight) {
    need(a.edge_weight, "grad_edge_weight goes with edge_weight");
    b.grad_edge_weight = as_sums(a, *grad_edge_weight, a.edge_channels, a.heads * a.channels);
  }
  nb::gil_scoped_release release;
  run_gatv2_backward(b);
}

void bind_gatv2_backward(nb::module_& m) {
  using namespace nb::literals;
  def_native(m, "gatv2_backward", &gatv2_backward, "indptr"_a, "indices"_a, "t_indptr"_a, "t_indices"_a,
             "perm"_a, "src"_a, "dst"_a, "att"_a, "slope"_a, "num_loops"_a, "p"_a, "seed"_a, "out"_a, "lse"_a,
             "grad"_a, "grad_src"_a, "grad_dst"_a, "grad_att"_a, "first_keys"_a = nb::none(),
             "edge_features"_a = nb::none(), "loop_features"_a = nb::none(), "edge_weight"_a = nb::none(),
             "grad_edge_weight"_a = nb::none());
}

}  // namespace gb
