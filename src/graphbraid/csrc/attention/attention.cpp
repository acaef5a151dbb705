// Binds attention.inl; ops/attention.py describes the operators.
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

#define GB_KERNEL_FILE "attention/attention.inl"
#include "variants/for_each_variant.h"

namespace gb {

void run_attention(const AttentionArgs& a) { GB_PICK(attention_forward)(a); }

static void gat_forward(const Indptr& indptr, const Ids& indices, const Matrix& src,
                        const WrittenMatrix& src_logit, const WrittenMatrix& dst_logit, double slope,
                        int64_t num_loops, double p, uint64_t seed, const WrittenMatrix& out,
                        const WrittenMatrix& lse, const OptionalWrittenMatrix& above,
                        const OptionalWrittenMatrix& share, const OptionalIds& first_keys,
                        const OptionalMatrix& edge_logit, const OptionalMatrix& att) {
  AttentionArgs a = common_args(indptr, indices, src, slope, num_loops, p, seed, out, lse);
  add_keys(a, first_keys);
  add_gat(a, src_logit, dst_logit);
  add_vectors(a, att);
  add_above(a, above, share);
  a.edge_logit = edge_logits(a, edge_logit);
  nb::gil_scoped_release release;
  run_attention(a);
}

static void gatv2_forward(const Indptr& indptr, const Ids& indices, const Matrix& src, const Matrix& dst,
                          const Matrix& att, double slope, int64_t num_loops, double p, uint64_t seed,
                          const WrittenMatrix& out, const WrittenMatrix& lse, const OptionalIds& first_keys,
                          const OptionalRows& edge_features, const OptionalRows& loop_features,
                          const OptionalMatrix& edge_weight) {
  AttentionArgs a = common_args(indptr, indices, src, slope, num_loops, p, seed, out, lse);
  add_keys(a, first_keys);
  add_gatv2(a, dst, att);
  add_edge_features(a, edge_features, loop_features, edge_weight);
  nb::gil_scoped_release release;
  run_attention(a);
}

void bind_attention(nb::module_& m) {
  using namespace nb::literals;
  def_native(m, "gat_forward", &gat_forward, "indptr"_a, "indices"_a, "src"_a, "src_logit"_a, "dst_logit"_a,
             "slope"_a, "num_loops"_a, "p"_a, "seed"_a, "out"_a, "lse"_a, "above"_a = nb::none(),
             "share"_a = nb::none(), "first_keys"_a = nb::none(), "edge_logit"_a = nb::none(),
             "att"_a = nb::none());
  def_native(m, "gatv2_forward", &gatv2_forward, "indptr"_a, "indices"_a, "src"_a, "dst"_a, "att"_a,
             "slope"_a, "num_loops"_a, "p"_a, "seed"_a, "out"_a, "lse"_a, "first_keys"_a = nb::none(),
             "edge_features"_a = nb::none(), "loop_features"_a = nb::none(), "edge_weight"_a = nb::none());
}

}  // namespace gb
