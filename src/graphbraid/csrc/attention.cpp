// Binds attention.inl; ops/attention.py and ops/edge_softmax.py describe the operators.
#include "attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "balance.h"
#include "buffer.h"
#include "dropout.h"
#include "rows.h"
#include "variants.h"
#include "x86.h"

#define GB_KERNEL_FILE "attention.inl"
#include "for_each_variant.h"

namespace gb {

using Matrix = nb::ndarray<nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Indptr = Array1<const int64_t>;

// Data of a matrix that must have the given shape and dtype.
static void* checked(const Matrix& matrix, int64_t rows, int64_t columns, DType dtype, const char* name) {
  need(static_cast<int64_t>(matrix.shape(0)) == rows && static_cast<int64_t>(matrix.shape(1)) == columns,
       (std::string(name) + " has the wrong shape").c_str());
  need(dtype_of(matrix, name) == dtype, (std::string(name) + " has the wrong dtype").c_str());
  return matrix.data();
}

static AttentionArgs common_args(const Indptr& indptr, const VectorArray& indices, const Matrix& src,
                                 double slope, int64_t num_loops, double p, uint64_t seed, const Matrix& out,
                                 const Matrix& lse) {
  const Topology topology = topology_of(indptr, indices);
  AttentionArgs a;
  a.dtype = dtype_of(src, "src");
  a.wide_indices = topology.wide;
  a.indptr = topology.indptr;
  a.indices = topology.indices;
  a.num_dst = topology.num_dst;
  a.num_edges = topology.num_edges;
  a.num_src = static_cast<int64_t>(src.shape(0));
  a.heads = static_cast<int64_t>(lse.shape(1));
  const int64_t width = static_cast<int64_t>(src.shape(1));
  need(a.heads > 0 && width > 0 && width % a.heads == 0, "the width must be a multiple of the heads");
  a.channels = width / a.heads;
  a.slope = slope;
  need(num_loops <= std::min(a.num_src, a.num_dst), "num_loops must not exceed the number of rows");
  a.num_loops = num_loops;
  need(p >= 0 && p < 1, "p must lie in [0, 1)");
  a.threshold = static_cast<uint32_t>(p * 4294967296.0);
  a.keep_scale = 1.0 / (1.0 - p);
  a.seed = seed;
  a.src = src.data();
  a.out = checked(out, a.num_dst, width, a.dtype, "out");
  a.lse = checked(lse, a.num_dst, a.heads, sum_dtype(a.dtype), "lse");
  return a;
}

static void add_gat(AttentionArgs& a, const Matrix& src_logit, const Matrix& dst_logit) {
  a.src_logit = checked(src_logit, a.num_src, a.heads, sum_dtype(a.dtype), "src_logit");
  a.dst_logit = checked(dst_logit, a.num_dst, a.heads, sum_dtype(a.dtype), "dst_logit");
}

// What GAT's forward keeps for its backward; both or none.
static void add_above(AttentionArgs& a, const std::optional<Matrix>& above,
                      const std::optional<Matrix>& share) {
  need(above.has_value() == share.has_value(), "above and share go together");
  if (!above) return;
  a.above = checked(*above, a.num_dst, a.heads * a.channels, sum_dtype(a.dtype), "above");
  a.share = checked(*share, a.num_dst, a.heads, sum_dtype(a.dtype), "share");
}

static void add_gatv2(AttentionArgs& a, const Matrix& dst, const Matrix& att) {
  a.dst = checked(dst, a.num_dst, a.heads * a.channels, a.dtype, "dst");
  a.att = checked(att, a.heads, a.channels, sum_dtype(a.dtype), "att");
}

static void add_backward(AttentionBackwardArgs& b, const Indptr& t_indptr, const VectorArray& t_indices,
                         const Indptr& perm, const Matrix& grad, const Matrix& grad_src) {
  const AttentionArgs& a = b.forward;
  const Topology transposed = topology_of(t_indptr, t_indices);
  need(transposed.num_dst == a.num_src && transposed.num_edges == a.num_edges &&
           transposed.wide == a.wide_indices,
       "the transpose does not fit the graph");
  // Without dropout GAT asks for no edge's id.
  const bool has_ids = static_cast<int64_t>(perm.shape(0)) == a.num_edges;
  need(has_ids || (a.src_logit && a.threshold == 0), "perm must have one number per edge");
  b.t_indptr = transposed.indptr;
  b.t_indices = transposed.indices;
  b.perm = perm.data();
  b.grad = checked(grad, a.num_dst, b.narrow ? a.channels : a.heads * a.channels, a.dtype, "grad");
  b.grad_src = checked(grad_src, a.num_src, a.heads * a.channels, a.dtype, "grad_src");
}

static void gat_forward(const Indptr& indptr, const VectorArray& indices, const Matrix& src,
                        const Matrix& src_logit, const Matrix& dst_logit, double slope, int64_t num_loops,
                        double p, uint64_t seed, const Matrix& out, const Matrix& lse,
                        const std::optional<Matrix>& above, const std::optional<Matrix>& share) {
  AttentionArgs a = common_args(indptr, indices, src, slope, num_loops, p, seed, out, lse);
  add_gat(a, src_logit, dst_logit);
  add_above(a, above, share);
  nb::gil_scoped_release release;
  GB_PICK(attention_forward)(a);
}

static void gat_backward(const Indptr& indptr, const VectorArray& indices, const Indptr& t_indptr,
                         const VectorArray& t_indices, const Indptr& perm, const Matrix& src,
                         const Matrix& src_logit, const Matrix& dst_logit, double slope, int64_t num_loops,
                         double p, uint64_t seed, const Matrix& out, const Matrix& lse, const Matrix& grad,
                         const Matrix& grad_src, const Matrix& grad_src_logit, const Matrix& grad_dst_logit,
                         const std::optional<Matrix>& above, const std::optional<Matrix>& share) {
  AttentionBackwardArgs b;
  b.forward = common_args(indptr, indices, src, slope, num_loops, p, seed, out, lse);
  const AttentionArgs& a = b.forward;
  add_gat(b.forward, src_logit, dst_logit);
  need(above.has_value(), "the forward must have kept above and share");
  add_above(b.forward, above, share);
  b.narrow = a.heads > 1 && static_cast<int64_t>(grad.shape(1)) == a.channels;
  add_backward(b, t_indptr, t_indices, perm, grad, grad_src);
  b.grad_src_logit = checked(grad_src_logit, a.num_src, a.heads, sum_dtype(a.dtype), "grad_src_logit");
  b.grad_dst_logit = checked(grad_dst_logit, a.num_dst, a.heads, sum_dtype(a.dtype), "grad_dst_logit");
  nb::gil_scoped_release release;
  GB_PICK(gat_backward)(b);
}

static void gatv2_forward(const Indptr& indptr, const VectorArray& indices, const Matrix& src,
                          const Matrix& dst, const Matrix& att, double slope, int64_t num_loops, double p,
                          uint64_t seed, const Matrix& out, const Matrix& lse) {
  AttentionArgs a = common_args(indptr, indices, src, slope, num_loops, p, seed, out, lse);
  add_gatv2(a, dst, att);
  nb::gil_scoped_release release;
  GB_PICK(attention_forward)(a);
}

static void gatv2_backward(const Indptr& indptr, const VectorArray& indices, const Indptr& t_indptr,
                           const VectorArray& t_indices, const Indptr& perm, const Matrix& src,
                           const Matrix& dst, const Matrix& att, double slope, int64_t num_loops, double p,
                           uint64_t seed, const Matrix& out, const Matrix& lse, const Matrix& grad,
                           const Matrix& grad_src, const Matrix& grad_dst, const Matrix& grad_att) {
  AttentionBackwardArgs b;
  b.forward = common_args(indptr, indices, src, slope, num_loops, p, seed, out, lse);
  const AttentionArgs& a = b.forward;
  add_gatv2(b.forward, dst, att);
  add_backward(b, t_indptr, t_indices, perm, grad, grad_src);
  b.grad_dst = checked(grad_dst, a.num_dst, a.heads * a.channels, a.dtype, "grad_dst");
  b.grad_att = checked(grad_att, a.heads, a.channels, sum_dtype(a.dtype), "grad_att");
  nb::gil_scoped_release release;
  GB_PICK(gatv2_backward)(b);
}

static EdgeSoftmaxArgs softmax_args(const Indptr& indptr, const Matrix& logits, const Matrix& out) {
  EdgeSoftmaxArgs a;
  const DType dtype = dtype_of(logits, "logits");
  need(dtype == sum_dtype(dtype), "logits must be float32 or float64");
  a.is_double = dtype == DType::kFloat64;
  a.indptr = indptr.data();
  a.num_dst = static_cast<int64_t>(indptr.shape(0)) - 1;
  a.heads = static_cast<int64_t>(logits.shape(1));
  a.logits = logits.data();
  a.out = checked(out, static_cast<int64_t>(logits.shape(0)), a.heads, dtype, "out");
  return a;
}

static void edge_softmax(const Indptr& indptr, const Matrix& logits, const Matrix& out) {
  const EdgeSoftmaxArgs a = softmax_args(indptr, logits, out);
  nb::gil_scoped_release release;
  GB_PICK(edge_softmax)(a);
}

static void edge_softmax_backward(const Indptr& indptr, const Matrix& alpha, const Matrix& grad,
                                  const Matrix& out) {
  EdgeSoftmaxArgs a = softmax_args(indptr, alpha, out);
  a.grad = checked(grad, static_cast<int64_t>(alpha.shape(0)), a.heads, dtype_of(alpha, "alpha"), "grad");
  nb::gil_scoped_release release;
  GB_PICK(edge_softmax_backward)(a);
}

void bind_attention(nb::module_& m) {
  // Positional only, and never converted: an output that was copied on the way in would be lost.
  const auto array = [](const char* name) { return nb::arg(name).noconvert(); };
  const auto value = [](const char* name) { return nb::arg(name); };
  const auto optional = [](const char* name) { return nb::arg(name).noconvert() = nb::none(); };
  m.def("gat_forward", &gat_forward, array("indptr"), array("indices"), array("src"), array("src_logit"),
        array("dst_logit"), value("slope"), value("num_loops"), value("p"), value("seed"), array("out"),
        array("lse"), optional("above"), optional("share"));
  m.def("gat_backward", &gat_backward, array("indptr"), array("indices"), array("t_indptr"),
        array("t_indices"), array("perm"), array("src"), array("src_logit"), array("dst_logit"),
        value("slope"), value("num_loops"), value("p"), value("seed"), array("out"), array("lse"),
        array("grad"), array("grad_src"), array("grad_src_logit"), array("grad_dst_logit"), optional("above"),
        optional("share"));
  m.def("gatv2_forward", &gatv2_forward, array("indptr"), array("indices"), array("src"), array("dst"),
        array("att"), value("slope"), value("num_loops"), value("p"), value("seed"), array("out"),
        array("lse"));
  m.def("gatv2_backward", &gatv2_backward, array("indptr"), array("indices"), array("t_indptr"),
        array("t_indices"), array("perm"), array("src"), array("dst"), array("att"), value("slope"),
        value("num_loops"), value("p"), value("seed"), array("out"), array("lse"), array("grad"),
        array("grad_src"), array("grad_dst"), array("grad_att"));
  m.def("edge_softmax", &edge_softmax, array("indptr"), array("logits"), array("out"));
  m.def("edge_softmax_backward", &edge_softmax_backward, array("indptr"), array("alpha"), array("grad"),
        array("out"));
}

}  // namespace gb
