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
  need(static_cast<int64_t>(out.shape(0)) == a.num_dst && out.shape(1) == x.shape(1) &&
           winner.shape(0) == out.shape(0) && winner.shape(1) == out.shape(1),
       "out and winner must be (num_dst, width)");
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
  need(static_cast<int64_t>(perm.shape(0)) == a.num_edges, "perm must have one entry per edge");
  need(forward_indptr.shape(0) == grad.shape(0) + 1,
       "forward_indptr must have one entry per row of grad, and one");
  need(winner.shape(0) == grad.shape(0) && winner.shape(1) == grad.shape(1),
       "winner must have the shape of grad");
  need(dtype_of(out, "out") == a.dtype, "out must have the dtype of grad");
  need(static_cast<int64_t>(out.shape(0)) == a.num_dst && out.shape(1) == grad.shape(1),
       "out has the wrong shape");
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
