// Binds distances.inl; ops/distances.py describes the operator.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "arguments/edge_rows.h"
#include "threads/parallel.h"
#include "variants/variants.h"
#include "variants/x86.h"

namespace gb {

enum class DistanceKind : int64_t { kAbsolute, kEuclidean, kModuli };

struct DistanceArgs {
  DType dtype = DType::kFloat32;  // dtype of all arrays: float32 or float64
  DistanceKind kind = DistanceKind::kAbsolute;
  int64_t num_queries = 0, num_rows = 0;
  int64_t width = 0;  // columns of a row, or of each of its two parts
  Rows query, rows;
  const void* grad = nullptr;                    // (num_queries, num_rows)
  void* out = nullptr;                           // (num_queries, num_rows); read by the gradients
  void *of_query = nullptr, *of_rows = nullptr;  // written, without gaps
};

}  // namespace gb

#define GB_KERNEL_FILE "dense/distances.inl"
#include "variants/for_each_variant.h"

namespace gb {

template <typename Distances>
static DistanceArgs args_of(const RowArray& query, const RowArray& rows, int64_t kind, const Distances& out) {
  DistanceArgs a;
  a.dtype = dtype_of(query);
  need(a.dtype == sum_dtype(a.dtype), "query must be float32 or float64");
  need_count(kind, 0, 2, "kind");
  a.kind = static_cast<DistanceKind>(kind);
  a.num_queries = query.num_rows();
  a.num_rows = rows.num_rows();
  const int64_t columns = query.num_columns();
  need_dtype_of(rows, query);
  need_columns(rows, columns);
  need(a.kind != DistanceKind::kModuli || columns % 2 == 0,
       "query must have as many imaginary as real parts");
  a.width = a.kind == DistanceKind::kModuli ? columns / 2 : columns;
  a.query = rows_of(query);
  a.rows = rows_of(rows);
  need_dtype_of(out, query);
  need_shape(out, a.num_queries, a.num_rows);
  a.out = const_cast<void*>(static_cast<const void*>(out.data()));
  return a;
}

static void distances(const RowArray& query, const RowArray& rows, int64_t kind, const WrittenMatrix& out) {
  const DistanceArgs a = args_of(query, rows, kind, out);
  nb::gil_scoped_release release;
  GB_PICK(distances)(a);
}

static void distances_backward(const RowArray& query, const RowArray& rows, int64_t kind, const Matrix& out,
                               const Matrix& grad, const WrittenMatrix& of_query,
                               const WrittenMatrix& of_rows) {
  DistanceArgs a = args_of(query, rows, kind, out);
  need_dtype_of(grad, query);
  need_shape(grad, a.num_queries, a.num_rows);
  a.grad = grad.data();
  need_dtype_of(of_query, query);
  need_shape(of_query, a.num_queries, query.num_columns());
  a.of_query = of_query.data();
  need_dtype_of(of_rows, query);
  need_shape(of_rows, a.num_rows, query.num_columns());
  a.of_rows = of_rows.data();
  nb::gil_scoped_release release;
  GB_PICK(distances_backward)(a);
}

void bind_distances(nb::module_& m) {
  using namespace nb::literals;
  def_native(m, "distances", &distances, "query"_a, "rows"_a, "kind"_a, "out"_a);
  def_native(m, "distances_backward", &distances_backward, "query"_a, "rows"_a, "kind"_a, "out"_a, "grad"_a,
             "of_query"_a, "of_rows"_a);
}

}  // namespace gb
