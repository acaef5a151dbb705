// Binds spmm_max.inl; ops/spmm_max.py describes the operators and checks the graph.
#include "spmm_max.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "balance.h"
#include "prefetch.h"
#include "rows.h"
#include "variants.h"
#include "x86.h"

#define GB_KERNEL_FILE "spmm_max.inl"
#include "for_each_variant.h"

namespace gb {

using FoundArray = nb::ndarray<int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using DenseArray = nb::ndarray<nb::ndim<2>, nb::c_contig, nb::device::cpu>;

static void spmm_max(const Array1<const int64_t>& indptr, const VectorArray& indices, const RowArray& x,
                     const OptionalVector& weight, int64_t ties, const DenseArray& out,
                     const FoundArray& found) {
  SpmmMaxArgs a{edge_rows_of(indptr, indices, x, weight, "x")};
  need_count(ties, 0, 2, "ties");
  need(dtype_of(out, "out") == a.dtype, "out must have the dtype of x");
  need_shape(out, a.num_dst, a.width, "out");
  need_shape(found, a.num_dst, a.width, "found");
  a.ties = static_cast<Ties>(ties);
  a.out = out.data();
  a.found = found.data();
  nb::gil_scoped_release release;
  GB_PICK(spmm_max)(a);
}

static void spmm_max_backward(const Array1<const int64_t>& indptr, const VectorArray& indices,
                              const Array1<const int64_t>& perm, const Array1<const int64_t>& forward_indptr,
                              const RowArray& grad, const OptionalVector& weight, const FoundArray& winner,
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

static void spmm_max_shared_backward(const Array1<const int64_t>& indptr, const VectorArray& indices,
                                     const RowArray& share, const OptionalVector& weight,
                                     const DenseArray& largest, const RowArray& x, const DenseArray& out) {
  SpmmMaxSharedArgs a{edge_rows_of(indptr, indices, share, weight, "share")};
  need(!weight || sum_dtype(a.dtype) == a.dtype, "weighted rows must have the dtype the kernel sums in");
  for (const DType dtype : {dtype_of(largest, "largest"), dtype_of(x, "x"), dtype_of(out, "out")})
    need(dtype == a.dtype, "largest, x and out must have the dtype of share");
  need_shape(largest, static_cast<int64_t>(share.shape(0)), a.width, "largest");
  need_shape(x, a.num_dst, a.width, "x");
  need_shape(out, a.num_dst, a.width, "out");
  a.largest = largest.data();
  a.rows = rows_of(x);
  a.out = out.data();
  nb::gil_scoped_release release;
  GB_PICK(spmm_max_shared_backward)(a);
}

void bind_spmm_max(nb::module_& m) {
  using namespace nb::literals;
  m.def("spmm_max", &spmm_max, "indptr"_a.noconvert(), "indices"_a.noconvert(), "x"_a.noconvert(),
        "weight"_a.noconvert().none(), "ties"_a, "out"_a.noconvert(), "found"_a.noconvert());
  m.def("spmm_max_backward", &spmm_max_backward, "indptr"_a.noconvert(), "indices"_a.noconvert(),
        "perm"_a.noconvert(), "forward_indptr"_a.noconvert(), "grad"_a.noconvert(),
        "weight"_a.noconvert().none(), "winner"_a.noconvert(), "out"_a.noconvert());
  m.def("spmm_max_shared_backward", &spmm_max_shared_backward, "indptr"_a.noconvert(),
        "indices"_a.noconvert(), "share"_a.noconvert(), "weight"_a.noconvert().none(),
        "largest"_a.noconvert(), "x"_a.noconvert(), "out"_a.noconvert());
}

}  // namespace gb
