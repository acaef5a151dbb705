// Binds bit_product.inl; ops/binary.py describes the operators.
#include "dense/bit_product.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "arguments/bound.h"
#include "arguments/epilogue_arguments.h"
#include "base/buffer.h"
#include "base/dropout.h"
#include "threads/parallel.h"
#include "threads/worth.h"
#include "variants/variants.h"
#include "variants/x86.h"

#define GB_KERNEL_FILE "dense/bit_product.inl"
#include "variants/for_each_variant.h"

namespace gb {

using Words = Array2<const int32_t>;

static const uint32_t* words_of(const Words& bits, int64_t depth, int64_t rows) {
  need_shape(bits, (depth + kWordBits - 1) / kWordBits, rows);
  return reinterpret_cast<const uint32_t*>(bits.data());
}

static const float* factors_of(const OptionalVector& factors, int64_t rows) {
  return static_cast<const float*>(in_sums(factors, DType::kFloat32, rows));
}

static void bit_product(const Words& bits, const OptionalVector& factors, const StridedFloats& b,
                        const WrittenFloatRows& out, bool add, const OptionalEpilogue& after) {
  BitProductArgs p;
  p.num_rows = out.num_rows();
  p.depth = b.num_rows();
  p.width = b.num_columns();
  p.bits = words_of(bits, p.depth, p.num_rows);
  p.factors = factors_of(factors, p.num_rows);
  p.b = {b.data(), b.stride(0), b.stride(1)};
  need_columns(out, p.width);
  p.out = out.data();
  p.out_stride = out.stride(0);
  p.add = add;
  const std::optional<Epilogue> follows = epilogue_of(after, DType::kFloat32, p.num_rows, p.width);
  p.epilogue = follows ? &*follows : nullptr;
  nb::gil_scoped_release release;
  if (p.num_rows > 0 && p.width > 0) GB_PICK(bit_product)(p);
}

static void bit_gram(const FloatRows& a, const Words& bits, const OptionalVector& factors,
                     const Array2<float>& out) {
  BitGramArgs g;
  g.num_rows = a.num_rows();
  g.height = a.num_columns();
  g.width = out.num_columns();
  need_length(out, g.height);
  g.a = a.data();
  g.a_stride = a.stride(0);
  g.bits = words_of(bits, g.num_rows, g.width);
  g.factors = factors_of(factors, g.num_rows);
  g.out = out.data();
  nb::gil_scoped_release release;
  if (g.height > 0 && g.width > 0) GB_PICK(bit_gram)(g);
}

void bind_bit_product(nb::module_& m) {
  using namespace nb::literals;
  def_kernel<&bit_product>(m, "bit_product", "bits"_a, "factors"_a, "b"_a, "out"_a, "add"_a = false,
                           "after"_a = nb::none());
  def_kernel<&bit_gram>(m, "bit_gram", "a"_a, "bits"_a, "factors"_a, "out"_a);
}

}  // namespace gb
