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

void tall_product(const TallProduct& a) {
  const gb::Epilogue after = epilogue_of(a.after);
  gb::TallProductArgs p;
  p.num_rows = a.out.rows;
  p.depth = a.a.columns;
  p.width = a.out.columns;
  p.a = a.a.data;
  p.a_stride = a.a.row_stride;
  p.ids = a.ids;
  p.b = {a.b.data, a.b.row_stride, a.b.column_stride};
  p.out = a.out.data;
  p.out_stride = a.out.row_stride;
  p.add = a.add;
  if (!is_empty(a.after)) p.epilogue = &after;
  if (p.num_rows > 0 && p.width > 0) GB_PICK(tall_product)(p);
}

void tall_gram(const TallGram& a) {
  gb::TallGramArgs g;
  g.num_rows = a.a.rows;
  g.height = a.a.columns;
  g.width = a.b.columns;
  g.a = a.a.data;
  g.a_stride = a.a.row_stride;
  g.b = a.b.data;
  g.b_stride = a.b.row_stride;
  g.b_ids = a.ids;
  g.out = a.out.data;
  if (g.height > 0 && g.width > 0) GB_PICK(tall_gram)(g);
}

}  // namespace program
