// Binds sddmm.inl; ops/sddmm.py describes the operator.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "balance.h"
#include "rows.h"
#include "spmm.h"
#include "variants.h"
#include "x86.h"

#define GB_KERNEL_FILE "sddmm.inl"
#include "for_each_variant.h"

namespace gb {

static void sddmm(const Array1<const int64_t>& indptr, const VectorArray& indices, const RowArray& dst,
                  const RowArray& src, const OptionalVector& dst_scale, const OptionalVector& src_scale,
                  const nb::ndarray<nb::ndim<2>, nb::c_contig, nb::device::cpu>& out) {
  const Topology topology = topology_of(indptr, indices);
  SddmmArgs a;
  a.dtype = dtype_of(dst, "dst");
  need(dtype_of(src, "src") == a.dtype, "src must have the dtype of dst");
  a.wide_indices = topology.wide;
  a.indptr = topology.indptr;
  a.indices = topology.indices;
  a.num_dst = topology.num_dst;
  a.num_edges = topology.num_edges;
  a.width = static_cast<int64_t>(dst.shape(1));
  a.heads = static_cast<int64_t>(out.shape(1));
  a.dst = rows_of(dst);
  a.src = rows_of(src);
  need_shape(dst, a.num_dst, a.width, "dst");
  need(src.shape(1) == dst.shape(1), "src must be as wide as dst");
  need(a.heads > 0 && a.width % a.heads == 0, "the width must be a multiple of the heads");
  need(dtype_of(out, "out") == sum_dtype(a.dtype), "out must have the dtype of the sums");
  need_length(out, a.num_edges, "out");
  a.dst_scale = coefficients(dst_scale, a.dtype, a.num_dst, "dst_scale");
  a.src_scale = coefficients(src_scale, a.dtype, static_cast<int64_t>(src.shape(0)), "src_scale");
  a.out = out.data();
  nb::gil_scoped_release release;
  GB_PICK(sddmm)(a);
}

void bind_sddmm(nb::module_& m) {
  using namespace nb::literals;
  m.def("sddmm", &sddmm, "indptr"_a.noconvert(), "indices"_a.noconvert(), "dst"_a.noconvert(),
        "src"_a.noconvert(), "dst_scale"_a.noconvert().none(), "src_scale"_a.noconvert().none(),
        "out"_a.noconvert());
}

}  // namespace gb
