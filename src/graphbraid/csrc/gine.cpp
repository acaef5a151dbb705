// Binds gine.inl; ops/gine.py describes the operator.
#include "gine.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "balance.h"
#include "prefetch.h"
#include "rows.h"
#include "variants.h"
#include "x86.h"

#define GB_KERNEL_FILE "gine.inl"
#include "for_each_variant.h"

namespace gb {

using OutArray = nb::ndarray<nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <typename Array>
static void need_like(const EdgeRows& a, const Array& rows, int64_t count, const char* name) {
  if (dtype_of(rows, name) != a.dtype) refuse(std::string(name) + " must have the dtype of the other rows");
  need_shape(rows, count, a.width, name);
}

static Rows matching(const EdgeRows& a, const RowArray& rows, int64_t count, const char* name) {
  need_like(a, rows, count, name);
  return rows_of(rows);
}

static void gine(const Array1<const int64_t>& indptr, const VectorArray& indices, const RowArray& x,
                 const RowArray& edges, double loop_scale, int64_t num_loops, const OutArray& out) {
  GineArgs a{edge_rows_of(indptr, indices, x, std::nullopt, "x")};
  a.edges = matching(a, edges, a.num_edges, "edges");
  need_count(num_loops, 0, std::min(static_cast<int64_t>(x.shape(0)), a.num_dst), "num_loops");
  a.loop_scale = loop_scale;
  a.num_loops = num_loops;
  need_like(a, out, a.num_dst, "out");
  a.out = out.data();
  nb::gil_scoped_release release;
  GB_PICK(gine)(a);
}

static void gine_backward(const Array1<const int64_t>& indptr, const VectorArray& indices,
                          const Array1<const int64_t>& perm, const RowArray& grad,
                          const std::optional<RowArray>& x, const RowArray& edges, double loop_scale,
                          int64_t num_loops, const OutArray& out) {
  GineBackwardArgs a{edge_rows_of(indptr, indices, grad, std::nullopt, "grad")};
  need_length(perm, a.num_edges, "perm");
  a.perm = perm.data();
  if (x) a.source = matching(a, *x, a.num_dst, "x");
  a.edges = matching(a, edges, a.num_edges, "edges");
  need_count(num_loops, 0, std::min(static_cast<int64_t>(grad.shape(0)), a.num_dst), "num_loops");
  a.loop_scale = loop_scale;
  a.num_loops = num_loops;
  need_like(a, out, a.num_dst, "out");
  a.out = out.data();
  nb::gil_scoped_release release;
  GB_PICK(gine_backward)(a);
}

static void gine_edge_backward(const Array1<const int64_t>& indptr, const VectorArray& indices,
                               const RowArray& x, const RowArray& edges, const RowArray& grad,
                               const RowArray& out) {
  GineEdgeBackwardArgs a{edge_rows_of(indptr, indices, x, std::nullopt, "x")};
  a.edges = matching(a, edges, a.num_edges, "edges");
  a.grad = matching(a, grad, a.num_dst, "grad");
  need_like(a, out, a.num_edges, "out");
  const Rows written = written_rows(out, "out");
  a.out = const_cast<void*>(written.data);
  a.out_stride = written.stride;
  nb::gil_scoped_release release;
  GB_PICK(gine_edge_backward)(a);
}

void bind_gine(nb::module_& m) {
  m.def("gine", &gine, array_arg("indptr"), array_arg("indices"), array_arg("x"), array_arg("edges"),
        nb::arg("loop_scale"), nb::arg("num_loops"), array_arg("out"));
  m.def("gine_backward", &gine_backward, array_arg("indptr"), array_arg("indices"), array_arg("perm"),
        array_arg("grad"), nb::arg("x").noconvert().none(), array_arg("edges"), nb::arg("loop_scale"),
        nb::arg("num_loops"), array_arg("out"));
  m.def("gine_edge_backward", &gine_edge_backward, array_arg("indptr"), array_arg("indices"), array_arg("x"),
        array_arg("edges"), array_arg("grad"), array_arg("out"));
}

}  // namespace gb
