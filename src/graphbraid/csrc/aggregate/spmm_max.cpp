// Binds spmm_max.inl; ops/spmm.py describes the operators and checks the graph.
#include "aggregate/spmm_max.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "arguments/edge_rows.h"
#include "base/prefetch.h"
#include "threads/balance.h"
#include "variants/variants.h"
#include "variants/x86.h"

#define GB_KERNEL_FILE "aggregate/spmm_max.inl"
#include "variants/for_each_variant.h"

namespace gb {

static void spmm_max(const Indptr& indptr, const Ids& indices, const RowArray& x,
                     const OptionalVector& weight, int64_t ties, const WrittenMatrix& out,
                     const std::optional<Array2<int32_t>>& found) {
  SpmmMaxArgs a{edge_rows_of(indptr, indices, x, weight)};
  need_count(ties, 0, static_cast<int>(Ties::kSharedWithZero), "ties");
  need_dtype_of(out, x);
  need_shape(out, a.num_dst, a.width);
  if (found) need_shape(*found, a.num_dst, a.width);
  a.ties = static_cast<Ties>(ties);
  a.out = out.data();
  a.found = found ? found->data() : nullptr;
  nb::gil_scoped_release release;
  GB_PICK(spmm_max)(a);
}

static void spmm_max_backward(const Indptr& indptr, const Ids& indices, const Indptr& perm,
                              const Indptr& forward_indptr, const RowArray& grad,
                              const OptionalVector& weight, const Array2<const int32_t>& winner,
                              const WrittenMatrix& out) {
  SpmmMaxBackwardArgs a{edge_rows_of(indptr, indices, grad, weight)};
  need_length(perm, a.num_edges);
  need_length(forward_indptr, grad.num_rows() + 1);
  rows_between(forward_indptr, a.num_edges);
  need_shape(winner, grad.num_rows(), a.width);
  need_dtype_of(out, grad);
  need_shape(out, a.num_dst, a.width);
  a.perm = perm.data();
  a.forward_indptr = forward_indptr.data();
  a.winner = winner.data();
  a.out = out.data();
  nb::gil_scoped_release release;
  GB_PICK(spmm_max_backward)(a);
}

static void spmm_max_shared_backward(const Indptr& indptr, const Ids& indices, const RowArray& share,
                                     const OptionalVector& weight, const Matrix& largest, const RowArray& x,
                                     const WrittenMatrix& out) {
  SpmmMaxSharedArgs a{edge_rows_of(indptr, indices, share, weight)};
  need(!weight || sum_dtype(a.dtype) == a.dtype, "weighted rows must have the dtype that they are summed in");
  need_dtype_of(largest, share);
  need_shape(largest, share.num_rows(), a.width);
  need_dtype_of(out, share);
  need_shape(out, a.num_dst, a.width);
  a.rows = rows_like(a, x, a.num_dst);
  a.largest = largest.data();
  a.out = out.data();
  nb::gil_scoped_release release;
  GB_PICK(spmm_max_shared_backward)(a);
}

void bind_spmm_max(nb::module_& m) {
  using namespace nb::literals;
  def_native(m, "spmm_max", &spmm_max, "indptr"_a, "indices"_a, "x"_a, "weight"_a, "ties"_a, "out"_a,
             "found"_a);
  def_native(m, "spmm_max_backward", &spmm_max_backward, "indptr"_a, "indices"_a, "perm"_a,
             "forward_indptr"_a, "grad"_a, "weight"_a, "winner"_a, "out"_a);
  def_native(m, "spmm_max_shared_backward", &spmm_max_shared_backward, "indptr"_a, "indices"_a, "share"_a,
             "weight"_a, "largest"_a, "x"_a, "out"_a);
}

}  // namespace gb
