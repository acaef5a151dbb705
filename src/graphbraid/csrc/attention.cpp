// Binds attention.inl; ops/attention.py describes the operators.
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

#define GB_KERNEL_FILE "attention.inl"
#include "for_each_variant.h"

namespace gb {

static void gat_forward(const Indptr& indptr, const VectorArray& indices, const Matrix& src,
                        const Matrix& src_logit, const Matrix& dst_logit, double slope, int64_t num_loops,
                        double p, uint64_t seed, const Matrix& out, const Matrix& lse,
                        const std::optional<Matrix>& above, const std::optional<Matrix>& share,
                        const FirstKeys& first_keys, const OptionalMatrix& edge_logit) {
  AttentionArgs a = common_args(indptr, indices, src, slope, num_loops, p, seed, out, lse);
  add_keys(a, first_keys);
  add_gat(a, src_logit, dst_logit);
  add_above(a, above, share);
  a.edge_logit = edge_logits(a, edge_logit, "edge_logit");
  nb::gil_scoped_release release;
  GB_PICK(attention_forward)(a);
}

static void gatv2_forward(const Indptr& indptr, const VectorArray& indices, const Matrix& src,
                          const Matrix& dst, const Matrix& att, double slope, int64_t num_loops, double p,
                          uint64_t seed, const Matrix& out, const Matrix& lse, const FirstKeys& first_keys,
                          const OptionalRows& edge_features, const OptionalRows& loop_features,
                          const OptionalMatrix& edge_weight) {
  AttentionArgs a = common_args(indptr, indices, src, slope, num_loops, p, seed, out, lse);
  add_keys(a, first_keys);
  add_gatv2(a, dst, att);
  add_edge_features(a, edge_features, loop_features, edge_weight);
  nb::gil_scoped_release release;
  GB_PICK(attention_forward)(a);
}

void bind_attention(nb::module_& m) {
  m.def("gat_forward", &gat_forward, array_arg("indptr"), array_arg("indices"), array_arg("src"),
        array_arg("src_logit"), array_arg("dst_logit"), nb::arg("slope"), nb::arg("num_loops"), nb::arg("p"),
        nb::arg("seed"), array_arg("out"), array_arg("lse"), optional_arg("above"), optional_arg("share"),
        optional_arg("first_keys"), optional_arg("edge_logit"));
  m.def("gatv2_forward", &gatv2_forward, array_arg("indptr"), array_arg("indices"), array_arg("src"),
        array_arg("dst"), array_arg("att"), nb::arg("slope"), nb::arg("num_loops"), nb::arg("p"),
        nb::arg("seed"), array_arg("out"), array_arg("lse"), optional_arg("first_keys"),
        optional_arg("edge_features"), optional_arg("loop_features"), optional_arg("edge_weight"));
}

}  // namespace gb
