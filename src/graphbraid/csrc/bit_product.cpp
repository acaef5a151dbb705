// Binds bit_product.inl; ops/bit_product.py describes the operators.
#include "bit_product.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "bound.h"
#include "buffer.h"
#include "dropout.h"
#include "epilogue_arguments.h"
#include "parallel.h"
#include "rows.h"
#include "variants.h"
#include "worth.h"
#include "x86.h"

#define GB_KERNEL_FILE "bit_product.inl"
#include "for_each_variant.h"

namespace gb {

using Floats = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;
using Words = Array2<const int32_t>;

static const uint32_t* words_of(const Words& bits, int64_t depth, int64_t rows) {
  need(static_cast<int64_t>(bits.shape(0)) == (depth + kWordBits - 1) / kWordBits,
       "bits must have a row for each 32 rows that are summed");
  need(static_cast<int64_t>(bits.shape(1)) == rows, "bits must have a column for each result");
  return reinterpret_cast<const uint32_t*>(bits.data());
}

static const float* factors_of(const OptionalVector& factors, int64_t rows) {
  return static_cast<const float*>(coefficients(factors, DType::kFloat32, rows, "factors"));
}

static void bit_product(const Words& bits, const OptionalVector& factors, const Floats& b, const Floats& out,
                        bool add, const std::optional<EpilogueTuple>& after) {
  BitProductArgs p;
  p.num_rows = static_cast<int64_t>(out.shape(0));
  p.depth = static_cast<int64_t>(b.shape(0));
  p.width = static_cast<int64_t>(b.shape(1));
  p.bits = words_of(bits, p.depth, p.num_rows);
  p.factors = factors_of(factors, p.num_rows);
  p.b = {b.data(), b.stride(0), b.stride(1)};
  need_shape(out, p.num_rows, p.width, "out");
  const Rows out_rows = written_rows(RowArray(out), "out");
  p.out = out.data();
  p.out_stride = out_rows.stride;
  p.add = add;
  const std::optional<Epilogue> follows = epilogue_of(after, DType::kFloat32, p.num_rows, p.width);
  p.epilogue = follows ? &*follows : nullptr;
  nb::gil_scoped_release release;
  if (p.num_rows > 0 && p.width > 0) GB_PICK(bit_product)(p);
}

static void bit_gram(const Floats& a, const Words& bits, const OptionalVector& factors,
                     const Array2<float>& out) {
  BitGramArgs g;
  g.num_rows = static_cast<int64_t>(a.shape(0));
  g.height = static_cast<int64_t>(a.shape(1));
  g.width = static_cast<int64_t>(out.shape(1));
  need_length(out, g.height, "out");
  g.a = static_cast<const float*>(rows_of(RowArray(a)).data);
  g.a_stride = a.stride(0);
  g.bits = words_of(bits, g.num_rows, g.width);
  g.factors = factors_of(factors, g.num_rows);
  g.out = out.data();
  nb::gil_scoped_release release;
  if (g.height > 0 && g.width > 0) GB_PICK(bit_gram)(g);
}

void bind_bit_product(nb::module_& m) {
  using namespace nb::literals;
  def_kernel<&bit_product>(m, "bit_product", "bits"_a.noconvert(), "factors"_a.noconvert().none(),
                           "b"_a.noconvert(), "out"_a.noconvert(), "add"_a = false,
                           "after"_a.none() = nb::none());
  def_kernel<&bit_gram>(m, "bit_gram", "a"_a.noconvert(), "bits"_a.noconvert(),
                        "factors"_a.noconvert().none(), "out"_a.noconvert());
}

}  // namespace gb
