// Binds gine.inl; ops/gine.py describes the operator.
#include "aggregate/gine.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "arguments/edge_rows.h"
#include "base/buffer.h"
#include "base/prefetch.h"
#include "threads/balance.h"
#include "variants/variants.h"
#include "variants/x86.h"

#define GB_KERNEL_FILE "aggregate/gine.inl"
#include "variants/for_each_variant.h"

namespace gb {

void run_gine(const GineArgs& a) { GB_PICK(gine)(a); }
void run_gine_backward(const GineBackwardArgs& a) { GB_PICK(gine_backward)(a); }
void run_gine_edge_backward(const GineEdgeBackwardArgs& a) { GB_PICK(gine_edge_backward)(a); }
void run_gine_map_backward(const GineMapBackwardArgs& a) { GB_PICK(gine_map_backward)(a); }

static void gine(const Indptr& indptr, const Ids& indices, const RowArray& x, const RowArray& edges,
                 double loop_scale, int64_t num_loops, const WrittenMatrix& out) {
  GineArgs a{edge_rows_of(indptr, indices, x)};
  a.edges = rows_like(a, edges, a.num_edges);
  need_count(num_loops, 0, std::min(x.num_rows(), a.num_dst), "num_loops");
  a.loop_scale = loop_scale;
  a.num_loops = num_loops;
  rows_like(a, out, a.num_dst);
  a.out = out.data();
  nb::gil_scoped_release release;
  run_gine(a);
}

static void gine_backward(const Indptr& indptr, const Ids& indices, const Indptr& perm, const RowArray& grad,
                          const std::optional<RowArray>& x, const RowArray& edges, double loop_scale,
                          int64_t num_loops, const WrittenMatrix& out) {
  GineBackwardArgs a{edge_rows_of(indptr, indices, grad)};
  need_length(perm, a.num_edges);
  a.perm = perm.data();
  if (x) a.source = rows_like(a, *x, a.num_dst);
  a.edges = rows_like(a, edges, a.num_edges);
  need_count(num_loops, 0, std::min(grad.num_rows(), a.num_dst), "num_loops");
  a.loop_scale = loop_scale;
  a.num_loops = num_loops;
  rows_like(a, out, a.num_dst);
  a.out = out.data();
  nb::gil_scoped_release release;
  run_gine_backward(a);
}

static void gine_edge_backward(const Indptr& indptr, const Ids& indices, const RowArray& x,
                               const RowArray& edges, const RowArray& grad, const WrittenRows& out) {
  GineEdgeBackwardArgs a{edge_rows_of(indptr, indices, x)};
  a.edges = rows_like(a, edges, a.num_edges);
  a.grad = rows_like(a, grad, a.num_dst);
  a.out_stride = rows_like(a, out, a.num_edges).stride;
  a.out = out.data();
  nb::gil_scoped_release release;
  run_gine_edge_backward(a);
}

void bind_gine(nb::module_& m) {
  using namespace nb::literals;
  def_native(m, "gine", &gine, "indptr"_a, "indices"_a, "x"_a, "edges"_a, "loop_scale"_a, "num_loops"_a,
             "out"_a);
  def_native(m, "gine_backward", &gine_backward, "indptr"_a, "indices"_a, "perm"_a, "grad"_a, "x"_a,
             "edges"_a, "loop_scale"_a, "num_loops"_a, "out"_a);
  def_native(m, "gine_edge_backward", &gine_edge_backward, "indptr"_a, "indices"_a, "x"_a, "edges"_a,
             "grad"_a, "out"_a);
}

}  // namespace gb
