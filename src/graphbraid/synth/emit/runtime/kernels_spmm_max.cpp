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
  take_edges(edges, a);
  a.width = x.columns;
  a.x = {x.data, x.row_stride};
  return a;
}

}  // namespace

void spmm_max(const SpmmMax& a) {
  gb::SpmmMaxArgs s{rows_along(a.edges, a.x)};
  s.ties = static_cast<gb::Ties>(a.ties);
  s.out = a.out.data;
  s.found = a.found;
  GB_PICK(spmm_max)(s);
}

void spmm_max_shared_backward(const SpmmMaxBackward& a) {
  gb::SpmmMaxSharedArgs s{rows_along(a.edges, a.share)};
  s.largest = a.largest.data;
  s.rows = {a.x.data, a.x.row_stride};
  s.out = a.out.data;
  GB_PICK(spmm_max_shared_backward)(s);
}

}  // namespace program
