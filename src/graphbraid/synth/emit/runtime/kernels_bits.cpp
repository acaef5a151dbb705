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

void bit_product(const BitProduct& a) {
  const gb::Epilogue after = epilogue_of(a.after);
  gb::BitProductArgs p;
  p.num_rows = a.out.rows;
  p.depth = a.b.rows;
  p.width = a.out.columns;
  p.bits = reinterpret_cast<const uint32_t*>(a.bits);
  p.factors = a.factors;
  p.b = {a.b.data, a.b.row_stride, a.b.column_stride};
  p.out = a.out.data;
  p.out_stride = a.out.row_stride;
  p.add = a.add;
  if (!is_empty(a.after)) p.epilogue = &after;
  if (p.num_rows > 0 && p.width > 0) GB_PICK(bit_product)(p);
}

void bit_gram(const BitGram& a) {
  gb::BitGramArgs g;
  g.num_rows = a.a.rows;
  g.height = a.a.columns;
  g.width = a.out.columns;
  g.a = a.a.data;
  g.a_stride = a.a.row_stride;
  g.bits = reinterpret_cast<const uint32_t*>(a.bits);
  g.factors = a.factors;
  g.out = a.out.data;
  if (g.height > 0 && g.width > 0) GB_PICK(bit_gram)(g);
}

}  // namespace program
