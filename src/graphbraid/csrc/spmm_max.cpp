// Binds spmm_max.inl; ops/spmm.py describes the operators and checks the graph.
#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "balance.h"
#include "prefetch.h"
#include "rows.h"
#include "spmm.h"
#include "variants.h"
#include "x86.h"

#define GB_KERNEL_FILE "spmm_max.inl"
#include "for_each_variant.h"

namespace gb {

using WinnerArray = nb::ndarray<int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using DenseArray = nb::ndarray<nb::ndim<2>, nb::c_contig, nb::device::cpu>;

static void spmm_max(const Array1<const int64_t>& indptr, const VectorArray& indices, const RowArray& x,
                     const OptionalVector& weight, const DenseArray& out, const WinnerArray& winner) {
  SpmmMaxArgs a{edge_rows_of(indptr, indices, x, weight, "x")};
  need(dtype_of(out, "out") == a.dtype, "out must have the dtype of x");
  need_shape(out, a.num_dst, a.width, "out");
  need_shape(winner, a.num_dst, a.width, "winner");
  a.out = out.data();
  a.winner = winner.data();
  nb::gil_scoped_release release;
  GB_PICK(spmm_max)(a);
}

static void spmm_max_backward(const Array1<const int64_t>& indptr, const VectorArray& indices,
                              const Array1<const int64_t>& perm, const Array1<const int64_t>& forward_indptr,
                              const RowArray& grad, const OptionalVector& weight, const WinnerArray& winner,
                              const DenseArray& out) {
  SpmmMaxBackwardArgs a{edge_rows_of(indptr, indices, grad, weight, "grad")};
  a.perm = perm.data();
  a.forward_indptr = forward_indptr.data();
  const int64_t num_rows = static_cast<int64_t>(grad.shape(0));
  need_length(perm, a.num_edges, "perm");
  need_length(forward_indptr, num_rows + 1, "forward_indptr");
  rows_between(forward_indptr, a.num_edges, "forward_indptr");
  need_shape(winner, num_rows, a.width, "winner");
  need(dtype_of(out, "out") == a.dtype, "out must have the dtype of grad");
  need_shape(out, a.num_dst, a.width, "out");
  a.winner = winner.data();
  a.out = out.data();
  nb::gil_scoped_release release;
  GB_PICK(spmm_max_backward)(a);
}

void bind_spmm_max(nb::module_& m) {
  using namespace nb::literals;
  m.def("spmm_max", &spmm_max, "indptr"_a.noconvert(), "indices"_a.noconvert(), "x"_a.noconvert(),
        "weight"_a.noconvert().none(), "out"_a.noconvert(), "winner"_a.noconvert());
  m.def("spmm_max_backward", &spmm_max_backward, "indptr"_a.noconvert(), "indices"_a.noconvert(),
        "perm"_a.noconvert(), "forward_indptr"_a.noconvert(), "grad"_a.noconvert(),
        "weight"_a.noconvert().none(), "winner"_a.noconvert(), "out"_a.noconvert());
}

}  // namespace gb
