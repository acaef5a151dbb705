// The aggregation kernels, compiled from csrc/aggregate/spmm.inl.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "aggregate/spmm.h"
#include "base/dropout.h"
#include "base/prefetch.h"
#include "cpu_kernels.h"
#include "threads/balance.h"
#include "variants/variants.h"
#include "variants/x86.h"

#define GB_KERNEL_FILE "aggregate/spmm.inl"
#include "variants/for_each_variant.h"

namespace program {

void spmm(const Spmm& a) {
  const gb::Epilogue after = epilogue_of(a.after);
  gb::SpmmArgs s;
  take_edges(a.edges, s);
  s.width = a.x.columns;
  s.x = {a.x.data, a.x.row_stride};
  s.weight = a.factors.weight;
  s.src_scale = a.factors.src_scale;
  s.dst_scale = a.factors.dst_scale;
  s.loop = a.factors.loop;
  s.loop_scale = a.loop_scale;
  s.num_loops = a.num_loops;
  s.skip_loops = a.skip_loops;
  s.mean = a.mean;
  s.addend = {a.addend.data, a.addend.row_stride};
  s.num_addend = a.addend.rows;
  s.out = a.out.data;
  s.out_stride = a.out.row_stride;
  if (!is_empty(a.after)) s.epilogue = &after;
  GB_PICK(spmm)(s);
}

}  // namespace program
