// Binds the aggregation kernels (spmm.inl, spmm_max.inl, sddmm.inl); ops/spmm.py and ops/sddmm.py describe
// them.
#include "spmm.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "balance.h"
#include "bound.h"
#include "dropout.h"
#include "epilogue_arguments.h"
#include "prefetch.h"
#include "rows.h"
#include "variants.h"
#include "x86.h"

#define GB_KERNEL_FILE "spmm.inl"
#include "for_each_variant.h"

namespace gb {

static void spmm(const Array1<const int64_t>& indptr, const VectorArray& indices, const RowArray& x,
                 const OptionalVector& weight, const OptionalVector& src_scale,
                 const OptionalVector& dst_scale, const OptionalVector& loop, double loop_scale,
                 int64_t num_loops, bool skip_loops, bool mean, const std::optional<RowArray>& addend,
                 const RowArray& out, const std::optional<EpilogueTuple>& after) {
  SpmmArgs a{edge_rows_of(indptr, indices, x, weight, "x")};
  const int64_t num_src = static_cast<int64_t>(x.shape(0));
  a.src_scale = coefficients(src_scale, a.dtype, num_src, "src_scale");
  a.dst_scale = coefficients(dst_scale, a.dtype, a.num_dst, "dst_scale");
  need_count(num_loops, 0, std::min(num_src, a.num_dst), "num_loops");
  a.loop = coefficients(loop, a.dtype, num_loops, "loop");
  a.loop_scale = loop_scale;
  a.num_loops = num_loops;
  a.skip_loops = skip_loops;
  a.mean = mean;
  const DType out_dtype = dtype_of(out, "out");
  a.out_wide = out_dtype != a.dtype;
  need(out_dtype == a.dtype || out_dtype == sum_dtype(a.dtype),
       "out must have the dtype of x or of its sums");
  need_shape(out, a.num_dst, a.width, "out");
  const Rows out_rows = written_rows(out, "out");
  a.out = const_cast<void*>(out_rows.data);
  a.out_stride = out_rows.stride;
  if (addend) {
    need(dtype_of(*addend, "addend") == out_dtype, "addend must have the dtype of out");
    need(addend->shape(1) == x.shape(1) && static_cast<int64_t>(addend->shape(0)) <= a.num_dst,
         "addend has the wrong shape");
    a.addend = rows_of(*addend);
    a.num_addend = static_cast<int64_t>(addend->shape(0));
  }
  const std::optional<Epilogue> follows = epilogue_of(after, out_dtype, a.num_dst, a.width);
  a.epilogue = follows ? &*follows : nullptr;
  nb::gil_scoped_release release;
  GB_PICK(spmm)(a);
}

void bind_spmm(nb::module_& m) {
  using namespace nb::literals;
  def_kernel<&spmm>(m, "spmm", "indptr"_a.noconvert(), "indices"_a.noconvert(), "x"_a.noconvert(),
                    "weight"_a.noconvert().none(), "src_scale"_a.noconvert().none(),
                    "dst_scale"_a.noconvert().none(), "loop"_a.noconvert().none(), "loop_scale"_a,
                    "num_loops"_a, "skip_loops"_a, "mean"_a, "addend"_a.noconvert().none(),
                    "out"_a.noconvert(), "after"_a.none() = nb::none());
}

}  // namespace gb
