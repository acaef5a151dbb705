// The kernels of the maximum, compiled from csrc/aggregate/spmm_max.inl.
#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "aggregate/spmm_max.h"
#include "base/prefetch.h"
#include "cpu_kernels.h"
#include "threads/balance.h"
#include "variants/variants.h"
#include "variants/x86.h"

#define GB_KERNEL_FILE "aggregate/spmm_max.inl"
#include "variants/for_each_variant.h"

namespace program {
namespace {

gb::EdgeRows rows_along(const Edges& edges, ConstMatrix x) {
  gb::EdgeRows a;
  a.wide_indices = edges.wide;
  a.indptr = edges.indptr;
  a.indices = edges.indices;
  a.num_dst = edges.num_rows;
  a.num_edges = edges.num_edges;
  a.width = x.columns;
  a.x = {x.data, x.row_stride};
  return a;
}

}  // namespace

void spmm_max(const Edges& edges, ConstMatrix x, int ties, Matrix out, int32_t* found) {
  gb::SpmmMaxArgs a{rows_along(edges, x)};
  a.ties = static_cast<gb::Ties>(ties);
  a.out = out.data;
  a.found = found;
  GB_PICK(spmm_max)(a);
}

void spmm_max_shared_backward(const Edges& edges, ConstMatrix share, ConstMatrix largest, ConstMatrix x,
                              Matrix out) {
  gb::SpmmMaxSharedArgs a{rows_along(edges, share)};
  a.largest = largest.data;
  a.rows = {x.data, x.row_stride};
  a.out = out.data;
  GB_PICK(spmm_max_shared_backward)(a);
}

}  // namespace program
