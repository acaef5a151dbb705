// The products of tall matrices, compiled from csrc/dense/dense.inl.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/dropout.h"
#include "cpu_kernels.h"
#include "dense/dense.h"
#include "threads/parallel.h"
#include "threads/worth.h"
#include "variants/variants.h"
#include "variants/x86.h"
// The epilogue's element types.
#include "base/dtypes.h"

#define GB_KERNEL_FILE "dense/dense.inl"
#include "variants/for_each_variant.h"

namespace program {

void tall_product(ConstMatrix a, ConstMatrix b, Matrix out, bool add, const int64_t* ids,
                  const gb::Epilogue* after) {
  gb::TallProductArgs p;
  p.num_rows = out.rows;
  p.depth = a.columns;
  p.width = out.columns;
  p.a = a.data;
  p.a_stride = a.row_stride;
  p.ids = ids;
  p.b = {b.data, b.row_stride, b.column_stride};
  p.out = out.data;
  p.out_stride = out.row_stride;
  p.add = add;
  p.epilogue = after;
  if (p.num_rows > 0 && p.width > 0) GB_PICK(tall_product)(p);
}

void tall_gram(ConstMatrix a, ConstMatrix b, Matrix out, const int64_t* ids) {
  gb::TallGramArgs g;
  g.num_rows = a.rows;
  g.height = a.columns;
  g.width = b.columns;
  g.a = a.data;
  g.a_stride = a.row_stride;
  g.b = b.data;
  g.b_stride = b.row_stride;
  g.b_ids = ids;
  g.out = out.data;
  if (g.height > 0 && g.width > 0) GB_PICK(tall_gram)(g);
}

}  // namespace program
