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

void spmm(const Edges& edges, ConstMatrix x, const Factors& factors, double loop_scale, int64_t num_loops,
          bool skip_loops, bool mean, ConstMatrix addend, Matrix out, const gb::Epilogue* after) {
  gb::SpmmArgs a;
  a.wide_indices = edges.wide;
  a.indptr = edges.indptr;
  a.indices = edges.indices;
  a.num_dst = edges.num_rows;
  a.num_edges = edges.num_edges;
  a.width = x.columns;
  a.x = {x.data, x.row_stride};
  a.weight = factors.weight;
  a.src_scale = factors.src_scale;
  a.dst_scale = factors.dst_scale;
  a.loop = factors.loop;
  a.loop_scale = loop_scale;
  a.num_loops = num_loops;
  a.skip_loops = skip_loops;
  a.mean = mean;
  a.addend = {addend.data, addend.row_stride};
  a.num_addend = addend.rows;
  a.out = out.data;
  a.out_stride = out.row_stride;
  a.epilogue = after;
  GB_PICK(spmm)(a);
}

}  // namespace program
