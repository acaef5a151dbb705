// The products with rows of zeros and ones, compiled from csrc/dense/bit_product.inl.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "base/buffer.h"
#include "base/dropout.h"
#include "cpu_kernels.h"
#include "dense/bit_product.h"
#include "threads/parallel.h"
#include "threads/worth.h"
#include "variants/variants.h"
#include "variants/x86.h"
// The epilogue's element types.
#include "base/dtypes.h"

#define GB_KERNEL_FILE "dense/bit_product.inl"
#include "variants/for_each_variant.h"

namespace program {

void bit_product(const int32_t* bits, const float* factors, ConstMatrix b, Matrix out, bool add,
                 const gb::Epilogue* after) {
  gb::BitProductArgs p;
  p.num_rows = out.rows;
  p.depth = b.rows;
  p.width = out.columns;
  p.bits = reinterpret_cast<const uint32_t*>(bits);
  p.factors = factors;
  p.b = {b.data, b.row_stride, b.column_stride};
  p.out = out.data;
  p.out_stride = out.row_stride;
  p.add = add;
  p.epilogue = after;
  if (p.num_rows > 0 && p.width > 0) GB_PICK(bit_product)(p);
}

void bit_gram(ConstMatrix a, const int32_t* bits, const float* factors, Matrix out) {
  gb::BitGramArgs g;
  g.num_rows = a.rows;
  g.height = a.columns;
  g.width = out.columns;
  g.a = a.data;
  g.a_stride = a.row_stride;
  g.bits = reinterpret_cast<const uint32_t*>(bits);
  g.factors = factors;
  g.out = out.data;
  if (g.height > 0 && g.width > 0) GB_PICK(bit_gram)(g);
}

}  // namespace program
