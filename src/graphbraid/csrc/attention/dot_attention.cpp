// Binds dot_attention.inl; ops/attention.py describes the operators.
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

#define GB_KERNEL_FILE "attention/dot_attention.inl"
#include "variants/for_each_variant.h"

namespace gb {

void run_dot_attention(const AttentionArgs& a) { GB_PICK(dot_forward)(a); }
void run_dot_backward(const AttentionBackwardArgs& b) { GB_PICK(dot_backward)(b); }

// Keys, queries and the logarithms; the largest logits stand where other attentions have their log-sum-exp.
template <typename Given>
static void add_dot(AttentionArgs& a, const Matrix& key, const Matrix& dst, double scale, const Given& log) {
  need(a.dtype == DType::kFloat32 || a.dtype == DType::kFloat64, "src must be float32 or float64");
  a.key = as_src(a, key, a.num_src, a.heads * a.channels);
  a.dst = as_src(a, dst, a.num_dst, a.heads * a.channels);
  a.scale = scale;
  a.log = either_way(as_sums(a, log, a.num_dst, a.heads));
}

// Features of edges and their map; `mixed` is written by forward, and is there for backward.
template <typename Given>
static void add_dot_features(AttentionArgs& a, const OptionalRows& features, const OptionalMatrix& weight,
                             const std::optional<Given>& mixed) {
  need(features.has_value() == weight.has_value() && features.has_value() == mixed.has_value(),
       "edge_features, edge_weight and mixed go together");
  if (!features) return;
  const int64_t given = features->num_columns();
  a.edge_channels = weight->num_rows();
  a.edge_bias = a.edge_channels == given + 1;
  need(a.edge_channels > 0 && (a.edge_bias || a.edge_channels == given),
       "edge_weight must have a row for each feature, and may have one more for a bias");
  as_sums(a, *features, a.num_edges, given);
  a.edge_features = rows_of(*features);
  a.edge_weight = as_sums(a, *weight, a.edge_channels, a.heads * a.channels);
  a.mixed = either_way(as_sums(a, *mixed, a.num_dst, a.edge_channels * a.heads));
}

static void dot_forward(const Indptr& indptr, const Ids& indices, const Matrix& src, const Matrix& key,
                        const Matrix& dst, double scale, const WrittenMatrix& out, const WrittenMatrix& top,
                        const WrittenMatrix& log, const OptionalRows& edge_features,
                        const OptionalMatrix& edge_weight, const OptionalWrittenMatrix& mixed) {
  AttentionArgs a = common_args(indptr, indices, src, 1.0, 0, 0.0, 0, out, top);
  add_dot(a, key, dst, scale, log);
  add_dot_features(a, edge_features, edge_weight, mixed);
  nb::gil_scoped_release release;
  run_dot_attention(a);
}

static void dot_backward(const Indptr& indptr, const Ids& indices, const Indptr& t_indptr,
                         const Ids& t_indices, const Matrix& src, const Matrix& key, const Matrix& dst,
                         double scale, const Matrix& out, const Matrix& top, const Matrix& log,
                         const Matrix& grad, const OptionalWrittenMatrix& grad_src,
                         const OptionalWrittenMatrix& grad_key, const OptionalWrittenMatrix& grad_dst,
                         bool adds, const OptionalIds& perm, const OptionalWrittenMatrix& grad_logit,
                         const OptionalRows& edge_features, const OptionalMatrix& edge_weight,
                         const OptionalMatrix& mixed, const OptionalWrittenMatrix& grad_edge_weight) {
  AttentionBackwardArgs b;
  b.forward = common_args(indptr, indices, src, 1.0, 0, 0.0, 0, out, top);
  const AttentionArgs& a = b.forward;
  add_dot(b.forward, key, dst, scale, log);
  add_dot_features(b.forward, edge_features, edge_weight, mixed);
  add_transpose(b, t_indptr, t_indices);
  const int64_t width = a.heads * a.channels;
  b.grad = as_src(a, grad, a.num_dst, width);
  if (grad_src) b.grad_src = as_src(a, *grad_src, a.num_src, width);
  if (grad_key) b.grad_key = as_src(a, *grad_key, a.num_src, width);
  if (grad_dst) b.grad_dst = as_src(a, *grad_dst, a.num_dst, width);
  need(perm.has_value() == (grad_logit || edge_features), "grad_logit and edge_features come with perm");
  need(!grad_edge_weight || edge_features, "grad_edge_weight comes with edge_features");
  if (grad_edge_weight) b.grad_edge_weight = as_sums(a, *grad_edge_weight, a.edge_channels, width);
  need_length(perm, a.num_edges);
  b.perm = data_or_null(perm);
  b.adds = adds;
  if (grad_logit) b.grad_logit = as_sums(a, *grad_logit, a.num_edges, a.heads);
  nb::gil_scoped_release release;
  run_dot_backward(b);
}

void bind_dot_attention(nb::module_& m) {
  using namespace nb::literals;
  def_native(m, "dot_forward", &dot_forward, "indptr"_a, "indices"_a, "src"_a, "key"_a, "dst"_a, "scale"_a,
             "out"_a, "top"_a, "log"_a, "edge_features"_a = nb::none(), "edge_weight"_a = nb::none(),
             "mixed"_a = nb::none());
  def_native(m, "dot_backward", &dot_backward, "indptr"_a, "indices"_a, "t_indptr"_a, "t_indices"_a, "src"_a,
             "key"_a, "dst"_a, "scale"_a, "out"_a, "top"_a, "log"_a, "grad"_a, "grad_src"_a, "grad_key"_a,
             "grad_dst"_a, "adds"_a, "perm"_a = nb::none(), "grad_logit"_a = nb::none(),
             "edge_features"_a = nb::none(), "edge_weight"_a = nb::none(), "mixed"_a = nb::none(),
             "grad_edge_weight"_a = nb::none());
}

}  // namespace gb
