// Binds dense.inl; ops/dense.py describes the operators.
#include "dense.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "bound.h"
#include "buffer.h"
#include "dropout.h"
#include "epilogue_arguments.h"
#include "parallel.h"
#include "rows.h"
#include "variants.h"
#include "worth.h"
#include "x86.h"

#define GB_KERNEL_FILE "dense.inl"
#include "for_each_variant.h"

namespace gb {

using Floats = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;

static float* rows_apart(const Floats& matrix, int64_t& stride) {
  const Rows rows = rows_of(RowArray(matrix));
  stride = rows.stride;
  return matrix.data();
}

// The ids' data, or null; how many rows they make of a matrix's.
static const int64_t* rows_by_id(const OptionalIds& ids, size_t rows, size_t& count) {
  count = ids ? ids->shape(0) : rows;
  if (!ids) return nullptr;
  const int64_t* values = ids->data();
  const uint64_t bound = rows;
  uint64_t most = 0;  // of ids as unsigned numbers: a negative one is beyond any bound
  for (size_t i = 0; i < count; ++i) most = std::max(most, static_cast<uint64_t>(values[i]));
  if (count > 0 && most >= bound) refuse("ids must lie in [0, " + std::to_string(rows) + ")");
  return values;
}

static void tall_product(const Floats& a, const Floats& b, const Floats& out, bool add,
                         const OptionalIds& ids, const std::optional<EpilogueTuple>& after) {
  TallProductArgs p;
  size_t num_rows = 0;
  p.ids = rows_by_id(ids, a.shape(0), num_rows);
  p.num_rows = static_cast<int64_t>(num_rows);
  p.depth = static_cast<int64_t>(a.shape(1));
  p.width = static_cast<int64_t>(b.shape(1));
  need(b.shape(0) == a.shape(1), "b must have a row for each column of a");
  need_shape(out, p.num_rows, p.width, "out");
  written_rows(RowArray(out), "out");
  p.a = rows_apart(a, p.a_stride);
  p.b = {b.data(), b.stride(0), b.stride(1)};
  p.out = rows_apart(out, p.out_stride);
  p.add = add;
  const std::optional<Epilogue> follows = epilogue_of(after, DType::kFloat32, p.num_rows, p.width);
  p.epilogue = follows ? &*follows : nullptr;
  nb::gil_scoped_release release;
  if (p.num_rows > 0 && p.width > 0) GB_PICK(tall_product)(p);
}

static void tall_gram(const Floats& a, const Floats& b, const Floats& out, const OptionalIds& ids) {
  TallGramArgs g;
  size_t num_rows = 0;
  g.b_ids = rows_by_id(ids, b.shape(0), num_rows);
  g.num_rows = static_cast<int64_t>(a.shape(0));
  g.height = static_cast<int64_t>(a.shape(1));
  g.width = static_cast<int64_t>(b.shape(1));
  need(num_rows == a.shape(0), "a and b must have as many rows");
  need_shape(out, g.height, g.width, "out");
  int64_t out_stride = 0;
  g.a = rows_apart(a, g.a_stride);
  g.b = rows_apart(b, g.b_stride);
  g.out = rows_apart(out, out_stride);
  need(out.size() == 0 || out.shape(0) <= 1 || out_stride == g.width, "out must be contiguous");
  nb::gil_scoped_release release;
  if (g.height > 0 && g.width > 0) GB_PICK(tall_gram)(g);
}

void bind_dense(nb::module_& m) {
  using namespace nb::literals;
  def_kernel<&tall_product>(m, "tall_product", "a"_a.noconvert(), "b"_a.noconvert(), "out"_a.noconvert(),
                            "add"_a = false, "ids"_a.noconvert() = nb::none(), "after"_a.none() = nb::none());
  def_kernel<&tall_gram>(m, "tall_gram", "a"_a.noconvert(), "b"_a.noconvert(), "out"_a.noconvert(),
                         "ids"_a.noconvert() = nb::none());
}

}  // namespace gb
