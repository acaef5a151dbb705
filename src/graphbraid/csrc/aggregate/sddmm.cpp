// Binds sddmm.inl; ops/sddmm.py describes the operator.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "aggregate/spmm.h"
#include "arguments/edge_rows.h"
#include "threads/balance.h"
#include "variants/variants.h"
#include "variants/x86.h"

#define GB_KERNEL_FILE "aggregate/sddmm.inl"
#include "variants/for_each_variant.h"

namespace gb {

static void sddmm(const Indptr& indptr, const Ids& indices, const RowArray& dst, const RowArray& src,
                  const OptionalVector& dst_scale, const OptionalVector& src_scale,
                  const WrittenMatrix& out) {
  const Topology topology = topology_of(indptr, indices);
  SddmmArgs a;
  a.dtype = dtype_of(dst);
  a.wide_indices = topology.wide;
  a.indptr = topology.indptr;
  a.indices = topology.indices;
  a.num_dst = topology.num_dst;
  a.num_edges = topology.num_edges;
  a.width = dst.num_columns();
  a.heads = out.num_columns();
  need_length(dst, a.num_dst);
  need_dtype_of(src, dst);
  need_columns(src, a.width);
  need(a.heads > 0 && a.width % a.heads == 0, "the columns of dst must be a multiple of those of out");
  need_dtype(out, sum_dtype(a.dtype), "the sums");
  need_length(out, a.num_edges);
  a.dst = rows_of(dst);
  a.src = rows_of(src);
  a.dst_scale = in_sums(dst_scale, a.dtype, a.num_dst);
  a.src_scale = in_sums(src_scale, a.dtype, src.num_rows());
  a.out = out.data();
  nb::gil_scoped_release release;
  GB_PICK(sddmm)(a);
}

void bind_sddmm(nb::module_& m) {
  using namespace nb::literals;
  def_native(m, "sddmm", &sddmm, "indptr"_a, "indices"_a, "dst"_a, "src"_a, "dst_scale"_a, "src_scale"_a,
             "out"_a);
}

}  // namespace gb
