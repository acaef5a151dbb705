// Binds the aggregation kernels (spmm.inl, spmm_max.inl, sddmm.inl); ops/spmm.py and ops/sddmm.py describe
// them.
#include "aggregate/spmm.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "arguments/bound.h"
#include "arguments/epilogue_arguments.h"
#include "base/dropout.h"
#include "base/prefetch.h"
#include "threads/balance.h"
#include "variants/variants.h"
#include "variants/x86.h"

#define GB_KERNEL_FILE "aggregate/spmm.inl"
#include "variants/for_each_variant.h"

namespace gb {

void run_spmm(const SpmmArgs& a) { GB_PICK(spmm)(a); }

static void spmm(const Indptr& indptr, const Ids& indices, const RowArray& x, const OptionalVector& weight,
                 const OptionalVector& src_scale, const OptionalVector& dst_scale, const OptionalVector& loop,
                 double loop_scale, int64_t num_loops, bool skip_loops, bool mean,
                 const std::optional<RowArray>& addend, const WrittenRows& out,
                 const OptionalEpilogue& after) {
  SpmmArgs a{edge_rows_of(indptr, indices, x, weight)};
  a.src_scale = in_sums(src_scale, a.dtype, x.num_rows());
  a.dst_scale = in_sums(dst_scale, a.dtype, a.num_dst);
  need_count(num_loops, 0, std::min(x.num_rows(), a.num_dst), "num_loops");
  a.loop = in_sums(loop, a.dtype, num_loops);
  a.loop_scale = loop_scale;
  a.num_loops = num_loops;
  a.skip_loops = skip_loops;
  a.mean = mean;
  const DType out_dtype = dtype_of(out);
  a.out_wide = out_dtype != a.dtype;
  if (a.out_wide) need_dtype(out, sum_dtype(a.dtype), "x or of its sums");
  need_shape(out, a.num_dst, a.width);
  a.out = out.data();
  a.out_stride = out.stride(0);
  if (addend) {
    need_dtype_of(*addend, out);
    need_columns(*addend, a.width);
    need_count(addend->num_rows(), 0, a.num_dst, "the length of addend");
    a.addend = rows_of(*addend);
    a.num_addend = addend->num_rows();
  }
  const std::optional<Epilogue> follows = epilogue_of(after, out_dtype, a.num_dst, a.width);
  a.epilogue = follows ? &*follows : nullptr;
  nb::gil_scoped_release release;
  run_spmm(a);
}

void bind_spmm(nb::module_& m) {
  using namespace nb::literals;
  def_kernel<&spmm>(m, "spmm", "indptr"_a, "indices"_a, "x"_a, "weight"_a, "src_scale"_a, "dst_scale"_a,
                    "loop"_a, "loop_scale"_a, "num_loops"_a, "skip_loops"_a, "mean"_a, "addend"_a, "out"_a,
                    "after"_a = nb::none());
}

}  // namespace gb
